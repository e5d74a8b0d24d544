//! The cell's agreed state as its users see it.

mod common;
mod namespace;
