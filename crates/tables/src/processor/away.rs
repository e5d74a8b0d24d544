//! R3: whoever is away or behind hears through Notify that there is something new, and goes on from its cursor.
//!
//! ```text
//!   commit ─▶ whom does it concern? ─▶ owed ── once a second ──▶ Publish ─▶ Published: done, or owed again
//! ```
//! A query whose client has an endpoint stays when its client goes, without a queue: only the position of the last change that
//! concerned it is kept. Who is away is known to this owner alone; one that takes the partition over knows nobody, and tells
//! everybody who listens to the partition to come again. Where such a query ends for another reason, its client is told with
//! the next change, whatever that is: it is never silence, and a version that was told before says nothing.

use super::sending::over_frame;
use super::{Output, Processor};
use crate::mutant::Mutant;
use crate::names::{NetId, Object, PartitionId, Position, QueryId, TableId};
use crate::refusal::Refusal;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{Mono, Now, Outbox, Wall};
use tidings_predicate::{Packed, Value};

/// Publications of one request to Notify.
const BATCH: usize = 1_024;
/// Queries that one device may leave in a partition, more than an application shows at once: the one that it left first makes room.
const OF_A_DEVICE: usize = 64;
/// Of what the index has little of, those who are away take one part in so many: the rest is for those who are there.
const PARTS: usize = 2;

/// Clients that are away from a partition, and what Notify is still to tell.
#[derive(Debug, Default)]
pub(super) struct Away {
    queries: BTreeMap<QueryId, Gone>,
    /// In the order in which they left, and in which their claims end.
    left: BTreeSet<(Mono, QueryId)>,
    ending: BTreeSet<(Wall, QueryId)>,
    devices: BTreeMap<NetId, BTreeSet<QueryId>>,
    /// Devices whose queries are not known any more, or too many of them: the next change is told to them, or to all.
    forsaken: BTreeSet<NetId>,
    all: bool,
    /// What concerned queries of clients whose connection alone knows whether they may still read: it is owed when they go.
    withheld: BTreeMap<QueryId, Position>,
    /// What is published next.
    owed: BTreeMap<Object, Position>,
    /// What is published now, request after request.
    turn: BTreeMap<Object, Position>,
    under_way: Option<(u64, BTreeMap<Object, Position>)>,
}

/// A query whose client is away.
#[derive(Clone, Copy, Debug)]
struct Gone {
    since: Mono,
    until: Option<Wall>,
    netid: NetId,
}

impl Away {
    pub fn has(&self, query: QueryId) -> bool {
        self.queries.contains_key(&query)
    }

    pub fn queries(&self) -> impl Iterator<Item = QueryId> {
        self.queries.keys().copied()
    }

    fn insert(&mut self, query: QueryId, gone: Gone) {
        self.remove(query);
        self.queries.insert(query, gone);
        self.left.insert((gone.since, query));
        self.ending.extend(gone.until.map(|until| (until, query)));
        self.devices.entry(gone.netid).or_default().insert(query);
    }

    pub fn remove(&mut self, query: QueryId) {
        let Some(gone) = self.queries.remove(&query) else { return };
        self.left.remove(&(gone.since, query));
        if let Some(until) = gone.until {
            self.ending.remove(&(until, query));
        }
        if let Some(queries) = self.devices.get_mut(&gone.netid) {
            queries.remove(&query);
            if queries.is_empty() {
                self.devices.remove(&gone.netid);
            }
        }
    }

    /// Somebody is to be told of a change; none = whoever listens to the partition.
    pub fn owe(&mut self, partition: PartitionId, netid: Option<NetId>, position: Position) {
        let owed = self.owed.entry(Object { partition, netid }).or_default();
        *owed = position.max(*owed);
    }

    /// A change concerned a client that is not to be told of it as long as it is there.
    pub fn withhold(&mut self, query: QueryId, position: Position) {
        self.withheld.insert(query, position);
    }

    /// Nothing is kept of a query.
    pub fn forget(&mut self, query: QueryId) {
        self.remove(query);
        self.withheld.remove(&query);
    }

    /// Something changed: whoever is not known any more may be concerned.
    pub fn changed(&mut self, partition: PartitionId, position: Position) {
        for netid in std::mem::take(&mut self.forsaken) {
            self.owe(partition, Some(netid), position);
        }
        if std::mem::take(&mut self.all) {
            self.owe(partition, None, position);
        }
    }

    fn forsake(&mut self, netid: NetId, most: usize) {
        self.forsaken.insert(netid);
        if self.forsaken.len() > most {
            self.forsaken.clear();
            self.all = true;
        }
    }

    /// The query that a device left first, if it has left too many.
    fn first_beyond(&self, netid: NetId, most: usize) -> Option<QueryId> {
        let queries = self.devices.get(&netid).filter(|queries| queries.len() > most)?;
        queries.iter().copied().min_by_key(|query| self.queries.get(query).map(|gone| gone.since))
    }

    /// A query that may stay no longer: it has been away too long, too many are, or its claims are over.
    fn over(&self, now: Now, away: Duration, most: usize) -> Option<QueryId> {
        let (since, first) = *self.left.first()?;
        if self.left.len() > most || now.mono.since(since) > away {
            return Some(first);
        }
        self.ending.first().filter(|(until, _)| *until <= now.wall).map(|(_, query)| *query)
    }

    /// Whether everybody who listens was told what there was to be told to all.
    pub fn has_told_all(&self) -> bool {
        let under_way = self.under_way.iter().flat_map(|(_, batch)| batch.keys());
        self.owed.keys().chain(self.turn.keys()).chain(under_way).all(|object| object.netid.is_some())
    }

    /// The next publications; with none left, those of the next turn wait for the next second.
    fn next(&mut self) -> Vec<(Object, Position)> {
        let mut batch = Vec::new();
        while batch.len() < BATCH {
            let Some(first) = self.turn.pop_first() else { break };
            batch.push(first);
        }
        batch
    }
}

impl Processor {
    /// A query's client wants no more of it. One that leaves before its query was here knows nothing of what happens here, and
    /// nobody here knows what concerns it: it hears of what is here already, and of the next change. Its gateway says so until it
    /// is answered.
    pub(super) fn removed(
        &mut self,
        now: Now,
        query: QueryId,
        id: PartitionId,
        over: bool,
        netid: Option<NetId>,
        out: &mut Outbox<Output>,
    ) {
        let (most, forgotten) = (self.shared.options.endpoints, self.shared.is(Mutant::AwayForgotten));
        if let (Some(netid), Some(partition)) = (netid, self.partitions.get_mut(&id)) {
            if !partition.feeds.contains_key(&query) && !partition.away.has(query) && !forgotten {
                partition.away.forsake(netid, most);
                if partition.position > Position::ZERO {
                    partition.away.owe(id, Some(netid), partition.position);
                }
            }
            let frame = over_frame(id, partition.owned.entry.term, (0, 0), Refusal::Ended);
            out.put(Output::Frame { query, frame: Box::new(frame) });
        }
        self.gone(now, query, id, over);
    }

    /// A query's client has gone: if Notify is to tell it, the query stays without it. One that is over does not; nobody knows
    /// whether its client has heard that, so it is told, too.
    pub(super) fn gone(&mut self, now: Now, query: QueryId, id: PartitionId, over: bool) {
        let forgotten = self.shared.is(Mutant::AwayForgotten);
        let table = self.tables.get(&id.table);
        let known = table.and_then(|table| table.queries.get(&query));
        let absent = known.and_then(|known| Some((known.endpoint.as_ref()?, known)));
        let Some((absent, known)) = absent.filter(|_| !forgotten) else { return self.remove(query, id) };
        let (doubted, netid, until) = (absent.doubted, absent.netid, expiry(&known.reader.claims));
        let index = known.id;
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        if partition.feeds.remove(&query).is_none() {
            // It is away already, or was never here.
            return;
        }
        partition.busy.remove(&query);
        partition.left(query);
        partition.away.insert(query, Gone { since: now.mono, until, netid });
        let first = partition.away.first_beyond(netid, OF_A_DEVICE);
        let may_stay = !over && !doubted;
        if !may_stay
            || !self
                .tables
                .get_mut(&id.table)
                .is_some_and(|table| index.is_some_and(|index| table.index.keep(index, PARTS)))
        {
            self.dismiss(id, query);
        } else if let Some(first) = first {
            self.dismiss(id, first);
        }
    }

    /// Lets a query go; its client is told with the next change.
    fn dismiss(&mut self, id: PartitionId, query: QueryId) {
        self.forsake(id, query);
        self.remove(query, id);
    }

    /// Nobody will know any more what concerns the client of a query: it hears of what was withheld, and of the next change.
    pub(super) fn forsake(&mut self, id: PartitionId, query: QueryId) {
        let most = self.shared.options.endpoints;
        let known = self.tables.get(&id.table).and_then(|table| table.queries.get(&query));
        let netid = known.and_then(|known| known.endpoint.as_ref()).map(|absent| absent.netid);
        if let (Some(netid), Some(partition)) = (netid, self.partitions.get_mut(&id)) {
            partition.away.forsake(netid, most);
            if let Some(position) = partition.away.withheld.remove(&query) {
                partition.away.owe(id, Some(netid), position);
            }
        }
    }

    /// A device that comes back with a query takes the place of itself.
    pub(super) fn replace_absent(&mut self, id: PartitionId, query: QueryId) {
        let (Some(table), Some(partition)) = (self.tables.get(&id.table), self.partitions.get(&id)) else { return };
        let known = |query: QueryId| {
            let known = table.queries.get(&query)?;
            Some((known.endpoint.as_ref()?, &known.reader.claims))
        };
        let Some((back, claims)) = known(query) else { return };
        let who = whose(claims);
        // R8: whoever else comes by the device's name has the place of nobody.
        let same = |other: &QueryId| {
            known(*other).is_some_and(|(absent, claims)| absent.ask == back.ask && whose(claims) == who)
        };
        let before = partition.away.devices.get(&back.netid).into_iter().flatten().copied().filter(same);
        for before in before.collect::<Vec<_>>() {
            self.remove(before, id);
        }
    }

    /// Who was admitted by another list of access does not stay without being asked again.
    pub(super) fn relisted(&mut self, id: TableId) {
        let Some(table) = self.tables.get_mut(&id) else { return };
        table.queries.values_mut().filter_map(|known| known.endpoint.as_mut()).for_each(|absent| absent.doubted = true);
        let away = self.partitions.values().filter(|partition| partition.id.table == id);
        let away = away.flat_map(|partition| partition.away.queries().map(move |query| (partition.id, query)));
        for (id, query) in away.collect::<Vec<_>>() {
            self.dismiss(id, query);
        }
    }

    /// A new owner knows of nobody that is away: whoever listens to the partition, or to those that its keys were in before, is
    /// told. The first owner of all has nobody to tell.
    pub(super) fn tell_of_opening(&mut self, id: PartitionId) {
        let silent = self.shared.is(Mutant::OpenedSilently);
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let entry = &partition.owned.entry;
        if entry.term.get() <= 1 && entry.parents.is_empty() || silent {
            return;
        }
        // R1: above everything that was published before.
        let position = Position::new(entry.term, partition.position.counter()).unwrap_or(partition.position);
        for number in entry.parents.iter().copied().chain([id.number]) {
            partition.away.owe(PartitionId { number, ..id }, None, position);
        }
    }

    /// Once a second: lets go who may stay no longer, and publishes what is owed.
    pub(super) fn tell_away(&mut self, now: Now, id: PartitionId, out: &mut Outbox<Output>) {
        let (away, most) = (self.shared.options.away, self.shared.options.endpoints);
        while let Some(query) = self.partitions.get(&id).and_then(|partition| partition.away.over(now, away, most)) {
            self.dismiss(id, query);
        }
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let waits = partition.away.under_way.is_some() || !partition.away.turn.is_empty();
        if !waits {
            partition.away.turn = std::mem::take(&mut partition.away.owed);
            self.publish(id, out);
        }
    }

    fn publish(&mut self, id: PartitionId, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let publications = partition.away.next();
        if publications.is_empty() {
            return;
        }
        self.shared.next += 1;
        let number = self.shared.next;
        partition.away.under_way = Some((number, publications.iter().copied().collect()));
        out.put(Output::Publish { partition: id, number, publications });
    }

    pub(super) fn published(&mut self, id: PartitionId, number: u64, done: bool, out: &mut Outbox<Output>) {
        let done = done || self.shared.is(Mutant::PublishedOnce);
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let away = &mut partition.away;
        let Some((_, batch)) = away.under_way.take_if(|(under_way, _)| *under_way == number) else { return };
        if done {
            return self.publish(id, out);
        }
        // All of it with the next second.
        for (object, position) in batch.into_iter().chain(std::mem::take(&mut away.turn)) {
            away.owe(object.partition, object.netid, position);
        }
    }
}

/// Claims that say when a token was made and counts: a reader that has another token is the same reader.
const OF_A_TOKEN: [&str; 4] = ["exp", "iat", "jti", "nbf"];

/// Who a reader is, as its token says.
fn whose(claims: &Packed) -> Value {
    match claims.unpack() {
        Value::Map(mut claims) => {
            claims.retain(|name, _| !OF_A_TOKEN.contains(&name.as_str()));
            Value::Map(claims)
        }
        other => other,
    }
}

/// When the claims of a reader end (R8), as its token says.
fn expiry(claims: &Packed) -> Option<Wall> {
    let Value::Map(claims) = claims.unpack() else { return None };
    let seconds = match claims.get("exp")? {
        Value::Int(seconds) => u64::try_from(*seconds).unwrap_or(0),
        Value::Float(seconds) => *seconds as u64,
        _ => 0,
    };
    Some(Wall(seconds.saturating_mul(1_000_000)))
}
