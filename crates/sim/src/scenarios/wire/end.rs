//! One end of a connection: the session machine over the simulated carrier, callers and handlers of both sides.

use super::fact::{End as Ended, Kind, Name, Say, WireFact};
use super::{LIMITS, PATIENCE};
use crate::carrier::{Carrier, Packet, Received};
use crate::kernel::{Effect, HostId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error, Machine, Mono, NodeId, Now, OpId, Outbox, Seeded, Timers};
use tidings_wire::session::{Config, Input, Output, Session, Side};
use tidings_wire::v1::frame::Body;
use tidings_wire::{Frame, error, v1, version};

type Out = Outbox<Effect<WireFact>>;

/// How long a patient caller waits.
const LONGEST: Duration = Duration::from_secs(20);

/// The timers of an end, beside those of its session and its carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// The next frame of an answer or a request is ready to be sent.
    Next(OpId),
    /// A reader uses what waits for it.
    Read(OpId),
    /// A caller loses patience.
    GiveUp(OpId),
    /// The carrier takes frames again.
    Unblock,
}

/// An operation in which this end takes part.
struct Part {
    say: Say,
    /// Whether this end answers it.
    answers: bool,
    /// Frames that this end has sent, or has received of a long request.
    frames: u64,
    /// Frames with `more` that came and were not used yet.
    unread: u32,
    /// The request came to its end.
    complete: bool,
}

/// One end.
pub struct End {
    host: HostId,
    rng: Seeded,
    session: Session,
    carrier: Carrier,
    parts: BTreeMap<OpId, Part>,
    timers: Timers<Timer>,
    next_op: OpId,
    blocked: Option<Vec<Frame>>,
    closed: bool,
}

impl End {
    /// The end that connects.
    pub fn connect(host: HostId, carrier: Carrier, now: Now, rng: Seeded, out: &mut Out) -> End {
        let mut end = End::new(host, carrier, Side::Connector, now, rng);
        let hello = v1::Hello { min: version::OLDEST, max: version::CURRENT, ..v1::Hello::default() };
        end.give(now, Input::Connect(hello), out);
        end
    }

    /// The end that accepts.
    pub fn accept(host: HostId, carrier: Carrier, now: Now, rng: Seeded) -> End {
        End::new(host, carrier, Side::Acceptor, now, rng)
    }

    fn new(host: HostId, carrier: Carrier, side: Side, now: Now, rng: Seeded) -> End {
        let config = match side {
            Side::Connector => Config { patience: PATIENCE, ..Config::connector() },
            Side::Acceptor => Config { patience: PATIENCE, ..Config::acceptor(LIMITS) },
        };
        End {
            host,
            rng,
            session: Session::new(Arc::new(config), now),
            carrier,
            parts: BTreeMap::new(),
            timers: Timers::new(),
            next_op: side.first_op(),
            blocked: None,
            closed: false,
        }
    }

    /// Whether the connection is over.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether operations may begin.
    pub fn may_begin(&self) -> bool {
        self.session.may_begin()
    }

    /// Whether no operation is open that was begun here.
    pub fn is_quiet(&self) -> bool {
        self.parts.values().all(|part| part.answers)
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        if self.closed {
            return None;
        }
        [self.session.deadline(), self.carrier.deadline(), self.timers.deadline()].into_iter().flatten().min()
    }

    /// A message of the other end.
    pub fn receive(&mut self, now: Now, packet: Packet, out: &mut Out) {
        let received = self.carrier.receive(now, packet, self.session.max_frame());
        self.take_in(now, received, out);
    }

    fn take_in(&mut self, now: Now, received: Vec<Received>, out: &mut Out) {
        for received in received {
            match received {
                Ok((frame, bytes)) => self.give(now, Input::Received { frame, bytes }, out),
                Err(why) => self.give(now, Input::Lost(why), out),
            }
        }
    }

    /// Begins an operation.
    pub fn begin(&mut self, now: Now, number: u64, out: &mut Out) {
        let kind = [Kind::Ask, Kind::Ask, Kind::Listen, Kind::Pour][self.rng.below(4) as usize];
        let count = if kind == Kind::Ask { 1 } else { self.rng.between(1, 40) };
        let say = Say { name: Name { host: self.host, number }, kind, index: 0, count };
        let op = self.next_op;
        self.next_op = OpId(op.0 + 2);
        let more = kind == Kind::Pour && count > 1;
        let within = if self.rng.one_in(3) { self.millis(1, 4_000) } else { LONGEST };
        let deadline = Some(now.mono + within);
        if self.rng.one_in(8) {
            let at = now.mono + self.millis(0, 2_000);
            self.timers.set(Timer::GiveUp(op), at);
        }
        out.put(Effect::Fact(WireFact::Began(say)));
        self.parts.insert(op, Part { say, answers: false, frames: 1, unread: 0, complete: !more });
        if more {
            self.pace(now, op);
        }
        self.give(now, Input::Begin { op, body: say.body(), more, deadline }, out);
    }

    /// Says goodbye, or hangs up.
    pub fn leave(&mut self, now: Now, out: &mut Out) {
        let input = match self.rng.one_in(2) {
            true => Input::GoAway { reason: "stopping".to_string(), redirect: None },
            false => Input::Close(error::closed()),
        };
        self.give(now, input, out);
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        let received = self.carrier.wake(now, self.session.max_frame());
        self.take_in(now, received, out);
        if self.session.deadline().is_some_and(|at| at <= now.mono) {
            let mut outputs = Outbox::new();
            self.session.wake(now, &mut outputs);
            self.perform(now, outputs, out);
        }
        while let Some(timer) = self.timers.pop_due(now.mono) {
            match timer {
                Timer::Next(op) => self.next(now, op, out),
                Timer::Read(op) => self.read(now, op, out),
                Timer::GiveUp(op) => self.give_up(now, op, out),
                Timer::Unblock => self.unblock(now, out),
            }
        }
    }

    fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.rng.between(least, most))
    }

    fn pace(&mut self, now: Now, op: OpId) {
        let wait = if self.rng.one_in(2) { Duration::ZERO } else { self.millis(0, 200) };
        self.timers.set(Timer::Next(op), now.mono + wait);
    }

    /// Sends the next frame of the direction that is this end's to send.
    fn next(&mut self, now: Now, op: OpId, out: &mut Out) {
        if self.blocked.is_some() {
            return; // Looked at again when it takes frames.
        }
        let credit = self.session.credit(op);
        let Some(part) = self.parts.get_mut(&op) else { return };
        // Requests are answered once they are whole, and whole ones have nothing left to send.
        if part.answers != part.complete {
            return;
        }
        let long = matches!((part.say.kind, part.answers), (Kind::Listen, true) | (Kind::Pour, false));
        // The answer to a long request says how many frames came.
        let index = part.frames;
        let more = long && index + 1 < part.say.count;
        if more && credit == 0 {
            return; // `Granted` looks again.
        }
        let say = Say { index, ..part.say };
        part.frames += u64::from(long);
        let ends = part.answers && !more;
        part.complete |= !more;
        if ends {
            self.parts.remove(&op);
        }
        let input = match ends && self.rng.one_in(16) {
            true => Input::Fail { op, error: Error::new("wire.refused", Class::Refused, "no") },
            false => Input::Send { op, body: say.body(), more },
        };
        self.give(now, input, out);
        if more {
            self.pace(now, op);
        }
    }

    /// A reader uses what waits for it, and makes room for as much again.
    fn read(&mut self, now: Now, op: OpId, out: &mut Out) {
        let Some(part) = self.parts.get_mut(&op) else { return };
        let frames = std::mem::take(&mut part.unread);
        if frames > 0 {
            self.give(now, Input::Consumed { op, frames }, out);
        }
    }

    fn give_up(&mut self, now: Now, op: OpId, out: &mut Out) {
        if let Some(part) = self.parts.remove(&op) {
            out.put(Effect::Fact(WireFact::Ended(part.say.name, Ended::Cancelled)));
            self.give(now, Input::Cancel { op }, out);
        }
    }

    fn unblock(&mut self, now: Now, out: &mut Out) {
        for frame in self.blocked.take().unwrap_or_default() {
            self.carrier.send(&frame, out);
        }
        self.give(now, Input::Unblocked, out);
        for op in self.parts.keys().copied().collect::<Vec<_>>() {
            self.pace(now, op);
        }
    }

    fn give(&mut self, now: Now, input: Input, out: &mut Out) {
        let mut outputs = Outbox::new();
        self.session.handle(now, input, &mut outputs);
        self.perform(now, outputs, out);
    }

    /// Does what the session says, and holds it to its promises.
    fn perform(&mut self, now: Now, outputs: Outbox<Output>, out: &mut Out) {
        for output in outputs {
            if self.closed && !matches!(output, Output::Failed { .. }) {
                out.put(Effect::Fact(WireFact::Alarm(format!("after the end: {output:?}"))));
            }
            match output {
                Output::Transmit(frame) => self.transmit(now, frame, out),
                Output::Hello(_) => {
                    let accept = Input::Accept { node: NodeId(1), principal: "app:sim".to_string(), limits: LIMITS };
                    self.give(now, accept, out);
                }
                Output::Ready { .. } | Output::GoAway(_) | Output::Released { .. } => {}
                Output::Answer { op, body, more } => self.answer(now, op, &body, more, out),
                Output::Failed { op, error } => self.ended(op, Ended::Failed(error.class), out),
                Output::Opened { op, body, more } => self.opened(now, op, &body, more, out),
                Output::Continued { op, body, more } => self.continued(now, op, &body, more, out),
                Output::Granted { op, .. } => self.pace(now, op),
                Output::Dropped { op } => {
                    self.parts.remove(&op);
                }
                Output::Closed(_) => self.close(out),
            }
        }
        if self.session.open_operations() > 2 * LIMITS.max_operations as usize {
            let what = format!("{} operations are open", self.session.open_operations());
            out.put(Effect::Fact(WireFact::Alarm(what)));
        }
    }

    fn close(&mut self, out: &mut Out) {
        self.closed = true;
        if let Some((op, part)) = self.parts.first_key_value() {
            let what = format!("{op} of {} was open when the end came", part.say.name);
            out.put(Effect::Fact(WireFact::Alarm(what)));
        }
    }

    /// Now and then the carrier takes nothing for a while, and sometimes for longer than anybody's patience.
    fn transmit(&mut self, now: Now, frame: Frame, out: &mut Out) {
        if let Some(waiting) = &mut self.blocked {
            return waiting.push(frame);
        }
        self.carrier.send(&frame, out);
        if !self.closed && self.rng.one_in(400) {
            let long = if self.rng.one_in(8) { 60_000 } else { 1_500 };
            let at = now.mono + self.millis(10, long);
            self.timers.set(Timer::Unblock, at);
            self.blocked = Some(Vec::new());
            self.give(now, Input::Blocked, out);
        }
    }

    fn ended(&mut self, op: OpId, how: Ended, out: &mut Out) {
        match self.parts.remove(&op) {
            Some(part) => out.put(Effect::Fact(WireFact::Ended(part.say.name, how))),
            None => out.put(Effect::Fact(WireFact::Alarm(format!("{op} ended twice")))),
        }
    }

    fn answer(&mut self, now: Now, op: OpId, body: &Body, more: bool, out: &mut Out) {
        let Some(say) = Say::read(body) else { return out.put(alarm("an answer that nobody sent")) };
        if !more {
            return self.ended(op, Ended::Answered(say), out);
        }
        match self.parts.get(&op) {
            Some(part) => out.put(Effect::Fact(WireFact::Heard(part.say.name, say))),
            None => out.put(Effect::Fact(WireFact::Alarm(format!("{op} was answered after its end")))),
        }
        self.wait_for_reader(now, op, out);
    }

    fn wait_for_reader(&mut self, now: Now, op: OpId, out: &mut Out) {
        let wait = if self.rng.one_in(2) { Duration::ZERO } else { self.millis(0, 300) };
        let Some(part) = self.parts.get_mut(&op) else { return };
        part.unread += 1;
        out.put(Effect::Fact(WireFact::Waiting { frames: part.unread, granted: LIMITS.initial_credit }));
        if self.timers.at(&Timer::Read(op)).is_none() {
            self.timers.set(Timer::Read(op), now.mono + wait);
        }
    }

    fn opened(&mut self, now: Now, op: OpId, body: &Body, more: bool, out: &mut Out) {
        let Some(say) = Say::read(body) else { return out.put(alarm("a request that nobody sent")) };
        out.put(Effect::Fact(WireFact::Arrived(say)));
        let frames = if say.kind == Kind::Pour { 1 } else { 0 };
        self.parts.insert(op, Part { say, answers: true, frames, unread: 0, complete: !more });
        if more {
            return self.wait_for_reader(now, op, out);
        }
        // Some answers never come: whoever asked gives up.
        if !self.rng.one_in(32) {
            self.pace(now, op);
        }
    }

    fn continued(&mut self, now: Now, op: OpId, body: &Body, more: bool, out: &mut Out) {
        let Some(say) = Say::read(body) else { return out.put(alarm("a request that nobody sent")) };
        out.put(Effect::Fact(WireFact::Arrived(say)));
        let Some(part) = self.parts.get_mut(&op) else { return out.put(alarm("a request went on after its end")) };
        part.frames += 1;
        part.complete |= !more;
        match more {
            true => self.wait_for_reader(now, op, out),
            false => self.pace(now, op),
        }
    }
}

fn alarm(what: &str) -> Effect<WireFact> {
    Effect::Fact(WireFact::Alarm(what.to_string()))
}
