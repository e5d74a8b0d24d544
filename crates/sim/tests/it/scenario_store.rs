//! Scenario `store`: green, repeatable, and really under fire.

use std::process::Command;
use std::time::Duration;
use tidings_sim::faults::Kind;
use tidings_sim::{Options, Printing, run, run_seeds};

fn short() -> Options {
    Options { simulated: Duration::from_secs(120), ..Options::default() }
}

fn hash_of(seed: u64) -> String {
    run("store", seed, &short()).unwrap().trace_hash
}

#[test]
fn seeds_are_green_and_every_kind_of_fault_occurs() {
    let report = run_seeds("store", 1..=14, &Options::default(), 2, &mut |_, _| true).unwrap();
    assert_eq!(report.failures, []);
    assert_eq!(report.seeds_run, 14);
    let hours = report.simulated_seconds / 3_600.0;
    assert!(report.operations as f64 / hours >= 1_000.0, "{report:?}");
    assert!(report.fault_count() as f64 / hours >= 10.0, "{report:?}");
    let kinds = Kind::ALL.iter().map(|kind| kind.name());
    let consequences = ["damage_found", "replacement", "ambush"];
    let messages = ["message_dropped", "message_duplicated", "message_reordered", "message_delayed", "message_cut"];
    for kind in kinds.chain(consequences).chain(messages) {
        assert!(report.faults.get(kind).is_some_and(|count| *count > 0), "no {kind} in {:?}", report.faults);
    }
    assert!(report.invariants.values().all(|checks| *checks > 0), "{:?}", report.invariants);
}

#[test]
fn the_same_seed_gives_the_same_hash_and_others_differ() {
    assert_eq!(run("store", 3, &short()), run("store", 3, &short()));
    let hashes: std::collections::BTreeSet<String> = (1..=5).map(hash_of).collect();
    assert_eq!(hashes.len(), 5);
}

#[test]
fn the_same_seed_gives_the_same_hash_in_another_process() {
    let other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "scenario_store::print_a_hash", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8(other.stdout).unwrap();
    assert!(said.contains(&format!("hash={}", hash_of(4))), "{said}");
}

#[test]
#[ignore = "the other process of the test above"]
fn print_a_hash() {
    println!("hash={}", hash_of(4));
}

#[test]
fn several_at_a_time_report_the_same_as_one_after_the_other() {
    let both = |jobs| run_seeds("store", 5..=8, &short(), jobs, &mut |_, _| true).unwrap();
    assert_eq!(both(1), both(3));
}

#[test]
fn a_caller_may_stop_early_and_an_unknown_scenario_is_named() {
    let mut seen = 0;
    let report = run_seeds("store", 1..=1_000, &short(), 1, &mut |_, _| {
        seen += 1;
        seen < 2
    });
    assert!(report.unwrap().seeds_run < 10);
    assert!(run("shop", 1, &short()).unwrap_err().to_string().contains("store"));
}

#[test]
fn a_kept_trace_changes_nothing_and_a_report_is_json() {
    let kept = run("store", 2, &Options { trace: Printing::Keep, ..short() }).unwrap();
    assert_eq!(kept.trace_hash, hash_of(2));
    let json = serde_json::to_value(&kept).unwrap();
    for field in ["scenario", "seeds_run", "simulated_seconds", "faults", "invariants", "trace_hash", "failures"] {
        assert!(json.get(field).is_some(), "no {field} in {json}");
    }
}
