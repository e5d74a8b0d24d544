//! The public surface of store and feed.

mod conformance;
mod front;
mod state;
