//! A channel that is one operation of a connection of frames, whose request and answer both go on.

use super::adapter::{Adapter, Seat};
use super::hub::Hub;
use crate::connection::{Requests, Responder};
use std::sync::Arc;
use tidings_base::{Class, Error};
use tidings_wire::v1::notify_message::Message;
use tidings_wire::{Body, error, v1};

struct Frames {
    /// What the operation began with, until it is received.
    first: Option<Box<v1::NotifyUp>>,
    rest: Requests,
    responder: Responder,
}

/// Serves one channel to its end.
pub(super) async fn serve(
    hub: Arc<Hub>,
    caller: v1::NotifyCaller,
    first: v1::NotifyUp,
    rest: Option<Requests>,
    responder: Responder,
) {
    let Some(rest) = rest else { return responder.fail(one_frame()) };
    match Seat::take(&hub, caller) {
        Ok(seat) => seat.serve(Frames { first: Some(Box::new(first)), rest, responder }).await,
        Err(elsewhere) => responder.fail(elsewhere),
    }
}

impl Adapter for Frames {
    async fn receive(&mut self) -> Result<v1::NotifyUp, Error> {
        if let Some(first) = self.first.take() {
            return Ok(*first);
        }
        match self.rest.next().await {
            Ok(Some(Body::Notify(v1::NotifyMessage { message: Some(Message::Up(up)), .. }))) => Ok(up),
            Ok(Some(_)) => Err(error::unsupported()),
            Ok(None) | Err(_) => Err(error::closed()),
        }
    }

    async fn send(&mut self, message: Box<v1::NotifyDown>) -> Result<(), Error> {
        let message = Some(Message::Down(*message));
        let sent = self.responder.send(Body::Notify(v1::NotifyMessage { caller: None, message })).await;
        sent.map_err(|_| error::closed())
    }

    fn close(self, why: Error) {
        self.responder.fail(why);
    }
}

fn one_frame() -> Error {
    Error::new("notify.no_channel", Class::Invalid, "a channel is an operation whose request goes on")
        .hint("Send the first message with `more`, and further ones under the same operation.")
}
