//! `bench store`: durable writes a second, on one member and on three, and how soon a server is back.
//!
//! Writes go through the store's front, the agreed log and its state in this process, without the wire, and count
//! when they are answered: synced on a majority and applied.

use super::Effort;
use super::members::{Members, Pace};
use super::rate::{Counter, rate, repeat};
use super::report::{Figures, Goal};
use super::server::Server;
use crate::commands::runtime;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::{Client, ClientConfig};
use tidings_node::group::StoreGroup;
use tidings_store::{Reply, Request};
use tidings_wire::v1::{Apply, Cell, GroupWrite, RowWrite, StoreMessage, frame::Body, store_message};

/// Writers at once; each waits for its answer before it goes on.
pub const WRITERS: usize = 256;
/// The size of a value.
pub const VALUE_BYTES: usize = 100;
/// How long a sync takes on the disk that is made slow.
const SLOW_SYNC: Duration = Duration::from_millis(2);
/// One entry of a long log for so many rows of a large store: of a million, nearly as many as there are between snapshots.
const FEWER_ENTRIES: u64 = 6;

/// How a store is filled, which is not measured.
#[derive(Clone, Copy)]
struct Filling {
    rows: u64,
    /// Rows that are written at once.
    batch: u64,
    /// Batches on their way.
    at_once: u64,
}

/// Measures everything.
pub fn run(place: &Path, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let runtime = runtime()?;
    let writes = |name: &str, members: u64, pace: Pace| {
        runtime.block_on(async {
            let members = Members::start(&place.join(name), members, pace).await?;
            let mut rates = Vec::new();
            for _ in 0..effort.repetitions {
                rates.push(write_rate(members.leader(), effort.seconds).await?);
            }
            members.stop().await;
            Ok::<_, Error>(rates)
        })
    };
    let rates = writes("one", 1, Pace::Disk)?;
    figures.add("durable 100-byte writes, one member, 256 writers", "1/s", Some(Goal::AtLeast(60_000.0)), &rates);
    let rates = writes("slow", 1, Pace::EachSyncTakes(SLOW_SYNC))?;
    figures.add(
        "durable 100-byte writes, one member, 256 writers, fsync of 2 ms",
        "1/s",
        Some(Goal::AtLeast(5_000.0)),
        &rates,
    );
    let rates = writes("three", 3, Pace::Disk)?;
    figures.add(
        "durable 100-byte writes, three members in one process, 256 writers",
        "1/s",
        Some(Goal::AtLeast(30_000.0)),
        &rates,
    );

    let mut fresh = 0..;
    let seconds = repeat(effort, || {
        let server = Server::start(&place.join(format!("fresh-{}", fresh.next().unwrap_or(0))))?;
        Ok(server.ready_after.as_secs_f64())
    })?;
    figures.add("serve ready on a fresh directory", "s", Some(Goal::AtMost(1.0)), &seconds);

    let entries = effort.rows / FEWER_ENTRIES;
    let many_rows = ("rows", format!("{} rows", effort.rows), Filling { rows: effort.rows, batch: 500, at_once: 8 });
    let long_log = ("log", format!("{entries} entries"), Filling { rows: entries, batch: 1, at_once: WRITERS as u64 });
    for (directory, what, filling) in [many_rows, long_log] {
        let data = place.join(directory);
        eprintln!("  filling a store with {what}");
        runtime.block_on(fill(&data, filling))?;
        let seconds = repeat(effort, || Ok(Server::start(&data)?.ready_after.as_secs_f64()))?;
        figures.add(&format!("serve ready after SIGKILL, {what}"), "s", Some(Goal::AtMost(3.0)), &seconds);
    }
    Ok(())
}

async fn write_rate(leader: &StoreGroup, seconds: f64) -> Result<f64, Error> {
    let counter = Arc::new(Counter::default());
    let writers = (0..WRITERS).map(|writer| {
        let (leader, counter) = (leader.clone(), counter.clone());
        async move {
            let mut timestamp = 0;
            while counter.goes_on() {
                timestamp += 1;
                let row = format!("writer-{writer}-{timestamp}");
                let request = Request::Store(store_message::Message::Apply(apply(b"bench", [row], timestamp)));
                let answer = leader.request(request, None).await.map_err(|refused| refused.error)?;
                match answer.first() {
                    Some(Reply::Store(message)) => check(message)?,
                    other => return Err(wrong(&other)),
                }
                counter.add(1);
            }
            Ok(())
        }
    });
    rate(seconds, writers, counter.clone()).await
}

fn apply(group: &'static [u8], rows: impl IntoIterator<Item = String>, timestamp: u64) -> Apply {
    let write = |row: String| {
        let value = Some(vec![b'v'; VALUE_BYTES].into());
        RowWrite { row: row.into(), cells: vec![Cell { column: "c".into(), timestamp, value }] }
    };
    let rows = rows.into_iter().map(write).collect();
    Apply { groups: vec![GroupWrite { group: group.into(), rows, fence: None }] }
}

fn check(answer: &store_message::Message) -> Result<(), Error> {
    match answer {
        store_message::Message::Applied(applied) if applied.failures.is_empty() => Ok(()),
        other => Err(wrong(other)),
    }
}

fn wrong(answer: &impl std::fmt::Debug) -> Error {
    Error::new("bench.wrong_answer", Class::Failed, format!("a write was answered with {answer:?}"))
}

/// Fills a directory through a server of its own, which is then killed.
async fn fill(data: &Path, Filling { rows, batch, at_once }: Filling) -> Result<(), Error> {
    let server = Server::start(data)?;
    let client = Client::connect(ClientConfig::new([server.url()])).await?;
    let mut fillers = tokio::task::JoinSet::new();
    for filler in 0..at_once {
        let client = client.clone();
        fillers.spawn(async move {
            let mut first = filler * batch;
            while first < rows {
                let names = (first..rows.min(first + batch)).map(|row| format!("row-{row:010}"));
                let message = Some(store_message::Message::Apply(apply(b"rows", names, 1)));
                match client.call(Body::Store(StoreMessage { message })).await? {
                    Body::Store(StoreMessage { message: Some(answer) }) => check(&answer)?,
                    other => return Err(wrong(&other)),
                }
                first += at_once * batch;
            }
            Ok::<(), Error>(())
        });
    }
    while let Some(ended) = fillers.join_next().await {
        ended.map_err(|error| Error::new("bench.failed", Class::Failed, error.to_string()))??;
    }
    Ok(())
}
