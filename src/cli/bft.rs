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
    /// Give a replica that lost its journal of votes another key, in the next life of the group
    #[command(after_help = REKEY_HELP)]
    Rekey(Rekey),
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

const REKEY_HELP: &str = "A replica that lost its journal counts as a liar until it has another key. First all replicas are run with \
--closing, until `bft status` shows one height for all: then nothing is written any more, and all hold the same. This \
makes a group.toml for the next life, which begins with that, and a folder for the replica. Everybody is stopped, and \
started with the new file; the other folders, and clients' files, stay what they are. Who lies of its height is left out \
by --without.\n\n\
Example:\n  tidings bft rekey town-2 --replica 3 --secret backup/secret.toml --from town/replica-0 \
--group town/group.toml --client town/client-1.toml";

#[derive(Args)]
pub struct Rekey {
    /// The folder to make
    pub dir: PathBuf,
    /// Which replica
    #[arg(long, value_name = "N")]
    pub replica: u16,
    /// Its `secret.toml`: it goes on answering clients by what it shares with them
    #[arg(long, value_name = "FILE")]
    pub secret: PathBuf,
    /// The folder of a replica that runs with --closing
    #[arg(long, value_name = "DIR")]
    pub from: PathBuf,
    /// A replica that lies, by its number: what it says of itself does not count. At most f, once for each
    #[arg(long, value_name = "N")]
    pub without: Vec<u16>,
    #[command(flatten)]
    pub asks: Asks,
}

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
    /// Batches that are kept behind the latest snapshot, for replicas that were away; 768 at least. Whoever was away for longer
    /// takes a state over
    #[arg(long, default_value_t = 32_768, value_name = "N", value_parser = clap::value_parser!(u64).range(768..))]
    pub keep_batches: u64,
    /// Have no part in commands any more, and come to rest at the next snapshot: for `bft rekey`
    #[arg(long)]
    pub closing: bool,
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

/// How something is read.
#[derive(Args)]
pub struct Way {
    /// In the order of writes, even if enough replicas agree without that
    #[arg(long)]
    pub ordered: bool,
    /// By what replicas remember of earlier reads, so that one of them executes it (D-Prophecy); in the order if they do not
    #[arg(long, conflicts_with = "ordered")]
    pub remembered: bool,
    /// With --remembered: only if all replicas remember the same, and not 2f + 1 of them
    #[arg(long, requires = "remembered")]
    pub strict: bool,
}

#[derive(Args)]
pub struct Get {
    /// The key
    pub key: String,
    #[command(flatten)]
    pub way: Way,
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
    #[command(flatten)]
    pub way: Way,
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
