//! D-Prophecy (§3.2, rule H): verified reads at the price of one, without anybody who is trusted.
//!
//! ```text
//!   Client ─ Question { nonce, execute? } ─▶ every replica          Replica ─ blocks ─▶ Service
//!      │  ◀─ Word { remembered s(r) and σ } from each ─┐                 └─▶ ReplicaSketcher: s(q) → s(r), σ
//!      │  ◀─ and the answer from the one that executes ┘                       before any reply leaves
//!      ├ 2f + 1 remember the same, and the answer has that sketch ─▶ answered fast
//!      └ otherwise ─▶ Group: the read is ordered, and every replica remembers it
//! ```
//! Each replica has a history table of its own, kept in memory and in the order of the log. A fast read asks all of them and has
//! one of them execute; what it answers counts if enough replicas remember it.
//!
//! Why reads never go back: a read that has ended was remembered by 2f + 1 replicas, and so the next one, which needs 2f + 1 words,
//! hears of at least one that is honest and was among them. This holds only if *everything* that is said for an answer was
//! remembered in the log's order before it was said. Hence: who executes counts by what it remembers, not by its answer; σ is part
//! of what must be equal, as an answer may come back that was given before; a table begins empty after a restart and after a
//! state was taken over, and remembers nothing of what is executed again; and an old result of a command that is ordered twice
//! is not news. `docs/decisions/013-d-prophecy.md` has the histories that break it otherwise.
//!
//! What is promised: delay-once for each request, as through a sketcher. What is not: anything about reads that went through a sketcher
//! as well (each sketcher remembers for itself), about different requests, or about one's own writes.

pub mod client;
#[doc(hidden)]
pub mod overheard;
pub mod replica;

pub use client::{Client, Options};
pub use replica::{Reads, ReplicaSketcher};

use crate::ReplicaId;
use crate::sigma::Sigma;
use bytes::Bytes;
use std::fmt;

/// s(q) or s(r) as everybody makes it: 32 bytes and no key, since nobody could be trusted with one. (Twice as long as a sketcher's:
/// whoever writes may search for two answers with the same one.)
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// s(q).
    pub fn of_request(request: &[u8]) -> Digest {
        let mut hasher = blake3::Hasher::new_derive_key("tidings D-Prophecy s(q)");
        Digest(*hasher.update(request).finalize().as_bytes())
    }

    /// s(r), which covers s(q) (rule C).
    pub fn of_response(request: Digest, response: &[u8]) -> Digest {
        let mut hasher = blake3::Hasher::new_derive_key("tidings D-Prophecy s(r)");
        Digest(*hasher.update(&request.0).update(response).finalize().as_bytes())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}{:02x}…", self.0[0], self.0[1], self.0[2])
    }
}

/// What a replica remembers of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Remembered {
    /// s(r).
    pub sketch: Digest,
    /// Where it was read in the group's order.
    pub sigma: Sigma,
}

/// What a client asks each replica in a fast read. That it comes from this client the driver has verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Who asks.
    pub client: u64,
    /// What names the read among those of its client, and stops replays.
    pub nonce: u64,
    /// Whether this replica executes it.
    pub execute: bool,
    /// What is asked.
    pub request: Bytes,
}

/// What one replica says to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// Who says it; the driver has verified its MAC under the key of this client and this replica.
    pub from: ReplicaId,
    /// The group it speaks for.
    pub group: u64,
    /// The client it speaks to.
    pub client: u64,
    /// The question's.
    pub nonce: u64,
    /// What it remembers, if it does.
    pub remembered: Option<Remembered>,
    /// From the one that executes: the answer as things stand there.
    pub response: Option<Bytes>,
}
