//! Placement under every order of events: models of its machines, and its lock-free check under every interleaving.

mod interleavings;
mod model;
