//! `bench placement`: what a check and a lookup cost, what a manager costs, and how load is spread.
//!
//! ```text
//!   reads.rs            lookups and checks at 200 owners × 64 ranges, against a bare clock read
//!   crowd.rs zipf.rs    the manager's machine and its policy under a Zipf load, in virtual time, by seed
//!   moving.rs           how long a key is nobody's when its owner dies, and when it drains; a node as a process
//!   testbed.rs          the paper's: owners and lookups restarted, the manager's processor time and bytes
//! ```

mod crowd;
mod moving;
mod reads;
mod testbed;
mod zipf;

use super::Effort;
use super::report::Figures;
use super::server::Server;
use crate::commands::runtime;
use std::path::Path;
use tidings_base::Error;

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Lookups and checks that are timed together.
    pub reads: usize,
    /// Keys of the Zipf load.
    pub keys: usize,
    /// Pools that it is put on.
    pub pools: &'static [u32],
    /// Owners that are killed.
    pub deaths: usize,
    /// Owners and lookups that are restarted, and within how many seconds.
    pub owners: usize,
    /// Lookups that are restarted.
    pub lookups: usize,
    /// Seconds for all restarts.
    pub restarts: f64,
}

impl Sizes {
    pub const FULL: Sizes = Sizes {
        reads: 1 << 22,
        keys: 1_000_000,
        pools: &[16, 50, 200],
        deaths: 20,
        owners: 200,
        lookups: 2_016,
        restarts: 60.0,
    };
    pub const QUICK: Sizes =
        Sizes { reads: 1 << 16, keys: 50_000, pools: &[16], deaths: 1, owners: 8, lookups: 40, restarts: 4.0 };
}

/// Measures everything.
pub fn run(place: &Path, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    reads::measure(effort, figures)?;
    zipf::measure(effort, figures)?;
    let server = Server::start(&place.join("placement"))?;
    moving::drains(&server.url(), effort, figures)?;
    moving::deaths(&server.url(), effort, figures)?;
    runtime()?.block_on(testbed::measure(&server, effort, figures))
}
