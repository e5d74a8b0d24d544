//! A picture that one thread replaces and many read: each thread keeps the last it saw and only looks whether it is still the
//! last.
//!
//! ```text
//!   writer: current ◀─ next picture, then its stamp
//!   reader: the stamp that this thread has kept? ── yes ─▶ the kept picture: nothing is written, one shared word is read
//!                                                └─ no ──▶ current, kept from now on
//! ```
//! A thread may so keep an old picture alive until it reads again, or until others take its place: a few of them each.
//! The stamp and the pointer are behind small traits so that `loom` can take their place (`tests/it/interleavings.rs`).

use arc_swap::{ArcSwap, Guard};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pictures of one kind that a thread keeps; of two that fall on one place the later stays.
const KEPT: usize = 8;

/// Stamps are used once, whatever they are put on.
static NEXT: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
struct Kept<T> {
    stamp: u64,
    picture: Arc<T>,
}

/// What a thread keeps of one kind.
#[derive(Debug)]
pub struct Memory<T>(RefCell<[Option<Kept<T>>; KEPT]>);

impl<T> Memory<T> {
    /// Nothing yet.
    pub const fn new() -> Memory<T> {
        Memory(RefCell::new([const { None }; KEPT]))
    }
}

impl<T> Default for Memory<T> {
    fn default() -> Memory<T> {
        Memory::new()
    }
}

/// What can be published: each kind has a memory of its own, so that a reader need not ask of which kind a picture is.
pub trait Picture: Sized + Send + Sync + 'static {
    /// Uses this thread's memory of it.
    fn remembered<R>(read: impl FnOnce(&Memory<Self>) -> R) -> R;
}

/// Lets a type be published.
macro_rules! picture {
    ($kind:ty) => {
        impl $crate::published::Picture for $kind {
            #[inline]
            fn remembered<R>(read: impl FnOnce(&$crate::published::Memory<Self>) -> R) -> R {
                thread_local! {
                    static MEMORY: $crate::published::Memory<$kind> = const { $crate::published::Memory::new() };
                }
                MEMORY.with(read)
            }
        }
    };
}
pub(crate) use picture;

/// Says which picture is the last.
pub trait Stamp {
    /// The first.
    fn first(stamp: u64) -> Self;
    /// What it is; whatever was done before it became so is seen from here on.
    fn get(&self) -> u64;
    /// Changes it, after whatever was done before.
    fn set(&self, to: u64);
}

impl Stamp for AtomicU64 {
    fn first(stamp: u64) -> AtomicU64 {
        AtomicU64::new(stamp)
    }

    #[inline]
    fn get(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    fn set(&self, to: u64) {
        self.store(to, Ordering::Release);
    }
}

/// Points to the last picture.
pub trait Pointer<T> {
    /// The first.
    fn first(picture: T) -> Self;
    /// The picture, whole: the last, or one that was the last a moment ago.
    fn get(&self) -> Arc<T>;
    /// Puts another in its place.
    fn set(&self, to: T);
}

impl<T> Pointer<T> for ArcSwap<T> {
    fn first(picture: T) -> ArcSwap<T> {
        ArcSwap::from_pointee(picture)
    }

    fn get(&self) -> Arc<T> {
        self.load_full()
    }

    fn set(&self, to: T) {
        self.store(Arc::new(to));
    }
}

/// A picture that is replaced as a whole.
#[derive(Debug)]
pub struct Published<T, S = AtomicU64, P = ArcSwap<T>> {
    /// Where threads keep it.
    place: usize,
    stamp: S,
    current: P,
    of: PhantomData<fn() -> T>,
}

impl<T: Picture> Published<T> {
    /// The first picture.
    pub fn new(picture: T) -> Published<T> {
        Published::first(picture)
    }

    /// The picture for longer than a read: no write that threads share either, as long as a thread has few of these.
    #[inline]
    pub fn guard(&self) -> Guard<Arc<T>> {
        self.current.load()
    }
}

impl<T: Picture, S: Stamp, P: Pointer<T>> Published<T, S, P> {
    /// The first picture, behind any stamp and pointer.
    pub fn first(picture: T) -> Published<T, S, P> {
        let stamp = NEXT.fetch_add(1, Ordering::Relaxed);
        let place = stamp as usize % KEPT;
        Published { place, stamp: S::first(stamp), current: P::first(picture), of: PhantomData }
    }

    /// Puts another in its place.
    pub fn put(&self, next: T) {
        self.current.set(next);
        // Whoever reads this stamp finds that picture, or a later one.
        self.stamp.set(NEXT.fetch_add(1, Ordering::Relaxed));
    }

    /// Reads the picture in place.
    #[inline]
    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        let stamp = self.stamp.get();
        T::remembered(|memory| {
            if let Ok(memory) = memory.0.try_borrow()
                && let Some(kept) = &memory[self.place]
                && kept.stamp == stamp
            {
                return read(&kept.picture);
            }
            read(&self.kept_anew(memory, stamp))
        })
    }

    #[cold]
    fn kept_anew(&self, memory: &Memory<T>, stamp: u64) -> Arc<T> {
        let picture = self.current.get();
        // Who reads within a read of the same kind leaves the memory as it is.
        if let Ok(mut memory) = memory.0.try_borrow_mut() {
            memory[self.place] = Some(Kept { stamp, picture: picture.clone() });
        }
        picture
    }

    /// The picture for good.
    pub fn full(&self) -> Arc<T> {
        self.current.get()
    }

    /// What points to it: for models of the swap.
    #[doc(hidden)]
    pub fn pointer(&self) -> &P {
        &self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    picture!(u64);
    picture!(String);
    picture!(Arc<()>);

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
        let other = Published::new("other".to_owned());
        for _ in 0..2 {
            for (n, text) in texts.iter().enumerate() {
                let (text, within) = text.read(|text| (text.clone(), other.read(String::clone)));
                assert_eq!((text, within.as_str()), (n.to_string(), "other"));
            }
        }
        let (first, gone) = (Arc::new(()), Published::new(Arc::new(())));
        gone.put(first.clone());
        gone.read(|_| {});
        assert_eq!(Arc::strong_count(&gone.full()), 3, "the last, this one, and what the thread keeps");
        gone.put(Arc::new(()));
        gone.read(|_| {});
        assert_eq!(Arc::strong_count(&first), 1, "what was replaced is let go at the next read");
    }
}
