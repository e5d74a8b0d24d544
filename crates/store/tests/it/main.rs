//! The public surface of store and feed.

mod anyorder;
mod conformance;
mod front;
mod state;
