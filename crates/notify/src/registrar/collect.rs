//! F10: collection of clients that are long gone, and of rows without `created` (§4.2.4).
//!
//! In this order: `created`; once that is stable and the lease is known to have held until then, nobody serves the id
//! any more; the copies at matchers; the row, each cell at its own timestamp; then what is in memory. Whatever ends it
//! half-way leaves a row without `created`, and that is collected from there.

use super::pending::Pending;
use super::state::{Client, Collecting, State, Work};
use super::writing::{MAX_PART, PER_CELL};
use super::{Output, Registrar, Step};
use crate::names::{ClientKey, Guard};
use crate::rows::{self, CREATED, REGISTRAR, StoreReply, StoreResult};
use crate::{CallId, Outcome};
use bytes::Bytes;
use tidings_base::{Now, Outbox};
use tidings_wire::v1;

impl Registrar {
    /// Begins, if it is time and nothing of the client is under way.
    pub(super) fn collect(&mut self, now: Now, key: &ClientKey, client: &mut Client, out: &mut Outbox<Output>) {
        if !client.is_settled() || !client.unlogged.is_empty() || client.channel.is_some() {
            return;
        }
        if !client.created {
            return self.unregister_all(now, key, client, out);
        }
        let limit = match client.persistent {
            true => self.options.collect_after,
            false => self.options.collect_unpersisted_after,
        };
        let idle = now.wall.millis().saturating_sub(client.used_ms);
        let due = client.leaving.is_some() || u128::from(idle) >= limit.as_millis();
        if !due || !client.pending.is_empty() {
            return;
        }
        client.state = State::Collecting(Collecting::Deleting);
        let seqno = self.seqno(key);
        let cells = vec![rows::gone(CREATED, seqno)];
        self.collect_step(key, rows::write(REGISTRAR, rows::row(self.incarnation(), key.as_bytes()), cells), out);
    }

    fn collect_step(&mut self, key: &ClientKey, request: crate::rows::StoreRequest, out: &mut Outbox<Output>) {
        self.store(Step::Collecting(key.clone()), request, out);
    }

    pub(super) fn collecting(&mut self, now: Now, key: &ClientKey, result: StoreResult, out: &mut Outbox<Output>) {
        let Some(State::Collecting(stage)) = self.clients.get(key).map(|client| client.state) else { return };
        match (stage, result) {
            (Collecting::Deleting, Ok(_)) => {
                let Some(lease) = self.held.lease(key.hash()) else { return };
                let id = CallId(self.id());
                self.confirms.insert(id, key.clone());
                self.set_stage(key, Collecting::Confirming);
                out.put(Output::Confirm { id, guard: Guard { key: key.hash(), lease } });
            }
            (Collecting::Reading, Ok(StoreReply::Row(Some(row)))) if !row.cells.is_empty() => {
                let mut bytes = 0;
                let cells = row.cells.into_iter().take_while(|cell| {
                    let fits = bytes < MAX_PART;
                    bytes += cell.column.len() + PER_CELL;
                    fits
                });
                let cells = cells.map(|cell| rows::gone(cell.column, cell.timestamp)).collect();
                self.set_stage(key, Collecting::Clearing);
                self.collect_step(key, rows::write(REGISTRAR, row.row, cells), out);
            }
            (Collecting::Clearing, Ok(_)) => self.read_rest(key, out),
            (Collecting::Reading, Ok(_)) => self.collected(now, key, out),
            // It is found again without `created`, or unchanged.
            _ => {
                self.rescan_later(now);
                self.collected(now, key, out);
            }
        }
    }

    pub(super) fn confirmed(&mut self, now: Now, id: CallId, held: bool, out: &mut Outbox<Output>) {
        let Some(key) = self.confirms.remove(&id) else { return };
        if !held {
            // Another owner may have read `created` before it went: the rest is not ours to delete.
            return self.abandon(&key, Outcome::Moved, out);
        }
        let Some(mut client) = self.clients.remove(&key) else { return };
        if let Some(channel) = client.leaving {
            self.refuse((key.hash(), channel), client.session, v1::NotifyRefused::InvalidId, 0, out);
        }
        self.unregister_all(now, &key, &mut client, out);
        self.clients.insert(key, client);
    }

    /// Matchers forget its registrations.
    fn unregister_all(&mut self, now: Now, key: &ClientKey, client: &mut Client, out: &mut Outbox<Output>) {
        client.state = State::Collecting(Collecting::Unregistering);
        client.created = false;
        let objects: Vec<u32> = client.names().collect();
        for object in objects {
            let seqno = self.seqno(key);
            self.spread(now, client, object, Pending::new(seqno, false));
        }
        self.propagate(now, key, client, out);
        if client.pending.is_empty() {
            client.state = State::Collecting(Collecting::Reading);
            self.read_row(key, out);
        }
    }

    /// A matcher has forgotten one of them.
    pub(super) fn collect_on(&mut self, key: &ClientKey, client: &mut Client, out: &mut Outbox<Output>) {
        if client.pending.is_empty() {
            client.state = State::Collecting(Collecting::Reading);
            self.read_row(key, out);
        }
    }

    fn read_rest(&mut self, key: &ClientKey, out: &mut Outbox<Output>) {
        self.set_stage(key, Collecting::Reading);
        self.read_row(key, out);
    }

    fn read_row(&mut self, key: &ClientKey, out: &mut Outbox<Output>) {
        let row: Bytes = rows::row(self.incarnation(), key.as_bytes());
        self.collect_step(key, rows::get(REGISTRAR, row, &[]), out);
    }

    fn set_stage(&mut self, key: &ClientKey, stage: Collecting) {
        if let Some(client) = self.clients.get_mut(key) {
            client.state = State::Collecting(stage);
        }
    }

    /// Memory goes last; whoever has come meanwhile finds the row as it is now.
    fn collected(&mut self, now: Now, key: &ClientKey, out: &mut Outbox<Output>) {
        let Some(mut client) = self.clients.remove(key) else { return };
        let queue = std::mem::take(&mut client.queue);
        self.let_go(key, &client);
        for work in queue.into_iter().filter(|work| !matches!(work, Work::Collect)) {
            self.give(now, key, work, out);
        }
    }
}
