//! Channels of clients, whatever carries them: one small trait, and each way to a client is one file that implements it.
//!
//! ```text
//!   frames.rs   an operation of a connection: WebSocket, gRPC, within a process
//!   http.rs     posts up, server-sent events or long polls down
//! ```
//! A channel gives minutes of affinity and nothing more: it may lose, repeat and reorder, as long as it says when it has
//! closed. What travels are `NotifyUp` and `NotifyDown`, in whichever form the adapter likes.

use super::channels::Down;
use super::hooks::Claims;
use super::hub::Hub;
use super::listening::{claims_of, to_message};
use futures::future::BoxFuture;
use std::sync::Arc;
use tidings_base::Error;
use tidings_notify::names::{Caller, Channel};
use tidings_wire::v1::notify_message::Message;
use tidings_wire::{error, v1};
use tokio::sync::mpsc;

/// What carries the messages of one client.
pub trait Adapter: Send + 'static {
    /// Waits for the client's next message; an error once the channel is closed, or cannot be trusted any more. Cancelling
    /// it loses nothing.
    fn receive(&mut self) -> impl Future<Output = Result<v1::NotifyUp, Error>> + Send;

    /// Takes a message to the client; an error once the channel is closed. It may wait for a client that is slow, whose
    /// own messages wait meanwhile: what gathers beyond a bound is dropped, and said again by the registrar.
    fn send(&mut self, message: Box<v1::NotifyDown>) -> impl Future<Output = Result<(), Error>> + Send;

    /// The channel is over, for this reason.
    fn close(self, why: Error);
}

/// A place at this node for one client's channel. When it is dropped, the client is offline.
pub struct Seat {
    hub: Arc<Hub>,
    caller: Caller,
    channel: Channel,
    downs: mpsc::Receiver<Down>,
}

impl Seat {
    pub(super) fn take(hub: &Arc<Hub>, caller: v1::NotifyCaller) -> Result<Seat, Error> {
        hub.refuse_outside()?;
        let claims: Claims = claims_of(caller.claims);
        let caller = Caller { app: caller.app, principal: caller.principal };
        let (channel, downs) = hub.channels.open(&caller.app, claims);
        Ok(Seat { hub: hub.clone(), caller, channel, downs })
    }

    /// Serves the channel to its end.
    pub async fn serve<A: Adapter>(mut self, mut adapter: A) {
        let why = self.exchange(&mut adapter).await;
        adapter.close(why);
    }

    /// Exchanges messages until the channel is over; why.
    async fn exchange<A: Adapter>(&mut self, adapter: &mut A) -> Error {
        let (hub, caller, channel) = (self.hub.clone(), self.caller.clone(), self.channel);
        // Boxed: what it takes to pass a message on is not kept while there is none.
        let mut passing: Option<BoxFuture<'_, ()>> = None;
        loop {
            tokio::select! {
                () = passed(&mut passing), if passing.is_some() => {}
                up = adapter.receive(), if passing.is_none() => match up {
                    Ok(up) => passing = Some(Box::pin(hub.up(&caller, channel, up))),
                    Err(why) => return why,
                },
                down = self.downs.recv() => match down {
                    Some(Down::Message(message)) => {
                        if let Err(why) = adapter.send(message).await {
                            return why;
                        }
                    }
                    Some(Down::Close) | None => return error::going_away(None),
                },
            }
        }
    }
}

async fn passed(passing: &mut Option<BoxFuture<'_, ()>>) {
    if let Some(passing) = passing {
        passing.await;
    }
    *passing = None;
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.hub.channels.forget(self.channel);
        let (hub, caller, channel) = (self.hub.clone(), self.caller.clone(), self.channel);
        self.hub.spawn(async move {
            let closed = v1::ChannelClosed { channel: Some(to_message(channel)) };
            hub.pass(&caller, Message::ChannelClosed(closed)).await;
        });
    }
}
