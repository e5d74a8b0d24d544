//! A topic as the state keeps it: how many entries there are, what is kept of them, and for whom.
//!
//! Two policies, by whether anybody consumes:
//! - **interest**, while consumer groups are known: an entry is dropped as soon as every group has acknowledged it, never
//!   before; when the backlog reaches its bound, appends are refused with `feed.full`. Nothing a group waits for is lost.
//! - **latest**, while no group is known: the oldest entries beyond the bound are dropped. A group that joins hears what
//!   is still there, and everything from then on.

use crate::acks::{ACK_WINDOW, Acks};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;
use tidings_base::{Class, Error};
use tidings_wire::v1;

/// The most consumer groups of a topic: each is stored with it.
pub const MAX_GROUPS: usize = 64;
/// How many entries a topic without consumer groups keeps unless told otherwise.
pub const UNCLAIMED_ENTRIES: u64 = 100_000;
/// How many bytes a topic without consumer groups keeps unless told otherwise.
pub const UNCLAIMED_BYTES: u64 = 256 << 20;
/// How many entries may wait for consumer groups unless told otherwise.
pub const BACKLOG_ENTRIES: u64 = 10_000_000;
/// How many bytes may wait for consumer groups unless told otherwise.
pub const BACKLOG_BYTES: u64 = 8 << 30;

/// A topic and its consumer groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topic {
    /// Entries up to this number were dropped.
    pub dropped: u64,
    /// The last entry appended.
    pub last: u64,
    /// Bytes of all entries ever appended.
    pub appended_bytes: u64,
    /// Bytes of the entries dropped.
    pub dropped_bytes: u64,
    /// The bounds, with defaults filled in.
    pub retention: Retention,
    /// What each consumer group has acknowledged.
    pub groups: BTreeMap<Bytes, Acks>,
}

/// How much a topic keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Entries kept while no group is known.
    pub unclaimed_entries: u64,
    /// Bytes kept while no group is known.
    pub unclaimed_bytes: u64,
    /// Entries that may wait for groups.
    pub backlog_entries: u64,
    /// Bytes that may wait for groups.
    pub backlog_bytes: u64,
}

impl Default for Retention {
    fn default() -> Retention {
        Retention {
            unclaimed_entries: UNCLAIMED_ENTRIES,
            unclaimed_bytes: UNCLAIMED_BYTES,
            backlog_entries: BACKLOG_ENTRIES,
            backlog_bytes: BACKLOG_BYTES,
        }
    }
}

impl Retention {
    /// The bounds of a message, zeros replaced by the defaults.
    pub fn from_message(message: &v1::FeedRetention) -> Retention {
        let or = |given: u64, default: u64| if given == 0 { default } else { given };
        Retention {
            unclaimed_entries: or(message.unclaimed_entries, UNCLAIMED_ENTRIES),
            unclaimed_bytes: or(message.unclaimed_bytes, UNCLAIMED_BYTES),
            backlog_entries: or(message.backlog_entries, BACKLOG_ENTRIES),
            backlog_bytes: or(message.backlog_bytes, BACKLOG_BYTES),
        }
    }
}

impl Topic {
    /// Reads the stored form; `None` if it is not one.
    pub fn decode(stored: &[u8]) -> Option<Topic> {
        let message = v1::FeedTopic::decode(stored).ok()?;
        let mut groups = BTreeMap::new();
        for group in message.groups {
            groups.insert(group.name, Acks::from_runs(group.floor, &group.runs)?);
        }
        Some(Topic {
            dropped: message.dropped,
            last: message.last,
            appended_bytes: message.appended_bytes,
            dropped_bytes: message.dropped_bytes,
            retention: Retention::from_message(&message.retention.unwrap_or_default()),
            groups,
        })
    }

    /// The stored form.
    pub fn encode(&self) -> Bytes {
        let retention = v1::FeedRetention {
            unclaimed_entries: self.retention.unclaimed_entries,
            unclaimed_bytes: self.retention.unclaimed_bytes,
            backlog_entries: self.retention.backlog_entries,
            backlog_bytes: self.retention.backlog_bytes,
        };
        let groups = self.groups.iter();
        let groups =
            groups.map(|(name, acks)| v1::FeedGroup { name: name.clone(), floor: acks.floor(), runs: acks.runs() });
        let message = v1::FeedTopic {
            dropped: self.dropped,
            last: self.last,
            appended_bytes: self.appended_bytes,
            dropped_bytes: self.dropped_bytes,
            retention: Some(retention),
            groups: groups.collect(),
        };
        message.encode_to_vec().into()
    }

    /// How many entries are kept.
    pub fn kept(&self) -> u64 {
        self.last - self.dropped
    }

    /// How many bytes they have.
    pub fn kept_bytes(&self) -> u64 {
        self.appended_bytes - self.dropped_bytes
    }

    /// Whether these entries may be appended under the interest policy.
    pub fn admits(&self, append: &v1::Append) -> Result<(), Error> {
        let bytes: u64 = append.entries.iter().map(|e| e.len() as u64).sum();
        let entries = append.entries.len() as u64;
        let full = self.kept() + entries > self.retention.backlog_entries
            || self.kept_bytes() + bytes > self.retention.backlog_bytes;
        if self.groups.is_empty() || !full {
            return Ok(());
        }
        let message = format!("{} entries of the topic wait to be acknowledged: it takes no more.", self.kept());
        let hint = "Start the consumers that stopped, or make the topic forget their group.";
        Err(Error::new("feed.full", Class::Refused, message).hint(hint))
    }

    /// The acknowledgements of a group after these numbers are added to them.
    pub fn acknowledged(&self, group: &Bytes, numbers: &[u64]) -> Result<Acks, Error> {
        let Some(acks) = self.groups.get(group) else {
            let message = "The topic does not know this consumer group.";
            return Err(Error::new("feed.unknown_group", Class::NotFound, message)
                .hint("Consume first: that makes the group known."));
        };
        let most = self.last.min(acks.floor() + ACK_WINDOW);
        if let Some(beyond) = numbers.iter().find(|n| **n > most) {
            let message = format!("Entry {beyond} was never delivered to this group.");
            return Err(Error::new("feed.never_delivered", Class::Invalid, message)
                .hint("Acknowledge numbers as they were delivered."));
        }
        let mut acks = acks.clone();
        numbers.iter().for_each(|n| {
            acks.insert(*n);
        });
        Ok(acks)
    }

    /// Makes a group known; it hears whatever is kept.
    pub fn join(&mut self, group: &Bytes) -> Result<u64, Error> {
        if let Some(acks) = self.groups.get(group) {
            return Ok(acks.floor());
        }
        if self.groups.len() >= MAX_GROUPS {
            let message = format!("The topic has {MAX_GROUPS} consumer groups already.");
            return Err(Error::new("feed.too_many_groups", Class::Refused, message)
                .hint("Make the topic forget a group that nobody uses."));
        }
        self.groups.insert(group.clone(), Acks::up_to(self.dropped));
        Ok(self.dropped)
    }

    /// Entries up to this number may be dropped, whatever the bounds say.
    pub fn done(&self) -> u64 {
        self.groups.values().map(Acks::floor).min().unwrap_or(self.dropped).min(self.last)
    }

    /// Whether the latest policy wants the oldest entry dropped.
    pub fn is_over(&self) -> bool {
        self.groups.is_empty()
            && (self.kept() > self.retention.unclaimed_entries || self.kept_bytes() > self.retention.unclaimed_bytes)
    }
}
