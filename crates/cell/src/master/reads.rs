//! Reads, from the state, by handle or by path; cacheable where nothing stands against it.

use super::caching::Crowd;
use super::handles::Rights;
use super::reign::{Asker, Flow, Reign, Turn, Waiting, bad_call};
use super::sessions::Slot;
use crate::error;
use crate::namespace::{Right, placed};
use crate::path::{NodePath, Place};
use prost::Message as _;
use tidings_base::{Error, LogIndex};
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;
use tidings_wire::v1::node_target::Target;

/// So many names in one `read_many`.
const MAX_PATHS: usize = 128;

/// An answer must fit a client's frame of 1 MiB and a little: so much of many nodes.
const MAX_MANY: usize = 768 << 10;
/// What a node's answer has besides its stat and contents, at most.
const NODE: usize = 64;

/// Which of the answers that stand on one entry of the log an answer is: the same master gives them one after the other, and the next
/// master's entries come after all of this one's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tickets {
    of: LogIndex,
    last: u32,
}

impl Tickets {
    /// The most that are told apart: what a place in a sketcher's table has room for. Further answers on the same entry share the last
    /// one, which is as true: the state is the same.
    const MOST: u32 = (1 << 18) - 1;

    fn next(&mut self, applied: LogIndex) -> u32 {
        if applied != self.of {
            *self = Tickets { of: applied, last: 0 };
        }
        self.last = (self.last + 1).min(Tickets::MOST);
        self.last
    }
}

/// What a read asks for.
#[derive(Clone, Copy)]
struct Parts {
    contents: bool,
    children: bool,
    cacheable: bool,
}

impl Reign {
    pub(super) fn read(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        slot: Option<Slot>,
        caller: &v1::CellCaller,
        read: v1::ReadNode,
    ) -> Result<Flow, Error> {
        if t.fresh.is_none() {
            return Ok(Flow::Fresh);
        }
        match read.place() {
            v1::ReadPlace::Unspecified => {}
            v1::ReadPlace::Newest => return self.read_placed(t, asker, slot, caller, read),
            v1::ReadPlace::Applied => {
                return Err(bad_call("what a node has applied is read from it, not from the master"));
            }
        }
        let (place, rights) = self.read_target(t, slot, caller, read.target.as_ref())?;
        if let Some(crowd) = self.is_crowded(&place, read.children) {
            self.delay(t, &crowd, asker, slot, caller, Message::Read(read));
            return Ok(Flow::Taken);
        }
        let cacheable = !read.uncached && !rights.uncached;
        let parts = Parts { contents: read.contents, children: read.children, cacheable };
        let found = self.look(t, slot, caller, &place, parts)?;
        self.reply(t, asker.op, Message::NodeRead(found));
        Ok(Flow::Taken)
    }

    /// The same, with where in the cell's order the answer stands: a refusal of the state stands there, too.
    fn read_placed(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        slot: Option<Slot>,
        caller: &v1::CellCaller,
        read: v1::ReadNode,
    ) -> Result<Flow, Error> {
        let Some(Target::Path(path)) = read.target.as_ref().and_then(|target| target.target.as_ref()) else {
            return Err(bad_call("a read with its place names a path"));
        };
        let place = Place { app: caller.app.as_str().into(), path: NodePath::parse(path)? };
        if let Some(crowd) = self.is_crowded(&place, read.children) {
            self.delay(t, &crowd, asker, slot, caller, Message::Read(read));
            return Ok(Flow::Taken);
        }
        let found = t.state.may(caller, &place, Right::Read);
        let found = found.and_then(|()| t.state.look(caller, &place, read.contents, read.children));
        let index = self.tickets.next(t.state.applied());
        let answer = v1::PlacedRead { place: Some(t.state.place_of_answer(index)), answer: Some(placed(found)) };
        self.reply(t, asker.op, Message::PlacedRead(answer));
        Ok(Flow::Taken)
    }

    /// The node to be read, if the caller may: by its handle's rights and, each time anew, by the ACLs (R12).
    fn read_target(
        &self,
        t: &Turn<'_>,
        slot: Option<Slot>,
        caller: &v1::CellCaller,
        target: Option<&v1::NodeTarget>,
    ) -> Result<(Place, Rights), Error> {
        let (place, rights) = match (target.and_then(|target| target.target.as_ref()), slot) {
            (Some(Target::Handle(number)), Some(slot)) => {
                let handle = self.handle(slot, *number)?;
                let place = self.places.get(handle.place).clone();
                if !handle.rights.read {
                    return Err(error::denied("to read through a handle that was not opened for reading"));
                }
                if t.state.instance(&place) != Some(handle.instance) {
                    return Err(error::node_gone(&place.path));
                }
                (place, handle.rights)
            }
            (Some(Target::Path(path)), Some(slot)) => (self.place(slot, path)?, Rights::default()),
            (Some(Target::Path(path)), None) => {
                (Place { app: caller.app.as_str().into(), path: NodePath::parse(path)? }, Rights::default())
            }
            (Some(Target::Handle(_)), None) => return Err(error::bad_handle("it belongs to a session")),
            (None, _) => return Err(bad_call("it names no node")),
        };
        t.state.may(caller, &place, Right::Read)?;
        Ok((place, rights))
    }

    pub(super) fn read_many(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        slot: Option<Slot>,
        caller: &v1::CellCaller,
        read: v1::ReadMany,
    ) -> Result<Flow, Error> {
        if t.fresh.is_none() {
            return Ok(Flow::Fresh);
        }
        if read.paths.len() > MAX_PATHS {
            return Err(bad_call("at most 128 paths are read at once"));
        }
        let mut places = Vec::with_capacity(read.paths.len());
        for path in &read.paths {
            let target = v1::NodeTarget { target: Some(Target::Path(path.clone())) };
            places.push(self.read_target(t, slot, caller, Some(&target))?.0);
        }
        if let Some(crowd) = places.iter().find_map(|place| self.is_crowded(place, false)) {
            self.delay(t, &crowd, asker, slot, caller, Message::ReadMany(read));
            return Ok(Flow::Taken);
        }
        // As many of the first as fit; the client asks for the rest.
        let (mut nodes, mut size) = (Vec::with_capacity(places.len()), 0);
        for place in &places {
            let stat = t.state.stat(place);
            let file = stat.as_ref().is_some_and(|stat| !stat.directory);
            size += NODE + stat.map_or(0, |stat| stat.encoded_len() + stat.length as usize);
            if size > MAX_MANY && !nodes.is_empty() {
                break;
            }
            let parts = Parts { contents: file, children: false, cacheable: true };
            nodes.push(self.look(t, slot, caller, place, parts)?);
        }
        self.reply(t, asker.op, Message::ManyRead(v1::ManyRead { nodes }));
        Ok(Flow::Taken)
    }

    /// Lets a read wait until the changes under way are made.
    fn delay(
        &mut self,
        t: &Turn<'_>,
        crowd: &Crowd,
        asker: Asker,
        slot: Option<Slot>,
        caller: &v1::CellCaller,
        message: Message,
    ) {
        self.keep_open(t, asker, Waiting::Parked);
        let call = slot.and_then(|slot| self.call_header(t, slot));
        self.park(crowd, asker, v1::CellMessage { caller: Some(caller.clone()), call, message: Some(message) });
    }

    /// What a caller is shown of a node that it may read.
    fn look(
        &mut self,
        t: &Turn<'_>,
        slot: Option<Slot>,
        caller: &v1::CellCaller,
        place: &Place,
        parts: Parts,
    ) -> Result<v1::NodeRead, Error> {
        let found = t.state.look(caller, place, parts.contents, parts.children)?;
        let stamp = slot.filter(|_| parts.cacheable).and_then(|slot| {
            let both =
                self.note_interest(slot, place, false) && (!parts.children || self.note_interest(slot, place, true));
            if both { self.stamp(slot) } else { None }
        });
        Ok(v1::NodeRead { stamp, ..found })
    }

    /// What a parked request of a session says about itself when it goes on.
    fn call_header(&self, t: &Turn<'_>, slot: Slot) -> Option<v1::CellCall> {
        let id = self.sessions.get(slot)?.id;
        let secret = t.state.session(id)?.secret;
        Some(v1::CellCall { session: id.0, secret, epoch: self.epoch, ..Default::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_on_one_entry_are_told_apart_as_far_as_there_is_room() {
        let mut tickets = Tickets::default();
        assert_eq!([1, 1, 1, 2, 2].map(|at| tickets.next(LogIndex(at))), [1, 2, 3, 1, 2]);
        tickets.last = Tickets::MOST - 1;
        assert_eq!([2, 2, 3].map(|at| tickets.next(LogIndex(at))), [Tickets::MOST, Tickets::MOST, 1]);
    }
}
