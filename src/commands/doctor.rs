//! `tidings doctor`: looks at everything a server will need, and says what to do about what is wrong.

mod certificates;
mod data;
mod members;

use super::serve::configured;
use super::{probe, runtime};
use crate::cli::Doctor;
use crate::output::{self, Hue};
use crate::stopwatch;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_node::Config;
use tidings_node::auth::Trust;
use tidings_node::port::tidings_at;

/// Below this a full disk is near.
const LITTLE_SPACE: u64 = 1 << 30;
/// Above this, durable writes one after the other feel slow.
const SLOW_SYNC: Duration = Duration::from_millis(20);
/// Below this a server runs out of connections before its own limit.
const FEW_FILES: u64 = 4_096;
/// How long whoever has our port may take to say that it is a Tidings.
const NEIGHBOUR: Duration = Duration::from_secs(2);
/// 2025-01-01: a clock before this has never been set.
const CLOCK_FLOOR_MICROS: u64 = 1_735_689_600_000_000;

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Ok,
    Warning,
    Failed,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub state: State,
    pub message: String,
    pub hint: String,
}

impl Check {
    fn ok(name: &'static str, message: impl Into<String>) -> Check {
        Check { name, state: State::Ok, message: message.into(), hint: String::new() }
    }

    fn warning(name: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Check {
        Check { name, state: State::Warning, message: message.into(), hint: hint.into() }
    }

    fn failed(name: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Check {
        Check { name, state: State::Failed, message: message.into(), hint: hint.into() }
    }

    fn from_error(name: &'static str, error: Error) -> Check {
        // What has no hint of its own is what the operating system said about a file.
        let hint =
            if error.hint.is_empty() { "Look at the disk and at who owns the file." } else { error.hint.as_str() };
        Check::failed(name, error.to_string(), hint)
    }
}

/// Looks at everything; fails if anything would keep a server from running well.
pub fn run(args: Doctor) -> Result<(), Error> {
    let mut checks = vec![version(), clock(), open_files()];
    match configured(args.config.as_deref(), args.data.as_deref(), args.listen, false) {
        Err(error) => checks.push(Check::from_error("configuration", error)),
        Ok(config) => {
            checks.push(configuration(args.config.as_deref()));
            checks.extend(disk(&config.data));
            checks.push(port(config.listen));
            checks.extend(certificates::check(&config));
            checks.push(trust(&config));
            checks.extend(data::check(&config));
            checks.extend(members::check(&config));
        }
    }
    let failed = checks.iter().filter(|check| check.state == State::Failed).count();
    if args.json {
        output::json(&serde_json::json!({ "healthy": failed == 0, "checks": checks }));
    } else {
        print(&checks);
    }
    match failed {
        0 => Ok(()),
        n => Err(Error::new("doctor.unwell", Class::Failed, format!("{n} of {} checks failed", checks.len()))
            .hint("Each failed check above says what to do.")),
    }
}

fn print(checks: &[Check]) {
    for Check { name, state, message, hint } in checks {
        let (hue, mark) = match state {
            State::Ok => (Hue::Good, "ok     "),
            State::Warning => (Hue::Doubtful, "warning"),
            State::Failed => (Hue::Bad, "FAILED "),
        };
        output::marked(hue, mark, format_args!("  {name}: {message}"));
        if !hint.is_empty() {
            output::line(format_args!("         {hint}"));
        }
    }
}

fn version() -> Check {
    let build = if cfg!(debug_assertions) { "unoptimised build" } else { "optimised build" };
    Check::ok("version", format!("tidings {} ({build})", env!("CARGO_PKG_VERSION")))
}

fn configuration(file: Option<&Path>) -> Check {
    let what = file.map_or("none: one node on loopback, embedded storage".to_owned(), |file| {
        format!("{} is good", file.display())
    });
    Check::ok("configuration", what)
}

fn trust(config: &Config) -> Check {
    match (Trust::load(config), config.auth.is_configured()) {
        (Err(error), _) => Check::from_error("authentication", error),
        (Ok(_), true) => Check::ok("authentication", "its keys are there"),
        (Ok(_), false) => Check::ok("authentication", "none configured: whoever reaches it is the operator"),
    }
}

fn clock() -> Check {
    if stopwatch::wall_micros() < CLOCK_FLOOR_MICROS {
        return Check::failed("clock", "the wall clock is years behind", "Set it, and let NTP or PTP keep it.");
    }
    let seconds = |id| clock_gettime(id).tv_sec;
    let asleep = seconds(ClockId::Boottime) - seconds(ClockId::Monotonic);
    Check::ok("clock", format!("the wall clock is plausible; boot time counts suspend ({asleep} s so far)"))
}

fn open_files() -> Check {
    match probe::raise_open_files() {
        n if n < FEW_FILES => Check::warning(
            "open files",
            format!("this user may open {n} files, fewer than the connections a server may hold"),
            "Raise it with `ulimit -n` or LimitNOFILE= of the service.",
        ),
        n => Check::ok("open files", format!("up to {n}")),
    }
}

fn disk(data: &Path) -> Vec<Check> {
    let place = existing_part(data);
    let (space, system, sync) = (probe::free_bytes(&place), probe::file_system(&place), probe::fsync_p50(&place));
    let space = match space {
        Err(error) => Check::from_error("disk space", error),
        Ok(free) if free < LITTLE_SPACE => Check::failed(
            "disk space",
            format!("{} MiB are free under {}", free >> 20, place.display()),
            "Free some space or name another directory with --data DIR.",
        ),
        Ok(free) => Check::ok("disk space", format!("{} GiB are free under {}", free >> 30, place.display())),
    };
    let system = match system {
        Err(error) => Check::from_error("file system", error),
        Ok(kind) if probe::forgets_at_power_loss(kind) => Check::warning(
            "file system",
            format!("{} is on {kind}, which forgets at power loss", place.display()),
            "Fine for trying things; name a directory on a disk with --data DIR for anything else.",
        ),
        Ok(kind) => Check::ok("file system", kind),
    };
    let sync = match sync {
        Err(error) => Check::failed(
            "disk",
            error.to_string(),
            "Make the directory writable for this user, or name another with --data DIR.",
        ),
        Ok(p50) if p50 > SLOW_SYNC => Check::warning(
            "disk",
            format!("a write is durable after {} ms (p50 of fsync)", p50.as_millis()),
            "Many writers at once still share each fsync; one writer alone waits this long each time.",
        ),
        Ok(p50) => Check::ok("disk", format!("a write is durable after {} µs (p50 of fsync)", p50.as_micros())),
    };
    vec![space, system, sync]
}

/// The data directory, or, before the first start, the nearest directory above it that exists.
fn existing_part(data: &Path) -> PathBuf {
    let exists = data.ancestors().find(|path| path.is_dir());
    exists.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

fn port(listen: SocketAddr) -> Check {
    let Err(error) = TcpListener::bind(listen) else { return Check::ok("port", format!("{listen} is free")) };
    let answering = runtime().map(|runtime| runtime.block_on(tidings_at(listen, NEIGHBOUR)));
    match answering {
        Ok(Some(url)) => Check::ok("port", format!("a Tidings server answers on {url}")),
        _ => Check::failed(
            "port",
            format!("cannot listen on {listen}: {error}"),
            format!("`ss -ltnp 'sport = :{}'` shows who does; or choose another with --listen ADDR.", listen.port()),
        ),
    }
}
