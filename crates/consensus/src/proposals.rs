//! Proposals that wait for their answer: how many there may be, and that each is answered once.

use crate::announce::Announcer;
use crate::config::Limits;
use crate::error::ProposeError;
use bytes::Bytes;
use openraft::OptionalSend;
use openraft::raft::responder::Responder;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tidings_base::agreed::{Heard, Refusal};
use tidings_base::{LogIndex, Mono, OpId};
use tokio::sync::oneshot;

/// What openraft calls when a write is done, or drops when it stops before that.
pub struct Completion<T> {
    done: Option<Box<dyn FnOnce(Option<T>) + Send>>,
}

impl<T> Completion<T> {
    pub(crate) fn new(done: impl FnOnce(Option<T>) + Send + 'static) -> Completion<T> {
        Completion { done: Some(Box::new(done)) }
    }
}

impl<T: OptionalSend + 'static> Responder<crate::types::TypeConfig, T> for Completion<T> {
    fn on_complete(mut self, result: T) {
        if let Some(done) = self.done.take() {
            done(Some(result));
        }
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(None);
        }
    }
}

/// Who wants to hear of a proposal.
#[derive(Debug)]
pub(crate) enum Asker {
    Machine(OpId),
    Caller(oneshot::Sender<Result<(LogIndex, Bytes), ProposeError>>),
}

/// How a proposal ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Applied(LogIndex, Bytes),
    Refused(Refusal),
    Unknown,
}

impl Asker {
    pub fn answer(self, outcome: Outcome, announcer: &Announcer) {
        match self {
            Asker::Machine(op) => announcer.say(match outcome {
                Outcome::Applied(index, result) => Heard::Applied { op, index, result },
                Outcome::Refused(refusal) => Heard::Refused { op, refusal },
                Outcome::Unknown => Heard::Unknown { op },
            }),
            Asker::Caller(caller) => {
                // A caller that gave up has no use for the answer.
                let _ = caller.send(match outcome {
                    Outcome::Applied(index, result) => Ok((index, result)),
                    Outcome::Refused(refusal) => Err(ProposeError::Refused(refusal)),
                    Outcome::Unknown => Err(ProposeError::Unknown),
                });
            }
        }
    }
}

/// A proposal that openraft has, or will be given: it takes room until it is let go, though nobody may wait for it any more.
#[derive(Debug)]
struct Waiting {
    asker: Option<Asker>,
    bytes: usize,
    deadline: Mono,
}

/// All unanswered proposals, numbered in the order they were asked.
#[derive(Debug, Default)]
struct Window {
    first: u64,
    items: VecDeque<Option<Waiting>>,
    count: usize,
    bytes: usize,
}

impl Window {
    fn take(&mut self, number: u64) -> Option<Waiting> {
        let at = number.checked_sub(self.first)?;
        let waiting = self.items.get_mut(usize::try_from(at).ok()?)?.take()?;
        self.count -= 1;
        self.bytes -= waiting.bytes;
        while self.items.front().is_some_and(Option::is_none) {
            self.items.pop_front();
            self.first += 1;
        }
        Some(waiting)
    }
}

/// The unanswered proposals of one replica.
pub(crate) struct Proposals {
    window: Mutex<Window>,
    limits: Limits,
    announcer: Arc<Announcer>,
}

impl Proposals {
    pub fn new(limits: Limits, announcer: Arc<Announcer>) -> Proposals {
        Proposals { window: Mutex::default(), limits, announcer }
    }

    /// Takes a proposal in and numbers it, or gives the asker back when too much waits already.
    pub fn admit(&self, asker: Asker, bytes: usize, deadline: Mono) -> Result<u64, Asker> {
        let mut window = self.window.lock();
        if window.count >= self.limits.proposals || window.bytes + bytes > self.limits.proposal_bytes {
            return Err(asker);
        }
        window.count += 1;
        window.bytes += bytes;
        window.items.push_back(Some(Waiting { asker: Some(asker), bytes, deadline }));
        Ok(window.first + window.items.len() as u64 - 1)
    }

    /// Answers a proposal, unless it was answered before.
    pub fn settle(&self, number: u64, outcome: Outcome) {
        let waiting = self.window.lock().take(number);
        if let Some(asker) = waiting.and_then(|waiting| waiting.asker) {
            asker.answer(outcome, &self.announcer);
        }
    }

    /// Moves the deadlines of all that wait forward to `deadline`: their leadership ended.
    pub fn hurry(&self, deadline: Mono) {
        for waiting in self.window.lock().items.iter_mut().flatten() {
            waiting.deadline = waiting.deadline.min(deadline);
        }
    }

    /// Answers «unknown» to all whose deadline has passed.
    pub fn expire(&self, now: Mono) {
        let mut window = self.window.lock();
        let due = window.items.iter_mut().flatten().filter(|waiting| waiting.deadline <= now);
        let askers: Vec<Asker> = due.filter_map(|waiting| waiting.asker.take()).collect();
        drop(window);
        askers.into_iter().for_each(|asker| asker.answer(Outcome::Unknown, &self.announcer));
    }

    /// How many wait, and with how many bytes.
    pub fn waiting(&self) -> (usize, usize) {
        let window = self.window.lock();
        (window.count, window.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposals(count: usize, bytes: usize) -> (Proposals, tokio::sync::mpsc::UnboundedReceiver<Heard>) {
        let announcer = Arc::new(Announcer::default());
        let heard = announcer.subscribe();
        let limits = Limits { proposals: count, proposal_bytes: bytes, ..Limits::default() };
        (Proposals::new(limits, announcer), heard)
    }

    #[test]
    fn number_and_bytes_are_bounded_and_come_back() {
        let (p, _heard) = proposals(2, 100);
        let a = p.admit(Asker::Machine(OpId(1)), 60, Mono(9)).unwrap();
        assert!(p.admit(Asker::Machine(OpId(2)), 41, Mono(9)).is_err(), "too many bytes");
        let b = p.admit(Asker::Machine(OpId(2)), 40, Mono(9)).unwrap();
        assert!(p.admit(Asker::Machine(OpId(3)), 0, Mono(9)).is_err(), "too many");
        // A disk hangs: nobody waits any more, and openraft still has them.
        p.expire(Mono(9));
        assert!(p.waiting() == (2, 100) && p.admit(Asker::Machine(OpId(3)), 0, Mono(9)).is_err());
        p.settle(a, Outcome::Unknown);
        p.settle(b, Outcome::Unknown);
        assert_eq!(p.waiting(), (0, 0));
        assert!(p.admit(Asker::Machine(OpId(3)), 100, Mono(9)).is_ok());
    }

    #[test]
    fn each_is_answered_once_whatever_comes_later() {
        let (p, mut heard) = proposals(9, 100);
        let a = p.admit(Asker::Machine(OpId(1)), 1, Mono(5)).unwrap();
        let b = p.admit(Asker::Machine(OpId(2)), 1, Mono(50)).unwrap();
        p.expire(Mono(5));
        p.settle(a, Outcome::Applied(LogIndex(1), Bytes::new()));
        p.hurry(Mono(6));
        p.settle(b, Outcome::Applied(LogIndex(2), Bytes::from_static(b"x")));
        p.expire(Mono(100));
        drop(p);
        assert_eq!(heard.try_recv(), Ok(Heard::Unknown { op: OpId(1) }));
        let applied = Heard::Applied { op: OpId(2), index: LogIndex(2), result: Bytes::from_static(b"x") };
        assert_eq!(heard.try_recv(), Ok(applied));
        assert!(heard.try_recv().is_err());
    }
}
