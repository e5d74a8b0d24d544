//! The load: the same for every peer.

use super::book::{Book, quantile};
use super::peer::{Peer, PeerConnection};
use crate::commands::bench::rate::{Counter, rate};
use crate::commands::probe;
use crate::stopwatch::Stopwatch;
use futures::{StreamExt, TryStreamExt};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Connections that publishers share.
pub const SERVICES: usize = 4;
/// Publishers that wait for their answers, where as much as possible is published.
const PUBLISHERS: usize = 256;
/// Publications on their way at a fixed rate: a service that falls behind further slows the load down.
const UNDER_WAY: usize = 8_192;
/// Between two portions of a fixed rate.
const TICK: Duration = Duration::from_millis(1);
/// The share of the time that passes before times are kept.
const WARM_UP: f64 = 0.2;
/// Listeners that begin at once.
const BEGINNING: usize = 64;

/// Who listens.
#[derive(Clone, Copy, Debug)]
pub struct Audience {
    /// Listeners, each on a connection of its own.
    pub listeners: usize,
    /// Objects of each listener, which nobody else listens to.
    pub objects: usize,
}

impl Audience {
    pub const USUAL: Audience = Audience { listeners: 100, objects: 10 };
}

/// Listeners and publishers of one service.
pub struct Load {
    book: Arc<Book>,
    services: Vec<Arc<dyn PeerConnection>>,
    /// Objects that are published; all of them have a listener, but for those that are left out.
    published: Vec<usize>,
    _listening: Vec<Box<dyn Send + Sync>>,
    _devices: Vec<Arc<dyn PeerConnection>>,
}

/// What one run at a fixed rate showed.
pub struct Run {
    /// Publications a second that were made.
    pub rate: f64,
    /// From the call to the callback, in milliseconds.
    pub p50: f64,
    pub p99: f64,
    /// Of one core, in percent.
    pub server: f64,
    pub load: f64,
}

impl Load {
    /// Begins to listen to all objects but those that `leaves_out` names: nothing is expected of these.
    pub async fn begin(
        peer: &dyn Peer,
        Audience { listeners, objects }: Audience,
        leaves_out: impl Fn(usize) -> bool,
    ) -> Result<Load, Error> {
        let book = Arc::new(Book::new(listeners * objects));
        let mut services = Vec::new();
        for _ in 0..SERVICES {
            services.push(peer.service().await?);
        }
        let of = |listener: usize| listener * objects..(listener + 1) * objects;
        let beginning = (0..listeners).map(|listener| {
            let heard: Vec<usize> = of(listener).filter(|object| !leaves_out(*object)).collect();
            let book = book.clone();
            async move {
                let device = peer.device().await?;
                let listening = device.listen(heard, book).await?;
                Ok::<_, Error>((device, listening))
            }
        });
        let beginning = futures::stream::iter(beginning).buffer_unordered(BEGINNING);
        let (devices, listening) = beginning.try_collect::<Vec<_>>().await?.into_iter().unzip();
        let published = (0..book.objects()).collect();
        Ok(Load { book, services, published, _listening: listening, _devices: devices })
    }

    /// Publishes at this rate, whatever the answers; objects that nobody listens to are published without a note.
    pub async fn at_rate(
        &self,
        pid: u32,
        wanted: u64,
        seconds: f64,
        unheard: impl Fn(usize) -> bool,
    ) -> Result<Run, Error> {
        let mut under_way = UnderWay::begin(wanted);
        self.publish_for(&mut under_way, seconds * WARM_UP, &unheard).await?;
        self.book.measure();
        let (meter, before) = (Meter::start(pid)?, under_way.sent);
        self.publish_for(&mut under_way, seconds, &unheard).await?;
        let (server, load, took) = meter.stop()?;
        let rate = (under_way.sent - before) as f64 / took;
        under_way.end().await?;
        let times = self.book.settle().await?;
        Ok(Run { rate, p50: quantile(&times, 0.5), p99: quantile(&times, 0.99), server, load })
    }

    /// Goes on for so long, and at least for one portion, however late that comes.
    async fn publish_for(
        &self,
        under_way: &mut UnderWay,
        seconds: f64,
        unheard: &impl Fn(usize) -> bool,
    ) -> Result<(), Error> {
        let begun = Stopwatch::start();
        loop {
            let (from, to) = under_way.portion().await;
            for number in from..to {
                let object = self.published[number as usize % self.published.len()];
                let service = self.services[number as usize % self.services.len()].clone();
                let book = (!unheard(object)).then(|| self.book.clone());
                let publishing = async move {
                    let version = book.map_or(number + 1, |book| book.publish(object));
                    service.publish(object, version).await
                };
                under_way.add(publishing).await?;
            }
            if begun.elapsed().as_secs_f64() >= seconds {
                return Ok(());
            }
        }
    }

    pub fn objects(&self) -> usize {
        self.book.objects()
    }

    /// How many objects have versions that were not heard yet.
    pub fn waiting(&self) -> usize {
        self.book.waiting()
    }

    pub async fn all_heard(&self) -> Result<(), Error> {
        self.book.all_heard().await
    }

    /// Publishes one version of each of these objects; returns once they are durable.
    pub async fn publish_each(&self, objects: &[usize]) -> Result<(), Error> {
        let each = objects.iter().zip(self.services.iter().cycle()).map(|(object, service)| {
            let version = self.book.publish(*object);
            service.publish(*object, version)
        });
        futures::future::try_join_all(each).await.map(drop)
    }

    /// Publishes as much as is answered; callbacks a second, and what that took.
    pub async fn as_fast_as_possible(&self, pid: u32, seconds: f64) -> Result<(f64, Run), Error> {
        let counter = Arc::new(Counter::default());
        let each = self.published.len() / PUBLISHERS;
        let publishers = (0..PUBLISHERS).map(|publisher| {
            let (counter, book) = (counter.clone(), self.book.clone());
            let service = self.services[publisher % self.services.len()].clone();
            let objects = self.published[publisher * each..(publisher + 1) * each].to_vec();
            async move {
                while counter.goes_on() {
                    for object in &objects {
                        let version = book.publish(*object);
                        service.publish(*object, version).await?;
                        counter.add(1);
                    }
                }
                Ok(())
            }
        });
        self.book.measure();
        let meter = Meter::start(pid)?;
        let rate = rate(seconds, publishers, counter.clone()).await?;
        let (server, load, took) = meter.stop()?;
        let callbacks = self.book.called() as f64 / took;
        let times = self.book.settle().await?;
        Ok((callbacks, Run { rate, p50: quantile(&times, 0.5), p99: quantile(&times, 0.99), server, load }))
    }
}

/// Publications at a fixed rate that are on their way.
struct UnderWay {
    wanted: u64,
    begun: Stopwatch,
    ticks: tokio::time::Interval,
    room: Arc<Semaphore>,
    running: JoinSet<Result<(), Error>>,
    sent: u64,
}

impl UnderWay {
    fn begin(wanted: u64) -> UnderWay {
        UnderWay {
            wanted,
            begun: Stopwatch::start(),
            ticks: tokio::time::interval(TICK),
            room: Arc::new(Semaphore::new(UNDER_WAY)),
            running: JoinSet::new(),
            sent: 0,
        }
    }

    /// The publications that are due at the next tick: those from the first number to before the second.
    async fn portion(&mut self) -> (u64, u64) {
        self.ticks.tick().await;
        let due = (self.begun.elapsed().as_secs_f64() * self.wanted as f64) as u64;
        (self.sent, due)
    }

    /// Waits where too many are on their way.
    async fn add(&mut self, publishing: impl Future<Output = Result<(), Error>> + Send + 'static) -> Result<(), Error> {
        let permit = self.room.clone().acquire_owned().await;
        self.running.spawn(async move {
            let published = publishing.await;
            drop(permit);
            published
        });
        self.sent += 1;
        while let Some(ended) = self.running.try_join_next() {
            ended.map_err(panicked)??;
        }
        Ok(())
    }

    /// Waits until the last one is answered.
    async fn end(mut self) -> Result<(), Error> {
        while let Some(ended) = self.running.join_next().await {
            ended.map_err(panicked)??;
        }
        Ok(())
    }
}

/// Processor time of a server and of this process, from now on.
pub struct Meter {
    pid: u32,
    watch: Stopwatch,
    server: Duration,
    load: Duration,
}

impl Meter {
    pub fn start(pid: u32) -> Result<Meter, Error> {
        Ok(Meter { pid, watch: Stopwatch::start(), server: used(pid)?, load: used(std::process::id())? })
    }

    /// What the server and this process used of one core, in percent, and in how many seconds.
    pub fn stop(self) -> Result<(f64, f64, f64), Error> {
        let seconds = self.watch.elapsed().as_secs_f64();
        let percent = |now: Duration, then: Duration| now.saturating_sub(then).as_secs_f64() / seconds * 100.0;
        Ok((percent(used(self.pid)?, self.server), percent(used(std::process::id())?, self.load), seconds))
    }
}

fn used(pid: u32) -> Result<Duration, Error> {
    probe::processor_time(pid).ok_or_else(|| failed("the server under test is gone"))
}

fn panicked(error: tokio::task::JoinError) -> Error {
    failed(&format!("a task under measurement panicked: {error}"))
}

fn failed(message: &str) -> Error {
    Error::new("bench.failed", Class::Failed, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::notify::peer::Hears;
    use async_trait::async_trait;
    use std::sync::{Mutex, PoisonError};

    /// A service that tells at once, and lets everything stand still at its first publication.
    #[derive(Clone, Default)]
    struct Standstill(Arc<Mutex<Option<Arc<dyn Hears>>>>);

    #[async_trait]
    impl Peer for Standstill {
        async fn device(&self) -> Result<Arc<dyn PeerConnection>, Error> {
            Ok(Arc::new(self.clone()))
        }

        async fn service(&self) -> Result<Arc<dyn PeerConnection>, Error> {
            Ok(Arc::new(self.clone()))
        }
    }

    #[async_trait]
    impl PeerConnection for Standstill {
        async fn listen(&self, _: Vec<usize>, hears: Arc<dyn Hears>) -> Result<Box<dyn Send + Sync>, Error> {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(hears);
            Ok(Box::new(()))
        }

        #[allow(clippy::disallowed_methods)]
        async fn publish(&self, object: usize, version: u64) -> Result<(), Error> {
            // A machine that stands still leaves no thread to anybody.
            if version == 1 {
                std::thread::sleep(Duration::from_millis(30));
            }
            let hears = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
            hears.into_iter().for_each(|hears| hears.hears(object, version));
            Ok(())
        }
    }

    #[tokio::test]
    async fn times_are_kept_however_long_a_machine_stands_still() {
        let one = Audience { listeners: 1, objects: 1 };
        let load = Load::begin(&Standstill::default(), one, |_| false).await.unwrap();
        let run = load.at_rate(std::process::id(), 1_000, 0.01, |_| false).await.unwrap();
        assert!(run.rate > 0.0 && run.p50.is_finite(), "{} a second, {} ms", run.rate, run.p50);
    }
}
