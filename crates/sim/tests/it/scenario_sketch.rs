//! Scenario `sketch`: green, repeatable, and really under fire.

use std::time::Duration;
use tidings_sim::scenarios::sketch::trouble;
use tidings_sim::{Options, run, run_seeds};
use tidings_sketch::replica::liar::Sin;

fn short(minutes: u64) -> Options {
    Options { simulated: Duration::from_secs(60 * minutes), ..Options::default() }
}

#[test]
fn seeds_are_green_and_every_kind_of_trouble_occurs() {
    let report = run_seeds("sketch", 21..=32, &short(2), 2, &mut |_, _| true).unwrap();
    assert_eq!(report.failures, []);
    let faults = ["partition", "one_way_partition", "isolation", "storm", "pause", "kill", "power_loss", "clock_rate"];
    let messages = ["message_dropped", "message_duplicated", "message_reordered", "message_delayed", "message_cut"];
    let answers = ["fast_answer", "agreed_answer"];
    let sins = Sin::ALL.map(Sin::name);
    for kind in faults.into_iter().chain(messages).chain(answers).chain(trouble::KINDS).chain(sins) {
        assert!(report.faults.get(kind).is_some_and(|count| *count > 0), "no {kind} in {:?}", report.faults);
    }
    assert!(report.invariants.values().all(|checks| *checks > 0), "{:?}", report.invariants);
    assert!(report.answered > 0);
}

#[test]
fn d_prophecys_seeds_are_green_and_every_kind_of_trouble_occurs() {
    let report = run_seeds("sketch-direct", 1..=12, &short(2), 2, &mut |_, _| true).unwrap();
    assert_eq!(report.failures, []);
    let faults = ["partition", "pause", "kill", "message_dropped", "message_duplicated", "new_life", "replayed_reply"];
    let sins = Sin::ALL.map(Sin::name);
    for kind in faults.into_iter().chain(["fast_answer", "agreed_answer"]).chain(sins) {
        assert!(report.faults.get(kind).is_some_and(|count| *count > 0), "no {kind} in {:?}", report.faults);
    }
    assert!(report.invariants.values().all(|checks| *checks > 0), "{:?}", report.invariants);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run("sketch-direct", 3, &short(1)), run("sketch-direct", 3, &short(1)));
    assert_eq!(run("sketch", 3, &short(1)), run("sketch", 3, &short(1)));
}
