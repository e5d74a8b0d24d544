//! Scenario `tables`: green, repeatable, and really under fire.

use std::time::Duration;
use tidings_sim::scenarios::tables::trouble;
use tidings_sim::{Options, run, run_seeds};

fn short(minutes: u64) -> Options {
    Options { simulated: Duration::from_secs(60 * minutes), ..Options::default() }
}

#[test]
fn seeds_are_green_and_every_kind_of_trouble_occurs() {
    let report = run_seeds("tables", 21..=30, &short(4), 2, &mut |_, _| true).unwrap();
    assert_eq!(report.failures, []);
    let faults = ["partition", "one_way_partition", "isolation", "storm", "pause", "kill", "power_loss", "clock_rate"];
    let messages = ["message_dropped", "message_duplicated", "message_reordered", "message_delayed", "message_cut"];
    for kind in faults.into_iter().chain(messages).chain(trouble::kinds()) {
        assert!(report.faults.get(kind).is_some_and(|count| *count > 0), "no {kind} in {:?}", report.faults);
    }
    assert!(report.invariants.values().all(|checks| *checks > 0), "{:?}", report.invariants);
    assert!(report.answered > 0);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run("tables", 3, &short(2)), run("tables", 3, &short(2)));
}

/// R9: in these worlds one live query is only told to read again, and has in the end what a fresh read says.
#[test]
fn live_queries_that_are_read_again_end_with_what_there_is() {
    for seed in [5, 15, 35] {
        assert_eq!(run("tables", seed, &short(2)).unwrap().failures, [], "seed {seed}");
    }
}

/// A live query waited for the rest of an answer whose pieces had overtaken each other, and missed changes until the end.
#[test]
fn seeds_in_which_a_live_query_missed_a_change_are_green() {
    for seed in [276, 338, 411] {
        assert_eq!(run("tables", seed, &short(2)).unwrap().failures, [], "seed {seed}");
    }
}
