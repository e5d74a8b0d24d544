//! The running hash of everything that happened, and the printed trace on demand.

use crate::clock::SimTime;
use crate::kernel::HostId;
use std::collections::VecDeque;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// What kind of event a trace line is. The number is part of the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A message reached its host.
    Deliver = 1,
    /// A message reached a host that was down.
    Lost = 2,
    /// A disk wait ended.
    DiskDone = 3,
    /// A timer woke a process.
    Wake = 4,
    /// A message left its host.
    Send = 5,
    /// The network dropped a message.
    Drop = 6,
    /// A process started.
    Start = 7,
    /// A process ended.
    Stop = 8,
    /// A fault was injected.
    Fault = 9,
    /// A process was paused.
    Pause = 10,
    /// A process went on after a pause.
    Resume = 11,
}

/// How many of the last lines are kept for a failing run.
pub const KEPT_LINES: usize = 400;

/// The trace of one run.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    events: u64,
    printing: Printing,
    lines: VecDeque<String>,
}

/// What becomes of readable lines. The hash is kept in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Printing {
    /// No lines are made: the fast way.
    #[default]
    Off,
    /// The last [`KEPT_LINES`] are kept.
    Keep,
    /// Every line goes to standard error as it happens.
    Print,
}

impl Trace {
    /// An empty trace.
    pub fn new(printing: Printing) -> Trace {
        Trace { hash: 0, events: 0, printing, lines: VecDeque::new() }
    }

    /// Adds one event to the hash; `describe` is called only where lines are wanted.
    pub fn event(&mut self, at: SimTime, kind: Kind, host: HostId, bytes: &[u8], describe: impl FnOnce() -> String) {
        let mut record = [0u8; 24];
        record[..8].copy_from_slice(&at.0.to_le_bytes());
        record[8] = kind as u8;
        record[9..13].copy_from_slice(&host.0.to_le_bytes());
        record[16..].copy_from_slice(&xxh3_64(bytes).to_le_bytes());
        self.hash = xxh3_64_with_seed(&record, self.hash);
        self.events += 1;
        if self.printing != Printing::Off {
            self.line(format!("{at} {kind:?} {host} {}", describe()));
        }
    }

    /// Adds a line that is not part of the hash, such as what a process said of itself.
    pub fn remark(&mut self, at: SimTime, host: HostId, describe: impl FnOnce() -> String) {
        if self.printing != Printing::Off {
            self.line(format!("{at} - {host} {}", describe()));
        }
    }

    fn line(&mut self, line: String) {
        if self.printing == Printing::Print {
            eprintln!("{line}");
        }
        if self.lines.len() == KEPT_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// The hash over everything so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many events went into the hash.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The last lines, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}
