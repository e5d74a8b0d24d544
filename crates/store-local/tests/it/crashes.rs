//! fjall against memory on the same commands, with crashes, restores and replay.

use crate::{check, copy_dir};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;
use tidings_base::agreed::{AgreedState, Entry, SnapshotChunks, StateFailure};
use tidings_base::{LogIndex, Seeded};
use tidings_store::messages::*;
use tidings_store::read::all_pairs;
use tidings_store::suite::random_commands;
use tidings_store::{Kv, KvReader, KvView, MemoryKv, StoreState, command};
use tidings_store_local::{FjallKv, Options};
use tidings_wire::v1::store_command::Command;

fn open(dir: &Path) -> StoreState<FjallKv> {
    StoreState::open(FjallKv::open(dir, Options::default()).unwrap()).unwrap()
}

fn pairs<K: Kv>(state: &StoreState<K>) -> BTreeMap<Bytes, Bytes> {
    all_pairs(&state.kv().reader().view().unwrap()).unwrap()
}

/// Feeds a state what it does not have yet, as the log does.
fn replay<K: Kv>(state: &mut StoreState<K>, log: &[Bytes], batch: u64) -> Vec<Bytes> {
    let from = state.position().index.0 as usize;
    let mut results = Vec::new();
    let entries: Vec<Entry<'_>> = (from as u64 + 1..)
        .zip(&log[from..])
        .map(|(index, command)| Entry { index: LogIndex(index), command })
        .collect();
    for batch in entries.chunks(batch as usize) {
        results.extend(state.apply(batch, Bytes::from("note")).unwrap());
    }
    results
}

fn snapshot<K: Kv>(state: &mut StoreState<K>) -> Pieces {
    let mut chunks = state.snapshot().unwrap();
    let mut pieces = Vec::new();
    while let Some(piece) = chunks.next_chunk().unwrap() {
        pieces.push(piece);
    }
    Pieces(pieces, None)
}

/// Pieces of a snapshot, with a failure after so many of them.
struct Pieces(Vec<Bytes>, Option<usize>);

impl SnapshotChunks for Pieces {
    fn next_chunk(&mut self) -> Result<Option<Bytes>, StateFailure> {
        match &mut self.1 {
            Some(0) => return Err(StateFailure::new("the sender went away")),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(if self.0.is_empty() { None } else { Some(self.0.remove(0)) })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn fjall_agrees_with_memory_through_crashes(seed in any::<u64>()) {
        let mut rng = Seeded::new(seed);
        let root = tempfile::tempdir().unwrap();
        let log: Vec<Bytes> = random_commands(&mut rng, 200).into_iter().map(command::encode).collect();
        let mut memory = StoreState::open(MemoryKv::new()).unwrap();
        let expected = replay(&mut memory, &log, 1);

        let mut life = 0;
        let mut dir = root.path().join("0");
        let mut state = open(&dir);
        let mut upto = 0;
        let mut flushed = 0;
        while upto < log.len() {
            upto = (upto + rng.between(1, 60) as usize).min(log.len());
            let from = state.position().index.0 as usize;
            let results = replay(&mut state, &log[..upto], rng.between(1, 30));
            prop_assert_eq!(&results[..], &expected[from..upto], "replayed entries give the answers they gave");
            if rng.one_in(3) {
                state.flush().unwrap();
                flushed = upto;
            }
            if rng.one_in(2) {
                life += 1;
                let crashed = root.path().join(life.to_string());
                copy_dir(&dir, &crashed);
                drop(state);
                dir = crashed;
                state = open(&dir);
                let at = state.position().index.0 as usize;
                prop_assert!((flushed..=upto).contains(&at), "{} is not between {} and {}", at, flushed, upto);
                upto = at;
            }
        }
        replay(&mut state, &log, 16);
        prop_assert_eq!(pairs(&state), pairs(&memory));

        // A restore from memory to fjall and back changes nothing.
        let mut other = open(&root.path().join("restored"));
        other.restore(memory.position(), &mut snapshot(&mut memory)).unwrap();
        prop_assert_eq!(pairs(&other), pairs(&memory));
        let mut back = StoreState::open(MemoryKv::new()).unwrap();
        back.restore(state.position(), &mut snapshot(&mut state)).unwrap();
        prop_assert_eq!(pairs(&back), pairs(&memory));
    }
}

fn put_rows(state: &mut StoreState<FjallKv>, rows: std::ops::Range<u64>) {
    let batch = rows.map(|i| row(format!("r{i:05}"), vec![cell("c", 1, vec![i as u8; 200])])).collect();
    let command = command::encode(Command::Apply(apply(vec![group("g", batch)])));
    let index = LogIndex(state.position().index.0 + 1);
    state.apply(&[Entry { index, command: &command }], Bytes::new()).unwrap();
}

#[test]
fn a_restore_that_fails_or_is_cut_off_leaves_the_old_state() {
    let root = tempfile::tempdir().unwrap();
    let mut source = open(&root.path().join("source"));
    put_rows(&mut source, 0..8000);
    let position = source.position();
    let dir = root.path().join("target");
    let mut target = open(&dir);
    put_rows(&mut target, 0..10);
    target.flush().unwrap();
    let (old, old_position) = (pairs(&target), target.position());
    for after in 0..3 {
        let mut pieces = snapshot(&mut source);
        assert!(pieces.0.len() > 3);
        pieces.1 = Some(after);
        assert!(target.restore(position.clone(), &mut pieces).is_err());
        assert!(pairs(&target) == old && target.position() == old_position);
    }
    // A crash between the new generation and the switch: its directory is there, CURRENT does not name it.
    copy_dir(&dir.join("generation-1"), &dir.join("generation-2"));
    drop(target);
    let mut target = open(&dir);
    assert!(pairs(&target) == old && target.position() == old_position);
    assert!(!dir.join("generation-2").exists(), "what a crash left is removed");

    let reader = target.kv().reader();
    let before = reader.view().unwrap();
    target.restore(position.clone(), &mut snapshot(&mut source)).unwrap();
    assert!(pairs(&target) == pairs(&source));
    assert!(all_pairs(&before).unwrap() == old, "a view of before stays as it was");
    assert!(all_pairs(&reader.view().unwrap()).unwrap() == pairs(&source), "the reader follows");
    put_rows(&mut target, 8000..8001);
    // No flush: the restore itself must be durable.
    let crashed = root.path().join("crashed");
    copy_dir(&dir, &crashed);
    let recovered = open(&crashed);
    assert!(recovered.position().index >= position.index);
    assert_eq!(recovered.reader().scan(&scan("g")).unwrap().rows.len(), 4096);
    drop((before, recovered, target));
    assert!(reader.view().is_err(), "a closed state has nothing to view");
    assert_eq!(check(&dir).unwrap().generation, 2);
}

#[test]
fn readers_see_whole_batches_while_entries_are_applied() {
    let root = tempfile::tempdir().unwrap();
    let mut state = open(root.path());
    let reader = state.reader();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        let checker = threads.spawn(|| {
            let mut seen = 0;
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                let rows = reader.scan(&scan("g")).unwrap().rows;
                assert!(rows.is_empty() || rows.len() == 20, "a batch is seen whole");
                assert!(rows.windows(2).all(|pair| pair[0].cells == pair[1].cells), "and at one time");
                seen += usize::from(!rows.is_empty());
            }
            seen
        });
        let mut round = 0;
        while round < 300 {
            round += 1;
            let rows = (0..20).map(|i| row(format!("r{i:02}"), vec![cell("c", round, format!("{round}"))])).collect();
            let command = command::encode(Command::Apply(apply(vec![group("g", rows)])));
            state.apply(&[Entry { index: LogIndex(round), command: &command }], Bytes::new()).unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Release);
        checker.join().unwrap();
    });
    let last = reader.get(&get("g", "r19")).unwrap().unwrap();
    assert_eq!(last.cells, [cell("c", 300, "300")]);
}

#[test]
fn the_position_moves_with_every_batch_and_never_without_one() {
    let root = tempfile::tempdir().unwrap();
    let mut state = open(root.path());
    assert!(state.is_durable());
    put_rows(&mut state, 0..5);
    put_rows(&mut state, 5..9);
    let position = state.position();
    state.flush().unwrap();
    drop(state);
    let state = open(root.path());
    assert_eq!(state.position(), position);
    assert_eq!(state.kv().get(b"Mposition").unwrap().unwrap()[..8], 2u64.to_be_bytes());
}
