//! The deterministic simulator: virtual time, faults, invariants, scenarios.
//!
//! ```text
//!   scenario ── hosts, clients, faults ──▶ kernel ── events in order ──▶ processes (the real machines)
//!      │                                     │ network · disks · clocks     │ facts
//!      └──────── report ◀── invariants ◀─────┴──────────────────────────────┘
//! ```
//! One seed decides everything: `tidings sim <scenario> --seed N` replays a run, and its [`trace`] hash says whether it
//! was the same run. Protocol logic runs unchanged: the machines of `tidings-store`, the real `tidings-log` on a
//! simulated disk. Only the agreed log is a [`model`], held to the contract of `tidings_base::agreed` by the same
//! [`conformance`] suite as the real binding.
//!
//! What it deliberately does not do: run threads, sockets or the tokio shells (real processes are tested at the root
//! of the repository), or judge by timing of the real world.

pub mod carrier;
pub mod checkers;
pub mod clock;
pub mod conformance;
pub mod disk;
pub mod faults;
pub mod invariants;
pub mod kernel;
pub mod model;
#[doc(hidden)]
pub mod mutant;
pub mod network;
pub mod report;
mod runner;
pub mod scenarios;
pub mod trace;

pub use report::{Failure, Report};
pub use runner::{NoSuchScenario, Options, run, run_seeds, scenario, scenarios};
pub use scenarios::Scenario;
pub use trace::Printing;
