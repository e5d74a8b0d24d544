//! F5: looking through the rows of ranges, for markers, for clients that are online, and for those long gone.

use super::spread::WINDOW;
use super::state::{Client, State, Work};
use super::{Output, Registrar, Step, Timer};
use crate::held::HeldRange;
use crate::mutant::Mutant;
use crate::names::ClientKey;
use crate::rows::{self, CREATED, LAST_SEQNO, PENDING_OF, PRESENCE, REGISTRAR, StoreReply, StoreResult, Stretch};
use std::time::Duration;
use tidings_base::{KeyRange, Now, Outbox};
use tidings_wire::v1;

/// Rows of one page.
const PAGE: u32 = 32;
/// Clients that are being read at a time before the next page waits.
const MAX_LOADING: usize = 256;
/// Until what was dropped is looked for.
const RESCAN_PAUSE: Duration = Duration::from_millis(500);

/// Until rows that could not be read are tried again.
const UNREAD_PAUSE: Duration = Duration::from_secs(1);
/// Clients that could not be read and are to be scrubbed; what comes beyond is scrubbed the next time.
const MAX_UNSCRUBBED: usize = 65_536;

/// A look through the rows of a range. One for what is to be done and one for a scrub may be under way at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub held: HeldRange,
    /// F3: every client's registrations go to their matchers again.
    pub scrub: bool,
    /// Rows that could not be read are tried again: others need not wait for that.
    retried: bool,
}

impl Look {
    fn new(held: HeldRange, scrub: bool) -> Look {
        Look { held, scrub, retried: false }
    }

    fn part(self, range: KeyRange) -> Look {
        Look { held: HeldRange { range, ..self.held }, ..self }
    }
}

impl Registrar {
    fn scan(&mut self, look: Look, stretch: Stretch, out: &mut Outbox<Output>) {
        if self.realm.is_none() || self.is(Mutant::NoRecovery) {
            return;
        }
        let request = rows::scan(REGISTRAR, stretch.span(self.incarnation()), PAGE, &[]);
        let id = self.store(Step::Scanning(look, stretch), request, out);
        if look.scrub {
            self.scrub_page = Some(id);
        }
    }

    /// Begins a look; a scrub waits for its turn.
    fn begin(&mut self, look: Look, out: &mut Outbox<Output>) {
        let stretch = Stretch::new(look.held.range);
        match look.scrub {
            true => self.parked.push_back((look, stretch)),
            false => self.scan(look, stretch, out),
        }
    }

    /// Whether a look is under way.
    fn is_looking(&self, scrub: bool) -> bool {
        let same = |look: &Look| look.scrub == scrub && !look.retried;
        let scanned = |step: &Step| matches!(step, Step::Scanning(look, _) if same(look));
        self.parked.iter().any(|(look, _)| same(look)) || self.steps.values().any(scanned)
    }

    /// Looks through all ranges, unless that is under way; whether it has begun.
    pub(super) fn scan_all(&mut self, scrub: bool, out: &mut Outbox<Output>) -> bool {
        if self.is_looking(scrub) {
            return false;
        }
        // What could not be read is among them.
        self.unread.retain(|look| look.scrub != scrub);
        self.parked.retain(|(look, _)| look.scrub != scrub);
        self.steps.retain(|_, step| !matches!(step, Step::Scanning(look, _) if look.scrub == scrub));
        let all: Vec<HeldRange> = self.held.all().copied().collect();
        all.into_iter().for_each(|held| self.begin(Look::new(held, scrub), out));
        self.unpark(out);
        true
    }

    /// F5: looks through ranges that were gained, and through what is still held where looks were ended.
    pub(super) fn scan_some(&mut self, gained: &[HeldRange], ended: &[Look], out: &mut Outbox<Output>) {
        let all: Vec<HeldRange> = self.held.all().copied().collect();
        for held in all {
            for scrub in [false, true] {
                let ends = |look: &Look| look.scrub == scrub && look.held.range.overlaps(held.range);
                if ended.iter().any(ends) || !scrub && gained.contains(&held) {
                    self.begin(Look::new(held, scrub), out);
                }
            }
        }
        self.unpark(out);
    }

    /// Ends all looks that touch a range; which.
    pub(super) fn end_looks(&mut self, range: KeyRange) -> Vec<Look> {
        let mut ended = Vec::new();
        let mut stays = |look: &Look| {
            let touched = range.overlaps(look.held.range);
            ended.extend(touched.then_some(*look));
            !touched
        };
        self.unread.retain(&mut stays);
        self.parked.retain(|(look, _)| stays(look));
        self.steps.retain(|_, step| !matches!(step, Step::Scanning(look, _) if !stays(look)));
        ended
    }

    /// F3: rows are others from now on: whatever look was under way begins anew.
    pub(super) fn look_anew(&mut self, out: &mut Outbox<Output>) {
        let unread = std::mem::take(&mut self.unread);
        let parked = std::mem::take(&mut self.parked);
        let mut scrub = unread.iter().chain(parked.iter().map(|(look, _)| look)).any(|look| look.scrub);
        self.steps.retain(|_, step| match step {
            Step::Scanning(look, _) => {
                scrub |= look.scrub;
                false
            }
            _ => true,
        });
        self.scan_all(false, out);
        if scrub {
            self.scan_all(true, out);
        }
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
        match stretch.halves() {
            Some(halves) if look.scrub => {
                self.parked.extend(halves.into_iter().map(|half| (look.part(half.range), half)));
                self.unpark(out);
            }
            Some(halves) => halves.into_iter().for_each(|half| self.scan(look.part(half.range), half, out)),
            None => self.read_later(now, look.part(stretch.range)),
        }
    }

    fn read_later(&mut self, now: Now, look: Look) {
        self.unread.push(Look { retried: true, ..look });
        self.try_later(now);
    }

    fn try_later(&mut self, now: Now) {
        if self.timers.at(&Timer::Unread).is_none() {
            self.timers.set(Timer::Unread, now.mono + UNREAD_PAUSE);
        }
    }

    pub(super) fn read_again(&mut self, now: Now, out: &mut Outbox<Output>) {
        std::mem::take(&mut self.unread).into_iter().for_each(|look| self.begin(look, out));
        for key in std::mem::take(&mut self.unscrubbed) {
            match self.has_room_to_scrub() {
                true => self.give(now, &key, Work::Scrub, out),
                false => self.scrub_later(now, &key),
            }
        }
        self.unpark(out);
    }

    /// F3: a client whose row could not be read is scrubbed later.
    pub(super) fn scrub_later(&mut self, now: Now, key: &ClientKey) {
        if self.unscrubbed.len() < MAX_UNSCRUBBED {
            self.unscrubbed.insert(key.clone());
        }
        self.try_later(now);
    }

    /// Goes on with pages that wait, as far as there is room.
    pub(super) fn unpark(&mut self, out: &mut Outbox<Output>) {
        while self.loading < MAX_LOADING && !self.parked.is_empty() {
            let scrubs = self.has_room_to_scrub();
            let next = self.parked.iter().position(|(look, _)| scrubs || !look.scrub);
            let Some((look, stretch)) = next.and_then(|at| self.parked.remove(at)) else { return };
            if self.held.lease(look.held.range.start) == Some(look.held.lease) {
                self.scan(look, stretch, out);
            }
        }
    }

    /// F3: a scrub is read one page at a time, and half of the room is left to changes; whoever is being read may take a window.
    fn has_room_to_scrub(&self) -> bool {
        let reads = self.scrub_page.is_some_and(|id| self.steps.contains_key(&id));
        let taken = self.pending + self.loading * WINDOW;
        !reads && taken < (self.options.max_pending / 2).max(1)
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
            // Should its row not be read, it is looked for.
            Some(client) if client.state == State::Loading && (marked || has(PRESENCE)) => client.looks(),
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
