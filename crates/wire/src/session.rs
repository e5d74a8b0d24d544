//! The connection as a machine: handshake, operations, flow control, signs of life, farewell.
//!
//! ```text
//!   driver ── Received, Lost, Blocked ──▶ ┌─────────┐ ── Transmit ──▶ carrier
//!   caller ── Begin, Send, Cancel, … ───▶ │ Session │ ── Answer, Failed ──▶ caller (operations begun here)
//!   handler ─ Send, Fail, Consumed ─────▶ └─────────┘ ── Opened, Continued, Granted, Dropped ──▶ handler (begun there)
//! ```
//! Both ends run the same machine with a different [`Side`]. What it promises, whatever the other side does:
//! - an operation begun here ends exactly once: by an [`Output::Answer`] without `more`, by [`Output::Failed`], or by
//!   the caller's own [`Input::Cancel`];
//! - an operation begun there ends exactly once: by the handler's last [`Input::Send`] or [`Input::Fail`], or by
//!   [`Output::Dropped`]; what the handler sends after that is ignored;
//! - [`Output::Closed`] comes exactly once, as the last output, and all operations have ended by then;
//! - no more than the limits is kept: it queues no frames, it counts them.
//!
//! Numbers of new operations grow on each side, so a frame for an operation that is not open is either new or late,
//! and nothing need be remembered about operations that ended.

mod operation;
#[cfg(test)]
mod tests;

use crate::error::{self, control_body};
use crate::limits::{Limits, Patience};
use crate::v1::{self, Frame, control::Message as Control, frame::Body};
use crate::version;
use operation::Operation;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidings_base::{Error, Machine, Mono, NodeId, Now, OpId, Outbox};

/// Which end of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It connected: it says `Hello` and begins operations with odd numbers.
    Connector,
    /// It accepted: it says `Welcome` and begins operations with even numbers.
    Acceptor,
}

impl Side {
    /// Whether operations of this number are begun by this side.
    pub fn begins(self, op: OpId) -> bool {
        (op.0 % 2 == 1) == (self == Side::Connector)
    }

    /// The number of the first operation that this side begins.
    pub fn first_op(self) -> OpId {
        match self {
            Side::Connector => OpId(1),
            Side::Acceptor => OpId(2),
        }
    }
}

/// What a session needs to know; shared by the many connections of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which end this is.
    pub side: Side,
    /// What this side takes. The acceptor announces it, and the connector is held to it.
    pub limits: Limits,
    /// When a quiet connection is asked, and when it is given up.
    pub patience: Patience,
    /// Whether the driver goes on reading while the carrier takes nothing. If not, silence proves nothing then.
    pub reads_while_blocked: bool,
}

impl Config {
    /// For whoever connects. It always reads: what can come in is bounded by what it asked for.
    pub fn connector() -> Config {
        Config { side: Side::Connector, limits: Limits::NODE, patience: Patience::CONNECTOR, reads_while_blocked: true }
    }

    /// For whoever accepts. It stops reading requests while their answers are not taken.
    pub fn acceptor(limits: Limits) -> Config {
        Config { side: Side::Acceptor, limits, patience: Patience::ACCEPTOR, reads_while_blocked: false }
    }
}

/// What the driver, the callers and the handlers bring.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A frame came in, of so many bytes.
    Received {
        /// The frame.
        frame: Frame,
        /// Its size as it came.
        bytes: usize,
    },
    /// What came in is no frame: the connection is told so and ends.
    Broken(Error),
    /// The carrier ended, for this reason.
    Lost(Error),
    /// The carrier takes nothing at present.
    Blocked,
    /// The carrier takes frames again.
    Unblocked,
    /// Connector: say `Hello`.
    Connect(v1::Hello),
    /// Acceptor: the answer to [`Output::Hello`], the connection is welcome.
    Accept {
        /// Who answers.
        node: NodeId,
        /// Whom it is taken for, as `kind:name`.
        principal: String,
        /// What it is allowed, if other than configured: a node may more than a client.
        limits: Limits,
    },
    /// Acceptor: the answer to [`Output::Hello`], the connection is not welcome.
    Reject(Error),
    /// Begin an operation. Numbers are of this side's kind and grow.
    Begin {
        /// The operation.
        op: OpId,
        /// Its first frame.
        body: Body,
        /// Whether more frames of the request follow.
        more: bool,
        /// When the caller stops waiting.
        deadline: Option<Mono>,
    },
    /// A further frame of a request begun here, or a frame of an answer. One with `more` needs credit.
    Send {
        /// The operation.
        op: OpId,
        /// The frame's body.
        body: Body,
        /// Whether more follow.
        more: bool,
    },
    /// The handler ends an operation begun there with an error.
    Fail {
        /// The operation.
        op: OpId,
        /// Why.
        error: Error,
    },
    /// The caller wants no more of an operation begun here.
    Cancel {
        /// The operation.
        op: OpId,
    },
    /// The reader of an operation's frames has used so many with `more`, and has room for as many again.
    Consumed {
        /// The operation.
        op: OpId,
        /// How many frames.
        frames: u32,
    },
    /// Begin nothing new, tell the other side so, and close once all operations have ended.
    GoAway {
        /// Why, for people.
        reason: String,
        /// Where to go instead, if that is known.
        redirect: Option<String>,
    },
    /// Close now, telling the other side why.
    Close(Error),
}

/// What the driver must do or pass on, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send a frame.
    Transmit(Frame),
    /// Acceptor: decide about this connection, then answer with `Accept` or `Reject`.
    Hello(v1::Hello),
    /// The handshake is done, and these limits hold; operations may begin.
    Ready {
        /// As the acceptor said it.
        welcome: v1::Welcome,
        /// As both are held to them.
        limits: Limits,
    },
    /// A frame of the answer to an operation begun here; without `more` it is over.
    Answer {
        /// The operation.
        op: OpId,
        /// The frame's body.
        body: Body,
        /// Whether more follow.
        more: bool,
    },
    /// An operation begun here is over without an answer.
    Failed {
        /// The operation.
        op: OpId,
        /// Why. Of class `unreachable` if it was never sent, `outcome_unknown` if nobody knows.
        error: Error,
    },
    /// The other side has ended an operation begun here that nobody waited for any more: its place is free again.
    Released {
        /// The operation.
        op: OpId,
    },
    /// The other side began an operation.
    Opened {
        /// The operation.
        op: OpId,
        /// Its first frame.
        body: Body,
        /// Whether more frames of the request follow.
        more: bool,
    },
    /// A further frame of a request begun there.
    Continued {
        /// The operation.
        op: OpId,
        /// The frame's body.
        body: Body,
        /// Whether more follow.
        more: bool,
    },
    /// So many more frames with `more` may be sent.
    Granted {
        /// The operation.
        op: OpId,
        /// How many.
        frames: u32,
    },
    /// An operation begun there is over: nobody waits for an answer any more.
    Dropped {
        /// The operation.
        op: OpId,
    },
    /// The other side will close: begin new operations elsewhere.
    GoAway(v1::GoAway),
    /// The session is over; send what was to be transmitted, then close the carrier.
    Closed(Error),
}

/// How far the connection has come.
#[derive(Clone, Debug, PartialEq)]
enum Stage {
    /// Nothing was said. The acceptor waits for `Hello`.
    New,
    /// `Hello` was said: the connector waits for `Welcome`, the acceptor for its driver's decision.
    Greeted { version: u32 },
    /// Operations may begin.
    Open,
    /// We said `GoAway`: what is open may end, nothing begins.
    Leaving { redirect: Option<String> },
    /// The other side said `GoAway`: we begin nothing more.
    Left,
    /// Over.
    Closed,
}

/// One end of a connection.
///
/// Its timers are four, computed from what it knows instead of being set: the end of the handshake, the next ping,
/// the death of a silent peer or the stall of a blocked carrier, and the earliest deadline of an operation.
#[derive(Clone, Debug)]
pub struct Session {
    config: Arc<Config>,
    stage: Stage,
    limits: Limits,
    operations: BTreeMap<OpId, Operation>,
    deadlines: BTreeSet<(Mono, OpId)>,
    /// How many of the operations were begun by the other side.
    theirs: u32,
    /// The highest number begun by this side, and by the other.
    last_here: OpId,
    last_there: OpId,
    began: Mono,
    heard: Mono,
    pinged: bool,
    blocked_since: Option<Mono>,
}

impl Machine for Session {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        if self.stage == Stage::Closed {
            return self.handle_closed(input, out);
        }
        match input {
            Input::Received { frame, bytes } => self.received(now, frame, bytes, out),
            Input::Broken(error) | Input::Close(error) => self.close(error, true, out),
            Input::Lost(error) => self.close(error, false, out),
            Input::Blocked => self.blocked_since = self.blocked_since.or(Some(now.mono)),
            Input::Unblocked => self.unblocked(now),
            Input::Connect(hello) => self.connect(hello, out),
            Input::Accept { node, principal, limits } => self.accept(node, principal, limits, out),
            Input::Reject(error) => self.close(error, true, out),
            Input::Begin { op, body, more, deadline } => self.begin(now, op, body, more, deadline, out),
            Input::Send { op, body, more } => self.send(op, body, more, out),
            Input::Fail { op, error } => self.fail(op, error, out),
            Input::Cancel { op } => self.cancel(op, out),
            Input::Consumed { op, frames } => self.consumed(op, frames, out),
            Input::GoAway { reason, redirect } => self.go_away(reason, redirect, out),
        }
        self.finish_leaving(out);
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output>) {
        if self.stage == Stage::Closed {
            return;
        }
        while self.deadlines.first().is_some_and(|(at, _)| *at <= now.mono) {
            let Some((_, op)) = self.deadlines.pop_first() else { break };
            self.expire(op, out);
        }
        if self.is_shaking_hands() {
            if now.mono >= self.began + self.config.patience.handshake {
                self.close(error::slow_handshake(), true, out);
            }
            return;
        }
        match self.blocked_since {
            Some(since) if now.mono >= since + self.config.patience.stall => {
                return self.close(error::slow_reader(), true, out);
            }
            Some(_) if !self.config.reads_while_blocked => {}
            _ => self.listen(now, out),
        }
        // An idle connection keeps nothing, not even the room its operations took.
        if self.operations.is_empty() {
            self.operations = BTreeMap::new();
            self.deadlines = BTreeSet::new();
        }
        self.finish_leaving(out);
    }

    fn deadline(&self) -> Option<Mono> {
        if self.stage == Stage::Closed {
            return None;
        }
        let patience = &self.config.patience;
        let connection = if self.is_shaking_hands() {
            self.began + patience.handshake
        } else {
            let silence = self.heard + if self.pinged { patience.dead_after } else { patience.ping_after };
            match self.blocked_since {
                None => silence,
                Some(since) if self.config.reads_while_blocked => silence.min(since + patience.stall),
                Some(since) => since + patience.stall,
            }
        };
        Some(self.deadlines.first().map_or(connection, |(at, _)| connection.min(*at)))
    }
}

impl Session {
    /// A session at its beginning.
    pub fn new(config: Arc<Config>, now: Now) -> Session {
        Session {
            stage: Stage::New,
            limits: config.limits,
            operations: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            theirs: 0,
            last_here: OpId(0),
            last_there: OpId(0),
            began: now.mono,
            heard: now.mono,
            pinged: false,
            blocked_since: None,
            config,
        }
    }

    /// The largest frame that the other side may send at present.
    pub fn max_frame(&self) -> u32 {
        match self.stage {
            Stage::New | Stage::Greeted { .. } if self.config.side == Side::Acceptor => {
                self.limits.max_frame.min(crate::limits::HELLO_FRAME as u32)
            }
            _ => self.limits.max_frame,
        }
    }

    /// The limits that hold.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// How many operations are open, whoever began them.
    pub fn open_operations(&self) -> usize {
        self.operations.len()
    }

    /// Whether this operation is open.
    pub fn is_open(&self, op: OpId) -> bool {
        self.operations.get(&op).is_some_and(|o| !o.abandoned)
    }

    /// Whether this operation was begun here and given up, and the other side has not ended it yet.
    pub fn is_abandoned(&self, op: OpId) -> bool {
        self.operations.get(&op).is_some_and(|o| o.abandoned)
    }

    /// How many more frames with `more` may be sent for this operation.
    pub fn credit(&self, op: OpId) -> u32 {
        self.operations.get(&op).map_or(0, |o| o.credit_out)
    }

    /// Whether operations may begin here.
    pub fn may_begin(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Whether the session is over.
    pub fn is_closed(&self) -> bool {
        self.stage == Stage::Closed
    }

    fn is_shaking_hands(&self) -> bool {
        matches!(self.stage, Stage::New | Stage::Greeted { .. })
    }

    /// After the end a caller still hears what became of its request; nobody else hears anything.
    fn handle_closed(&mut self, input: Input, out: &mut Outbox<Output>) {
        if let Input::Begin { op, .. } = input {
            out.put(Output::Failed { op, error: error::unsent(&error::closed()) });
        }
    }

    // The handshake.

    fn connect(&mut self, hello: v1::Hello, out: &mut Outbox<Output>) {
        assert_eq!(self.config.side, Side::Connector, "only whoever connects says Hello");
        if self.stage == Stage::New {
            self.stage = Stage::Greeted { version: hello.max };
            self.transmit(OpId(0), false, control_body(Control::Hello(hello)), out);
        }
    }

    fn accept(&mut self, node: NodeId, principal: String, limits: Limits, out: &mut Outbox<Output>) {
        assert_eq!(self.config.side, Side::Acceptor, "only whoever accepts says Welcome");
        let Stage::Greeted { version } = self.stage else { return };
        self.limits = limits;
        self.stage = Stage::Open;
        let welcome = v1::Welcome { version, node: node.0, limits: Some(limits.into()), principal };
        self.transmit(OpId(0), false, control_body(Control::Welcome(welcome.clone())), out);
        out.put(Output::Ready { welcome, limits });
    }

    fn shake_hands(&mut self, message: Control, out: &mut Outbox<Output>) {
        match (self.config.side, &self.stage, message) {
            (Side::Acceptor, Stage::New, Control::Hello(hello)) => match version::negotiate(hello.min, hello.max) {
                Ok(version) => {
                    self.stage = Stage::Greeted { version };
                    out.put(Output::Hello(hello));
                }
                Err(error) => self.close(error, true, out),
            },
            (Side::Connector, Stage::Greeted { .. }, Control::Welcome(welcome)) => {
                if let Err(error) = version::negotiate(welcome.version, welcome.version) {
                    return self.close(error, true, out);
                }
                self.limits = Limits::announced(welcome.limits.as_ref(), self.config.limits);
                self.stage = Stage::Open;
                out.put(Output::Ready { welcome, limits: self.limits });
            }
            (_, _, Control::Error(error)) => self.close(error.into(), false, out),
            // The acceptor is stopping while the hands are shaken.
            (Side::Connector, _, Control::GoAway(away)) => {
                let redirect = Some(away.redirect).filter(|to| !to.is_empty());
                self.close(error::going_away(redirect), false, out);
            }
            _ => self.close(
                error::protocol("the handshake goes Hello, Welcome, and nothing before or between"),
                true,
                out,
            ),
        }
    }

    // What comes in.

    fn received(&mut self, now: Now, frame: Frame, bytes: usize, out: &mut Outbox<Output>) {
        self.heard = now.mono;
        self.pinged = false;
        if bytes > self.max_frame() as usize {
            return self.close(error::too_large("the frame", bytes as u64, self.max_frame().into()), true, out);
        }
        let op = OpId(frame.op);
        match frame.body {
            Some(body) if op.0 == 0 => self.received_of_connection(body, out),
            // A later version may say things about a connection that we may ignore.
            None if op.0 == 0 => {}
            _ if self.is_shaking_hands() => {
                self.close(error::protocol("no operation may begin before Welcome"), true, out)
            }
            body if self.config.side.begins(op) => self.received_answer(op, body, frame.more, bytes, out),
            body => self.received_request(op, body, frame.more, bytes, out),
        }
    }

    fn received_of_connection(&mut self, body: Body, out: &mut Outbox<Output>) {
        let Body::Control(v1::Control { message }) = body else {
            return self.close(error::protocol("operation 0 is the connection itself"), true, out);
        };
        match message {
            None => {}
            Some(Control::Ping(v1::Ping { nonce })) if !self.is_shaking_hands() => {
                self.transmit(OpId(0), false, control_body(Control::Pong(v1::Pong { nonce })), out);
            }
            Some(message) if self.is_shaking_hands() => self.shake_hands(message, out),
            // Any frame is a sign of life; the pong was only to make the other side send one.
            Some(Control::Pong(_)) => {}
            Some(Control::Error(error)) => self.close(error.into(), false, out),
            Some(Control::GoAway(away)) => self.left(away, out),
            Some(_) => self.close(error::protocol("this message belongs to an operation"), true, out),
        }
    }

    // Farewell.

    fn go_away(&mut self, reason: String, redirect: Option<String>, out: &mut Outbox<Output>) {
        match self.stage {
            Stage::Open | Stage::Left => {
                let last = self.last_there.0;
                let away = v1::GoAway { reason, redirect: redirect.clone().unwrap_or_default(), last };
                self.transmit(OpId(0), false, control_body(Control::GoAway(away)), out);
                self.stage = Stage::Leaving { redirect };
            }
            Stage::New | Stage::Greeted { .. } => self.close(error::going_away(redirect), true, out),
            Stage::Leaving { .. } | Stage::Closed => {}
        }
    }

    /// The other side leaves. What it had not begun by then did not happen, and its callers hear so at once.
    fn left(&mut self, away: v1::GoAway, out: &mut Outbox<Output>) {
        let redirect = Some(away.redirect.clone()).filter(|to| !to.is_empty());
        let unbegun = self.operations.keys().filter(|op| self.config.side.begins(**op) && op.0 > away.last);
        for op in unbegun.copied().collect::<Vec<_>>() {
            let abandoned = self.remove(op).is_some_and(|operation| operation.abandoned);
            out.put(match abandoned {
                true => Output::Released { op },
                false => Output::Failed { op, error: error::going_away(redirect.clone()) },
            });
        }
        if self.stage == Stage::Open {
            self.stage = Stage::Left;
            out.put(Output::GoAway(away));
        }
    }

    fn finish_leaving(&mut self, out: &mut Outbox<Output>) {
        if let Stage::Leaving { redirect } = &mut self.stage
            && self.operations.is_empty()
        {
            let error = error::going_away(redirect.take());
            self.close(error, false, out);
        }
    }

    /// Ends everything. `tell` says whether the other side hears why.
    fn close(&mut self, why: Error, tell: bool, out: &mut Outbox<Output>) {
        self.stage = Stage::Closed;
        for (op, operation) in std::mem::take(&mut self.operations) {
            if !self.config.side.begins(op) {
                out.put(Output::Dropped { op });
            } else if !operation.abandoned {
                out.put(Output::Failed { op, error: error::lost(&why) });
            }
        }
        self.deadlines.clear();
        self.theirs = 0;
        if tell {
            self.transmit(OpId(0), false, error::body(why.clone()), out);
        }
        out.put(Output::Closed(why));
    }

    // Signs of life.

    fn listen(&mut self, now: Now, out: &mut Outbox<Output>) {
        let patience = self.config.patience;
        if now.mono >= self.heard + patience.dead_after && self.pinged {
            return self.close(error::dead_peer(), true, out);
        }
        if !self.pinged && now.mono >= self.heard + patience.ping_after {
            self.pinged = true;
            // Asked late (this host slept, say), the other side still gets its time to answer.
            self.heard = self.heard.max(now.mono.saturating_sub(patience.ping_after));
            self.transmit(OpId(0), false, control_body(Control::Ping(v1::Ping { nonce: now.mono.0 })), out);
        }
    }

    fn unblocked(&mut self, now: Now) {
        if self.blocked_since.take().is_some() && !self.config.reads_while_blocked {
            // While nothing was read nothing could be heard.
            self.heard = now.mono;
            self.pinged = false;
        }
    }

    fn transmit(&self, op: OpId, more: bool, body: Body, out: &mut Outbox<Output>) {
        out.put(Output::Transmit(Frame { op: op.0, more, body: Some(body) }));
    }
}
