//! `tidings sim`: simulated clusters under faults.

use crate::cli::Sim;
use tidings_base::Error;

pub fn run(_args: Sim) -> Result<(), Error> {
    Ok(())
}
