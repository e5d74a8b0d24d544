//! Delivery: which consumer gets which entry, in memory at the leader.
//!
//! The agreed state holds entries and acknowledgements; who was given what, and when it must be given again, is here and
//! nowhere else. A new leader begins with nothing and delivers everything unacknowledged again.
//!
//! ```text
//!   consume ──▶ line (topic, group): waiting consumers in order of arrival, entries out, entries due again
//!                 │  Look: what is open?  (after a read barrier: an acknowledged entry is never delivered again)
//!                 ◀── open entries ──▶ to the consumers, first come first served, each entry to one of them
//! ```
//! One look at a time for each line. A line looks when a consumer comes, when its topic grows, when an entry is due again,
//! and every [`LOOK_AGAIN`] while consumers wait.

use crate::limits::MAX_CONSUME;
use crate::read::{FeedAnswer, FeedQuery};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tidings_base::{Class, Error, Machine, Mono, Now, OpId, Outbox, Timers};
use tidings_wire::v1;

/// How long a consumer has to acknowledge an entry unless it says otherwise.
pub const REDELIVER: Duration = Duration::from_secs(30);
/// The longest that a consumer may keep an entry: it is remembered that long.
pub const MAX_REDELIVER: Duration = Duration::from_secs(3600);
/// The longest that a consumer may wait for an answer.
pub const MAX_WAIT: Duration = Duration::from_secs(60);
/// How many entries an answer has at most if the consumer does not say.
pub const DEFAULT_CONSUME: u32 = 64;
/// While consumers wait, their line looks this often: an append of unknown outcome may be applied with nobody to tell.
pub const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How many pairs of topic and consumer group a leader serves at once.
pub const MAX_LINES: usize = 4096;

/// Names a line for as long as it lives; never used twice by one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineId(pub u64);

/// What delivery hears.
#[derive(Clone, Debug)]
pub enum DeliveryInput {
    /// A consumer waits for entries.
    Consume {
        /// The consumer's operation.
        op: OpId,
        /// What it wants, checked.
        consume: v1::Consume,
    },
    /// The consumer is gone or wants no more.
    Cancel {
        /// The consumer's operation.
        op: OpId,
    },
    /// Entries were appended to a topic.
    Appended {
        /// The topic.
        topic: Bytes,
    },
    /// A group acknowledged entries: it will not see them again.
    Acked {
        /// The topic.
        topic: Bytes,
        /// The consumer group.
        group: Bytes,
        /// The entries.
        numbers: Vec<u64>,
    },
    /// The answer to a look.
    Looked {
        /// Whose look.
        line: LineId,
        /// What is open, or why it could not be said.
        answer: Result<FeedAnswer, Error>,
    },
    /// The answer to a join.
    Joined {
        /// Whose join.
        line: LineId,
        /// Whether the topic knows the group now.
        result: Result<(), Error>,
    },
    /// This replica stopped leading, or leads anew: what was given out is not ours to remember.
    Reset {
        /// What waiting consumers are told.
        error: Error,
    },
}

/// What delivery wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum DeliveryOutput {
    /// Read what is open, after a read barrier.
    Look {
        /// Comes back with the answer.
        line: LineId,
        /// What to read.
        query: FeedQuery,
    },
    /// Make the group known to the topic.
    Join {
        /// Comes back with the answer.
        line: LineId,
        /// The topic.
        topic: Bytes,
        /// The consumer group.
        group: Bytes,
    },
    /// Answer a consumer; no entries if its wait is over.
    Deliver {
        /// The consumer's operation.
        op: OpId,
        /// What it gets.
        deliveries: Vec<v1::Delivery>,
    },
    /// Tell a consumer that it gets no answer here.
    Fail {
        /// The consumer's operation.
        op: OpId,
        /// Why.
        error: Error,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A consumer has waited long enough.
    Wait(OpId),
    /// An entry of a line is due again, or its consumers wait and it looks anyway.
    Line(LineId),
}

#[derive(Clone, Debug)]
struct Waiter {
    line: LineId,
    limit: usize,
    redeliver: Duration,
    until: Mono,
    /// A look that began after it came has ended: it may be answered with nothing.
    looked: bool,
}

/// An entry that a consumer has.
#[derive(Clone, Copy, Debug)]
struct Out {
    until: Mono,
    times: u32,
}

#[derive(Clone, Debug)]
enum Looking {
    No,
    /// A look or join is under way. `acked` came meanwhile, so the answer may not know; `again` asks for another look.
    Yes {
        acked: BTreeSet<u64>,
        again: bool,
        witnesses: Vec<OpId>,
    },
}

#[derive(Clone, Debug)]
struct Line {
    topic: Bytes,
    group: Bytes,
    waiting: VecDeque<OpId>,
    out: BTreeMap<u64, Out>,
    /// The same by time: what is due again comes first.
    due: BTreeSet<(Mono, u64)>,
    /// Every open entry below this one is out.
    next: u64,
    looking: Looking,
    look_again_at: Mono,
}

/// The delivery machine of one replica.
#[derive(Clone, Debug, Default)]
pub struct Delivery {
    lines: BTreeMap<LineId, Line>,
    by_name: BTreeMap<(Bytes, Bytes), LineId>,
    waiters: BTreeMap<OpId, Waiter>,
    timers: Timers<Timer>,
    last_line: u64,
}

impl Machine for Delivery {
    type Input = DeliveryInput;
    type Output = DeliveryOutput;

    fn handle(&mut self, now: Now, input: DeliveryInput, out: &mut Outbox<DeliveryOutput>) {
        match input {
            DeliveryInput::Consume { op, consume } => self.consume(now, op, consume, out),
            DeliveryInput::Cancel { op } => self.forget(op),
            DeliveryInput::Appended { topic } => self.appended(now, &topic, out),
            DeliveryInput::Acked { topic, group, numbers } => self.acked(topic, group, &numbers),
            DeliveryInput::Looked { line, answer } => self.looked(now, line, answer, out),
            DeliveryInput::Joined { line, result } => self.joined(now, line, result, out),
            DeliveryInput::Reset { error } => self.reset(error, out),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<DeliveryOutput>) {
        while let Some(timer) = self.timers.pop_due(now.mono) {
            match timer {
                Timer::Wait(op) => self.waited(op, out),
                Timer::Line(line) => {
                    self.look(now, line, out);
                    self.settle(line);
                }
            }
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.timers.deadline()
    }
}

impl Delivery {
    /// A machine that serves nobody yet.
    pub fn new() -> Delivery {
        Delivery::default()
    }

    /// How many consumers wait.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// How many entries are with consumers.
    pub fn outstanding(&self) -> usize {
        self.lines.values().map(|line| line.out.len()).sum()
    }

    fn consume(&mut self, now: Now, op: OpId, consume: v1::Consume, out: &mut Outbox<DeliveryOutput>) {
        let millis = |ms: u32| Duration::from_millis(u64::from(ms));
        let redeliver =
            if consume.redeliver_ms == 0 { REDELIVER } else { millis(consume.redeliver_ms).min(MAX_REDELIVER) };
        let limit = if consume.limit == 0 { DEFAULT_CONSUME } else { consume.limit.min(MAX_CONSUME) } as usize;
        let until = now.mono + millis(consume.wait_ms).min(MAX_WAIT);
        let Some(line) = self.line(consume.topic, consume.group) else {
            let error = Error::new("feed.busy", Class::Unreachable, "Too many consumer groups are served here.")
                .hint("Try again after a pause.");
            out.put(DeliveryOutput::Fail { op, error });
            return;
        };
        self.waiters.insert(op, Waiter { line, limit, redeliver, until, looked: false });
        self.timers.set(Timer::Wait(op), until);
        if let Some(line) = self.lines.get_mut(&line) {
            line.waiting.push_back(op);
        }
        self.look(now, line, out);
        self.settle(line);
    }

    /// The line of a topic and group, a new one if need be; `None` when there are too many.
    fn line(&mut self, topic: Bytes, group: Bytes) -> Option<LineId> {
        let name = (topic, group);
        if let Some(line) = self.by_name.get(&name) {
            return Some(*line);
        }
        if self.lines.len() >= MAX_LINES {
            // What a line without consumers remembers is when to deliver again: without it that happens early.
            let idle = self.lines.iter().find(|(_, l)| l.waiting.is_empty() && matches!(l.looking, Looking::No));
            let idle = *idle?.0;
            self.drop_line(idle);
        }
        self.last_line += 1;
        let id = LineId(self.last_line);
        let (topic, group) = name.clone();
        self.by_name.insert(name, id);
        let line = Line {
            topic,
            group,
            waiting: VecDeque::new(),
            out: BTreeMap::new(),
            due: BTreeSet::new(),
            next: 1,
            looking: Looking::No,
            look_again_at: Mono::NEVER,
        };
        self.lines.insert(id, line);
        Some(id)
    }

    /// Begins a look if consumers wait; if one is under way, asks for another after it.
    fn look(&mut self, now: Now, id: LineId, out: &mut Outbox<DeliveryOutput>) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        if line.waiting.is_empty() {
            return;
        }
        if let Looking::Yes { again, .. } = &mut line.looking {
            *again = true;
            return;
        }
        let wanted: usize = line.waiting.iter().filter_map(|op| self.waiters.get(op)).map(|w| w.limit).sum();
        let limit = wanted.min(MAX_CONSUME as usize);
        let due = line.due.iter().take_while(|(at, _)| *at <= now.mono);
        let again = due.take(limit).map(|(_, number)| *number).collect();
        let query = FeedQuery { topic: line.topic.clone(), group: line.group.clone(), again, from: line.next, limit };
        let witnesses = line.waiting.iter().copied().collect();
        line.looking = Looking::Yes { acked: BTreeSet::new(), again: false, witnesses };
        line.look_again_at = now.mono + LOOK_AGAIN;
        out.put(DeliveryOutput::Look { line: id, query });
    }

    fn looked(&mut self, now: Now, id: LineId, answer: Result<FeedAnswer, Error>, out: &mut Outbox<DeliveryOutput>) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        match answer {
            Err(error) => {
                line.looking = Looking::No;
                self.fail_line(id, &error, out);
            }
            Ok(FeedAnswer::UnknownGroup) => {
                // Still looking: the line looks for real once the group is known.
                out.put(DeliveryOutput::Join { line: id, topic: line.topic.clone(), group: line.group.clone() });
            }
            Ok(FeedAnswer::Open { entries, closed, floor, next, more }) => {
                let looking = std::mem::replace(&mut line.looking, Looking::No);
                let Looking::Yes { acked, again, witnesses } = looking else { return };
                // Acknowledgements of unknown outcome may have been applied: the floor tells. It also bounds what is
                // remembered, since nothing is delivered further than a window above it.
                let below: Vec<u64> = line.out.range(..=floor).map(|(number, _)| *number).collect();
                for number in closed.into_iter().chain(below) {
                    line.returned(number);
                }
                line.next = line.next.max(next);
                for op in witnesses {
                    if let Some(waiter) = self.waiters.get_mut(&op) {
                        waiter.looked = true;
                    }
                }
                self.hand_out(now, id, entries.into_iter().filter(|(n, _)| !acked.contains(n)).collect(), out);
                self.send_empty(now, id, out);
                if again || more {
                    self.look(now, id, out);
                }
            }
        }
        self.settle(id);
    }

    /// Gives entries to waiting consumers, first come first served. What nobody takes stays open.
    fn hand_out(&mut self, now: Now, id: LineId, entries: VecDeque<(u64, Bytes)>, out: &mut Outbox<DeliveryOutput>) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        let mut entries = entries;
        while !entries.is_empty() {
            let Some(op) = line.waiting.pop_front() else { break };
            let Some(waiter) = self.waiters.remove(&op) else { continue };
            self.timers.cancel(&Timer::Wait(op));
            let count = waiter.limit.min(entries.len());
            let mut deliveries = Vec::with_capacity(count);
            for (number, entry) in entries.drain(..count) {
                let redelivered = line.given(number, now.mono + waiter.redeliver);
                deliveries.push(v1::Delivery { number, entry, redelivered });
            }
            out.put(DeliveryOutput::Deliver { op, deliveries });
        }
        // New entries that found no consumer any more are looked at again by the next one.
        for (number, _) in entries {
            if !line.out.contains_key(&number) {
                line.next = line.next.min(number);
            }
        }
    }

    /// Answers the consumers of a line whose wait is over.
    fn send_empty(&mut self, now: Now, id: LineId, out: &mut Outbox<DeliveryOutput>) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        let (waiters, timers) = (&mut self.waiters, &mut self.timers);
        line.waiting.retain(|op| {
            let Some(waiter) = waiters.get(op) else { return false };
            let over = waiter.looked && waiter.until <= now.mono;
            if over {
                waiters.remove(op);
                timers.cancel(&Timer::Wait(*op));
                out.put(DeliveryOutput::Deliver { op: *op, deliveries: Vec::new() });
            }
            !over
        });
    }

    fn waited(&mut self, op: OpId, out: &mut Outbox<DeliveryOutput>) {
        // Before the first look ends there is no answer; the look's end, or its failure, sends one.
        if self.waiters.get(&op).is_some_and(|waiter| waiter.looked) {
            self.forget(op);
            out.put(DeliveryOutput::Deliver { op, deliveries: Vec::new() });
        }
    }

    fn joined(&mut self, now: Now, id: LineId, result: Result<(), Error>, out: &mut Outbox<DeliveryOutput>) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        line.looking = Looking::No;
        match result {
            Ok(()) => self.look(now, id, out),
            Err(error) => self.fail_line(id, &error, out),
        }
        self.settle(id);
    }

    fn appended(&mut self, now: Now, topic: &Bytes, out: &mut Outbox<DeliveryOutput>) {
        let first = (topic.clone(), Bytes::new());
        let lines = self.by_name.range(first..).take_while(|((name, _), _)| name == topic);
        let lines: Vec<LineId> = lines.map(|(_, id)| *id).collect();
        for line in lines {
            self.look(now, line, out);
            self.settle(line);
        }
    }

    fn acked(&mut self, topic: Bytes, group: Bytes, numbers: &[u64]) {
        let Some(id) = self.by_name.get(&(topic, group)).copied() else { return };
        let Some(line) = self.lines.get_mut(&id) else { return };
        for number in numbers {
            line.returned(*number);
        }
        if let Looking::Yes { acked, .. } = &mut line.looking {
            acked.extend(numbers);
        }
        self.settle(id);
    }

    fn reset(&mut self, error: Error, out: &mut Outbox<DeliveryOutput>) {
        for op in std::mem::take(&mut self.waiters).into_keys() {
            out.put(DeliveryOutput::Fail { op, error: error.clone() });
        }
        self.lines.clear();
        self.by_name.clear();
        self.timers = Timers::new();
    }

    fn fail_line(&mut self, id: LineId, error: &Error, out: &mut Outbox<DeliveryOutput>) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        for op in std::mem::take(&mut line.waiting) {
            self.timers.cancel(&Timer::Wait(op));
            if self.waiters.remove(&op).is_some() {
                out.put(DeliveryOutput::Fail { op, error: error.clone() });
            }
        }
    }

    fn forget(&mut self, op: OpId) {
        let Some(waiter) = self.waiters.remove(&op) else { return };
        self.timers.cancel(&Timer::Wait(op));
        if let Some(line) = self.lines.get_mut(&waiter.line) {
            line.waiting.retain(|other| *other != op);
        }
        self.settle(waiter.line);
    }

    /// Sets the line's timer by what it waits for, and lets a line go that remembers nothing.
    fn settle(&mut self, id: LineId) {
        let Some(line) = self.lines.get(&id) else { return };
        let busy = matches!(line.looking, Looking::Yes { .. });
        if line.waiting.is_empty() {
            self.timers.cancel(&Timer::Line(id));
            if line.out.is_empty() && !busy {
                self.drop_line(id);
            }
        } else if !busy {
            let due = line.due.first().map_or(Mono::NEVER, |(at, _)| *at);
            self.timers.set(Timer::Line(id), due.min(line.look_again_at));
        } else {
            self.timers.cancel(&Timer::Line(id));
        }
    }

    fn drop_line(&mut self, id: LineId) {
        if let Some(line) = self.lines.remove(&id) {
            self.by_name.remove(&(line.topic, line.group));
        }
        self.timers.cancel(&Timer::Line(id));
    }
}

impl Line {
    /// Notes that a consumer has the entry; how often it was given before.
    fn given(&mut self, number: u64, until: Mono) -> u32 {
        let before = self.out.get(&number).copied();
        if let Some(before) = before {
            self.due.remove(&(before.until, number));
        }
        let times = before.map_or(0, |b| b.times);
        self.out.insert(number, Out { until, times: times + 1 });
        self.due.insert((until, number));
        times
    }

    /// Notes that the entry is acknowledged or gone.
    fn returned(&mut self, number: u64) {
        if let Some(out) = self.out.remove(&number) {
            self.due.remove(&(out.until, number));
        }
    }
}
