//! Messages from one to one: a message is a record for one reader. It counts once it is durable, was matched against all
//! subscriptions, and its reader has received it.
//!
//! Writers wait for the answer before they write again, and no reader has more than a window of messages before it: the
//! service is never flooded. A repetition lasts until enough messages have been received, however slow the disk is, and for its
//! time at least.

use super::{PATIENCE, create, failed};
use crate::commands::bench::Effort;
use crate::commands::bench::notify::{node, quantile};
use crate::commands::bench::rate::Counter;
use crate::commands::bench::report::{Figures, Goal};
use crate::commands::runtime;
use crate::output::broken;
use crate::stopwatch::Stopwatch;
use futures::{StreamExt, TryStreamExt};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidings_base::Error;
use tidings_client::tables::{Ask, Event, Key, Table, Tables, Value, Watch, WatchOptions};
use tidings_client::{Carrier, ClientConfig};
use tidings_node::{Config, Node};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

/// Readers of the two figures that have a goal, and partitions that their messages lie in.
const READERS: usize = 64;
const PARTITIONS: usize = 8;
/// Messages on their way to one reader.
const WINDOW: usize = 64;
/// Connections that writers share.
const SERVICES: usize = 16;
/// Readers that share a connection, where there are very many.
const SHARE: usize = 200;
/// Readers that begin at once.
const BEGINNING: usize = 64;
/// Records of one reader, which its messages take in turn.
const SLOTS: u64 = 256;
/// Figure 6: subscriptions of one partition.
const EACH: usize = 10;
/// Between two looks whether enough, or everything, was received.
const LOOK: Duration = Duration::from_millis(5);
/// The part of the messages of a repetition that is received before counting begins: connections and caches get warm.
const WARM_UP: u64 = 5;
/// What the paper's processor forwards at best, and how many predicates it evaluates, in a second (§7.4).
const PAPER_MESSAGES: usize = 5_000;
const PAPER_PREDICATES: usize = 70_000;

/// Measures everything.
pub fn measure(place: &Path, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let runtime = runtime()?;
    runtime.block_on(embedded(place, effort, figures))?;
    let server = node::start(&place.join("tables-sockets"), Duration::ZERO, None)?;
    let config = ClientConfig { carrier: Carrier::WebSocket, ..ClientConfig::new([server.url().as_str()]) };
    let goal = Goal::AtLeast(20_000.0);
    runtime.block_on(one_to_one("over WebSockets", &config, 1, goal, effort, figures))
}

/// A node within this process, as a service that embeds it has it.
async fn embedded(place: &Path, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let config = Config::embedded(place.join("tables-embedded"), SocketAddr::from(([127, 0, 0, 1], 0)));
    let node = Node::start(config).await?;
    let config = ClientConfig::in_process(node.door());
    let measured = async {
        let goal = Goal::AtLeast(100_000.0);
        one_to_one("through an embedded node", &config, SHARE, goal, effort, figures).await?;
        for readers in effort.tables.grouped {
            let paper = PAPER_MESSAGES.min(PAPER_PREDICATES / readers);
            let name = format!(
                "tables: Figure 5: one-to-one messages, {readers} subscriptions a partition (the paper: {paper})"
            );
            let tables = vec![format!("figure-5-{readers}")];
            let mail = Mail::begin(&config, &tables, Vec::new(), *readers, SHARE).await?;
            mail.report(&name, None, effort, figures).await?;
        }
        for readers in effort.tables.spread {
            let name = format!(
                "tables: Figure 6: one-to-one messages, {readers} subscriptions, {EACH} a partition (the paper: {EACH} a \
                 partition, {PAPER_MESSAGES} at best)"
            );
            let tables: Vec<String> = (0..readers / EACH).map(|at| format!("figure-6-{readers}-{at}")).collect();
            let mail = Mail::begin(&config, &tables, Vec::new(), *readers, SHARE).await?;
            mail.report(&name, None, effort, figures).await?;
        }
        Ok::<(), Error>(())
    };
    let measured = measured.await;
    drop(config);
    node.shutdown().await?;
    measured
}

async fn one_to_one(
    how: &str,
    config: &ClientConfig,
    share: usize,
    goal: Goal,
    effort: Effort,
    figures: &mut Figures,
) -> Result<(), Error> {
    let cuts = (1..PARTITIONS).map(|part| key(part * READERS / PARTITIONS, 0)).collect();
    let mail = Mail::begin(config, &["mail".to_owned()], cuts, READERS, share).await?;
    mail.report(&format!("tables: one-to-one messages, {how}"), Some(goal), effort, figures).await
}

fn key(reader: usize, slot: u64) -> Key {
    Key::from(format!("{reader:06}/{slot:06}").as_str())
}

/// One reader, and what is on its way to it.
struct Inbox {
    /// The table that its messages are written to.
    table: usize,
    room: Semaphore,
    sent: AtomicU64,
    received: AtomicU64,
    /// From the call of a write until the message was received, in milliseconds.
    taken: Mutex<Vec<f64>>,
}

/// Readers who wait for messages, and writers.
struct Mail {
    inboxes: Vec<Arc<Inbox>>,
    /// The tables, once for each connection of writers.
    writers: Vec<Arc<Vec<Table>>>,
    /// What messages received are counted on; another one for each repetition.
    counter: Arc<Mutex<Arc<Counter>>>,
    /// When times began.
    epoch: Stopwatch,
    receiving: Vec<AbortHandle>,
}

impl Drop for Mail {
    fn drop(&mut self) {
        self.receiving.iter().for_each(AbortHandle::abort);
    }
}

impl Mail {
    /// Makes the tables, and lets readers wait, spread over them evenly; so many share a connection.
    async fn begin(
        config: &ClientConfig,
        names: &[String],
        cuts: Vec<Key>,
        readers: usize,
        share: usize,
    ) -> Result<Mail, Error> {
        let maker = Tables::connect(config.clone()).await?;
        let partitions = cuts.len() + 1;
        for name in names {
            create(&maker, name, cuts.clone()).await?;
        }
        let mut writers = Vec::new();
        for _ in 0..SERVICES {
            let tables = Tables::connect(config.clone()).await?;
            writers.push(Arc::new(names.iter().map(|name| tables.table(name.as_str())).collect()));
        }
        let mut devices = Vec::new();
        for _ in 0..readers.div_ceil(share) {
            devices.push(Tables::connect(config.clone()).await?);
        }
        let (counter, epoch) = (Arc::new(Mutex::new(Arc::new(Counter::default()))), Stopwatch::start());
        let mut mail = Mail { inboxes: Vec::new(), writers, counter, epoch, receiving: Vec::new() };
        let beginning = (0..readers).map(|reader| {
            let table = devices[reader / share].table(names[reader % names.len()].as_str());
            begun(table, reader, partitions)
        });
        let mut beginning = futures::stream::iter(beginning).buffer_unordered(BEGINNING);
        let mut watches = Vec::new();
        while let Some((reader, watch)) = beginning.try_next().await? {
            watches.push((reader, watch));
        }
        watches.sort_by_key(|(reader, _)| *reader);
        for (reader, watch) in watches {
            let inbox = Arc::new(Inbox {
                table: reader % names.len(),
                room: Semaphore::new(WINDOW),
                sent: AtomicU64::new(0),
                received: AtomicU64::new(0),
                taken: Mutex::default(),
            });
            mail.inboxes.push(inbox.clone());
            let receiving = tokio::spawn(receive(watch, inbox, mail.counter.clone(), epoch));
            mail.receiving.push(receiving.abort_handle());
        }
        Ok(mail)
    }

    /// Messages a second, and how long they took.
    async fn report(&self, name: &str, goal: Option<Goal>, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
        let (mut rates, mut p50, mut p99) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..effort.repetitions {
            rates.push(self.once(effort.tables.writers, effort.tables.messages, effort.seconds).await?);
            let taken = self.inboxes.iter().flat_map(|inbox| std::mem::take(&mut *locked(&inbox.taken)));
            let mut taken: Vec<f64> = taken.collect();
            taken.sort_by(f64::total_cmp);
            p50.push(quantile(&taken, 0.5));
            p99.push(quantile(&taken, 0.99));
        }
        figures.add(name, "1/s", goal, &rates);
        figures.add(&format!("{name}: until received, p50"), "ms", None, &p50);
        figures.add(&format!("{name}: until received, p99"), "ms", None, &p99);
        Ok(())
    }

    /// Messages a second, over so many of them at least and so long at least.
    async fn once(&self, count: usize, messages: u64, seconds: f64) -> Result<f64, Error> {
        let counter = Arc::new(Counter::default());
        *locked(&self.counter) = counter.clone();
        // A reader with room has a writer of its own, as far as there are so many.
        let mut writing = JoinSet::new();
        for writer in 0..count {
            let (inboxes, tables) = (self.inboxes.clone(), self.writers[writer % self.writers.len()].clone());
            writing.spawn(write(inboxes, tables, (writer, count), self.epoch, counter.clone()));
        }
        let warm = (messages / WARM_UP).max(1);
        received(&counter, &mut writing, |done| done >= warm).await?;
        let (watch, before) = (Stopwatch::start(), counter.done());
        let enough = |done: u64| done - before >= messages && watch.elapsed().as_secs_f64() >= seconds;
        let after = received(&counter, &mut writing, enough).await?;
        let rate = (after - before) as f64 / watch.elapsed().as_secs_f64();
        counter.stop();
        while let Some(ended) = writing.join_next().await {
            ended.map_err(|error| broken("a writer panicked", error))??;
        }
        // None is left to be counted with the next repetition.
        let waiting = |inbox: &Arc<Inbox>| inbox.received.load(Ordering::Acquire) < inbox.sent.load(Ordering::Acquire);
        let all = async {
            while self.inboxes.iter().any(waiting) {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.map_err(|_| failed("a message was written and not received"))?;
        Ok(rate)
    }
}

/// Waits until enough was received, as long as something is and no writer has failed; how much it was.
async fn received(
    counter: &Counter,
    writing: &mut JoinSet<Result<(), Error>>,
    enough: impl Fn(u64) -> bool,
) -> Result<u64, Error> {
    let (mut last, mut since) = (counter.done(), Stopwatch::start());
    loop {
        let done = counter.done();
        if enough(done) {
            return Ok(done);
        }
        if done > last {
            (last, since) = (done, Stopwatch::start());
        }
        if since.elapsed() > PATIENCE {
            return Err(failed(format!("after {done} messages none was received any more")));
        }
        if let Some(ended) = writing.try_join_next() {
            ended.map_err(|error| broken("a writer panicked", error))??;
            return Err(failed("a writer has ended before the others"));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// A reader whose query every partition has answered.
async fn begun(table: Table, reader: usize, partitions: usize) -> Result<(usize, Watch), Error> {
    let ask = Ask { predicate: format!("to == {reader}"), ..Ask::default() };
    let mut watch = table.watch(&ask, WatchOptions::default());
    let answered = async {
        let mut answered = 0;
        while answered < partitions {
            match watch.next().await {
                Some(Event::Reset { last, .. }) => answered += usize::from(last),
                Some(Event::Settling(_)) => {}
                other => return Err(failed(format!("a query began with {other:?}"))),
            }
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, answered).await.map_err(|_| failed("a query was not answered in time"))??;
    Ok((reader, watch))
}

/// Takes what comes, until it is ended; what went wrong shows as messages that are not received.
async fn receive(mut watch: Watch, inbox: Arc<Inbox>, counter: Arc<Mutex<Arc<Counter>>>, epoch: Stopwatch) {
    while let Some(event) = watch.next().await {
        match event {
            Event::Put(row) => {
                if let Some(Value::Int(at)) = row.columns.get("at") {
                    let took = epoch.elapsed().as_micros() as i64 - at;
                    locked(&inbox.taken).push(took as f64 / 1e3);
                }
                inbox.received.fetch_add(1, Ordering::AcqRel);
                inbox.room.add_permits(1);
                locked(&counter).add(1);
            }
            Event::Settling(_) => {}
            other => eprintln!("{}", broken("a reader heard something else than a message", format!("{other:?}"))),
        }
    }
}

/// Writes to one reader after the other, each when there is room before it.
async fn write(
    inboxes: Vec<Arc<Inbox>>,
    tables: Arc<Vec<Table>>,
    (writer, writers): (usize, usize),
    epoch: Stopwatch,
    counter: Arc<Counter>,
) -> Result<(), Error> {
    let mut next = writer;
    while counter.goes_on() {
        let reader = next % inboxes.len();
        let inbox = &inboxes[reader];
        let room = tokio::time::timeout(PATIENCE, inbox.room.acquire()).await;
        let room = room.map_err(|_| failed("a reader received nothing any more"))?;
        room.map_err(|error| broken("a reader is gone", error))?.forget();
        let slot = inbox.sent.fetch_add(1, Ordering::AcqRel) % SLOTS;
        let at = Value::Int(epoch.elapsed().as_micros() as i64);
        let columns = [("to", Value::Int(reader as i64)), ("at", at), ("text", Value::from("one to one, and back"))];
        tables[inbox.table].put(key(reader, slot), columns).await?;
        next += writers;
        // Where the writers are a multiple of the readers, each would otherwise keep to one.
        next += usize::from(writers.is_multiple_of(inboxes.len()));
    }
    Ok(())
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_repetition_waits_for_its_messages_however_slowly_they_come() {
        let (counter, mut writing) = (Arc::new(Counter::default()), JoinSet::new());
        let slow = counter.clone();
        writing.spawn(async move {
            while slow.goes_on() {
                tokio::time::sleep(Duration::from_secs(60)).await;
                slow.add(1);
            }
            Ok(())
        });
        assert_eq!(received(&counter, &mut writing, |done| done >= 3).await.unwrap(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_writer_that_fails_ends_it() {
        let (counter, mut writing) = (Counter::default(), JoinSet::new());
        writing.spawn(async { Err(failed("no disk")) });
        let ended = received(&counter, &mut writing, |done| done >= 3).await.unwrap_err();
        assert_eq!(ended.message, "no disk");
    }
}
