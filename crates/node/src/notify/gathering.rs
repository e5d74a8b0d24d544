//! What gathers while the store is busy goes to it together: rows of the machines in one write, publications in one append.
//!
//! Nobody waits for company: a command is made of what is there when there is room for one more under way. So a quiet
//! node sends everything at once and alone, and under load a commit carries many.

use super::feeding::TOPIC;
use super::hub::{Hub, STORE, To};
use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_notify::rows::{StoreId, StoreReply, StoreRequest, StoreResult};
use tidings_wire::v1::feed_message::Message;
use tidings_wire::v1::store_message::Message as StoreMessage;
use tidings_wire::{error, v1};
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Writes, or publications, of one command; a feed takes as many.
const AT_ONCE: usize = 1_024;
/// Their bytes: whatever a machine or a publisher brings may alone have more.
const BYTES: usize = 256 << 10;
/// Commands of one kind under way.
const UNDER_WAY: usize = 4;
/// One that takes longer lets the next go: rows of others are not held up by rows that do not answer.
const SLOW: Duration = Duration::from_millis(100);
/// What may wait; what comes beyond goes alone.
const WAITING: usize = 16_384;

/// A write of a machine.
pub(super) struct Write {
    pub(super) to: To,
    pub(super) id: StoreId,
    pub(super) apply: v1::Apply,
}

/// Publications of one request.
struct Append {
    entries: Vec<Bytes>,
    answer: oneshot::Sender<Result<(), Error>>,
}

/// What can be grouped.
trait Load: Send + 'static {
    /// How many it counts for, and its bytes.
    fn weight(&self) -> (usize, usize);
    /// Takes them to the store as one command, and the answer back to each.
    fn send(hub: Arc<Hub>, together: Vec<Self>) -> impl Future<Output = ()> + Send
    where
        Self: Sized;
}

/// The ways in, and the ways out until somebody takes them.
pub(super) struct Gathering {
    writes: mpsc::Sender<Write>,
    appends: mpsc::Sender<Append>,
    out: Mutex<Option<(mpsc::Receiver<Write>, mpsc::Receiver<Append>)>>,
}

impl Gathering {
    pub(super) fn new() -> Gathering {
        let (writes, writes_out) = mpsc::channel(WAITING);
        let (appends, appends_out) = mpsc::channel(WAITING);
        Gathering { writes, appends, out: Mutex::new(Some((writes_out, appends_out))) }
    }
}

/// Takes what has gathered to the store.
pub(super) async fn run(hub: Arc<Hub>) {
    let out = hub.gathering.out.lock().take();
    if let Some((writes, appends)) = out {
        tokio::join!(gather(hub.clone(), writes), gather(hub, appends));
    }
}

async fn gather<T: Load>(hub: Arc<Hub>, mut queue: mpsc::Receiver<T>) {
    let room = Arc::new(Semaphore::new(UNDER_WAY));
    let mut waiting = Vec::new();
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        if queue.recv_many(&mut waiting, AT_ONCE).await == 0 {
            return;
        }
        let (portions, to) = (portions(waiting.drain(..)), hub.clone());
        hub.spawn(async move {
            let mut sent = std::pin::pin!(async {
                for portion in portions {
                    T::send(to.clone(), portion).await;
                }
            });
            let done = tokio::time::timeout(SLOW, &mut sent).await.is_ok();
            drop(permit);
            if !done {
                sent.await;
            }
        });
    }
}

/// Cuts what has gathered into commands of bounded size.
fn portions<T: Load>(waiting: impl Iterator<Item = T>) -> Vec<Vec<T>> {
    let mut portions: Vec<Vec<T>> = Vec::new();
    let (mut count, mut bytes) = (0, 0);
    for one in waiting {
        let (more, larger) = one.weight();
        (count, bytes) = (count + more, bytes + larger);
        match portions.last_mut() {
            Some(last) if count <= AT_ONCE && bytes <= BYTES => last.push(one),
            _ => {
                (count, bytes) = (more, larger);
                portions.push(vec![one]);
            }
        }
    }
    portions
}

impl Load for Write {
    fn weight(&self) -> (usize, usize) {
        (1, self.apply.encoded_len())
    }

    async fn send(hub: Arc<Hub>, mut together: Vec<Write>) {
        if together.len() == 1
            && let Some(Write { to, id, apply }) = together.pop()
        {
            return hub.store_now(to, id, StoreRequest::Write(apply)).await;
        }
        let written = hub.write_together(&together).await;
        for Write { to, id, apply } in together {
            match &written {
                Some(result) => hub.stored_for(to, id, result.clone()).await,
                // Each alone, so that rows that cannot be written hold nobody else up.
                None => hub.store_alone(to, id, StoreRequest::Write(apply)),
            }
        }
    }
}

impl Load for Append {
    fn weight(&self) -> (usize, usize) {
        (self.entries.len(), self.entries.iter().map(Bytes::len).sum())
    }

    async fn send(hub: Arc<Hub>, mut together: Vec<Append>) {
        let entries = together.iter_mut().flat_map(|append| std::mem::take(&mut append.entries)).collect();
        let appended = hub.append_now(entries).await;
        for Append { answer, .. } in together {
            // Who has stopped waiting published all the same.
            let _ = answer.send(appended.clone());
        }
    }
}

impl Hub {
    /// Writes for a machine, with what else there is to write.
    pub(super) fn write(self: &Arc<Self>, write: Write) {
        use mpsc::error::TrySendError::{Closed, Full};
        if let Err(Full(Write { to, id, apply }) | Closed(Write { to, id, apply })) =
            self.gathering.writes.try_send(write)
        {
            self.store_alone(to, id, StoreRequest::Write(apply));
        }
    }

    /// Appends to the feed, with what else there is to append; durable when this returns.
    pub(super) async fn append(&self, entries: Vec<Bytes>) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        match self.gathering.appends.try_send(Append { entries, answer }) {
            Ok(()) => answered.await.unwrap_or_else(|_| Err(error::lost(&error::going_away(None)))),
            Err(_) => Err(Error::new("notify.busy", Class::Unreachable, "more is published than can be stored")
                .hint("Try again after a pause.")),
        }
    }

    async fn append_now(&self, entries: Vec<Bytes>) -> Result<(), Error> {
        let append = v1::Append { topic: TOPIC.into(), entries };
        self.stored()?.feed(Message::Append(append)).await.map(drop)
    }

    /// Many writes as one; `None` if some may be possible and others not. They are blind (F1), so those that happened may
    /// be repeated.
    async fn write_together(&self, writes: &[Write]) -> Option<StoreResult> {
        let mut groups: Vec<v1::GroupWrite> = Vec::new();
        for group in writes.iter().flat_map(|write| &write.apply.groups) {
            match groups.iter_mut().find(|other| other.group == group.group) {
                Some(same) => same.rows.extend(group.rows.iter().cloned()),
                None => groups.push(group.clone()),
            }
        }
        let stored = match self.stored() {
            Ok(stored) => stored,
            Err(error) => return Some(Err(error)),
        };
        let answer = tokio::time::timeout(STORE, stored.ask(StoreMessage::Apply(v1::Apply { groups })));
        match answer.await {
            Ok(Ok(StoreMessage::Applied(applied))) if applied.failures.is_empty() => Some(Ok(StoreReply::Written)),
            Ok(_) => None,
            Err(_) => Some(Err(error::deadline())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(bytes: usize) -> Write {
        let row = v1::RowWrite { row: vec![0; bytes].into(), cells: Vec::new() };
        let group = v1::GroupWrite { group: Bytes::new(), rows: vec![row], fence: None };
        Write { to: To::Matcher, id: StoreId(0), apply: v1::Apply { groups: vec![group] } }
    }

    #[test]
    fn commands_stay_within_their_bounds_and_nothing_is_left_out() {
        let sizes = |of: Vec<Write>| portions(of.into_iter()).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes((0..AT_ONCE + 3).map(|_| write(1)).collect()), [AT_ONCE, 3]);
        assert_eq!(sizes(vec![write(BYTES / 2), write(BYTES / 3), write(BYTES / 3), write(2 * BYTES), write(1)]), {
            [2, 1, 1, 1]
        });
        assert_eq!(sizes(Vec::new()), [0; 0]);
    }
}
