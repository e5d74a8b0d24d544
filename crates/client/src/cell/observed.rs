//! What a client sees of the cell's availability: what counts in the end.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidings_base::{Class, Error, Mono};

/// What one session has seen since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// How long it has existed.
    pub age: Duration,
    /// How long of that it was in jeopardy, now included: calls waited and nothing cached was served.
    pub jeopardy: Duration,
    /// How often it came into jeopardy.
    pub jeopardies: u64,
    /// Calls that were answered by the cell, refusals included.
    pub calls: u64,
    /// Of these: calls that the cell could not decide (unreachable, outcome unknown, failed), and calls that found the
    /// session expired. A refusal (no such file, wrong generation) is an answer, not a failure.
    pub failed: u64,
    /// Reads that were served from the cache.
    pub cached: u64,
    /// Requests sent, KeepAlives included.
    pub sent: u64,
    /// Requests that got no answer and were sent again.
    pub unanswered: u64,
}

impl Observed {
    /// The share of its time in which the session could call the cell, from 0 to 1.
    pub fn availability(&self) -> f64 {
        match self.age.is_zero() {
            true => 1.0,
            false => 1.0 - self.jeopardy.as_secs_f64() / self.age.as_secs_f64(),
        }
    }
}

/// The counters behind it.
#[derive(Default)]
pub(crate) struct Counters {
    calls: AtomicU64,
    failed: AtomicU64,
    sent: AtomicU64,
    unanswered: AtomicU64,
    time: Mutex<Times>,
}

#[derive(Default)]
struct Times {
    began: Option<Mono>,
    ended: Option<Mono>,
    jeopardy: Duration,
    jeopardies: u64,
    since: Option<Mono>,
}

impl Counters {
    pub(crate) fn sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unanswered(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn answered<T>(&self, result: &Result<T, Error>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = result
            && (matches!(error.class, Class::Unreachable | Class::OutcomeUnknown | Class::Failed)
                || error.code == "cell.expired")
        {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn began(&self, now: Mono) {
        self.time.lock().began = Some(now);
    }

    pub(crate) fn jeopardy(&self, now: Mono) {
        let mut time = self.time.lock();
        time.jeopardies += 1;
        time.since = Some(now);
    }

    pub(crate) fn safe(&self, now: Mono) {
        let mut time = self.time.lock();
        if let Some(since) = time.since.take() {
            time.jeopardy += now.since(since);
        }
    }

    pub(crate) fn ended(&self, now: Mono) {
        self.safe(now);
        self.time.lock().ended = Some(now);
    }

    pub(crate) fn observed(&self, now: Mono, cached: u64) -> Observed {
        let time = self.time.lock();
        let now = time.ended.unwrap_or(now);
        let open = time.since.map(|since| now.since(since)).unwrap_or_default();
        Observed {
            age: time.began.map(|began| now.since(began)).unwrap_or_default(),
            jeopardy: time.jeopardy + open,
            jeopardies: time.jeopardies,
            calls: self.calls.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            cached,
            sent: self.sent.load(Ordering::Relaxed),
            unanswered: self.unanswered.load(Ordering::Relaxed),
        }
    }
}
