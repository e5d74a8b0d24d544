//! The cell's agreed state as its users see it.

mod backup;
mod common;
mod model;
mod namespace;
mod random;
mod snapshot;
