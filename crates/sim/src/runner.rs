//! Runs scenarios by name, one seed or many.

use crate::mutant::Mutant;
use crate::report::Report;
use crate::scenarios::{self, Scenario};
use crate::trace::Printing;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// How a run is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long the faults last in virtual time; healing comes on top. Twenty minutes by default: long enough for
    /// every kind of fault and several snapshots, short enough for hundreds of seeds in a minute's time.
    pub simulated: Duration,
    /// What becomes of the trace's lines.
    pub trace: Printing,
    /// A deliberate bug, for tests of the simulator itself.
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

impl Default for Options {
    fn default() -> Options {
        Options { simulated: Duration::from_secs(20 * 60), trace: Printing::Off, mutant: None }
    }
}

/// There is no such scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no scenario `{name}`; there are: {known}")]
pub struct NoSuchScenario {
    /// What was asked for.
    pub name: String,
    /// What there is.
    pub known: String,
}

/// All scenarios.
pub fn scenarios() -> &'static [Scenario] {
    scenarios::ALL
}

/// The scenario of this name.
pub fn scenario(name: &str) -> Result<&'static Scenario, NoSuchScenario> {
    scenarios().iter().find(|scenario| scenario.name == name).ok_or_else(|| NoSuchScenario {
        name: name.to_string(),
        known: scenarios().iter().map(|scenario| scenario.name).collect::<Vec<_>>().join(", "),
    })
}

/// Runs one seed of a scenario.
pub fn run(name: &str, seed: u64, options: &Options) -> Result<Report, NoSuchScenario> {
    Ok(scenario(name)?.run(seed, options))
}

/// Runs many seeds, several at a time; the report is the same however many.
///
/// `progress` is called on the caller's thread with the report of each seed as it is done; once it returns false no
/// further seed is begun.
pub fn run_seeds(
    name: &str,
    seeds: std::ops::RangeInclusive<u64>,
    options: &Options,
    jobs: usize,
    progress: &mut dyn FnMut(u64, &Report) -> bool,
) -> Result<Report, NoSuchScenario> {
    let scenario = scenario(name)?;
    let next = AtomicU64::new(*seeds.start());
    let (done, reports) = mpsc::channel();
    let mut by_seed = BTreeMap::new();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (done, next, last) = (done.clone(), &next, *seeds.end());
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > last || done.send((seed, scenario.run(seed, options))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        for (seed, report) in reports {
            if !progress(seed, &report) {
                next.store(u64::MAX / 2, Ordering::Relaxed);
            }
            by_seed.insert(seed, report);
        }
    });
    let mut merged = Report { scenario: scenario.name.to_string(), ..Report::default() };
    by_seed.into_values().for_each(|report| merged.merge(report));
    Ok(merged)
}
