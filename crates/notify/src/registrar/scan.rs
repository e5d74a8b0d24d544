//! F5: looking through the rows of ranges, for markers, for clients that are online, and for those long gone.

use super::state::{Client, State, Work};
use super::{Output, Registrar, Step, Timer};
use crate::held::HeldRange;
use crate::mutant::Mutant;
use crate::names::ClientKey;
use crate::rows::{self, CREATED, LAST_SEQNO, PENDING_OF, PRESENCE, REGISTRAR, StoreReply, StoreResult, Stretch};
use std::time::Duration;
use tidings_base::{Now, Outbox};
use tidings_wire::v1;

/// Rows of one page.
const PAGE: u32 = 32;
/// Clients that are being read at a time before the next page waits.
const MAX_LOADING: usize = 256;
/// Until what was dropped is looked for.
const RESCAN_PAUSE: Duration = Duration::from_millis(500);

/// Until rows that could not be read are tried again.
const UNREAD_PAUSE: Duration = Duration::from_secs(1);

/// A look through the rows of a range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub held: HeldRange,
    /// F3: every client's registrations go to their matchers again.
    pub scrub: bool,
}

impl Registrar {
    pub(super) fn scan(&mut self, look: Look, stretch: Stretch, out: &mut Outbox<Output>) {
        if self.realm.is_none() || self.is(Mutant::NoRecovery) {
            return;
        }
        let request = rows::scan(REGISTRAR, stretch.span(self.incarnation()), PAGE, &[]);
        self.store(Step::Scanning(look, stretch), request, out);
    }

    /// Begins anew with all ranges; a scrub that was under way goes on with it.
    pub(super) fn scan_all(&mut self, scrub: bool, out: &mut Outbox<Output>) {
        let mut scrub = scrub || self.parked.iter().any(|(look, _)| look.scrub);
        scrub |= std::mem::take(&mut self.unread).iter().any(|look| look.scrub);
        self.steps.retain(|_, step| match step {
            Step::Scanning(look, _) => {
                scrub |= look.scrub;
                false
            }
            _ => true,
        });
        self.parked.clear();
        let all: Vec<HeldRange> = self.held.all().copied().collect();
        all.into_iter().for_each(|held| self.scan(Look { held, scrub }, Stretch::new(held.range), out));
    }

    pub(super) fn rescan_later(&mut self, now: Now) {
        if self.timers.at(&Timer::Rescan).is_none() {
            self.timers.set(Timer::Rescan, now.mono + RESCAN_PAUSE);
        }
    }

    pub(super) fn scanned(
        &mut self,
        now: Now,
        look: Look,
        stretch: &Stretch,
        result: StoreResult,
        out: &mut Outbox<Output>,
    ) {
        let Ok(StoreReply::Rows(rows)) = result else {
            return self.unreadable(now, look, stretch, out);
        };
        for row in &rows.rows {
            let key = ClientKey::parse(rows::key_of_row(&row.row));
            let of_now =
                |key: &ClientKey| self.realm.as_ref().is_some_and(|realm| realm.has(key.app(), key.generation()));
            if let Some(key) = key.filter(of_now) {
                self.found(now, &key, row, out);
                if look.scrub {
                    self.give(now, &key, Work::Scrub, out);
                }
            }
        }
        if let Some(next) = rows.next {
            self.parked.push_back((look, stretch.behind(next)));
        }
        self.unpark(out);
    }

    /// F11: rows that cannot be read hold up no others: what is around them is read apart, and they are tried again.
    fn unreadable(&mut self, now: Now, look: Look, stretch: &Stretch, out: &mut Outbox<Output>) {
        let part = |range| Look { held: HeldRange { range, ..look.held }, ..look };
        match stretch.halves() {
            Some(halves) => halves.into_iter().for_each(|half| self.scan(part(half.range), half, out)),
            None => {
                self.unread.push(part(stretch.range));
                if self.timers.at(&Timer::Unread).is_none() {
                    self.timers.set(Timer::Unread, now.mono + UNREAD_PAUSE);
                }
            }
        }
    }

    pub(super) fn read_again(&mut self, out: &mut Outbox<Output>) {
        for look in std::mem::take(&mut self.unread) {
            self.scan(look, Stretch::new(look.held.range), out);
        }
    }

    /// Goes on with pages that wait, as far as there is room: half of it is for changes alone, and a scrub waits for the other.
    pub(super) fn unpark(&mut self, out: &mut Outbox<Output>) {
        while self.loading < MAX_LOADING {
            let full = self.pending >= self.options.max_pending / 2;
            let next = self.parked.iter().position(|(look, _)| !(full && look.scrub));
            let Some((look, stretch)) = next.and_then(|at| self.parked.remove(at)) else { return };
            if self.held.lease(look.held.range.start) == Some(look.held.lease) {
                self.scan(look, stretch, out);
            }
        }
    }

    /// A row: the picture may be old, so it only says what to look at; the client's own read decides.
    fn found(&mut self, now: Now, key: &ClientKey, row: &v1::Row, out: &mut Outbox<Output>) {
        let has = |column: &[u8]| rows::find(row, column).is_some();
        let marked = row.cells.iter().any(|cell| cell.column.starts_with(PENDING_OF));
        match self.clients.get_mut(key) {
            Some(client) if client.shed && !client.is_settled() => self.rescan_later(now),
            Some(client) if client.shed && client.state == State::Ready => {
                let Some(mut client) = self.clients.remove(key) else { return };
                client.queue.push_back(Work::Look);
                self.reload(key, &mut client, out);
                self.clients.insert(key.clone(), client);
            }
            Some(_) => {}
            None if marked || has(PRESENCE) => self.give(now, key, Work::Look, out),
            None => {
                let used = rows::find(row, LAST_SEQNO).and_then(|(_, value)| value.as_ref().try_into().ok());
                let idle = now.wall.millis().saturating_sub(used.map_or(0, u64::from_be_bytes));
                let shortest = self.options.collect_after.min(self.options.collect_unpersisted_after);
                if !has(CREATED) || u128::from(idle) >= shortest.as_millis() {
                    self.give(now, key, Work::Collect, out);
                }
            }
        }
    }

    /// It was found with something to do: registrations go on to matchers, and if it is online it hears how it stands.
    pub(super) fn look(&mut self, now: Now, key: &ClientKey, client: &mut Client, out: &mut Outbox<Output>) {
        self.propagate(now, key, client, out);
        if let Some(channel) = client.channel {
            // A new owner's digest: the client compares, whatever became of its messages to the old one.
            let down = self.down(client);
            self.send(key.hash(), channel, down, out);
            self.push_all(now, key, client, out);
        }
    }
}
