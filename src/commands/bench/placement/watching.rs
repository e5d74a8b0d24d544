//! A lookup that keeps no table: what it knows last, and a checksum of all that it was told. Full tables of 20,000 lookups
//! would be 82 GB; to the manager this one is like any other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidings_base::{Class, Error, KeyHash};
use tidings_client::Client;
use tidings_client::placement::{PlacementTransport, To};
use tidings_placement::lookup::unpacked;
use tidings_wire::v1;
use tidings_wire::v1::placement_message::Message;

/// How long a manager may hold a poll, and how much longer its answer may take.
const HOLD: Duration = Duration::from_secs(30);
const SLACK: Duration = Duration::from_secs(10);

/// The pause after a failed poll.
const PAUSE: Duration = Duration::from_millis(500);

/// A lookup that polls until it is dropped.
pub struct Watching {
    answers: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

/// Where it stands.
#[derive(Default)]
struct Place {
    instance: u64,
    epoch: u64,
    lsn: u64,
    /// An answer that comes in parts: where the next begins, the LSN of the first, and what was known before it.
    parts: Option<(u64, u64, u64)>,
    checksum: u64,
}

impl Place {
    fn poll(&self, namespace: &str) -> v1::LookupPoll {
        let (from, lsn) = self.parts.map_or((0, self.lsn), |(next, _, known)| (next, known));
        let wait_ms = HOLD.as_millis() as u32;
        v1::LookupPoll { namespace: namespace.into(), instance: self.instance, epoch: self.epoch, lsn, wait_ms, from }
    }

    fn take(&mut self, answer: &v1::LookupAnswer) {
        for range in &answer.ranges {
            let row = [range.start, range.last, u64::from(range.lease), range.lost_lsn].map(u64::to_le_bytes).concat();
            self.checksum ^= KeyHash::of(&row).0;
        }
        let known = if answer.snapshot { 0 } else { self.lsn };
        let (first, known) = self.parts.take().map_or((answer.lsn, known), |(_, first, known)| (first, known));
        (self.instance, self.epoch) = (answer.instance, answer.epoch);
        match answer.next {
            0 => self.lsn = first,
            next => self.parts = Some((next, first, known)),
        }
    }
}

impl Watching {
    /// Begins to poll; returns when it knows the table.
    pub async fn start(client: Client, namespace: &'static str) -> Result<Watching, Error> {
        let mut place = Place::default();
        loop {
            ask(&client, namespace, &mut place).await?;
            if place.parts.is_none() {
                break;
            }
        }
        let answers = Arc::new(AtomicU64::new(0));
        let counted = answers.clone();
        let task = tokio::spawn(async move {
            loop {
                match ask(&client, namespace, &mut place).await {
                    Ok(()) => drop(counted.fetch_add(1, Ordering::Relaxed)),
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
            }
        });
        Ok(Watching { answers, task })
    }

    /// Polls no more.
    pub fn stop(&self) {
        self.task.abort();
    }

    /// How many answers have come since.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn ask(client: &Client, namespace: &str, place: &mut Place) -> Result<(), Error> {
    let message = v1::PlacementMessage { message: Some(Message::LookupPoll(place.poll(namespace))) };
    match PlacementTransport::call(client, To::Leader, message, HOLD + SLACK).await?.message {
        Some(Message::LookupAnswer(answer)) => {
            place.take(&unpacked(answer)?);
            Ok(())
        }
        _ => Err(Error::new("bench.unexpected", Class::Failed, "the manager's answer is of another kind")),
    }
}
