//! Live queries: installed, matched, switched to new data, removed (§5, R3, R4, R8, R9).

use super::log::Changed;
use super::partition::Partition;
use super::reading::decode;
use super::sending::{Catching, Feed, difference, frame, over_frame, send, weight, weight_of_change};
use super::tables::{Absent, Subscription, To};
use super::{Output, Processor, Shared, StoreId, StoreReply, StoreResult, Timer};
use crate::directory::Properties;
use crate::live::{Body, Change, From, Install, Reader};
use crate::mutant::Mutant;
use crate::names::{GatewayId, PartitionId, Position, QueryId, TableId};
use crate::refusal::Refusal;
use crate::rows;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tidings_base::{Now, Outbox};
use tidings_predicate::query::Query;
use tidings_predicate::{Dialect, Key, Meter, TooSlow};
use tidings_wire::v1;

/// R1: copies of one partition: one a node, of as many nodes as ask.
const COPIES: usize = 64;
/// How many times what a read takes in one go may be taken to see what has changed since a cursor: enough for all of the log and a
/// predicate of some forty steps.
const LOG_STEPS: u64 = 10;

impl Processor {
    pub(super) fn install(&mut self, now: Now, install: Install, out: &mut Outbox<Output>) {
        let (id, query, epoch) = (install.partition, install.query, install.reader.epoch);
        let known = self.tables.get(&id.table).and_then(|table| table.queries.get(&query));
        // An installation that was overtaken by newer data says nothing any more.
        if known.is_some_and(|known| known.reader.epoch > epoch) {
            return;
        }
        if known.is_some_and(|known| known.reader.epoch < epoch) {
            self.switch(now, query, install.reader.clone(), out);
        }
        if let Err(refusal) = self.installed(now, &install, out) {
            self.forsake(id, query);
            self.remove(query, id);
            let term = self.partitions.get(&id).map(|partition| partition.owned.entry.term).unwrap_or_default();
            let frame = over_frame(id, term, (install.installation, epoch), refusal);
            out.put(Output::Frame { query, frame: Box::new(frame) });
        }
    }

    fn installed(&mut self, now: Now, install: &Install, out: &mut Outbox<Output>) -> Result<(), Refusal> {
        let (id, query) = (install.partition, install.query);
        let unchecked = self.shared.is(Mutant::LiveUnchecked);
        let partition = self.partitions.get_mut(&id).filter(|partition| partition.is_open()).ok_or(Refusal::Moved)?;
        // One that comes late must not take the place of a later one; one that comes twice would go back to its cursor.
        let overtaken = partition.feeds.get(&query).is_some_and(|feed| feed.installation >= install.installation);
        if overtaken || partition.has_ended(query, install.installation) {
            return Ok(());
        }
        if query.is_copy() && partition.copies() >= COPIES && !partition.feeds.contains_key(&query) {
            return Err(Refusal::Busy);
        }
        let table = self.tables.get_mut(&id.table).ok_or(Refusal::Moved)?;
        if install.reader.access < table.properties.access {
            return Err(Refusal::Access);
        }
        let compile = |dialect: &Dialect| -> Result<Query, Refusal> {
            let compiled = Query::compile(&install.ask, dialect)?;
            if !unchecked {
                compiled.check_live()?;
            }
            Ok(compiled)
        };
        // Notify has the table's application alone.
        let endpoint = install.endpoint.as_ref().filter(|endpoint| endpoint.app == table.properties.app);
        let absent = |netid| Box::new(Absent { netid, ask: install.ask.clone(), doubted: false });
        table.join(query, id, compile, &install.reader, endpoint.map(|endpoint| absent(endpoint.netid)))?;
        if let Some(id) = table.queries.get(&query).and_then(|subscription| subscription.id) {
            table.index.unkeep(id);
            table.admits(id, install.reader.access)?;
        }
        let Some(subscription) = table.queries.get(&query) else { return Err(Refusal::Moved) };
        let rereads = !subscription.query.is_live_by_records();
        let mut feed = Feed {
            installation: install.installation,
            epoch: install.reader.epoch,
            sent: Position::ZERO,
            queue: VecDeque::new(),
            room: install.window.max(1),
            window: install.window.max(1),
            catching: None,
            rereads,
            dirty: rereads,
            late: false,
        };
        let (start, _) = rows::records(partition.owned.entry.start.as_ref(), None);
        let at = partition.position;
        let unreached = self.shared.is(Mutant::NoReset);
        match (&install.from, rereads) {
            (_, true) => {}
            (From::Nothing, false) => feed.catching = Some(Catching::new(at, Some((at, install.reader.clone())), None)),
            (From::After(cursors), false) => {
                let since = match cursors.iter().find(|(of, _)| *of == id) {
                    Some((_, since)) => partition.log.reaches(*since).then_some(*since),
                    // R1: what was in the parents when they ended goes on here.
                    None => {
                        let whole = |(of, last): (PartitionId, Position)| {
                            cursors.iter().any(|(cursor, at)| *cursor == of && *at == last)
                        };
                        let all = !partition.origin.is_empty() && partition.origin.iter().copied().all(whole);
                        all.then_some(at)
                    }
                };
                let since = since.or(cursors.first().filter(|_| unreached).map(|(_, since)| *since));
                if since.is_some_and(|since| since > at) {
                    return Err(Refusal::Behind);
                }
                // What goes on from other partitions begins here: the client has no cursor of this one.
                let own = cursors.iter().any(|(of, _)| *of == id);
                feed.sent = since.filter(|_| own).unwrap_or_default();
                feed.catching = Some(match since {
                    Some(since) => Catching::new(at, Some((since, install.reader.clone())), None),
                    None => Catching::new(at, None, Some(start.clone())),
                });
            }
            (From::Everything, false) => {
                let mut catching = Catching::new(at, None, Some(start.clone()));
                catching.newer_than = install.newer_than;
                feed.catching = Some(catching);
            }
        }
        if let Some(Catching { from: Some((since, reader)), changes, .. }) = &mut feed.catching {
            match since_cursor(&mut self.shared, partition, subscription, (*since, &*reader))? {
                Some(passed) => *changes = passed,
                // To look at all of that would hold everybody else up: from the beginning, a page at a time.
                None => (feed.sent, feed.catching) = (Position::ZERO, Some(Catching::new(at, None, Some(start)))),
            }
        }
        let again = partition.feeds.insert(query, feed).is_some();
        partition.joined(query, again);
        partition.busy.insert(query);
        partition.away.remove(query);
        self.replace_absent(id, query);
        if rereads {
            self.shared.timers.set(Timer::Dirty(id), now.mono);
            return Ok(());
        }
        self.flow(now, id, query, &Meter::default(), out);
        Ok(())
    }

    /// Sends what can be sent while there is time; a query that cannot go on has ended.
    pub(super) fn flow(&mut self, now: Now, id: PartitionId, query: QueryId, meter: &Meter, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let Some(subscription) = self.tables.get(&id.table).and_then(|table| table.queries.get(&query)) else { return };
        let Some(installation) = partition.feeds.get(&query).map(|feed| feed.installation) else { return };
        if !send(&mut self.shared, partition, query, subscription, meter, out) {
            partition.busy.remove(&query);
            partition.note_ended(query, installation);
            partition.left(query);
            // R3: its client may have gone before it hears that.
            self.forsake(id, query);
            self.remove(query, id);
        } else if !partition.late.is_empty() {
            self.shared.timers.set(Timer::Late(id), now.mono);
        }
    }

    /// Queries go on that there was no time for, one after the other.
    pub(super) fn flow_late(&mut self, now: Now, id: PartitionId, out: &mut Outbox<Output>) {
        let meter = Meter::default();
        while meter.steps() < self.shared.options.steps {
            let Some(partition) = self.partitions.get_mut(&id) else { return };
            let Some(query) = partition.late.pop_front() else { return };
            if let Some(feed) = partition.feeds.get_mut(&query) {
                feed.late = false;
            }
            self.flow(now, id, query, &meter, out);
        }
        if self.partitions.get(&id).is_some_and(|partition| !partition.late.is_empty()) {
            self.shared.timers.set(Timer::Late(id), now.mono);
        }
    }

    pub(super) fn remove(&mut self, query: QueryId, id: PartitionId) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        partition.away.forget(query);
        if partition.feeds.remove(&query).is_some() {
            partition.busy.remove(&query);
            partition.left(query);
        }
        if let Some(table) = self.tables.get_mut(&id.table) {
            table.leave(query, id);
        }
    }

    pub(super) fn gateway_gone(&mut self, now: Now, gateway: GatewayId) {
        let feeds = self.partitions.values().flat_map(|partition| {
            partition.feeds.keys().filter(move |query| query.gateway == gateway).map(|query| (*query, partition.id))
        });
        for (query, id) in feeds.collect::<Vec<_>>() {
            self.gone(now, query, id, false);
        }
        self.partitions.values_mut().for_each(|partition| {
            partition.gateways.remove(&gateway);
        });
    }

    pub(super) fn taken(&mut self, now: Now, query: QueryId, id: PartitionId, frames: u32, out: &mut Outbox<Output>) {
        let feed = self.partitions.get_mut(&id).and_then(|partition| partition.feeds.get_mut(&query));
        if let Some(feed) = feed {
            feed.room = feed.room.saturating_add(frames).min(feed.window);
            match feed.dirty {
                true => self.tell_dirty(id, out),
                false => self.flow(now, id, query, &Meter::default(), out),
            }
        }
    }

    /// R4 `update_data`: all partitions of the query here switch, each at its own position.
    pub(super) fn update(
        &mut self,
        now: Now,
        query: QueryId,
        id: PartitionId,
        reader: Reader,
        out: &mut Outbox<Output>,
    ) {
        let known = self.tables.get(&id.table).and_then(|table| table.queries.get(&query));
        if known.is_some_and(|known| known.reader.epoch < reader.epoch) {
            self.switch(now, query, reader, out);
        }
    }

    /// The table has other properties: whoever may not use it any more hears nothing more of it.
    pub(super) fn altered(&mut self, id: TableId, properties: Properties, out: &mut Outbox<Output>) {
        let Some(table) = self.tables.get_mut(&id) else { return };
        let access = properties.access;
        table.alter(properties);
        let denied = table.queries.iter().filter(|(_, known)| known.reader.access < access);
        let feeds = denied.flat_map(|(query, known)| known.partitions.iter().map(|id| (*id, *query)));
        for (id, query) in feeds.collect::<Vec<_>>() {
            self.end(id, query, Refusal::Access, out);
        }
    }

    fn switch(&mut self, now: Now, query: QueryId, reader: Reader, out: &mut Outbox<Output>) {
        let Some(table) = self.tables.values_mut().find(|table| table.queries.contains_key(&query)) else { return };
        let Some(id) = table.queries.get(&query).and_then(|known| known.id) else { return };
        let moved = table.index.update_data(id, &reader.data, &reader.claims).map_err(Refusal::from);
        let moved = moved.and_then(|_| table.admits(id, reader.access));
        let denied = reader.access < table.properties.access;
        let Some(subscription) = table.queries.get_mut(&query) else { return };
        let old = std::mem::replace(&mut subscription.reader, reader);
        let partitions: Vec<PartitionId> = subscription.partitions.iter().copied().collect();
        for id in partitions {
            let refusal = match &moved {
                _ if denied => Some(Refusal::Access),
                Err(refusal) => Some(refusal.clone()),
                Ok(()) => None,
            };
            match refusal {
                Some(refusal) => self.end(id, query, refusal, out),
                None => self.switch_at(now, id, query, &old, out),
            }
        }
    }

    /// From what the client has seen as the old reader to what it may see as the new one, at this position.
    fn switch_at(&mut self, now: Now, id: PartitionId, query: QueryId, old: &Reader, out: &mut Outbox<Output>) {
        let no_difference = self.shared.is(Mutant::NoDifference);
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let at = partition.position;
        let (start, _) = rows::records(partition.owned.entry.start.as_ref(), None);
        let Some(feed) = partition.feeds.get_mut(&query) else { return };
        if feed.rereads {
            feed.dirty = true;
            partition.busy.insert(query);
            self.shared.timers.set(Timer::Dirty(id), now.mono);
            return;
        }
        let told = feed.told(at);
        // Whoever is in the middle of something has neither the one picture nor the other: it begins anew.
        let whole = feed.catching.is_none() && partition.log.reaches(told);
        feed.queue.clear();
        feed.catching = Some(match whole {
            _ if no_difference => Catching::new(at, Some((told, old.clone())), None),
            true => Catching::new(at, Some((told, old.clone())), Some(start)),
            false => Catching::new(at, None, Some(start)),
        });
        partition.busy.insert(query);
        self.flow(now, id, query, &Meter::default(), out);
    }

    /// Tells a query that it is over here.
    fn end(&mut self, id: PartitionId, query: QueryId, refusal: Refusal, out: &mut Outbox<Output>) {
        self.forsake(id, query);
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let subscription = self.tables.get(&id.table).and_then(|table| table.queries.get(&query));
        if let (Some(subscription), Some(feed)) = (subscription, partition.feeds.get(&query)) {
            let frame = frame(partition, feed, subscription, feed.sent, Body::Ended(refusal));
            let installation = feed.installation;
            out.put(Output::Frame { query, frame: Box::new(frame) });
            partition.note_ended(query, installation);
        }
        self.remove(query, id);
    }

    /// A page of a snapshot or difference has come.
    pub(super) fn caught(
        &mut self,
        now: Now,
        id: PartitionId,
        query: QueryId,
        (scan, result): (StoreId, StoreResult),
        out: &mut Outbox<Output>,
    ) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let Some(subscription) = self.tables.get(&id.table).and_then(|table| table.queries.get(&query)) else { return };
        let Some(mut feed) = partition.feeds.remove(&query) else { return };
        // A scan that was overtaken is of another picture.
        let Some(catching) = feed.catching.as_mut().filter(|catching| catching.scanning == Some(scan)) else {
            partition.feeds.insert(query, feed);
            return;
        };
        catching.scanning = None;
        let Ok(StoreReply::Rows(found)) = result else {
            // The store is asked again with the next progress.
            partition.feeds.insert(query, feed);
            return;
        };
        let at = catching.at;
        let whole = match absorb(&mut self.shared, partition, subscription, catching, &found) {
            Ok(whole) => whole,
            Err(TooSlow) => {
                partition.feeds.insert(query, feed);
                return self.end(id, query, Refusal::TooSlow, out);
            }
        };
        if !whole && at == partition.position {
            // Nothing of this owner's is newer: somebody else writes already.
            partition.feeds.insert(query, feed);
            return self.end(id, query, Refusal::Moved, out);
        }
        if !whole {
            // The log does not reach back any more: from the beginning, at once.
            let (start, _) = rows::records(partition.owned.entry.start.as_ref(), None);
            feed.queue.retain(|position| *position > partition.position);
            feed.catching = Some(Catching::new(partition.position, None, Some(start)));
        }
        partition.feeds.insert(query, feed);
        self.flow(now, id, query, &Meter::default(), out);
    }

    /// Records changed: whom that concerns is found by the index, before and after.
    pub(super) fn changed(&mut self, now: Now, id: PartitionId, changes: Vec<Changed>, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let Some(table) = self.tables.get_mut(&id.table) else { return };
        let (mut concerned, meter) = (BTreeSet::new(), Meter::default());
        if let Some(last) = changes.last() {
            partition.away.changed(id, last.position);
        }
        let all = self.shared.is(Mutant::LeaveToAll);
        for change in changes {
            if table.index.is_empty() && table.copies.is_empty() {
                partition.log.push(change);
                continue;
            }
            let mut found = BTreeSet::new();
            let (writers, within) = (&mut self.shared.writers, (&meter, self.shared.options.steps));
            table.matches(&change.key, change.before.as_deref(), writers, within, &mut found);
            table.matches(&change.key, Some(&*change.after), writers, within, &mut found);
            found.extend(&table.copies);
            if all {
                found.extend(partition.feeds.keys());
            }
            for query in found {
                let absent = table.queries.get(&query).and_then(|known| known.endpoint.as_ref());
                if let Some(absent) = absent
                    && (partition.feeds.contains_key(&query) || partition.away.has(query))
                {
                    match absent.doubted {
                        true => partition.away.withhold(query, change.position),
                        false => partition.away.owe(id, Some(absent.netid), change.position),
                    }
                }
                let Some(feed) = partition.feeds.get_mut(&query) else { continue };
                match feed.rereads {
                    true => feed.dirty = true,
                    false => feed.queue.push_back(change.position),
                }
                concerned.insert(query);
            }
            partition.log.push(change);
        }
        partition.log.trim(now.mono, &self.shared.options);
        let undelivered = self.shared.options.undelivered;
        for query in concerned {
            let Some(feed) = self.partitions.get_mut(&id).and_then(|partition| partition.feeds.get(&query)) else {
                continue;
            };
            if feed.dirty {
                if self.shared.timers.at(&Timer::Dirty(id)).is_none() {
                    self.shared.timers.set(Timer::Dirty(id), now.mono + self.shared.options.coalesce);
                }
                if let Some(partition) = self.partitions.get_mut(&id) {
                    partition.busy.insert(query);
                }
            } else {
                self.flow(now, id, query, &meter, out);
                self.bound(id, query, undelivered, out);
            }
        }
    }

    /// Past its bound a query ends, and its client is told.
    fn bound(&mut self, id: PartitionId, query: QueryId, most: usize, out: &mut Outbox<Output>) {
        let feed = self.partitions.get(&id).and_then(|partition| partition.feeds.get(&query));
        if feed.is_some_and(|feed| feed.queue.len() > most) {
            self.end(id, query, Refusal::Ended, out);
        }
    }

    /// Queries with an order, a limit or groups are told that they should be read again.
    pub(super) fn tell_dirty(&mut self, id: PartitionId, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let Some(table) = self.tables.get(&id.table) else { return };
        let position = partition.position;
        for query in partition.busy.clone() {
            let Some(subscription) = table.queries.get(&query) else { continue };
            let Some(feed) = partition.feeds.get(&query).filter(|feed| feed.dirty && feed.room > 0) else {
                continue;
            };
            let frame = frame(partition, feed, subscription, position, Body::Dirty);
            if let Some(feed) = partition.feeds.get_mut(&query) {
                (feed.sent, feed.dirty, feed.room) = (position, false, feed.room - 1);
            }
            partition.busy.remove(&query);
            partition.note(query, position);
            partition.counts.events += 1;
            out.put(Output::Frame { query, frame: Box::new(frame) });
        }
    }
}

/// What has changed since a cursor for its reader, by the log; none if that is too much to look at in one go.
fn since_cursor(
    shared: &mut Shared,
    partition: &Partition,
    subscription: &Subscription,
    (since, reader): (Position, &Reader),
) -> Result<Option<Vec<Change>>, TooSlow> {
    let (meter, most) = (Meter::default(), shared.options.steps.saturating_mul(LOG_STEPS));
    let mut latest = BTreeMap::<&Key, (&Changed, Position)>::new();
    // What the client has heard since its cursor, in pieces or before it was cut off, must leave as well.
    let mut shown = BTreeSet::new();
    for change in partition.log.since(since) {
        if meter.steps() > most {
            return Ok(None);
        }
        let to = To { meter: Some(&meter), ..To::live(&subscription.query, reader) };
        if shared.writers.shows(&change.key, &change.after, &to)? {
            shown.insert(&change.key);
        }
        latest.entry(&change.key).or_insert((change, change.position)).1 = change.position;
    }
    let mut changes = Vec::new();
    for (key, (first, last)) in latest {
        if meter.steps() > most {
            return Ok(None);
        }
        let after = partition.log.find(last).map(|last| &last.after);
        let before = first.before.as_ref().map(|before| (before, reader));
        let told = difference(&mut shared.writers, subscription, key, before, after, (false, &meter))?;
        let left = || shown.contains(key).then(|| Change::Leave { key: key.clone() });
        changes.extend(told.or_else(left));
    }
    Ok(Some(changes))
}

/// Takes a page of rows, or as many as there is time for, each as it was at the position that is led to; whether that is still
/// known of all.
fn absorb(
    shared: &mut Shared,
    partition: &Partition,
    subscription: &Subscription,
    catching: &mut Catching,
    found: &v1::Rows,
) -> Result<bool, TooSlow> {
    let (torn, meter) = (shared.is(Mutant::SnapshotTorn), Meter::default());
    for (at, row) in found.rows.iter().enumerate() {
        if meter.steps() >= shared.options.steps {
            catching.pace.cut(at);
            catching.next = Some(row.row.clone());
            return Ok(true);
        }
        let Some((key, record)) = rows::key_of(&row.row).zip(decode(row)) else { continue };
        let record = Some(Arc::new(record));
        let image = |at| if torn { Ok(record.clone()) } else { partition.image_at(&key, record.clone(), at) };
        let Ok(after) = image(catching.at) else { return Ok(false) };
        match &catching.from {
            None => {
                let to = To { meter: Some(&meter), ..To::live(&subscription.query, &subscription.reader) };
                let newer = catching.newer_than;
                let Some(after) = after.filter(|after| newer.is_none_or(|newer| after.time >= newer)) else { continue };
                let shown = subscription.is_copy() || shared.writers.shows(&key, &after, &to)?;
                if let Some(visible) = after.visible(&key).filter(|_| shown) {
                    catching.size += weight(&visible);
                    catching.rows.push(visible);
                }
            }
            Some((since, old)) => {
                let Ok(before) = image(*since) else { return Ok(false) };
                let before = before.as_ref().map(|before| (before, old));
                let unchecked = (false, &meter);
                let told = difference(&mut shared.writers, subscription, &key, before, after.as_ref(), unchecked)?;
                if let Some(told) = told {
                    catching.size += weight_of_change(&told);
                    catching.changes.push(told);
                }
            }
        }
    }
    catching.pace.whole();
    catching.next.clone_from(&found.next);
    Ok(true)
}
