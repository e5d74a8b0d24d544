//! What a query in a partition still has to hear, and the frames it hears it in.
//!
//! Queues hold positions, never bodies: the log has them once for all queries, and visibility is looked at again when a
//! change is sent (R3).

use super::partition::Partition;
use super::reading::Pace;
use super::tables::{Subscription, To, Writers};
use super::{Output, Shared, Step, StoreId};
use crate::calls::Visible;
use crate::live::{Body, Change, Frame, Reader};
use crate::mutant::Mutant;
use crate::names::{PartitionId, Position, QueryId, Term};
use crate::record::Record;
use crate::refusal::Refusal;
use crate::rows;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use tidings_base::{Outbox, Wall};
use tidings_predicate::{Key, Meter, TooSlow};

/// What a row weighs in a frame besides its columns.
const ROW: usize = 64;

/// One query in one partition.
#[derive(Debug)]
pub(super) struct Feed {
    pub installation: u64,
    /// The data epoch of the last frame.
    pub epoch: u64,
    /// The position of the last frame.
    pub sent: Position,
    /// Changes that it may have to hear, in order.
    pub queue: VecDeque<Position>,
    /// Frames that may be sent before the gateway has taken some.
    pub room: u32,
    pub window: u32,
    pub catching: Option<Catching>,
    /// Whether it is only told that it should be read again, and whether it is to be told.
    pub rereads: bool,
    pub dirty: bool,
    /// Whether it waits for time: it is among its partition's late ones.
    pub late: bool,
}

/// How a query gets from what it has heard to `at`.
#[derive(Debug)]
pub(super) struct Catching {
    /// The position that it leads to.
    pub at: Position,
    /// What the client has: the image at this position, seen by this reader. None: nothing that counts (`reset`).
    pub from: Option<(Position, Reader)>,
    /// Where the scan goes on; none at its end.
    pub next: Option<Bytes>,
    /// The scan that is under way; the answer to an earlier one is of another picture.
    pub scanning: Option<StoreId>,
    pub pace: Pace,
    pub newer_than: Option<Wall>,
    pub piece: u32,
    pub rows: Vec<Visible>,
    pub changes: Vec<Change>,
    pub size: usize,
}

impl Catching {
    pub fn new(at: Position, from: Option<(Position, Reader)>, next: Option<Bytes>) -> Catching {
        let (rows, changes, pace) = (Vec::new(), Vec::new(), Pace::default());
        Catching { at, from, next, scanning: None, pace, newer_than: None, piece: 0, rows, changes, size: 0 }
    }
}

impl Feed {
    /// Up to where the client has heard everything that concerns it, though no frame said so.
    pub fn told(&self, position: Position) -> Position {
        match self.queue.front() {
            Some(first) => Position::from_u64(first.get() - 1).unwrap_or_default(),
            None => position,
        }
    }

    pub fn is_busy(&self) -> bool {
        self.catching.is_some() || !self.queue.is_empty() || self.dirty
    }
}

/// Sends a query what it has to hear and there is room and time for; whether the query goes on.
pub(super) fn send(
    shared: &mut Shared,
    partition: &mut Partition,
    id: QueryId,
    subscription: &Subscription,
    meter: &Meter,
    out: &mut Outbox<Output>,
) -> bool {
    let Some(mut feed) = partition.feeds.remove(&id) else { return true };
    let (mut goes_on, most) = (true, shared.options.page_bytes);
    while feed.room > 0 {
        let frame = match &mut feed.catching {
            Some(catching) if catching.next.is_none() || catching.size >= most => {
                let said = (feed.installation, feed.epoch, feed.sent);
                piece(partition, said, catching, subscription, most)
            }
            Some(catching) => {
                if catching.scanning.is_none() {
                    let (_, end) = rows::records(None, partition.owned.entry.end.as_ref());
                    let limit = catching.pace.rows(shared.options.page);
                    let request = partition.scan(catching.next.clone().unwrap_or_default(), end, limit);
                    catching.scanning = Some(shared.store(Step::Catching(partition.id, id), request, out));
                }
                break;
            }
            None if feed.queue.is_empty() => break,
            None if meter.steps() >= shared.options.steps => {
                if !std::mem::replace(&mut feed.late, true) {
                    partition.late.push_back(id);
                }
                break;
            }
            None => match changes(shared, partition, &mut feed, subscription, meter) {
                Ok(Some(frame)) => frame,
                Ok(None) => continue,
                Err(refusal) => {
                    goes_on = false;
                    let body = Body::Ended(refusal);
                    frame(partition, &feed, subscription, feed.sent, body)
                }
            },
        };
        feed.room -= 1;
        if feed.catching.is_none() {
            partition.note(id, frame.position);
        }
        if let (Body::Changes(changes), false) = (&frame.body, subscription.is_copy()) {
            partition.counts.events += changes.len() as u64;
        }
        if !frame.more {
            feed.catching = None;
            (feed.sent, feed.epoch) = (frame.position, frame.epoch);
        }
        out.put(Output::Frame { query: id, frame: Box::new(frame) });
        if !goes_on {
            return false;
        }
    }
    if feed.is_busy() {
        partition.busy.insert(id)
    } else {
        partition.busy.remove(&id)
    };
    partition.feeds.insert(id, feed);
    true
}

/// A frame that leads from what was sent to a position.
pub(super) fn frame(
    partition: &Partition,
    feed: &Feed,
    subscription: &Subscription,
    position: Position,
    body: Body,
) -> Frame {
    Frame {
        partition: partition.id,
        term: partition.owned.entry.term,
        installation: feed.installation,
        epoch: subscription.reader.epoch,
        previous_epoch: feed.epoch,
        previous: feed.sent,
        position,
        piece: 0,
        more: false,
        body,
    }
}

/// The word that a query is not here, under its installation and data epoch.
pub(super) fn over_frame(
    partition: PartitionId,
    term: Term,
    (installation, epoch): (u64, u64),
    refusal: Refusal,
) -> Frame {
    let (previous, position) = (Position::ZERO, Position::ZERO);
    let (previous_epoch, body) = (epoch, Body::Ended(refusal));
    Frame { partition, term, installation, epoch, previous_epoch, previous, position, piece: 0, more: false, body }
}

/// The next piece of a snapshot or difference.
fn piece(
    partition: &Partition,
    (installation, previous_epoch, sent): (u64, u64, Position),
    catching: &mut Catching,
    subscription: &Subscription,
    most: usize,
) -> Frame {
    let (previous, body) = match &catching.from {
        Some(_) => (sent, Body::Changes(some(&mut catching.changes, most))),
        None => (Position::ZERO, Body::Snapshot(std::mem::take(&mut catching.rows))),
    };
    let (piece, more) = (catching.piece, catching.next.is_some() || !catching.changes.is_empty());
    (catching.piece, catching.size) = (piece + 1, 0);
    let (partition, term) = (partition.id, partition.owned.entry.term);
    let (epoch, position) = (subscription.reader.epoch, catching.at);
    Frame { partition, term, installation, epoch, previous_epoch, previous, position, piece, more, body }
}

/// The first changes, as many as fit a frame.
fn some(changes: &mut Vec<Change>, most: usize) -> Vec<Change> {
    let mut size = 0;
    let fits = changes.iter().take_while(|change| {
        let before = size;
        size += weight_of_change(change);
        before < most
    });
    let count = fits.count();
    changes.drain(..count).collect()
}

/// What a record weighs in a frame: to a copy its audience goes, too, which may be larger than its columns.
pub(super) fn weight(record: &Visible) -> usize {
    let texts = record.writer.len() + record.audience.len();
    ROW + record.key.size() + texts + record.columns.as_bytes().len()
}

pub(super) fn weight_of_change(change: &Change) -> usize {
    match change {
        Change::Put(record) => weight(record),
        Change::Leave { key } => ROW + key.size(),
    }
}

/// Changes of the queue as this reader sees them now, as many as there is time for; none if it sees none.
fn changes(
    shared: &mut Shared,
    partition: &Partition,
    feed: &mut Feed,
    subscription: &Subscription,
    meter: &Meter,
) -> Result<Option<Frame>, Refusal> {
    let (mut changes, mut size, mut last) = (Vec::new(), 0, feed.sent);
    while size < shared.options.page_bytes && meter.steps() < shared.options.steps {
        let Some(position) = feed.queue.pop_front() else { break };
        // What the log has let go cannot be told any more.
        let change = partition.log.find(position).ok_or(Refusal::Ended)?;
        last = position;
        let unchecked = shared.is(Mutant::SentUnchecked);
        let told = difference(
            &mut shared.writers,
            subscription,
            &change.key,
            change.before.as_ref().map(|before| (before, &subscription.reader)),
            Some(&change.after),
            (unchecked, meter),
        )?;
        if let Some(told) = told.filter(|told| !(shared.is(Mutant::NoLeave) && matches!(told, Change::Leave { .. }))) {
            size += weight_of_change(&told);
            changes.push(told);
        } else if shared.is(Mutant::LeaveToAll) && change.after.columns.is_none() {
            changes.push(Change::Leave { key: change.key.clone() });
        }
    }
    // With nothing left the query has heard everything there is.
    let position = if feed.queue.is_empty() { partition.position.max(last) } else { last };
    let body = Body::Changes(changes);
    let heard = matches!(&body, Body::Changes(changes) if !changes.is_empty());
    Ok(heard.then(|| frame(partition, feed, subscription, position, body)))
}

/// What a query hears of a record that was so for one reader and is so now (R4: `leave` iff it was visible); the steps that it
/// takes are counted.
pub(super) fn difference(
    writers: &mut Writers,
    subscription: &Subscription,
    key: &Key,
    before: Option<(&Arc<Record>, &Reader)>,
    after: Option<&Arc<Record>>,
    (unchecked, meter): (bool, &Meter),
) -> Result<Option<Change>, TooSlow> {
    if subscription.is_copy() {
        // R1: a copy decides for itself who sees what.
        let put = |after: &Arc<Record>| after.visible(key).map(Change::Put);
        return Ok(after.map(|after| put(after).unwrap_or_else(|| Change::Leave { key: key.clone() })));
    }
    let mut shows = |record: &Record, reader: &Reader| {
        let to = To { meter: Some(meter), ..To::live(&subscription.query, reader) };
        writers.shows(key, record, &to)
    };
    let was = before.map_or(Ok(false), |(record, reader)| shows(record, reader))?;
    let is = match after {
        Some(after) => (unchecked && after.columns.is_some() || shows(after, &subscription.reader)?).then_some(after),
        None => None,
    };
    let same = before.zip(after).is_some_and(|((before, _), after)| before.version == after.version);
    Ok(match (was, is) {
        // The same record, seen as before.
        (true, Some(_)) if same => None,
        (_, Some(after)) => after.visible(key).map(Change::Put),
        (true, None) => Some(Change::Leave { key: key.clone() }),
        (false, None) => None,
    })
}
