//! Handles: opened, checked, sealed into tokens, rebuilt from them, closed (seed §2.4, R12).

use super::mutations::{Purpose, Repeat, Work};
use super::places::PlaceId;
use super::reign::{Asker, Caller, Flow, Reign, Turn};
use super::sessions::{Opens, Session, Slot};
use crate::error;
use crate::mutant::Mutant;
use crate::namespace::Right;
use crate::path::{NodePath, Place};
use crate::{HandleNumber, SessionId};
use bytes::Bytes;
use tidings_base::Error;
use tidings_wire::v1;
use tidings_wire::v1::cell_command::Command;
use tidings_wire::v1::cell_message::Message;
use tidings_wire::v1::cell_result::Result as Outcome;
use tidings_wire::v1::node_target::Target;

/// So many handles a session may have open.
pub(super) const MAX_HANDLES: usize = 4_096;
/// Their tokens together: a resumption presents all of them in one frame.
const MAX_TOKENS: usize = 768 << 10;
/// What a token has besides names: numbers, rights, a MAC, and what tells its parts from each other.
const TOKEN: usize = 128;
/// So many of them may be watched.
pub(super) const MAX_WATCHES: u32 = 1_000;
/// The longest lock-delay, and the usual one.
const LOCK_DELAY_MS: u32 = 60_000;

/// The bits of `OpenNode.events`.
pub(super) mod watched {
    pub(in crate::master) const CONTENTS: u32 = 1;
    pub(in crate::master) const CHILDREN: u32 = 2;
    pub(in crate::master) const LOCK: u32 = 4;
    pub(in crate::master) const ANY: u32 = CONTENTS | CHILDREN | LOCK;
}

/// What a handle may be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rights {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) lock: bool,
    pub(super) uncached: bool,
}

/// An open handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Handle {
    pub(super) number: HandleNumber,
    pub(super) instance: u64,
    pub(super) place: PlaceId,
    pub(super) delay_ms: u32,
    pub(super) events: u8,
    pub(super) rights: Rights,
}

/// A handle that is to be opened.
#[derive(Clone, Debug)]
pub(super) struct Opening {
    place: Place,
    number: HandleNumber,
    delay_ms: u32,
    events: u8,
    rights: Rights,
}

impl Opening {
    /// R12: whoever opens a node for nothing learns its stat, and whoever watches it what changes: both read it.
    fn must_read(&self) -> bool {
        let Rights { read, write, lock, .. } = self.rights;
        read || !(write || lock) || self.events != 0
    }
}

impl Session {
    pub(super) fn handle(&self, number: HandleNumber) -> Option<&Handle> {
        let at = self.handles.binary_search_by_key(&number, |handle| handle.number).ok()?;
        self.handles.get(at)
    }
}

impl Opens {
    pub(super) fn add(&mut self, opening: &Opening) {
        self.handles += 1;
        self.path_bytes += opening.place.path.as_str().len() as u32;
        self.watches += u32::from(opening.events != 0);
    }

    pub(super) fn remove(&mut self, opening: &Opening) {
        self.handles -= 1;
        self.path_bytes -= opening.place.path.as_str().len() as u32;
        self.watches -= u32::from(opening.events != 0);
    }
}

impl Reign {
    /// A handle of a session.
    pub(super) fn handle(&self, slot: Slot, number: u64) -> Result<&Handle, Error> {
        let session = self.sessions.get(slot);
        let handle = session.and_then(|session| session.handle(HandleNumber(number)));
        handle.ok_or_else(|| error::bad_handle("it was never opened, or it was closed"))
    }

    /// The node that a call names, and its instance: 0 = whatever is there.
    pub(super) fn node(&self, slot: Slot, target: Option<&v1::NodeTarget>) -> Result<(Place, u64), Error> {
        match target.and_then(|target| target.target.as_ref()) {
            Some(Target::Handle(number)) => {
                let handle = self.handle(slot, *number)?;
                Ok((self.places.get(handle.place).clone(), handle.instance))
            }
            Some(Target::Path(path)) => Ok((self.place(slot, path)?, 0)),
            None => Err(super::reign::bad_call("it names no node")),
        }
    }

    /// The node that a call wants to change.
    pub(super) fn changed_node(
        &self,
        slot: Slot,
        target: Option<&v1::NodeTarget>,
        what: &str,
    ) -> Result<(Place, u64), Error> {
        if let Some(Target::Handle(number)) = target.and_then(|target| target.target.as_ref())
            && !self.handle(slot, *number)?.rights.write
        {
            return Err(error::denied(format_args!("to {what} through a handle that was not opened for writing")));
        }
        self.node(slot, target)
    }

    /// A place in a session's application.
    pub(super) fn place(&self, slot: Slot, path: &str) -> Result<Place, Error> {
        let session = self.sessions.get(slot).ok_or_else(|| error::no_session(0))?;
        Ok(Place { app: session.app.clone(), path: NodePath::parse(path)? })
    }

    pub(super) fn open(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        by: Caller<'_>,
        open: v1::OpenNode,
    ) -> Result<Flow, Error> {
        let opening = Opening {
            place: self.place(by.slot, &open.path)?,
            number: HandleNumber(by.call.number),
            delay_ms: open.lock_delay_ms.unwrap_or(LOCK_DELAY_MS).min(LOCK_DELAY_MS),
            events: (open.events & watched::ANY) as u8,
            rights: Rights { read: open.read, write: open.write, lock: open.lock, uncached: open.uncached },
        };
        // R12: what was closed is not opened anew by a copy of the call that opened it once.
        if t.state.is_closed(SessionId(by.call.session), opening.number) {
            return Err(error::answered_already(by.call.number));
        }
        match self.repeated(t, asker, by)? {
            Repeat::No => {}
            Repeat::Attached(before) => {
                self.superseded(t, before);
                return Ok(Flow::Taken);
            }
            Repeat::Answered(Outcome::Error(error)) => return Err(error.into()),
            Repeat::Answered(outcome) => {
                self.open_decided(t, Some(by.slot), Some(asker), &opening, Ok(outcome));
                return Ok(Flow::Taken);
            }
        }
        self.room_for(by, &opening)?;
        let stat = t.state.stat(&opening.place);
        let through_log = match (&stat, &open.create) {
            (None, None) => {
                may_open(t, by, &opening)?;
                return Err(error::no_node(&opening.place.path));
            }
            (None, Some(_)) => true,
            (Some(stat), create) => stat.ephemeral || create.as_ref().is_some_and(|create| create.exclusive),
        };
        match stat {
            Some(stat) if !through_log => self.open_at_once(t, asker, by, opening, open.create.as_ref(), stat),
            _ => {
                let create = open.create;
                if let Some(create) = &create
                    && create.contents.len() > error::MAX_CONTENTS
                {
                    return Err(error::too_large(create.contents.len()));
                }
                let command = Command::Open(v1::CreateOrOpen {
                    app: opening.place.app.to_string(),
                    path: open.path,
                    create,
                    handle: by.call.number,
                    read: opening.must_read(),
                    write: open.write,
                    lock: open.lock,
                });
                let purpose = Purpose::Open(Box::new(opening));
                self.start(t, Work::of(by.slot, by.call, command, purpose).asked(asker));
                Ok(Flow::Taken)
            }
        }
    }

    fn room_for(&self, by: Caller<'_>, opening: &Opening) -> Result<(), Error> {
        let Some(session) = self.sessions.get(by.slot) else { return Ok(()) };
        if session.handle(opening.number).is_some() {
            return Ok(());
        }
        let open = session.opens();
        let handles = open.handles as usize;
        if handles >= MAX_HANDLES {
            return Err(error::too_many_handles(MAX_HANDLES));
        }
        let names = by.caller.app.len() + by.caller.principal.len();
        let paths = open.path_bytes as usize + opening.place.path.as_str().len();
        if paths + (handles + 1) * (TOKEN + names) > MAX_TOKENS {
            return Err(error::too_many_handles(handles));
        }
        if opening.events != 0 && open.watches >= MAX_WATCHES {
            return Err(error::too_many_watches(MAX_WATCHES as usize));
        }
        Ok(())
    }

    /// Opens a node that exists and is permanent: nothing is agreed on, nothing changes.
    fn open_at_once(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        by: Caller<'_>,
        opening: Opening,
        create: Option<&v1::CreateNode>,
        stat: v1::NodeStat,
    ) -> Result<Flow, Error> {
        if t.fresh.is_none() {
            return Ok(Flow::Fresh);
        }
        may_open(t, by, &opening)?;
        let path = &opening.place.path;
        match create {
            Some(create) if create.directory && !stat.directory => return Err(error::not_a_directory(path)),
            Some(create) if !create.directory && stat.directory => return Err(error::is_a_directory(path)),
            _ => {}
        }
        self.answer_open(t, by.slot, Some(asker), &opening, stat, false);
        Ok(Flow::Taken)
    }

    /// A `CreateOrOpen` was decided, now or in the window.
    pub(super) fn open_decided(
        &mut self,
        t: &mut Turn<'_>,
        slot: Option<Slot>,
        asker: Option<Asker>,
        opening: &Opening,
        outcome: Result<Outcome, Error>,
    ) {
        match (outcome, slot) {
            (Ok(Outcome::Applied(v1::CellApplied { stat: Some(stat), created, .. })), Some(slot)) => {
                if created {
                    self.node_created(t, &opening.place);
                }
                self.answer_open(t, slot, asker, opening, stat, created);
            }
            (Ok(_), _) => self.fail_asker(t, asker, super::reign::unknown_outcome()),
            (Err(error), _) => self.fail_asker(t, asker, error),
        }
    }

    fn answer_open(
        &mut self,
        t: &mut Turn<'_>,
        slot: Slot,
        asker: Option<Asker>,
        opening: &Opening,
        stat: v1::NodeStat,
        created: bool,
    ) {
        self.add_handle(slot, opening, stat.instance);
        let Some(asker) = asker else { return };
        let token = self.sessions.get(slot).and_then(|session| {
            let principal = t.state.session(session.id)?.caller.principal.clone();
            let body = handle_body(t, session.id, principal, opening, stat.instance);
            t.state.keys().seal_handle(&body).ok()
        });
        let Some(token) = token else {
            return self.fail(t, asker.op, error::busy("it has no keys yet"));
        };
        // L4: what a repeat is answered with may be older than changes that its client was never told of.
        let present = t.state.stat(&opening.place).as_ref() == Some(&stat);
        let cacheable = present && !opening.rights.uncached && self.note_interest(slot, &opening.place, false);
        let stamp = if cacheable { self.stamp(slot) } else { None };
        let handle = opening.number.0;
        let opened = v1::NodeOpened { handle, token, stat: Some(stat), created, stamp };
        self.reply(t, asker.op, Message::Opened(opened));
    }

    fn add_handle(&mut self, slot: Slot, opening: &Opening, instance: u64) {
        let place = self.places.hold(&opening.place);
        let Some(session) = self.sessions.get_mut(slot) else { return self.places.release(place) };
        let Err(at) = session.handles.binary_search_by_key(&opening.number, |handle| handle.number) else {
            return self.places.release(place);
        };
        let Opening { number, delay_ms, events, rights, .. } = *opening;
        if session.handles.is_empty() {
            session.handles.reserve_exact(1);
        }
        let handle = Handle { number, instance, place, delay_ms, events, rights };
        self.open_handles.add(slot, &handle);
        session.handles.insert(at, handle);
        session.path_bytes += opening.place.path.as_str().len() as u32;
        session.watches += u32::from(events != 0);
    }

    fn drop_handle(&mut self, slot: Slot, number: HandleNumber) {
        let Some(session) = self.sessions.get_mut(slot) else { return };
        if let Ok(at) = session.handles.binary_search_by_key(&number, |handle| handle.number) {
            let handle = session.handles.remove(at);
            session.watches -= u32::from(handle.events != 0);
            session.path_bytes -= self.places.get(handle.place).path.as_str().len() as u32;
            self.open_handles.remove(slot, &handle);
            self.places.release(handle.place);
        }
    }

    pub(super) fn close_all_handles(&mut self, slot: Slot) {
        let handles = self.sessions.get_mut(slot).map(|session| std::mem::take(&mut session.handles));
        for handle in handles.unwrap_or_default() {
            self.open_handles.remove(slot, &handle);
            self.places.release(handle.place);
        }
    }

    /// Closes a handle. If it holds the lock or keeps an ephemeral node alive (R9), the log does; otherwise the log is only
    /// told (R12).
    pub(super) fn close(&mut self, t: &mut Turn<'_>, asker: Asker, by: Caller<'_>, number: u64) -> Result<Flow, Error> {
        let handle = match self.handle(by.slot, number) {
            Ok(handle) => handle.clone(),
            Err(error) => return self.close_unknown(t, asker, by, HandleNumber(number), error),
        };
        let place = self.places.get(handle.place).clone();
        let holder = (SessionId(by.call.session), handle.number);
        let taking = self.leave_queue_of(t, by.slot, handle.number);
        let lock = t.state.lock(&place);
        let holds = taking || lock.is_some_and(|lock| lock.holders.contains_key(&holder));
        let opener = t.state.openers(&place).contains(&holder);
        // A node that is gone never comes back, and no token of it is good any more.
        if t.state.instance(&place) != Some(handle.instance) {
            self.drop_handle(by.slot, handle.number);
            self.reply(t, asker.op, Message::Done(v1::CellDone::default()));
            return Ok(Flow::Taken);
        }
        if !(holds || opener) {
            self.drop_handle(by.slot, handle.number);
            self.agree_close(t, asker, by, handle.number);
            return Ok(Flow::Taken);
        }
        self.close_kept(t, asker, by, handle.number, (&place, handle.instance), holds)
    }

    /// Closes a handle that this master does not have: an open that an earlier one answered, whose token did not arrive
    /// here, or one that is closed already. What the state keeps for it goes all the same (R9), even where its number went
    /// with the close of a later one.
    fn close_unknown(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        by: Caller<'_>,
        handle: HandleNumber,
        unknown: Error,
    ) -> Result<Flow, Error> {
        let session = SessionId(by.call.session);
        let of_it = |kept: Vec<(Place, HandleNumber)>| kept.into_iter().find(|(_, of)| *of == handle);
        let lock = of_it(t.state.locks_of(session));
        let holds = lock.is_some();
        let kept = lock.or_else(|| of_it(t.state.ephemerals_of(session)));
        let kept = kept.and_then(|(place, _)| t.state.instance(&place).map(|instance| (place, instance)));
        if let Some((place, instance)) = kept {
            return self.close_kept(t, asker, by, handle, (&place, instance), holds);
        }
        if t.state.is_closed(session, handle) {
            self.reply(t, asker.op, Message::Done(v1::CellDone::default()));
        } else if self.sessions.get(by.slot).is_some_and(|session| handle.0 < session.highest) {
            // It was open once, and nobody knows that it is not any more.
            self.agree_close(t, asker, by, handle);
        } else {
            return Err(unknown);
        }
        Ok(Flow::Taken)
    }

    /// The log closes a handle and frees what it keeps.
    fn close_kept(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        by: Caller<'_>,
        handle: HandleNumber,
        (place, instance): (&Place, u64),
        holds: bool,
    ) -> Result<Flow, Error> {
        let closed = self.closed_with(by, handle);
        self.change(t, asker, by, |reign, _| {
            let (app, path) = (place.app.to_string(), place.path.as_str().to_owned());
            let command = Command::Close(v1::CloseOpen { app, path, instance, handle: handle.0, closed });
            Ok((command, Purpose::Close { place: reign.places.hold(place), handle, holds }))
        })
    }

    pub(super) fn close_decided(
        &mut self,
        t: &mut Turn<'_>,
        session: Option<(Slot, SessionId, u64)>,
        place: PlaceId,
        number: HandleNumber,
        holds: bool,
        made: bool,
    ) {
        let name = self.places.get(place).clone();
        if let Some((slot, ..)) = session.filter(|_| made) {
            self.drop_handle(slot, number);
            if t.state.instance(&name).is_none() {
                self.node_removed(t, &name);
            }
            self.reap(t);
        }
        if holds {
            self.free_decided(t, session, place, number);
        } else {
            self.places.release(place);
        }
    }

    /// R12: rebuilds handles from their tokens; gives back the numbers of those that are gone.
    pub(super) fn rebuild_handles(&mut self, t: &Turn<'_>, slot: Slot, id: SessionId, tokens: &[Bytes]) -> Vec<u64> {
        let (mut gone, mut unread) = (Vec::new(), Vec::new());
        let Some(record) = t.state.session(id) else { return gone };
        for token in tokens.iter().take(MAX_HANDLES) {
            let Ok(body) = t.state.keys().open_handle(token) else {
                unread.extend(unreadable(token, id));
                continue;
            };
            let own =
                body.session == id.0 && body.principal == record.caller.principal && body.app == record.caller.app;
            let number = HandleNumber(body.number);
            let place = NodePath::parse(&body.path).map(|path| Place { app: body.app.as_str().into(), path });
            let Ok(place) = place else { continue };
            // A closed handle is not revived. Its client may still be closing it, and needs not hear that it is gone.
            let closed = t.state.is_closed(id, number) && !self.mutant(Mutant::ClosedHandlesRevived);
            if !own || closed {
                continue;
            }
            let lives = body.incarnation == t.state.incarnation().0
                && t.state.stat(&place).is_some_and(|stat| {
                    stat.instance == body.instance
                        && (!stat.ephemeral || t.state.openers(&place).contains(&(id, number)))
                });
            let rights = Rights { read: body.read, write: body.write, lock: body.lock, uncached: body.uncached };
            let events = (body.events & watched::ANY) as u8;
            let opening = Opening { place, number, delay_ms: body.lock_delay_ms.min(LOCK_DELAY_MS), events, rights };
            match lives {
                true => self.add_handle(slot, &opening, body.instance),
                false => gone.push(number.0),
            }
        }
        let open = |number| self.sessions.get(slot).is_some_and(|session| session.handle(number).is_some());
        let is_gone = |number: &u64| !open(HandleNumber(*number)) && !t.state.is_closed(id, HandleNumber(*number));
        gone.extend(unread.into_iter().filter(is_gone));
        gone
    }

    /// The numbers of presented handles that this session does not have.
    pub(super) fn missing_handles(&self, t: &Turn<'_>, slot: Slot, tokens: &[Bytes]) -> Vec<u64> {
        let session = self.sessions.get(slot);
        let known = |number| session.is_some_and(|session| session.handle(HandleNumber(number)).is_some());
        let id = session.map_or(SessionId(0), |session| session.id);
        let number = |token: &Bytes| match t.state.keys().open_handle(token) {
            Ok(body) => Some(body.number),
            Err(_) => unreadable(token, id),
        };
        tokens.iter().take(MAX_HANDLES).filter_map(number).filter(|number| !known(*number)).collect()
    }
}

/// Whether a caller may open a node so, or may know that it is not there.
fn may_open(t: &Turn<'_>, by: Caller<'_>, opening: &Opening) -> Result<(), Error> {
    if opening.must_read() {
        t.state.may(by.caller, &opening.place, Right::Read)?;
    }
    if opening.rights.write || opening.rights.lock {
        t.state.may(by.caller, &opening.place, Right::Write)?;
    }
    Ok(())
}

/// R12: the number of a handle whose token is not believed, if it says that it is of this session. Its client must hear
/// that the handle is gone; that a forged one is, hurts nobody but its forger.
fn unreadable(token: &[u8], id: SessionId) -> Option<u64> {
    let body = crate::token::unverified_handle(token)?;
    (body.session == id.0).then_some(body.number)
}

fn handle_body(t: &Turn<'_>, id: SessionId, principal: String, opening: &Opening, instance: u64) -> v1::HandleBody {
    v1::HandleBody {
        incarnation: t.state.incarnation().0,
        session: id.0,
        principal,
        app: opening.place.app.to_string(),
        path: opening.place.path.as_str().to_owned(),
        instance,
        read: opening.rights.read,
        write: opening.rights.write,
        lock: opening.rights.lock,
        events: opening.events.into(),
        lock_delay_ms: opening.delay_ms,
        number: opening.number.0,
        uncached: opening.rights.uncached,
    }
}
