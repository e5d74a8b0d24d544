//! The applied state of store and feed, kept in fjall.
//!
//! ```text
//!   DIR/FORMAT            "tidings-store 2": who may open it
//!   DIR/CURRENT           which generation holds the state, and the log index up to which it was made durable
//!   DIR/generation-7/     a fjall database with one keyspace, `data`: all pairs, the position among them
//! ```
//! What it promises: a batch is written whole or not at all; what a crash may take is the batches since the last
//! [`flush`](tidings_store::Kv::flush), newest first; a restore happens whole or not at all, since the new generation
//! is built beside the old one and `CURRENT` is replaced in one step.
//!
//! What it deliberately does not do: make single writes durable. The agreed log above has them, and replays what is
//! missing from the position it finds here. Nor is fjall trusted to notice a loss: its journal cannot tell a torn tail
//! from damage in the middle and cuts at either. `CURRENT` remembers how far the state was durable once; a state that
//! is behind that is named damaged instead of used.
//!
//! Damage is found at open and named by its file: format, `CURRENT`, a lost suffix of the journals, every list of
//! tables and the newest gigabyte of tables by their checksums. Older tables are checked block by block when they are
//! read, or all at once by [`check`], which reads everything in a copy.

mod check;
mod error;
mod kv;
mod layout;
mod tables;

pub use check::{Report, check, copied_bytes};
pub use error::OpenError;
pub use kv::{FjallKv, FjallReader, FjallView, Options};
pub use layout::FORMAT_VERSION;
