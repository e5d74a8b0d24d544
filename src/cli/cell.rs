//! What can be typed after `tidings cell`.

use super::Remote;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;
use tidings_cell::master::{LONGEST_LEASE, SHORTEST_LEASE};
use tidings_cell::namespace::MAX_LOCK_DELAY;

#[derive(Subcommand)]
pub enum Cell {
    /// List a directory
    #[command(after_help = "Examples:\n  tidings cell ls\n  tidings cell ls -l /app")]
    Ls {
        /// The directory
        #[arg(default_value = "/")]
        path: String,
        /// With lengths, generations and locks
        #[arg(short, long)]
        long: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Print the contents of a file
    #[command(after_help = "Examples:\n  tidings cell cat /app/config\n  tidings cell cat /app/config --json")]
    Cat {
        /// The file
        path: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Write a file, whole; a missing one is made, with the directories above it
    #[command(after_help = "Examples:\n  tidings cell put /app/config @config.toml\n  \
                            tidings cell put /app/config 'new' --if-generation 3\n  \
                            tidings cell put /app/members/a 10.0.0.7:80 --ephemeral --hold")]
    Put {
        /// The file
        path: String,
        /// The contents: text, `-` for standard input, or `@FILE`
        value: String,
        /// Write only if the file's content generation is this
        #[arg(long, value_name = "GENERATION", conflicts_with = "create_only")]
        if_generation: Option<u64>,
        /// Write only if there is no such file yet
        #[arg(long)]
        create_only: bool,
        /// The file goes when this command's session ends: needs --hold
        #[arg(long)]
        ephemeral: bool,
        /// Keep the session, and with it an ephemeral file, until interrupted
        #[arg(long, conflicts_with = "sequencer")]
        hold: bool,
        /// Write only while this lock is held, such as "$TIDINGS_SEQUENCER"; the file must exist
        #[arg(long, value_name = "TOKEN", conflicts_with = "create_only")]
        sequencer: Vec<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Make a directory
    #[command(after_help = "Example:\n  tidings cell mkdir -p /app/members")]
    Mkdir {
        /// The directory
        path: String,
        /// Make the directories above it too, and take one that exists for made
        #[arg(short, long)]
        parents: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Delete a file or an empty directory
    #[command(
        after_help = "Examples:\n  tidings cell rm /app/config --if-generation 4\n  tidings cell rm -r /app --yes"
    )]
    Rm {
        /// What to delete
        path: String,
        /// Everything under it, too, from the leaves up
        #[arg(short, long)]
        recursive: bool,
        /// With --recursive: confirm it
        #[arg(long, requires = "recursive")]
        yes: bool,
        /// Delete only if the content generation is this
        #[arg(long, value_name = "GENERATION", conflicts_with = "recursive")]
        if_generation: Option<u64>,
        /// Delete only while this lock is held
        #[arg(long, value_name = "TOKEN", conflicts_with = "recursive")]
        sequencer: Vec<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show the metadata of a node: counters, checksum, ACLs, lock
    #[command(after_help = "Example:\n  tidings cell stat /app/leader")]
    Stat {
        /// The node
        path: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Print changes of a node as they happen, until interrupted
    #[command(after_help = "Prints the present state first, and goes on when the node is deleted and made again. \
                            Changes that follow quickly on each other may be printed as one; the last is never left \
                            out.\n\n\
                            Examples:\n  tidings cell watch /app/config\n  tidings cell watch /app --json --count 2")]
    Watch {
        /// The file or directory
        path: String,
        /// Stop after so many lines
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Run a command while a lock is held
    #[command(after_help = LOCK_HELP)]
    Lock(Lock),
    /// Stand for election, or say who is elected
    #[command(after_help = ELECT_HELP)]
    Elect(Elect),
    /// List sessions, or end one
    #[command(after_help = "Examples:\n  tidings cell sessions\n  tidings cell sessions end 17")]
    Sessions {
        #[command(subcommand)]
        command: Option<Sessions>,
        #[command(flatten)]
        remote: Remote,
    },
    /// List locks that are held, waited for or held back
    #[command(after_help = "Examples:\n  tidings cell locks\n  tidings cell locks --json")]
    Locks {
        #[command(flatten)]
        remote: Remote,
    },
    /// Who may read, write and change a node
    #[command(subcommand)]
    Acl(Acl),
    /// The replicas of the cell alone; `tidings member` is for whole nodes
    #[command(subcommand)]
    Member(super::member::Member),
    /// Bounds of what a directory may hold
    #[command(subcommand)]
    Quota(Quota),
    /// Save the whole cell into one checksummed file
    #[command(after_help = "Example:\n  tidings cell backup monday.cell")]
    Backup {
        /// The file to write; it must not exist
        file: PathBuf,
        #[command(flatten)]
        remote: Remote,
    },
    /// Load a backup into a cell: ends all sessions and makes all sequencers stale
    #[command(after_help = "Examples:\n  tidings cell restore monday.cell\n  \
                            tidings cell restore monday.cell --replace --yes")]
    Restore {
        /// The file that `backup` wrote
        file: PathBuf,
        /// Replace what the cell holds; without it the cell must be empty
        #[arg(long)]
        replace: bool,
        /// With --replace: confirm it
        #[arg(long, requires = "replace")]
        yes: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Look into a sequencer, or ask whether it is valid
    #[command(subcommand)]
    Sequencer(Sequencer),
}

const LOCK_HELP: &str = "The command finds TIDINGS_SEQUENCER and TIDINGS_LOCK_PATH in its environment. It runs in a \
process group of its own, without a terminal as standard input; when the lock is lost the group is told to stop \
(SIGTERM) and then killed, before anybody else can have the lock. SIGINT and SIGTERM are passed on to it.\n\n\
Deleting the file frees its lock for whoever makes it anew: the group is killed as soon as this command hears of it, \
which may be after another one began.\n\n\
Exit code: the command's own (128 + signal if a signal ended it), 7 if the lock was lost, 4 if --try found it held.\n\n\
Examples:\n  tidings cell lock /app/leader -- ./server\n  tidings cell lock /app/nightly --try -- ./backup.sh";

const ELECT_HELP: &str = "With a command it runs while this candidate is elected, as under `lock`; the winner's name \
is the file's contents. Without one this process is the winner until it is interrupted.\n\n\
Examples:\n  tidings cell elect /app/leader --as node-1 -- ./server\n  tidings cell elect /app/leader --who";

#[derive(Args)]
pub struct Lock {
    /// The file that is locked; a missing one is made
    pub path: String,
    /// Share the lock with others who do
    #[arg(long)]
    pub shared: bool,
    /// Fail at once if somebody holds it
    #[arg(long = "try")]
    pub try_only: bool,
    #[command(flatten)]
    pub holding: Holding,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<String>,
    #[command(flatten)]
    pub remote: Remote,
}

/// How a lock is held.
#[derive(Args, Clone, Copy)]
pub struct Holding {
    /// How long the lock is held back for everybody if it is lost, such as `10s` or `500ms`; at most 60s
    #[arg(long, default_value = "60s", value_name = "DURATION", value_parser = parse_lock_delay)]
    pub lock_delay: Duration,
    /// How long the session lives without contact, from 1s to 60s [default: the cell's, 12s]
    #[arg(long, value_name = "DURATION", value_parser = parse_lease)]
    pub lease: Option<Duration>,
    /// How long the command has between SIGTERM and SIGKILL, at most
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = parse_duration)]
    pub kill_after: Duration,
}

#[derive(Args)]
pub struct Elect {
    /// The file of the election; a missing one is made
    pub path: String,
    /// The name to win under
    #[arg(long = "as", value_name = "NAME", required_unless_present = "who")]
    pub name: Option<String>,
    /// Print who is elected
    #[arg(long, conflicts_with_all = ["name", "command"])]
    pub who: bool,
    #[command(flatten)]
    pub holding: Holding,
    /// The command to run while elected, after `--`
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
    #[command(flatten)]
    pub remote: Remote,
}

#[derive(Subcommand)]
pub enum Sessions {
    /// End a session: its ephemeral files go, its locks are held back for their delays
    #[command(after_help = "Example:\n  tidings cell sessions end 17")]
    End {
        /// The session's number
        id: u64,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Subcommand)]
pub enum Acl {
    /// Show the three ACL names of a node
    #[command(after_help = "Example:\n  tidings cell acl get /app/config")]
    Get {
        /// The node
        path: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Set ACL names; those not given stay
    #[command(after_help = "An ACL name is that of a file under /acl, whose lines are principals: `app:shop` (all \
                            keys), `app:shop/KEYID`, `user:shop/SUBJECT`, `*`. The empty name is everybody of the \
                            application.\n\n\
                            Example:\n  tidings cell put /acl/writers 'app:shop'\n  \
                            tidings cell acl set /app/config --write writers")]
    Set {
        /// The node
        path: String,
        /// Who may read
        #[arg(long, value_name = "NAME")]
        read: Option<String>,
        /// Who may write and lock
        #[arg(long, value_name = "NAME")]
        write: Option<String>,
        /// Who may change the ACL names
        #[arg(long, value_name = "NAME")]
        change: Option<String>,
        /// Set only if the ACL generation is this
        #[arg(long, value_name = "GENERATION")]
        if_generation: Option<u64>,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Subcommand)]
pub enum Quota {
    /// Show the bounds of a directory and what it holds
    #[command(after_help = "Example:\n  tidings cell quota get /app")]
    Get {
        /// The directory
        path: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Set the bounds of a directory; 0 removes one, one not given stays
    #[command(after_help = "Examples:\n  tidings cell quota set /app --nodes 1000 --bytes 10000000\n  \
                            tidings cell quota set /app --nodes 0")]
    Set {
        /// The directory
        path: String,
        /// At most this many nodes under it
        #[arg(long)]
        nodes: Option<u64>,
        /// At most this many bytes of contents under it
        #[arg(long)]
        bytes: Option<u64>,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Subcommand)]
pub enum Sequencer {
    /// Ask the cell whether the lock is still held as the sequencer says; exit code 4 if not
    #[command(after_help = "Example:\n  tidings cell sequencer check \"$TIDINGS_SEQUENCER\"")]
    Check {
        /// The sequencer, `seq1.…`
        token: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Print the cell's public keys: with them sequencers are verified where the cell cannot be asked
    #[command(after_help = "Example:\n  tidings cell sequencer keys > cell.keys")]
    Keys {
        #[command(flatten)]
        remote: Remote,
    },
    /// Show what a sequencer says, without asking anybody; its signature is checked only with --keys
    #[command(after_help = "Examples:\n  tidings cell sequencer show \"$TIDINGS_SEQUENCER\"\n  \
                            tidings cell sequencer show \"$TIDINGS_SEQUENCER\" --keys cell.keys --against \"$NEWEST_SEEN\"")]
    Show {
        /// The sequencer, `seq1.…`
        token: String,
        /// Say whether it is older or newer than this one
        #[arg(long, value_name = "TOKEN")]
        against: Option<String>,
        /// Refuse what the cell of these keys has not signed: a file that `cell sequencer keys` printed
        #[arg(long, value_name = "FILE")]
        keys: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// A duration as people write it: `500ms`, `10s`, `2m`, or a plain number of seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let expected = || {
        let meant = meant(text).map_or(String::new(), |meant| format!("; write {meant}"));
        format!("a duration is a whole number with ms, s or m behind it, such as 500ms, 10s or 2m{meant}")
    };
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| expected())?;
    let milliseconds = match unit {
        "ms" => Some(number),
        "" | "s" => number.checked_mul(1_000),
        "m" => number.checked_mul(60_000),
        _ => None,
    };
    milliseconds.map(Duration::from_millis).ok_or_else(expected)
}

/// Longer ones nobody means: about thirty years.
const LONGEST_MEANT_MS: f64 = 1e12;

/// A duration as it would have been taken, of somebody who typed a fraction, hours or days.
fn meant(text: &str) -> Option<String> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
    let each = match unit {
        "s" => 1_000.0,
        "m" => 60_000.0,
        "h" => 3_600_000.0,
        "d" => 86_400_000.0,
        _ => return None,
    };
    let milliseconds = (number.parse::<f64>().ok()? * each).round();
    match milliseconds as u64 {
        0 => None,
        _ if milliseconds > LONGEST_MEANT_MS => None,
        ms if ms % 60_000 == 0 => Some(format!("{}m", ms / 60_000)),
        ms if ms % 1_000 == 0 => Some(format!("{}s", ms / 1_000)),
        ms => Some(format!("{ms}ms")),
    }
}

/// A lock-delay: the cell keeps no longer one, and a command that trusted in more would outlive its lock (R10).
fn parse_lock_delay(text: &str) -> Result<Duration, String> {
    let delay = parse_duration(text)?;
    match delay > MAX_LOCK_DELAY {
        true => Err(format!("a lock-delay is at most {} s", MAX_LOCK_DELAY.as_secs())),
        false => Ok(delay),
    }
}

/// A lease: the cell would give another one than was asked for.
fn parse_lease(text: &str) -> Result<Duration, String> {
    let lease = parse_duration(text)?;
    match (SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease) {
        true => Ok(lease),
        false => Err(format!(
            "a session's lease is at least {} s and at most {} s",
            SHORTEST_LEASE.as_secs(),
            LONGEST_LEASE.as_secs()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_one_that_the_cell_gives() {
        assert_eq!(parse_lease("60s"), Ok(LONGEST_LEASE));
        assert_eq!(parse_lease("1s"), Ok(SHORTEST_LEASE));
        for other in ["61s", "90s", "2m", "999ms", "0"] {
            assert!(parse_lease(other).unwrap_err().contains("at least 1 s and at most 60 s"), "{other}");
        }
    }

    #[test]
    fn a_lock_delay_is_no_longer_than_the_cell_keeps_it() {
        assert_eq!(parse_lock_delay("60s"), Ok(MAX_LOCK_DELAY));
        assert_eq!(parse_lock_delay("0"), Ok(Duration::ZERO));
        for long in ["60001ms", "61s", "5m"] {
            assert!(parse_lock_delay(long).unwrap_err().contains("at most 60 s"), "{long}");
        }
    }

    #[test]
    fn durations_have_a_unit_or_are_seconds() {
        let ms = |text| parse_duration(text).map(|d| d.as_millis());
        assert_eq!(ms("500ms"), Ok(500));
        assert_eq!(ms("10s"), Ok(10_000));
        assert_eq!(ms("10"), Ok(10_000));
        assert_eq!(ms("2m"), Ok(120_000));
        assert_eq!(ms("0"), Ok(0));
        for wrong in ["", "s", "1h", "-1s", "1.5s", "99999999999999999999s", "18446744073709551615m"] {
            assert!(ms(wrong).unwrap_err().contains("such as 500ms, 10s or 2m"), "{wrong}");
        }
        for (typed, meant) in
            [("2h", "120m"), ("11.5s", "11500ms"), ("0.5m", "30s"), ("1d", "1440m"), ("2.3s", "2300ms")]
        {
            assert!(ms(typed).unwrap_err().ends_with(&format!("; write {meant}")), "{typed}");
        }
        for nothing in ["-1.5s", "0.0s", "1e9d", "soon", "9999999999999999999999h"] {
            assert!(!ms(nothing).unwrap_err().contains("write"), "{nothing}");
        }
    }
}
