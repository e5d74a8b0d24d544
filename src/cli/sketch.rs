//! What can be typed after `tidings sketch`.

use clap::{Args, Subcommand};
use std::net::{AddrParseError, SocketAddr};

#[derive(Subcommand)]
pub enum Sketch {
    /// Serve verified pages in front of web servers that serve the same
    #[command(after_help = RUN_HELP)]
    Run(Run),
}

#[derive(Args)]
pub struct Run {
    /// A server behind it, once for each
    #[arg(long = "origin", value_name = "URL", required = true)]
    pub origins: Vec<String>,
    /// The address to listen on; without a host, all of this machine's
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR", value_parser = parse_listen)]
    pub listen: SocketAddr,
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
    #[arg(long = "unverified-path", value_name = "PREFIX")]
    pub unverified_paths: Vec<String>,
    /// Never serve what begins with this path from one origin
    #[arg(long = "agreed-path", value_name = "PREFIX")]
    pub agreed_paths: Vec<String>,
    /// How many pages to remember, at 31 bytes each
    #[arg(long, default_value_t = 1 << 20, value_name = "N")]
    pub entries: usize,
    /// The longest body, of requests and of pages, in bytes
    #[arg(long, default_value_t = 1 << 20, value_name = "BYTES")]
    pub longest_body: usize,
    /// What to log on standard error; requests are `access`
    #[arg(long, env = "TIDINGS_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
}

const RUN_HELP: &str = "A page is served once a quorum of origins has agreed on it, and from then on from any one of them \
whose page is the same. The header Tidings-Verified says how: agreed, fast, or no.\n\n\
Example:\n  tidings sketch run --origin http://10.0.0.1 --origin http://10.0.0.2 --origin http://10.0.0.3 --listen :8080";

fn parse_listen(text: &str) -> Result<SocketAddr, AddrParseError> {
    match text.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}").parse(),
        None => text.parse(),
    }
}
