//! The cell's agreed state as its users see it, and models of the rules between its machines.

mod backup;
mod common;
mod model;
mod namespace;
mod random;
mod reference;
mod snapshot;
