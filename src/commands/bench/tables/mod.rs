//! `bench tables`: the index that matches records against subscriptions, a node as a process of its own under writes and
//! reads, and messages from one to one: written durably, matched, received.
//!
//! ```text
//!   index.rs      matching alone, on one thread
//!   processor.rs  what a live query takes of a processor
//!   served.rs     writes and reads, each client on a connection of its own, against a node in another process
//!   messages.rs   one-to-one messages through an embedded node and over WebSockets; the paper's Figures 5 and 6
//! ```

mod index;
mod messages;
mod processor;
mod served;

use super::Effort;
use super::report::Figures;
use std::path::Path;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::tables::{Key, Table, TableLevel, TableProperties, Tables};

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// How many subscriptions a record is matched against; the most come first, so that memory is fresh.
    pub subscriptions: &'static [u64],
    /// How many records are matched.
    pub records: usize,
    /// How many readers watch everything, of whom a writer chooses one.
    pub readers: u64,
    /// Clients that write or read at once.
    pub clients: &'static [usize],
    /// Writers of messages that wait for their answers.
    pub writers: usize,
    /// Messages that are received in a repetition at least, however long that takes.
    pub messages: u64,
    /// Figure 5: subscriptions of one partition.
    pub grouped: &'static [usize],
    /// Figure 6: subscriptions, ten a partition.
    pub spread: &'static [usize],
}

impl Sizes {
    pub const FULL: Sizes = Sizes {
        subscriptions: &[1_000_000, 100_000, 10_000, 1_000],
        records: 100_000,
        readers: 100_000,
        clients: &[1, 64, 256],
        writers: 1_024,
        messages: 10_000,
        grouped: &[1, 10, 100, 1_000, 10_000],
        spread: &[10, 100, 1_000, 5_000],
    };
    pub const QUICK: Sizes = Sizes {
        subscriptions: &[10_000, 1_000],
        records: 2_000,
        readers: 5_000,
        clients: &[1, 16],
        writers: 32,
        messages: 64,
        grouped: &[1, 20],
        spread: &[10, 30],
    };
}

/// Measures everything.
pub fn run(place: &Path, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    // Memory that was freed would be used again: what the first of both take is kept until it is measured.
    let most = effort.tables.subscriptions.first().copied().unwrap_or_default();
    let mut kept = Some(processor::memory(most, figures)?);
    for subscriptions in effort.tables.subscriptions {
        index::matching(*subscriptions, effort, figures)?;
        kept.take();
    }
    index::mirror(effort, figures)?;
    index::one_by_one(effort, figures)?;
    served::measure(place, effort, figures)?;
    messages::measure(place, effort, figures)
}

/// How long a node may take until it serves tables, and anything under measurement until it answers.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two attempts to make a table.
const AGAIN: Duration = Duration::from_millis(50);

/// Makes a table that is cut at these keys, as soon as the node can.
async fn create(tables: &Tables, name: &str, cuts: Vec<Key>) -> Result<Table, Error> {
    let properties = TableProperties { level: TableLevel::App.into(), ..Default::default() };
    let made = async {
        loop {
            match tables.create_cut(name, properties.clone(), cuts.clone()).await {
                Ok(_) => return Ok(tables.table(name)),
                // Directories are new: an answer was lost.
                Err(error) if error.code == "tables.exists" => return Ok(tables.table(name)),
                Err(error) if error.class == Class::Unreachable => tokio::time::sleep(AGAIN).await,
                Err(error) => return Err(error),
            }
        }
    };
    tokio::time::timeout(PATIENCE, made).await.map_err(|_| failed("no table could be made in time"))?
}

fn failed(message: impl Into<String>) -> Error {
    Error::new("bench.failed", Class::Failed, message)
}
