//! Writes on their way: the rows they need, the commit they are part of, their answers (R2, R6).

use super::deciding::{Decider, Verdict};
use super::load::SAID;
use super::log::Changed;
use super::opening::Meta;
use super::partition::Partition;
use super::{Output, Processor, Shared, Step, StoreReply, StoreResult, Timer, answer};
use crate::calls::{Answer, Caller, Condition, Update, Write};
use crate::mutant::Mutant;
use crate::names::{NetId, OperationId, PartitionId, Position, RequestId};
use crate::record;
use crate::refusal::Refusal;
use crate::rows;
use bytes::{BufMut, Bytes};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{Class, Mono, Now, Outbox};
use tidings_predicate::{Key, Meter, Predicate};
use tidings_wire::v1;

/// Outcomes of one client that are looked after, for the day it acknowledges them; the rest stays until a later sweep.
const REMEMBERED: usize = 2 * crate::calls::MAX_OUTSTANDING as usize;
/// Clients whose outcomes are looked after in one partition.
const CLIENTS: usize = 100_000;
/// Marks of deletions that are removed with one commit, and as many watermarks.
const COLLECTED: usize = 256;
/// Outcomes of clients that are gone that are removed with one commit, apart from the last client's.
const FORGOTTEN: usize = 256;

/// A write that waits for its turn.
#[derive(Debug)]
pub(super) struct Waiting {
    pub request: RequestId,
    pub caller: Box<Caller>,
    pub write: Box<Write>,
    /// R6: what the operation is, so that its id cannot stand for another.
    pub hash: u128,
    pub deadline: Mono,
    /// Why the table, as it is now, does not take it. Whether it has taken it before is looked at first.
    pub refused: Option<Refusal>,
}

/// A client of a partition.
#[derive(Debug, Default)]
pub(super) struct Client {
    /// The rows of its outcomes, by their numbers.
    pub outcomes: BTreeMap<u64, Bytes>,
    /// When it was heard of last.
    pub heard: Mono,
}

/// Operations that are decided and written together.
#[derive(Debug, Default)]
pub(super) struct Commit {
    /// Rows as they are after it, with the timestamp of the change; none = gone.
    pub rows: BTreeMap<Bytes, (u64, Option<Bytes>)>,
    /// Those of them that the store may have otherwise by now: marks of deletions that are taken away if nothing was written
    /// over them, watermarks of clients that are gone.
    pub collected: BTreeSet<Bytes>,
    /// R6: what clients had acknowledged in whiles that are long past, by row: columns and numbers.
    pub unheard: BTreeMap<Bytes, Vec<(Bytes, u64)>>,
    /// Outcomes of clients that are gone, among them.
    pub forgotten: usize,
    pub changes: Vec<Changed>,
    pub answers: Vec<(RequestId, Result<Answer, Refusal>)>,
    pub outcomes: Vec<(OperationId, Bytes)>,
    pub position: Position,
    pub records: u64,
    pub bytes: u64,
    /// What its rows weigh.
    pub weight: usize,
    /// Whether the store did not say that it happened: it is written again.
    pub failed: bool,
}

impl Waiting {
    /// The rows that have to be known before it is decided.
    fn needs(&self) -> Vec<Bytes> {
        let Write { key, op, condition, .. } = &*self.write;
        let mut needs = vec![rows::record(key)];
        if let Some(op) = op {
            let of = |seq| rows::outcome(key, OperationId { seq, ..op.id });
            needs.extend([of(op.id.seq), rows::acked(op.id.netid)]);
            needs.extend(op.after.map(of));
            if let Condition::Operation(seq) = condition {
                needs.push(of(*seq));
            }
        }
        needs
    }
}

impl Processor {
    pub(super) fn write(
        &mut self,
        now: Now,
        request: RequestId,
        id: PartitionId,
        caller: Box<Caller>,
        write: Box<Write>,
        out: &mut Outbox<Output>,
    ) {
        let (Some(table), Some(partition)) = (self.tables.get(&id.table), self.partitions.get_mut(&id)) else {
            return answer(request, Err(Refusal::Moved), out);
        };
        let unchecked = self.shared.is(Mutant::LiveUnchecked);
        let named = |()| table.properties.check_named(&write.key);
        if let Err(refusal) = check(&write).and_then(named) {
            return answer(request, Err(refusal), out);
        }
        let refused = match &write.change {
            // R9: whom a record is shown to must not change by itself, or live queries would not tell it.
            Update::Put { predicate, .. } if !predicate.is_empty() => {
                let compiled = Predicate::compile(predicate, &table.strict);
                compiled.and_then(|it| if unchecked { Ok(()) } else { it.check_live() }).err().map(Refusal::from)
            }
            _ => None,
        };
        // R6: what has a name may have been decided when the table was another.
        if let (Some(refusal), None) = (&refused, &write.op) {
            return answer(request, Err(refusal.clone()), out);
        }
        if !partition.contains(&write.key) {
            return answer(request, Err(Refusal::Moved), out);
        }
        if partition.queue.len() + partition.parked.len() >= self.shared.options.queue {
            return answer(request, Err(Refusal::Busy), out);
        }
        let deadline = write.deadline.unwrap_or(now.mono + self.shared.options.patience);
        let waiting = Waiting { request, caller, hash: fingerprint(&write), write, deadline, refused };
        need(&mut self.shared, partition, &waiting, out);
        partition.queue.push_back(waiting);
        self.pump(now, id, out);
    }

    /// A row that writes wait for has come.
    pub(super) fn loaded(
        &mut self,
        now: Now,
        id: PartitionId,
        row: Bytes,
        result: StoreResult,
        out: &mut Outbox<Output>,
    ) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        match result {
            Ok(StoreReply::Row(found)) => {
                partition.loading.remove(&row);
                // A commit may have changed the row since it was read.
                if !partition.rows.knows(&row) {
                    partition.rows.put(row, found.as_ref().and_then(rows::found));
                }
            }
            _ => {
                // It is asked again until it answers, or until the lease is lost: nobody else can.
                partition.loading.remove(&row);
                self.shared.timers.set(Timer::Retry(id), now.mono + self.shared.options.retry);
                return;
            }
        }
        self.pump(now, id, out);
        self.wio_moved(now, id, out);
    }

    /// Begins a commit if none is under way and something can be decided.
    pub(super) fn pump(&mut self, now: Now, id: PartitionId, out: &mut Outbox<Output>) {
        let (Some(table), Some(partition)) = (self.tables.get(&id.table), self.partitions.get_mut(&id)) else { return };
        if partition.commit.is_some() || !partition.is_open() {
            return;
        }
        let mut commit = Commit {
            position: partition.position,
            records: partition.records,
            bytes: partition.bytes,
            ..Commit::default()
        };
        let options = &self.shared.options;
        let (most, weight, steps, meter) = (options.batch, options.batch_bytes, options.steps, Meter::default());
        while commit.answers.len() < most && commit.weight < weight && meter.steps() < steps {
            let Some(next) = partition.queue.front() else { break };
            if !next.needs().iter().all(|row| commit.rows.contains_key(row) || partition.rows.knows(row)) {
                break;
            }
            let Some(next) = partition.queue.pop_front() else { break };
            let mutant = self.shared.options.mutant;
            let writers = &mut self.shared.writers;
            let a_while = self.shared.options.a_while();
            let decider = Decider {
                partition: &mut *partition,
                commit: &mut commit,
                table,
                writers,
                now,
                meter: &meter,
                a_while,
                mutant,
            };
            match decider.decide(&next) {
                Verdict::Answer(decided) => commit.answers.push((next.request, decided)),
                Verdict::Wait => {
                    let first = self.shared.timers.at(&Timer::Waited(id)).unwrap_or(Mono::NEVER);
                    self.shared.timers.set(Timer::Waited(id), first.min(next.deadline));
                    partition.parked.push(next);
                }
            }
        }
        if let Some(next) = partition.queue.pop_front() {
            // What was forgotten again in between is asked for again.
            need(&mut self.shared, partition, &next, out);
            partition.queue.push_front(next);
        }
        if commit.rows.is_empty() {
            // No commit goes on with those that there was no time for.
            if meter.steps() >= steps && !partition.queue.is_empty() {
                self.shared.timers.set(Timer::Deciding(id), now.mono);
            }
            let guard = self.shared.guard(partition);
            for (request, answer) in commit.answers {
                out.put(Output::Answer { request, guard, answer });
            }
            return;
        }
        collect(partition, &mut commit);
        forget(partition, &mut commit, now, self.shared.options.outcomes);
        partition.commit = Some(commit);
        self.commit_again(id, out);
    }

    /// Writes the commit that is under way; the same bytes whenever it is repeated, so that it happens once.
    pub(super) fn commit_again(&mut self, id: PartitionId, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let Some(commit) = &mut partition.commit else { return };
        commit.failed = false;
        let position = commit.position;
        let mut writes: Vec<v1::RowWrite> = Vec::with_capacity(commit.rows.len() + 1);
        let mut apart = Vec::new();
        let (renews, a_while) = (!self.shared.is(Mutant::WatermarkAged), self.shared.options.a_while());
        let mut unheard = commit.unheard.clone();
        let gone = |(column, timestamp)| v1::Cell { column, timestamp, value: None };
        for (row, (timestamp, value)) in &commit.rows {
            let mut cells = vec![match value {
                Some(heard) if renews && rows::is_acked(row) => rows::watermark(*timestamp, heard.clone(), a_while),
                _ => rows::cell(*timestamp, value.clone()),
            }];
            cells.extend(unheard.remove(row).into_iter().flatten().map(gone));
            let write = v1::RowWrite { row: row.clone(), cells };
            let is_apart = self.shared.is(Mutant::OutcomeApart) && row.first() == Some(&b'o');
            if is_apart { apart.push(write) } else { writes.push(write) }
        }
        let unheard = unheard.into_iter();
        writes.extend(unheard.map(|(row, all)| v1::RowWrite { row, cells: all.into_iter().map(gone).collect() }));
        let (records, bytes, estimated) = (commit.records, commit.bytes, partition.estimated);
        let cell = Meta { position, records, bytes, estimated }.cell();
        writes.push(v1::RowWrite { row: rows::meta(id.number), cells: vec![cell] });
        let fenced = !self.shared.is(Mutant::NoFence);
        let request = partition.apply(writes, fenced);
        let aside = (!apart.is_empty()).then(|| partition.apply(apart, fenced));
        self.shared.store(Step::Committing(id, position), request, out);
        if let Some(aside) = aside {
            self.shared.store(Step::Aside(id), aside, out);
        }
    }

    pub(super) fn committed(
        &mut self,
        now: Now,
        id: PartitionId,
        position: Position,
        result: StoreResult,
        out: &mut Outbox<Output>,
    ) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let Some(commit) = partition.commit.as_mut().filter(|commit| commit.position == position) else { return };
        match result {
            Ok(_) => {}
            // It can never happen as it is: nothing has changed.
            Err(error) if error.class == Class::Invalid => {
                let commit = partition.commit.take().unwrap_or_default();
                partition.correct();
                let refusal = Refusal::Store(error.to_string());
                commit.answers.into_iter().for_each(|(request, _)| answer(request, Err(refusal.clone()), out));
                return self.pump(now, id, out);
            }
            Err(_) => {
                commit.failed = true;
                self.shared.timers.set(Timer::Retry(id), now.mono + self.shared.options.retry);
                return;
            }
        }
        let Some(commit) = partition.commit.take() else { return };
        partition.position = commit.position;
        (partition.records, partition.bytes) = (commit.records, commit.bytes);
        partition.correct();
        if !commit.changes.is_empty() {
            partition.origin.clear();
        }
        if commit.changes.iter().any(|change| change.after.columns.is_none()) {
            partition.collecting.mark();
        }
        for (row, (timestamp, value)) in commit.rows {
            // The store knows whether it was still the mark that went; here it is not known any more.
            match commit.collected.contains(&row) {
                true => partition.rows.forget(&row),
                false => partition.rows.put(row, value.map(|value| (timestamp, value))),
            }
        }
        commit.unheard.keys().for_each(|row| partition.rows.forget(row));
        for (op, row) in commit.outcomes {
            remember(&mut partition.clients, now.mono, op, row);
        }
        let guard = self.shared.guard(partition);
        for (request, answer) in commit.answers {
            out.put(Output::Answer { request, guard, answer });
        }
        // What waited for these operations is looked at again; what still has to wait is parked again.
        partition.queue.extend(partition.parked.drain(..));
        self.changed(now, id, commit.changes, out);
        self.grow(now, id, out);
        self.wio_moved(now, id, out);
        self.pump(now, id, out);
    }

    /// Operations that waited too long for those they follow are refused; the client repeats them.
    pub(super) fn waited(&mut self, now: Now, id: PartitionId, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let late = partition.parked.extract_if(.., |waiting| waiting.deadline <= now.mono);
        late.for_each(|waiting| answer(waiting.request, Err(Refusal::Waited), out));
        if let Some(next) = partition.parked.iter().map(|waiting| waiting.deadline).min() {
            self.shared.timers.set(Timer::Waited(id), next);
        }
        self.wio_late(now, id, out);
    }

    /// Outcomes that former owners wrote: they are forgotten when their clients acknowledge them.
    pub(super) fn swept(&mut self, now: Now, id: PartitionId, result: StoreResult, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let Ok(StoreReply::Rows(found)) = result else { return };
        for row in &found.rows {
            if let Some(op) = rows::operation_of(&row.row) {
                remember(&mut partition.clients, now.mono, op, row.row.clone());
            }
        }
        if let Some(next) = found.next {
            let (_, end) = rows::outcomes(None, partition.owned.entry.end.as_ref());
            let request = partition.scan(next, end, self.shared.options.page);
            self.shared.store(Step::Sweeping(id), request, out);
        }
    }

    /// Says where a large partition could be cut; again after a while, since a cut may have come to nothing.
    pub(super) fn grow(&mut self, now: Now, id: PartitionId, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        if now.mono < partition.grown || partition.bytes < self.shared.options.grown {
            return;
        }
        // The middle of what is used: splits follow size and load. Bounds are told to more than may read the record behind
        // one: they are no longer than they must be.
        let middle = partition.rows.middle(b'r').and_then(|[left, right]| rows::key_of(left).zip(rows::key_of(right)));
        if let Some((left, right)) = middle {
            partition.grown = now.mono + SAID;
            out.put(Output::Grown { partition: id, at: rows::between(&left, &right) });
        }
    }
}

/// Marks of deletions that a scan has met and that are old enough go with a commit.
pub(super) fn collect(partition: &mut Partition, commit: &mut Commit) {
    let old = partition.expired.len().min(COLLECTED);
    for (row, version) in partition.expired.drain(..old) {
        // At the version of the mark itself: a record that was written since stays.
        if let Entry::Vacant(free) = commit.rows.entry(row) {
            commit.collected.insert(free.key().clone());
            free.insert((version, None));
            // Clocks differ: what the log still has may be older than it should.
            partition.log.let_go(Position::from_u64(version).unwrap_or_default());
        }
    }
    let old = partition.unheard.len().min(COLLECTED);
    for (row, column, number) in partition.unheard.drain(..old) {
        commit.unheard.entry(row).or_default().push((column, number));
    }
}

/// Asks for the rows that a write needs and that are not known.
fn need(shared: &mut Shared, partition: &mut Partition, waiting: &Waiting, out: &mut Outbox<Output>) {
    for row in waiting.needs() {
        load(shared, partition, row, out);
    }
}

/// Asks for a row, unless it is known or on its way.
pub(super) fn load(shared: &mut Shared, partition: &mut Partition, row: Bytes, out: &mut Outbox<Output>) {
    if !partition.rows.knows(&row) && partition.loading.insert(row.clone()) {
        let request = partition.get(row.clone());
        shared.store(Step::Row(partition.id, row), request, out);
    }
}

fn remember(clients: &mut BTreeMap<NetId, Client>, now: Mono, op: OperationId, row: Bytes) {
    if clients.len() >= CLIENTS && !clients.contains_key(&op.netid) {
        return;
    }
    let client = clients.entry(op.netid).or_default();
    client.heard = now;
    if client.outcomes.len() < REMEMBERED {
        client.outcomes.insert(op.seq, row);
    }
}

/// Outcomes of clients that are gone go with the next commit. R6: what they might still repeat is below their watermark from
/// then on, and never new.
pub(super) fn forget(partition: &mut Partition, commit: &mut Commit, now: Now, keep: Duration) {
    while commit.forgotten < FORGOTTEN {
        let Some(netid) = partition.gone.pop() else { return };
        let back = commit.outcomes.iter().any(|(op, _)| op.netid == netid);
        let gone = |client: &Client| !back && now.mono.since(client.heard) > keep;
        let Some(client) = partition.clients.get_mut(&netid).filter(|client| gone(client)) else { continue };
        let outcomes = std::mem::take(&mut client.outcomes);
        partition.clients.remove(&netid);
        let Some((last, _)) = outcomes.last_key_value() else { continue };
        let acked = rows::acked(netid);
        // Others may have written a larger number, which stays: what the row is then is not known here.
        commit.collected.insert(acked.clone());
        commit.rows.entry(acked).or_insert((last + 1, Some(rows::heard(now.wall))));
        commit.forgotten += outcomes.len();
        for row in outcomes.into_values() {
            commit.rows.entry(row).or_insert((commit.position.get(), None));
        }
    }
}

/// What is wrong with a write whatever the table holds.
fn check(write: &Write) -> Result<(), Refusal> {
    record::check_key(&write.key)?;
    match &write.change {
        Update::Put { columns, predicate } => record::check_columns(columns, predicate)?,
        Update::Patch { set, .. } => record::check_columns(set, "")?,
        Update::Delete => {}
    }
    let op = write.op.as_ref();
    if matches!(write.condition, Condition::Operation(_)) && op.is_none() {
        return Err(Refusal::Invalid("Only an operation can depend on an operation.".to_owned()));
    }
    let Some(op) = op else { return Ok(()) };
    let seq = op.id.seq;
    if seq == 0 || seq >= 1 << 62 || op.acked_through >= seq || op.after.is_some_and(|after| after >= seq) {
        return Err(Refusal::Invalid("Operations are numbered from 1, and follow earlier ones.".to_owned()));
    }
    match seq - op.acked_through > crate::calls::MAX_OUTSTANDING {
        true => Err(Refusal::Outstanding),
        false => Ok(()),
    }
}

/// R6: tells operations apart: everything that decides what they do.
fn fingerprint(write: &Write) -> u128 {
    fn put(bytes: &[u8], out: &mut Vec<u8>) {
        out.put_u32(bytes.len() as u32);
        out.put_slice(bytes);
    }
    let mut all = Vec::new();
    put(&rows::record(&write.key), &mut all);
    match &write.change {
        Update::Put { columns, predicate } => {
            all.push(0);
            put(columns.as_bytes(), &mut all);
            put(predicate.as_bytes(), &mut all);
        }
        Update::Patch { set, unset } => {
            all.push(1);
            put(set.as_bytes(), &mut all);
            unset.iter().for_each(|name| put(name.as_bytes(), &mut all));
        }
        Update::Delete => all.push(2),
    }
    match write.condition {
        Condition::Blind => all.push(0),
        Condition::Version(version) => {
            all.push(1);
            all.put_u64(version.get());
        }
        Condition::Operation(seq) => {
            all.push(2);
            all.put_u64(seq);
        }
    }
    xxhash_rust::xxh3::xxh3_128(&all)
}

/// The row of an outcome that a read waits for.
pub(super) fn outcome_row(key: &Key, netid: NetId, seq: u64) -> Bytes {
    rows::outcome(key, OperationId { netid, seq })
}
