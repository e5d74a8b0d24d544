//! Scenarios `cell`, `cell-directed` and `cell-guarded`: green, repeatable, and really under fire.

use std::time::Duration;
use tidings_sim::faults::Kind;
use tidings_sim::{Options, run, run_seeds};

fn lasting(seconds: u64) -> Options {
    Options { simulated: Duration::from_secs(seconds), ..Options::default() }
}

#[test]
fn seeds_are_green_and_every_claim_is_checked() {
    let report = run_seeds("cell", 1..=12, &lasting(300), 2, &mut |_, _| true).unwrap();
    assert_eq!(report.failures, []);
    assert_eq!(report.seeds_run, 12);
    assert!(report.invariants.values().all(|checks| *checks > 0), "{:?}", report.invariants);
    for replicas in [3, 5] {
        assert!(report.replicas.get(&replicas).is_some_and(|worlds| *worlds > 0), "{:?}", report.replicas);
    }
    let hours = report.simulated_seconds / 3_600.0;
    assert!(report.operations as f64 / hours >= 5_000.0, "{report:?}");
    for kind in Kind::ALL.iter().map(|kind| kind.name()) {
        assert!(report.faults.get(kind).is_some_and(|count| *count > 0), "no {kind} in {:?}", report.faults);
    }
}

#[test]
fn aimed_faults_strike_and_change_nothing() {
    let report = run_seeds("cell-directed", 1..=6, &lasting(120), 2, &mut |_, _| true).unwrap();
    assert_eq!(report.failures, []);
    for scene in ["alone_together", "doze", "late_word"] {
        assert!(report.faults.get(scene).is_some_and(|count| *count > 5), "{:?}", report.faults);
    }
}

#[test]
fn whoever_runs_a_command_is_cut_off_and_every_claim_is_checked() {
    let report = run_seeds("cell-guarded", 1..=4, &lasting(120), 2, &mut |_, _| true).unwrap();
    assert_eq!(report.failures, []);
    assert!(report.faults.get("cut_off").is_some_and(|count| *count > 5), "{:?}", report.faults);
    for claim in ["the_shut_out_stay_out", "commands_die_with_their_locks"] {
        assert!(report.invariants.get(claim).is_some_and(|checks| *checks > 100), "{:?}", report.invariants);
    }
}

/// Each was red once, at the scenario's own length.
#[test]
fn seeds_that_found_something_stay_green() {
    let own = lasting(60 * tidings_sim::scenario("cell").unwrap().minutes);
    assert_eq!(run("cell", 304, &own).unwrap().failures, []);
}

#[test]
fn the_same_seed_gives_the_same_run_and_others_differ() {
    for scenario in ["cell", "cell-directed", "cell-guarded"] {
        let once = run(scenario, 3, &lasting(60)).unwrap();
        assert_eq!(once, run(scenario, 3, &lasting(60)).unwrap());
        assert_ne!(once.trace_hash, run(scenario, 4, &lasting(60)).unwrap().trace_hash);
    }
}
