//! Marks of deletions go when they are old enough, whether or not anybody reads or writes: a slow scan looks for them, and a
//! commit without operations takes them away, and what clients that are gone have left with them. R6: what such clients have
//! acknowledged stays longer, and is looked for by the owner of the first partition, for all of the table.
//!
//! ```text
//!   every second:  there may be marks? ─▶ the next page of a scan ─▶ expired ─▶ a commit, if no other is under way
//! ```

use super::reading::{EXPIRED, decode};
use super::writing::{Commit, collect, forget};
use super::{Output, Processor, Step, StoreReply, StoreResult};
use crate::names::{PartitionId, Position};
use crate::rows;
use bytes::Bytes;
use std::time::Duration;
use tidings_base::{Mono, Now, Outbox};

/// How often clients that are gone are looked for while what they have acknowledged is kept; and in how many whiles that is
/// divided: a client that is heard of in each has a cell of each.
pub(super) const LOOKS: u32 = 8;
/// After so long a new owner has nothing more urgent to do.
const SETTLED: Duration = Duration::from_secs(3600);

/// How far a partition is with looking for marks.
#[derive(Debug)]
pub(super) struct Collecting {
    /// Whether there may be marks: nobody has looked since the partition was opened, or something was deleted.
    marked: bool,
    /// Whether the scan that is under way met one, or one was made meanwhile.
    met: bool,
    /// Where that scan goes on; none = there is no scan.
    next: Option<Bytes>,
    /// Whether the store was asked and has not answered.
    asked: bool,
    /// When the next scan may begin.
    due: Mono,
}

impl Default for Collecting {
    fn default() -> Collecting {
        Collecting { marked: true, met: false, next: None, asked: false, due: Mono(0) }
    }
}

/// How far the owner of the first partition is with looking for clients that are gone.
#[derive(Debug, Default)]
pub(super) struct Looking {
    /// Where the look goes on; none = there is none.
    next: Option<Bytes>,
    /// Whether the store was asked and has not answered.
    asked: bool,
    /// When the next look may begin; none = the owner is new.
    due: Option<Mono>,
}

impl Collecting {
    /// Something was deleted.
    pub fn mark(&mut self) {
        (self.marked, self.met) = (true, true);
    }
}

impl Processor {
    /// The next step, once a second.
    pub(super) fn collect_on(&mut self, now: Now, id: PartitionId, out: &mut Outbox<Output>) {
        if !self.shared.options.collects {
            return;
        }
        let page = self.shared.options.page;
        let Some(partition) = self.partitions.get_mut(&id).filter(|partition| partition.is_open()) else { return };
        let (start, end) = (partition.owned.entry.start.as_ref(), partition.owned.entry.end.as_ref());
        let (start, end) = rows::records(start, end);
        let collecting = &mut partition.collecting;
        if collecting.next.is_none() && collecting.marked && collecting.due <= now.mono {
            (collecting.next, collecting.met) = (Some(start), false);
        }
        // What was found goes before more is looked for.
        let room = partition.expired.len() < EXPIRED;
        if let Some(next) = collecting.next.clone().filter(|_| room && !collecting.asked) {
            collecting.asked = true;
            let request = partition.scan(next, end, page);
            self.shared.store(Step::Collecting(id), request, out);
        }
        self.look_on(now, id, out);
        self.collect_now(now, id, out);
    }

    /// The next step of a look at what clients have acknowledged.
    fn look_on(&mut self, now: Now, id: PartitionId, out: &mut Outbox<Output>) {
        let (page, keep) = (self.shared.options.page, self.shared.options.watermarks);
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        if partition.owned.entry.start.is_some() {
            return;
        }
        let (start, end) = rows::all_acked();
        let looking = &mut partition.looking;
        let due = *looking.due.get_or_insert(now.mono + (keep / LOOKS).min(SETTLED));
        if looking.next.is_none() && due <= now.mono {
            looking.next = Some(start);
        }
        let room = partition.unheard.len() < EXPIRED;
        if let Some(next) = looking.next.clone().filter(|_| room && !looking.asked) {
            looking.asked = true;
            let request = partition.scan(next, end, page);
            self.shared.store(Step::Looking(id), request, out);
        }
    }

    /// A page of the look has come. What goes, goes at its own number, out of a while that is over: whatever was heard since stays.
    pub(super) fn looked(&mut self, now: Now, id: PartitionId, result: StoreResult) {
        let keep = self.shared.options.watermarks;
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        partition.looking.asked = false;
        let Ok(StoreReply::Rows(found)) = result else { return };
        for row in &found.rows {
            for cell in &row.cells {
                let heard = rows::heard_at(cell.value.as_deref().unwrap_or_default()).unwrap_or(now.wall);
                let silent = Duration::from_micros(now.wall.0.saturating_sub(heard.0));
                if silent > keep && partition.unheard.len() < EXPIRED {
                    partition.unheard.push((row.row.clone(), cell.column.clone(), cell.timestamp));
                }
            }
        }
        partition.looking.next = found.next;
        if partition.looking.next.is_none() {
            partition.looking.due = Some(now.mono + keep / LOOKS);
        }
    }

    /// A page of the scan has come; one that has not is asked for again with the next step.
    pub(super) fn collected(&mut self, now: Now, id: PartitionId, result: StoreResult) {
        let options = &self.shared.options;
        let Some(keep) = self.tables.get(&id.table).map(|table| options.marks(&table.properties)) else { return };
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        partition.collecting.asked = false;
        let Ok(StoreReply::Rows(found)) = result else { return };
        for row in &found.rows {
            let Some(mark) = decode(row).filter(|record| record.columns.is_none()) else { continue };
            partition.collecting.met = true;
            let old = Duration::from_micros(now.wall.0.saturating_sub(mark.time.0));
            if old > keep && partition.expired.len() < EXPIRED {
                partition.expired.push((row.row.clone(), mark.version.get()));
            }
        }
        let collecting = &mut partition.collecting;
        collecting.next = found.next;
        if collecting.next.is_none() {
            collecting.marked = collecting.met;
            collecting.due = now.mono + keep / 4;
        }
    }

    /// A commit that holds nothing but what goes, if none is under way or about to be.
    fn collect_now(&mut self, now: Now, id: PartitionId, out: &mut Outbox<Output>) {
        let keep = self.shared.options.outcomes;
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        if partition.commit.is_some() || !partition.queue.is_empty() {
            return;
        }
        if partition.expired.is_empty() && partition.gone.is_empty() && partition.unheard.is_empty() {
            return;
        }
        // A position of its own, as every commit has one: the store keeps one value for each.
        let counter = partition.position.counter() + 1;
        let Some(position) = Position::new(partition.owned.entry.term, counter) else { return };
        let (records, bytes) = (partition.records, partition.bytes);
        let mut commit = Commit { position, records, bytes, ..Commit::default() };
        collect(partition, &mut commit);
        forget(partition, &mut commit, now, keep);
        if !commit.rows.is_empty() || !commit.unheard.is_empty() {
            partition.commit = Some(commit);
            self.commit_again(id, out);
        }
    }
}
