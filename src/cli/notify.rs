//! What can be typed after `tidings notify`.

use super::Remote;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum Notify {
    /// Say that an object has a new version
    #[command(after_help = PUBLISH_HELP)]
    Publish(Publish),
    /// Print the latest versions of objects as they come, until interrupted
    #[command(after_help = WATCH_HELP)]
    Watch(Watch),
    /// Print how long each notification of an object took, stage by stage, until interrupted
    #[command(after_help = "Examples:\n  tidings notify trace shop prices\n  tidings notify trace shop prices --log")]
    Trace {
        /// The application
        application: String,
        /// The object
        object: String,
        /// Print the latest ones that nodes remember, with what was ignored, and end
        #[arg(long)]
        log: bool,
        /// Stop after so many lines
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
        #[command(flatten)]
        remote: Remote,
    },
    /// List clients, online or not: how much each has registered and not acknowledged
    #[command(after_help = "Example:\n  tidings notify clients shop --limit 10")]
    Clients {
        /// The application
        application: String,
        /// At most so many
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        #[command(flatten)]
        remote: Remote,
    },
    /// List objects: their versions, and how many have registered them
    #[command(after_help = "Examples:\n  tidings notify objects shop\n  tidings notify objects shop prices")]
    Objects {
        /// The application
        application: String,
        /// Only this one
        object: Option<String>,
        /// At most so many
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        #[command(flatten)]
        remote: Remote,
    },
    /// Forget all versions of an application, such as after its backend was restored: its clients fetch
    #[command(after_help = "Example:\n  tidings notify reset shop --yes")]
    Reset {
        /// The application
        application: String,
        /// Confirm it
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Make a new key for the tokens of clients; the oldest of three is retired, and clients that have its tokens start anew
    #[command(after_help = "Example:\n  tidings notify rotate-keys")]
    RotateKeys {
        #[command(flatten)]
        remote: Remote,
    },
    /// Forget everything that Notify keeps, of all applications: all clients register again and fetch
    #[command(after_help = "Example:\n  tidings notify wipe --yes")]
    Wipe {
        /// Confirm it
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        remote: Remote,
    },
}

const PUBLISH_HELP: &str = "It is durable when this returns. Versions grow; publishing one twice is as good as once, and \
an earlier one than before is ignored. A line of a file is {\"object\": \"prices\", \"version\": 42}.\n\n\
Examples:\n  tidings notify publish shop prices 42\n  tidings notify publish shop prices now --payload @prices.json\n  \
tidings notify publish shop --from versions.ndjson";

const WATCH_HELP: &str = "With --json, one object a line: {\"app\", \"object\", \"version\" (null = unknown: fetch), \
\"payload\"?}. Servers may restart meanwhile.\n\n\
Examples:\n  tidings notify watch shop prices stock --json\n  tidings notify watch shop prices --state ~/.prices";

#[derive(Args)]
pub struct Publish {
    /// The application
    pub application: String,
    /// The object
    #[arg(required_unless_present = "from", requires = "version")]
    pub object: Option<String>,
    /// Its version, or `now` for microseconds since 1970
    #[arg(allow_negative_numbers = true)]
    pub version: Option<String>,
    /// Publish many: a file with one {"object", "version", "source"?, "payload"?} a line, or `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["object", "payload"])]
    pub from: Option<PathBuf>,
    /// What rides along: text, `-` for standard input, or `@FILE`
    #[arg(long, value_name = "CONTENT")]
    pub payload: Option<String>,
    /// The installation that made it, which need not be told
    #[arg(long, value_name = "ID", default_value = "")]
    pub source: String,
    #[command(flatten)]
    pub remote: Remote,
}

#[derive(Args)]
pub struct Watch {
    /// The application
    pub application: String,
    /// The objects
    #[arg(required = true)]
    pub objects: Vec<String>,
    /// Keep this client's identity in a file: a later run goes on where this one ended
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// This installation: what it makes itself it is not told
    #[arg(long, value_name = "ID", default_value = "")]
    pub source: String,
    /// Stop after so many lines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    #[command(flatten)]
    pub remote: Remote,
}
