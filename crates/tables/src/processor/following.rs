//! R1: a copy of a partition that another processor owns, so that a hot one can be read in more than one place.
//!
//! ```text
//!   Follow ─▶ Install (of everything, with audiences) ─▶ owner ─▶ snapshot, then every change ─▶ rows in memory ─▶ copied.rs
//!                ▲ gap · silence · new owner ──────────────────────────┘
//! ```
//! A copy is a live query without a reader: frames have positions, what does not follow is asked for again from where the copy
//! is, and progress says what was lost. It never decides, publishes or is leased, and holds nothing that its owner has not
//! heard to be committed.

use super::{Output, Processor, Timer, answer};
use crate::calls::{Access, Visible};
use crate::directory::{self, Properties};
use crate::live::{Body, Change, Frame, From, Install, Progress, Reader};
use crate::mutant::Mutant;
use crate::names::{PartitionId, Position, QueryId, Term};
use crate::record::Record;
use crate::refusal::Refusal;
use crate::rows;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Mono, Now, Outbox};
use tidings_predicate::query::Ask;
use tidings_predicate::{Key, Packed};

/// Frames that may be under way to a copy: with pieces of 256 KiB four megabytes.
const WINDOW: u32 = 16;
/// What a row of a copy weighs besides its key, columns and predicate.
const ROW: usize = 256;

/// A copy of a partition.
#[derive(Debug)]
pub(super) struct Copy {
    pub entry: directory::Partition,
    query: QueryId,
    /// Counts what the owner was asked: frames of earlier installations say nothing any more.
    installation: u64,
    /// Records by their rows, as they were at `position`.
    pub rows: BTreeMap<Bytes, (Key, Arc<Record>)>,
    pub bytes: usize,
    /// Up to where everything is here; none before the first picture.
    pub position: Option<Position>,
    /// Where the last frame of this installation led: the next one goes on from there.
    chain: Position,
    /// The term of the owner that has answered this installation.
    owner: Option<Term>,
    /// What comes in pieces: its two positions, and the next piece. Until the last the rows are of two pictures.
    pieces: Option<(Position, Position, u32)>,
    /// Whether rows are of two pictures.
    torn: bool,
    /// Pieces that came before their turn: as many as may be under way.
    early: BTreeMap<u32, Frame>,
    /// The last progress of this owner.
    progress: Option<Position>,
    asked: Mono,
    /// How often in a row it was asked again without an answer.
    unanswered: u32,
    heard: Option<Mono>,
}

/// What a frame means for a copy.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    /// Nothing, or nothing yet.
    Nothing,
    /// Something is missing.
    Gap,
    /// It was taken.
    Taken,
}

impl Copy {
    fn new(entry: directory::Partition, query: QueryId) -> Copy {
        Copy {
            entry,
            query,
            installation: 0,
            rows: BTreeMap::new(),
            bytes: 0,
            position: None,
            chain: Position::ZERO,
            owner: None,
            pieces: None,
            torn: false,
            early: BTreeMap::new(),
            progress: None,
            asked: Mono(0),
            unanswered: 0,
            heard: None,
        }
    }

    /// How long it waits for the first answer: each time it asks its owner begins anew, so an owner that needs long is given longer.
    fn pause(&self, patience: Duration) -> Duration {
        (patience / 8 * (1 << self.unanswered.min(3))).min(patience)
    }

    /// Up to where it can be read: whole, and not much older than what its owner has.
    pub fn readable(&self, now: Now, patience: Duration) -> Option<Position> {
        let fresh = self.heard.is_some_and(|heard| now.mono.since(heard) <= patience);
        self.position.filter(|_| fresh && !self.torn)
    }

    fn install(&mut self, now: Now, partition: PartitionId) -> Install {
        self.installation += 1;
        (self.owner, self.pieces, self.progress, self.asked) = (None, None, None, now.mono);
        self.early.clear();
        self.chain = self.position.unwrap_or_default();
        // It sees everything, whatever it says of itself.
        let (data, claims) = (Packed::empty(), Packed::empty());
        Install {
            query: self.query,
            partition,
            installation: self.installation,
            ask: Ask::default(),
            reader: Reader { access: Access::User, data, claims, epoch: 1 },
            from: self.position.map_or(From::Everything, |at| From::After(vec![(partition, at)])),
            newer_than: None,
            window: WINDOW,
            endpoint: None,
        }
    }

    fn put(&mut self, record: Visible) {
        let Visible { key, version, time, writer, audience, columns } = record;
        let record = Record { version, time, writer, predicate: audience, op: None, columns: Some(columns) };
        let row = rows::record(&key);
        self.bytes += size(&row, &record);
        if let Some((_, old)) = self.rows.insert(row.clone(), (key, Arc::new(record))) {
            self.bytes -= size(&row, &old);
        }
    }

    fn leave(&mut self, key: &Key) {
        let row = rows::record(key);
        if let Some((_, old)) = self.rows.remove(&row) {
            self.bytes -= size(&row, &old);
        }
    }

    fn next_piece(&mut self) -> Option<Frame> {
        let (.., next) = self.pieces?;
        self.early.remove(&next)
    }

    fn hear(&mut self, now: Now, frame: Frame, gaps: bool) -> Heard {
        if let Some(owner) = self.owner.filter(|owner| *owner != frame.term) {
            // One installation that two owners answer: only the later one goes on.
            return if frame.term > owner { Heard::Gap } else { Heard::Nothing };
        }
        let snapshot = matches!(frame.body, Body::Snapshot(_));
        // It came late, or from an owner that has lost the partition.
        let known = self.position.is_some_and(|at| frame.position < at);
        let again = self.owner.is_some() && self.pieces.is_none() && frame.position <= self.chain;
        if gaps && (known || again) {
            return Heard::Nothing;
        }
        let next = (frame.previous, frame.position, frame.piece);
        // A snapshot that took too long begins anew, at a later position.
        let anew = snapshot && frame.piece == 0 && self.pieces.is_none_or(|(_, at, _)| at < frame.position);
        let follows = match self.pieces {
            Some(pieces) => pieces == next,
            None => frame.piece == 0 && frame.previous == self.chain,
        };
        if !follows && !anew && gaps {
            return self.misplaced(frame);
        }
        (self.owner, self.heard, self.unanswered) = (Some(frame.term), Some(now.mono), 0);
        if anew {
            self.rows.clear();
            (self.bytes, self.position) = (0, None);
            self.early.clear();
        }
        match frame.body {
            Body::Snapshot(rows) => rows.into_iter().for_each(|record| self.put(record)),
            Body::Changes(changes) => changes.into_iter().for_each(|change| match change {
                Change::Put(record) => self.put(record),
                Change::Leave { key } => self.leave(&key),
            }),
            Body::Dirty | Body::Ended(_) => {}
        }
        self.torn = frame.more;
        self.pieces = frame.more.then_some((frame.previous, frame.position, frame.piece + 1));
        if !frame.more {
            (self.chain, self.position) = (frame.position, self.position.max(Some(frame.position)));
        }
        Heard::Taken
    }

    /// A piece before its turn waits; one that came again says nothing; whatever else does not follow shows a gap.
    fn misplaced(&mut self, frame: Frame) -> Heard {
        let (waits, again) = match self.pieces {
            Some((previous, position, next)) => {
                let same = (previous, position) == (frame.previous, frame.position);
                (same && next < frame.piece, same && frame.piece < next || frame.position < position)
            }
            None => (self.owner.is_none() && frame.piece > 0, false),
        };
        match waits && self.early.len() < WINDOW as usize {
            true => drop(self.early.insert(frame.piece, frame)),
            // Before it was answered at all it is asked for again after a pause.
            false if !again && self.owner.is_some() => return Heard::Gap,
            false => {}
        }
        Heard::Nothing
    }

    /// What progress says: whether something was lost.
    fn heard_progress(&mut self, now: Now, progress: &Progress) -> Heard {
        let Some(owner) = self.owner else { return Heard::Nothing };
        let late = self.progress.is_some_and(|last| progress.position < last);
        let again = self.progress == Some(progress.position) && progress.previous != progress.position;
        if progress.term < owner.max(self.entry.term) || late || again {
            return Heard::Nothing;
        }
        let sent = progress.sent.iter().find(|(query, _)| *query == self.query).map(|(_, sent)| *sent);
        let behind = progress.behind.contains(&self.query);
        let lost = match self.progress {
            Some(last) => last != progress.previous,
            // What was sent before this owner's progress before this one was named while nobody listened.
            None => progress.previous > self.chain && !behind && self.pieces.is_none(),
        };
        let missed = sent.is_some_and(|sent| self.chain < sent) || !behind && self.pieces.is_some();
        if progress.term > owner || lost || missed {
            return Heard::Gap;
        }
        (self.heard, self.progress) = (Some(now.mono), Some(progress.position));
        if !behind && self.pieces.is_none() {
            self.position = self.position.max(Some(progress.position));
        }
        // The owner waits for room that it was given already: that word was lost.
        if behind { Heard::Taken } else { Heard::Nothing }
    }
}

impl Processor {
    /// Follows a partition that somebody else owns, or goes on with the owner that the directory names now.
    pub(super) fn follow(
        &mut self,
        now: Now,
        id: PartitionId,
        query: QueryId,
        entry: directory::Partition,
        properties: Properties,
        out: &mut Outbox<Output>,
    ) {
        if self.partitions.contains_key(&id) {
            return out.put(Output::Unfollowed { partition: id });
        }
        let options = &self.shared.options;
        let table = super::Table::new(properties.clone(), options);
        self.tables.entry(id.table).or_insert(table);
        self.altered(id.table, properties, out);
        let copy = self.copies.entry(id).or_insert_with(|| Copy::new(entry.clone(), query));
        let same = copy.installation > 0 && copy.entry.term == entry.term;
        copy.entry = entry;
        if !same {
            copy.unanswered = 0;
            self.install_copy(now, id, out);
        }
        self.look_for_silence(now);
    }

    fn install_copy(&mut self, now: Now, id: PartitionId, out: &mut Outbox<Output>) {
        if let Some(copy) = self.copies.get_mut(&id) {
            out.put(Output::Install(Box::new(copy.install(now, id))));
        }
    }

    /// Follows no more; whoever reads here asks the owner.
    pub(super) fn unfollow(&mut self, id: PartitionId, out: &mut Outbox<Output>) {
        let Some(copy) = self.copies.remove(&id) else { return };
        out.put(Output::Remove { partition: id, query: copy.query });
        let reads = self.reads.iter().filter(|(_, reading)| reading.partition == id).map(|(request, _)| *request);
        for request in reads.collect::<Vec<_>>() {
            self.reads.remove(&request);
            answer(request, Err(Refusal::Moved), out);
        }
        self.forget_table(id.table);
    }

    /// It cannot be copied here: the driver is told.
    fn give_up(&mut self, id: PartitionId, out: &mut Outbox<Output>) {
        self.unfollow(id, out);
        out.put(Output::Unfollowed { partition: id });
    }

    /// The owner says something to a copy.
    pub(super) fn copy_hears(&mut self, now: Now, query: QueryId, frame: Frame, out: &mut Outbox<Output>) {
        let (id, gaps) = (frame.partition, !self.shared.is(Mutant::CopyGapIgnored));
        let mut next = Some(frame);
        while let Some(frame) = next {
            let known = self.copies.get_mut(&id).filter(|copy| copy.query == query);
            let Some(copy) = known else {
                // The word that it ended was lost: its owner would feed it for ever, in the place of another.
                if !matches!(frame.body, Body::Ended(_)) {
                    out.put(Output::Remove { partition: id, query });
                }
                return;
            };
            // What an owner before the one that the directory names says is old: reads would be answered with it.
            if copy.installation != frame.installation || frame.term < copy.entry.term {
                return;
            }
            if let Body::Ended(refusal) = frame.body {
                copy.owner = None;
                // Who is not the owner, or not ready, or has no room is asked again after a pause: silence sees to it.
                return match refusal.is_passing() || refusal == Refusal::Ended {
                    true => {}
                    false => self.give_up(id, out),
                };
            }
            match copy.hear(now, frame, gaps) {
                Heard::Nothing => return,
                Heard::Gap => return self.install_copy(now, id, out),
                Heard::Taken => out.put(Output::Taken { partition: id, query, frames: 1 }),
            }
            next = copy.next_piece();
            // A partition that does not fit is not copied.
            if self.copies.values().map(|copy| copy.bytes).sum::<usize>() > self.shared.options.copy_bytes {
                return self.give_up(id, out);
            }
        }
    }

    /// R3: a copy learns what it has missed, and how far it is complete.
    pub(super) fn copy_progresses(&mut self, now: Now, progress: &Progress, out: &mut Outbox<Output>) {
        let id = progress.partition;
        let Some(copy) = self.copies.get_mut(&id) else { return };
        let query = copy.query;
        match copy.heard_progress(now, progress) {
            Heard::Nothing => {}
            Heard::Gap => self.install_copy(now, id, out),
            Heard::Taken => out.put(Output::Taken { partition: id, query, frames: WINDOW }),
        }
    }

    fn look_for_silence(&mut self, now: Now) {
        if self.shared.timers.at(&Timer::Silence).is_none() {
            self.shared.timers.set(Timer::Silence, now.mono + self.shared.options.copy_patience / 8);
        }
    }

    /// An owner that says nothing is asked again.
    pub(super) fn silence(&mut self, now: Now, out: &mut Outbox<Output>) {
        let patience = self.shared.options.copy_patience;
        let silent = self.copies.iter().filter(|(_, copy)| {
            let heard = copy.heard.filter(|_| copy.owner.is_some()).unwrap_or(Mono(0));
            let pause = if copy.owner.is_some() { patience } else { copy.pause(patience) };
            now.mono.since(copy.asked.max(heard)) > pause
        });
        for id in silent.map(|(id, _)| *id).collect::<Vec<_>>() {
            if let Some(copy) = self.copies.get_mut(&id) {
                copy.unanswered = copy.unanswered.saturating_add(1);
            }
            self.install_copy(now, id, out);
        }
        if !self.copies.is_empty() {
            self.look_for_silence(now);
        }
    }
}

pub(super) fn size(row: &Bytes, record: &Record) -> usize {
    ROW + 2 * row.len() + record.writer.len() + record.size()
}
