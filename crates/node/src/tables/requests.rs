//! Requests to the processor here, until they are answered to the last piece.

use super::hub::{Hub, Said};
use crate::metrics;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidings_tables::calls::{Answer, Call, Caller, Outcome};
use tidings_tables::names::{PartitionId, RequestId};
use tidings_tables::processor::Input;
use tidings_tables::refusal::Refusal;
use tokio::sync::mpsc;

/// What the processor says to a request.
pub(super) type Answered = Result<Answer, Refusal>;

/// What answers are counted as.
const KINDS: [&str; 6] = ["written", "conflict", "rows", "stat", "moved", "refused"];

/// Requests that wait for answers, or for further pieces.
#[derive(Default)]
pub(super) struct Requests {
    next: AtomicU64,
    /// Answers since this node started, by [`KINDS`].
    counts: [AtomicU64; KINDS.len()],
    waiting: Mutex<BTreeMap<u64, mpsc::UnboundedSender<Answered>>>,
}

impl Requests {
    /// Answers a request, if somebody still waits.
    pub(super) fn answer(&self, RequestId(request): RequestId, answer: Answered) {
        let kind = kind(&answer);
        self.counts[kind].fetch_add(1, Ordering::Relaxed);
        metrics::tables_answered(KINDS[kind]);
        let last = !matches!(&answer, Ok(Answer::Page(page)) if !page.last);
        let mut waiting = self.waiting.lock();
        if let Some(answers) = waiting.get(&request) {
            // Who does not wait any more needs no answer.
            let _ = answers.send(answer);
        }
        if last {
            waiting.remove(&request);
        }
    }

    /// How many answers there were since this node started, by kind.
    pub(super) fn counts(&self) -> [(&'static str, u64); KINDS.len()] {
        std::array::from_fn(|kind| (KINDS[kind], self.counts[kind].load(Ordering::Relaxed)))
    }
}

/// Which of the [`KINDS`].
fn kind(answer: &Answered) -> usize {
    match answer {
        Ok(Answer::Written(Outcome::Done { .. })) => 0,
        Ok(Answer::Written(Outcome::Conflict(_))) => 1,
        Ok(Answer::Page(_)) => 2,
        Ok(Answer::Stat(_)) => 3,
        Err(Refusal::Moved) => 4,
        Ok(Answer::Written(Outcome::Refused(_))) | Err(_) => 5,
    }
}

/// A request under way. Dropped before its end it is cancelled.
pub(super) struct Asked {
    hub: Arc<Hub>,
    request: RequestId,
    answers: mpsc::UnboundedReceiver<Answered>,
    pieces: u64,
}

impl Asked {
    /// The answer, or its next piece; `None` after the last.
    pub(super) async fn next(&mut self) -> Option<Answered> {
        if self.pieces > 0 && self.hub.requests.waiting.lock().contains_key(&self.request.0) {
            self.hub.processor(Input::Pull { request: self.request }).await;
        }
        self.pieces += 1;
        self.answers.recv().await
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if self.hub.requests.waiting.lock().remove(&self.request.0).is_some() {
            self.hub.say(Said::Processor(Input::Cancel { request: self.request }));
        }
    }
}

impl Hub {
    /// Asks the processor here.
    pub(super) async fn ask(self: &Arc<Self>, partition: PartitionId, caller: Caller, call: Call) -> Asked {
        let request = RequestId(self.requests.next.fetch_add(1, Ordering::Relaxed) + 1);
        // One piece at a time is asked for.
        let (sender, answers) = mpsc::unbounded_channel();
        self.requests.waiting.lock().insert(request.0, sender);
        let asked = Asked { hub: self.clone(), request, answers, pieces: 0 };
        self.processor(Input::Request { request, partition, caller: Box::new(caller), call }).await;
        asked
    }
}
