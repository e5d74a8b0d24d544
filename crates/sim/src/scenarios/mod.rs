//! Scenarios: who runs where, what clients do, which claims must hold.
//!
//! A scenario composes the machines of its part into processes, starts them in a world, lets [`Chaos`](crate::faults)
//! loose for a while, heals everything, and looks whether the service came back.

pub mod cell;
pub mod member;
pub mod notify;
pub mod placement;
pub mod post;
pub mod sketch;
pub mod stage;
pub mod store;
pub mod tables;
pub mod wire;

use crate::report::Report;
use crate::runner::Options;

/// A scenario by name.
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it simulates, in a sentence.
    pub about: &'static str,
    /// The minutes for which a seed simulates faults unless somebody says otherwise: fewer where a minute costs more, so that
    /// two hundred seeds of everything are a matter of half an hour.
    pub minutes: u64,
    run: fn(u64, &Options) -> Report,
}

impl Scenario {
    /// Runs one seed.
    pub fn run(&self, seed: u64, options: &Options) -> Report {
        (self.run)(seed, options)
    }
}

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "wire",
        about: "Connections: sessions over a simulated carrier, long requests and answers, farewells, faults.",
        minutes: 20,
        run: wire::run,
    },
    Scenario {
        name: "store",
        about: "Store and feed on the agreed log: 1, 3 or 5 replicas, clients, consumers, faults.",
        minutes: 20,
        run: store::run,
    },
    Scenario {
        name: "cell",
        about: "The cell: 1, 3 or 5 replicas, sessions with caches, locks, watches and ephemerals, faults.",
        minutes: 10,
        run: cell::run,
    },
    Scenario {
        name: "cell-directed",
        about: "The cell under aimed faults: each strikes at the moment at which a rule is needed.",
        minutes: 4,
        run: cell::run_directed,
    },
    Scenario {
        name: "cell-guarded",
        about: "The cell with a directory behind an access list, and commands under locks whose hosts are cut off.",
        minutes: 4,
        run: cell::run_guarded,
    },
    Scenario {
        name: "placement",
        about: "Placement: managers on a model of the cell, up to 50 owners, lookups, hand-overs, faults.",
        minutes: 10,
        run: placement::run,
    },
    Scenario {
        name: "placement-directed",
        about: "Placement under aimed faults: each strikes at the moment at which a rule is needed.",
        minutes: 4,
        run: placement::run_directed,
    },
    Scenario {
        name: "notify",
        about: "Notify: devices, nodes with ranges by placement, store and feed, wipes and resets, faults.",
        minutes: 4,
        run: notify::run,
    },
    Scenario {
        name: "notify-directed",
        about: "Notify under aimed trouble: each story brings about the moment at which a rule is needed.",
        minutes: 4,
        run: notify::run_directed,
    },
    Scenario {
        name: "tables",
        about: "Tables: clients that write, read and watch, partitions that move and are cut, store, cursors, faults.",
        minutes: 2,
        run: tables::run,
    },
    Scenario {
        name: "sketch",
        about: "Sketch: sketching nodes before a group with liars, writers past them, ranges that move, new lives, faults.",
        minutes: 10,
        run: sketch::run,
    },
    Scenario {
        name: "sketch-direct",
        about: "D-Prophecy: clients that ask all replicas what they remember, liars who know everything, new lives, faults.",
        minutes: 10,
        run: sketch::run_direct,
    },
];
