//! The group on its engine: under the deterministic runtime, and over TCP.

mod ordered;
mod over_tcp;
#[path = "../../../../tests/shared/ports.rs"]
mod ports;
#[path = "../it/town.rs"]
mod town;
