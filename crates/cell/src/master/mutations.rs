//! Changes on their way: cleared, proposed, applied; repeats, refusals and unknown outcomes (seed §2.7, R8).
//!
//! ```text
//!   start ──▶ Clearing: keys blocked, invalidations out ──▶ Proposed ──▶ applied: unblock, events, answer
//!                     (c) acknowledged, or cache leases over   └──▶ Doubtful ──▶ CellNothing applied: now it is known
//! ```

use super::caching::Blocked;
use super::handles::Opening;
use super::locks::Waiter;
use super::places::PlaceId;
use super::reign::{Asker, Caller, Flow, RETRY, Reign, Timer, Turn, Waiting, bad_call, refusal_error, unknown_outcome};
use super::sessions::{Begun, Slot};
use super::{Measure, Output};
use crate::error;
use crate::namespace::WINDOW;
use crate::path::Place;
use crate::{HandleNumber, SessionId};
use bytes::Bytes;
use prost::Message as _;
use std::time::Duration;
use tidings_base::agreed::{Ask, Refusal};
use tidings_base::{Error, Mono, OpId};
use tidings_wire::v1;
use tidings_wire::v1::cell_command::Command;
use tidings_wire::v1::cell_message::Message;
use tidings_wire::v1::cell_result::Result as Outcome;

/// What a change is for: what to do when it is decided.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    NewMaster,
    Start {
        arrived: Mono,
        caller: Box<v1::CellCaller>,
        lease: Duration,
        link: u64,
    },
    /// With the places whose locks or nodes it may free.
    Stop {
        slot: Slot,
        id: SessionId,
        places: Vec<Place>,
    },
    Open(Box<Opening>),
    Close {
        place: PlaceId,
        handle: HandleNumber,
        holds: bool,
    },
    Contents(Place),
    Acl(Place),
    /// With who held the lock when it was asked for.
    Remove(Place, Vec<(SessionId, HandleNumber)>),
    Take {
        place: PlaceId,
        waiter: Waiter,
    },
    Free {
        place: PlaceId,
        handle: HandleNumber,
    },
    /// With the delay's number.
    EndDelay(PlaceId, u64),
    Reap(Place),
    Ceiling,
    /// R12: with who waits for it.
    CloseHandles(Vec<OpId>),
    /// An operator's word that this session ends.
    Order(SessionId),
    /// Quotas and pieces of a restore.
    Operate,
    /// The last piece of a restore.
    Restore,
    /// Decides the doubtful.
    Nothing,
}

/// Something to be started.
pub(super) struct Work {
    command: Command,
    purpose: Purpose,
    session: Option<(Slot, v1::CellActor)>,
    asker: Option<Asker>,
    outwait: Option<Slot>,
}

impl Work {
    /// On the master's own account.
    pub(super) fn own(command: Command, purpose: Purpose) -> Work {
        Work { command, purpose, session: None, asker: None, outwait: None }
    }

    /// In a session's name.
    pub(super) fn of(slot: Slot, call: &v1::CellCall, command: Command, purpose: Purpose) -> Work {
        let (session, number, answered_below) = (call.session, call.number, call.answered_below);
        let session = Some((slot, v1::CellActor { session, number, answered_below }));
        Work { command, purpose, session, asker: None, outwait: None }
    }

    /// Somebody waits for its answer.
    pub(super) fn asked(self, asker: Asker) -> Work {
        Work { asker: Some(asker), ..self }
    }

    /// Not before this session can use nothing that it cached.
    pub(super) fn after(self, slot: Slot) -> Work {
        Work { outwait: Some(slot), ..self }
    }
}

/// How far a change has come.
#[derive(Clone, Debug)]
enum Stage {
    /// Waits for so many acknowledgements; then this is proposed.
    Clearing(u32, Bytes),
    Proposed,
    /// It may or may not be applied; it is, if at all, before this entry.
    Doubtful(Option<OpId>),
}

/// A change under way.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) purpose: Purpose,
    session: Option<(Slot, SessionId, u64)>,
    pub(super) asker: Option<Asker>,
    blocked: Blocked,
    stage: Stage,
    /// When it was started, then when it was proposed.
    at: Mono,
}

impl Change {
    /// Whether its outcome is not in this master's hands any more.
    pub(super) fn is_proposed(&self) -> bool {
        !matches!(self.stage, Stage::Clearing(..))
    }
}

impl Reign {
    /// Starts a change; its name.
    pub(super) fn start(&mut self, t: &mut Turn<'_>, work: Work) -> OpId {
        let Work { command, purpose, session, asker, outwait } = work;
        let (slot, actor) = session.unzip();
        let command = v1::CellCommand { actor, epoch: self.epoch, command: Some(command) };
        let touched = t.state.touches(&command);
        let encoded = Bytes::from(command.encode_to_vec());
        let id = self.new_op();
        let (blocked, mut waits) = match touched {
            touched if touched.is_empty() => (Blocked::default(), 0),
            touched => self.clear(t, id, touched, slot),
        };
        if let Some(slot) = outwait {
            waits += u32::from(self.outwait(t, slot, id));
        }
        let session = slot.zip(command.actor).map(|(slot, actor)| (slot, SessionId(actor.session), actor.number));
        if let Some((slot, _, number)) = session {
            self.numbered.insert((slot, number), id);
            if let Some(session) = self.sessions.get_mut(slot) {
                session.under_way += 1;
                if let Purpose::Open(opening) = &purpose {
                    session.opening.add(opening);
                }
            }
        }
        if let Some(asker) = asker {
            self.keep_open(t, asker, Waiting::Change(id));
        }
        let stage = Stage::Clearing(waits, encoded);
        self.changes.insert(id, Change { purpose, session, asker, blocked, stage, at: t.mono() });
        if waits == 0 {
            self.propose(t, id);
        }
        id
    }

    /// One acknowledgement less to wait for.
    pub(super) fn one_less_wait(&mut self, t: &mut Turn<'_>, id: OpId) {
        if let Some(Change { stage: Stage::Clearing(waits, _), .. }) = self.changes.get_mut(&id) {
            *waits = waits.saturating_sub(1);
            if *waits == 0 {
                self.propose(t, id);
            }
        }
    }

    /// (d): nobody can hold a copy any more.
    fn propose(&mut self, t: &mut Turn<'_>, id: OpId) {
        let Some(change) = self.changes.get_mut(&id) else { return };
        let Stage::Clearing(_, command) = std::mem::replace(&mut change.stage, Stage::Proposed) else { return };
        let waited = t.mono().since(change.at);
        change.at = t.mono();
        if !waited.is_zero() {
            t.out.put(Output::Measured(Measure::InvalidationWait(waited)));
        }
        t.out.put(Output::Ask(Ask::Propose { op: id, command }));
        // A release in the log is as good as done: the next holder's grant follows right behind it.
        match &change.purpose {
            Purpose::Free { place, handle } | Purpose::Close { place, handle, holds: true } => {
                let (place, handle) = (*place, *handle);
                if let Some((_, session, _)) = change.session {
                    self.locks.freeing(place, session, handle);
                    self.pump(t, place);
                }
            }
            _ => {}
        }
    }

    /// Takes a change back that was not proposed yet; `None` = it was.
    pub(super) fn abort(&mut self, t: &mut Turn<'_>, id: OpId) -> Option<Purpose> {
        let clearing = self.changes.get(&id).is_some_and(|change| !change.is_proposed());
        if !clearing {
            return None;
        }
        let change = self.end_change(t, id)?;
        if let Some(asker) = change.asker {
            self.fail(t, asker.op, cancelled());
        }
        Some(change.purpose)
    }

    /// Takes a change out: it is decided.
    fn end_change(&mut self, t: &mut Turn<'_>, id: OpId) -> Option<Change> {
        let change = self.changes.remove(&id)?;
        self.unblock(&change.blocked);
        if let Some((slot, session, number)) = change.session
            && let Some(known) = self.sessions.get_mut(slot).filter(|known| known.id == session)
        {
            known.under_way -= 1;
            if let Purpose::Open(opening) = &change.purpose {
                known.opening.remove(opening);
            }
            let last = known.under_way == 0;
            self.numbered.remove(&(slot, number));
            if last {
                self.try_stop(t, slot);
            }
        }
        Some(change)
    }

    /// A proposal was applied.
    pub(super) fn applied(&mut self, t: &mut Turn<'_>, id: OpId, result: &[u8]) {
        // What this version of the state answers, this version can read; a bug here must not look like an answer.
        let result = v1::CellResult::decode(result).ok().and_then(|result| result.result);
        self.decided(t, id, result);
    }

    fn decided(&mut self, t: &mut Turn<'_>, id: OpId, result: Option<Outcome>) {
        let Some(change) = self.end_change(t, id) else { return };
        let outcome = match result {
            Some(Outcome::Error(error)) => Err(Error::from(error)),
            Some(outcome) => Ok(outcome),
            None => Err(unknown_outcome()),
        };
        let slot = change.session.map(|(slot, ..)| slot).filter(|_| outcome.is_ok());
        if let Some(slot) = slot {
            self.drop_own_interest(slot, &change.blocked);
        }
        self.follow(t, id, change, outcome);
    }

    /// What follows from a decided change.
    fn follow(&mut self, t: &mut Turn<'_>, id: OpId, change: Change, outcome: Result<Outcome, Error>) {
        let Change { purpose, session, asker, at, .. } = change;
        let slot = session.map(|(slot, ..)| slot);
        match purpose {
            Purpose::NewMaster => return self.begun(t, &outcome),
            Purpose::Start { arrived, caller, lease, link } => {
                return match outcome {
                    Ok(Outcome::StartSession(done)) => {
                        let begun = Begun { arrived, caller, lease, link };
                        self.session_started(t, asker, SessionId(done.session), begun, at)
                    }
                    Ok(_) => {}
                    Err(error) => self.fail_asker(t, asker, error),
                };
            }
            Purpose::Stop { slot, id: session, places } => {
                self.session_stopped(t, slot, session, outcome.is_err());
                return self.after_stop(t, &places);
            }
            Purpose::Order(session) if outcome.is_ok() => return self.end_ordered(t, asker, session),
            Purpose::Open(opening) => return self.open_decided(t, slot, asker, &opening, outcome),
            Purpose::Take { place, waiter } => return self.take_decided(t, asker, place, waiter, outcome),
            Purpose::CloseHandles(ops) => return self.closes_decided(t, ops, outcome.map(|_| ())),
            Purpose::Close { place, handle, holds } => {
                self.close_decided(t, session, place, handle, holds, outcome.is_ok());
            }
            Purpose::Free { place, handle } => self.free_decided(t, session, place, handle),
            Purpose::EndDelay(place, number) => self.delay_decided(t, place, number),
            Purpose::Contents(place) if outcome.is_ok() => self.contents_changed(t, &place),
            Purpose::Acl(place) if outcome.is_ok() => self.child_changed(t, &place),
            Purpose::Remove(place, holders) if outcome.is_ok() => {
                self.locks_lost(&holders);
                self.node_removed(t, &place);
            }
            Purpose::Reap(place) => {
                self.reaping.remove(&place);
                if outcome.is_ok() {
                    self.node_removed(t, &place);
                }
            }
            Purpose::Ceiling => self.ceiling_changed(),
            Purpose::Restore if outcome.is_ok() => self.restored(t),
            Purpose::Nothing => self.decide_doubtful(t, id),
            _ => {}
        }
        match outcome {
            Ok(outcome) => self.done(t, slot, asker, &outcome),
            Err(error) => self.fail_asker(t, asker, error),
        }
    }

    /// Answers a change that was made.
    fn done(&mut self, t: &mut Turn<'_>, slot: Option<Slot>, asker: Option<Asker>, outcome: &Outcome) {
        let stamp = slot.and_then(|slot| self.raised_stamp(slot));
        let Some(asker) = asker else { return };
        let stat = match outcome {
            Outcome::Applied(applied) => applied.stat.clone(),
            _ => None,
        };
        self.reply(t, asker.op, Message::Done(v1::CellDone { stat, stamp }));
    }

    pub(super) fn fail_asker(&mut self, t: &mut Turn<'_>, asker: Option<Asker>, error: Error) {
        if let Some(asker) = asker {
            self.fail(t, asker.op, error);
        }
    }

    /// The log did not take a proposal: it is applied nowhere.
    pub(super) fn refused(&mut self, t: &mut Turn<'_>, id: OpId, refusal: Refusal) {
        let Some(change) = self.end_change(t, id) else { return };
        let (error, leader) = refusal_error(refusal);
        if let Some(asker) = change.asker {
            self.ops.remove(&asker.op);
            t.out.put(Output::Fail { op: asker.op, error: error.clone(), leader });
        }
        self.not_made(t, change, error);
    }

    /// A change was not made and nobody is to be answered any more: the master's own are tried again.
    fn not_made(&mut self, t: &mut Turn<'_>, change: Change, error: Error) {
        let again = t.mono() + RETRY;
        match change.purpose {
            Purpose::NewMaster => self.timers.set(Timer::Begin, again),
            Purpose::Stop { slot, id, places } => {
                self.session_stopped(t, slot, id, true);
                if t.state.session(id).is_none() {
                    self.after_stop(t, &places);
                }
            }
            Purpose::Take { place, waiter } => self.take_decided(t, None, place, waiter, Err(error)),
            Purpose::CloseHandles(ops) => self.closes_decided(t, ops, Err(error)),
            // Nobody heard what came of it: the state knows.
            Purpose::Order(id) if t.state.session(id).is_some_and(|record| record.ordered) => {
                self.end_ordered(t, None, id);
            }
            Purpose::Free { place, handle } | Purpose::Close { place, handle, holds: true } => {
                self.free_decided(t, change.session, place, handle);
            }
            Purpose::Close { place, .. } => self.places.release(place),
            Purpose::EndDelay(place, number) => self.delay_decided(t, place, number),
            Purpose::Reap(place) => {
                self.reaping.remove(&place);
                if t.state.instance(&place).is_none() {
                    self.node_removed(t, &place);
                }
                self.timers.set(Timer::Reap, again);
            }
            Purpose::Ceiling => self.ceiling_changed(),
            Purpose::Nothing => self.timers.set(Timer::Decide, again),
            _ => {}
        }
    }

    /// A proposal may or may not be applied. Its keys stay blocked until something behind it is applied.
    pub(super) fn doubtful(&mut self, t: &mut Turn<'_>, id: OpId) {
        let Some(change) = self.changes.get_mut(&id) else { return };
        match change.purpose {
            // A later one decides as well, and raises the epoch once more.
            Purpose::NewMaster | Purpose::Nothing => self.refused(t, id, Refusal::Busy),
            _ => {
                change.stage = Stage::Doubtful(None);
                self.decide(t);
            }
        }
    }

    /// Proposes something that decides the doubtful, those included whose decider the log did not take.
    pub(super) fn decide(&mut self, t: &mut Turn<'_>) {
        let undecided = |change: &Change| match change.stage {
            Stage::Doubtful(decider) => decider.is_none_or(|decider| !self.changes.contains_key(&decider)),
            _ => false,
        };
        let doubtful: Vec<OpId> =
            self.changes.iter().filter(|(_, change)| undecided(change)).map(|(id, _)| *id).collect();
        if doubtful.is_empty() {
            return;
        }
        let decider = self.start(t, Work::own(Command::Nothing(v1::CellNothing {}), Purpose::Nothing));
        for id in doubtful {
            if let Some(change) = self.changes.get_mut(&id) {
                change.stage = Stage::Doubtful(Some(decider));
            }
        }
    }

    /// `CellNothing` was applied: what came before it was applied, and its result is in the window, or never will be.
    fn decide_doubtful(&mut self, t: &mut Turn<'_>, applied: OpId) {
        // Deciders are proposed in the order of their names.
        let doubtful: Vec<OpId> = (self.changes.iter())
            .filter(|(_, change)| matches!(change.stage, Stage::Doubtful(Some(decider)) if decider <= applied))
            .map(|(id, _)| *id)
            .collect();
        for id in doubtful {
            let session = self.changes.get(&id).and_then(|change| change.session);
            match session.and_then(|(_, session, number)| t.state.result(session, number)) {
                Some(result) => self.decided(t, id, result.result),
                None => self.undone(t, id),
            }
        }
    }

    /// A doubtful change has left no result: a session's was not applied; the master's own are looked at in the state.
    fn undone(&mut self, t: &mut Turn<'_>, id: OpId) {
        let Some(change) = self.end_change(t, id) else { return };
        let error = match change.session {
            Some(_) => error::busy("the change was not taken"),
            None => unknown_outcome(),
        };
        self.fail_asker(t, change.asker, error.clone());
        match change.purpose {
            Purpose::Restore => self.restored(t),
            Purpose::Start { .. } => self.adopt(t),
            _ => self.not_made(t, change, error),
        }
    }

    /// R8: a repeat finds its first one under way, or its answer in the window. Says what was answered, or that the
    /// repeat was attached.
    pub(super) fn repeated(&mut self, t: &Turn<'_>, asker: Asker, by: Caller<'_>) -> Result<Repeat, Error> {
        if by.call.number == 0 {
            return Err(bad_call("a change has a number"));
        }
        // The client has the answer: this copy is late. R12: what it opened may have been closed since.
        if self.sessions.get(by.slot).is_some_and(|session| by.call.number < session.answered_below) {
            return Err(error::answered_already(by.call.number));
        }
        self.within_window(by.slot, by.call.number)?;
        if let Some(id) = self.numbered.get(&(by.slot, by.call.number)).copied()
            && let Some(change) = self.changes.get_mut(&id)
        {
            let before = change.asker.replace(asker);
            self.keep_open(t, asker, Waiting::Change(id));
            return Ok(Repeat::Attached(before));
        }
        let result = t.state.result(SessionId(by.call.session), by.call.number);
        Ok(result.and_then(|result| result.result).map_or(Repeat::No, Repeat::Answered))
    }

    /// The log would refuse a number that is too far from the first unanswered one; what is remembered by number here is
    /// bounded by the same.
    pub(super) fn within_window(&self, slot: Slot, number: u64) -> Result<(), Error> {
        let floor = self.sessions.get(slot).map_or(0, |session| session.answered_below);
        match number.saturating_sub(floor) >= WINDOW {
            true => Err(error::too_many_outstanding(WINDOW)),
            false => Ok(()),
        }
    }

    /// Deals with a repeat of a change that is answered with `done`; `false` = it is none.
    fn repeat_done(&mut self, t: &mut Turn<'_>, asker: Asker, by: Caller<'_>) -> Result<bool, Error> {
        match self.repeated(t, asker, by)? {
            Repeat::No => return Ok(false),
            Repeat::Attached(before) => self.superseded(t, before),
            Repeat::Answered(Outcome::Error(error)) => self.fail(t, asker.op, error.into()),
            Repeat::Answered(outcome) => self.done(t, Some(by.slot), Some(asker), &outcome),
        }
        Ok(true)
    }

    pub(super) fn superseded(&mut self, t: &mut Turn<'_>, before: Option<Asker>) {
        self.fail_asker(t, before, error::busy("the same call came in again and takes the answer"));
    }

    /// Starts a session's change unless it is a repeat.
    pub(super) fn change(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        by: Caller<'_>,
        make: impl FnOnce(&mut Self, &Turn<'_>) -> Result<(Command, Purpose), Error>,
    ) -> Result<Flow, Error> {
        if !self.repeat_done(t, asker, by)? {
            let (command, purpose) = make(self, t)?;
            self.start(t, Work::of(by.slot, by.call, command, purpose).asked(asker));
        }
        Ok(Flow::Taken)
    }

    pub(super) fn set_contents(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        by: Caller<'_>,
        set: v1::SetContents,
    ) -> Result<Flow, Error> {
        self.change(t, asker, by, |reign, t| {
            if set.contents.len() > error::MAX_CONTENTS {
                return Err(error::too_large(set.contents.len()));
            }
            let (place, instance) = reign.changed_node(by.slot, set.target.as_ref(), "write")?;
            let command = Command::WriteContents(v1::WriteContents {
                app: place.app.to_string(),
                path: place.path.as_str().to_owned(),
                instance,
                contents: set.contents,
                if_generation: set.if_generation,
                sequencers: verified(t, &set.sequencers)?,
            });
            Ok((command, Purpose::Contents(place)))
        })
    }

    pub(super) fn set_acl(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        by: Caller<'_>,
        set: v1::SetAcl,
    ) -> Result<Flow, Error> {
        self.change(t, asker, by, |reign, t| {
            let (place, instance) = reign.node(by.slot, set.target.as_ref())?;
            let command = Command::WriteAcl(v1::WriteAcl {
                app: place.app.to_string(),
                path: place.path.as_str().to_owned(),
                instance,
                acl: set.acl,
                if_generation: set.if_generation,
                sequencers: verified(t, &set.sequencers)?,
            });
            Ok((command, Purpose::Acl(place)))
        })
    }

    pub(super) fn delete(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        by: Caller<'_>,
        delete: v1::DeleteNode,
    ) -> Result<Flow, Error> {
        self.change(t, asker, by, |reign, t| {
            let (place, instance) = reign.changed_node(by.slot, delete.target.as_ref(), "delete")?;
            let command = Command::RemoveNode(v1::RemoveNode {
                app: place.app.to_string(),
                path: place.path.as_str().to_owned(),
                instance,
                if_generation: delete.if_generation,
                sequencers: verified(t, &delete.sequencers)?,
            });
            let holders = t.state.lock(&place).map(|lock| lock.holders.keys().copied().collect());
            Ok((command, Purpose::Remove(place, holders.unwrap_or_default())))
        })
    }
}

/// What a numbered call is.
pub(super) enum Repeat {
    /// New.
    No,
    /// A repeat of one under way, whose answer it takes from the one before.
    Attached(Option<Asker>),
    /// A repeat of one that was decided.
    Answered(Outcome),
}

/// An acquire that its client does not want any more.
pub(super) fn cancelled() -> Error {
    Error::new("cell.cancelled", tidings_base::Class::Refused, "the acquire was cancelled")
        .hint("Acquire again under a new number.")
}

/// What sequencers say, if this cell signed them; whether they are still valid is decided at apply.
fn verified(t: &Turn<'_>, tokens: &[Bytes]) -> Result<Vec<v1::SequencerBody>, Error> {
    /// One change is fenced by few locks.
    const MAX_SEQUENCERS: usize = 16;
    if tokens.len() > MAX_SEQUENCERS {
        return Err(bad_call("at most 16 sequencers go with a change"));
    }
    tokens.iter().map(|token| t.state.keys().verify_sequencer(token)).collect()
}
