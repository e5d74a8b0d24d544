//! The master and the real namespace, with a log that applies what the test lets it.

mod caching;
mod harness;
mod leases;
mod locks;
mod nodes;
mod operating;
mod takeover;
