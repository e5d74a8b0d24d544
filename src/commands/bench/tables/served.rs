//! A node in a process of its own: clients that write or read, each on a connection of its own, each waiting for its answer
//! before it goes on.

use super::{create, failed};
use crate::commands::bench::Effort;
use crate::commands::bench::notify::{node, quantile};
use crate::commands::bench::rate::{Counter, rate};
use crate::commands::bench::report::Figures;
use crate::commands::runtime;
use crate::stopwatch::Stopwatch;
use futures::{StreamExt, TryStreamExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidings_base::Error;
use tidings_client::ClientConfig;
use tidings_client::tables::{Key, ReadLevel, ReadOptions, Table, Tables, Value};

/// Records of each client.
const KEYS: usize = 16;
/// The size of a record's one column.
const VALUE_BYTES: usize = 100;
/// Connections that are being opened, and records that are being made, at once.
const OPENING: usize = 64;
/// Partitions of the table: keys of a client lie in one.
const PARTITIONS: usize = 8;
/// The first part of a run, in which connections and caches get warm, and whose times are left out.
const WARM_UP: usize = 6;

/// What clients do.
#[derive(Clone, Copy)]
enum Act {
    Write,
    Read(ReadLevel),
}

/// What one run showed.
struct Run {
    rate: f64,
    /// In milliseconds.
    p50: f64,
    p99: f64,
}

/// Measures everything.
pub fn measure(place: &Path, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let runtime = runtime()?;
    let server = node::start(&place.join("tables-served"), Duration::ZERO, None)?;
    runtime.block_on(under_load(&server.url(), effort, figures))
}

async fn under_load(url: &str, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let most = effort.tables.clients.iter().copied().max().unwrap_or(1);
    let cuts = (1..PARTITIONS).map(|part| key(part * most / PARTITIONS, 0)).collect();
    let first = create(&connect(url).await?, "served", cuts).await?;
    let clients = (0..most).map(|_| async { Ok::<_, Error>(connect(url).await?.table(first.name())) });
    let clients: Vec<Table> = futures::stream::iter(clients).buffer_unordered(OPENING).try_collect().await?;
    let records = (0..most * KEYS).map(|at| clients[at % most].put(key(at % most, at / most), value(0)));
    futures::stream::iter(records).buffer_unordered(OPENING).try_collect::<Vec<u64>>().await?;
    let acts = [
        ("durable writes", Act::Write),
        ("reads at `latest`", Act::Read(ReadLevel::Latest)),
        ("reads at `committed`", Act::Read(ReadLevel::Committed)),
    ];
    for (what, act) in acts {
        for count in effort.tables.clients {
            let mut runs = Vec::new();
            for _ in 0..effort.repetitions {
                runs.push(at_once(&clients[..*count], act, effort.seconds).await?);
            }
            let of = |figure: fn(&Run) -> f64| runs.iter().map(figure).collect::<Vec<_>>();
            let name = format!("tables: {what}, {count} clients");
            figures.add(&name, "1/s", None, &of(|run| run.rate));
            figures.add(&format!("{name}: p50"), "ms", None, &of(|run| run.p50));
            figures.add(&format!("{name}: p99"), "ms", None, &of(|run| run.p99));
        }
    }
    Ok(())
}

async fn connect(url: &str) -> Result<Tables, Error> {
    Tables::connect(ClientConfig::new([url])).await
}

fn key(client: usize, record: usize) -> Key {
    Key::from(format!("{client:06}/{record:06}").as_str())
}

fn value(turn: usize) -> [(&'static str, Value); 1] {
    [("value", Value::String(format!("{turn:0VALUE_BYTES$}")))]
}

/// All clients at it for so many seconds.
async fn at_once(clients: &[Table], act: Act, seconds: f64) -> Result<Run, Error> {
    let (counter, taken) = (Arc::new(Counter::default()), Arc::new(Mutex::new(Vec::new())));
    let callers = clients.iter().cloned().enumerate().map(|(client, table)| {
        let (counter, taken) = (counter.clone(), taken.clone());
        async move {
            let mut mine = Vec::new();
            while counter.goes_on() {
                let (begun, turn) = (Stopwatch::start(), mine.len());
                once(&table, key(client, turn % KEYS), act, turn).await?;
                mine.push(begun.elapsed().as_secs_f64() * 1e3);
                counter.add(1);
            }
            let warm = mine.split_off(mine.len() / WARM_UP);
            taken.lock().unwrap_or_else(PoisonError::into_inner).extend(warm);
            Ok(())
        }
    });
    let rate = rate(seconds, callers, counter.clone()).await?;
    let mut taken: Vec<f64> = std::mem::take(&mut *taken.lock().unwrap_or_else(PoisonError::into_inner));
    taken.sort_by(f64::total_cmp);
    Ok(Run { rate, p50: quantile(&taken, 0.5), p99: quantile(&taken, 0.99) })
}

async fn once(table: &Table, key: Key, act: Act, turn: usize) -> Result<(), Error> {
    match act {
        Act::Write => table.put(key, value(turn)).await.map(drop),
        Act::Read(level) => {
            let options = ReadOptions { level, ..ReadOptions::default() };
            match table.get_with(key, &options).await? {
                Some(_) => Ok(()),
                None => Err(failed("a record that was written is not there")),
            }
        }
    }
}
