//! Every rule of the cell is needed: without it a seed turns red, by a claim that the rule is there for, and the same seed is
//! green with it.

use std::time::Duration;
use tidings_cell::mutant::Mutant as Rule;
use tidings_sim::mutant::Mutant;
use tidings_sim::{Options, run};

/// What nobody may see: an answer that the agreed order does not have.
const STALE: &[&str] = &["no_cached_read_after_its_write_returned", "answers_fit_the_agreed_order"];
/// A change that was not told to everybody who may hold a copy.
const UNANNOUNCED: &[&str] =
    &["changes_are_announced", "no_cached_read_after_its_write_returned", "answers_fit_the_agreed_order"];
/// What a lease that is believed in for too long leads to.
const OVERDUE: &[&str] = &[
    "no_cached_read_after_its_write_returned",
    "answers_fit_the_agreed_order",
    "sessions_end_only_after_their_leases",
    "ended_sessions_stay_ended",
];
/// Seeds that are tried behind the known one: what a seed does changes with the product.
const OTHERS: std::ops::RangeInclusive<u64> = 1..=8;

/// A rule, the scenario and the seed that notice its absence, and by which claims.
const TABLE: &[(Rule, &str, u64, &[&str])] = &[
    (Rule::StaleEpochAccepted, "cell-directed", 4, &["a_masters_word_ends_with_its_epoch"]),
    (Rule::ReadWithoutLease, "cell-directed", 1, OVERDUE),
    (Rule::LeaseFromArrival, "cell-directed", 2, OVERDUE),
    (Rule::OpensAtOnce, "cell-directed", 4, STALE),
    (Rule::AbsencesStay, "cell-guarded", 1, &["the_shut_out_stay_out"]),
    (Rule::CommandsOutliveLeases, "cell-guarded", 1, &["commands_die_with_their_locks"]),
    (Rule::ImplicitAck, "cell", 1, STALE),
    (Rule::StampIgnored, "cell", 4, STALE),
    (Rule::LocksInvalidateNothing, "cell", 1, UNANNOUNCED),
    (Rule::CeilingIgnored, "cell", 1, &["sessions_end_only_after_their_leases"]),
    (Rule::Resurrection, "cell", 3, &["ended_sessions_stay_ended"]),
    (Rule::RepeatApplied, "cell", 1, &["acknowledged_calls_take_effect_once"]),
    (Rule::EphemeralsStay, "cell", 1, &["ephemerals_end_with_their_sessions"]),
    // What R10 counts on.
    (Rule::NoLockDelay, "cell", 1, &["lost_locks_are_held_back"]),
    (
        Rule::SequencerOutlivesLock,
        "cell",
        1,
        &["sequencers_die_with_their_locks", "guarded_writes_end_with_their_locks"],
    ),
    (Rule::MacIgnored, "cell", 1, &["forged_handles_open_nothing"]),
    (Rule::ClosedHandlesRevived, "cell", 1, &["closed_handles_stay_closed"]),
    (Rule::InterestForgotten, "cell", 1, STALE),
    (Rule::NoInvalidationWait, "cell", 3, STALE),
    (Rule::CachingDuringWrite, "cell", 2, STALE),
    (Rule::QueueJumping, "cell", 1, &["waiters_are_served_in_order"]),
    (Rule::GuardIgnored, "cell", 3, &["guarded_writes_end_with_their_locks"]),
    (Rule::ListsIgnored, "cell", 1, &["the_shut_out_stay_out"]),
    (Rule::ListsInvalidateNothing, "cell", 3, &["the_shut_out_stay_out"]),
];

fn options(mutant: Option<Rule>) -> Options {
    Options { simulated: Duration::from_secs(240), mutant: mutant.map(Mutant::Cell), ..Options::default() }
}

/// The first seed that is red by one of these claims, and the command that replays it.
fn noticed(rule: Rule, scenario: &str, known: u64, by: &[&str]) -> Option<(u64, String)> {
    let seeds = std::iter::once(known).chain(OTHERS.filter(|seed| *seed != known));
    for seed in seeds {
        let red = run(scenario, seed, &options(Some(rule))).unwrap();
        if let Some(failure) = red.failures.iter().find(|failure| by.contains(&failure.invariant.as_str())) {
            return Some((seed, failure.replay.clone()));
        }
    }
    None
}

/// Red without the rule, and green with it.
fn judge(table: &[(Rule, &str, u64, &[&str])]) {
    let mut green = std::collections::BTreeSet::new();
    for (rule, scenario, known, by) in table {
        let Some((seed, replay)) = noticed(*rule, scenario, *known, by) else { panic!("{rule} was not missed") };
        assert!(replay.starts_with(&format!("tidings sim {scenario} --seed {seed} --mutant {rule}")), "{replay}");
        if green.insert((*scenario, seed)) {
            assert_eq!(run(scenario, seed, &options(None)).unwrap().failures, [], "{scenario}, seed {seed}");
        }
    }
}

#[test]
fn rules_that_aimed_faults_need_are_missed_when_they_are_left_out() {
    judge(&TABLE[..6]);
}

#[test]
fn the_other_rules_are_missed_when_they_are_left_out() {
    judge(&TABLE[6..]);
}

/// Held elsewhere: clocks of the simulator keep to their bound (a test of the master), and which opens share a handle is
/// the library's to decide (`crates/client/tests/it/cell/caching.rs`).
const ELSEWHERE: [Rule; 2] = [Rule::OpensShared, Rule::ClocksUnchecked];

#[test]
fn every_other_rule_has_a_seed() {
    let known = |rule: &Rule| TABLE.iter().any(|(known, ..)| known == rule);
    let missing: Vec<Rule> = Rule::ALL.into_iter().filter(|rule| !known(rule)).collect();
    assert_eq!(missing, ELSEWHERE);
}
