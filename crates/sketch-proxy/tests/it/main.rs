//! A real proxy before real small web servers, or before a BFT group, on loopback.

mod bodies;
mod cell;
mod health;
mod ordered;
mod origins;
mod patience;
#[path = "../../../../tests/shared/ports.rs"]
mod ports;
mod secure;
mod serving;
mod sites;
mod sketching_core;
mod telling;
mod verifying;
