//! An operation that the other side began, as its handler sees it.

use super::flow::{Gone, Outflow, initial_credit};
use super::{Command, Link, Piece, TrySendError};
use std::sync::Arc;
use tidings_base::{Error, OpId};
use tidings_wire::session::Input;
use tidings_wire::{Body, error};
use tokio::sync::mpsc;

/// An operation that the other side began.
#[derive(Debug)]
pub struct Operation {
    /// The first frame of the request.
    pub body: Body,
    /// The frames that follow, if any do.
    pub rest: Option<Requests>,
    /// Through which it is answered.
    pub responder: Responder,
}

/// Answers one operation. Dropped without an answer it says `control.unanswered`, so that no caller waits in vain.
#[derive(Debug)]
pub struct Responder {
    link: Arc<Link>,
    op: OpId,
    outflow: Option<Outflow>,
    answered: bool,
}

impl Responder {
    pub(super) fn new(link: Arc<Link>, op: OpId) -> Responder {
        Responder { link, op, outflow: None, answered: false }
    }

    /// The number of the operation on its connection.
    pub fn op(&self) -> OpId {
        self.op
    }

    /// The connection that the operation is on.
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Answers with one last frame.
    pub fn reply(mut self, body: Body) {
        self.answered = true;
        self.link.push(Command::Session(Input::Send { op: self.op, body, more: false }));
    }

    /// Ends the operation with an error.
    pub fn fail(mut self, error: Error) {
        self.answered = true;
        self.link.push(Command::Session(Input::Fail { op: self.op, error }));
    }

    /// Answers with one last frame or an error.
    pub fn finish(self, result: Result<Body, Error>) {
        match result {
            Ok(body) => self.reply(body),
            Err(error) => self.fail(error),
        }
    }

    /// Sends a frame that others will follow, when the reader has granted it. A reader that grants nothing for long
    /// ends the operation with `control.slow_reader`; nobody else waits for it.
    pub async fn send(&mut self, body: Body) -> Result<(), Gone> {
        self.outflow().send(body).await
    }

    /// Sends a frame that others will follow, if the reader has granted it.
    pub fn try_send(&mut self, body: Body) -> Result<(), TrySendError> {
        self.outflow().try_send(body)
    }

    /// Waits until nobody waits for the answer any more: cancelled, or the connection ended.
    pub async fn gone(&mut self) {
        self.outflow().gone().await;
    }

    fn outflow(&mut self) -> &mut Outflow {
        self.outflow.get_or_insert_with(|| Outflow::attach(self.link.clone(), self.op, 0))
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.answered {
            self.link.push(Command::Session(Input::Fail { op: self.op, error: error::unanswered() }));
        }
    }
}

/// The further frames of a request; reading grants more.
#[derive(Debug)]
pub struct Requests {
    link: Arc<Link>,
    op: OpId,
    frames: mpsc::UnboundedReceiver<Piece>,
    /// The first frame counts: it came with `more`.
    used: u32,
    ended: bool,
}

impl Requests {
    pub(super) fn new(link: Arc<Link>, op: OpId, frames: mpsc::UnboundedReceiver<Piece>) -> Requests {
        Requests { link, op, frames, used: 1, ended: false }
    }

    /// The next frame; `None` after the last; [`Gone`] if the operation is over before it.
    pub async fn next(&mut self) -> Result<Option<Body>, Gone> {
        if self.ended {
            return Ok(None);
        }
        let (body, more) = self.frames.recv().await.ok_or(Gone)?;
        let body = *body;
        self.ended = !more;
        self.used += 1;
        if more && self.used >= (initial_credit(&self.link) / 2).max(1) {
            let frames = std::mem::take(&mut self.used);
            self.link.push(Command::Session(Input::Consumed { op: self.op, frames }));
        }
        Ok(Some(body))
    }
}
