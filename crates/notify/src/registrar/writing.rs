//! Reading and writing a client's row: one write at a time, and whatever comes meanwhile with the next.

use super::state::{After, Batch, Client, State, Unlogged, Work};
use super::{Output, Registrar, Step};
use crate::mutant::Mutant;
use crate::names::ClientKey;
use crate::rows::{self, LOG, PENDING_OF, REG, REGISTRAR, StoreReply, StoreResult};
use crate::{Outcome, digest};
use tidings_base::{Now, Outbox};
use tidings_wire::v1;

/// Answers to queries are cut to what fits a message well.
const MAX_QUERY: usize = digest::MAX_PREFIXES;
/// What a cell takes in a command beside its name and value.
pub(super) const PER_CELL: usize = 32;
/// Bytes of one write, about: half of what the store takes.
pub(super) const MAX_PART: usize = 1 << 20;

impl Registrar {
    pub(super) fn load(&mut self, key: &ClientKey, client: &mut Client, out: &mut Outbox<Output>) {
        client.state = State::Loading;
        self.loading += 1;
        let request = rows::get(REGISTRAR, rows::row(self.incarnation(), key.as_bytes()), &[]);
        self.store(Step::Loading(key.clone()), request, out);
    }

    pub(super) fn loaded(&mut self, now: Now, key: &ClientKey, result: StoreResult, out: &mut Outbox<Output>) {
        let Some(client) = self.clients.get_mut(key) else { return };
        let Ok(StoreReply::Row(row)) = result else {
            // Nobody else's rows are held up; whoever wanted something asks again.
            let looks = client.queue.iter().any(|work| matches!(work, Work::Look | Work::Collect));
            let scrubs = client.queue.iter().any(|work| matches!(work, Work::Scrub));
            if looks {
                self.rescan_later(now);
            }
            if scrubs {
                self.scrub_later(now, key);
            }
            self.abandon(key, Outcome::Failed, out);
            return self.unpark(out);
        };
        client.state = State::Ready;
        self.loading -= 1;
        let any = client.fill(key, row, &mut self.names);
        let room = self.options.max_pending.saturating_sub(self.pending);
        let beyond: Vec<u32> = client.pending.objects().skip(room).collect();
        for object in &beyond {
            // §4.2.5: their markers are found again when there is room.
            client.pending.remove(*object);
            self.names.release(*object);
        }
        client.shed = !beyond.is_empty();
        self.pending += client.pending.len();
        if client.created || self.options.mutant == Some(Mutant::CreatedIgnored) {
            let (seat, seqno) = (client.channel, client.seated);
            if client.channel.is_some() || !client.pending.is_empty() {
                client.looks();
            }
            if let Some(channel) = seat {
                self.seat(key, channel, seqno);
            }
        } else {
            // §4.2.4: a row without `created` is a zombie: deleted, and its client told if it is online.
            let (channel, session) = (client.channel.take(), client.session);
            if any {
                client.queue.push_back(Work::Collect);
            }
            if let Some(channel) = channel {
                self.refuse((key.hash(), channel), session, v1::NotifyRefused::InvalidId, 0, out);
            }
        }
        if !beyond.is_empty() {
            self.rescan_later(now);
        }
        self.run(now, key, out);
        self.unpark(out);
    }

    /// Issues the next write, if there is something and none is under way.
    pub(super) fn flush(&mut self, now: Now, key: &ClientKey, client: &mut Client, out: &mut Outbox<Output>) {
        if client.dirty.is_empty() {
            return;
        }
        match &mut client.writing {
            Some(writing) if client.dirty.cells.is_empty() => writing.after.append(&mut client.dirty.after),
            Some(_) => {}
            None => {
                let mut batch = std::mem::take(&mut client.dirty);
                (batch.op, batch.digest) = (client.op.unwrap_or(0), client.digest);
                batch.channel = client.channel;
                if batch.cells.is_empty() {
                    return self.complete(now, key, client, batch, out);
                }
                self.write_part(key, client, batch, out);
            }
        }
    }

    /// Writes as much of a batch as one command of the store takes; the rest follows when that is stable.
    fn write_part(&mut self, key: &ClientKey, client: &mut Client, mut batch: Batch, out: &mut Outbox<Output>) {
        let rest = batch.cells.split_off(part(&batch.cells));
        let cells = std::mem::replace(&mut batch.cells, rest);
        client.writing = Some(batch);
        let row = rows::row(self.incarnation(), key.as_bytes());
        self.store(Step::Writing(key.clone()), rows::write(REGISTRAR, row, cells), out);
    }

    pub(super) fn written(&mut self, now: Now, key: &ClientKey, stable: bool, out: &mut Outbox<Output>) {
        let Some(mut client) = self.clients.remove(key) else { return };
        match (client.writing.take(), stable) {
            (Some(batch), true) if !batch.cells.is_empty() => self.write_part(key, &mut client, batch, out),
            (Some(batch), true) => self.complete(now, key, &mut client, batch, out),
            (Some(batch), false) => {
                // It may or may not have happened: what the row says counts from now on.
                self.fail_batch(batch, Outcome::Failed, out);
                self.reload(key, &mut client, out);
            }
            (None, _) => {}
        }
        self.clients.insert(key.clone(), client);
        self.run(now, key, out);
    }

    /// Reads the row anew; only what it cannot say is kept.
    pub(super) fn reload(&mut self, key: &ClientKey, client: &mut Client, out: &mut Outbox<Output>) {
        let batches = client.batches();
        batches.into_iter().for_each(|batch| self.fail_batch(batch, Outcome::Failed, out));
        self.fail_unlogged(client, Outcome::Failed, out);
        let mut fresh = Client::new(client.heard);
        fresh.op = client.op.map(|_| client.durable.0);
        fresh.queue = std::mem::take(&mut client.queue);
        if client.channel.is_some() || !client.pending.is_empty() {
            // Should its row not be read either, it is looked for.
            fresh.looks();
        }
        if client.scrubs_from.is_some() || client.pending.awaited() < client.pending.len() {
            fresh.queue.push_back(Work::Scrub);
        }
        let old = std::mem::replace(client, fresh);
        if let Some(asking) = &old.asking {
            asking.waiting.iter().for_each(|ask| {
                self.asks.remove(ask);
            });
        }
        self.let_go(key, &old);
        self.load(key, client, out);
    }

    pub(super) fn fail_batch(&self, batch: Batch, outcome: Outcome, out: &mut Outbox<Output>) {
        for after in batch.after {
            // Clients are not answered: they send again.
            if let After::Notified { request, .. } = after {
                out.put(Output::Notified { request, guard: None, outcome });
            }
        }
    }

    pub(super) fn fail_unlogged(&self, client: &mut Client, outcome: Outcome, out: &mut Outbox<Output>) {
        for Unlogged { request, .. } in std::mem::take(&mut client.unlogged) {
            out.put(Output::Notified { request, guard: None, outcome });
        }
    }

    /// Something is stable: whoever waited for it hears so.
    fn complete(&mut self, now: Now, key: &ClientKey, client: &mut Client, batch: Batch, out: &mut Outbox<Output>) {
        client.durable = (batch.op, batch.digest);
        client.present = client.channel.is_some() && client.channel == batch.channel;
        let mut spread = false;
        for after in batch.after {
            match after {
                After::Reply { channel, statuses, query } => {
                    let mut down = self.down(client);
                    down.statuses = statuses;
                    if std::mem::take(&mut client.ages) {
                        down.token = self.token(key, client).unwrap_or_default();
                    }
                    down.answer = query.and_then(|query| self.descend(key, client, &query));
                    self.send(key.hash(), channel, down, out);
                }
                After::Grant { channel, nonce } => {
                    self.grant(key, client, channel, nonce, out);
                    if let Some(old) = client.replaces.take() {
                        let (old, session) = *old;
                        self.give(now, &old, Work::Replaced { channel, session }, out);
                    }
                    // What came while it was away.
                    self.push_all(now, key, client, out);
                }
                After::Notified { request, guard } => {
                    let guard = self.guarded(guard);
                    out.put(Output::Notified { request, guard, outcome: Outcome::Done });
                }
                After::Spread { object, seqno } => spread |= client.pending.is_stored(object, seqno),
                After::Told { object, status } => self.tell(now, key, client, object, status, out),
            }
        }
        if spread {
            self.propagate(now, key, client, out);
        }
    }

    /// What every message to a client says. As long as the store does not hold where the client can be reached, no digest
    /// lets it believe that all is well: a new owner would not know that it is there.
    pub(super) fn down(&self, client: &Client) -> v1::NotifyDown {
        v1::NotifyDown {
            session: client.session,
            echo: client.durable.0,
            digest: client.present.then(|| client.durable.1.into()),
            pending: client.incomplete(),
            ..Default::default()
        }
    }

    /// F7: what lies below prefixes, if that is still as it was asked about.
    fn descend(&self, key: &ClientKey, client: &Client, query: &v1::SyncQuery) -> Option<v1::SyncAnswer> {
        let pinned = client.op == Some(query.op) && client.durable == (query.op, client.digest);
        if !pinned || query.prefixes.len() > MAX_QUERY {
            return None;
        }
        let objects = client.regs.iter().map(|reg| self.names.name(reg.object));
        let nodes = digest::answer(&key.uuid(), objects, &query.prefixes)?;
        Some(v1::SyncAnswer { op: query.op, nodes })
    }
}

/// How many of these cells are written first. F5: a change and the marker behind it are never parted, nor are a marker that is
/// cleared and what is known behind it; what is logged stands alone.
fn part(cells: &[v1::Cell]) -> usize {
    let mut bytes = 0;
    for (at, cell) in cells.iter().enumerate() {
        bytes += cell.column.len() + cell.value.as_ref().map_or(0, |value| value.len()) + PER_CELL;
        let cleared = cell.column.starts_with(PENDING_OF) && cell.value.is_none();
        let logged = cell.column.starts_with(LOG) && cell.value.is_some();
        if bytes > MAX_PART && at > 0 && (cleared || logged || cell.column.starts_with(REG)) {
            return at;
        }
    }
    cells.len()
}
