//! Leases: KeepAlives held and answered, the link's cache lease, expiry, and the ceiling under load (R3, R4, R6, R7).

use super::failover::Phase;
use super::gate::Gated;
use super::mutations::{Purpose, Work};
use super::pace::Compared;
use super::reign::{Asker, Flow, RETRY, Reign, Timer, Turn, Waiting, bad_call};
use super::sessions::{End, LONGEST_LEASE, Slot, Standing};
use super::{Measure, Output};
use crate::error;
use crate::mutant::Mutant;
use std::time::Duration;
use tidings_base::time::stretched;
use tidings_base::{Error, Mono, OpId};
use tidings_wire::v1;
use tidings_wire::v1::cell_command::Command;
use tidings_wire::v1::cell_message::Message;

/// A KeepAlive is answered when so much of the lease is left, in thirds: one. The client's end comes a tenth earlier
/// than ours and its next KeepAlive takes a round trip, on clocks that may differ by ρ.
const LEFT_THIRDS: u32 = 1;
/// What is held is answered so long before its client gives up on it.
pub(super) const BEFORE_DEADLINE: Duration = Duration::from_millis(250);
/// A session is looked at again after so long at the latest.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// More KeepAlives a second than this are load: leases are stretched. A master answers several times as many.
const BUSY_RATE: u32 = 5_000;
/// Fewer than this, and they are shortened again.
const CALM_RATE: u32 = BUSY_RATE / 4;

/// A KeepAlive that waits in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) op: OpId,
    pub(super) since: Mono,
    /// When it is answered at the latest.
    until: Mono,
    /// It waits for a barrier.
    gated: bool,
}

/// How many KeepAlives there are, and what leases that makes.
#[derive(Clone, Debug)]
pub(super) struct Load {
    since: Mono,
    answered: u32,
    /// The lease of sessions that did not ask for a shorter one than is usual; zero = what they asked for.
    floor: Duration,
    usual: Duration,
    /// A change of the ceiling is under way.
    changing: bool,
}

impl Load {
    pub(super) fn new(usual: Duration) -> Load {
        Load { since: Mono(0), answered: 0, floor: Duration::ZERO, usual, changing: false }
    }
}

impl Reign {
    pub(super) fn keep_alive(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        caller: &v1::CellCaller,
        call: Option<&v1::CellCall>,
        keep: &v1::KeepAlive,
    ) -> Result<Flow, Error> {
        let call = call.ok_or_else(|| bad_call("a KeepAlive belongs to a session"))?;
        let slot = match self.session_of(t, caller, call) {
            // R7, left out: an ended session is told that it lives.
            Err(_) if self.mutant(Mutant::Resurrection) && call.epoch == self.epoch => {
                let lease_us = self.options.lease.as_micros() as u64;
                let kept = v1::KeptAlive { epoch: self.epoch, lease_us, ..Default::default() };
                self.reply(t, asker.op, Message::KeptAlive(kept));
                return Ok(Flow::Taken);
            }
            slot => slot?,
        };
        let known = self.links.find(caller, keep.link);
        if self.sessions.get(slot).is_some_and(|session| session.link != known) {
            return Err(bad_call("a session keeps the link that it was created or resumed with"));
        }
        self.acknowledged(t, slot, keep.ack.as_ref());
        let due = self.due(slot);
        let Some(session) = self.sessions.get_mut(slot) else { return Ok(Flow::Taken) };
        let wait = match keep.wait_ms {
            0 => Mono::NEVER,
            ms => t.mono() + Duration::from_millis(ms.into()),
        };
        let until = due.min(wait).min(asker.deadline.saturating_sub(BEFORE_DEADLINE));
        let before = session.held.replace(Held { op: asker.op, since: t.mono(), until, gated: false });
        if let Some(before) = before {
            self.fail(t, before.op, error::busy("a later KeepAlive of the session came in"));
        }
        self.keep_open(t, asker, Waiting::Held(slot));
        self.settle(t, slot);
        self.schedule(t.mono(), slot);
        Ok(Flow::Taken)
    }

    /// When a lease is to be extended again.
    fn due(&self, slot: Slot) -> Mono {
        self.sessions.get(slot).map_or(Mono::NEVER, |session| {
            let left = Duration::from_millis(session.granted_ms.into()) * LEFT_THIRDS / 3;
            session.lease_end.saturating_sub(left)
        })
    }

    /// Answers a session's held KeepAlive if there is reason to: a batch that is not acknowledged, a lease that is due,
    /// news. In this order: a reply either carries a batch or extends the lease (R4), and a session that hears of
    /// something all the time must live on, too.
    pub(super) fn settle(&mut self, t: &mut Turn<'_>, slot: Slot) {
        let Some(session) = self.sessions.get(slot) else { return };
        let Some(held) = session.held else { return };
        let ending = matches!(session.standing, Standing::Ending(_));
        let in_flight = session.outgoing.as_ref().is_some_and(|outgoing| outgoing.is_in_flight());
        let news = session.outgoing.as_ref().is_some_and(|outgoing| outgoing.has_news());
        if in_flight {
            self.send_batch(t, slot, held);
        } else if t.mono() >= held.until && !ending {
            self.extend(t, slot, held);
        } else if news {
            self.form_batch(slot);
            self.send_batch(t, slot, held);
        }
    }

    /// Extends the lease: under the leader lease at once, otherwise after a barrier (R2).
    fn extend(&mut self, t: &mut Turn<'_>, slot: Slot, held: Held) {
        let Some(dated) = t.fresh else {
            if !held.gated {
                self.set_gated(slot, true);
                self.await_barrier(t, Gated::Lease(slot));
            }
            return;
        };
        let lease = self.grant(t, slot, dated);
        self.count_keep_alive(t);
        self.answer_held(t, slot, held, lease, None);
        self.schedule(t.mono(), slot);
    }

    fn set_gated(&mut self, slot: Slot, gated: bool) {
        if let Some(held) = self.sessions.get_mut(slot).and_then(|session| session.held.as_mut()) {
            held.gated = gated;
        }
    }

    /// The barrier that a lease waited for passed or did not.
    pub(super) fn lease_barrier(&mut self, t: &mut Turn<'_>, slot: Slot, passed: bool) {
        self.set_gated(slot, false);
        if passed {
            self.settle(t, slot);
        } else {
            self.retry_check(t, slot);
        }
    }

    /// Looks at a session again a little later.
    pub(super) fn retry_check(&mut self, t: &Turn<'_>, slot: Slot) {
        if let Some(session) = self.sessions.get_mut(slot) {
            session.check_at = Mono::NEVER;
            self.check_at(t.mono(), slot, t.mono() + RETRY);
        }
    }

    /// Looks at a session now, behind a barrier.
    pub(super) fn look_again(&mut self, t: &mut Turn<'_>, slot: Slot) {
        if let Some(session) = self.sessions.get_mut(slot) {
            session.check_at = t.now.mono;
            self.check_session(t, slot);
        }
    }

    fn send_batch(&mut self, t: &mut Turn<'_>, slot: Slot, held: Held) {
        let batch = self.sessions.get(slot).and_then(|session| session.outgoing.as_ref()?.batch().cloned());
        self.answer_held(t, slot, held, Duration::ZERO, batch);
    }

    fn answer_held(&mut self, t: &mut Turn<'_>, slot: Slot, held: Held, lease: Duration, batch: Option<v1::CellBatch>) {
        self.sessions.take_held(slot, held.op);
        let waited = t.mono().since(held.since);
        let (held_us, lease_us) = (waited.as_micros() as u64, lease.as_micros() as u64);
        self.reply(t, held.op, Message::KeptAlive(v1::KeptAlive { epoch: self.epoch, held_us, lease_us, batch }));
        t.out.put(Output::Measured(Measure::KeptAlive { held: waited, lease }));
    }

    /// Grants a session a lease, dated from an instant at which nobody else led, and says how much of it is left.
    /// No lease is longer than the agreed ceiling (R6).
    pub(super) fn grant(&mut self, t: &Turn<'_>, slot: Slot, dated: Mono) -> Duration {
        let (floor, usual) = (self.load.floor, self.load.usual);
        let (ceiling, ignored) = (t.state.ceiling(), self.mutant(Mutant::CeilingIgnored));
        let Some(session) = self.sessions.get_mut(slot) else { return Duration::ZERO };
        let asked = Duration::from_millis(session.lease_ms.into());
        let asked = if asked >= usual && !session.is_own() { asked.max(floor) } else { asked };
        let lease = if ignored { asked * 3 } else { asked.min(ceiling) };
        session.granted_ms = lease.as_millis() as u32;
        let end = dated + lease;
        session.lease_end = session.lease_end.max(end);
        end.since(t.mono())
    }

    /// The cache lease of a link, for all its sessions that owe nothing (R4).
    pub(super) fn renew_cache(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        caller: &v1::CellCaller,
        renew: &v1::RenewCache,
    ) -> Result<Flow, Error> {
        if !matches!(self.phase, Phase::Serving) {
            return Err(error::opening());
        }
        let Some(dated) = t.fresh else { return Ok(Flow::Fresh) };
        let end = dated + self.options.cache_lease;
        let known = self.links.find(caller, renew.link);
        if self.is_out_of_bound(t, known, caller, renew) && !self.mutant(Mutant::ClocksUnchecked) {
            return Err(error::clock_out_of_bound());
        }
        let link = known.and_then(|link| self.links.get_mut(link));
        let mut owing = Vec::new();
        if let Some(link) = link {
            link.end = link.end.max(end);
            link.ended.retain(|_, until| *until > t.now.mono);
            owing.extend(link.ended.keys().copied());
            owing.extend(link.owing.iter().filter_map(|slot| Some(self.sessions.get(*slot)?.id.0)));
        }
        let lease_us = end.since(t.mono()).as_micros() as u64;
        self.reply(t, asker.op, Message::CacheRenewed(v1::CacheRenewed { epoch: self.epoch, lease_us, owing }));
        Ok(Flow::Taken)
    }

    /// Whether the clock of a link's client runs too fast or too slow for R3, as far as can be told.
    fn is_out_of_bound(
        &mut self,
        t: &mut Turn<'_>,
        link: Option<u32>,
        caller: &v1::CellCaller,
        renew: &v1::RenewCache,
    ) -> bool {
        let Some(link) = link.and_then(|link| self.links.get_mut(link)) else { return false };
        let compared = renew.clock_us.and_then(|clock_us| link.pace.said(t.now.mono, clock_us));
        let out_of_bound = link.pace.out_of_bound;
        if let Some(Compared { ours, theirs }) = compared.filter(|_| out_of_bound) {
            let client = (caller.app.as_str().into(), caller.principal.as_str().into());
            t.out.put(Output::Measured(Measure::ClockOutOfBound { client, ours, theirs }));
        }
        out_of_bound
    }

    /// The instant from which on a session can use nothing that it has cached: its cache lease is over, or its own.
    pub(super) fn cache_bound(&self, slot: Slot) -> Mono {
        let Some(session) = self.sessions.get(slot) else { return Mono(0) };
        let link = session.link.and_then(|link| self.links.get(link)).filter(|link| !link.owing.contains(&slot));
        session.cache_end.max(link.map_or(Mono(0), |link| link.end)).min(session.lease_end)
    }

    /// Looks at a session again when its KeepAlive is due, its lease ends, or it may have been idle for too long.
    pub(super) fn schedule(&mut self, now: Mono, slot: Slot) {
        let Some(session) = self.sessions.get(slot) else { return };
        let held = session.held.map_or(Mono::NEVER, |held| held.until);
        let idle = session.last_call.max(now) + self.options.idle;
        self.check_at(now, slot, held.min(session.lease_end).min(idle));
    }

    fn check_at(&mut self, now: Mono, slot: Slot, at: Mono) {
        // Within the wheel's span: what is beyond it is looked at, and put in again.
        let at = at.min(now + LOOK_AGAIN);
        if let Some(session) = self.sessions.get_mut(slot)
            && at < session.check_at
        {
            session.check_at = at;
            self.session_wheel.put(now, at, slot);
        }
    }

    /// A session came up in the wheel. Entries of earlier settings come up, too; the session knows what is due.
    pub(super) fn check_session(&mut self, t: &mut Turn<'_>, slot: Slot) {
        let now = t.mono();
        let Some(session) = self.sessions.get_mut(slot) else { return };
        if session.check_at > now {
            return;
        }
        session.check_at = Mono::NEVER;
        if matches!(session.standing, Standing::Ending(_)) {
            return;
        }
        if session.held.is_some_and(|held| now >= held.until) {
            self.settle(t, slot);
        }
        let Some(session) = self.sessions.get(slot) else { return };
        if now >= session.lease_end {
            // A master that could have been deposed, or has lost its majority, does not know who is silent: its own
            // answers may be what did not arrive. A session whose KeepAlive waits here is not silent.
            if session.held.is_some_and(|held| held.gated) {
                return self.check_at(now, slot, now + RETRY);
            }
            if t.fresh.is_none() {
                return self.await_barrier(t, Gated::Look(slot));
            }
            return self.end_session(t, slot, End::Lost, None);
        }
        if now >= session.last_call + self.options.idle && self.is_idle(t, slot) {
            return self.end_session(t, slot, End::Idle, None);
        }
        let held = session.held.filter(|held| !held.gated).map_or(Mono::NEVER, |held| held.until);
        let idle = session.last_call + self.options.idle;
        let idle = if idle <= now { now + self.options.idle } else { idle };
        self.check_at(now, slot, held.min(session.lease_end).min(idle));
    }

    /// No handle but the root's, no watch, nothing waiting: a session that nobody would miss.
    fn is_idle(&self, t: &Turn<'_>, slot: Slot) -> bool {
        self.sessions.get(slot).is_some_and(|session| {
            session.standing == Standing::Present
                && session.watches == 0
                && session.under_way == 0
                && session.handles.iter().all(|handle| self.places.get(handle.place).path.as_str() == "/")
                && t.state.locks_of(session.id).is_empty()
        })
    }

    /// R6: leases are stretched when KeepAlives become a load; the ceiling is agreed on first.
    fn count_keep_alive(&mut self, t: &mut Turn<'_>) {
        self.load.answered += 1;
        let elapsed = t.mono().since(self.load.since);
        if elapsed < Duration::from_secs(1) {
            return;
        }
        let rate = (f64::from(self.load.answered) / elapsed.as_secs_f64()) as u32;
        (self.load.since, self.load.answered) = (t.mono(), 0);
        let floor = self.load.floor;
        if rate > BUSY_RATE && floor < LONGEST_LEASE {
            let longer = (floor.max(self.load.usual) * 2).min(LONGEST_LEASE);
            // A lower ceiling may be in the log: what was granted under the present one would outlast it.
            if t.state.ceiling() < longer {
                self.change_ceiling(t, longer);
            } else if !self.load.changing {
                self.load.floor = longer;
            }
        } else if rate < CALM_RATE && !floor.is_zero() {
            let shorter = floor / 2;
            self.load.floor = if shorter > self.load.usual { shorter } else { Duration::ZERO };
            // Lowering takes effect only after everything granted under the old ceiling has run out.
            self.timers.set(Timer::LowerCeiling, t.mono() + stretched(t.state.ceiling()));
        }
    }

    pub(super) fn lower_ceiling(&mut self, t: &mut Turn<'_>) {
        let longest = t.state.sessions().map(|(_, record)| record.lease).max().unwrap_or_default();
        let needed = longest.max(self.load.floor).max(self.load.usual);
        if needed < t.state.ceiling() {
            self.change_ceiling(t, needed);
        }
    }

    fn change_ceiling(&mut self, t: &mut Turn<'_>, to: Duration) {
        if !std::mem::replace(&mut self.load.changing, true) {
            let lease_ms = to.as_millis() as u32;
            let command = Command::SetCeiling(v1::RaiseCeiling { lease_ms, ..Default::default() });
            self.start(t, Work::own(command, Purpose::Ceiling));
        }
    }

    pub(super) fn ceiling_changed(&mut self) {
        self.load.changing = false;
    }
}
