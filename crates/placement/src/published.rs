//! A picture that one thread replaces and many read: each thread keeps the last it saw and only looks whether it is still the
//! last.
//!
//! ```text
//!   writer: current ◀─ next picture, then version + 1
//!   reader: version as kept by this thread? ── yes ─▶ the kept picture: nothing is written, and one shared word is read
//!                                           └─ no ──▶ current, kept from now on
//! ```
//! A thread may so keep an old picture alive until it reads again, or until others take its place: a few of them each.

use arc_swap::{ArcSwap, Guard};
use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pictures that a thread keeps; of two that fall on one place the later stays.
const KEPT: usize = 8;

/// Names pictures in the memory of threads.
static NEXT: AtomicU64 = AtomicU64::new(0);

struct Kept {
    id: u64,
    version: u64,
    picture: Arc<dyn Any + Send + Sync>,
}

thread_local! {
    static MEMORY: RefCell<[Option<Kept>; KEPT]> = const { RefCell::new([const { None }; KEPT]) };
}

/// A picture that is replaced as a whole.
#[derive(Debug)]
pub struct Published<T> {
    id: u64,
    version: AtomicU64,
    current: ArcSwap<T>,
}

impl<T: Send + Sync + 'static> Published<T> {
    /// The first picture.
    pub fn new(picture: T) -> Published<T> {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Published { id, version: AtomicU64::new(0), current: ArcSwap::from_pointee(picture) }
    }

    /// Puts another in its place.
    pub fn put(&self, next: T) {
        self.current.store(Arc::new(next));
        // Whoever reads this number finds that picture, or a later one.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Reads the picture in place.
    #[inline]
    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        let version = self.version.load(Ordering::Acquire);
        MEMORY.with(|memory| {
            let kept = memory.try_borrow();
            let kept = kept.as_ref().ok().and_then(|kept| kept[self.id as usize % KEPT].as_ref());
            let same = kept.filter(|kept| kept.id == self.id && kept.version == version);
            match same.and_then(|kept| kept.picture.downcast_ref::<T>()) {
                Some(picture) => read(picture),
                None => read(&self.kept_anew(version)),
            }
        })
    }

    #[cold]
    fn kept_anew(&self, version: u64) -> Arc<T> {
        let picture = self.current.load_full();
        MEMORY.with(|memory| {
            // Who reads within a read leaves the memory as it is.
            if let Ok(mut memory) = memory.try_borrow_mut() {
                memory[self.id as usize % KEPT] = Some(Kept { id: self.id, version, picture: picture.clone() });
            }
        });
        picture
    }

    /// The picture for longer than a read: no write that threads share either, as long as a thread has few of these.
    #[inline]
    pub fn guard(&self) -> Guard<Arc<T>> {
        self.current.load()
    }

    /// The picture for good.
    pub fn full(&self) -> Arc<T> {
        self.current.load_full()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_see_each_picture_once_it_is_put_and_never_an_earlier_one_again() {
        let (numbers, told) = (Published::new(0u64), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < 2_000 {
                        let least = told.load(Ordering::Acquire);
                        let seen = numbers.read(|number| *number);
                        assert!(seen >= last.max(least), "{seen} after {last} and {least}");
                        last = seen;
                    }
                });
            }
            for number in 1..=2_000 {
                numbers.put(number);
                told.store(number, Ordering::Release);
            }
        });
        assert_eq!((*numbers.full(), **numbers.guard()), (2_000, 2_000));
    }

    #[test]
    fn more_pictures_than_a_thread_keeps_and_reads_within_reads_are_told_apart() {
        let texts: Vec<Published<String>> = (0..3 * KEPT).map(|n| Published::new(n.to_string())).collect();
        let number = Published::new(7u8);
        for _ in 0..2 {
            for (n, text) in texts.iter().enumerate() {
                let (text, within) = text.read(|text| (text.clone(), number.read(|number| *number)));
                assert_eq!((text, within), (n.to_string(), 7));
            }
        }
        let (first, gone) = (Arc::new(()), Published::new(Arc::new(())));
        gone.put(first.clone());
        gone.read(|_| {});
        gone.put(Arc::new(()));
        gone.read(|_| {});
        assert_eq!(Arc::strong_count(&first), 1, "what was replaced is let go at the next read");
    }
}
