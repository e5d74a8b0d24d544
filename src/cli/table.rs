//! What can be typed after `tidings table`.

use super::Remote;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum Table {
    /// Make a table
    #[command(after_help = CREATE_HELP)]
    Create {
        /// Its name
        table: String,
        #[command(flatten)]
        properties: Properties,
        /// The column by whose value records are placed, for good: it holds text, or whole numbers with `:int`
        #[arg(long, value_name = "COLUMN[:KIND]")]
        partition_by: Option<String>,
        /// Cut it into partitions before this key, or before this value of its partition column; may be given several times
        #[arg(long, value_name = "KEY")]
        cut: Vec<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Change a table's properties: what is not said stays as it is
    #[command(after_help = "Example:\n  tidings table alter prices --max-records 100000 --if-generation 2")]
    Alter {
        /// The table
        table: String,
        #[command(flatten)]
        properties: Properties,
        /// Only if it has this generation (see `stat`)
        #[arg(long, value_name = "GENERATION", default_value_t = 0)]
        if_generation: u64,
        #[command(flatten)]
        remote: Remote,
    },
    /// Drop a table with everything in it
    #[command(after_help = "Example:\n  tidings table drop prices --yes")]
    Drop {
        /// The table
        table: String,
        /// Confirm it
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show or change who may do what with a table
    #[command(after_help = ACL_HELP)]
    Acl {
        /// The table
        table: String,
        #[command(flatten)]
        changes: Access,
        #[command(flatten)]
        remote: Remote,
    },
    /// List tables
    #[command(after_help = "Example:\n  tidings table ls")]
    Ls {
        #[command(flatten)]
        remote: Remote,
    },
    /// Show a table: its properties, its partitions, and what was asked of them since their owners serve them
    #[command(after_help = "Example:\n  tidings table stat prices")]
    Stat {
        /// The table
        table: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// List the live queries of a table, whichever nodes their clients are connected to: for whoever administers it
    #[command(after_help = QUERIES_HELP)]
    Queries {
        /// The table
        table: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show how all nodes fare with tables: for operators
    #[command(after_help = LOAD_HELP)]
    Load {
        #[command(flatten)]
        remote: Remote,
    },
    /// Cut the partition that holds a key before that key
    #[command(after_help = "Example:\n  tidings table split prices m")]
    Split {
        /// The table
        table: String,
        /// The key
        #[arg(id = "at", value_name = "KEY")]
        key: String,
        #[command(flatten)]
        within: Within,
        #[command(flatten)]
        remote: Remote,
    },
    /// Join the partition that holds a key with the one behind it
    #[command(after_help = "Example:\n  tidings table merge prices a")]
    Merge {
        /// The table
        table: String,
        /// The key
        #[arg(id = "at", value_name = "KEY")]
        key: String,
        #[command(flatten)]
        within: Within,
        #[command(flatten)]
        remote: Remote,
    },
    /// Write a whole record
    #[command(after_help = PUT_HELP)]
    Put {
        #[command(flatten)]
        record: Keyed,
        /// Its columns, a JSON object: text, `-` for standard input, or `@FILE`
        #[arg(id = "columns", value_name = "JSON")]
        json: String,
        /// Whom it is shown to: a predicate over `reader` and `user`
        #[arg(long, value_name = "PREDICATE")]
        audience: Option<String>,
        #[command(flatten)]
        condition: Condition,
        #[command(flatten)]
        remote: Remote,
    },
    /// Set some columns of a record and keep the others
    #[command(after_help = "Example:\n  tidings table patch prices apple '{\"price\": 4}' --remove fresh")]
    Patch {
        #[command(flatten)]
        record: Keyed,
        /// The columns, a JSON object: text, `-` for standard input, or `@FILE`
        #[arg(id = "columns", value_name = "JSON")]
        json: String,
        /// Take this column away; may be given several times
        #[arg(long, value_name = "COLUMN")]
        remove: Vec<String>,
        #[command(flatten)]
        condition: Condition,
        #[command(flatten)]
        remote: Remote,
    },
    /// Delete a record
    #[command(after_help = "Example:\n  tidings table rm prices apple --if-version 3")]
    Rm {
        #[command(flatten)]
        record: Keyed,
        #[command(flatten)]
        condition: Condition,
        #[command(flatten)]
        remote: Remote,
    },
    /// Print a record
    #[command(after_help = "Examples:\n  tidings table get prices apple\n  tidings table get visits ann --in Rome")]
    Get {
        #[command(flatten)]
        record: Keyed,
        /// What writers' predicates see as `reader`: a JSON object
        #[arg(long, value_name = "JSON")]
        context: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Print the records that a predicate selects
    #[command(alias = "query", after_help = READ_HELP)]
    Read(Box<Read>),
    /// Print what enters, changes in and leaves the answer of a query, until interrupted
    #[command(after_help = WATCH_HELP)]
    Watch(Box<Watch>),
    /// Print all records, a line each
    #[command(after_help = "Examples:\n  tidings table export prices > prices.ndjson\n  \
                            tidings table export prices 'price < 5' --format csv")]
    Export {
        /// The table
        table: String,
        /// Which records
        #[arg(default_value = "")]
        predicate: String,
        #[command(flatten)]
        within: Within,
        /// How to print them
        #[arg(long, value_enum, default_value_t = Format::Ndjson)]
        format: Format,
        /// Print also whom each record is shown to: for the table's own application and operators
        #[arg(long, conflicts_with = "format")]
        audiences: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Write a record for each line of a file
    #[command(after_help = "Examples:\n  tidings table import prices prices.ndjson\n  \
                            tidings table import prices prices.csv")]
    Import {
        /// The table
        table: String,
        /// The file, or `-` for standard input
        file: PathBuf,
        /// How it is written [default: as its name ends, or ndjson]
        #[arg(long, value_enum)]
        format: Option<Format>,
        /// Whom the records are shown to that do not say so themselves
        #[arg(long, value_name = "PREDICATE")]
        audience: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
}

const CREATE_HELP: &str = "A column is declared as NAME:KIND, or NAME:KIND! if every record has it; kinds are null, bool, \
int, double, string, bytes, list and map.\n\n\
A table that is partitioned by a column has a key for each value of it: `--in VALUE` says which is meant.\n\n\
Examples:\n  tidings table create prices\n  tidings table create notes --level user --column text:string!\n  \
tidings table create posts --may-write \"old == null || writer == 'user:shop/' + user.sub\"\n  \
tidings table create visits --partition-by city --cut M";

const ACL_HELP: &str = "WHO is `*`, app:APPLICATION/KEY or user:APPLICATION/SUBJECT, with `*` in the last place for all of \
them, or `nobody`, callers without a credential, whom `*` does not mean; RIGHTS are read, write and administer, separated by commas, or all. The first change makes a list: what it does not allow \
is denied, but to the table's own application and to operators. A denial counts more than any permission.\n\n\
Examples:\n  tidings table acl notes --allow 'user:shop/*=read' --allow user:shop/ann=read,write\n  \
tidings table acl notes --deny user:shop/bob=all\n  tidings table acl notes --off";

const QUERIES_HELP: &str = "SILENT of the partitions that a query hears have not answered, or have to be asked again. UNTAKEN \
are events that its client has not taken, and their bytes.\n\n\
Examples:\n  tidings table queries prices\n  tidings table queries prices --json";

const LOAD_HELP: &str = "What is counted begins with each node's start.\n\n\
Examples:\n  tidings table load\n  tidings table load --json";

const PUT_HELP: &str = "Examples:\n  tidings table put prices apple '{\"price\": 3, \"fresh\": true}'\n  \
tidings table put notes n1 @note.json --audience 'user.sub == \"ann\"' --if-version 0\n  \
tidings table put visits ann '{\"city\": \"Rome\", \"days\": 3}'";

const READ_HELP: &str = "Examples:\n  tidings table read prices 'price < 5'\n  \
tidings table read prices --order -price --limit 3\n  tidings table read prices --from a --before c\n  tidings table read prices --group-by fresh --aggregate n=count";

const WATCH_HELP: &str = "With --json, one object a line: {\"event\": \"reset\" | \"put\" | \"leave\" | \"rows\" | \
\"settling\", …}. Servers may restart meanwhile.\n\n\
With projections, an order, a limit or aggregates all rows are printed whenever some have changed, after a line `* rows`.\n\n\
Examples:\n  tidings table watch prices 'price < 5'\n  tidings table watch prices --order price --limit 3\n  \
tidings table watch prices --group-by fresh --aggregate n=count";

#[derive(Args)]
pub struct Properties {
    /// Who may use it: whoever is authorised at this level or higher [default: app]
    #[arg(long, value_enum)]
    pub level: Option<Level>,
    /// A predicate over `old`, `new`, `writer` (of the old record: `user:APPLICATION/SUBJECT`, or an application), `key` and
    /// `user` that guards every change; empty = none
    #[arg(long, value_name = "PREDICATE")]
    pub may_write: Option<String>,
    /// Declare what a column holds; may be given several times; those declared before are replaced
    #[arg(long, value_name = "NAME:KIND[!]")]
    pub column: Vec<String>,
    /// Allow no columns but the declared ones
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub closed: Option<bool>,
    /// Clients may leave writes unsent
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub lossy: Option<bool>,
    /// How many copies there are of its records: `cluster`, all members have them
    #[arg(long, value_name = "COPIES")]
    pub replication: Option<String>,
    /// The most records of a partition; 0 = no bound
    #[arg(long)]
    pub max_records: Option<u64>,
    /// The most bytes of a partition; 0 = no bound
    #[arg(long)]
    pub max_bytes: Option<u64>,
    /// How long a deleted record's version is kept, in seconds; 0 = a day
    #[arg(long, value_name = "SECONDS")]
    pub tombstones: Option<u64>,
}

#[derive(Args)]
pub struct Access {
    /// Allow rights to somebody; may be given several times
    #[arg(long, value_name = "WHO=RIGHTS")]
    pub allow: Vec<String>,
    /// Deny rights to somebody; may be given several times
    #[arg(long, value_name = "WHO=RIGHTS")]
    pub deny: Vec<String>,
    /// Take back everything that is said of somebody; may be given several times
    #[arg(long, value_name = "WHO")]
    pub remove: Vec<String>,
    /// Take the list away: the table's level alone decides
    #[arg(long, conflicts_with_all = ["allow", "deny", "remove"])]
    pub off: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    Public,
    App,
    User,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Ndjson,
    Csv,
}

#[derive(Args)]
pub struct Keyed {
    /// The table
    pub table: String,
    /// The record's key
    #[arg(id = "record", value_name = "KEY")]
    pub key: String,
    /// The key is bytes, in hexadecimal
    #[arg(long)]
    pub hex: bool,
    #[command(flatten)]
    pub within: Within,
}

#[derive(Args)]
pub struct Within {
    /// The value of the table's partition column, if it has one
    #[arg(long = "in", value_name = "VALUE", allow_hyphen_values = true)]
    pub value: Option<String>,
}

#[derive(Args)]
pub struct Condition {
    /// Only if the record has this version; 0 = only if there is none
    #[arg(long, value_name = "VERSION")]
    pub if_version: Option<u64>,
    /// What records' predicates see as `reader`: a JSON object. Only what is shown to it can be patched
    #[arg(long, value_name = "JSON")]
    pub context: Option<String>,
    /// The name of this write, by which it has its effect once however often it is repeated, and is waited for by readers:
    /// 32 random hexadecimal digits for whoever writes, and a number from 1
    #[arg(long, value_name = "NETID/SEQ[/ACKED[/AFTER]]")]
    pub operation: Option<String>,
}

#[derive(Args)]
pub struct Answer {
    /// A column of the answer: NAME=EXPRESSION, or a column's name; may be given several times
    #[arg(long, value_name = "NAME=EXPRESSION")]
    pub project: Vec<String>,
    /// What comes first: an expression, `-` before it for the largest first; may be given several times
    #[arg(long, value_name = "EXPRESSION", allow_hyphen_values = true)]
    pub order: Vec<String>,
    /// At most so many rows
    #[arg(long)]
    pub limit: Option<usize>,
    /// What makes a group: NAME=EXPRESSION, or a column's name
    #[arg(long, value_name = "NAME=EXPRESSION")]
    pub group_by: Vec<String>,
    /// An aggregate: NAME=count, or NAME=sum|min|max|avg:EXPRESSION
    #[arg(long, value_name = "NAME=HOW[:EXPRESSION]")]
    pub aggregate: Vec<String>,
}

#[derive(Args)]
pub struct Read {
    /// The table
    pub table: String,
    /// Which records; all that are visible if left out
    #[arg(default_value = "")]
    pub predicate: String,
    #[command(flatten)]
    pub within: Within,
    /// Only keys from here on
    #[arg(long, value_name = "KEY")]
    pub from: Option<String>,
    /// Only keys before this one
    #[arg(long, value_name = "KEY")]
    pub before: Option<String>,
    /// What writers' predicates see as `reader`: a JSON object
    #[arg(long, value_name = "JSON")]
    pub context: Option<String>,
    #[command(flatten)]
    pub answer: Answer,
    /// A record of another table for each, by its key: other expressions name it NAME, as in `NAME.price`
    #[arg(long, value_name = "NAME=TABLE:EXPRESSION")]
    pub lookup: Option<String>,
    /// Any committed state that is not older than what was read before, rather than the latest
    #[arg(long)]
    pub committed: bool,
    /// The same, and whatever this caller has not sent yet: a command has nothing of that kind
    #[arg(long, conflicts_with = "committed")]
    pub uncommitted: bool,
    /// The same, once this write has its outcome (see `--operation`); may be given several times
    #[arg(long, value_name = "NETID/SEQ/KEY", conflicts_with_all = ["committed", "uncommitted"])]
    pub pending: Vec<String>,
    #[command(flatten)]
    pub remote: Remote,
}

#[derive(Args)]
pub struct Watch {
    /// The table
    pub table: String,
    /// Which records; all that are visible if left out
    #[arg(default_value = "")]
    pub predicate: String,
    #[command(flatten)]
    pub within: Within,
    /// What writers' predicates see as `reader`: a JSON object
    #[arg(long, value_name = "JSON")]
    pub context: Option<String>,
    #[command(flatten)]
    pub answer: Answer,
    /// Tell nothing of what is there already
    #[arg(long)]
    pub new: bool,
    /// Leave out of the first rows what was written before, in microseconds since 1970 (as `time_us` of a record)
    #[arg(long, value_name = "TIME_US", default_value_t = 0)]
    pub newer_than: u64,
    /// Stop after so many lines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    #[command(flatten)]
    pub remote: Remote,
}
