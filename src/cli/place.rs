//! What can be typed after `tidings place`.

use super::Remote;
use super::cell::parse_duration;
use clap::{Args, Subcommand, ValueEnum};
use std::time::Duration;

#[derive(Subcommand)]
pub enum Place {
    /// List namespaces
    #[command(after_help = "Example:\n  tidings place namespaces")]
    Namespaces {
        #[command(flatten)]
        remote: Remote,
    },
    /// Make a namespace, for one pool of servers
    #[command(after_help = CREATE_HELP)]
    Create(Create),
    /// Delete a namespace: its owners stop when their leases end
    #[command(after_help = "Example:\n  tidings place delete counters --yes")]
    Delete {
        /// The namespace
        namespace: String,
        /// Confirm it
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show the table: which range is whose, under which lease
    #[command(
        after_help = "Examples:\n  tidings place table counters\n  tidings place table counters --owner server-1"
    )]
    Table {
        /// The namespace
        namespace: String,
        /// Only what this owner holds
        #[arg(long, value_name = "OWNER")]
        owner: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show owners: their share of the ring, their load, how long their leases last
    #[command(after_help = "Example:\n  tidings place owners counters")]
    Owners {
        /// The namespace
        namespace: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Say who owns keys
    #[command(after_help = LOOKUP_HELP)]
    Lookup {
        /// The namespace
        namespace: String,
        /// The keys
        #[arg(required = true)]
        keys: Vec<String>,
        /// Go on, and print every change and every loss until interrupted
        #[arg(long)]
        watch: bool,
        /// With --watch: stop after so many lines
        #[arg(long, value_name = "N", requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Print changes of the table and losses of state as they happen, until interrupted
    #[command(after_help = "Examples:\n  tidings place watch counters\n  tidings place watch counters --count 3")]
    Watch {
        /// The namespace
        namespace: String,
        /// Stop after so many lines
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Have everything of an owner moved to the others
    #[command(after_help = "Owners that can hand over their state do so; what is left at the end of the namespace's \
                            drain time is lost, and lookups are told. With --wait, a loss is a failure \
                            (exit code 1) unless --allow-loss is given.\n\n\
                            Examples:\n  tidings place drain counters server-1 --wait\n  \
                            tidings place drain counters server-1 --cancel")]
    Drain {
        /// The namespace
        namespace: String,
        /// The owner
        owner: String,
        /// Take it back into service instead
        #[arg(long)]
        cancel: bool,
        /// Wait until it holds nothing, for as long as it takes
        #[arg(long, conflicts_with = "cancel")]
        wait: bool,
        /// With --wait: lost state is no failure, as with owners that hand nothing over
        #[arg(long, requires = "wait")]
        allow_loss: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Let the namespace's policy spread the measured load now
    #[command(
        after_help = "Examples:\n  tidings place rebalance counters --dry-run\n  tidings place rebalance counters"
    )]
    Rebalance {
        /// The namespace
        namespace: String,
        /// Only print what would be done
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        remote: Remote,
    },
}

const CREATE_HELP: &str = "Leases must outlast a fail-over of the managers; 12s with renewals every 2.5s (--fast) is \
the shortest that is known to.\n\n\
Examples:\n  tidings place create counters --fast\n  tidings place create sessions --lease 60s --policy paper";

const LOOKUP_HELP: &str = "An answer is a hint: the owner itself checks, and refuses what it does not own.\n\n\
Exit code: 3 if nobody owns one of the keys at the moment; the others are printed all the same.\n\n\
Examples:\n  tidings place lookup counters alice bob\n  tidings place lookup counters alice --watch";

#[derive(Args)]
pub struct Create {
    /// The namespace
    pub namespace: String,
    /// How long an owner may use a lease without renewing it, at most 60m [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub lease: Option<Duration>,
    /// How often owners renew, every 100ms at most [default: a quarter of the lease]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub renew: Option<Duration>,
    /// For fast fail-over: leases of 12s, renewed every 2.5s
    #[arg(long, conflicts_with_all = ["lease", "renew"])]
    pub fast: bool,
    /// How load is spread
    #[arg(long, value_enum, default_value = "hottest")]
    pub policy: Policy,
    /// How often the policy looks at the measured load, every 1s to 1440m [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub rebalance_every: Option<Duration>,
    /// Points on the ring that an owner begins with, 1 to 1024 [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub virtual_nodes: Option<u32>,
    /// How long a drain may take before what is left is lost, 1s to 1440m [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub drain: Option<Duration>,
    #[command(flatten)]
    pub remote: Remote,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// Split and move the measured hottest ranges
    Hottest,
    /// The paper's: owners above or below the mean give or take points of the ring
    Paper,
    /// Leave it to the ring
    None,
}

impl Policy {
    pub fn name(self) -> &'static str {
        match self {
            Policy::Hottest => "hottest",
            Policy::Paper => "paper",
            Policy::None => "none",
        }
    }
}
