//! Barriers that no lease covers: many share one round of messages.

use crate::announce::Announcer;
use crate::group::forward_to;
use crate::shared::Shared;
use crate::types::Raft;
use openraft::ReadPolicy;
use openraft::errors::{LinearizableReadError, RaftError};
use parking_lot::Mutex;
use std::sync::Arc;
use tidings_base::agreed::{Heard, Refusal};
use tidings_base::{LogIndex, OpId};
use tokio::sync::{Notify, oneshot};

/// Who wants to pass.
#[derive(Debug)]
pub(crate) enum Asker {
    Machine(OpId),
    Caller(oneshot::Sender<Result<LogIndex, Refusal>>),
}

impl Asker {
    pub fn pass(self, index: LogIndex, announcer: &Announcer) {
        match self {
            Asker::Machine(op) => announcer.say(Heard::Passed { op, index }),
            // A caller that gave up has no use for the answer.
            Asker::Caller(caller) => drop(caller.send(Ok(index))),
        }
    }

    pub fn refuse(self, refusal: Refusal, announcer: &Announcer) {
        match self {
            Asker::Machine(op) => announcer.say(Heard::Refused { op, refusal }),
            Asker::Caller(caller) => drop(caller.send(Err(refusal))),
        }
    }
}

/// The barriers that wait for the next round.
#[derive(Clone)]
pub(crate) struct Barriers {
    queue: Arc<Queue>,
}

struct Queue {
    waiting: Mutex<Vec<Asker>>,
    wake: Notify,
}

impl Barriers {
    pub fn new() -> Barriers {
        let queue = Queue { waiting: Mutex::default(), wake: Notify::new() };
        Barriers { queue: Arc::new(queue) }
    }

    pub fn wait(&self, asker: Asker, shared: &Shared) {
        let mut waiting = self.queue.waiting.lock();
        if waiting.len() >= shared.limits.barriers {
            drop(waiting);
            return asker.refuse(Refusal::Busy, &shared.announcer);
        }
        if shared.is_stopped() {
            drop(waiting);
            return asker.refuse(Refusal::Stopped, &shared.announcer);
        }
        waiting.push(asker);
        drop(waiting);
        self.queue.wake.notify_one();
    }

    /// Lets [`run`](Barriers::run) see that the replica has stopped.
    pub fn stop(&self) {
        self.queue.wake.notify_one();
    }

    /// One round after the other; whoever asks during a round waits for the next, because the round may have begun
    /// before what it must see. Ends when the replica has stopped and all that waited are answered.
    pub async fn run(self, shared: Arc<Shared>, raft: Raft) {
        loop {
            self.queue.wake.notified().await;
            let waiting = std::mem::take(&mut *self.queue.waiting.lock());
            if shared.is_stopped() {
                return waiting.into_iter().for_each(|asker| asker.refuse(Refusal::Stopped, &shared.announcer));
            }
            if waiting.is_empty() {
                continue;
            }
            let passed = match raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
                Ok(_) => Ok(shared.applied_index()),
                Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                    Err(Refusal::NotLeader { leader: forward_to(&shared, &forward) })
                }
                // No majority answered: perhaps another leads by now.
                Err(RaftError::APIError(_)) => Err(Refusal::NotLeader { leader: None }),
                Err(RaftError::Fatal(_)) => Err(Refusal::Stopped),
            };
            for asker in waiting {
                match passed {
                    Ok(index) => asker.pass(index, &shared.announcer),
                    Err(refusal) => asker.refuse(refusal, &shared.announcer),
                }
            }
        }
    }
}
