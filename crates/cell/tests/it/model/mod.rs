//! Models of the rules that are hardest to get right by testing: every order of messages, losses and ticks up to a bound.
//!
//! The machines are the production ones ([`Session`], [`LinkLease`], [`Master`] over [`Namespace`]); only the agreed log is
//! replaced, by one that agrees at once. Each model is green, and red with the mutant that leaves its rule out.
//!
//! [`Session`]: tidings_cell::session::Session
//! [`LinkLease`]: tidings_cell::link::LinkLease
//! [`Master`]: tidings_cell::master::Master
//! [`Namespace`]: tidings_cell::namespace::Namespace

mod acks;
mod ceiling;
mod checking;
mod client;
mod dating;
mod resurrection;
mod walks;
mod world;
