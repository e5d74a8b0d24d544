//! F11 under every interleaving of a reader and the writer, by `loom`.
//!
//! What is covered: the protocol of [`Snapshot`] (deadlines shared between pictures, zeroed in the old one before the release is
//! sent), as production code. What is not: the swap itself. `arc-swap` knows nothing of `loom`, so a pointer behind a lock
//! stands for it here: whoever loads gets the old picture or the new one, whole. And `loom` explores acquire and release; the
//! sequentially consistent order of production is at least as strong.

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use std::sync::Arc;
use tidings_base::{KeyHash, KeyRange, LeaseNumber, Mono};
use tidings_placement::Leased;
use tidings_placement::check::Holding;
use tidings_placement::check::snapshot::{Deadline, Snapshot};

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

/// A deadline that is not zeroed: what readers of the old picture would then see must be noticed.
#[derive(Debug, Default)]
struct Forgetful(Tracked);

impl Deadline for Forgetful {
    fn get(&self) -> u64 {
        self.0.get()
    }

    fn set(&self, to: u64) {
        if to > 0 {
            self.0.set(to);
        }
    }
}

const KEY: KeyHash = KeyHash(15);

fn holding(lease: u32, until: u64) -> Holding {
    let range = KeyRange::new(KeyHash(10), KeyHash(20));
    Holding { leased: Leased { range, lease: LeaseNumber::new(lease).unwrap() }, until: Mono(until) }
}

struct Board<D>(Mutex<Arc<Snapshot<D>>>);

impl<D: Deadline> Board<D> {
    fn new() -> Board<D> {
        Board(Mutex::new(Arc::default()))
    }

    fn load(&self) -> Arc<Snapshot<D>> {
        self.0.lock().unwrap().clone()
    }

    fn publish(&self, holdings: &[Holding]) {
        if let Some(next) = self.load().followed_by(holdings) {
            *self.0.lock().unwrap() = Arc::new(next);
        }
    }
}

/// The range is recalled and given to another owner while a thread checks.
fn recall<D: Deadline + Send + Sync + 'static>() {
    loom::model(|| {
        let board = Arc::new(Board::<D>::new());
        let elsewhere = Arc::new(AtomicBool::new(false));
        board.publish(&[holding(1, 100)]);
        let reader = {
            let (board, elsewhere) = (board.clone(), elsewhere.clone());
            thread::spawn(move || {
                let picture = board.load();
                // Between here and there the thread may sleep for as long as it likes.
                let given_away = elsewhere.load(Ordering::Acquire);
                let held = picture.check(KEY, || Mono(50));
                assert!(!(given_away && held.is_some()), "two owners");
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
                let first = board.load().check(KEY, || Mono(150));
                let then = board.load().check(KEY, || Mono(250)).map(LeaseNumber::get);
                assert!(then != Some(1), "number 1 was never renewed beyond 200");
                // What is gone is gone: after number 2 nobody sees number 1.
                let last = board.load().check(KEY, || Mono(150)).map(LeaseNumber::get);
                assert!(!(first.map(LeaseNumber::get) == Some(2) && last == Some(1)), "number 1 came back");
            })
        };
        board.publish(&[holding(1, 200)]);
        board.publish(&[holding(2, 300)]);
        reader.join().unwrap();
    });
}
