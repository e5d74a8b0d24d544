//! What can be typed after `tidings member` and `tidings cell member`.

use super::Remote;
use clap::Subcommand;

#[derive(Subcommand)]
pub enum Member {
    /// List the members and how far each is behind
    List {
        #[command(flatten)]
        remote: Remote,
    },
    /// Add a node that was started with `serve --join`
    Add {
        /// Its number, which the cluster never knew before
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        node: u64,
        /// Where others reach it, as HOST:PORT
        address: String,
        /// Add it although nobody answers there yet: it follows without a vote until it does
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Remove a member
    Remove {
        /// Its number
        node: u64,
        #[command(flatten)]
        remote: Remote,
    },
    /// Remove a member and add another in its place, which was started with `serve --join`
    Replace {
        /// The number of the one that goes
        old: u64,
        /// The number of the one that comes
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        new: u64,
        /// Where others reach it, as HOST:PORT
        address: String,
        /// Add it although nobody answers there yet
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        remote: Remote,
    },
}
