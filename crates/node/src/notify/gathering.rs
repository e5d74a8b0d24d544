//! What gathers while the store is busy goes to it together: rows of the machines in one write, publications in one append.
//!
//! Nobody waits for company: a command is made of what is there when there is room for one more under way. So a quiet
//! node sends everything at once and alone, and under load a commit carries many.

use super::feeding::TOPIC;
use super::hub::{Hub, STORE, To};
use super::realm::NOT_READY;
use bytes::Bytes;
use futures::future::join_all;
use parking_lot::Mutex;
use prost::Message as _;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_notify::rows::{StoreId, StoreReply, StoreRequest};
use tidings_wire::v1::feed_message::Message;
use tidings_wire::v1::store_message::Message as StoreMessage;
use tidings_wire::{error, v1};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Writes, or publications, of one command; a feed takes as many.
const AT_ONCE: usize = 1_024;
/// Their bytes: whatever a machine or a publisher brings may alone have more.
const BYTES: usize = 256 << 10;
/// Commands of one kind under way.
const UNDER_WAY: usize = 4;
/// One that takes longer lets the next go: rows of others are not held up by rows that do not answer.
const SLOW: Duration = Duration::from_millis(100);
/// What may wait and be under way altogether of each kind, in bytes; what comes beyond is refused, and tried again later by
/// whoever brought it.
const ROOM: usize = 64 << 20;
/// What each write or publication takes of it beside its own bytes.
const EACH: usize = 256;

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

/// What was taken in, and the room that it has until it is answered.
struct Admitted<T> {
    load: T,
    room: OwnedSemaphorePermit,
}

/// A way in: as much as there is room for.
struct Entrance<T> {
    queue: mpsc::UnboundedSender<Admitted<T>>,
    room: Arc<Semaphore>,
}

impl<T: Load> Entrance<T> {
    fn new(room: usize) -> (Entrance<T>, mpsc::UnboundedReceiver<Admitted<T>>) {
        let (queue, out) = mpsc::unbounded_channel();
        (Entrance { queue, room: Arc::new(Semaphore::new(room)) }, out)
    }

    /// Takes something in, or gives it back.
    fn admit(&self, load: T) -> Result<(), T> {
        let (count, bytes) = load.weight();
        let weight = u32::try_from(bytes + EACH * count).unwrap_or(u32::MAX);
        match self.room.clone().try_acquire_many_owned(weight) {
            Ok(room) => self.queue.send(Admitted { load, room }).map_err(|refused| refused.0.load),
            Err(_) => Err(load),
        }
    }
}

/// The ways in, and the ways out until somebody takes them.
pub(super) struct Gathering {
    writes: Entrance<Write>,
    appends: Entrance<Append>,
    out: Mutex<Option<Out>>,
}

type Out = (mpsc::UnboundedReceiver<Admitted<Write>>, mpsc::UnboundedReceiver<Admitted<Append>>);

impl Gathering {
    pub(super) fn new() -> Gathering {
        let (writes, writes_out) = Entrance::new(ROOM);
        let (appends, appends_out) = Entrance::new(ROOM);
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

async fn gather<T: Load>(hub: Arc<Hub>, mut queue: mpsc::UnboundedReceiver<Admitted<T>>) {
    let under_way = Arc::new(Semaphore::new(UNDER_WAY));
    let mut waiting = Vec::new();
    loop {
        let Ok(permit) = under_way.clone().acquire_owned().await else { return };
        if queue.recv_many(&mut waiting, AT_ONCE).await == 0 {
            return;
        }
        let (portions, to) = (portions(waiting.drain(..)), hub.clone());
        hub.spawn(async move {
            let mut sent = std::pin::pin!(async {
                for portion in portions {
                    let (together, room): (Vec<T>, Vec<_>) = portion.into_iter().map(|it| (it.load, it.room)).unzip();
                    T::send(to.clone(), together).await;
                    drop(room);
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
fn portions<T: Load>(waiting: impl Iterator<Item = Admitted<T>>) -> Vec<Vec<Admitted<T>>> {
    let mut portions: Vec<Vec<Admitted<T>>> = Vec::new();
    let (mut count, mut bytes) = (0, 0);
    for one in waiting {
        let (more, larger) = one.load.weight();
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
        let again = hub.write_together(&together).await;
        let mut alone = Vec::new();
        for Write { to, id, apply } in together {
            let in_vain = |groups: &BTreeSet<Bytes>| apply.groups.iter().any(|group| groups.contains(&group.group));
            match &again {
                Err(error) => hub.stored_for(to, id, Err(error.clone())).await,
                // So that rows that cannot be written hold nobody else up.
                Ok(groups) if in_vain(groups) => alone.push(hub.store_now(to, id, StoreRequest::Write(apply))),
                Ok(_) => hub.stored_for(to, id, Ok(StoreReply::Written)).await,
            }
        }
        join_all(alone).await;
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
        if let Err(Write { to, id, .. }) = self.gathering.writes.admit(write) {
            let hub = self.clone();
            self.spawn(async move { hub.stored_for(to, id, Err(busy())).await });
        }
    }

    /// Takes entries in, to be appended to the feed with what else there is; durable when what this gives back ends well.
    pub(super) fn append(&self, entries: Vec<Bytes>) -> Result<impl Future<Output = Result<(), Error>>, Error> {
        let (answer, answered) = oneshot::channel();
        self.gathering.appends.admit(Append { entries, answer }).map_err(|_| busy())?;
        Ok(async move { answered.await.unwrap_or_else(|_| Err(error::lost(&error::going_away(None)))) })
    }

    async fn append_now(&self, entries: Vec<Bytes>) -> Result<(), Error> {
        let append = v1::Append { topic: TOPIC.into(), entries };
        let before = self.taken.height(self.kept()?.incarnation);
        if let Message::Appended(v1::Appended { first, last }) = self.stored()?.feed(Message::Append(append)).await? {
            // Nobody is told that all is well before those who missed something are sure to hear of it.
            if before.is_above(first) && !self.feed_lost(before.incarnation).await {
                let message = "the feed has lost entries, and that could not be noted";
                return Err(Error::new(NOT_READY, Class::Unreachable, message).hint("Publish it again in a moment."));
            }
            self.taken.rise(before.incarnation, last);
        }
        Ok(())
    }

    /// Many writes as one. Groups some of whose rows cannot be written, each of whose writes is to be tried alone; they are
    /// blind (F1), so those that happened may be repeated.
    async fn write_together(&self, writes: &[Write]) -> Result<BTreeSet<Bytes>, Error> {
        let mut groups: Vec<v1::GroupWrite> = Vec::new();
        for group in writes.iter().flat_map(|write| &write.apply.groups) {
            match groups.iter_mut().find(|other| other.group == group.group) {
                Some(same) => same.rows.extend(group.rows.iter().cloned()),
                None => groups.push(group.clone()),
            }
        }
        let names = groups.iter().map(|group| group.group.clone()).collect();
        let stored = self.stored()?;
        let answer = tokio::time::timeout(STORE, stored.ask(StoreMessage::Apply(v1::Apply { groups })));
        in_vain(answer.await.unwrap_or_else(|_| Err(error::deadline())), names)
    }
}

/// Which of these groups' writes are to be tried alone. That the store does not answer is so for everybody: asking it once
/// for each of them would be a thousand times the load, just when it has trouble.
fn in_vain(answer: Result<StoreMessage, Error>, groups: BTreeSet<Bytes>) -> Result<BTreeSet<Bytes>, Error> {
    match answer {
        Ok(StoreMessage::Applied(applied)) => Ok(applied.failures.into_iter().map(|failure| failure.group).collect()),
        // One of them is not as it should be, and nobody says which.
        Err(error) if error.class == Class::Invalid => Ok(groups),
        Ok(_) => Ok(groups),
        Err(error) => Err(error),
    }
}

fn busy() -> Error {
    Error::new("notify.busy", Class::Unreachable, "more is written and published than can be stored")
        .hint("Try again after a pause.")
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
        let sizes = |of: Vec<Write>| {
            let (entrance, mut out) = Entrance::new(ROOM);
            of.into_iter().for_each(|write| assert!(entrance.admit(write).is_ok()));
            let admitted = std::iter::from_fn(|| out.try_recv().ok());
            portions(admitted).iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes((0..AT_ONCE + 3).map(|_| write(1)).collect()), [AT_ONCE, 3]);
        assert_eq!(sizes(vec![write(BYTES / 2), write(BYTES / 3), write(BYTES / 3), write(2 * BYTES), write(1)]), {
            [2, 1, 1, 1]
        });
        assert_eq!(sizes(Vec::new()), [0; 0]);
    }

    #[test]
    fn what_waits_and_is_under_way_is_bounded_by_its_bytes() {
        let (entrance, mut out) = Entrance::new(10_000);
        let admitted = (0..100).take_while(|_| entrance.admit(write(3_000)).is_ok()).count();
        assert_eq!(admitted, 3);
        let taken = out.try_recv().ok();
        assert!(taken.is_some() && entrance.admit(write(3_000)).is_err(), "it is under way");
        drop(taken);
        assert!(entrance.admit(write(3_000)).is_ok());
        let (entrance, _out) = Entrance::new(10 * EACH);
        assert_eq!((0..100).take_while(|_| entrance.admit(write(0)).is_ok()).count(), 9, "small ones count, too");
    }

    #[test]
    fn a_failure_of_the_whole_store_is_everybodys_and_one_of_a_group_its_own() {
        let name = |name: &'static str| Bytes::from_static(name.as_bytes());
        let both = || BTreeSet::from([name("a"), name("b")]);
        let applied = |failed: &[&'static str]| {
            let failure = |group: &&'static str| v1::GroupFailure { group: name(group), ..Default::default() };
            Ok(StoreMessage::Applied(v1::Applied { failures: failed.iter().map(failure).collect() }))
        };
        assert_eq!(in_vain(applied(&[]), both()), Ok(BTreeSet::new()));
        assert_eq!(in_vain(applied(&["b"]), both()), Ok(BTreeSet::from([name("b")])));
        for class in [Class::Unreachable, Class::OutcomeUnknown, Class::Failed, Class::Refused] {
            assert!(in_vain(Err(Error::new("store.x", class, "away")), both()).is_err());
        }
        assert_eq!(in_vain(Err(Error::new("store.too_large", Class::Invalid, "too large")), both()), Ok(both()));
    }
}
