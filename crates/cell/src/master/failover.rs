//! Taking over: `NewMaster`, sessions that come back, opening (seed §2.9; R1, R6, R7, step 2 of the specification).

use super::handles::MAX_HANDLES;
use super::mutations::{Purpose, Work};
use super::reign::{Asker, Flow, RETRY, Reign, Timer, Turn, bad_call};
use super::sessions::{End, Session, Slot, Standing};
use super::{Measure, Output};
use crate::SessionId;
use crate::error;
use crate::mutant::Mutant;
use ring::hmac;
use std::time::Duration;
use tidings_base::Error;
use tidings_base::time::stretched;
use tidings_wire::v1;
use tidings_wire::v1::cell_command::Command;
use tidings_wire::v1::cell_message::Message;
use tidings_wire::v1::cell_result::Result as Outcome;

/// How far a reign has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// `NewMaster` is not applied: there is no epoch yet.
    Starting,
    /// Only KeepAlives and resumptions are answered; so many sessions have not come back.
    Opening { absent: usize },
    /// Open.
    Serving,
}

impl Reign {
    /// 32 bytes that nobody can guess and no other purpose of this process gets.
    pub(super) fn fresh_secret(&self, label: &str) -> Vec<u8> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.options.secret);
        hmac::sign(&key, format!("{label} {}", self.last_op).as_bytes()).as_ref().to_vec()
    }

    /// R1: the reign begins with a committed `NewMaster`.
    pub(super) fn begin(&mut self, t: &mut Turn<'_>) {
        let secret = self.fresh_secret("new master").into();
        let cache_lease_ms = self.cache_lease_ms();
        let command = Command::NewMaster(v1::NewMaster { node: self.options.node.0, secret, cache_lease_ms });
        self.start(t, Work::own(command, Purpose::NewMaster));
    }

    /// `NewMaster` was applied: this is the epoch. Every session of the state gets a lease that no client's belief
    /// outlasts, and is waited for.
    pub(super) fn begun(&mut self, t: &mut Turn<'_>, outcome: &Result<Outcome, Error>) {
        let Ok(Outcome::NewMaster(done)) = outcome else {
            return self.timers.set(Timer::Begin, t.mono() + RETRY);
        };
        self.epoch = done.epoch;
        let now = t.mono();
        let most = match self.mutant(Mutant::CeilingIgnored) {
            true => self.options.lease / 4,
            false => stretched(t.state.ceiling()),
        };
        self.adopt_for(t, most);
        if self.options.alone {
            self.end_forsaken(t);
        }
        self.start_delays(t);
        // Who was ended by order cannot say any more that it has flushed.
        let awaited = |session: &Session| session.is_awaited() || session.ends_by_order();
        let absent = self.sessions.iter().filter(|(_, session)| awaited(session)).count();
        self.phase = Phase::Opening { absent };
        // R6: cached copies may be in use until the last cache lease of an earlier master is over, however long it made
        // them.
        let granted = Duration::from_millis(done.cache_lease_ms.into()).max(self.options.cache_lease);
        self.timers.set(Timer::Open, now + stretched(granted));
        if granted > self.options.cache_lease {
            self.timers.set(Timer::LowerCacheLease, now + stretched(granted));
        }
        if absent == 0 || self.mutant(Mutant::OpensAtOnce) {
            self.open_cell(t);
        }
    }

    /// Takes sessions of the state that are not known here: they began before this epoch, or under it with an outcome
    /// that nobody heard.
    pub(super) fn adopt(&mut self, t: &mut Turn<'_>) {
        self.adopt_for(t, stretched(t.state.ceiling()));
    }

    /// Gives each the longest lease that any client may believe in; of the platform's own, what they asked for. What an
    /// operator ended goes on ending.
    fn adopt_for(&mut self, t: &mut Turn<'_>, most: Duration) {
        for (id, record) in t.state.sessions() {
            if self.sessions.find(id).is_none() {
                let slot = self.sessions.add(id, &record.caller.app, record.lease, Standing::Absent, t.mono());
                if let Some(session) = self.sessions.get_mut(slot) {
                    let lease = if session.is_own() { stretched(record.lease) } else { most };
                    session.lease_end = t.mono() + lease;
                }
                match record.ordered {
                    true => self.end_session(t, slot, End::Ordered, None),
                    false => self.schedule(t.mono(), slot),
                }
            }
        }
    }

    /// A fast single node: sessions that earlier processes of this node kept end at once, whatever leases they had, and
    /// nobody waits for their caches.
    fn end_forsaken(&mut self, t: &mut Turn<'_>) {
        let kept = t.state.sessions().filter(|(_, record)| record.keeper == self.options.node.0);
        let forsaken: Vec<Slot> = kept.filter_map(|(id, _)| self.sessions.find(id)).collect();
        forsaken.into_iter().for_each(|slot| self.end_session(t, slot, End::Lost, None));
    }

    /// One session less to wait for.
    pub(super) fn one_less_absent(&mut self, t: &mut Turn<'_>) {
        if let Phase::Opening { absent } = &mut self.phase {
            *absent = absent.saturating_sub(1);
            if *absent == 0 {
                self.open_cell(t);
            }
        }
    }

    /// Nobody can hold a copy that this master does not know of: serves from now on.
    pub(super) fn open_cell(&mut self, t: &mut Turn<'_>) {
        if !matches!(self.phase, Phase::Opening { .. }) {
            return;
        }
        self.phase = Phase::Serving;
        self.timers.cancel(&Timer::Open);
        self.timers.set(Timer::Gauges, t.mono());
        self.timers.set(Timer::Rotate, t.mono() + self.options.rotate);
        // R6: what an earlier master raised it for may be over; what that one granted runs out first.
        self.timers.set(Timer::LowerCeiling, t.mono() + stretched(t.state.ceiling()));
        t.out.put(Output::Measured(Measure::FailOver(t.mono().since(self.since))));
        let ending: Vec<Slot> =
            self.sessions.iter().filter(|(_, session)| session.is_ending()).map(|(slot, _)| slot).collect();
        ending.into_iter().for_each(|slot| self.try_stop(t, slot));
        self.reap(t);
    }

    fn cache_lease_ms(&self) -> u32 {
        u32::try_from(self.options.cache_lease.as_millis()).unwrap_or(u32::MAX)
    }

    /// R6: a lower ceiling takes effect once everything granted under the old one is over. It is tried until it is agreed on.
    pub(super) fn lower_cache_lease(&mut self, t: &mut Turn<'_>) {
        let own = self.cache_lease_ms();
        let agreed = t.state.cache_lease_ms();
        if agreed <= own {
            return;
        }
        if matches!(self.phase, Phase::Serving) {
            let lower = v1::RaiseCeiling { cache_lease_ms: Some(own), ..Default::default() };
            self.start(t, Work::own(Command::SetCeiling(lower), Purpose::Operate));
        }
        self.timers.set(Timer::LowerCacheLease, t.mono() + stretched(Duration::from_millis(agreed.into())));
    }

    /// R12: new handles and sequencers are made with a new key; those of the kept older ones are good still.
    pub(super) fn rotate_keys(&mut self, t: &mut Turn<'_>) {
        let secret = self.fresh_secret("rotate").into();
        self.start(t, Work::own(Command::RotateKeys(v1::RotateKeys { secret }), Purpose::Operate));
        self.timers.set(Timer::Rotate, t.mono() + self.options.rotate);
    }

    /// A session's first message in this epoch: it has flushed, and presents its handles. Safe only if it still exists
    /// (R7). Coming a second time, because the answer was lost, it changes nothing: the client may have cached and
    /// closed things since the first.
    pub(super) fn resume_session(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        caller: &v1::CellCaller,
        call: Option<&v1::CellCall>,
        resume: &v1::ResumeSession,
    ) -> Result<Flow, Error> {
        let call = call.ok_or_else(|| bad_call("a resumption names its session"))?;
        if resume.handles.len() > MAX_HANDLES {
            return Err(error::too_many_handles(MAX_HANDLES));
        }
        let Some(dated) = t.fresh else { return Ok(Flow::Fresh) };
        let id = SessionId(call.session);
        let slot = match self.own_session(t, caller, call) {
            // R7, left out: whoever comes back is safe.
            Err(_) if self.mutant(Mutant::Resurrection) => {
                self.answer_resume(t, asker, id, self.options.lease, Vec::new());
                return Ok(Flow::Taken);
            }
            slot => slot?,
        };
        // It may have flushed for another master and cached since: only what was said to this one counts.
        if resume.epoch != self.epoch {
            self.reply(t, asker.op, Message::ResumeNeeded(v1::ResumeNeeded { epoch: self.epoch }));
            return Ok(Flow::Taken);
        }
        let absent = self.sessions.get(slot).is_some_and(|session| session.standing == Standing::Absent);
        let awaited = self.sessions.get(slot).is_some_and(|session| session.is_awaited());
        let gone = if absent {
            self.attach(slot, caller, resume.link);
            if let Some(session) = self.sessions.get_mut(slot) {
                (session.standing, session.last_call) = (Standing::Present, t.mono());
            }
            self.rebuild_handles(t, slot, id, &resume.handles)
        } else {
            self.missing_handles(t, slot, &resume.handles)
        };
        let owes = self.sessions.get(slot).is_some_and(|session| session.outgoing.is_some());
        let lease = if owes { Duration::ZERO } else { self.grant(t, slot, dated) };
        self.schedule(t.mono(), slot);
        self.answer_resume(t, asker, id, lease, gone);
        if awaited {
            self.one_less_absent(t);
        }
        Ok(Flow::Taken)
    }

    fn answer_resume(&mut self, t: &mut Turn<'_>, asker: Asker, id: SessionId, lease: Duration, gone: Vec<u64>) {
        let held = t.state.locks_of(id);
        let locks = held.iter().filter_map(|(place, handle)| {
            let lock = t.state.lock(place)?;
            let (mode, generation) = (lock.mode as i32, lock.generation);
            Some(v1::HeldLock { handle: handle.0, mode, generation, path: place.path.as_str().to_owned() })
        });
        let resumed = v1::SessionResumed {
            epoch: self.epoch,
            incarnation: t.state.incarnation().0,
            held_us: 0,
            lease_us: lease.as_micros() as u64,
            locks: locks.collect(),
            gone,
        };
        self.reply(t, asker.op, Message::SessionResumed(resumed));
    }

    /// Deletes ephemeral nodes that nobody has open: directories that became empty.
    pub(super) fn reap(&mut self, t: &mut Turn<'_>) {
        for (place, instance) in t.state.reapable() {
            if self.reaping.insert(place.clone()) {
                let (app, path) = (place.app.to_string(), place.path.as_str().to_owned());
                let command = Command::ReapEphemeral(v1::ReapEphemeral { app, path, instance });
                self.start(t, Work::own(command, Purpose::Reap(place)));
            }
        }
    }

    /// What a session that ended leaves behind: nodes that are gone, locks that are free or held back.
    pub(super) fn after_stop(&mut self, t: &mut Turn<'_>, places: &[crate::path::Place]) {
        for place in places {
            match t.state.lock(place) {
                None => self.node_removed(t, place),
                Some(lock) => {
                    let delay = lock.delay;
                    let id = self.places.hold(place);
                    if let Some(delay) = delay {
                        self.start_delay(t.mono(), id, delay);
                    }
                    self.pump(t, id);
                    self.places.release(id);
                }
            }
        }
        self.reap(t);
    }

    /// The cell was replaced by a backup: nothing of before exists.
    pub(super) fn restored(&mut self, t: &mut Turn<'_>) {
        let ended: Vec<_> = (self.sessions.iter())
            .filter(|(_, session)| t.state.session(session.id).is_none())
            .map(|(slot, _)| slot)
            .collect();
        ended.into_iter().for_each(|slot| self.forget_session(t, slot));
        self.start_delays(t);
    }

    fn start_delays(&mut self, t: &mut Turn<'_>) {
        let delays: Vec<_> = t.state.locks().filter_map(|(place, lock)| Some((place.clone(), lock.delay?))).collect();
        for (place, delay) in delays {
            let id = self.places.hold(&place);
            self.start_delay(t.mono(), id, delay);
            self.places.release(id);
        }
    }
}
