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
        let room = Arc::new(Semaphore::new(UNDER_WAY));
        let mut running: JoinSet<Result<(), Error>> = JoinSet::new();
        let mut ticks = tokio::time::interval(TICK);
        let (begun, whole) = (Stopwatch::start(), seconds * (1.0 + WARM_UP));
        let mut sent = 0;
        let mut measured = None;
        loop {
            ticks.tick().await;
            let elapsed = begun.elapsed().as_secs_f64();
            if elapsed >= whole {
                break;
            }
            if measured.is_none() && elapsed >= seconds * WARM_UP {
                self.book.measure();
                measured = Some((Meter::start(pid)?, sent));
            }
            let due = (elapsed * wanted as f64) as u64;
            while sent < due {
                let Ok(permit) = room.clone().acquire_owned().await else { break };
                let object = self.published[sent as usize % self.published.len()];
                let service = self.services[sent as usize % self.services.len()].clone();
                let book = (!unheard(object)).then(|| self.book.clone());
                running.spawn(async move {
                    let version = book.map_or(sent + 1, |book| book.publish(object));
                    let published = service.publish(object, version).await;
                    drop(permit);
                    published
                });
                sent += 1;
                while let Some(ended) = running.try_join_next() {
                    ended.map_err(panicked)??;
                }
            }
        }
        let Some((meter, before)) = measured else { return Err(failed("nothing was measured")) };
        let (server, load, took) = meter.stop()?;
        while let Some(ended) = running.join_next().await {
            ended.map_err(panicked)??;
        }
        let times = self.book.settle().await?;
        let rate = (sent - before) as f64 / took;
        Ok(Run { rate, p50: quantile(&times, 0.5), p99: quantile(&times, 0.99), server, load })
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
