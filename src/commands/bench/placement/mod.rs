//! `bench placement`: what a check and a lookup cost, what a manager costs, and how load is spread.
//!
//! ```text
//!   reads.rs canned.rs  lookups and checks by the library's calls at 200 owners × 64 ranges, against a bare clock read
//!   crowd.rs zipf.rs    the manager's machine and its policy under a Zipf load, in virtual time, by seed
//!   moving.rs           how long a key is nobody's when its owner dies, and when it drains; a node as a process
//!   testbed.rs          the paper's: owners and lookups restarted, the manager's processor time and bytes
//!   watching.rs         a lookup that keeps no table: tens of thousands fit one process
//! ```

mod canned;
mod crowd;
mod moving;
mod reads;
mod testbed;
mod watching;
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
    /// Nothing but the restarts.
    pub only_restarts: bool,
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
        only_restarts: false,
    };
    pub const QUICK: Sizes = Sizes {
        reads: 1 << 16,
        keys: 50_000,
        pools: &[16],
        deaths: 1,
        owners: 8,
        lookups: 40,
        restarts: 4.0,
        only_restarts: false,
    };

    /// The same with a pool of these sizes, if they are named; then nothing else is measured.
    pub fn with_pool(self, owners: Option<usize>, lookups: Option<usize>, over: Option<f64>) -> Sizes {
        Sizes {
            owners: owners.unwrap_or(self.owners).max(1),
            lookups: lookups.unwrap_or(self.lookups),
            restarts: over.filter(|over| *over > 0.0).unwrap_or(self.restarts),
            only_restarts: owners.is_some() || lookups.is_some(),
            ..self
        }
    }
}

/// Measures everything.
pub fn run(place: &Path, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    if !effort.placement.only_restarts {
        reads::measure(effort, figures)?;
        zipf::measure(effort, figures)?;
    }
    let server = Server::start(&place.join("placement"))?;
    if !effort.placement.only_restarts {
        moving::drains(&server.url(), effort, figures)?;
        moving::deaths(&server.url(), effort, figures)?;
    }
    runtime()?.block_on(testbed::measure(&server, effort, figures))
}
