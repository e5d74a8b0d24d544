//! Group commit: one sync for many, callbacks in order, readers see what is queued, failures reach everybody.

use bytes::Bytes;
use proptest::prelude::*;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use tidings_base::Seeded;
use tidings_log::testing::SimDisk;
use tidings_log::{Done, GroupCommit, GroupOptions, Log, MIN_SEGMENT_BYTES, Options, RealDisk, RefusedReason};

fn open(disk: &SimDisk) -> Log {
    let options = Options { segment_bytes: MIN_SEGMENT_BYTES, cache_bytes: 2_000, ..Options::default() };
    Log::open(Arc::new(disk.clone()), options).unwrap().0
}

fn payload(n: u64) -> Bytes {
    Bytes::from(vec![n as u8; 50])
}

/// Notes the order and the outcome of callbacks.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<Note>>>);

/// The number of a change and how it failed.
type Note = (u64, Option<ErrorKind>);

impl Notes {
    fn note(&self, number: u64) -> Done {
        let notes = self.0.clone();
        Box::new(move |outcome| notes.lock().unwrap().push((number, outcome.err().map(|e| e.kind()))))
    }

    fn taken(&self) -> Vec<Note> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn ignore() -> Done {
    Box::new(|_| {})
}

#[test]
fn one_sync_serves_all_who_wait_and_they_hear_in_order() {
    let disk = SimDisk::new(0);
    let group = GroupCommit::manual(open(&disk), GroupOptions::default());
    let notes = Notes::default();
    let before = disk.counts();
    for n in 1..=20 {
        group.append(n, vec![payload(n)], notes.note(n)).unwrap();
    }
    group.truncate_after(15, notes.note(21)).unwrap();
    group.append(16, vec![payload(99)], notes.note(22)).unwrap();
    group.flush(notes.note(23)).unwrap();
    assert_eq!(group.read(15, 20, usize::MAX).unwrap(), [(15, payload(15)), (16, payload(99))]);
    assert!(notes.taken().is_empty());
    assert!(group.pump() && !group.pump());
    assert_eq!(notes.taken(), (1..=23).map(|n| (n, None)).collect::<Vec<_>>());
    // The second write is the marker after the sync.
    assert_eq!((disk.counts().syncs - before.syncs, disk.counts().writes - before.writes), (1, 2));
    assert_eq!((group.stats().rounds, group.stats().changes, group.stats().waiting), (1, 22, 0));
    disk.crash(&mut Seeded::new(1));
    assert_eq!(open(&disk).read(15, 20, usize::MAX).unwrap(), [(15, payload(15)), (16, payload(99))]);
}

#[test]
fn inline_does_it_within_the_call() {
    let disk = SimDisk::new(0);
    let group = GroupCommit::inline(open(&disk));
    let notes = Notes::default();
    group.append(1, vec![payload(1), payload(2)], notes.note(1)).unwrap();
    assert_eq!(notes.taken(), [(1, None)]);
    group.reset(10, notes.note(2)).unwrap();
    group.purge_through(19, notes.note(3)).unwrap();
    assert_eq!(notes.taken(), [(2, None), (3, None)]);
    assert_eq!((group.first(), group.next(), group.last()), (20, 20, None));
    let wrong = group.append(7, vec![payload(7)], ignore()).unwrap_err();
    assert!(matches!(wrong.reason, RefusedReason::Invalid(_)));
}

#[test]
fn a_full_queue_says_so_and_says_when_there_is_room() {
    let disk = SimDisk::new(0);
    let options = GroupOptions { max_waiting: 4, max_waiting_bytes: 1_000, max_round_bytes: 100 };
    let group = GroupCommit::manual(open(&disk), options);
    for n in 1..=4 {
        group.append(n, vec![payload(n)], ignore()).unwrap();
    }
    let refused = group.append(5, vec![payload(5)], ignore()).unwrap_err();
    assert!(matches!(refused.reason, RefusedReason::Busy));
    assert_eq!(group.next(), 5);
    let (tell, told) = mpsc::channel();
    group.when_room(Box::new(move || tell.send(()).unwrap()));
    assert!(told.try_recv().is_err());
    assert!(group.pump(), "a round takes two of these");
    assert_eq!((told.try_recv().is_ok(), group.stats().waiting), (true, 2));
    assert!(group.pump());
    // One change may be larger than all the room, but not beside others.
    let large = Bytes::from(vec![1; 5_000]);
    group.append(5, vec![large.clone()], ignore()).unwrap();
    assert!(matches!(group.append(6, vec![payload(6)], ignore()).unwrap_err().reason, RefusedReason::Busy));
    assert!(group.pump());
    assert_eq!(group.read(5, 6, 1).unwrap(), [(5, large)]);
}

#[test]
fn a_failed_sync_fails_everybody_and_stops_the_log() {
    let disk = SimDisk::new(0);
    let options = GroupOptions { max_round_bytes: 100, ..GroupOptions::default() };
    let group = GroupCommit::manual(open(&disk), options);
    let notes = Notes::default();
    for n in 1..=6 {
        group.append(n, vec![payload(n)], notes.note(n)).unwrap();
    }
    assert!(group.pump());
    assert_eq!(notes.taken(), [(1, None), (2, None)]);
    disk.fail_sync_after(0, ErrorKind::Other);
    assert!(group.pump());
    assert_eq!(notes.taken(), (3..=6).map(|n| (n, Some(ErrorKind::Other))).collect::<Vec<_>>());
    let refused = group.append(5, vec![payload(5)], ignore()).unwrap_err();
    assert!(matches!(refused.reason, RefusedReason::Stopped(_)), "{refused:?}");
    assert!(group.close().is_err());
    disk.crash(&mut Seeded::new(4));
    assert!(open(&disk).next() >= 3);
}

#[test]
fn a_full_disk_refuses_appends_until_a_purge_makes_room() {
    let disk = SimDisk::new(0);
    let group = GroupCommit::inline(open(&disk));
    disk.set_full_at(Some(u64::from(3 * MIN_SEGMENT_BYTES)));
    let notes = Notes::default();
    let mut next = 1;
    let failed = loop {
        group.append(next, vec![payload(next)], notes.note(next)).unwrap();
        match notes.taken()[..] {
            [(_, None)] => next += 1,
            [(_, Some(kind))] => break kind,
            ref other => panic!("{other:?}"),
        }
        assert!(next < 1_000, "the disk is never full");
    };
    assert_eq!((failed, group.next()), (ErrorKind::StorageFull, next));
    assert_eq!(group.read(next - 1, next + 5, usize::MAX).unwrap(), [(next - 1, payload(next - 1))]);
    group.purge_through(next - 2, notes.note(0)).unwrap();
    group.append(next, vec![payload(next)], notes.note(1)).unwrap();
    assert_eq!(notes.taken(), [(0, None), (1, None)]);
    disk.crash(&mut Seeded::new(1));
    let log = open(&disk);
    assert_eq!((log.first(), log.next()), (next - 1, next + 1));
}

#[test]
fn a_panicking_callback_stops_the_log_and_nobody_waits_for_ever() {
    let disk = SimDisk::new(0);
    let group = GroupCommit::start(open(&disk), GroupOptions::default()).unwrap();
    let (tell, told) = mpsc::channel();
    group.append(1, vec![payload(1)], Box::new(|_| panic!("as this test wants"))).unwrap();
    let mut refused = false;
    for n in 2..1_000_000u64 {
        let tell = tell.clone();
        match group.append(n, vec![payload(n)], Box::new(move |outcome| tell.send(outcome.is_ok()).unwrap())) {
            Ok(()) => assert!(told.recv().is_ok()),
            Err(e) => {
                refused = matches!(e.reason, RefusedReason::Stopped(_));
                break;
            }
        }
    }
    assert!(refused);
    assert!(group.close().is_err());
}

#[test]
fn the_last_handle_may_be_dropped_by_a_callback() {
    let disk = SimDisk::new(0);
    let group = GroupCommit::start(open(&disk), GroupOptions::default()).unwrap();
    let (tell, told) = mpsc::channel();
    let last = group.clone();
    let handed_over = Arc::new(Mutex::new(None));
    let mine = handed_over.clone();
    let lock = handed_over.lock().unwrap();
    group
        .append(
            1,
            vec![payload(1)],
            Box::new(move |outcome| {
                let last = mine.lock().unwrap().take();
                drop::<Option<GroupCommit>>(last);
                tell.send(outcome.is_ok()).unwrap();
            }),
        )
        .unwrap();
    drop(group);
    let mut lock = lock;
    *lock = Some(last);
    drop(lock);
    assert!(told.recv().unwrap());
}

#[test]
fn many_threads_on_a_real_disk() {
    const THREADS: u64 = 8;
    const EACH: u64 = 400;
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::open(directory.path()).unwrap());
    let options = Options { segment_bytes: 64 << 10, cache_bytes: 10_000, ..Options::default() };
    let (log, _) = Log::open(disk.clone(), options.clone()).unwrap();
    let group = GroupCommit::start(log, GroupOptions { max_waiting: 64, ..GroupOptions::default() }).unwrap();
    // Who appends must know the next index: in use one caller does; here a lock makes one of many.
    let turn = Arc::new(Mutex::new(()));
    let durable = Arc::new(AtomicU64::new(0));
    let expected = Arc::new(Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (group, turn, durable, expected) = (group.clone(), turn.clone(), durable.clone(), expected.clone());
            scope.spawn(move || {
                for n in 0..EACH {
                    append_one(&group, &turn, &durable, &expected, thread * EACH + n);
                    if n % 50 == 0 {
                        let seen = durable.load(Ordering::SeqCst);
                        let records = group.read(1, seen + 1, usize::MAX).unwrap();
                        let expected = expected.lock().unwrap();
                        assert!(records.iter().all(|(index, payload)| *payload == expected[*index as usize - 1]));
                        assert_eq!(records.len() as u64, seen);
                    }
                }
            });
        }
    });
    let (tell, told) = mpsc::channel();
    group.flush(Box::new(move |outcome| tell.send(outcome.is_ok()).unwrap())).unwrap();
    assert!(told.recv().unwrap());
    assert_eq!(durable.load(Ordering::SeqCst), THREADS * EACH);
    assert!(group.stats().rounds < THREADS * EACH);
    group.close().unwrap();
    let (log, recovery) = Log::open(disk, options).unwrap();
    assert!(recovery.torn.is_none() && recovery.segments > 1, "{recovery:?}");
    let records = log.read(1, u64::MAX, usize::MAX).unwrap();
    let found: Vec<Bytes> = records.into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(found, *expected.lock().unwrap());
}

fn append_one(
    group: &GroupCommit,
    turn: &Mutex<()>,
    durable: &Arc<AtomicU64>,
    expected: &Mutex<Vec<Bytes>>,
    stamp: u64,
) {
    loop {
        let held = turn.lock().unwrap();
        let index = group.next();
        let payload = Bytes::from(stamp.to_le_bytes().repeat(12));
        let durable = durable.clone();
        let done: Done = Box::new(move |outcome| {
            outcome.unwrap();
            assert_eq!(durable.swap(index, Ordering::SeqCst), index - 1, "callbacks come in order");
        });
        match group.append(index, vec![payload.clone()], done) {
            Ok(()) => {
                expected.lock().unwrap().push(payload);
                return;
            }
            Err(refused) => {
                assert!(matches!(refused.reason, RefusedReason::Busy), "{refused:?}");
                drop(held);
                let (tell, told) = mpsc::channel();
                group.when_room(Box::new(move || tell.send(()).unwrap()));
                told.recv().unwrap();
            }
        }
    }
}

proptest! {
    /// The reference: a list that takes every change when it is queued.
    #[test]
    fn readers_see_what_is_queued_whatever_is_written_yet(
        steps in prop::collection::vec((0u8..8, any::<u16>()), 1..120),
        cache_bytes in prop_oneof![Just(0usize), Just(500), Just(100_000)],
    ) {
        let disk = SimDisk::new(0);
        let options = Options { segment_bytes: MIN_SEGMENT_BYTES, cache_bytes, ..Options::default() };
        let (log, _) = Log::open(Arc::new(disk.clone()), options.clone()).unwrap();
        let rounds = GroupOptions { max_round_bytes: 300, ..GroupOptions::default() };
        let group = GroupCommit::manual(log, rounds);
        let (mut first, mut list) = (1u64, Vec::<Bytes>::new());
        for (at, (what, number)) in steps.into_iter().enumerate() {
            let next = first + list.len() as u64;
            match what {
                0..=3 => {
                    let payload = Bytes::from(vec![at as u8; usize::from(number % 300)]);
                    group.append(next, vec![payload.clone()], ignore()).unwrap();
                    list.push(payload);
                }
                4 => {
                    let keep = usize::from(number) % (list.len() + 1);
                    group.truncate_from(first + keep as u64, ignore()).unwrap();
                    list.truncate(keep);
                }
                5 => {
                    let drop = usize::from(number) % (list.len() + 1);
                    group.purge_through(first + drop as u64 - 1, ignore()).unwrap();
                    list.drain(..drop);
                    first += drop as u64;
                }
                6 if number % 5 == 0 => {
                    group.reset(next + 3, ignore()).unwrap();
                    list.clear();
                    first = next + 3;
                }
                _ => {
                    group.pump();
                }
            }
            let records = group.read(first, u64::MAX, usize::MAX).unwrap();
            let indices: Vec<u64> = records.iter().map(|(index, _)| *index).collect();
            prop_assert_eq!(indices, (first..first + list.len() as u64).collect::<Vec<_>>());
            prop_assert!(records.iter().map(|(_, payload)| payload).eq(list.iter()));
        }
        group.close().unwrap();
        disk.crash(&mut Seeded::new(0));
        let (log, _) = Log::open(Arc::new(disk), options).unwrap();
        let records = log.read(first, u64::MAX, usize::MAX).unwrap();
        prop_assert!(records.iter().map(|(_, payload)| payload).eq(list.iter()));
    }
}
