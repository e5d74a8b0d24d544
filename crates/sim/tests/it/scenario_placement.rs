//! Scenario `placement`: green, repeatable, and really under fire.

use std::time::Duration;
use tidings_sim::scenarios::placement::{director, trouble};
use tidings_sim::{Options, run, run_seeds};

fn short(minutes: u64) -> Options {
    Options { simulated: Duration::from_secs(60 * minutes), ..Options::default() }
}

const SEEDS: std::ops::RangeInclusive<u64> = 1..=20;

#[test]
fn seeds_are_green_and_every_kind_of_trouble_occurs() {
    let report = run_seeds("placement", SEEDS, &short(5), 2, &mut |_, _| true).unwrap();
    assert_eq!(report.failures, []);
    let faults = ["partition", "one_way_partition", "isolation", "storm", "pause", "kill", "power_loss", "clock_rate"];
    let messages = ["message_dropped", "message_duplicated", "message_reordered", "message_delayed", "message_cut"];
    for kind in faults.into_iter().chain(messages).chain(trouble::kinds()).chain([trouble::WISHES]) {
        assert!(report.faults.get(kind).is_some_and(|count| *count > 0), "no {kind} in {:?}", report.faults);
    }
    assert!(report.invariants.values().all(|checks| *checks > 0), "{:?}", report.invariants);
}

/// Each was red once, at the scenario's own length.
#[test]
fn seeds_that_found_something_stay_green() {
    let own = short(tidings_sim::scenario("placement").unwrap().minutes);
    for seed in [502, 722] {
        assert_eq!(run("placement", seed, &own).unwrap().failures, [], "seed {seed}");
    }
}

#[test]
fn aimed_faults_leave_seeds_green_and_every_story_is_told() {
    let report = run_seeds("placement-directed", 1..=8, &short(4), 2, &mut |_, _| true).unwrap();
    assert_eq!(report.failures, []);
    for claim in ["no_key_stays_unowned", director::ADDRESSES] {
        assert!(report.invariants[claim] > 0, "{:?}", report.invariants);
    }
    for story in director::stories() {
        assert!(report.faults.get(story).is_some_and(|count| *count > 0), "no {story} in {:?}", report.faults);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for scenario in ["placement", "placement-directed"] {
        assert_eq!(run(scenario, 3, &short(2)), run(scenario, 3, &short(2)));
    }
}
