//! The cell's client: sessions, files, locks, watches, and what is built from them.
//!
//! ```text
//!   Cell ── Open ──▶ Handle ──▶ Lock ── sequencer, lost
//!    │ read, write     └──▶ Watch                        Election · Mutex · Membership · Config
//!    │  └─▶ Cache: hits without a hop                            (built from the above)
//!    └─▶ Core: the session machine ──▶ task: requests ─▶ CellTransport: a connection, or the node itself
//!                 ▲ leases
//!              Link: one short cache lease for all sessions of a client
//! ```
//! - A call waits out fail-overs and losses of contact; it fails when the cell refuses it, or with `cell.expired` once the
//!   session is gone. In jeopardy calls block; nothing cached is served.
//! - Reads are linearizable, cached or not: a write returns only when no client can serve what was there before.
//! - Dropping is always safe: a [`Lock`] is released, a [`Handle`] closed, a session ended, an acquire leaves its queue.
//!
//! [`testing`] is a cell inside the process, for tests of what uses one.

mod awaited;
mod cache;
mod calls;
mod clock;
mod config;
mod driver;
mod election;
mod errors;
mod events;
mod handle;
mod link;
mod lists;
mod lock;
mod membership;
mod mutex;
mod observed;
mod open;
mod opened;
mod sequencer;
mod session;
mod stat;
pub mod testing;
mod trace;
mod transport;

pub use calls::{Cell, SessionOptions};
pub use config::Config;
pub use election::{Election, Leader, Leadership, Observation};
pub use events::{Event, Events, SessionEvent, SessionEvents, Watch};
pub use handle::Handle;
pub use link::Link;
pub use lists::{Listed, list_locks, list_sessions};
pub use lock::Lock;
pub use membership::{Member, Members, Membership};
pub use mutex::{Mutex, MutexGuard};
pub use observed::Observed;
pub use open::Open;
pub use sequencer::Sequencer;
pub use session::State;
pub use stat::{Acl, Child, File, Listing, Mode, Stat};
pub use trace::{Trace, traced};
pub use transport::CellTransport;
