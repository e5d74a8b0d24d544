//! What a session does about single operations.

use super::{Input, Output, Session, Stage};
use crate::error::{self, control_body};
use crate::limits::{Limits, MAX_CREDIT};
use crate::part::is_known;
use crate::v1::{self, Frame, control::Message as Control, frame::Body};
use prost::Message;
use tidings_base::{Error, Mono, Now, OpId, Outbox};

/// One open operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    /// Whether the other side may still send frames of it.
    receiving: bool,
    /// Whether this side may still send frames of it.
    sending: bool,
    /// Begun here, and nobody here waits for it any more; it still counts until the other side ends it.
    pub(super) abandoned: bool,
    /// How many frames with `more` we may send, and the other side may send.
    pub(super) credit_out: u32,
    credit_in: u32,
    /// Frames used up by their reader that the other side has not been told about.
    consumed: u32,
    bytes_out: u64,
    bytes_in: u64,
    deadline: Option<Mono>,
}

impl Session {
    // Operations begun here.

    pub(super) fn begin(
        &mut self,
        now: Now,
        op: OpId,
        body: Body,
        more: bool,
        deadline: Option<Mono>,
        out: &mut Outbox<Output>,
    ) {
        assert!(self.config.side.begins(op) && op > self.last_here, "numbers of new operations grow: {op}");
        if let Err(error) = self.check_begin(now, deadline) {
            return out.put(Output::Failed { op, error });
        }
        let mut operation = self.operation();
        operation.deadline = deadline;
        let frame = Frame { op: op.0, more, body: Some(body) };
        match operation.count_out(&self.limits, &frame) {
            Ok(()) => {
                self.last_here = op;
                self.operations.insert(op, operation);
                self.deadlines.extend(deadline.map(|at| (at, op)));
                out.put(Output::Transmit(frame));
            }
            Err(error) => out.put(Output::Failed { op, error }),
        }
    }

    fn check_begin(&self, now: Now, deadline: Option<Mono>) -> Result<(), Error> {
        if self.stage != Stage::Open {
            return Err(error::unsent(&error::going_away(None)));
        }
        if self.operations.len() as u32 - self.theirs >= self.limits.max_operations {
            return Err(error::too_many(self.limits.max_operations));
        }
        if deadline.is_some_and(|at| at <= now.mono) {
            return Err(error::deadline_unsent());
        }
        Ok(())
    }

    pub(super) fn cancel(&mut self, op: OpId, out: &mut Outbox<Output>) {
        if self.config.side.begins(op) {
            self.abandon(op, out);
        }
    }

    pub(super) fn expire(&mut self, op: OpId, out: &mut Outbox<Output>) {
        self.abandon(op, out);
        out.put(Output::Failed { op, error: error::deadline() });
    }

    /// Nobody waits for this operation any more: the other side is told, and it counts until that side ends it.
    fn abandon(&mut self, op: OpId, out: &mut Outbox<Output>) {
        let Some(operation) = self.operations.get_mut(&op).filter(|o| !o.abandoned) else { return };
        operation.abandoned = true;
        operation.sending = false;
        if let Some(at) = operation.deadline.take() {
            self.deadlines.remove(&(at, op));
        }
        self.transmit(op, false, control_body(Control::Cancel(v1::Cancel {})), out);
    }

    pub(super) fn received_answer(
        &mut self,
        op: OpId,
        body: Option<Body>,
        more: bool,
        bytes: usize,
        out: &mut Outbox<Output>,
    ) {
        let Some(operation) = self.operations.get(&op) else {
            if op > self.last_here {
                self.close(error::protocol(format!("operation {op} was never begun")), true, out);
            }
            return;
        };
        let abandoned = operation.abandoned;
        match body {
            Some(Body::Control(v1::Control { message: Some(message) })) => match message {
                Control::Error(error) => {
                    self.remove(op);
                    out.put(match abandoned {
                        true => Output::Released { op },
                        false => Output::Failed { op, error: error.into() },
                    });
                }
                Control::Credit(credit) => self.granted(op, credit, out),
                _ => self.close(error::protocol("this message cannot answer an operation"), true, out),
            },
            _ if abandoned => {
                if !more {
                    self.remove(op);
                    out.put(Output::Released { op });
                }
            }
            Some(body) if is_known(&body) => match self.count_in(op, more, bytes) {
                Ok(()) => {
                    if !more {
                        self.remove(op);
                    }
                    out.put(Output::Answer { op, body, more });
                }
                Err(error) => self.give_up(op, more, error, out),
            },
            _ => self.give_up(op, more, error::unsupported(), out),
        }
    }

    /// An answer that cannot be used: its caller hears why, and the rest of it is not wanted.
    fn give_up(&mut self, op: OpId, more: bool, error: Error, out: &mut Outbox<Output>) {
        if more {
            self.abandon(op, out);
        } else {
            self.remove(op);
        }
        out.put(Output::Failed { op, error });
    }

    // Operations begun there.

    pub(super) fn received_request(
        &mut self,
        op: OpId,
        body: Option<Body>,
        more: bool,
        bytes: usize,
        out: &mut Outbox<Output>,
    ) {
        let is_new = op > self.last_there;
        if !is_new && !self.operations.contains_key(&op) {
            // It ended here while this frame was on its way.
            return;
        }
        match body {
            Some(Body::Control(v1::Control { message: Some(message) })) => match message {
                _ if is_new => self.close(error::protocol("no operation begins with a control message"), true, out),
                Control::Cancel(_) => self.drop_theirs(op, Some(error::cancelled()), out),
                Control::Error(_) => self.drop_theirs(op, None, out),
                Control::Credit(credit) => self.granted(op, credit, out),
                _ => self.close(error::protocol("this message belongs to the connection"), true, out),
            },
            Some(body) if is_known(&body) => {
                if is_new {
                    self.open(op, body, more, bytes, out);
                } else {
                    match self.count_in(op, more, bytes) {
                        Ok(()) => out.put(Output::Continued { op, body, more }),
                        Err(error) => self.drop_theirs(op, Some(error), out),
                    }
                }
            }
            _ if is_new => {
                self.last_there = op;
                self.transmit(op, false, error::body(error::unsupported()), out);
            }
            _ => self.drop_theirs(op, Some(error::unsupported()), out),
        }
    }

    fn open(&mut self, op: OpId, body: Body, more: bool, bytes: usize, out: &mut Outbox<Output>) {
        self.last_there = op;
        let refusal = match &self.stage {
            Stage::Leaving { redirect } => Some(error::going_away(redirect.clone())),
            _ if self.theirs >= self.limits.max_operations => Some(error::too_many(self.limits.max_operations)),
            _ => None,
        };
        if let Some(error) = refusal {
            return self.transmit(op, false, error::body(error), out);
        }
        let mut operation = self.operation();
        match operation.count_in(&self.limits, more, bytes) {
            Ok(()) => {
                self.operations.insert(op, operation);
                self.theirs += 1;
                out.put(Output::Opened { op, body, more });
            }
            Err(error) => self.transmit(op, false, error::body(error), out),
        }
    }

    pub(super) fn fail(&mut self, op: OpId, error: Error, out: &mut Outbox<Output>) {
        if self.config.side.begins(op) {
            return self.cancel(op, out);
        }
        if self.remove(op).is_some() {
            self.transmit(op, false, error::body(error), out);
        }
    }

    fn drop_theirs(&mut self, op: OpId, error: Option<Error>, out: &mut Outbox<Output>) {
        self.remove(op);
        out.put(Output::Dropped { op });
        if let Some(error) = error {
            self.transmit(op, false, error::body(error), out);
        }
    }

    // Both kinds.

    pub(super) fn send(&mut self, op: OpId, body: Body, more: bool, out: &mut Outbox<Output>) {
        let Some(operation) = self.operations.get_mut(&op).filter(|o| o.sending) else { return };
        let mine = self.config.side.begins(op);
        let frame = Frame { op: op.0, more, body: Some(body) };
        match operation.count_out(&self.limits, &frame) {
            Ok(()) => {
                if !mine && !more {
                    self.remove(op);
                }
                out.put(Output::Transmit(frame));
            }
            Err(error) if mine => {
                self.abandon(op, out);
                out.put(Output::Failed { op, error });
            }
            Err(error) => self.drop_theirs(op, Some(error), out),
        }
    }

    pub(super) fn consumed(&mut self, op: OpId, frames: u32, out: &mut Outbox<Output>) {
        let Some(operation) = self.operations.get_mut(&op) else { return };
        if !operation.receiving || operation.abandoned {
            return;
        }
        operation.consumed = operation.consumed.saturating_add(frames);
        // Half at a time: the sender never stands still, and few frames are spent on telling.
        if operation.consumed >= (self.limits.initial_credit / 2).max(1) {
            let frames = std::mem::take(&mut operation.consumed);
            operation.credit_in = operation.credit_in.saturating_add(frames);
            self.transmit(op, false, control_body(Control::Credit(v1::Credit { frames })), out);
        }
    }

    fn granted(&mut self, op: OpId, credit: v1::Credit, out: &mut Outbox<Output>) {
        let Some(operation) = self.operations.get_mut(&op).filter(|o| o.sending) else { return };
        let frames = credit.frames.min(MAX_CREDIT.saturating_sub(operation.credit_out));
        operation.credit_out += frames;
        if frames > 0 {
            out.put(Output::Granted { op, frames });
        }
    }

    fn operation(&self) -> Operation {
        let credit = self.limits.initial_credit;
        Operation {
            receiving: true,
            sending: true,
            abandoned: false,
            credit_out: credit,
            credit_in: credit,
            consumed: 0,
            bytes_out: 0,
            bytes_in: 0,
            deadline: None,
        }
    }

    pub(super) fn remove(&mut self, op: OpId) -> Option<Operation> {
        let operation = self.operations.remove(&op)?;
        if let Some(at) = operation.deadline {
            self.deadlines.remove(&(at, op));
        }
        if !self.config.side.begins(op) {
            self.theirs -= 1;
        }
        Some(operation)
    }

    fn count_in(&mut self, op: OpId, more: bool, bytes: usize) -> Result<(), Error> {
        match self.operations.get_mut(&op) {
            Some(operation) => operation.count_in(&self.limits, more, bytes),
            None => Ok(()),
        }
    }
}

impl Operation {
    /// Holds a frame that came in to the limits.
    fn count_in(&mut self, limits: &Limits, more: bool, bytes: usize) -> Result<(), Error> {
        if !self.receiving {
            return Err(error::protocol("the operation was complete already"));
        }
        self.bytes_in = self.bytes_in.saturating_add(bytes as u64);
        if self.bytes_in > limits.max_operation_bytes {
            return Err(error::too_large("the operation", self.bytes_in, limits.max_operation_bytes));
        }
        if more {
            self.credit_in = self.credit_in.checked_sub(1).ok_or_else(error::beyond_credit)?;
        } else {
            self.receiving = false;
        }
        Ok(())
    }

    /// Holds a frame that is to go out to the limits.
    fn count_out(&mut self, limits: &Limits, frame: &Frame) -> Result<(), Error> {
        let (bytes, max_frame) = (frame.encoded_len() as u64, u64::from(limits.max_frame));
        if bytes > max_frame {
            return Err(error::too_large("the frame", bytes, max_frame));
        }
        self.bytes_out = self.bytes_out.saturating_add(bytes);
        if self.bytes_out > limits.max_operation_bytes {
            return Err(error::too_large("the operation", self.bytes_out, limits.max_operation_bytes));
        }
        if frame.more {
            // Handlers wait for credit before they send; one that does not has a reader that does not keep up.
            self.credit_out = self.credit_out.checked_sub(1).ok_or_else(error::slow_reader)?;
        } else {
            self.sending = false;
        }
        Ok(())
    }
}

impl Input {
    /// The operation that this is about, if it is about one.
    pub fn op(&self) -> Option<OpId> {
        match self {
            Input::Begin { op, .. }
            | Input::Send { op, .. }
            | Input::Fail { op, .. }
            | Input::Cancel { op }
            | Input::Consumed { op, .. } => Some(*op),
            _ => None,
        }
    }
}
