//! `bench bft`: groups of replicas on their engines, within this process, over TCP and on this disk.
//!
//! ```text
//!   orders.rs   what one command takes, and how many are ordered a second
//!   reads.rs    reads in the order, of 2f + 1, and of D-Prophecy: of no time, and of a service that takes some
//!   idle.rs     the processor time of 13 replicas that nobody asks
//!   town.rs     the group; slow.rs  its service
//! ```

mod idle;
mod orders;
mod reads;
mod slow;
mod town;

use super::Effort;
use super::report::Figures;
use crate::commands::{probe, runtime};
use std::path::Path;
use std::time::Duration;
use tidings_base::Error;

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Commands that one takes after the other.
    pub serial: usize,
    /// Commands in flight.
    pub in_flight: &'static [usize],
    /// Clients that read.
    pub readers: usize,
    /// How long the service takes for a read, one at a time a replica.
    pub service: Duration,
    /// Replicas of the group that nobody asks, and for how long.
    pub idle: (usize, Duration),
}

impl Sizes {
    pub const FULL: Sizes = Sizes {
        serial: 500,
        in_flight: &[64, 1_024],
        readers: 40,
        service: Duration::from_millis(10),
        idle: (13, Duration::from_secs(20)),
    };
    pub const QUICK: Sizes = Sizes {
        serial: 20,
        in_flight: &[16],
        readers: 8,
        service: Duration::from_millis(2),
        idle: (4, Duration::from_secs(1)),
    };
}

/// Measures everything.
pub fn run(place: &Path, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    probe::raise_open_files();
    let runtime = runtime()?;
    runtime.block_on(orders::measure(&place.join("orders"), effort, figures))?;
    runtime.block_on(reads::measure(place, effort, figures))?;
    runtime.block_on(idle::measure(&place.join("idle"), effort, figures))
}
