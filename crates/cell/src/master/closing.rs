//! R12: closes of handles that keep nothing alive are agreed on, too, or the next master would rebuild from its token what
//! was closed. One entry is under way at a time and carries all that came before it, so that closing costs the log next
//! to nothing.

use super::mutations::{Purpose, Work};
use super::reign::{Asker, Caller, RETRY, Reign, Timer, Turn, Waiting};
use crate::{HandleNumber, SessionId};
use std::collections::BTreeMap;
use std::ops::Bound;
use tidings_base::{Error, OpId};
use tidings_wire::v1;
use tidings_wire::v1::cell_command::Command;
use tidings_wire::v1::cell_message::Message;

/// So many closes go with one entry; the rest goes with the next.
const MAX_CLOSES: usize = 1_024;

/// Closes that are not agreed on yet. Each is an open operation, and bounded as those are.
#[derive(Clone, Debug, Default)]
pub(super) struct Closing {
    waiting: BTreeMap<Closed, Close>,
    /// The last one that went: the next entry takes those behind it first, so that everybody's turn comes.
    last: Closed,
    under_way: bool,
}

/// What is closed: whoever asks again takes the place of the first.
type Closed = (SessionId, HandleNumber);

#[derive(Clone, Debug)]
struct Close {
    closed: Vec<v1::HandleRange>,
    asker: Asker,
}

impl Closing {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.under_way)
    }

    /// Nobody waits for a close any more. Its client asks again: it does not know that the handle is closed.
    pub(super) fn cancel(&mut self, session: SessionId, handle: HandleNumber, op: OpId) {
        if self.waiting.get(&(session, handle)).is_some_and(|close| close.asker.op == op) {
            self.waiting.remove(&(session, handle));
        }
    }

    /// Those that go with the next entry.
    fn take(&mut self) -> Vec<(SessionId, Close)> {
        let last = self.last;
        let behind = self.waiting.range((Bound::Excluded(last), Bound::Unbounded));
        let keys: Vec<Closed> =
            behind.chain(self.waiting.range(..=last)).map(|(key, _)| *key).take(MAX_CLOSES).collect();
        self.last = keys.last().copied().unwrap_or(last);
        keys.into_iter().filter_map(|key| Some((key.0, self.waiting.remove(&key)?))).collect()
    }
}

impl Reign {
    /// Has it agreed that a handle is closed, and answers then.
    pub(super) fn agree_close(&mut self, t: &mut Turn<'_>, asker: Asker, by: Caller<'_>, handle: HandleNumber) {
        let (session, closed) = (SessionId(by.call.session), self.closed_with(by, handle));
        self.keep_open(t, asker, Waiting::Close(session, handle));
        let before = self.closing.waiting.insert((session, handle), Close { closed, asker });
        self.superseded(t, before.map(|before| before.asker));
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
        let mut sessions: BTreeMap<SessionId, Vec<v1::HandleRange>> = BTreeMap::new();
        let mut ops = Vec::new();
        for (session, close) in self.closing.take() {
            sessions.entry(session).or_default().extend(close.closed);
            ops.push(close.asker.op);
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
