//! Every rule of Tables is needed: without one of them a seed turns red by a claim that the rule is there for, and the same seed
//! is green with it.

use std::collections::BTreeSet;
use std::time::Duration;
use tidings_sim::mutant::Mutant;
use tidings_sim::{Options, run};
use tidings_tables::mutant::Mutant as Rule;

/// What live queries told is not what there is, was told again, or differs at one cursor.
const LIVE: &[&str] = &[
    "live_queries_equal_fresh_reads",
    "live_queries_never_go_back",
    "the_same_cursor_holds_the_same_rows",
    "acknowledged_changes_are_kept",
];
/// A change took effect twice, or not, or its outcome changed.
const ONCE: &[&str] = &["an_operation_has_one_outcome", "acknowledged_changes_are_kept"];
/// The same, or two owners made different histories.
const LOST: &[&str] = &[
    "acknowledged_changes_are_kept",
    "an_operation_has_one_outcome",
    "reads_fit_the_definitions",
    "live_queries_equal_fresh_reads",
    "live_queries_never_go_back",
];
/// Reads that no view holds, or that are older than what was seen.
const VIEWS: &[&str] = &["reads_fit_the_definitions", "reads_keep_their_floors"];
/// A device that is away missed something, and was told nothing.
const AWAY: &[&str] = &["whoever_is_away_is_told"];
const SHOWN: &[&str] = &["hidden_records_stay_hidden"];
/// Seeds that are tried behind the known one: what a seed does changes with the product.
const OTHERS: std::ops::RangeInclusive<u64> = 1..=400;

/// A rule, the seed that notices its absence, and by which claims.
const TABLE: &[(Rule, u64, &[&str])] = &[
    (Rule::TermIgnored, 1, LIVE),
    (Rule::NoFence, 10, LOST),
    (Rule::LeaseIgnored, 88, VIEWS),
    (Rule::GapIgnored, 3, LIVE),
    (Rule::TailIgnored, 48, LIVE),
    (Rule::PieceIgnored, 7, LIVE),
    (Rule::EarlyIgnored, 2, LIVE),
    (Rule::NoReinstall, 4, LIVE),
    (Rule::AwayForgotten, 2, AWAY),
    (Rule::OpenedSilently, 9, AWAY),
    (Rule::PublishedOnce, 7, AWAY),
    (Rule::SnapshotTorn, 1, LIVE),
    (Rule::NoLeave, 1, LIVE),
    (Rule::LeaveToAll, 1, SHOWN),
    (Rule::NoReset, 4, LIVE),
    (Rule::NoDifference, 6, LIVE),
    (Rule::CursorKept, 271, LIVE),
    (Rule::FloorIgnored, 2, VIEWS),
    (Rule::CopyGapIgnored, 7, VIEWS),
    (Rule::CopyOwns, 29, VIEWS),
    (Rule::CopyShowsAll, 2, SHOWN),
    (Rule::OutcomeForgotten, 1, ONCE),
    (Rule::OutcomeApart, 3, ONCE),
    (Rule::WatermarkIgnored, 1, ONCE),
    (Rule::ForkIgnored, 1, ONCE),
    (Rule::OrderIgnored, 1, VIEWS),
    (Rule::ConflictShown, 1, SHOWN),
    (Rule::ExpiryIgnored, 1, LIVE),
    (Rule::CursorOpen, 1, &["cursors_are_sealed"]),
    (Rule::LiveUnchecked, 1, &["live_queries_have_no_clock"]),
    (Rule::SentUnchecked, 1, SHOWN),
];

/// Rules that no seed here misses: tests of the machines hold them (`crates/tables/tests/it`).
const ELSEWHERE: &[Rule] = &[
    Rule::BoundsTold,
    Rule::ListIgnored,
    Rule::CededServing,
    Rule::LeftOnce,
    Rule::GivenEarly,
    Rule::WatermarkAged,
    Rule::CopyOutdated,
];

/// Two minutes of faults.
fn options(mutant: Option<Rule>) -> Options {
    Options { simulated: Duration::from_secs(120), mutant: mutant.map(Mutant::Tables), ..Options::default() }
}

#[test]
fn every_rule_is_missed_when_it_is_left_out() {
    let (mut green, mut unnoticed) = (BTreeSet::new(), Vec::new());
    for (rule, known, by) in TABLE {
        let seeds = std::iter::once(*known).chain(OTHERS.filter(|seed| seed != known));
        let red = seeds.filter_map(|seed| run("tables", seed, &options(Some(*rule))).ok()?.failures.pop());
        let Some(failure) = red.into_iter().find(|failure| by.contains(&failure.invariant.as_str())) else {
            unnoticed.push(*rule);
            continue;
        };
        assert!(
            failure.replay.starts_with(&format!("tidings sim tables --seed {} --mutant {rule}", failure.seed)),
            "{}",
            failure.replay
        );
        if green.insert(failure.seed) {
            assert_eq!(run("tables", failure.seed, &options(None)).unwrap().failures, [], "seed {}", failure.seed);
        }
    }
    assert_eq!(unnoticed, [], "left out, and nobody missed them");
}

#[test]
fn every_rule_has_a_seed_or_is_held_elsewhere() {
    let rules: BTreeSet<Rule> = TABLE.iter().map(|(rule, ..)| *rule).chain(ELSEWHERE.iter().copied()).collect();
    assert_eq!(rules, BTreeSet::from(Rule::ALL));
}
