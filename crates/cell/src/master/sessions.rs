//! Sessions: who they are, how they begin, come back and end.

use super::batches::Outgoing;
use super::handles::Handle;
use super::leases::Held;
use super::mutations::{Purpose, Work};
use super::pace::Pace;
use super::reign::{Asker, Flow, RETRY, Reign, Timer, Turn, Waiting, bad_call};
use crate::SessionId;
use crate::error;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Error, Mono, OpId};
use tidings_wire::v1;
use tidings_wire::v1::cell_command::Command;
use tidings_wire::v1::cell_message::Message;

/// The shortest lease that a session can ask for: below it a session would spend its life on KeepAlives.
pub const SHORTEST_LEASE: Duration = Duration::from_secs(1);
/// R6: the longest.
pub const LONGEST_LEASE: Duration = Duration::from_secs(60);

/// Where a session is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot(pub(super) u32);

/// Where a session stands with this master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is of an earlier epoch and has not come back.
    Absent,
    /// It has flushed and presented its handles, or began here.
    Present,
    /// Its end is decided: it is never extended again (R7).
    Ending(Box<Ending>),
}

/// The end of a session on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    /// Its locks are held back for their delays.
    lost: bool,
    /// The client wished it, and caches nothing any more.
    wished: bool,
    /// `StopSession` is under way.
    under_way: bool,
    /// It is not proposed before this: until then the client may believe that it holds its locks.
    not_before: Mono,
    /// Who waits for it.
    ops: Vec<OpId>,
}

/// Handles together: how many, how long their paths are, how many of them watch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Opens {
    pub(super) handles: u32,
    pub(super) path_bytes: u32,
    pub(super) watches: u32,
}

/// A session as this master knows it. There may be 100,000: what few of them have is boxed or kept in sets by slot.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) app: Arc<str>,
    pub(super) standing: Standing,
    /// What it asked for, in milliseconds.
    pub(super) lease_ms: u32,
    /// What it was granted last, in milliseconds.
    pub(super) granted_ms: u32,
    /// The master's end of its lease.
    pub(super) lease_end: Mono,
    /// The latest end of a cache lease ever granted to it, its present link's aside while that counts for it.
    pub(super) cache_end: Mono,
    pub(super) link: Option<u32>,
    /// R4: the last number of its sequence in this epoch.
    pub(super) seq: u64,
    pub(super) held: Option<Held>,
    pub(super) last_call: Mono,
    /// Its client has the answers of all numbers below this.
    pub(super) answered_below: u64,
    /// The highest number that it has used.
    pub(super) highest: u64,
    /// Sorted by number.
    pub(super) handles: Vec<Handle>,
    /// The lengths of their paths together.
    pub(super) path_bytes: u32,
    pub(super) watches: u32,
    /// Handles that the log is asked for: they count, since all of them may be granted.
    pub(super) opening: Opens,
    pub(super) interest: u32,
    /// Changes of its own that are under way.
    pub(super) under_way: u32,
    /// When it is looked at next.
    pub(super) check_at: Mono,
    pub(super) outgoing: Option<Box<Outgoing>>,
}

impl Session {
    /// What it will have open at most when all is decided that is under way.
    pub(super) fn opens(&self) -> Opens {
        Opens {
            handles: self.handles.len() as u32 + self.opening.handles,
            path_bytes: self.path_bytes + self.opening.path_bytes,
            watches: self.watches + self.opening.watches,
        }
    }

    /// Whether it is the platform's own: its application's name begins with a dot, which no application's does. Such
    /// sessions are short and hold the locks of managers: their leases are never stretched, so that a new master honours
    /// them for no longer than they asked, and they cache nothing, so that it need not wait for them.
    pub(super) fn is_own(&self) -> bool {
        self.app.starts_with('.')
    }

    /// Whether a new master waits for it before it opens.
    pub(super) fn is_awaited(&self) -> bool {
        self.standing == Standing::Absent && !self.is_own()
    }

    /// Whether its end is decided.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.standing, Standing::Ending(_))
    }

    /// Whether an operator ended it, and its lease is waited for.
    pub(super) fn ends_by_order(&self) -> bool {
        matches!(&self.standing, Standing::Ending(ending) if ending.not_before > Mono(0))
    }
}

/// All sessions of this epoch.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions {
    slots: Vec<Option<Box<Session>>>,
    free: Vec<u32>,
    by_id: BTreeMap<SessionId, Slot>,
}

impl Sessions {
    pub(super) fn get(&self, slot: Slot) -> Option<&Session> {
        self.slots.get(slot.0 as usize)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut Session> {
        self.slots.get_mut(slot.0 as usize)?.as_deref_mut()
    }

    pub(super) fn find(&self, id: SessionId) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, &Session)> {
        self.by_id.values().filter_map(|slot| Some((*slot, self.get(*slot)?)))
    }

    pub(super) fn add(&mut self, id: SessionId, app: &str, lease: Duration, standing: Standing, now: Mono) -> Slot {
        let lease_ms = lease.as_millis() as u32;
        let session = Box::new(Session {
            id,
            app: self.app(app),
            standing,
            lease_ms,
            granted_ms: lease_ms,
            lease_end: now,
            cache_end: Mono(0),
            link: None,
            seq: 0,
            held: None,
            last_call: now,
            answered_below: 0,
            highest: 0,
            handles: Vec::new(),
            path_bytes: 0,
            watches: 0,
            opening: Opens::default(),
            interest: 0,
            under_way: 0,
            check_at: Mono::NEVER,
            outgoing: None,
        });
        let slot = match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = Some(session);
                Slot(index)
            }
            None => {
                self.slots.push(Some(session));
                Slot(u32::try_from(self.slots.len() - 1).expect("fewer sessions than memory holds"))
            }
        };
        self.by_id.insert(id, slot);
        slot
    }

    /// The name of an application, shared with the session before where that is of the same.
    fn app(&self, app: &str) -> Arc<str> {
        let last = self.by_id.last_key_value().and_then(|(_, slot)| self.get(*slot));
        last.filter(|session| &*session.app == app).map_or_else(|| Arc::from(app), |session| session.app.clone())
    }

    fn remove(&mut self, slot: Slot) -> Option<Box<Session>> {
        let session = self.slots.get_mut(slot.0 as usize)?.take()?;
        self.by_id.remove(&session.id);
        self.free.push(slot.0);
        Some(session)
    }

    /// A call of the session came in.
    pub(super) fn called(&mut self, slot: Slot, now: Mono, call: &v1::CellCall) {
        if let Some(session) = self.get_mut(slot) {
            session.last_call = now;
            session.answered_below = session.answered_below.max(call.answered_below);
            session.highest = session.highest.max(call.number);
        }
    }

    pub(super) fn take_held(&mut self, slot: Slot, op: OpId) {
        if let Some(session) = self.get_mut(slot) {
            session.held.take_if(|held| held.op == op);
        }
    }

    pub(super) fn detach_end(&mut self, slot: Slot, op: OpId) {
        if let Some(Session { standing: Standing::Ending(ending), .. }) = self.get_mut(slot) {
            ending.ops.retain(|waiting| *waiting != op);
        }
    }

    pub(super) fn undelivered(&self) -> usize {
        self.slots.iter().flatten().filter_map(|session| session.outgoing.as_ref()).map(|out| out.len()).sum()
    }
}

/// A link: sessions that share a cache lease.
#[derive(Clone, Debug)]
pub(super) struct Link {
    name: (Arc<str>, u64),
    /// The latest end of a cache lease granted to it.
    pub(super) end: Mono,
    sessions: u32,
    /// R4: sessions that owe an acknowledgement; the lease is not extended for them.
    pub(super) owing: BTreeSet<Slot>,
    /// Sessions that were ended while their clients may believe them alive, and until when.
    pub(super) ended: BTreeMap<u64, Mono>,
    /// How fast its client's clock runs.
    pub(super) pace: Pace,
}

/// The links, by who made them and their names.
#[derive(Clone, Debug, Default)]
pub(super) struct Links {
    slots: Vec<Option<Link>>,
    free: Vec<u32>,
    by_name: BTreeMap<(Arc<str>, u64), u32>,
}

fn owner(caller: &v1::CellCaller) -> Arc<str> {
    Arc::from(format!("{}\0{}", caller.app, caller.principal))
}

impl Links {
    pub(super) fn get_mut(&mut self, link: u32) -> Option<&mut Link> {
        self.slots.get_mut(link as usize)?.as_mut()
    }

    pub(super) fn get(&self, link: u32) -> Option<&Link> {
        self.slots.get(link as usize)?.as_ref()
    }

    pub(super) fn find(&self, caller: &v1::CellCaller, name: u64) -> Option<u32> {
        self.by_name.get(&(owner(caller), name)).copied()
    }

    fn join(&mut self, caller: &v1::CellCaller, name: u64) -> u32 {
        let name = (owner(caller), name);
        let at = match self.by_name.get(&name) {
            Some(at) => *at,
            None => {
                let (end, owing, ended) = (Mono(0), BTreeSet::new(), BTreeMap::new());
                let pace = Pace::default();
                let link = Some(Link { name: name.clone(), end, sessions: 0, owing, ended, pace });
                let at = self.free.pop().unwrap_or_else(|| {
                    self.slots.push(None);
                    (self.slots.len() - 1) as u32
                });
                self.slots[at as usize] = link;
                self.by_name.insert(name, at);
                at
            }
        };
        if let Some(link) = self.get_mut(at) {
            link.sessions += 1;
        }
        at
    }

    /// A session leaves; `ended` names one whose client may believe it alive until then.
    fn leave(&mut self, at: u32, slot: Slot, ended: Option<(SessionId, Mono)>) {
        let Some(link) = self.get_mut(at) else { return };
        link.owing.remove(&slot);
        link.ended.extend(ended.map(|(id, until)| (id.0, until)));
        link.sessions -= 1;
        self.forget_if_unused(at);
    }

    /// Forgets ended sessions that no client can believe alive any more, and the link if nothing is left of it.
    pub(super) fn tidy(&mut self, at: u32, now: Mono) {
        if let Some(link) = self.get_mut(at) {
            link.ended.retain(|_, until| *until > now);
            self.forget_if_unused(at);
        }
    }

    fn forget_if_unused(&mut self, at: u32) {
        let unused = |link: &&Link| link.sessions == 0 && link.ended.is_empty();
        if let Some(name) = self.get(at).filter(unused).map(|link| link.name.clone()) {
            self.by_name.remove(&name);
            self.slots[at as usize] = None;
            self.free.push(at);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }
}

impl Reign {
    /// The session that a call belongs to, if it may make calls here.
    pub(super) fn session_of(&self, t: &Turn<'_>, caller: &v1::CellCaller, call: &v1::CellCall) -> Result<Slot, Error> {
        let slot = self.own_session(t, caller, call)?;
        let session = self.sessions.get(slot).ok_or_else(|| error::no_session(call.session))?;
        // R1: what a session knows of another epoch means nothing here; it flushes first.
        if session.standing == Standing::Absent || (call.epoch != 0 && call.epoch != self.epoch) {
            return Err(error::resume(self.epoch));
        }
        Ok(slot)
    }

    /// The caller's own session, unless it ends.
    pub(super) fn own_session(
        &self,
        t: &Turn<'_>,
        caller: &v1::CellCaller,
        call: &v1::CellCall,
    ) -> Result<Slot, Error> {
        let id = SessionId(call.session);
        let record = t.state.session(id).ok_or_else(|| error::no_session(id.0))?;
        let same = record.caller.app == caller.app && record.caller.principal == caller.principal;
        if !same || record.secret != call.secret {
            return Err(error::not_your_session(id.0));
        }
        // The state may be ahead of what was heard; nobody knows such a session yet.
        let slot = self.sessions.find(id).ok_or_else(error::opening)?;
        match self.is_ending(slot) {
            true => Err(error::expired(id.0)),
            false => Ok(slot),
        }
    }

    fn is_ending(&self, slot: Slot) -> bool {
        self.sessions.get(slot).is_some_and(Session::is_ending)
    }

    /// The caller's own session that ends, if it wishes to end itself: it has heard of it, or does not care.
    pub(super) fn closes_ending(&self, t: &Turn<'_>, caller: &v1::CellCaller, call: &v1::CellCall) -> Option<Slot> {
        let record = t.state.session(SessionId(call.session))?;
        let same = record.caller.app == caller.app && record.caller.principal == caller.principal;
        let slot = self.sessions.find(SessionId(call.session))?;
        (same && record.secret == call.secret && self.is_ending(slot)).then_some(slot)
    }

    pub(super) fn create_session(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        caller: v1::CellCaller,
        create: &v1::CreateSession,
    ) -> Result<Flow, Error> {
        if !matches!(self.phase, super::failover::Phase::Serving) {
            return Err(error::opening());
        }
        if caller.app.is_empty() {
            return Err(bad_call("a session belongs to an application"));
        }
        let lease = match create.lease_ms {
            0 => self.options.lease,
            ms => Duration::from_millis(ms.into()).clamp(SHORTEST_LEASE, LONGEST_LEASE),
        };
        let purpose = Purpose::Start { arrived: t.mono(), caller: Box::new(caller.clone()), lease, link: create.link };
        let lease_ms = lease.as_millis() as u32;
        let v1::CreateSession { secret, keeper, .. } = *create;
        let command = Command::StartSession(v1::StartSession { caller: Some(caller), lease_ms, secret, keeper });
        self.start(t, Work::own(command, purpose).asked(asker));
        Ok(Flow::Taken)
    }

    /// A session exists. Its lease is dated from its proposal, unless nobody else can lead: any later master's first
    /// entry stands behind it.
    pub(super) fn session_started(
        &mut self,
        t: &mut Turn<'_>,
        asker: Option<Asker>,
        id: SessionId,
        begun: Begun,
        proposed: Mono,
    ) {
        // The state may be ahead of what is heard: the session may have been taken in already.
        let slot = match self.sessions.find(id) {
            Some(slot) => slot,
            None => self.sessions.add(id, &begun.caller.app, begun.lease, Standing::Present, t.mono()),
        };
        if let Some(session) = self.sessions.get_mut(slot) {
            session.standing = Standing::Present;
        }
        self.attach(slot, &begun.caller, begun.link);
        let lease = self.grant(t, slot, t.fresh.unwrap_or(proposed));
        self.schedule(t.mono(), slot);
        if let Some(asker) = asker {
            let reply = v1::SessionCreated {
                session: id.0,
                epoch: self.epoch,
                incarnation: t.state.incarnation().0,
                held_us: t.mono().since(begun.arrived).as_micros() as u64,
                lease_us: lease.as_micros() as u64,
            };
            self.reply(t, asker.op, Message::SessionCreated(reply));
        }
    }

    pub(super) fn attach(&mut self, slot: Slot, caller: &v1::CellCaller, name: u64) {
        self.leave_link(slot, None);
        let link = self.links.join(caller, name);
        if let Some(session) = self.sessions.get_mut(slot) {
            session.link = Some(link);
        }
    }

    fn leave_link(&mut self, slot: Slot, ended: Option<Mono>) {
        let Some(session) = self.sessions.get_mut(slot) else { return };
        let Some(at) = session.link.take() else { return };
        if let Some(link) = self.links.get(at)
            && !link.owing.contains(&slot)
        {
            session.cache_end = session.cache_end.max(link.end);
        }
        let ended = ended.map(|until| (session.id, until));
        self.links.leave(at, slot, ended);
        if let Some(last) = self.links.get(at).and_then(|link| link.ended.values().max().copied()) {
            self.timers.set(Timer::Link(at), last);
        }
    }

    pub(super) fn close_session(&mut self, t: &mut Turn<'_>, asker: Asker, slot: Slot) -> Result<Flow, Error> {
        self.keep_open(t, asker, Waiting::End(slot));
        self.end_session(t, slot, End::Wished, Some(asker.op));
        Ok(Flow::Taken)
    }

    /// Decides the end of a session. From here on it is refused everything and never extended (R7).
    pub(super) fn end_session(&mut self, t: &mut Turn<'_>, slot: Slot, end: End, op: Option<OpId>) {
        let Some(session) = self.sessions.get_mut(slot) else { return };
        match &mut session.standing {
            Standing::Ending(ending) => {
                ending.ops.extend(op);
                if end == End::Wished {
                    (ending.wished, ending.not_before) = (true, Mono(0));
                    self.release_waits(t, slot);
                }
            }
            standing => {
                let (lost, wished) = (matches!(end, End::Lost | End::Ordered), end == End::Wished);
                let ops = op.into_iter().collect();
                // R10: a lock is held back from the moment on at which its holder cannot believe any more that it has
                // it. Who is ended by order may not hear of it before its lease is over.
                let not_before = if end == End::Ordered { session.lease_end } else { Mono(0) };
                *standing = Standing::Ending(Box::new(Ending { lost, wished, under_way: false, not_before, ops }));
                if let Some(link) = session.link {
                    session.cache_end = session.cache_end.max(self.links.get(link).map_or(Mono(0), |link| link.end));
                    self.links.get_mut(link).map(|link| link.owing.insert(slot));
                }
                if wished {
                    self.release_waits(t, slot);
                }
                self.leave_queues(t, slot);
                if end == End::Ordered {
                    self.refuse_held(t, slot);
                }
            }
        }
        self.try_stop(t, slot);
    }

    /// Whoever waits at a KeepAlive hears of the end at once.
    fn refuse_held(&mut self, t: &mut Turn<'_>, slot: Slot) {
        let Some(session) = self.sessions.get_mut(slot) else { return };
        let id = session.id.0;
        if let Some(held) = session.held.take() {
            self.fail(t, held.op, error::expired(id));
        }
    }

    /// Proposes the end of a session once nothing of its own is under way, so that what it has cannot change any more
    /// between the invalidations and the end.
    pub(super) fn try_stop(&mut self, t: &mut Turn<'_>, slot: Slot) {
        let Some(session) = self.sessions.get_mut(slot) else { return };
        // Until the cell is open, clients that have not come back may use copies of what this end changes; what the
        // platform's own sessions leave is cached by nobody.
        let unseen = session.is_own() || matches!(self.phase, super::failover::Phase::Serving);
        let (id, idle) = (session.id, session.under_way == 0);
        let Standing::Ending(ending) = &mut session.standing else { return };
        if !idle || !unseen || ending.under_way {
            return;
        }
        if t.now.mono < ending.not_before {
            let at = ending.not_before;
            return self.timers.set(Timer::Stop(slot), at);
        }
        ending.under_way = true;
        let (lost, wished) = (ending.lost, ending.wished);
        let gains = t.state.session(id).map(|record| record.gains);
        let command = Command::StopSession(v1::StopSession { session: id.0, lost, gains });
        let held = t.state.locks_of(id).into_iter().map(|(place, _)| place);
        let places = held.chain(t.state.ephemerals_of(id).into_iter().map(|(place, _)| place)).collect();
        let work = Work::own(command, Purpose::Stop { slot, id, places });
        // What it cached itself must be of no use any more, or later changes would have to wait for a session that
        // nobody knows.
        self.start(t, if wished { work } else { work.after(slot) });
    }

    /// `StopSession` was applied or refused.
    pub(super) fn session_stopped(&mut self, t: &mut Turn<'_>, slot: Slot, id: SessionId, refused: bool) {
        let Some(session) = self.sessions.get_mut(slot).filter(|session| session.id == id) else { return };
        if refused && t.state.session(id).is_some() {
            if let Standing::Ending(ending) = &mut session.standing {
                ending.under_way = false;
            }
            return self.timers.set(Timer::Stop(slot), t.mono() + RETRY);
        }
        self.forget_session(t, slot);
    }

    /// The session is no more: everything of it goes.
    pub(super) fn forget_session(&mut self, t: &mut Turn<'_>, slot: Slot) {
        let Some(session) = self.sessions.get(slot) else { return };
        let (id, lease_end) = (session.id, session.lease_end);
        let (mut ops, wished) = match &session.standing {
            Standing::Ending(ending) => (ending.ops.clone(), ending.wished),
            _ => (Vec::new(), false),
        };
        ops.iter().for_each(|op| self.reply(t, *op, Message::Done(v1::CellDone::default())));
        ops.clear();
        self.leave_queues(t, slot);
        self.release_waits(t, slot);
        self.drop_all_interest(slot);
        self.drop_outgoing(slot);
        self.close_all_handles(slot);
        self.locks.forget_answered(slot, u64::MAX);
        let numbered: Vec<u64> = self.numbered.range((slot, 0)..=(slot, u64::MAX)).map(|entry| entry.0.1).collect();
        numbered.into_iter().for_each(|number| {
            self.numbered.remove(&(slot, number));
        });
        // Its client may go on using the link's lease until it hears of the end, or its session lease is over.
        self.leave_link(slot, (!wished && lease_end > t.mono()).then_some(lease_end));
        self.timers.cancel(&Timer::CacheBound(slot));
        self.timers.cancel(&Timer::Stop(slot));
        let Some(session) = self.sessions.remove(slot) else { return };
        if let Some(held) = session.held {
            self.fail(t, held.op, error::expired(id.0));
        }
        if session.is_awaited() {
            self.one_less_absent(t);
        }
    }
}

/// Why a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its client closed it.
    Wished,
    /// Its lease ran out.
    Lost,
    /// An operator ended it.
    Ordered,
    /// It did nothing for long and has nothing to lose.
    Idle,
}

/// What a session was created with.
#[derive(Clone, Debug)]
pub(super) struct Begun {
    pub(super) arrived: Mono,
    pub(super) caller: Box<v1::CellCaller>,
    pub(super) lease: Duration,
    pub(super) link: u64,
}
