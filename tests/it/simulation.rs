//! `sim`: one seed decides everything, in any process.

use crate::process::run;

fn hash(seed: &str) -> String {
    let report = run(&["sim", "store", "--seed", seed, "--json"]).json();
    assert_eq!(report["seeds_run"], 1, "{report}");
    assert_eq!(report["failures"], serde_json::json!([]));
    report["trace_hash"].as_str().expect("a hash").to_owned()
}

#[test]
fn the_same_seed_gives_the_same_hash_in_two_processes_and_another_seed_another() {
    let seven = hash("7");
    assert_eq!(seven, hash("7"));
    assert_ne!(seven, hash("8"));
}

#[test]
fn a_scenario_that_does_not_exist_is_an_error() {
    run(&["sim", "no-such-scenario", "--seed", "1"]).failed(2, "no-such-scenario");
}

#[test]
fn no_time_for_any_seed_is_not_a_success() {
    let said = run(&["sim", "store", "--seeds", "1..5", "--minutes", "0"]);
    said.failed(1, "no seed");
}
