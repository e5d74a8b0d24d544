//! What can be typed. Names are stable: scripts depend on them.

pub mod bench;
pub mod bft;
pub mod cell;
#[cfg(test)]
mod examples;
pub mod member;
pub mod notify;
pub mod place;
pub mod sketch;
pub mod table;
mod typed;

pub use typed::{Typed, parse, quoted};

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use tidings_store::delivery::MAX_WAIT;

/// Keeps every copy of shared data fresh, on servers and on devices, and lets you know that it is.
#[derive(Parser)]
#[command(
    name = "tidings",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 refused, 5 unreachable, 6 outcome unknown, \
                  7 lock lost."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run one node, or a member of a cluster
    #[command(after_help = "Examples:\n  tidings serve\n  \
                            tidings serve --data /var/lib/tidings --listen 127.0.0.1:7400\n  \
                            tidings serve --config node-1/node.toml --found")]
    Serve(Serve),
    /// Show nodes, leaders and problems on one screen; exit code 1 if there are problems
    #[command(after_help = "Examples:\n  tidings status\n  \
                            tidings status --server https://10.0.0.1:7400 --ca ca.pem --json")]
    Status(Remote),
    /// Check configuration, clock, disk, port, certificates and data; say what to do
    #[command(after_help = "Examples:\n  tidings doctor\n  tidings doctor --config node-1/node.toml")]
    Doctor(Doctor),
    /// Make a certificate authority, node certificates, configuration and the first operator key
    #[command(after_help = "Examples:\n  \
                            tidings init cluster --node 10.0.0.1:7400 --node 10.0.0.2:7400 --node 10.0.0.3:7400\n  \
                            tidings init cluster --add 4=10.0.0.4:7400")]
    Init(Init),
    /// The members of the cluster: add, remove and replace whole nodes
    #[command(subcommand, after_help = MEMBER_HELP)]
    Member(member::Member),
    /// Applications and their API keys
    #[command(subcommand)]
    App(App),
    /// Small files, locks and elections
    #[command(subcommand)]
    Cell(cell::Cell),
    /// Runs the command of `cell lock`, and ends it when its time is up
    #[command(hide = true)]
    CellGuard(CellGuard),
    /// Who owns which key: pools of servers, their leases and hand-overs
    #[command(subcommand)]
    Place(place::Place),
    /// Tell clients of the latest versions of objects
    #[command(subcommand)]
    Notify(notify::Notify),
    /// Records with keys and columns: read, write, query and watch them
    #[command(subcommand)]
    Table(table::Table),
    /// Verified reads from servers that may be wrong
    #[command(subcommand)]
    Sketch(sketch::Sketch),
    /// A group of replicas of which some may lie
    #[command(subcommand)]
    Bft(bft::Bft),
    /// Rows of the store
    #[command(subcommand)]
    Store(Store),
    /// Topics of the feed
    #[command(subcommand)]
    Feed(Feed),
    /// Simulate a cluster under faults, decided by a seed
    #[command(after_help = "Examples:\n  tidings sim cell --seed 7\n  tidings sim all --seeds 1..200 --minutes 10")]
    Sim(Sim),
    /// Measure, and report with the machine
    #[command(after_help = "Examples:\n  tidings bench cell --quick\n  \
                            tidings bench store wire --dir /var/tmp --out report.json")]
    Bench(Bench),
    /// Serve from memory, without a store: what `bench wire` measures against
    #[command(hide = true)]
    BenchServer(Serve),
    /// Serve with a slow disk or rows that fail: what `bench notify` measures against
    #[command(hide = true)]
    BenchNode(bench::BenchNode),
    /// Many clients of Notify in one process: what nodes are killed under
    #[command(hide = true)]
    BenchCrowd(bench::BenchCrowd),
    /// Print completions for a shell
    #[command(after_help = "Example:\n  tidings completions zsh > _tidings")]
    Completions {
        /// The shell to complete for
        shell: clap_complete::Shell,
    },
}

const MEMBER_HELP: &str = "A member is in two groups, the cell's and that of store and feed; these commands change both, \
and can be run again when they were broken off.\n\n\
Examples:\n  tidings member list\n  tidings member add 4 10.0.0.4:7400\n  tidings member replace 2 4 10.0.0.4:7400";

/// An address to listen on: of an interface, so that nobody has to look up a name.
fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected an IP address and a port, such as 127.0.0.1:7400 or [::1]:7400".to_owned())
}

/// Where the server is and who asks.
#[derive(Args, Clone)]
pub struct Remote {
    /// The server, or several separated by commas
    #[arg(
        long,
        env = "TIDINGS_SERVER",
        default_value = "http://127.0.0.1:7400",
        value_delimiter = ',',
        value_name = "URL"
    )]
    pub server: Vec<String>,
    /// The API key or token to present
    #[arg(long, env = "TIDINGS_KEY", hide_env_values = true)]
    pub key: Option<String>,
    /// For operators: act in this application rather than in `default`
    #[arg(long, value_name = "NAME")]
    pub app: Option<String>,
    /// The certificate authority to trust, as a PEM file
    #[arg(long, env = "TIDINGS_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// How long to wait for an answer, in seconds
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Serve {
    /// The data directory [default: ./tidings-data]
    #[arg(long, env = "TIDINGS_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The address to listen on [default: 127.0.0.1:7400]
    #[arg(long, env = "TIDINGS_LISTEN", value_name = "ADDR", value_parser = parse_listen)]
    pub listen: Option<SocketAddr>,
    /// A configuration file; flags win over it
    #[arg(long, env = "TIDINGS_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Listen beyond loopback although TLS or authentication is missing
    #[arg(long)]
    pub insecure_listen: bool,
    /// Found a new cluster of several members: once, at the first start of each
    #[arg(long, conflicts_with = "join")]
    pub found: bool,
    /// Join a running cluster that will add this node: once, at its first start
    #[arg(long)]
    pub join: bool,
    /// A node of the cluster to ask where to send requests while this node is no member; may be repeated
    #[arg(long, value_name = "HOST:PORT")]
    pub contact: Vec<String>,
    /// How to write the log, on standard error [default: text]
    #[arg(long, env = "TIDINGS_LOG_FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,
    /// What to log, such as `info` or `tidings_node=debug` [default: info; warn at a terminal]
    #[arg(long, env = "TIDINGS_LOG", value_name = "FILTER")]
    pub log: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Args)]
pub struct Doctor {
    /// The data directory to check [default: ./tidings-data]
    #[arg(long, env = "TIDINGS_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The address that `serve` would listen on [default: 127.0.0.1:7400]
    #[arg(long, env = "TIDINGS_LISTEN", value_name = "ADDR", value_parser = parse_listen)]
    pub listen: Option<SocketAddr>,
    /// The configuration file to check
    #[arg(long, env = "TIDINGS_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Init {
    /// The directory to make; it must not hold anything yet, except with --add
    pub dir: PathBuf,
    /// The address of a node, once for each; the first becomes node 1
    #[arg(long = "node", value_name = "HOST:PORT", default_value = "127.0.0.1:7400")]
    pub nodes: Vec<String>,
    /// Make the folder of one more node, signed by the authority that is in DIR already
    #[arg(long, value_name = "N=HOST:PORT", value_parser = parse_numbered, conflicts_with = "nodes")]
    pub add: Option<(u64, String)>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum App {
    /// Create an application and print its first key, once
    #[command(after_help = "Example:\n  tidings app create shop")]
    Create {
        /// The application's name
        name: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// List an application's keys; make or revoke one
    #[command(after_help = "Examples:\n  tidings app keys shop\n  \
                            tidings app keys shop --new\n  \
                            tidings app keys shop --revoke 0123456789abcdef")]
    Keys {
        /// The application's name
        name: String,
        /// Make a further key and print it, once
        #[arg(long, conflicts_with = "revoke")]
        new: bool,
        /// Revoke the key of this id
        #[arg(long, value_name = "ID")]
        revoke: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// List the applications that were created here
    ///
    /// `default`, which callers without a name use, and those whose keys stand in the nodes' configuration are not among them.
    #[command(after_help = "Example:\n  tidings app ls --json")]
    Ls {
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Subcommand)]
pub enum Store {
    /// Write one cell, or delete it
    #[command(after_help = "Examples:\n  tidings store put greetings hello text 'good news'\n  \
                            tidings store put greetings hello text --delete")]
    Put {
        /// The group of rows
        group: String,
        /// The row
        row: String,
        /// The column
        column: String,
        /// The value: text, `-` for standard input, or `@FILE`
        #[arg(required_unless_present = "delete")]
        value: Option<String>,
        /// Delete the cell
        #[arg(long, conflicts_with = "value")]
        delete: bool,
        /// The cell's timestamp [default: the wall clock in microseconds]
        #[arg(long)]
        timestamp: Option<u64>,
        /// Write only if the column's newest timestamp is this (0 = there is no cell)
        #[arg(long, value_name = "TIMESTAMP")]
        if_timestamp: Option<u64>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Print the cells of one row
    #[command(after_help = "Example:\n  tidings store get greetings hello")]
    Get {
        /// The group of rows
        group: String,
        /// The row
        row: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Print the rows of a group, in order
    #[command(after_help = "Examples:\n  tidings store scan greetings\n  \
                            tidings store scan greetings --start a --end n --limit 10")]
    Scan {
        /// The group of rows
        group: String,
        /// The first row
        #[arg(long, default_value = "")]
        start: String,
        /// The row to stop before
        #[arg(long, default_value = "")]
        end: String,
        /// At most this many rows; it says if more follow
        #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show the store's incarnation; raise it after a loss
    #[command(after_help = "Examples:\n  tidings store incarnation\n  tidings store incarnation --raise --yes")]
    Incarnation {
        /// Raise it: whatever was learnt under an earlier one is out of date then, everywhere
        #[arg(long)]
        raise: bool,
        /// Confirm the raise
        #[arg(long, requires = "raise")]
        yes: bool,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Subcommand)]
pub enum Feed {
    /// Append entries to a topic; answered when they are durable
    #[command(after_help = "Example:\n  tidings feed append orders 'one more' @order.json")]
    Append {
        /// The topic
        topic: String,
        /// The entries: text, `-` for standard input, or `@FILE`
        #[arg(required = true)]
        entries: Vec<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Receive entries on behalf of a consumer group and acknowledge them
    #[command(after_help = "Example:\n  tidings feed consume orders --group billing --limit 10")]
    Consume {
        /// The topic
        topic: String,
        /// The consumer group
        #[arg(long, default_value = "default")]
        group: String,
        /// At most this many entries
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// How long to wait for the first entry, in milliseconds, at most 60000; --timeout comes on top
        #[arg(long, default_value_t = 1_000, value_name = "MS", value_parser = wait_range())]
        wait_ms: u32,
        /// Leave the entries unacknowledged: they will be delivered again
        #[arg(long)]
        no_ack: bool,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Args)]
pub struct Sim {
    /// A scenario, or `all`
    pub scenario: String,
    /// The one seed to run
    #[arg(long, conflicts_with = "seeds")]
    pub seed: Option<u64>,
    /// The seeds to run, both ends included
    #[arg(long, value_name = "A..B", value_parser = parse_seeds)]
    pub seeds: Option<(u64, u64)>,
    /// Stop after this many minutes of real time, at a seed's end
    #[arg(long)]
    pub minutes: Option<f64>,
    /// The minutes that each seed simulates faults for; a replay needs the same [default: 2 to 20, by scenario]
    #[arg(long, value_name = "MINUTES")]
    pub length: Option<f64>,
    /// Print every event as it happens, on standard error
    #[arg(long)]
    pub trace: bool,
    /// Switch on a known bug, to see that it is found
    #[arg(long, hide = true)]
    pub mutant: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct CellGuard {
    /// Where deadlines come from: an inherited pipe
    #[arg(long)]
    pub control: PathBuf,
    /// Tell errors as JSON
    #[arg(long)]
    pub json: bool,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    pub command: Vec<std::ffi::OsString>,
}

#[derive(Args)]
pub struct Bench {
    /// What to measure
    #[arg(required = true, value_enum)]
    pub parts: Vec<BenchPart>,
    /// Shorter runs and smaller sizes: a smoke test, not a measurement
    #[arg(long)]
    pub quick: bool,
    /// Of `placement`, only the restarts of a pool: of so many owners
    #[arg(long, value_name = "N")]
    pub owners: Option<usize>,
    /// Of `placement`, only the restarts of a pool: of so many lookups
    #[arg(long, value_name = "N")]
    pub lookups: Option<usize>,
    /// Over how many seconds `placement` restarts a pool's owners, and then its lookups [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub over: Option<f64>,
    /// Another program to measure beside ours, with the same load; it must be installed (scripts/peers)
    #[arg(long = "peer", value_enum, value_name = "NAME")]
    pub peers: Vec<BenchPeer>,
    /// The directory for benchmark data; durable benches refuse memory-backed ones
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write the JSON to a file too
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum BenchPart {
    Store,
    Wire,
    Cell,
    Placement,
    Tables,
    Notify,
    Sketch,
    Bft,
}

/// Programs that `bench` knows how to put under its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum BenchPeer {
    /// Beside `sketch`: a proxy that verifies nothing
    Haproxy,
}

impl BenchPart {
    pub fn name(self) -> &'static str {
        match self {
            BenchPart::Store => "store",
            BenchPart::Wire => "wire",
            BenchPart::Cell => "cell",
            BenchPart::Placement => "placement",
            BenchPart::Tables => "tables",
            BenchPart::Notify => "notify",
            BenchPart::Sketch => "sketch",
            BenchPart::Bft => "bft",
        }
    }
}

fn parse_numbered(text: &str) -> Result<(u64, String), String> {
    let expected = || format!("expected a number and an address such as 4=10.0.0.4:7400, got `{text}`");
    let (number, address) = text.split_once('=').ok_or_else(expected)?;
    let number = number.parse().ok().filter(|number| *number > 0).ok_or_else(expected)?;
    Ok((number, address.to_owned()))
}

/// As long as the feed holds a consumer.
fn wait_range() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(..=MAX_WAIT.as_millis() as i64)
}

fn parse_seeds(text: &str) -> Result<(u64, u64), String> {
    let expected = || format!("expected two numbers such as 1..200, got `{text}`");
    let (first, last) = text.split_once("..").ok_or_else(expected)?;
    let last = last.strip_prefix('=').unwrap_or(last);
    let (first, last) = (first.parse().map_err(|_| expected())?, last.parse().map_err(|_| expected())?);
    if first > last {
        return Err(format!("{first}..{last} holds no seed"));
    }
    Ok((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn what_can_be_typed_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn seeds_are_two_numbers_with_both_ends_included() {
        assert_eq!(parse_seeds("1..200"), Ok((1, 200)));
        assert_eq!(parse_seeds("7..=7"), Ok((7, 7)));
        for wrong in ["", "5", "5..", "..5", "a..b", "9..8", "-1..3"] {
            assert!(parse_seeds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_further_node_has_a_number_and_an_address() {
        assert_eq!(parse_numbered("4=[::1]:7400"), Ok((4, "[::1]:7400".into())));
        for wrong in ["", "4", "10.0.0.4:7400", "0=a:1", "x=a:1"] {
            assert!(parse_numbered(wrong).is_err(), "{wrong}");
        }
    }
}
