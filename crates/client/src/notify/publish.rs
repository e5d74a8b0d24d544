//! The other side: applications say that an object has a new version.

use crate::{Client, Request};
use bytes::Bytes;
use tidings_base::{Class, Error};
use tidings_wire::v1::notify_message::Message;
use tidings_wire::{Body, v1};

/// A new version of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publication {
    /// The object.
    pub object: Bytes,
    /// Its version, which should grow: an earlier one than before is accepted and ignored.
    pub version: u64,
    /// The installation that made it, which need not be told.
    pub source: Bytes,
    /// Rides along where all is well, up to 4 KiB; never to be relied on.
    pub payload: Bytes,
}

impl Publication {
    /// A new version of an object.
    pub fn new(object: impl Into<Bytes>, version: u64) -> Publication {
        Publication { object: object.into(), version, ..Publication::default() }
    }
}

/// Publishes; returns when all of them are durable. Publishing twice is as good as once, so it is tried again until the
/// client's deadline.
pub async fn publish(client: &Client, publications: impl IntoIterator<Item = Publication>) -> Result<(), Error> {
    let publications = publications.into_iter().map(|Publication { object, version, source, payload }| {
        v1::Publication { object, version, source, payload, ..Default::default() }
    });
    let publish = v1::Publish { publications: publications.collect() };
    let body = Body::Notify(v1::NotifyMessage { caller: None, message: Some(Message::Publish(publish)) });
    match client.call(Request::new(body).idempotent()).await? {
        Body::Notify(v1::NotifyMessage { message: Some(Message::Published(_)), .. }) => Ok(()),
        _ => Err(Error::new("notify.unexpected", Class::Failed, "the answer is none to a publication")),
    }
}
