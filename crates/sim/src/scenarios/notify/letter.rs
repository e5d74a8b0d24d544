//! What devices and nodes say to each other over a channel that loses, repeats and reorders.

use crate::kernel::{Effect, HostId};
use bytes::Bytes;
use prost::Message as _;
use tidings_base::Outbox;
use tidings_wire::v1;

/// One message of a channel.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Letter {
    /// The channel's number at its node; of `Open` and `Opened` the device's number of the attempt.
    #[prost(uint64, tag = "1")]
    pub channel: u64,
    /// What it says.
    #[prost(oneof = "Body", tags = "2, 3, 4, 5, 6, 7, 8, 9")]
    pub body: Option<Body>,
}

/// What a letter says.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Body {
    /// A device opens a channel.
    #[prost(bool, tag = "2")]
    Open(bool),
    /// It is open, under this number.
    #[prost(uint64, tag = "3")]
    Opened(u64),
    /// From a client.
    #[prost(message, tag = "4")]
    Up(v1::NotifyUp),
    /// To a client.
    #[prost(message, tag = "5")]
    Down(v1::NotifyDown),
    /// Is the channel still there?
    #[prost(bool, tag = "6")]
    Ping(bool),
    /// It is.
    #[prost(bool, tag = "7")]
    Pong(bool),
    /// The device closes it.
    #[prost(bool, tag = "8")]
    Close(bool),
    /// There is no such channel any more.
    #[prost(bool, tag = "9")]
    Gone(bool),
}

impl Letter {
    /// Reads a letter.
    pub fn of(bytes: &Bytes) -> Option<(u64, Body)> {
        let letter = Letter::decode(bytes.clone()).ok()?;
        Some((letter.channel, letter.body?))
    }
}

/// Sends a letter.
pub fn send<F>(out: &mut Outbox<Effect<F>>, to: HostId, channel: u64, body: Body) {
    let bytes = Letter { channel, body: Some(body) }.encode_to_vec().into();
    out.put(Effect::Send { to, bytes });
}
