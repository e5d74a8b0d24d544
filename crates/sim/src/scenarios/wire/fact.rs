//! What is said in this scenario, and what invariants learn of it.

use crate::kernel::HostId;
use bytes::Bytes;
use std::fmt;
use tidings_base::Class;
use tidings_wire::v1::{self, feed_message, frame::Body};

/// Names an operation for ever: who began it, and which of its operations it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// Who began it.
    pub host: HostId,
    /// Which one; no number is used by two lives of a host.
    pub number: u64,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:x}", self.host, self.number)
    }
}

/// What an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One frame, one answer.
    Ask,
    /// One frame, a long answer.
    Listen,
    /// A long request, one answer.
    Pour,
}

/// One frame: which operation it is of, and the how-manieth of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Say {
    /// The operation.
    pub name: Name,
    /// What it is.
    pub kind: Kind,
    /// The place of this frame, from 0.
    pub index: u64,
    /// How many frames the long direction has.
    pub count: u64,
}

impl Say {
    /// As a frame carries it.
    pub fn body(&self) -> Body {
        let kind = match self.kind {
            Kind::Ask => 0,
            Kind::Listen => 1,
            Kind::Pour => 2,
        };
        let numbers = [u64::from(self.name.host.0), self.name.number, kind, self.index, self.count];
        let entries = numbers.iter().map(|number| Bytes::copy_from_slice(&number.to_le_bytes())).collect();
        let append = v1::Append { topic: Bytes::from_static(b"say"), entries };
        Body::Feed(v1::FeedMessage { message: Some(feed_message::Message::Append(append)) })
    }

    /// Reads a frame.
    pub fn read(body: &Body) -> Option<Say> {
        let Body::Feed(v1::FeedMessage { message: Some(feed_message::Message::Append(append)) }) = body else {
            return None;
        };
        let numbers = append.entries.iter().map(|entry| Some(u64::from_le_bytes(entry[..].try_into().ok()?)));
        let numbers: Vec<u64> = numbers.collect::<Option<_>>()?;
        let [host, number, kind, index, count] = numbers[..] else { return None };
        let kind = match kind {
            0 => Kind::Ask,
            1 => Kind::Listen,
            2 => Kind::Pour,
            _ => return None,
        };
        Some(Say { name: Name { host: HostId(u32::try_from(host).ok()?), number }, kind, index, count })
    }
}

/// How an operation ended for whoever began it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With the last frame of its answer.
    Answered(Say),
    /// With an error of this class.
    Failed(Class),
    /// Its caller gave it up.
    Cancelled,
}

/// What invariants learn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireFact {
    /// A process started: operations of the life before are nobody's any more.
    Started,
    /// An operation began.
    Began(Say),
    /// A frame of its answer came, and more follow.
    Heard(Name, Say),
    /// It ended.
    Ended(Name, End),
    /// A frame of a request came to its handler.
    Arrived(Say),
    /// A session broke what it promises to its driver.
    Alarm(String),
    /// So many frames wait for their reader, of so many that it granted.
    Waiting {
        /// Frames that came and were not used yet.
        frames: u32,
        /// Frames that may.
        granted: u32,
    },
}
