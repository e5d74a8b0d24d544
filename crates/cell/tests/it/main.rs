//! The cell's agreed state as its users see it.

mod backup;
mod common;
mod namespace;
mod snapshot;
