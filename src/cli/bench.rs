//! What benches and tests of real processes type to this program: hidden commands.

use super::{Remote, Serve};
use clap::Args;
use std::path::PathBuf;

/// A node that is made worse than it is.
#[derive(Args)]
pub struct BenchNode {
    #[command(flatten)]
    pub serve: Serve,
    /// Each sync of a log takes so many microseconds more
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub sync_us: u64,
    /// While there is such a file, rows of Notify's matchers in the first eighth of the ring can be neither read nor written
    #[arg(long, value_name = "FILE")]
    pub fail_while: Option<PathBuf>,
}

/// Many WebSocket clients of Notify in one process, and publishers for them.
#[derive(Args)]
pub struct BenchCrowd {
    /// How many clients, each with a connection of its own
    #[arg(long, value_name = "N")]
    pub clients: usize,
    /// In how many applications: each is a place of its own on the ring
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub applications: usize,
    #[command(flatten)]
    pub remote: Remote,
}
