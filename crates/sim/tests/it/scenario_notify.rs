//! Scenarios `notify` and `notify-directed`: green, repeatable, and really under fire.

use std::time::Duration;
use tidings_sim::scenarios::notify::{director, trouble};
use tidings_sim::{Options, run, run_seeds};

fn short(minutes: u64) -> Options {
    Options { simulated: Duration::from_secs(60 * minutes), ..Options::default() }
}

/// Among them some in which everything is wiped, and some in which a backend is restored.
const SEEDS: std::ops::RangeInclusive<u64> = 16..=27;

#[test]
fn seeds_are_green_and_every_kind_of_trouble_occurs() {
    let report = run_seeds("notify", SEEDS, &short(4), 2, &mut |_, _| true).unwrap();
    assert_eq!(report.failures, []);
    let faults = ["partition", "one_way_partition", "isolation", "storm", "pause", "kill", "power_loss", "clock_rate"];
    let messages = ["message_dropped", "message_duplicated", "message_reordered", "message_delayed", "message_cut"];
    for kind in faults.into_iter().chain(messages).chain(trouble::kinds()) {
        assert!(report.faults.get(kind).is_some_and(|count| *count > 0), "no {kind} in {:?}", report.faults);
    }
    assert!(report.invariants.values().all(|checks| *checks > 0), "{:?}", report.invariants);
    assert!(report.answered > 0);
}

/// Each was red once, at the scenario's own length.
#[test]
fn seeds_that_found_something_stay_green() {
    let own = short(tidings_sim::scenario("notify").unwrap().minutes);
    for seed in [5, 131, 662, 831] {
        assert_eq!(run("notify", seed, &own).unwrap().failures, [], "seed {seed}");
    }
}

#[test]
fn every_story_is_told_and_ends_well() {
    let report = run_seeds("notify-directed", 1..=3, &short(14), 2, &mut |_, _| true).unwrap();
    assert_eq!(report.failures, []);
    for story in director::stories() {
        assert!(report.faults.get(story).is_some_and(|count| *count > 0), "no {story} in {:?}", report.faults);
    }
    assert!(report.invariants.values().all(|checks| *checks > 0), "{:?}", report.invariants);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for scenario in ["notify", "notify-directed"] {
        assert_eq!(run(scenario, 3, &short(2)), run(scenario, 3, &short(2)));
    }
}
