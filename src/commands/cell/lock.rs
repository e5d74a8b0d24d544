//! `tidings cell lock` and `elect`: something that runs only while a lock is held.

use super::connect::{FAREWELL, make_parents, open_making_parents, staying};
use super::supervise::{self, Ended, Environment, Guarded, Held};
use crate::cli::Remote;
use crate::cli::cell::{Elect, Holding, Lock as Args};
use crate::commands::signals::Signals;
use crate::output;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;
use tidings_base::{Class, Error, Mono};
use tidings_cell::error;
use tidings_client::cell::{Cell, Election, Handle, Leadership, Lock, Mode, SessionEvent, SessionOptions};

/// The lock was lost while the command ran.
const LOCK_LOST: u8 = 7;

/// Runs a command while a lock is held.
pub fn lock(args: &Args) -> Result<ExitCode, Error> {
    if let Some(lease) = args.holding.lease {
        long_enough(lease, args.holding)?;
    }
    staying(&args.remote, options(args.holding), async |cell| {
        long_enough(cell.lease(), args.holding)?;
        let mut signals = Signals::listen()?;
        let path = &args.path;
        let (_handle, lock) = tokio::select! {
            biased;
            told = signals.next() => return Ok(told.exit_code()),
            taken = take(cell, args) => taken?,
        };
        let told = tokio::spawn(tell_jeopardy(cell.clone()));
        let mut held = OfLock { cell, lock: &lock };
        let environment = environment(path, lock.sequencer().to_string());
        let guarded = guarded(&args.command, environment, args.holding, args.remote.json);
        let ended = guarded.run(&mut held, &mut signals).await;
        told.abort();
        released(path, ended?, lock.release(), args.remote.json).await
    })
}

/// Opens the file and waits for its lock, unless it is only to be tried.
async fn take(cell: &Cell, args: &Args) -> Result<(Handle, Lock), Error> {
    let path = &args.path;
    let open = || cell.open(path).lock().create_file("").lock_delay(args.holding.lock_delay);
    let handle = open_making_parents(cell, path, open).await.map_err(|error| no_lock(path, error))?;
    let mode = if args.shared { Mode::Shared } else { Mode::Exclusive };
    let lock = match handle.try_acquire(mode).await? {
        Some(lock) => lock,
        None if args.try_only => return Err(error::lock_held(path, false)),
        None => {
            output::note(format_args!("waiting for the lock of {path}"));
            handle.acquire(mode).await?
        }
    };
    Ok((handle, lock))
}

/// A directory has no lock that a command could run under.
fn no_lock(path: &str, error: Error) -> Error {
    match error.code.as_ref() {
        "cell.is_a_directory" => {
            let file = format!("{}/lock", path.trim_end_matches('/'));
            error.hint(format!("A lock is a file: name one of its own, such as `tidings cell lock {file} -- CMD`."))
        }
        _ => error,
    }
}

/// Nor can anybody be elected at one.
fn no_election(path: &str, error: Error) -> Error {
    match error.code.as_ref() {
        "cell.is_a_directory" => {
            let file = format!("{}/leader", path.trim_end_matches('/'));
            error.hint(format!(
                "An election is a file: name one of its own, such as `tidings cell elect {file} --as NAME`."
            ))
        }
        _ => error,
    }
}

/// Stands for election, or says who is elected.
pub fn elect(args: &Elect) -> Result<ExitCode, Error> {
    let Some(name) = args.name.as_deref().filter(|_| !args.who) else { return who(&args.path, &args.remote) };
    let runs = !args.command.is_empty();
    if let Some(lease) = args.holding.lease.filter(|_| runs) {
        long_enough(lease, args.holding)?;
    }
    staying(&args.remote, options(args.holding), async |cell| {
        if runs {
            long_enough(cell.lease(), args.holding)?;
        }
        let mut signals = Signals::listen()?;
        let leadership = tokio::select! {
            biased;
            told = signals.next() => return Ok(told.exit_code()),
            elected = campaign(cell, name, &args.path) => elected?,
        };
        let sequencer = leadership.sequencer().to_string();
        if !runs {
            if args.remote.json {
                let generation = leadership.generation();
                output::json(&json!({ "elected": name, "generation": generation, "sequencer": sequencer }));
            } else {
                output::line(format_args!("{name} is elected"));
            }
            return hold(leadership, signals, &args.path, args.remote.json).await;
        }
        let told = tokio::spawn(tell_jeopardy(cell.clone()));
        let mut held = OfLeadership { cell, leadership: &leadership };
        let environment = environment(&args.path, sequencer);
        let guarded = guarded(&args.command, environment, args.holding, args.remote.json);
        let ended = guarded.run(&mut held, &mut signals).await;
        told.abort();
        released(&args.path, ended?, leadership.resign(), args.remote.json).await
    })
}

async fn campaign(cell: &Cell, name: &str, path: &str) -> Result<Leadership, Error> {
    let election = Election::new(cell, path);
    if let Some(leader) = election.leader().await.map_err(|error| no_election(path, error))? {
        output::note(format_args!("waiting: {} is elected", leader.identity));
    }
    let elected = match election.campaign(name).await {
        Err(error) if error.code == "cell.no_parent" => {
            make_parents(cell, path).await?;
            election.campaign(name).await
        }
        elected => elected,
    };
    elected.map_err(|error| no_election(path, error))
}

/// Without a command, this process is the winner for as long as it runs.
async fn hold(leadership: Leadership, mut signals: Signals, path: &str, json: bool) -> Result<ExitCode, Error> {
    tokio::select! {
        _ = signals.next() => {
            leadership.resign().await?;
            Ok(ExitCode::SUCCESS)
        }
        why = leadership.lost() => Ok(ended_as(path, Ended::Lost(why.message), json)),
    }
}

fn who(path: &str, remote: &Remote) -> Result<ExitCode, Error> {
    let leader = super::connect::looking(remote, async |cell| Election::new(cell, path).leader().await)?;
    let Some(leader) = leader else {
        return Err(Error::new("cell.nobody", Class::NotFound, format!("nobody is elected at {path}"))
            .hint("`tidings cell elect PATH --as NAME` stands for election."));
    };
    if remote.json {
        output::json(&json!({ "elected": leader.identity, "generation": leader.generation }));
    } else {
        output::line(leader.identity);
    }
    Ok(ExitCode::SUCCESS)
}

fn options(holding: Holding) -> SessionOptions {
    let lease = holding.lease.unwrap_or_default();
    SessionOptions { lease, lock_delay: Some(holding.lock_delay), ..SessionOptions::default() }
}

/// Refuses a lease under which a command would be ended between two KeepAlives, though nothing is wrong.
fn long_enough(lease: Duration, holding: Holding) -> Result<(), Error> {
    let Holding { lock_delay, kill_after, .. } = holding;
    let shortest = supervise::tether(lock_delay, kill_after).shortest_lease();
    if lease >= shortest {
        return Ok(());
    }
    let (lease, delay) = (lease.as_secs_f64(), lock_delay.as_secs_f64());
    let message = format!(
        "a lease of {lease} s is too short for a command under a lock-delay of {delay} s: it would be ended between two \
         KeepAlives, though nothing is wrong"
    );
    let typed = match shortest.as_millis() {
        ms if ms.is_multiple_of(1_000) => format!("{}s", ms / 1_000),
        ms => format!("{ms}ms"),
    };
    let hint = format!("Ask for --lease {typed} or more, or for a longer --lock-delay.");
    Err(Error::new("cell.lease_too_short", Class::Invalid, message).hint(hint))
}

fn environment(path: &str, sequencer: String) -> Environment {
    vec![("TIDINGS_SEQUENCER", sequencer), ("TIDINGS_LOCK_PATH", path.to_owned())]
}

fn guarded(command: &[String], environment: Environment, holding: Holding, json: bool) -> Guarded<'_> {
    Guarded { command, environment, tether: supervise::tether(holding.lock_delay, holding.kill_after), json }
}

fn ended_as(path: &str, ended: Ended, json: bool) -> ExitCode {
    match ended {
        Ended::Exited(code) => ExitCode::from(code),
        Ended::Lost(why) => {
            let message = format!("the lock of {path} was lost: {why}");
            let error = Error::new("cell.lock_lost", Class::Refused, message)
                .hint("The command has ended; run it again to wait for the lock anew.");
            output::tell(&error, json);
            ExitCode::from(LOCK_LOST)
        }
    }
}

/// The command has ended either way; a lock that cannot be released in time is freed with the session.
async fn released(
    path: &str,
    ended: Ended,
    release: impl Future<Output = Result<(), Error>>,
    json: bool,
) -> Result<ExitCode, Error> {
    if let Ended::Exited(_) = ended {
        let released = tokio::time::timeout(FAREWELL, release).await;
        let late = || Err(Error::new("cell.not_released", Class::OutcomeUnknown, "the lock was not released in time"));
        if let Err(error) = released.unwrap_or_else(|_| late()) {
            let message = format!("the lock of {path} was not released: {}", error.message);
            let hint = "Nothing needs to be done: it is freed when the session's lease ends, at the latest.";
            output::tell(&Error { message, ..error }.hint(hint), json);
        }
    }
    Ok(ended_as(path, ended, json))
}

/// Says when nobody knows whether the lock is held.
async fn tell_jeopardy(cell: Cell) {
    let mut events = cell.events();
    drop(cell);
    while let Some(event) = events.next().await {
        match event {
            SessionEvent::Jeopardy => eprintln!("the cell is out of reach; the command goes on while the lock is safe"),
            SessionEvent::Safe { survived, .. } if !survived.is_empty() => {
                eprintln!("the cell is back, and the lock is held")
            }
            SessionEvent::Safe { .. } => eprintln!("the cell is back"),
            SessionEvent::Expired | SessionEvent::Closed => return,
        }
    }
}

struct OfLock<'a> {
    cell: &'a Cell,
    lock: &'a Lock,
}

impl Held for OfLock<'_> {
    fn lease_until(&self) -> Option<Mono> {
        self.cell.lease_until()
    }

    async fn lost(&mut self) -> Error {
        self.lock.lost().await
    }
}

struct OfLeadership<'a> {
    cell: &'a Cell,
    leadership: &'a Leadership,
}

impl Held for OfLeadership<'_> {
    fn lease_until(&self) -> Option<Mono> {
        self.cell.lease_until()
    }

    async fn lost(&mut self) -> Error {
        self.leadership.lost().await
    }
}
