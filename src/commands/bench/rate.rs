//! How often something happens a second, with many at it at once.

use super::Effort;
use crate::stopwatch::Stopwatch;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidings_base::{Class, Error};
use tokio::task::JoinSet;

/// The share of the time that passes before counting begins: connections warm, caches filled.
const WARM_UP: f64 = 0.2;
/// How long tasks may take to end once they are told: longer than any deadline of theirs.
const ENDING: Duration = Duration::from_secs(60);
/// How long what is measured may last until something happened, and how often is looked.
const STANDSTILL: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);

/// Takes a figure as often as the effort says.
pub fn repeat(effort: Effort, mut measure: impl FnMut() -> Result<f64, Error>) -> Result<Vec<f64>, Error> {
    (0..effort.repetitions).map(|_| measure()).collect()
}

/// Counts what tasks have done, and tells them when to stop.
#[derive(Default)]
pub struct Counter {
    done: AtomicU64,
    stopped: AtomicBool,
}

impl Counter {
    /// Whether a task should do it once more.
    pub fn goes_on(&self) -> bool {
        !self.stopped.load(Ordering::Relaxed)
    }

    /// How often it was done so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// No task is to do it once more.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// It was done this many times.
    pub fn add(&self, times: u64) {
        self.done.fetch_add(times, Ordering::Relaxed);
    }
}

/// Runs `tasks` that count on a shared counter; how often a second they did what they do.
pub async fn rate<F>(seconds: f64, tasks: impl IntoIterator<Item = F>, counter: Arc<Counter>) -> Result<f64, Error>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    rate_after(seconds * WARM_UP, seconds, tasks, counter).await
}

/// The same, with a time before counting begins that is as long as what is measured takes: what is begun in it and ends later is
/// then as much as what is begun later and does not end.
pub async fn rate_after<F>(
    warm_up: f64,
    seconds: f64,
    tasks: impl IntoIterator<Item = F>,
    counter: Arc<Counter>,
) -> Result<f64, Error>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let mut running = JoinSet::new();
    tasks.into_iter().for_each(|task| {
        running.spawn(task);
    });
    tokio::time::sleep(Duration::from_secs_f64(warm_up)).await;
    let (watch, before) = (Stopwatch::start(), counter.done());
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    // A machine may stand still for all of a short time.
    while counter.done() == before && watch.elapsed() < STANDSTILL {
        tokio::time::sleep(LOOK).await;
    }
    let (took, after) = (watch.elapsed(), counter.done());
    counter.stop();
    let ended = tokio::time::timeout(ENDING, async {
        while let Some(ended) = running.join_next().await {
            ended.map_err(|error| failed(format!("a task under measurement panicked: {error}")))??;
        }
        Ok::<(), Error>(())
    });
    ended.await.map_err(|_| failed("what was measured does not end".to_owned()))??;
    if after == before {
        return Err(failed("nothing happened while it was measured".to_owned()));
    }
    Ok((after - before) as f64 / took.as_secs_f64())
}

fn failed(message: String) -> Error {
    Error::new("bench.failed", Class::Failed, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_standstill_is_waited_for() {
        let counter = Arc::new(Counter::default());
        let (counts, later) = (counter.clone(), Duration::from_millis(100));
        let task = async move {
            tokio::time::sleep(later).await;
            counts.add(1);
            Ok(())
        };
        let rate = rate_after(0.0, 0.001, [task], counter).await.unwrap();
        assert!(rate > 0.0 && rate <= 10.0, "once in at least {later:?}, not {rate} a second");
    }
}
