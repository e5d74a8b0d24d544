//! One client's live query: where it is in each partition, and what a frame means for it (R3, R4).

use super::cursor::{Cursor, hash_of_ask, hash_of_reader};
use super::whole::Whole;
use super::{Event, Start, Watch};
use crate::directory::Partition;
use crate::live::{Body, Frame, From, Install, Reader};
use crate::names::{NetId, PartitionId, Position, QueryId, Term};
use crate::refusal::Refusal;
use std::collections::{BTreeMap, VecDeque};
use tidings_base::{Mono, Now};
use tidings_predicate::Key;

/// Where a client begins.
#[derive(Clone, Debug)]
pub(super) enum Begin {
    Everything,
    Nothing,
    After(BTreeMap<u32, Position>),
}

/// A query in one partition.
#[derive(Clone, Debug)]
pub(super) struct Part {
    start: Option<Key>,
    end: Option<Key>,
    /// Where to begin before there is a cursor.
    pub begin: From,
    /// Whether nothing was ever told of it: a first read may be narrower than later ones.
    unread: bool,
    /// Up to where the client has been told everything.
    pub cursor: Option<Position>,
    /// Where the last frame of this installation led: the next one goes on from there, and not only from a cursor that
    /// progress has moved since.
    chain: Position,
    /// The data epoch that the client's rows are of.
    pub epoch: u64,
    /// Counts installations: frames of earlier ones say nothing any more.
    installation: u64,
    /// Whether the owner has answered the last installation.
    pub live: bool,
    /// Whether an owner has answered at all.
    pub answered: bool,
    /// Whether progress was heard since then: from there on everything that is sent is named to somebody who listens.
    pub named: bool,
    /// R1: the term of the owner that did.
    pub term: Term,
    pub asked: Mono,
    pub heard: Mono,
    /// What comes in pieces: its two positions and epoch, and the next piece.
    pub pieces: Option<(Position, Position, u64, u32)>,
    /// Pieces that came before their turn: as many as may be under way.
    early: BTreeMap<u32, Frame>,
}

/// A live query of a client.
#[derive(Debug)]
pub(super) struct Watched {
    pub watch: Watch,
    pub reader: Reader,
    begin: Begin,
    pub parts: BTreeMap<u32, Part>,
    /// Whether all partitions have switched to the reader's data.
    pub settled: bool,
    /// Partitions whose frames the client has not taken yet, in order.
    pub taking: VecDeque<PartitionId>,
    /// The cursor that the client was given last.
    given: BTreeMap<u32, Position>,
    /// R7: whether the client may not know where the table is cut.
    pub veiled: bool,
    pub whole: Whole,
    /// The device that has gone though not every owner has heard of it; none = the client is there.
    pub leaving: Option<NetId>,
    /// R3: whether the client was given a cursor since every owner has answered; without an endpoint nobody asks.
    pub confirmed: bool,
}

/// What a frame means.
pub(super) enum Heard {
    /// Nothing new, or nothing yet.
    Nothing,
    /// Something is missing.
    Gap,
    /// The query is over.
    Ended(Refusal),
    /// The client hears this; none: only that it is up to date.
    Event(Option<Event>),
}

impl Part {
    /// What the client has of it counts no more: it is asked for everything.
    pub fn begin_anew(&mut self) {
        (self.begin, self.cursor, self.unread) = (From::Everything, None, false);
    }
}

impl Watched {
    pub fn new(watch: Watch, reader: Reader, begin: Begin) -> Watched {
        let given = match &begin {
            Begin::After(cursor) => cursor.clone(),
            Begin::Everything | Begin::Nothing => BTreeMap::new(),
        };
        let (parts, taking, whole) = (BTreeMap::new(), VecDeque::new(), Whole::default());
        let (leaving, confirmed) = (None, watch.endpoint.is_none());
        Watched { watch, reader, begin, parts, settled: true, taking, given, veiled: false, whole, leaving, confirmed }
    }

    /// The state of a partition that the query did not know; its parents may have been known (R1).
    pub fn born(&self, entry: &Partition, old: &BTreeMap<u32, Part>) -> Part {
        let after = |known: &dyn Fn(u32) -> Option<Position>| {
            let of = |number: u32| known(number).map(|at| (PartitionId { table: self.watch.table, number }, at));
            match of(entry.number) {
                Some(own) => Some(vec![own]),
                None if entry.parents.is_empty() => None,
                None => entry.parents.iter().map(|parent| of(*parent)).collect(),
            }
        };
        // Only rows of the present data can be gone on from.
        let current = |number: u32| old.get(&number).filter(|part| part.epoch == self.reader.epoch)?.cursor;
        let begin = match (&self.begin, old.is_empty()) {
            (_, false) => after(&current).map_or(From::Everything, From::After),
            (Begin::Everything, true) => From::Everything,
            (Begin::Nothing, true) => From::Nothing,
            (Begin::After(cursor), true) => {
                after(&|number| cursor.get(&number).copied()).map_or(From::Everything, From::After)
            }
        };
        let cursor = match &self.begin {
            Begin::After(cursor) if old.is_empty() => cursor.get(&entry.number).copied(),
            _ => None,
        };
        Part {
            start: entry.start.clone(),
            end: entry.end.clone(),
            begin,
            unread: true,
            cursor,
            chain: Position::ZERO,
            epoch: self.reader.epoch,
            installation: 0,
            live: false,
            answered: false,
            named: false,
            term: Term::default(),
            asked: Mono(0),
            heard: Mono(0),
            pieces: None,
            early: BTreeMap::new(),
        }
    }

    /// What a partition's owner is asked.
    pub fn install(&mut self, now: Now, query: QueryId, partition: PartitionId, window: u32) -> Option<Install> {
        let part = self.parts.get_mut(&partition.number)?;
        part.installation += 1;
        (part.live, part.named, part.asked, part.pieces) = (false, false, now.mono, None);
        part.early.clear();
        let installation = part.installation;
        let from = match part.cursor {
            // What the client has was seen with other data: it is replaced.
            _ if part.epoch != self.reader.epoch => From::Everything,
            Some(cursor) => From::After(vec![(partition, cursor)]),
            None => part.begin.clone(),
        };
        // What goes on from other partitions, or from nothing, begins its own chain.
        part.chain = part.cursor.filter(|_| matches!(from, From::After(_))).unwrap_or_default();
        let first = part.unread && part.cursor.is_none() && matches!(from, From::Everything);
        Some(Install {
            query,
            partition,
            installation,
            ask: self.watch.ask.clone(),
            reader: self.reader.clone(),
            newer_than: self.watch.newer_than.filter(|_| first),
            from,
            window,
            endpoint: self.watch.endpoint.clone(),
        })
    }

    /// A piece that came before its turn, if it is its turn now.
    pub fn next_piece(&mut self, partition: PartitionId) -> Option<Frame> {
        let part = self.parts.get_mut(&partition.number)?;
        let (.., next) = part.pieces?;
        part.early.remove(&next)
    }

    pub fn hear(&mut self, now: Now, frame: Frame, window: usize, gaps: bool) -> Heard {
        let part = self.parts.get_mut(&frame.partition.number);
        let Some(part) = part.filter(|part| part.installation == frame.installation) else { return Heard::Nothing };
        if let Body::Ended(refusal) = frame.body {
            part.live = false;
            return match refusal.is_passing() {
                true => Heard::Nothing,
                false => Heard::Ended(refusal),
            };
        }
        // Of older data than the client has been told of, or of newer than it has: the one is late, the other cannot be.
        if frame.epoch < part.epoch || frame.epoch > self.reader.epoch {
            return Heard::Nothing;
        }
        // One installation that two owners answer, since it came twice: only one of them goes on.
        if part.live && frame.term != part.term {
            return if frame.term > part.term { Heard::Gap } else { Heard::Nothing };
        }
        let reset = matches!(frame.body, Body::Snapshot(_));
        let newer = frame.epoch > part.epoch;
        if gaps {
            let known = part.cursor.filter(|_| !newer);
            let again = part.live && part.pieces.is_none() && known.is_some_and(|cursor| frame.position <= cursor);
            if again || known.is_some_and(|cursor| frame.position < cursor) {
                return Heard::Nothing;
            }
            let identity = (frame.previous, frame.position, frame.epoch);
            let expected = part.pieces.is_some_and(|(previous, position, epoch, piece)| {
                (previous, position, epoch, piece) == (identity.0, identity.1, identity.2, frame.piece)
            });
            // R3: a frame between the last one and this was lost, or this one goes on from an earlier picture than the
            // client has: a record that came and went since then would stay. R4: or the switch to other data was lost.
            let follows = frame.previous == part.chain && frame.previous_epoch == part.epoch;
            let missing = !follows && matches!(frame.body, Body::Changes(_));
            let begins = !part.live && part.pieces.is_none();
            let waits = part.pieces.map_or(begins, |(previous, position, epoch, piece)| {
                (previous, position, epoch) == identity && piece < frame.piece
            });
            if frame.piece > 0 && !expected && waits && part.early.len() < window {
                part.early.insert(frame.piece, frame);
                return Heard::Nothing;
            }
            if missing || frame.piece > 0 && !expected {
                return if part.live { Heard::Gap } else { Heard::Nothing };
            }
        }
        (part.heard, part.live, part.term) = (now.mono, true, frame.term);
        part.answered = true;
        let first = frame.piece == 0;
        match frame.more {
            true => part.pieces = Some((frame.previous, frame.position, frame.epoch, frame.piece + 1)),
            false => {
                (part.pieces, part.chain) = (None, frame.position);
                part.cursor = part.cursor.filter(|_| !newer && !reset).max(Some(frame.position));
                part.epoch = frame.epoch;
            }
        }
        Heard::Event(match frame.body {
            Body::Changes(changes) if changes.is_empty() => None,
            Body::Changes(changes) => Some(Event::Changes(changes)),
            Body::Snapshot(rows) => {
                let (start, end, last) = (part.start.clone(), part.end.clone(), !frame.more);
                Some(Event::Reset { start, end, rows, first, last })
            }
            Body::Dirty => Some(Event::Again),
            Body::Ended(_) => None,
        })
    }

    /// The first cursor, as soon as every partition has answered: whoever begins with nothing could not go on without it.
    pub fn first_cursor(&mut self) -> Option<Cursor> {
        if self.given.is_empty() || !self.confirmed { self.cursor() } else { None }
    }

    /// R4: a cursor that begins with everything, for a client whose cursor is of other data than those that its rows will be of,
    /// one partition after the other. Whoever came back with that cursor and those data would keep rows of both.
    pub fn no_cursor(&mut self) -> Option<Cursor> {
        let given = !std::mem::take(&mut self.given).is_empty();
        (given || self.begins_anew()).then(|| self.cursor_to(BTreeMap::new()))
    }

    /// Whether the client came with a cursor that says nothing here.
    pub fn begins_anew(&self) -> bool {
        matches!((&self.watch.start, &self.begin), (Start::Cursor(_), Begin::Everything))
    }

    /// A cursor, if the client has been told something since the last.
    pub fn cursor(&mut self) -> Option<Cursor> {
        let epoch = self.reader.epoch;
        let part =
            |(number, part): (&u32, &Part)| part.cursor.filter(|_| part.epoch == epoch).map(|cursor| (*number, cursor));
        // R7: what is held is told behind rows that have not all come.
        if !self.whole.is_idle() || self.leaving.is_some() {
            return None;
        }
        // R3: a device may leave as soon as it has a cursor. An owner that has not answered would not know of it.
        if !self.confirmed && !self.parts.values().all(|part| part.answered) {
            return None;
        }
        let positions: BTreeMap<u32, Position> = self.parts.iter().map(part).collect::<Option<_>>()?;
        if positions == self.given && self.confirmed {
            return None;
        }
        self.given.clone_from(&positions);
        self.confirmed = true;
        Some(self.cursor_to(positions))
    }

    fn cursor_to(&self, positions: BTreeMap<u32, Position>) -> Cursor {
        let reader = hash_of_reader(&self.reader.data, &self.reader.claims);
        let (table, ask, epoch) = (self.watch.table, hash_of_ask(&self.watch.ask), self.reader.epoch);
        Cursor { table, ask, reader, epoch, positions }
    }
}
