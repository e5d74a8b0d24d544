//! Sessions as they are agreed: whose they are, what they hold, and the answers of their calls (R8).

use super::chunks::ChunkMap;
use super::closed::Closed;
use crate::error;
use crate::path::Place;
use crate::{HandleNumber, SessionId};
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;
use tidings_wire::v1;

/// How many calls of a session may be outstanding: so many answers are kept for it at most.
pub const WINDOW: u64 = 1_024;
/// How many ephemeral nodes a session may have open.
pub const MAX_EPHEMERALS: usize = 1_000;
/// How many sessions a cell may have: each costs memory at every replica.
pub const MAX_SESSIONS: usize = 1_000_000;

/// A session as it is agreed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// Whose it is.
    pub caller: Arc<v1::CellCaller>,
    /// Its lease.
    pub lease: Duration,
    /// What its client chose.
    pub secret: u64,
    /// How often it took a lock or opened an ephemeral node: `StopSession` names it.
    pub gains: u64,
    /// The node whose process keeps it, for itself or for callers of REST; 0 = a client of its own.
    pub keeper: u64,
    /// An operator has ended it: it lives on only as long as its client may believe in it.
    pub ordered: bool,
}

/// A session with what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub record: SessionRecord,
    pub window: Window,
    /// Sorted: the locks it holds, with the handles that hold them.
    pub locks: Vec<(Place, HandleNumber)>,
    /// Sorted: the ephemeral nodes it has open, with the handles.
    pub ephemerals: Vec<(Place, HandleNumber)>,
    /// R12: what stands for no open handle any more.
    pub closed: Closed,
}

/// R8: the answers that a client may still ask for again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    /// The client has the answers of all numbers below.
    pub floor: u64,
    /// Answers as they were encoded, by number, in order.
    pub results: Vec<(u64, Box<[u8]>)>,
}

impl Window {
    /// The client has the answers of all numbers below this.
    pub(super) fn raise(&mut self, floor: u64) {
        if floor > self.floor {
            self.floor = floor;
            let gone = self.results.partition_point(|result| result.0 < floor);
            self.results.drain(..gone);
        }
    }

    /// Whether a number may be applied; call [`Window::find`] first.
    pub(super) fn admit(&self, number: u64) -> Result<(), Error> {
        if number < self.floor {
            return Err(error::answered_already(number));
        }
        if number - self.floor >= WINDOW {
            return Err(error::too_many_outstanding(WINDOW));
        }
        Ok(())
    }

    pub(super) fn find(&self, number: u64) -> Option<&[u8]> {
        let at = self.results.binary_search_by_key(&number, |result| result.0).ok()?;
        Some(&self.results[at].1)
    }

    pub(super) fn keep(&mut self, number: u64, result: Box<[u8]>) {
        let at = self.results.partition_point(|have| have.0 < number);
        if self.results.get(at).is_some_and(|have| have.0 == number) {
            self.results[at].1 = result;
        } else {
            insert_at(&mut self.results, at, (number, result));
        }
    }
}

/// Inserts; small vectors stay as small as they can, since there is one for every session.
pub(super) fn insert_at<T>(list: &mut Vec<T>, at: usize, item: T) {
    if list.len() == list.capacity() && list.len() < 4 {
        list.reserve_exact(1);
    }
    list.insert(at, item);
}

/// One principal, shared by all its sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CallerKey(Arc<v1::CellCaller>);

fn order(a: &v1::CellCaller, b: &v1::CellCaller) -> Ordering {
    (&a.app, &a.principal, a.privileged).cmp(&(&b.app, &b.principal, b.privileged))
}

impl PartialOrd for CallerKey {
    fn partial_cmp(&self, other: &CallerKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for CallerKey {
    fn cmp(&self, other: &CallerKey) -> Ordering {
        order(&self.0, &other.0)
    }
}

/// All sessions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sessions {
    all: ChunkMap<SessionId, Arc<Session>>,
    /// Callers, each with the number of its sessions.
    callers: ChunkMap<CallerKey, usize>,
}

impl Sessions {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn get(&self, id: SessionId) -> Option<&Session> {
        self.all.get(&id).map(|session| &**session)
    }

    pub(super) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.all.get_mut(&id).map(Arc::make_mut)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.all.iter().map(|(id, session)| (*id, &**session))
    }

    /// The first session of a greater id.
    pub(super) fn after(&self, id: SessionId) -> Option<(SessionId, &Session)> {
        let next = self.all.starting_by(|k| k.cmp(&id).then(Ordering::Less)).next();
        next.map(|(id, session)| (*id, &**session))
    }

    /// Adds a session; its caller becomes the one that is shared. False = there is one of this id.
    pub(super) fn insert(&mut self, id: SessionId, mut record: SessionRecord, window: Window) -> bool {
        if self.all.get(&id).is_some() {
            return false;
        }
        let caller = self.callers.get_mut_by(|key| order(&key.0, &record.caller));
        match caller {
            Some((shared, count)) => {
                record.caller = shared.0.clone();
                *count += 1;
            }
            None => {
                self.callers.insert(CallerKey(record.caller.clone()), 1);
            }
        }
        let session = Session { record, window, locks: Vec::new(), ephemerals: Vec::new(), closed: Closed::default() };
        self.all.insert(id, Arc::new(session));
        true
    }

    pub(super) fn remove(&mut self, id: SessionId) -> Option<Arc<Session>> {
        let session = self.all.remove(&id)?;
        let caller = &session.record.caller;
        if let Some((_, count)) = self.callers.get_mut_by(|key| order(&key.0, caller)) {
            *count -= 1;
            if *count == 0 {
                self.callers.remove_by(|key| order(&key.0, caller));
            }
        }
        Some(session)
    }

    pub(super) fn gained_lock(&mut self, id: SessionId, place: Place, handle: HandleNumber) {
        let Some(session) = self.get_mut(id) else { return };
        session.record.gains += 1;
        add(&mut session.locks, place, handle);
    }

    pub(super) fn gave_lock(&mut self, id: SessionId, place: &Place, handle: HandleNumber) {
        if let Some(session) = self.get_mut(id) {
            take(&mut session.locks, place, handle);
        }
    }

    pub(super) fn gained_ephemeral(&mut self, id: SessionId, place: Place, handle: HandleNumber) {
        let Some(session) = self.get_mut(id) else { return };
        session.record.gains += 1;
        add(&mut session.ephemerals, place, handle);
    }

    pub(super) fn gave_ephemeral(&mut self, id: SessionId, place: &Place, handle: HandleNumber) {
        if let Some(session) = self.get_mut(id) {
            take(&mut session.ephemerals, place, handle);
        }
    }

    /// R12: these numbers stand for no open handle any more.
    pub(super) fn close(&mut self, id: SessionId, closed: &[v1::HandleRange]) {
        if let Some(session) = self.get_mut(id) {
            closed.iter().for_each(|range| session.closed.add(range.first, range.last));
        }
    }

    /// What a session holds, when its state is loaded: gains are not counted again.
    pub(super) fn load(&mut self, id: SessionId, place: &Place, handle: HandleNumber, lock: bool) -> bool {
        let Some(session) = self.get_mut(id) else { return false };
        let list = if lock { &mut session.locks } else { &mut session.ephemerals };
        add(list, place.clone(), handle);
        true
    }
}

fn add(list: &mut Vec<(Place, HandleNumber)>, place: Place, handle: HandleNumber) {
    let item = (place, handle);
    if let Err(at) = list.binary_search(&item) {
        insert_at(list, at, item);
    }
}

fn take(list: &mut Vec<(Place, HandleNumber)>, place: &Place, handle: HandleNumber) {
    if let Ok(at) = list.binary_search_by(|have| have.0.cmp(place).then(have.1.cmp(&handle))) {
        list.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(window: &mut Window, number: u64) {
        window.keep(number, Box::from([number as u8]));
    }

    #[test]
    fn a_window_answers_repeats_and_refuses_what_is_below_or_too_far() {
        let mut window = Window::default();
        for number in [3, 1, 2] {
            window.admit(number).unwrap();
            keep(&mut window, number);
        }
        assert_eq!(window.find(2), Some(&[2u8][..]));
        window.raise(3);
        window.raise(1);
        assert_eq!((window.find(2), window.find(3)), (None, Some(&[3u8][..])));
        assert_eq!(window.admit(2).unwrap_err().code, "cell.answered_already");
        window.admit(3 + WINDOW - 1).unwrap();
        assert_eq!(window.admit(3 + WINDOW).unwrap_err().code, "cell.too_many_outstanding");
    }

    #[test]
    fn sessions_of_one_principal_share_it() {
        let mut sessions = Sessions::default();
        let caller = v1::CellCaller { app: "a".into(), principal: "app:a/k".into(), privileged: false };
        for id in 1..=3 {
            let caller = Arc::new(caller.clone());
            let record =
                SessionRecord { caller, lease: Duration::ZERO, secret: 0, gains: 0, keeper: 0, ordered: false };
            assert!(sessions.insert(SessionId(id), record.clone(), Window::default()));
            assert!(!sessions.insert(SessionId(id), record, Window::default()));
        }
        let first = sessions.get(SessionId(1)).unwrap().record.caller.clone();
        assert!(Arc::ptr_eq(&first, &sessions.get(SessionId(3)).unwrap().record.caller));
        (1..=3).for_each(|id| assert!(sessions.remove(SessionId(id)).is_some()));
        assert_eq!((sessions.len(), sessions.callers.len()), (0, 0));
    }

    /// What 100,000 sessions cost is bounded where it is decided.
    #[test]
    fn a_session_is_small() {
        assert!(size_of::<Session>() <= 160, "{}", size_of::<Session>());
    }
}
