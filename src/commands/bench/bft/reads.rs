//! Reads of a group of four, by clients that speak to it themselves: past the order with 2f + 1 equal answers, and by what
//! replicas remember (the paper's Figures 6, 8 and 10).

use super::slow::Slow;
use super::town::Town;
use crate::commands::bench::Effort;
use crate::commands::bench::rate::{Counter, rate_after};
use crate::commands::bench::report::Figures;
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
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
}

impl Reader {
    async fn read(&self, request: Bytes) -> Result<Bytes, Error> {
        Ok(match self {
            Reader::Voting(client) => client.read(request).await?.result,
            Reader::Remembering(client) => client.read(request).await?.result,
        })
    }

    async fn write(&self, request: Bytes) -> Result<(), Error> {
        match self {
            Reader::Voting(client) => client.call(request).await.map(drop),
            Reader::Remembering(client) => client.call(request).await.map(drop),
        }
    }
}

pub async fn measure(place: &Path, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let services = [
        ("null reads".to_owned(), Duration::ZERO),
        (format!("reads of {} ms", effort.bft.service.as_millis()), effort.bft.service),
    ];
    for (number, (what, takes)) in services.into_iter().enumerate() {
        let town =
            Town::start(&place.join(format!("reads-{number}")), 4, 2 * effort.bft.readers, || Slow::new(takes)).await?;
        let mut voting = Vec::new();
        let mut remembering = Vec::new();
        for which in 0..effort.bft.readers {
            voting.push(Arc::new(Reader::Voting(town.client(which).await?)));
            remembering.push(Arc::new(Reader::Remembering(town.prophet(effort.bft.readers + which).await?)));
        }
        for percent in TRANSITIONS {
            let base = rates(&voting, "voted", percent, effort).await?;
            figures.add(&format!("bft: {what}, past the order, {percent} % transitions"), "1/s", None, &base);
            let ours = rates(&remembering, "remembered", percent, effort).await?;
            figures.add(&format!("bft: {what}, D-Prophecy, {percent} % transitions"), "1/s", None, &ours);
            let over: Vec<f64> = ours.iter().zip(&base).map(|(ours, base)| ours / base).collect();
            figures.add(
                &format!("bft: {what}, D-Prophecy over past the order, {percent} % transitions"),
                "×",
                None,
                &over,
            );
        }
        drop((voting, remembering));
        town.stop().await;
    }
    Ok(())
}

async fn rates(readers: &[Arc<Reader>], way: &str, percent: u32, effort: Effort) -> Result<Vec<f64>, Error> {
    let mut rates = Vec::new();
    for repetition in 0..effort.repetitions {
        let counter = Arc::new(Counter::default());
        let tasks = readers.iter().enumerate().map(|(at, reader)| {
            read(Arc::clone(reader), at, format!("{way} {percent} {repetition}"), percent, Arc::clone(&counter))
        });
        rates.push(rate_after(effort.seconds / 2.0, effort.seconds, tasks, Arc::clone(&counter)).await?);
    }
    Ok(rates)
}

/// Reads one key again and again, and changes it before so many percent of the reads. What it has read never goes back.
async fn read(reader: Arc<Reader>, at: usize, run: String, percent: u32, counter: Arc<Counter>) -> Result<(), Error> {
    let key = Bytes::from(format!("{run} {at}"));
    let (get, mut due, mut version) = (Request::Get(key.clone()).encoded(), at as u32 * 61 % 100, 0u64);
    let mut seen = 0u64;
    while counter.goes_on() {
        due += percent;
        if due >= 100 || version == 0 {
            due %= 100;
            version += 1;
            reader.write(Request::Put(key.clone(), Bytes::from(version.to_string())).encoded()).await?;
        }
        let value = match Response::read(reader.read(get.clone()).await?) {
            Ok(Response::Value(Some(value))) => {
                std::str::from_utf8(&value).ok().and_then(|text| text.parse::<u64>().ok())
            }
            _ => None,
        };
        let value = value.filter(|value| *value >= seen && *value <= version);
        seen = value.ok_or_else(|| Error::new("bench.wrong_answer", Class::Failed, "a read went back"))?;
        counter.add(1);
    }
    Ok(())
}
