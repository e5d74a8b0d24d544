//! The channel of one client: an operation of the connection whose request and answer both go on.

use crate::link::{Answers, Outflow, TrySendError};
use crate::{Client, Link};
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;
use tidings_wire::v1::notify_message::Message;
use tidings_wire::{Body, Part, v1};

/// How long to wait for a connection before the machine is told that there is none, and pauses.
const CONNECT: Duration = Duration::from_secs(10);

/// Where the channel stands.
pub(super) enum Channel {
    Closed,
    /// A connection is waited for.
    Connecting(BoxFuture<'static, Result<Arc<Link>, Error>>),
    /// There is a connection; the operation begins with the first message.
    Ready(Arc<Link>),
    /// It begins.
    Opening(BoxFuture<'static, Result<(Outflow, Answers), Error>>),
    Open(Box<(Outflow, Answers)>),
}

/// What a channel says.
pub(super) enum Heard {
    Opened,
    Closed(Option<Error>),
    Down(Box<v1::NotifyDown>),
}

impl Channel {
    pub(super) fn connect(&mut self, client: &Client) {
        let client = client.clone();
        *self = Channel::Connecting(Box::pin(async move { client.any(Part::Notify, CONNECT).await }));
    }

    /// Sends, or drops what cannot be sent now: the machine says again what was not answered.
    pub(super) fn send(&mut self, message: v1::NotifyUp) {
        let body = Body::Notify(v1::NotifyMessage { caller: None, message: Some(Message::Up(message)) });
        match std::mem::replace(self, Channel::Closed) {
            Channel::Ready(link) => {
                *self = Channel::Opening(Box::pin(async move { link.open(body, None).await }));
            }
            Channel::Open(mut both) => {
                // A channel that is gone says so by itself.
                let (Ok(()) | Err(TrySendError::Full(_) | TrySendError::Gone)) = both.0.try_send(body);
                *self = Channel::Open(both);
            }
            other => *self = other,
        }
    }

    /// The next that happens to it; pending while it is closed. Cancelling it loses nothing.
    pub(super) async fn next(&mut self) -> Heard {
        loop {
            let heard = match self {
                Channel::Closed | Channel::Ready(_) => std::future::pending().await,
                Channel::Connecting(link) => match link.await {
                    Ok(link) => {
                        *self = Channel::Ready(link);
                        Heard::Opened
                    }
                    Err(error) => self.closed(Some(error)),
                },
                Channel::Opening(opening) => match opening.await {
                    Ok(both) => {
                        *self = Channel::Open(Box::new(both));
                        continue;
                    }
                    Err(error) => self.closed(Some(error)),
                },
                Channel::Open(both) => match both.1.next().await {
                    Some(Ok(Body::Notify(v1::NotifyMessage { message: Some(Message::Down(down)), .. }))) => {
                        Heard::Down(Box::new(down))
                    }
                    Some(Ok(_)) => continue,
                    Some(Err(error)) => self.closed(Some(error)),
                    None => self.closed(None),
                },
            };
            return heard;
        }
    }

    fn closed(&mut self, why: Option<Error>) -> Heard {
        *self = Channel::Closed;
        Heard::Closed(why)
    }
}
