//! Reads of a group of four: past the order with 2f + 1 equal answers, by what replicas remember (the paper's Figures 6, 8 and
//! 10), and through a sketcher, which orders what it does not remember.

use super::slow::Slow;
use super::town::Town;
use crate::commands::bench::Effort;
use crate::commands::bench::rate::{Counter, rate_after};
use crate::commands::bench::report::Figures;
use crate::commands::bench::sketch::line::Line;
use crate::commands::bench::sketch::percentile;
use crate::stopwatch::Stopwatch;
use bytes::Bytes;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_bft::kv::{Request, Response};
use tidings_bft::{client, direct};

/// Ratios of transitions, in percent, as in the paper.
const TRANSITIONS: [u32; 2] = [0, 15];

/// Somebody who reads a key of its own.
enum Reader {
    Voting(client::Client),
    Remembering(direct::Client),
    /// By HTTP; what it changes it changes past the sketcher, as somebody else would.
    Sketched {
        line: tokio::sync::Mutex<Line>,
        writer: Arc<Reader>,
        took: Arc<Mutex<Took>>,
    },
}

/// How long reads through the sketcher took, in milliseconds.
#[derive(Default)]
struct Took {
    fast: Vec<f64>,
    ordered: Vec<f64>,
}

impl Reader {
    async fn read(&self, key: &str) -> Result<Bytes, Error> {
        let request = Request::Get(Bytes::copy_from_slice(key.as_bytes())).encoded();
        let answer = match self {
            Reader::Voting(client) => client.read(request).await?.result,
            Reader::Remembering(client) => client.read(request).await?.result,
            Reader::Sketched { line, took, .. } => {
                let (mut line, watch) = (line.lock().await, Stopwatch::start());
                let fast = line.get(&format!("/{key}")).await?;
                let mut took = took.lock().unwrap_or_else(PoisonError::into_inner);
                let times = if fast { &mut took.fast } else { &mut took.ordered };
                times.push(watch.elapsed().as_secs_f64() * 1e3);
                return Ok(Bytes::copy_from_slice(&line.body));
            }
        };
        match Response::read(answer) {
            Ok(Response::Value(Some(value))) => Ok(value),
            _ => Err(Error::new("bench.wrong_answer", Class::Failed, "a key has no value")),
        }
    }

    async fn write(&self, key: &str, version: u64) -> Result<(), Error> {
        let (key, value) = (Bytes::copy_from_slice(key.as_bytes()), Bytes::from(version.to_string()));
        let request = Request::Put(key, value).encoded();
        let writer = match self {
            Reader::Sketched { writer, .. } => writer,
            own => own,
        };
        match writer {
            Reader::Voting(client) => client.call(request).await.map(drop),
            Reader::Remembering(client) => client.call(request).await.map(drop),
            Reader::Sketched { .. } => {
                Err(Error::new("bench.failed", Class::Failed, "a sketcher's client writes past it"))
            }
        }
    }
}

pub async fn measure(place: &Path, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let services = [
        ("null reads".to_owned(), Duration::ZERO),
        (format!("reads of {} ms", effort.bft.service.as_millis()), effort.bft.service),
    ];
    for (number, (what, takes)) in services.into_iter().enumerate() {
        let readers = effort.bft.readers;
        let place = place.join(format!("reads-{number}"));
        let town = Town::start(&place, 4, 2 * readers + 1, || Slow::new(takes)).await?;
        let sketcher = town.sketcher(2 * readers).await?;
        let took = Arc::<Mutex<Took>>::default();
        let (mut voting, mut remembering, mut sketched) = (Vec::new(), Vec::new(), Vec::new());
        for which in 0..readers {
            let writer = Arc::new(Reader::Voting(town.client(which).await?));
            voting.push(Arc::clone(&writer));
            remembering.push(Arc::new(Reader::Remembering(town.prophet(readers + which).await?)));
            let line = tokio::sync::Mutex::new(Line::connect(sketcher.address()).await?);
            sketched.push(Arc::new(Reader::Sketched { line, writer, took: Arc::clone(&took) }));
        }
        // Replicas that have just begun need a second or two for their first command.
        if let Some(first) = voting.first() {
            first.write("first", 1).await?;
        }
        for percent in TRANSITIONS {
            let base = rates(&voting, "voted", percent, effort).await?;
            figures.add(&format!("bft: {what}, past the order, {percent} % transitions"), "1/s", None, &base);
            for (readers, way, name) in
                [(&remembering, "remembered", "D-Prophecy"), (&sketched, "sketched", "through a sketcher")]
            {
                *took.lock().unwrap_or_else(PoisonError::into_inner) = Took::default();
                let ours = rates(readers, way, percent, effort).await?;
                figures.add(&format!("bft: {what}, {name}, {percent} % transitions"), "1/s", None, &ours);
                let over: Vec<f64> = ours.iter().zip(&base).map(|(ours, base)| ours / base).collect();
                let name = format!("bft: {what}, {name} over past the order, {percent} % transitions");
                figures.add(&name, "×", None, &over);
            }
            took.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .tell(&format!("{what}, {percent} % transitions"), figures);
        }
        drop((voting, remembering, sketched, sketcher));
        town.stop().await;
    }
    Ok(())
}

impl Took {
    fn tell(&mut self, what: &str, figures: &mut Figures) {
        for (how, times) in [("fast", &mut self.fast), ("ordered", &mut self.ordered)] {
            times.sort_by(f64::total_cmp);
            for (name, part) in [("p50", 0.5), ("p99", 0.99)].into_iter().filter(|_| !times.is_empty()) {
                let name = format!("bft: {what}, {how} reads through a sketcher, {name}");
                figures.add(&name, "ms", None, &[percentile(times, part)]);
            }
        }
    }
}

async fn rates(readers: &[Arc<Reader>], way: &str, percent: u32, effort: Effort) -> Result<Vec<f64>, Error> {
    let mut rates = Vec::new();
    for repetition in 0..effort.repetitions {
        let counter = Arc::new(Counter::default());
        let tasks = readers.iter().enumerate().map(|(at, reader)| {
            read(Arc::clone(reader), at, format!("{way}-{percent}-{repetition}"), percent, Arc::clone(&counter))
        });
        rates.push(rate_after(effort.seconds / 2.0, effort.seconds, tasks, Arc::clone(&counter)).await?);
    }
    Ok(rates)
}

/// Reads one key again and again, and changes it before so many percent of the reads. What it has read never goes back.
async fn read(reader: Arc<Reader>, at: usize, run: String, percent: u32, counter: Arc<Counter>) -> Result<(), Error> {
    let key = format!("{run}-{at}");
    let (mut due, mut version) = (at as u32 * 61 % 100, 0u64);
    let mut seen = 0u64;
    while counter.goes_on() {
        due += percent;
        if due >= 100 || version == 0 {
            due %= 100;
            version += 1;
            reader.write(&key, version).await?;
        }
        let value = reader.read(&key).await?;
        let value = std::str::from_utf8(&value).ok().and_then(|text| text.parse::<u64>().ok());
        let value = value.filter(|value| *value >= seen && *value <= version);
        seen = value.ok_or_else(|| Error::new("bench.wrong_answer", Class::Failed, "a read went back"))?;
        counter.add(1);
    }
    Ok(())
}
