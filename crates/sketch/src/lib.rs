//! Sketch: verified reads at the price of one (the Prophecy row).
//!
//! ```text
//!   client ─ request ─▶ http: strip, s(q) ─▶ Sketcher ── fast ─────────▶ one replica, chosen at random
//!          ◀ answer ──  http: conditions  ◀─   │  ▲  ◀─ r, s(r) equal to the remembered one? ─┘
//!                                              │  └ History: s(q) → s(r), σ, bits
//!                                              └ replicate ─▶ Group ── ordered, or voted ──▶ all replicas
//! ```
//! A group of replicas that agree answers each read several times over. A *sketcher* in front remembers compact sketches
//! of past answers: a read goes to one replica, and its answer is returned if its sketch is the remembered one; otherwise
//! the read is replicated, remembered and returned. So a faulty replica can at worst return something *stale*.
//!
//! - [`sketcher`]: Algorithm 1 of the paper as a machine, with lists, uniform choice, ejection and limits (rules A, B, I–L).
//! - [`history`]: what it remembers, in 28 bytes an entry, shared by threads (rule B).
//! - [`group`]: how replicas are asked and when their replies count (rules E and F).
//! - [`health`]: which replicas are known to be away.
//! - [`replica`]: what a replica does with an agreed order (rule G), and the interface of whatever makes that order.
//! - [`direct`]: D-Prophecy, without a sketcher between: every replica remembers, and the client compares (rule H).
//! - [`http`]: what is forwarded, and how that and nothing else is sketched (rules C and D).
//! - [`sigma`]: the group's order; [`sketch`]: sketches; [`session`]: read your own writes (rule K).
//!
//! What it promises: with at most f liars every verified answer was true at some time, and reads of one request never go
//! back (delay-once, §4 of the paper). What it deliberately does not do: promise anything across different requests, see
//! writes that pass it by, answer from memory (it remembers sketches, not bodies), or join reads that are under way.

pub mod direct;
pub mod group;
pub mod health;
pub mod history;
pub mod http;
#[doc(hidden)]
pub mod mutant;
pub mod replica;
#[doc(hidden)]
pub mod seen;
pub mod session;
pub mod sigma;
pub mod sketch;
pub mod sketcher;
mod unforeseen;

/// One member of a group, counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u16);

/// Names a call of the sketcher to its group or to one replica until it is answered; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Names a request that a driver brought, until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What a replica answered, and what is made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<R> {
    /// s(r), computed from exactly what would be forwarded.
    pub sketch: sketch::Sketch,
    /// Whether it may be remembered: not so for server errors, and for answers that are one client's own (rules C, D).
    pub keep: bool,
    /// The answer itself, opaque here.
    pub response: R,
}
