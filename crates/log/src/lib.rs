//! Checksummed log segments with group commit and a strict recovery check.
//!
//! ```text
//!   callers ──▶ GroupCommit ── one write, one sync for all who wait ──▶ Log ──▶ segments ──▶ Disk
//!                   └────────── Reader: newest from memory, older from the segments ◀──┘
//! ```
//! A [`Log`] keeps records with consecutive indices. It promises:
//! - **Order.** After a crash the log is as some prefix of the calls (appends record by record, truncations, purges,
//!   resets) made it.
//! - **Durability.** That prefix contains everything before the last successful sync.
//! - **Honesty.** Damage to what was durable is refused at open, with file, offset and advice; an incomplete last
//!   write is cut. Neither is taken for the other (`scan` says how; `docs/decisions/002-log-recovery.md` says why).
//!   No record is ever returned that is not what was appended: checksums are checked on every read from disk.
//! - **No false hope.** After a failed write or sync nothing more is written until the log is opened again. The one
//!   exception: when the disk is too full for a new segment the append fails as a whole, and the log goes on. Files
//!   are reserved at their full length, so this is where a full disk shows.
//!
//! Everything is an append: a truncation, a purge, a reset is itself a record, so that one rule of recovery covers all
//! of them and nothing that is durable is ever overwritten. A segment's file is removed when nothing in it lives.
//!
//! Beside it: [`SmallFile`], replaced as a whole or not at all; [`RealDisk`], the file system; [`DirLock`]; [`SlowDisk`]
//! for measurements; [`testing::SimDisk`], a disk that forgets and tears; [`verify()`], which looks and changes
//! nothing.
//!
//! What it deliberately does not do: interpret payloads, repair damage, keep more than one writer, or know Raft.

mod active;
mod format;
mod group;
mod log;
mod real;
mod runs;
mod scan;
mod small;
pub mod testing;
mod verify;
mod view;

pub use format::MAX_PAYLOAD;
pub use group::{Done, GroupCommit, GroupOptions, GroupStats, Refused, RefusedReason};
pub use log::{Log, MIN_SEGMENT_BYTES, OpenError, Options, Reader, Recovery};
pub use real::{DirLock, LockError, RealDisk, SlowDisk, is_temporary};
pub use scan::{Trouble, TroubleKind};
pub use small::{MAX_SMALL_FILE, SmallFile, SmallFileError};
pub use verify::{Report, SegmentReport, verify};
