//! The two directions of a long operation: sending under credit, reading and granting.

use super::{Command, Link, Piece, READER_PATIENCE};
use futures::Stream;
use futures::task::AtomicWaker;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};
use tidings_base::{Error, OpId};
use tidings_wire::session::Input;
use tidings_wire::{Body, Limits, error};
use tokio::sync::mpsc;

/// The operation is over: cancelled, failed, or its connection ended. Whoever works on it should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// Why a frame was not taken at once.
#[derive(Debug, PartialEq)]
pub enum TrySendError {
    /// The reader has granted no more for now; here is the body again.
    Full(Box<Body>),
    /// The operation is over.
    Gone,
}

/// What the driver and the sender of one operation share.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    credit: AtomicU32,
    gone: AtomicBool,
    waker: AtomicWaker,
}

impl Flow {
    pub(super) fn grant(&self, frames: u32) {
        self.credit.fetch_add(frames, Ordering::AcqRel);
        self.waker.wake();
    }

    pub(super) fn end(&self) {
        self.gone.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Only the one sender takes, so what it saw is still there.
    fn take(&self) -> bool {
        self.credit.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1)).is_ok()
    }
}

/// The sending direction of a long operation: frames with `more`, as many as the reader grants.
#[derive(Debug)]
pub struct Outflow {
    link: Arc<Link>,
    op: OpId,
    flow: Arc<Flow>,
}

impl Outflow {
    /// `used` frames with `more` are on their way already.
    pub(super) fn attach(link: Arc<Link>, op: OpId, used: u32) -> Outflow {
        let flow = Arc::new(Flow::default());
        flow.grant(initial_credit(&link).saturating_sub(used));
        link.push(Command::Attach { op, flow: flow.clone() });
        if link.closed().is_some() {
            flow.end();
        }
        Outflow { link, op, flow }
    }

    /// Sends a frame that others will follow, if the reader has granted it.
    pub fn try_send(&mut self, body: Body) -> Result<(), TrySendError> {
        if self.flow.is_gone() {
            return Err(TrySendError::Gone);
        }
        if self.link.queue.lock().blocked || !self.flow.take() {
            return Err(TrySendError::Full(Box::new(body)));
        }
        self.link.push(Command::Session(Input::Send { op: self.op, body, more: true }));
        Ok(())
    }

    /// Sends a frame that others will follow, when the reader has granted it. A reader that grants nothing for
    /// [`READER_PATIENCE`] ends the operation with `control.slow_reader`.
    pub async fn send(&mut self, body: Body) -> Result<(), Gone> {
        let mut body = body;
        loop {
            match self.try_send(body) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Gone) => return Err(Gone),
                Err(TrySendError::Full(back)) => body = *back,
            }
            match tokio::time::timeout(READER_PATIENCE, poll_fn(|cx| self.poll_room(cx))).await {
                Ok(room) => room?,
                Err(_) => {
                    let fail = Input::Fail { op: self.op, error: error::slow_reader() };
                    self.link.push(Command::Session(fail));
                    self.flow.end();
                    return Err(Gone);
                }
            }
        }
    }

    /// Sends the last frame of this direction.
    pub fn finish(self, body: Body) {
        self.link.push(Command::Session(Input::Send { op: self.op, body, more: false }));
    }

    /// Whether the operation is over.
    pub fn is_gone(&self) -> bool {
        self.flow.is_gone()
    }

    /// Waits until the operation is over.
    pub async fn gone(&mut self) {
        poll_fn(|cx| {
            self.flow.waker.register(cx.waker());
            if self.flow.is_gone() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        self.flow.waker.register(cx.waker());
        if self.flow.is_gone() {
            return Poll::Ready(Err(Gone));
        }
        if self.flow.credit.load(Ordering::Acquire) == 0 {
            return Poll::Pending;
        }
        let mut queue = self.link.queue.lock();
        if queue.blocked {
            if !queue.waiting.iter().any(|flow| Arc::ptr_eq(flow, &self.flow)) {
                queue.waiting.push(self.flow.clone());
            }
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("limits", &self.limits()).field("closed", &self.closed()).finish()
    }
}

pub(super) fn initial_credit(link: &Link) -> u32 {
    link.limits().unwrap_or(Limits::CLIENT).initial_credit
}

/// The frames of a long answer, as a stream; reading grants more. Dropping it before the end cancels the operation.
#[derive(Debug)]
pub struct Answers {
    link: Arc<Link>,
    op: OpId,
    frames: mpsc::UnboundedReceiver<Result<Piece, Box<Error>>>,
    /// A frame that was looked at before the stream was handed out.
    first: Option<Body>,
    used: u32,
    ended: bool,
}

impl Answers {
    pub(super) fn new(
        link: Arc<Link>,
        op: OpId,
        frames: mpsc::UnboundedReceiver<Result<Piece, Box<Error>>>,
    ) -> Answers {
        Answers { link, op, frames, first: None, used: 0, ended: false }
    }

    /// The next frame; `None` after the last.
    pub async fn next(&mut self) -> Option<Result<Body, Error>> {
        poll_fn(|cx| self.poll_body(cx)).await
    }

    /// Waits for the first frame and keeps it for [`next`](Answers::next), so that an error before it is known now.
    pub(crate) async fn peek(&mut self) -> Result<(), Error> {
        if self.first.is_none() {
            self.first = self.next().await.transpose()?;
        }
        Ok(())
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        let frame = std::task::ready!(self.frames.poll_recv(cx));
        Poll::Ready(Some(match frame {
            Some(Ok((body, true))) => {
                self.consumed();
                Ok(*body)
            }
            Some(Ok((body, false))) => {
                self.ended = true;
                Ok(*body)
            }
            Some(Err(error)) => {
                self.ended = true;
                Err(*error)
            }
            None => {
                self.ended = true;
                Err(error::lost(&error::closed()))
            }
        }))
    }

    /// The session is told of several frames at a time, so that its queue is not locked for each.
    fn consumed(&mut self) {
        self.used += 1;
        if self.used >= (initial_credit(&self.link) / 2).max(1) {
            let frames = std::mem::take(&mut self.used);
            self.link.push(Command::Session(Input::Consumed { op: self.op, frames }));
        }
    }
}

impl Stream for Answers {
    type Item = Result<Body, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_body(cx)
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        if !self.ended {
            self.link.push(Command::Session(Input::Cancel { op: self.op }));
        }
    }
}
