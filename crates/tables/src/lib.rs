//! Tables: shared tables that are read, written and watched; a message is a write, a subscription a continuous read (the
//! Mobius row).
//!
//! ```text
//!   writer ─ Write ─▶ Processor (owns partitions) ── one commit at a time, fenced ──▶ store: records, outcomes, positions
//!   reader ─ Read ──▶    │ ▲ scans in pages, both predicates next to the data ◀──────────┘
//!                        │ log of changes, index of queries
//!   client ─ Watch ─▶ Gateway ── Install, Update ─▶ Processor ── frames, progress ─▶ Gateway ─ events, cursors ─▶ client
//!                        ▲ Directory: partitions, lineage, terms (a file of the cell)
//! ```
//! Promised: a write that was acknowledged is in the store, once, whatever was repeated, moved or crashed (R1, R2, R6); a
//! client never sees an older version after a newer one (R5); a record whose writer's predicate denies a reader shows
//! itself in no read, count, conflict or event (R7, R8); whoever folds the events of a live query has what a fresh read
//! would give, or knows that it has not yet (R3, R4).
//!
//! - [`acl`]: who may read, write and administer.
//! - [`directory`]: what a table is, and how it is cut; pure functions on one file.
//! - [`processor`]: decides writes, answers reads, feeds live queries; reads of hot partitions from copies, too.
//! - [`gateway`]: live queries of clients, made of many partitions.
//! - [`gather`]: puts the answers of partitions together.
//! - [`dropped`]: deletes what tables that were dropped have left.
//! - [`calls`], [`live`], [`names`], [`refusal`]: what they say to each other and to callers.
//!
//! What it deliberately does not do: transactions over several records, secondary indices, waiting on disks or clocks,
//! sealing cursors itself (the shell has the key), keeping the log of changes beyond the life of an owner.

pub mod acl;
pub mod calls;
pub mod directory;
pub mod dropped;
pub mod gateway;
pub mod gather;
pub mod live;
#[doc(hidden)]
pub mod mutant;
pub mod names;
mod partitioned;
pub mod processor;
mod properties;
mod record;
pub mod refusal;
mod rows;

pub use rows::group as group_of;
