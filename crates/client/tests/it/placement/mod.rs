//! Owners and lookups over a pool inside the process, on paused time.

mod helpers;
mod moves;
mod owners;
mod tables;
