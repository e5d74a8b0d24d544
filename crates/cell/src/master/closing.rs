//! R12: closes of handles that keep nothing alive are agreed on, too, or the next master would rebuild from its token what
//! was closed. One entry is under way at a time and carries all that came before it, so that closing costs the log next
//! to nothing.

use super::mutations::{Purpose, Work};
use super::reign::{Asker, Caller, RETRY, Reign, Timer, Turn, Waiting};
use crate::{HandleNumber, SessionId};
use std::collections::BTreeMap;
use tidings_base::{Error, OpId};
use tidings_wire::v1;
use tidings_wire::v1::cell_command::Command;
use tidings_wire::v1::cell_message::Message;

/// So many closes go with one entry; the rest goes with the next.
const MAX_CLOSES: usize = 1_024;

/// Closes that are not agreed on yet. Each is an open operation, and bounded as those are.
#[derive(Clone, Debug, Default)]
pub(super) struct Closing {
    waiting: Vec<Close>,
    under_way: bool,
}

#[derive(Clone, Debug)]
struct Close {
    session: SessionId,
    closed: Vec<v1::HandleRange>,
    op: OpId,
}

impl Closing {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.under_way)
    }
}

impl Reign {
    /// Has it agreed that a handle is closed, and answers then.
    pub(super) fn agree_close(&mut self, t: &mut Turn<'_>, asker: Asker, by: Caller<'_>, handle: HandleNumber) {
        let (session, closed) = (SessionId(by.call.session), self.closed_with(by, handle));
        self.keep_open(t, asker, Waiting::Close);
        self.closing.waiting.push(Close { session, closed, op: asker.op });
        self.propose_closes(t);
    }

    /// What stands for no open handle once this one is closed: itself, and every number between it and the open one
    /// before it, as far as those are answered. So a session's closed numbers are few ranges, however many there were.
    pub(super) fn closed_with(&self, by: Caller<'_>, handle: HandleNumber) -> Vec<v1::HandleRange> {
        let HandleNumber(number) = handle;
        let mut closed = vec![v1::HandleRange { first: number, last: number }];
        if let Some(session) = self.sessions.get(by.slot) {
            let before = session.handles.partition_point(|open| open.number < handle);
            let open = before.checked_sub(1).and_then(|at| session.handles.get(at)).map_or(0, |open| open.number.0);
            let last = number.min(session.answered_below).saturating_sub(1);
            if open < last {
                closed.push(v1::HandleRange { first: open + 1, last });
            }
        }
        closed
    }

    /// Proposes what waits, unless an entry is under way: its end brings the next one.
    pub(super) fn propose_closes(&mut self, t: &mut Turn<'_>) {
        if self.closing.under_way || self.closing.waiting.is_empty() {
            return;
        }
        let count = self.closing.waiting.len().min(MAX_CLOSES);
        let mut sessions: BTreeMap<SessionId, Vec<v1::HandleRange>> = BTreeMap::new();
        let mut ops = Vec::with_capacity(count);
        for close in self.closing.waiting.drain(..count) {
            sessions.entry(close.session).or_default().extend(close.closed);
            ops.push(close.op);
        }
        let closed = |(session, closed): (SessionId, _)| v1::ClosedHandles { session: session.0, closed };
        let command = Command::CloseHandles(v1::CloseHandles { sessions: sessions.into_iter().map(closed).collect() });
        self.closing.under_way = true;
        self.start(t, Work::own(command, Purpose::CloseHandles(ops)));
    }

    /// An entry was decided. Whoever is told that it was not made asks again: the handle is gone here already.
    pub(super) fn closes_decided(&mut self, t: &mut Turn<'_>, ops: Vec<OpId>, made: Result<(), Error>) {
        self.closing.under_way = false;
        let again = made.is_err();
        for op in ops.into_iter().filter(|op| self.ops.contains_key(op)).collect::<Vec<_>>() {
            match &made {
                Ok(()) => self.reply(t, op, Message::Done(v1::CellDone::default())),
                Err(error) => self.fail(t, op, error.clone()),
            }
        }
        match again {
            true if !self.closing.waiting.is_empty() => self.timers.set(Timer::Close, t.mono() + RETRY),
            true => {}
            false => self.propose_closes(t),
        }
    }
}
