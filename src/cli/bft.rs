//! What can be typed after `tidings bft`.

use clap::{Args, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum Bft {
    /// Make the keys of a new group: a file of its members, a folder for each replica, a file for each client
    #[command(after_help = KEYGEN_HELP)]
    Keygen(Keygen),
    /// Run one replica of a group, with a key-value service or a web server beside it
    #[command(after_help = RUN_HELP)]
    Run(Run),
    /// Show how far each replica is, and whether it votes; exit code 5 if too few answer
    #[command(after_help = "Example:\n  tidings bft status --group town/group.toml --client town/client-1.toml")]
    Status(Status),
    /// Read the value of a key; exit code 3 if there is none
    #[command(after_help = "Example:\n  tidings bft get colour --group town/group.toml --client town/client-1.toml")]
    Get(Get),
    /// Give a key a value
    #[command(
        after_help = "Example:\n  tidings bft put colour blue --group town/group.toml --client town/client-1.toml"
    )]
    Put(Put),
    /// Fetch a page of the web servers beside the replicas; exit code 1 if its status is 400 or more
    #[command(
        after_help = "Example:\n  tidings bft fetch /index.html --group town/group.toml --client town/client-1.toml"
    )]
    Fetch(Fetch),
    /// Take a key away
    #[command(after_help = "Example:\n  tidings bft delete colour --group town/group.toml --client town/client-1.toml")]
    Delete(Delete),
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
    /// A web server on this machine whose pages are the service, in place of keys and values
    #[arg(long, value_name = "IP:PORT")]
    pub origin: Option<SocketAddr>,
    /// What to log
    #[arg(long, default_value = "info", value_name = "FILTER", env = "TIDINGS_LOG")]
    pub log: String,
    /// What this replica does wrong, for tests
    #[cfg(feature = "bft-sins")]
    #[arg(long, hide = true, value_parser = tidings_bft::sin::Sin::parse)]
    pub sin: Option<tidings_bft::sin::Sin>,
}

#[derive(Args)]
pub struct Status {
    #[command(flatten)]
    pub asks: Asks,
}

/// Who asks which group.
#[derive(Args)]
pub struct Asks {
    /// The file of the group's members
    #[arg(long, value_name = "FILE")]
    pub group: PathBuf,
    /// The secrets of the client that asks; one process at a time may use them
    #[arg(long, value_name = "FILE")]
    pub client: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Get {
    /// The key
    pub key: String,
    /// Read in the order of writes, even if enough replicas agree without that
    #[arg(long)]
    pub ordered: bool,
    #[command(flatten)]
    pub asks: Asks,
}

#[derive(Args)]
pub struct Put {
    /// The key
    pub key: String,
    /// The value
    pub value: String,
    #[command(flatten)]
    pub asks: Asks,
}

#[derive(Args)]
pub struct Fetch {
    /// The path, with its query
    pub path: String,
    /// Fetch in the order of all requests, even if enough replicas agree without that
    #[arg(long)]
    pub ordered: bool,
    #[command(flatten)]
    pub asks: Asks,
}

#[derive(Args)]
pub struct Delete {
    /// The key
    pub key: String,
    #[command(flatten)]
    pub asks: Asks,
}

fn parse_pair(text: &str) -> Result<(SocketAddr, SocketAddr), String> {
    let (peers, clients) = text.split_once(',').ok_or("two addresses, separated by a comma")?;
    let parse = |text: &str| text.parse().map_err(|error| format!("`{text}`: {error}"));
    Ok((parse(peers)?, parse(clients)?))
}
