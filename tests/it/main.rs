//! The real binary as real processes: what a user meets, and what survives SIGKILL.
//!
//! Tests that spawn servers take turns ([`process::turn`]), so that a machine with two cores is enough for them.

mod bft;
mod cell;
#[path = "../shared/cell_load.rs"]
mod cell_load;
mod cluster;
mod commands;
mod durability;
mod examples;
mod health;
mod load;
mod notify;
mod placement;
#[path = "../shared/ports.rs"]
mod ports;
mod process;
#[path = "../shared/register.rs"]
mod register;
mod security;
mod serving;
mod simulation;
mod sketch;
mod sketch_cell;
mod sketching_core;
mod tables;
mod tombstones;
#[allow(dead_code)]
#[path = "../shared/town.rs"]
mod town;
