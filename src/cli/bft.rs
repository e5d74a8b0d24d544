//! What can be typed after `tidings bft`.

use clap::{Args, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum Bft {
    /// Make the keys of a new group: a file of its members, a folder for each replica, a file for each client
    #[command(after_help = KEYGEN_HELP)]
    Keygen(Keygen),
    /// Run one replica of a group, with a key-value service
    #[command(after_help = RUN_HELP)]
    Run(Run),
    /// Show how far each replica is, and whether it votes; exit code 5 if too few answer
    #[command(after_help = "Example:\n  tidings bft status --group town/group.toml --client town/client-1.toml")]
    Status(Status),
}

const KEYGEN_HELP: &str = "A group has 3f + 1 replicas, of which f may lie. Copy each replica's folder to its machine, \
group.toml to everybody, and each client's file to that client alone.\n\n\
Example:\n  tidings bft keygen town --replica 10.0.0.1:7500,10.0.0.1:7600 --replica 10.0.0.2:7500,10.0.0.2:7600 \
--replica 10.0.0.3:7500,10.0.0.3:7600 --replica 10.0.0.4:7500,10.0.0.4:7600";

const RUN_HELP: &str = "A replica whose folder was lost starts in an empty one that holds nothing but its `secret.toml`: it \
takes a state over from the others, answers clients, and does not vote.\n\n\
Example:\n  tidings bft run --group town/group.toml --data town/replica-0";

#[derive(Args)]
pub struct Keygen {
    /// The folder to make; its name is the group's
    pub dir: PathBuf,
    /// Where a replica listens, for replicas and for clients; once for each
    #[arg(long = "replica", value_name = "PEERS,CLIENTS", required = true, value_parser = parse_pair)]
    pub replicas: Vec<(SocketAddr, SocketAddr)>,
    /// How many clients there are
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub clients: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Run {
    /// The file of the group's members
    #[arg(long, value_name = "FILE")]
    pub group: PathBuf,
    /// The replica's folder, with its `secret.toml`
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// What to log
    #[arg(long, default_value = "info", value_name = "FILTER", env = "TIDINGS_LOG")]
    pub log: String,
}

#[derive(Args)]
pub struct Status {
    /// The file of the group's members
    #[arg(long, value_name = "FILE")]
    pub group: PathBuf,
    /// The secrets of the client that asks
    #[arg(long, value_name = "FILE")]
    pub client: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn parse_pair(text: &str) -> Result<(SocketAddr, SocketAddr), String> {
    let (peers, clients) = text.split_once(',').ok_or("two addresses, separated by a comma")?;
    let parse = |text: &str| text.parse().map_err(|error| format!("`{text}`: {error}"));
    Ok((parse(peers)?, parse(clients)?))
}
