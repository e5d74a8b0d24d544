//! What can be typed after `tidings member` and `tidings cell member`.

use super::Remote;
use clap::Subcommand;

#[derive(Subcommand)]
pub enum Member {
    /// List the members and how far each is behind
    #[command(after_help = "Examples:\n  tidings member list\n  tidings cell member list --json")]
    List {
        #[command(flatten)]
        remote: Remote,
    },
    /// Add a node that was started with `serve --join`
    #[command(after_help = "Examples:\n  tidings member add 4 10.0.0.4:7400\n  \
                            tidings cell member add 4 10.0.0.4:7400")]
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
    #[command(after_help = "Examples:\n  tidings member remove 4\n  tidings cell member remove 4")]
    Remove {
        /// Its number
        node: u64,
        #[command(flatten)]
        remote: Remote,
    },
    /// Remove a member and add another in its place, which was started with `serve --join`
    #[command(after_help = "Examples:\n  tidings member replace 2 4 10.0.0.4:7400\n  \
                            tidings cell member replace 2 4 10.0.0.4:7400")]
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
