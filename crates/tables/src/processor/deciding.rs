//! Decides one write after the other over what is committed and what the commit already holds (§4.2, R6, R7).

use super::cache::Cell;
use super::log::Changed;
use super::partition::Partition;
use super::tables::{Table, To, Writers};
use super::writing::{Commit, Waiting};
use crate::calls::{Access, Answer, Condition, Conflict, Operation, Outcome, Update, Write};
use crate::mutant::{self, Mutant};
use crate::names::{OperationId, Position, Term};
use crate::record::{self, Record};
use crate::refusal::Refusal;
use crate::rows;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Now;
use tidings_predicate::{Meter, Packed, Scope, TooSlow, Value};

/// Outcomes that are forgotten with one operation.
const PRUNED: usize = 64;

/// What became of a write.
pub(super) enum Verdict {
    /// It is decided; the answer leaves with the commit.
    Answer(Result<Answer, Refusal>),
    /// It waits for an operation that it follows.
    Wait,
}

/// Everything a decision looks at.
pub(super) struct Decider<'a> {
    pub partition: &'a mut Partition,
    pub commit: &'a mut Commit,
    pub table: &'a Table,
    pub writers: &'a mut Writers,
    pub now: Now,
    /// Counts the steps of what is evaluated.
    pub meter: &'a Meter,
    /// R6: a watermark is renewed once in each while in which its client is heard of.
    pub a_while: Duration,
    pub mutant: Option<Mutant>,
}

/// A record as a change leaves it.
type Next = Option<(Packed, Arc<str>)>;

impl Decider<'_> {
    pub fn decide(mut self, waiting: &Waiting) -> Verdict {
        let Some(op) = waiting.write.op else {
            let decided = self.outcome(waiting, None).map(Answer::Written);
            return Verdict::Answer(decided);
        };
        if let Some(known) = self.known(waiting, op) {
            return Verdict::Answer(known.map(Answer::Written));
        }
        if let Some(refusal) = &waiting.refused {
            return Verdict::Answer(Err(refusal.clone()));
        }
        if op.after.is_some_and(|after| self.awaits(waiting, op, after)) {
            return Verdict::Wait;
        }
        let decided = self.outcome(waiting, Some(op));
        Verdict::Answer(decided.map(Answer::Written))
    }

    fn is(&self, mutant: Mutant) -> bool {
        mutant::is(self.mutant, mutant)
    }

    fn cell(&mut self, row: &Bytes) -> Cell {
        match self.commit.rows.get(row) {
            Some((timestamp, value)) => value.clone().map(|value| (*timestamp, value)),
            None => self.partition.rows.get(row).cloned().flatten(),
        }
    }

    fn recorded(&mut self, waiting: &Waiting, id: OperationId) -> Option<Recorded> {
        let (_, value) = self.cell(&rows::outcome(&waiting.write.key, id))?;
        Recorded::decode(&value)
    }

    /// Up to which number the client has acknowledged outcomes.
    fn acked(&mut self, op: Operation) -> u64 {
        self.cell(&rows::acked(op.id.netid)).map_or(0, |(timestamp, _)| timestamp - 1)
    }

    /// R6: an operation that was decided before is not decided again.
    fn known(&mut self, waiting: &Waiting, op: Operation) -> Option<Result<Outcome, Refusal>> {
        if self.is(Mutant::OutcomeForgotten) {
            return None;
        }
        if let Some(recorded) = self.recorded(waiting, op.id) {
            if recorded.hash != waiting.hash && !self.is(Mutant::ForkIgnored) {
                return Some(Err(Refusal::Forked));
            }
            return Some(Ok(match recorded.what {
                Told::Done(version) => Outcome::Done { version },
                Told::Conflict => {
                    let current = self.current(&waiting.write);
                    Outcome::Conflict(self.conflict(waiting, current.as_deref()))
                }
                Told::Predecessor => Outcome::Conflict(Conflict::Predecessor),
                Told::Refused(refusal) => Outcome::Refused(refusal),
            }));
        }
        let below = op.id.seq <= self.acked(op);
        (below && !self.is(Mutant::WatermarkIgnored)).then_some(Err(Refusal::OutcomeUnknown))
    }

    /// Whether the operation before this one on its key is still to come.
    fn awaits(&mut self, waiting: &Waiting, op: Operation, after: u64) -> bool {
        let before = OperationId { seq: after, ..op.id };
        let come = after <= op.acked_through || after <= self.acked(op) || self.recorded(waiting, before).is_some();
        !come && !self.is(Mutant::OrderIgnored)
    }

    /// The record as it is, if there is one.
    fn current(&mut self, write: &Write) -> Option<Arc<Record>> {
        self.there(write).filter(|record| record.columns.is_some()).map(Arc::new)
    }

    /// What lies there: a record, or the mark of its deletion.
    fn there(&mut self, write: &Write) -> Option<Record> {
        let (version, value) = self.cell(&rows::record(&write.key))?;
        Record::decode(version, &value)
    }

    fn shown(&mut self, waiting: &Waiting, record: &Record) -> bool {
        let (data, claims) = (&waiting.write.data, &waiting.caller.claims);
        let to = To { data, claims, query: None, now: Some(self.now.wall), meter: Some(self.meter) };
        self.writers.shows(&waiting.write.key, record, &to) == Ok(true)
    }

    /// R7: what stands in the way is shown only to whom its writer shows it.
    fn conflict(&mut self, waiting: &Waiting, current: Option<&Record>) -> Conflict {
        let Some(current) = current else { return Conflict::Absent };
        let shown = self.is(Mutant::ConflictShown) || self.shown(waiting, current);
        match current.visible(&waiting.write.key).filter(|_| shown) {
            Some(theirs) => Conflict::Theirs(Box::new(theirs)),
            None => Conflict::Hidden,
        }
    }

    /// Whether the condition of a write holds; otherwise why not.
    fn condition(&mut self, waiting: &Waiting, current: Option<&Record>) -> Result<(), Conflict> {
        let version = current.map_or(Position::ZERO, |current| current.version);
        let holds = match (waiting.write.condition, waiting.write.op) {
            (Condition::Blind, _) => true,
            (Condition::Version(wanted), _) => wanted == version,
            (Condition::Operation(seq), Some(op)) => self.made(waiting, op, seq)?,
            (Condition::Operation(_), None) => return Err(Conflict::Predecessor),
        };
        if !holds {
            return Err(self.conflict(waiting, current));
        }
        match (&waiting.write.change, current) {
            (Update::Patch { .. }, None) => Err(Conflict::Absent),
            (Update::Patch { .. }, Some(current)) if !self.shown(waiting, current) => Err(Conflict::Hidden),
            _ => Ok(()),
        }
    }

    /// R6: whether the record is as an earlier operation of the same client left it, be that its deletion.
    fn made(&mut self, waiting: &Waiting, op: Operation, seq: u64) -> Result<bool, Conflict> {
        let id = OperationId { seq, ..op.id };
        let there = self.there(&waiting.write);
        match self.recorded(waiting, id).map(|recorded| recorded.what) {
            Some(Told::Done(version)) => Ok(there.is_some_and(|there| there.version == version)),
            // What depends on something that failed fails as well.
            Some(_) => Err(Conflict::Predecessor),
            // Its outcome was acknowledged and forgotten: the record itself says who made it.
            None if seq <= op.acked_through.max(self.acked(op)) => Ok(there.is_some_and(|there| there.op == Some(id))),
            None => Err(Conflict::Predecessor),
        }
    }

    /// Decides, and puts what is to be written into the commit.
    fn outcome(&mut self, waiting: &Waiting, op: Option<Operation>) -> Result<Outcome, Refusal> {
        let current = self.current(&waiting.write);
        let decided = match self.condition(waiting, current.as_deref()) {
            Err(conflict) => Err(Outcome::Conflict(conflict)),
            Ok(()) => self.next(waiting, current.as_deref()).map_err(Outcome::Refused),
        };
        if let (Err(failed), None) = (&decided, op) {
            return Ok(failed.clone());
        }
        let position = self.position()?;
        let outcome = match decided {
            Ok(next) => {
                self.change(waiting, position, current, next);
                Outcome::Done { version: position }
            }
            Err(outcome) => outcome,
        };
        self.commit.position = position;
        if let Some(op) = op {
            self.note(waiting, op, position, &outcome);
        }
        Ok(outcome)
    }

    /// R1: the next position of this partition's history, in this owner's term.
    fn position(&self) -> Result<Position, Refusal> {
        let term = self.partition.owned.entry.term;
        let term = if self.is(Mutant::TermIgnored) { Term::new(1).unwrap_or(term) } else { term };
        let used_up = || Refusal::Store("The positions of this partition are used up: split it.".to_owned());
        Position::new(term, self.commit.position.counter() + 1).ok_or_else(used_up)
    }

    /// The record after the change, if the table's rules allow it.
    fn next(&mut self, waiting: &Waiting, current: Option<&Record>) -> Result<Next, Refusal> {
        let next: Next = match &waiting.write.change {
            Update::Put { columns, predicate } => Some((columns.clone(), predicate.as_str().into())),
            Update::Patch { set, unset } => {
                let old = current.and_then(|current| current.columns.as_ref());
                let columns = record::patched(old.unwrap_or(&Packed::empty()), set, unset)?;
                let predicate = current.map_or_else(|| Arc::from(""), |current| current.predicate.clone());
                record::check_columns(&columns, &predicate)?;
                Some((columns, predicate))
            }
            Update::Delete => None,
        };
        let columns = next.as_ref().map(|(columns, _)| columns);
        // R1: before `may_write`, which would see a record where it cannot be.
        if let Some(columns) = columns {
            self.table.properties.check_placed(&waiting.write.key, columns)?;
        }
        self.may_write(waiting, current, columns)?;
        if let (Some(schema), Some(columns)) = (&self.table.properties.schema, columns) {
            record::check_schema(schema, columns)?;
        }
        let size = next.as_ref().map_or(0, |(columns, predicate)| columns.as_bytes().len() + predicate.len()) as u64;
        let old = current.map_or(0, |current| current.size() as u64);
        let properties = &self.table.properties;
        let more = next.is_some() && current.is_none();
        let many = more && properties.max_records.is_some_and(|most| self.commit.records >= most);
        let large = size > old && properties.max_bytes.is_some_and(|most| self.commit.bytes + size - old > most);
        if many || large { Err(Refusal::Quota) } else { Ok(next) }
    }

    /// `may_write` over old and new; without it only its writer may replace a record in a `user` table.
    fn may_write(&self, waiting: &Waiting, current: Option<&Record>, next: Option<&Packed>) -> Result<(), Refusal> {
        let denied = Err(Refusal::MayNotWrite);
        let Some(rule) = &self.table.may_write else {
            let own = current.is_none_or(|current| current.writer == waiting.caller.user);
            return if self.table.properties.access == Access::User && !own { denied } else { Ok(()) };
        };
        let value = |columns: Option<&Packed>| columns.map_or(Value::Null, Packed::unpack);
        let both = [
            ("old", value(current.and_then(|current| current.columns.as_ref()))),
            ("new", value(next)),
            ("writer", current.map_or(Value::Null, |current| current.writer.as_str().into())),
        ];
        let Ok(both) = Packed::columns(both) else { return denied };
        let scope = Scope::record(&waiting.write.key, &both).read_by(&waiting.write.data, &waiting.caller.claims);
        let scope = scope.at(crate::gather::micros(self.now.wall)).metered(self.meter);
        match rule.holds_in_time(&scope) {
            Ok(true) => Ok(()),
            Ok(false) => denied,
            Err(TooSlow) => Err(Refusal::RuleTooSlow),
        }
    }

    fn change(&mut self, waiting: &Waiting, position: Position, before: Option<Arc<Record>>, next: Next) {
        if before.is_none() && next.is_none() {
            return;
        }
        let caller = &waiting.caller;
        let writer = match caller.is_nobody() {
            // Not the application, though it is in its table.
            true => caller.principal.clone(),
            false if caller.user.is_empty() => caller.app.clone(),
            false => caller.user.clone(),
        };
        let (columns, predicate) = match next {
            Some((columns, predicate)) => (Some(columns), predicate),
            None => (None, Arc::from("")),
        };
        let op = waiting.write.op.map(|op| op.id);
        let after = Record { version: position, time: self.now.wall, writer, predicate, op, columns };
        let commit = &mut *self.commit;
        commit.records =
            (commit.records + u64::from(after.columns.is_some())).saturating_sub(u64::from(before.is_some()));
        let old = before.as_ref().map_or(0, |before| before.size());
        commit.bytes = (commit.bytes + after.size() as u64).saturating_sub(old as u64);
        let (row, value) = (rows::record(&waiting.write.key), after.encode());
        commit.weight += row.len() + value.len();
        commit.rows.insert(row, (position.get(), Some(value)));
        let (key, after) = (waiting.write.key.clone(), Arc::new(after));
        commit.changes.push(Changed { position, key, before, after, at: self.now.mono });
    }

    /// R6: the outcome is part of the commit; what the client has acknowledged goes with it.
    fn note(&mut self, waiting: &Waiting, op: Operation, position: Position, outcome: &Outcome) {
        if !self.is(Mutant::OutcomeForgotten) {
            let row = rows::outcome(&waiting.write.key, op.id);
            let value = Recorded { hash: waiting.hash, what: Told::of(outcome) }.encode();
            self.commit.weight += row.len() + value.len();
            self.commit.rows.insert(row.clone(), (position.get(), Some(value)));
            self.commit.outcomes.push((op.id, row));
        }
        let (row, heard) = (rows::acked(op.id.netid), rows::heard(self.now.wall));
        let (acked, known) = (self.acked(op), self.cell(&row));
        let now = rows::which_while(&heard, self.a_while);
        let renewed = known.is_none_or(|(_, before)| rows::which_while(&before, self.a_while) == now);
        if op.acked_through <= acked && (renewed || self.is(Mutant::WatermarkAged)) {
            return;
        }
        self.commit.rows.insert(row, (op.acked_through.max(acked) + 1, Some(heard)));
        let Some(client) = self.partition.clients.get_mut(&op.id.netid) else { return };
        for _ in 0..PRUNED {
            match client.outcomes.first_entry() {
                Some(first) if *first.key() <= op.acked_through => {
                    self.commit.rows.insert(first.remove(), (position.get(), None));
                }
                _ => break,
            }
        }
    }
}

/// An outcome as it lies in the store.
struct Recorded {
    hash: u128,
    what: Told,
}

/// What is kept of an outcome: a record that stood in the way is looked at again.
enum Told {
    Done(Position),
    Conflict,
    Predecessor,
    Refused(Refusal),
}

impl Told {
    fn of(outcome: &Outcome) -> Told {
        match outcome {
            Outcome::Done { version } => Told::Done(*version),
            Outcome::Conflict(Conflict::Predecessor) => Told::Predecessor,
            Outcome::Conflict(_) => Told::Conflict,
            Outcome::Refused(refusal) => Told::Refused(refusal.clone()),
        }
    }
}

impl Recorded {
    fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(32);
        out.put_u128(self.hash);
        match &self.what {
            Told::Done(version) => {
                out.put_u8(0);
                out.put_u64(version.get());
            }
            Told::Conflict => out.put_u8(1),
            Told::Predecessor => out.put_u8(2),
            Told::Refused(Refusal::Quota) => out.put_u8(3),
            Told::Refused(Refusal::Schema(what)) => {
                out.put_u8(4);
                out.put_slice(what.as_bytes());
            }
            Told::Refused(Refusal::TooLarge) => out.put_u8(5),
            Told::Refused(Refusal::PartitionColumn(what)) => {
                out.put_u8(7);
                out.put_slice(what.as_bytes());
            }
            Told::Refused(Refusal::RuleTooSlow) => out.put_u8(8),
            Told::Refused(Refusal::BadColumns(what)) => {
                out.put_u8(9);
                out.put_slice(what.as_bytes());
            }
            Told::Refused(_) => out.put_u8(6),
        }
        out.freeze()
    }

    fn decode(mut value: &[u8]) -> Option<Recorded> {
        let mut head = value.split_off(..17)?;
        let (hash, kind) = (head.get_u128(), head.get_u8());
        let what = match kind {
            0 => Told::Done(Position::from_u64(value.split_off(..8)?.get_u64())?),
            1 => Told::Conflict,
            2 => Told::Predecessor,
            3 => Told::Refused(Refusal::Quota),
            4 => Told::Refused(Refusal::Schema(String::from_utf8_lossy(value).into_owned())),
            5 => Told::Refused(Refusal::TooLarge),
            6 => Told::Refused(Refusal::MayNotWrite),
            7 => Told::Refused(Refusal::PartitionColumn(String::from_utf8_lossy(value).into_owned())),
            8 => Told::Refused(Refusal::RuleTooSlow),
            9 => Told::Refused(Refusal::BadColumns(String::from_utf8_lossy(value).into_owned())),
            _ => return None,
        };
        Some(Recorded { hash, what })
    }
}
