//! F11 under every interleaving of a reader and the writer, by `loom`.
//!
//! What is covered, as production code: [`Published`] (the stamp, the pointer, and what a thread keeps) and [`Snapshot`]
//! (deadlines shared between pictures, zeroed in the old one before the release is sent), each alone and one in the other.
//! What is not: `arc-swap` itself, which knows nothing of `loom`. A pointer of loom's stands for it that orders no more than
//! acquire and release do; whoever loads gets the old picture or the new one, whole. And `loom` explores acquire and
//! release; the sequentially consistent order of production's deadlines is at least as strong.

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use tidings_base::{KeyHash, KeyRange, LeaseNumber, Mono};
use tidings_placement::Leased;
use tidings_placement::check::Holding;
use tidings_placement::check::snapshot::{Deadline, Snapshot};
use tidings_placement::published::{Memory, Picture, Pointer, Published, Stamp};

#[derive(Debug)]
struct Tracked(AtomicU64);

impl Default for Tracked {
    fn default() -> Tracked {
        Tracked(AtomicU64::new(0))
    }
}

impl Deadline for Tracked {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, to: u64) {
        self.0.store(to, Ordering::Release);
    }
}

impl Stamp for Tracked {
    fn first(stamp: u64) -> Tracked {
        Tracked(AtomicU64::new(stamp))
    }

    fn get(&self) -> u64 {
        Deadline::get(self)
    }

    fn set(&self, to: u64) {
        Deadline::set(self, to);
    }
}

/// A deadline that is not zeroed: what readers of the old picture would then see must be noticed.
#[derive(Debug, Default)]
struct Forgetful(Tracked);

impl Deadline for Forgetful {
    fn get(&self) -> u64 {
        Deadline::get(&self.0)
    }

    fn set(&self, to: u64) {
        if to > 0 {
            Deadline::set(&self.0, to);
        }
    }
}

/// Which of all pictures that there ever were is the last. The list of them is no part of what is explored.
struct Last<T> {
    all: Mutex<Vec<Arc<T>>>,
    last: AtomicU64,
}

impl<T> Pointer<T> for Last<T> {
    fn first(picture: T) -> Last<T> {
        Last { all: Mutex::new(vec![Arc::new(picture)]), last: AtomicU64::new(0) }
    }

    fn get(&self) -> Arc<T> {
        let last = self.last.load(Ordering::Acquire);
        self.all.lock().unwrap()[last as usize].clone()
    }

    fn set(&self, to: T) {
        let mut all = self.all.lock().unwrap();
        all.push(Arc::new(to));
        let last = all.len() as u64 - 1;
        drop(all);
        self.last.store(last, Ordering::Release);
    }
}

/// What a writer does once a picture was put.
trait Writes {
    fn finish(&self) {}
}

impl<T> Writes for Last<T> {}

/// A pointer that is changed after the stamp, not before it: must be noticed.
struct Late<T> {
    last: Last<T>,
    next: Mutex<Option<T>>,
}

impl<T> Pointer<T> for Late<T> {
    fn first(picture: T) -> Late<T> {
        Late { last: Last::first(picture), next: Mutex::new(None) }
    }

    fn get(&self) -> Arc<T> {
        self.last.get()
    }

    fn set(&self, to: T) {
        *self.next.lock().unwrap() = Some(to);
    }
}

impl<T> Writes for Late<T> {
    fn finish(&self) {
        let next = self.next.lock().unwrap().take();
        if let Some(next) = next {
            self.last.set(next);
        }
    }
}

/// A kind of picture: each thread of a model has its own memory of it.
macro_rules! picture {
    ($kind:ty) => {
        impl Picture for $kind {
            fn remembered<R>(read: impl FnOnce(&Memory<Self>) -> R) -> R {
                loom::thread_local! {
                    static MEMORY: Memory<$kind> = Memory::new();
                }
                MEMORY.with(read)
            }
        }
    };
}

struct Number(u64);

picture!(Number);

/// One thread reads twice while another puts a picture in place of the first and says so.
fn replaced<P: Pointer<Number> + Writes + Send + Sync + 'static>() {
    loom::model(|| {
        let numbers = Arc::new(Published::<Number, Tracked, P>::first(Number(0)));
        let told = Arc::new(AtomicU64::new(0));
        let reader = {
            let (numbers, told) = (numbers.clone(), told.clone());
            thread::spawn(move || {
                let before = numbers.read(|number| number.0);
                let least = told.load(Ordering::Acquire);
                let after = numbers.read(|number| number.0);
                assert!(after >= before.max(least), "an old picture");
            })
        };
        numbers.put(Number(1));
        numbers.pointer().finish();
        told.store(1, Ordering::Release);
        reader.join().unwrap();
    });
}

#[test]
fn whoever_reads_after_a_picture_was_put_reads_that_one() {
    replaced::<Last<Number>>();
}

#[test]
#[should_panic(expected = "an old picture")]
fn a_stamp_that_is_put_before_its_picture_is_noticed() {
    replaced::<Late<Number>>();
}

const KEY: KeyHash = KeyHash(15);

fn holding(lease: u32, until: u64) -> Holding {
    let range = KeyRange::new(KeyHash(10), KeyHash(20));
    Holding { leased: Leased { range, lease: LeaseNumber::new(lease).unwrap() }, until: Mono(until) }
}

struct Shown<D>(Snapshot<D>);

impl<D> Deref for Shown<D> {
    type Target = Snapshot<D>;

    fn deref(&self) -> &Snapshot<D> {
        &self.0
    }
}

picture!(Shown<Tracked>);
picture!(Shown<Forgetful>);

/// As `Checks` is made.
struct Board<D>(Published<Shown<D>, Tracked, Last<Shown<D>>>)
where
    Shown<D>: Picture;

impl<D: Deadline> Board<D>
where
    Shown<D>: Picture,
{
    fn new() -> Board<D> {
        Board(Published::first(Shown(Snapshot::default())))
    }

    fn publish(&self, holdings: &[Holding]) {
        if let Some(next) = self.0.full().followed_by(holdings) {
            self.0.put(Shown(next));
        }
    }

    fn check(&self, now: u64) -> Option<u32> {
        self.0.read(|picture| picture.check(KEY, || Mono(now))).map(LeaseNumber::get)
    }
}

/// The range is recalled and given to another owner while a thread checks.
fn recall<D: Deadline + Send + Sync + 'static>()
where
    Shown<D>: Picture,
{
    loom::model(|| {
        let board = Arc::new(Board::<D>::new());
        let elsewhere = Arc::new(AtomicBool::new(false));
        board.publish(&[holding(1, 100)]);
        let reader = {
            let (board, elsewhere) = (board.clone(), elsewhere.clone());
            thread::spawn(move || {
                board.0.read(|picture| {
                    // Between here and there the thread may sleep for as long as it likes.
                    let given_away = elsewhere.load(Ordering::Acquire);
                    let held = picture.check(KEY, || Mono(50));
                    assert!(!(given_away && held.is_some()), "two owners");
                });
            })
        };
        board.publish(&[]);
        elsewhere.store(true, Ordering::Release);
        reader.join().unwrap();
    });
}

#[test]
fn whoever_checks_after_a_release_finds_nothing_even_in_the_old_picture() {
    recall::<Tracked>();
}

#[test]
#[should_panic(expected = "two owners")]
fn a_deadline_that_is_not_zeroed_is_noticed() {
    recall::<Forgetful>();
}

#[test]
fn a_renewal_reaches_readers_and_a_new_number_does_not_prolong_the_old_one() {
    loom::model(|| {
        let board = Arc::new(Board::<Tracked>::new());
        board.publish(&[holding(1, 100)]);
        let reader = {
            let board = board.clone();
            thread::spawn(move || {
                // At 150 number 1 has either been renewed up to 200, or is over; number 2 may hold.
                let first = board.check(150);
                assert!(board.check(250) != Some(1), "number 1 was never renewed beyond 200");
                // What is gone is gone: after number 2 nobody sees number 1.
                assert!(!(first == Some(2) && board.check(150) == Some(1)), "number 1 came back");
            })
        };
        board.publish(&[holding(1, 200)]);
        board.publish(&[holding(2, 300)]);
        reader.join().unwrap();
    });
}
