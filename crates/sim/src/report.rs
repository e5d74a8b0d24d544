//! What a run says of itself, in the form that `tidings sim --json` prints.

use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The outcome of one seed or, merged, of many.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The scenario.
    pub scenario: String,
    /// How many seeds were run.
    pub seeds_run: u64,
    /// The first and the last of them.
    pub seeds: Option<(u64, u64)>,
    /// Virtual time, all seeds together, in seconds.
    pub simulated_seconds: f64,
    /// Operations that clients began.
    pub operations: u64,
    /// Operations that were answered with what they asked for.
    pub answered: u64,
    /// Events that the kernel let happen.
    pub events: u64,
    /// Injected faults by kind. Single messages that the network dropped, duplicated, delayed or let overtake count as
    /// `message_…` and are not part of [`Report::fault_count`].
    pub faults: BTreeMap<String, u64>,
    /// How many worlds there were of each number of replicas, where seeds decide that.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub replicas: BTreeMap<usize, u64>,
    /// How often each invariant was checked.
    pub invariants: BTreeMap<String, u64>,
    /// The running hash over every event of every seed, in the order of seeds.
    pub trace_hash: String,
    /// What was found.
    pub failures: Vec<Failure>,
}

/// A broken invariant and how to see it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The first invariant that was broken.
    pub invariant: String,
    /// How.
    pub message: String,
    /// When, in virtual seconds with microseconds.
    pub at: String,
    /// The command that replays it.
    pub replay: String,
    /// The last lines of the trace, if they were kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trace: Vec<String>,
}

impl Report {
    /// Whether nothing was found and something was run.
    pub fn is_green(&self) -> bool {
        self.failures.is_empty() && self.seeds_run > 0
    }

    /// How many faults were injected, single messages aside.
    pub fn fault_count(&self) -> u64 {
        self.faults.iter().filter(|(kind, _)| !kind.starts_with("message_")).map(|(_, count)| count).sum()
    }

    /// Virtual time, all seeds together.
    pub fn simulated(&self) -> Duration {
        Duration::from_secs_f64(self.simulated_seconds)
    }

    /// Adds the report of the next seed.
    pub fn merge(&mut self, next: Report) {
        if self.seeds_run == 0 {
            *self = next;
            return;
        }
        self.seeds_run += next.seeds_run;
        self.seeds = match (self.seeds, next.seeds) {
            (Some((first, _)), Some((_, last))) => Some((first, last)),
            (known, other) => known.or(other),
        };
        self.simulated_seconds += next.simulated_seconds;
        self.operations += next.operations;
        self.answered += next.answered;
        self.events += next.events;
        for (kind, count) in next.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        for (replicas, count) in next.replicas {
            *self.replicas.entry(replicas).or_default() += count;
        }
        for (name, count) in next.invariants {
            *self.invariants.entry(name).or_default() += count;
        }
        let hash = |hex: &str| u64::from_str_radix(hex, 16).unwrap_or(0);
        let merged = xxh3_64_with_seed(&hash(&next.trace_hash).to_le_bytes(), hash(&self.trace_hash));
        self.trace_hash = format!("{merged:016x}");
        self.failures.extend(next.failures);
    }
}
