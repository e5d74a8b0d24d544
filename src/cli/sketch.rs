//! What can be typed after `tidings sketch`.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::{AddrParseError, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use tidings_sketch_proxy::parse_prefix;

#[derive(Subcommand)]
pub enum Sketch {
    /// Serve verified pages in front of web servers that serve the same
    #[command(after_help = RUN_HELP)]
    Run(Box<Run>),
    /// Show what a running proxy has counted, and what it thinks of its origins
    #[command(after_help = "Example:\n  tidings sketch stats --admin 127.0.0.1:9090")]
    Stats(Stats),
    /// See how static traffic is, recorded or seen by a running proxy, and what a sketcher gains by it
    #[command(after_help = SURVEY_HELP)]
    Survey(Survey),
}

#[derive(Args)]
pub struct Survey {
    /// A HAR file with content, as browsers save it; several are one record, in this order
    #[arg(long = "har", value_name = "FILE", required_unless_present = "admin")]
    pub hars: Vec<PathBuf>,
    /// Instead, what a running proxy has seen: what it was given as --admin, beside --survey
    #[arg(long, value_name = "ADDR", conflicts_with = "hars")]
    pub admin: Option<SocketAddr>,
    /// Count URLs with at least so many requests
    #[arg(long, default_value_t = 25, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    pub least: u64,
    /// Draw the distributions into this file, in SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const SURVEY_HELP: &str = "Two answers are the same if their bodies are. Access logs hold no bodies and say nothing of that: \
record with a browser (network panel, \"Save all as HAR with content\") or a proxy that writes HAR, or let `sketch run --survey` \
look.\n\n\
Examples:\n  tidings sketch survey --har monday.har --har tuesday.har --svg static.svg\n  \
tidings sketch survey --admin 127.0.0.1:9090 --svg static.svg";

#[derive(Args)]
pub struct Stats {
    /// What the proxy was given as --admin
    #[arg(long, default_value = "127.0.0.1:9090", value_name = "ADDR")]
    pub admin: SocketAddr,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What is behind, and how it is asked: flags of `sketch run`, and keys of the same names in a file of sites.
#[derive(Args)]
pub struct Site {
    /// A server behind it, once for each
    #[arg(long = "origin", value_name = "URL")]
    pub origins: Vec<String>,
    /// A BFT group behind it in place of servers: the file of its members; with --client
    #[arg(long, value_name = "FILE", requires = "client", conflicts_with_all = [
        "origins", "origin_ca", "health_path", "faults", "quorum", "writes_to_one", "unverified_rather_than_none",
        "unverified_above",
    ])]
    pub group: Option<PathBuf>,
    /// A cell behind it in place of servers: nodes of Tidings, separated by commas, from which its files are read
    #[arg(long, value_delimiter = ',', value_name = "URL", conflicts_with_all = [
        "origins", "group", "origin_ca", "health_path", "faults", "quorum", "writes_to_one", "unverified_rather_than_none",
        "unverified_above", "unverified_paths",
    ])]
    pub cell: Vec<String>,
    /// The API key or token for the cell: whoever reaches the proxy reads what it may read
    #[arg(long, env = "TIDINGS_KEY", hide_env_values = true, value_name = "KEY")]
    pub cell_key: Option<String>,
    /// The certificate authority to trust for the nodes of --cell, as a PEM file
    #[arg(long, env = "TIDINGS_CA", value_name = "FILE")]
    pub cell_ca: Option<PathBuf>,
    /// Let clients write the cell's files by PUT and DELETE, too, as far as the key may
    #[arg(long, requires = "cell")]
    pub cell_writes: bool,
    /// The secrets of the group's client that the proxy is; nobody else may use them meanwhile
    #[arg(long, value_name = "FILE", requires = "group")]
    pub client: Option<PathBuf>,
    /// What the group's replicas serve: keys and values, or pages of the web servers beside them
    #[arg(long, value_name = "SERVICE", default_value = "keys", requires = "group")]
    pub service: Behind,
    /// Give clients a cookie with each write, by which they read what they have written
    #[arg(long, conflicts_with = "origins")]
    pub read_your_writes: bool,
    /// The authorities of the certificates of https:// origins, in PEM [default: those of the system]
    #[arg(long, value_name = "FILE")]
    pub origin_ca: Option<PathBuf>,
    /// Check each origin by this path, and leave out those that are down; anything below 400 passes
    #[arg(long, value_name = "PATH")]
    pub health_path: Option<String>,
    /// From one health check to the next, in milliseconds
    #[arg(long, default_value_t = 2_000, value_name = "MS", requires = "health_path", value_parser = clap::value_parser!(u64).range(1..))]
    pub health_interval: u64,
    /// How long an origin has for a health check, in milliseconds
    #[arg(long, default_value_t = 1_000, value_name = "MS", requires = "health_path", value_parser = clap::value_parser!(u64).range(1..))]
    pub health_patience: u64,
    /// So many failed health checks in a row, and an origin is down
    #[arg(long, default_value_t = 3, value_name = "N", requires = "health_path", value_parser = clap::value_parser!(u32).range(1..))]
    pub health_down: u32,
    /// So many passed health checks in a row, and it is up again
    #[arg(long, default_value_t = 2, value_name = "N", requires = "health_path", value_parser = clap::value_parser!(u32).range(1..))]
    pub health_up: u32,
    /// What one client address, or /64 of IPv6, may have put to all origins, by new pages and by cookies: so many reads at once, and
    /// then so many a second; or `any`
    #[arg(long, default_value = "256/50", value_name = "BURST/RATE", value_parser = parse_new_pages)]
    pub new_pages: NewPages,
    /// A file of rules, read again at SIGHUP and when it changes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["unverified_paths", "agreed_paths"])]
    pub rules: Option<PathBuf>,
    /// How many origins may be wrong [default: as many as are fewer than half]
    #[arg(long, value_name = "F")]
    pub faults: Option<u16>,
    /// How many must say the same [default: F + 1]
    #[arg(long, value_name = "Q")]
    pub quorum: Option<u16>,
    /// Send methods other than GET and HEAD to one origin, unverified, instead of refusing them
    #[arg(long)]
    pub writes_to_one: bool,
    /// Where origins do not agree, serve what one of them says and mark it, instead of 502
    #[arg(long)]
    pub unverified_rather_than_none: bool,
    /// Serve what begins with this path from one origin, unverified and marked
    #[arg(long = "unverified-path", value_name = "PREFIX", value_parser = parse_prefix)]
    pub unverified_paths: Vec<String>,
    /// Never serve what begins with this path from one origin
    #[arg(long = "agreed-path", value_name = "PREFIX", value_parser = parse_prefix)]
    pub agreed_paths: Vec<String>,
    /// How many pages to remember, at 31 bytes each
    #[arg(long, default_value_t = 1 << 20, value_name = "N")]
    pub entries: usize,
    /// The longest body of a page, in bytes
    #[arg(long, default_value_t = 1 << 30, value_name = "BYTES")]
    pub longest_body: u64,
    /// The longest body in memory, in bytes: longer ones of pages go to --spool, of requests are refused
    #[arg(long, default_value_t = 1 << 20, value_name = "BYTES")]
    pub memory_body: usize,
    /// Let pages with longer bodies pass unverified, and mark them
    #[arg(long, value_name = "BYTES")]
    pub unverified_above: Option<u64>,
    /// The directory for bodies that are too long for memory [default: the system's for temporary files]
    #[arg(long, value_name = "DIR")]
    pub spool: Option<PathBuf>,
    /// How long one origin has for a page before all are asked, in milliseconds
    #[arg(long, default_value_t = 1_000, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub patience: u64,
    /// How long all origins have, in milliseconds
    #[arg(long, default_value_t = 10_000, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub give_up: u64,
}

/// A site of a file, its keys as flags.
#[derive(Parser)]
#[command(name = "site", no_binary_name = true, disable_help_flag = true)]
pub struct InFile {
    #[command(flatten)]
    pub site: Site,
}

/// What a file of sites says for each of them. (Not what the environment may say, too: that is of all sites.)
const OF_A_SITE: [&str; 28] = [
    "origins",
    "group",
    "cell",
    "cell_writes",
    "client",
    "service",
    "read_your_writes",
    "origin_ca",
    "health_path",
    "health_interval",
    "health_patience",
    "health_down",
    "health_up",
    "new_pages",
    "rules",
    "faults",
    "quorum",
    "writes_to_one",
    "unverified_rather_than_none",
    "unverified_paths",
    "agreed_paths",
    "entries",
    "longest_body",
    "memory_body",
    "unverified_above",
    "spool",
    "patience",
    "give_up",
];

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    pub site: Site,
    /// A file of several sites, each for hosts of its own and with the flags above as its keys
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_A_SITE)]
    pub sites: Option<PathBuf>,
    /// The address to listen on; `:PORT` is every IPv4 address of this machine, `[::]:PORT` the others, too
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR", value_parser = parse_listen)]
    pub listen: SocketAddr,
    /// Serve clients by TLS with this chain of certificates, in PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// Tell metrics and statistics here, on an address of this machine alone
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<SocketAddr>,
    /// Note how static pages are, for `sketch survey --admin`; takes up to 64 MiB
    #[arg(long, requires = "admin")]
    pub survey: bool,
    /// Threads that serve clients, each with connections to origins of its own; as many as there are cores by default
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// Remember as one with other proxies: nodes of Tidings, any of which will do, that divide the pages among them; with
    /// --core-listen and --core-secret
    #[arg(long, value_delimiter = ',', value_name = "URL")]
    pub core: Vec<String>,
    /// Where other proxies of the core are heard; not encrypted, so on a network of their own
    #[arg(long, value_name = "ADDR", requires = "core")]
    pub core_listen: Option<SocketAddr>,
    /// A file with the secret of the core, 32 bytes or more, the same for all of its proxies
    #[arg(long, value_name = "FILE", requires = "core")]
    pub core_secret: Option<PathBuf>,
    /// Where other proxies reach this one [default: what --core-listen says]
    #[arg(long, value_name = "HOST:PORT", requires = "core")]
    pub core_address: Option<String>,
    /// The namespace of placement that the core is; made if it is not there
    #[arg(long, default_value = "sketches", value_name = "NAME", requires = "core")]
    pub core_namespace: String,
    /// The API key or token for the nodes of --core
    #[arg(long, env = "TIDINGS_KEY", hide_env_values = true, value_name = "KEY")]
    pub core_key: Option<String>,
    /// The certificate authority to trust for the nodes of --core, as a PEM file
    #[arg(long, env = "TIDINGS_CA", value_name = "FILE")]
    pub core_ca: Option<PathBuf>,
    /// What to log on standard error; requests are `access`
    #[arg(long, env = "TIDINGS_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
}

const RUN_HELP: &str = "A page is served once a quorum of origins has agreed on it, and from then on from any one of them \
whose page is the same. The header Tidings-Verified says how: agreed, fast, or no.\n\n\
Before a BFT group (`tidings bft`) reads of a key never go back: none is older than one that ended before it began. Writes are \
ordered, and --read-your-writes lets clients see their own.\n\n\
Before a cell its files are pages: a remembered one is read from any member, and everything else from the master. Reads of one file \
never go back here, either.\n\n\
With --sites one proxy stands before several sites, each with its own servers, group or cell: `[[site]]` with a name, hosts, and the \
flags above as keys (`origin = [\"http://10.0.0.1\", …]`, `writes_to_one = true`).\n\n\
With --core several proxies before the same sites remember as one: each page at one of them, whichever is asked. Make their \
secret with `head -c 32 /dev/urandom > core.secret`.\n\n\
Examples:\n  tidings sketch run --origin http://10.0.0.1 --origin http://10.0.0.2 --origin http://10.0.0.3 --listen :8080\n  \
tidings sketch run --group town/group.toml --client town/client-1.toml --read-your-writes --listen :8080\n  \
tidings sketch run --cell http://10.0.0.1:7400,http://10.0.0.2:7400,http://10.0.0.3:7400 --listen :8080\n  \
tidings sketch run --origin http://10.0.0.1 --listen :8080 --core http://10.0.0.9:7400 --core-secret core.secret \
--core-listen 10.0.1.1:7500";

/// What a group's replicas serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Behind {
    /// Keys and values: /KEY by GET, PUT and DELETE
    Keys,
    /// Pages of a web server beside each replica (`bft run --origin`)
    Pages,
}

/// What one client address may cause in pages that nothing is remembered of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewPages {
    Any,
    Limited { burst: u32, a_second: u32 },
}

fn parse_new_pages(text: &str) -> Result<NewPages, String> {
    let expected = || format!("expected a number at once and one a second such as 256/50, or `any`, got `{text}`");
    if text == "any" {
        return Ok(NewPages::Any);
    }
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
    let (burst, a_second) = text.split_once('/').ok_or_else(expected)?;
    let (burst, a_second) = number(burst).zip(number(a_second)).ok_or_else(expected)?;
    Ok(NewPages::Limited { burst, a_second })
}

fn parse_listen(text: &str) -> Result<SocketAddr, AddrParseError> {
    match text.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}").parse(),
        None => text.parse(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// A flag that is missing there would be passed over beside `--sites`.
    #[test]
    fn all_that_a_file_of_sites_says_cannot_be_typed_beside_it() {
        let command = InFile::command();
        let flags = command.get_arguments().map(|argument| argument.get_id().as_str());
        let of_files: Vec<&str> = flags.filter(|flag| !["cell_key", "cell_ca"].contains(flag)).collect();
        assert_eq!(of_files, OF_A_SITE);
    }
}
