//! A real proxy before real small web servers, on loopback.

mod bodies;
mod health;
mod origins;
mod secure;
mod serving;
mod sketching_core;
mod telling;
mod verifying;
