//! Who published what when, and how long it took until it was heard.

use super::peer::Hears;
use crate::stopwatch::Stopwatch;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidings_base::{Class, Error};

/// How long the last ones may take to be heard: longer than a retransmission.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// Versions that were published and not heard yet, by object.
pub struct Book {
    objects: Vec<Mutex<Object>>,
    taken: Mutex<Vec<f64>>,
    measuring: AtomicBool,
    called: AtomicU64,
}

#[derive(Default)]
struct Object {
    version: u64,
    waiting: VecDeque<(u64, Stopwatch)>,
}

impl Book {
    pub fn new(objects: usize) -> Book {
        Book {
            objects: (0..objects).map(|_| Mutex::default()).collect(),
            taken: Mutex::default(),
            measuring: AtomicBool::new(false),
            called: AtomicU64::new(0),
        }
    }

    pub fn objects(&self) -> usize {
        self.objects.len()
    }

    /// Notes that the next version of an object is published now; which one.
    pub fn publish(&self, object: usize) -> u64 {
        let mut object = locked(&self.objects[object]);
        object.version += 1;
        let version = object.version;
        object.waiting.push_back((version, Stopwatch::start()));
        version
    }

    /// From now on times are kept.
    pub fn measure(&self) {
        locked(&self.taken).clear();
        self.called.store(0, Ordering::Relaxed);
        self.measuring.store(true, Ordering::Relaxed);
    }

    /// How many callbacks there were since then.
    pub fn called(&self) -> u64 {
        self.called.load(Ordering::Relaxed)
    }

    /// Keeps times no more, waits until everything was heard, and gives the times in milliseconds, in order.
    pub async fn settle(&self) -> Result<Vec<f64>, Error> {
        self.measuring.store(false, Ordering::Relaxed);
        self.all_heard().await?;
        let mut taken = std::mem::take(&mut *locked(&self.taken));
        taken.sort_by(f64::total_cmp);
        Ok(taken)
    }

    /// Waits until everything was heard.
    pub async fn all_heard(&self) -> Result<(), Error> {
        let heard = async {
            while self.waiting() > 0 {
                tokio::time::sleep(LOOK).await;
            }
        };
        let missed = |_| Error::new("bench.failed", Class::Failed, "a version that was published was not heard");
        tokio::time::timeout(PATIENCE, heard).await.map_err(missed)
    }

    /// How many objects have versions that were not heard yet.
    pub fn waiting(&self) -> usize {
        self.objects.iter().filter(|object| !locked(object).waiting.is_empty()).count()
    }
}

impl Hears for Book {
    fn hears(&self, object: usize, version: u64) {
        let Some(object) = self.objects.get(object) else { return };
        let mut object = locked(object);
        let measuring = self.measuring.load(Ordering::Relaxed);
        self.called.fetch_add(1, Ordering::Relaxed);
        let told = object.waiting.partition_point(|(waits, _)| *waits <= version);
        for (_, published) in object.waiting.drain(..told) {
            if measuring {
                locked(&self.taken).push(published.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
}

/// The time that this share of them did not exceed.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_later_version_tells_of_the_earlier_ones() {
        let book = Book::new(1);
        book.measure();
        assert_eq!([book.publish(0), book.publish(0), book.publish(0)], [1, 2, 3]);
        book.hears(0, 2);
        book.hears(0, 2);
        assert_eq!(book.called(), 2);
        book.hears(0, 3);
        assert_eq!(book.settle().await.unwrap().len(), 3);
        assert_eq!([quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), quantile(&[1.0], 0.99)], [3.0, 1.0]);
    }
}
