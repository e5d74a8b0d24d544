//! Open handles: what rebuilds them at another master, and the locks they hold.

use crate::HandleNumber;
use crate::path::NodePath;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use tidings_wire::v1::{self, CellEventKind};

/// Bits of `OpenNode.events`.
const CONTENTS: u32 = 1;
const CHILDREN: u32 = 2;
const LOCK: u32 = 4;

/// One open handle.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Handle {
    pub(super) path: NodePath,
    /// Closing it deletes the node, if it is the last.
    pub(super) ephemeral: bool,
    /// It may take the lock.
    pub(super) lock: bool,
    token: Bytes,
    events: u32,
    holds_lock: bool,
    /// Its node is gone; every further call on it fails.
    pub(super) gone: bool,
}

/// All open handles of a session. Bounded by the master, which refuses to open more.
#[derive(Clone, Debug, Default)]
pub(super) struct Handles {
    open: BTreeMap<HandleNumber, Handle>,
    /// Locks found to be lost while in jeopardy.
    lost: Vec<HandleNumber>,
}

impl Handles {
    pub(super) fn get(&self, number: u64) -> Option<&Handle> {
        self.open.get(&HandleNumber(number))
    }

    pub(super) fn opened(&mut self, request: &v1::OpenNode, path: NodePath, reply: &v1::NodeOpened) {
        let handle = Handle {
            path,
            ephemeral: reply.stat.as_ref().is_some_and(|stat| stat.ephemeral),
            lock: request.lock,
            token: reply.token.clone(),
            events: request.events,
            holds_lock: false,
            gone: false,
        };
        self.open.insert(HandleNumber(reply.handle), handle);
    }

    pub(super) fn closed(&mut self, number: u64) {
        self.open.remove(&HandleNumber(number));
    }

    /// Whether the handle holds its lock, as far as is known here.
    pub(super) fn hold(&mut self, number: u64, holds: bool) {
        if let Some(handle) = self.open.get_mut(&HandleNumber(number)) {
            handle.holds_lock = holds;
        }
    }

    /// What a new master rebuilds the handles from.
    pub(super) fn tokens(&self) -> Vec<Bytes> {
        self.open.values().filter(|handle| !handle.gone).map(|handle| handle.token.clone()).collect()
    }

    pub(super) fn heard(&mut self, event: &v1::CellEvent, in_jeopardy: bool) {
        let number = HandleNumber(event.handle);
        let Some(handle) = self.open.get_mut(&number) else { return };
        match event.kind() {
            CellEventKind::LockLost => {
                handle.holds_lock = false;
                if in_jeopardy {
                    self.lost.push(number);
                }
            }
            CellEventKind::HandleInvalid => handle.gone = true,
            _ => {}
        }
    }

    /// After a fail-over: `held` survived, `gone` did not. Tells lost locks, lost handles, and for each handle that watches
    /// a redundant change, since changes under the old master may have gone untold.
    pub(super) fn recovered(
        &mut self,
        held: &BTreeSet<HandleNumber>,
        gone: &BTreeSet<HandleNumber>,
        in_jeopardy: bool,
    ) -> Vec<v1::CellEvent> {
        let mut events = Vec::new();
        for (number, handle) in self.open.iter_mut().filter(|(_, handle)| !handle.gone) {
            let mut tell = |kind: CellEventKind, more| {
                events.push(v1::CellEvent { handle: number.0, kind: kind as i32, children: Vec::new(), more });
            };
            if handle.holds_lock && !held.contains(number) {
                handle.holds_lock = false;
                if in_jeopardy {
                    self.lost.push(*number);
                }
                tell(CellEventKind::LockLost, false);
            }
            if gone.contains(number) {
                handle.gone = true;
                tell(CellEventKind::HandleInvalid, false);
                continue;
            }
            if handle.events & CONTENTS != 0 {
                tell(CellEventKind::ContentsChanged, false);
            }
            if handle.events & CHILDREN != 0 {
                tell(CellEventKind::ChildrenChanged, true);
            }
            // Who waits for the lock asks the new master, which tells its holder of it.
            if handle.events & LOCK != 0 {
                tell(CellEventKind::LockAcquired, false);
            }
        }
        events
    }

    /// The handles that hold their locks, as far as is known here.
    pub(super) fn holding(&self) -> Vec<HandleNumber> {
        let holding = self.open.iter().filter(|(_, handle)| handle.holds_lock && !handle.gone);
        holding.map(|(number, _)| *number).collect()
    }

    /// The locks found lost since the last jeopardy began.
    pub(super) fn take_lost(&mut self) -> Vec<HandleNumber> {
        std::mem::take(&mut self.lost)
    }
}
