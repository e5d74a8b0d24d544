//! The node's public surface: real sockets on loopback, in front of services in memory.

mod admission;
mod apps;
mod carriers;
mod cell;
#[path = "../../../tests/shared/cell_load.rs"]
mod cell_load;
mod configuration;
mod conformance;
mod functions;
mod identity;
mod members;
mod mistakes;
mod notify;
mod placement;
#[path = "../../../tests/shared/ports.rs"]
mod ports;
mod rest;
mod start;
mod support;
mod tables;
mod tls;
