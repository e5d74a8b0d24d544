//! Models of the owner–manager protocol: every order of messages, losses, repetitions, fail-overs and ticks up to a bound.
//!
//! The machines are the production ones ([`Owner`], [`Manager`], [`Lookup`]); only the cell is replaced, by files that agree at
//! once while it is in reach. Time passes in ticks that all clocks see, each at its own rate. Each rule's model is green, and
//! red with the mutant that leaves the rule out.
//!
//! [`Owner`]: tidings_placement::owner::Owner
//! [`Manager`]: tidings_placement::manager::Manager
//! [`Lookup`]: tidings_placement::lookup::Lookup

mod beginnings;
mod cell;
mod claims;
mod machines;
mod packets;
mod rules;
mod seats;
mod walks;
mod world;
