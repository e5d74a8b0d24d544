//! Rules of the cell are needed: without one a kept seed turns red, by the claim that the rule is there for, and the same
//! seed is green with it.

use std::time::Duration;
use tidings_cell::mutant::Mutant as Rule;
use tidings_sim::mutant::Mutant;
use tidings_sim::{Options, run};

/// What nobody may see: an answer that the agreed order does not have.
const STALE: &[&str] = &["no_cached_read_after_its_write_returned", "answers_fit_the_agreed_order"];
/// A change that was not told to everybody who may hold a copy.
const UNANNOUNCED: &[&str] =
    &["changes_are_announced", "no_cached_read_after_its_write_returned", "answers_fit_the_agreed_order"];

/// A rule, a seed that notices its absence, within how many simulated minutes, and by which claims.
const TABLE: &[(Rule, u64, u64, &[&str])] = &[
    (Rule::ImplicitAck, 1, 4, STALE),
    (Rule::StampIgnored, 4, 4, STALE),
    (Rule::LocksInvalidateNothing, 1, 4, UNANNOUNCED),
    (Rule::CeilingIgnored, 1, 4, &["sessions_end_only_after_their_leases"]),
    (Rule::Resurrection, 2, 4, &["ended_sessions_stay_ended"]),
    (Rule::EphemeralsStay, 1, 4, &["ephemerals_end_with_their_sessions"]),
    (Rule::NoLockDelay, 1, 4, &["lost_locks_are_held_back"]),
    (Rule::SequencerOutlivesLock, 1, 4, &["sequencers_die_with_their_locks"]),
    (Rule::MacIgnored, 1, 4, &["forged_handles_open_nothing"]),
    (Rule::InterestForgotten, 1, 4, STALE),
    (Rule::NoInvalidationWait, 1, 4, STALE),
    (Rule::CachingDuringWrite, 1, 4, STALE),
    (Rule::QueueJumping, 1, 4, &["waiters_are_served_in_order"]),
];

fn options(minutes: u64, mutant: Option<Rule>) -> Options {
    Options { simulated: Duration::from_secs(60 * minutes), mutant: mutant.map(Mutant::Cell), ..Options::default() }
}

#[test]
fn every_rule_is_missed_when_it_is_left_out() {
    for (rule, seed, minutes, by) in TABLE {
        let red = run("cell", *seed, &options(*minutes, Some(*rule))).unwrap();
        let Some(failure) = red.failures.first() else { panic!("{rule} was not missed by seed {seed}") };
        assert!(by.contains(&failure.invariant.as_str()), "{rule}, seed {seed}: {}", failure.invariant);
        assert_eq!(failure.replay, format!("tidings sim cell --seed {seed} --mutant {rule}"));
    }
}

#[test]
fn the_seeds_are_green_with_every_rule() {
    let mut seeds: Vec<(u64, u64)> = TABLE.iter().map(|(_, seed, minutes, _)| (*seed, *minutes)).collect();
    seeds.sort();
    seeds.dedup_by_key(|(seed, _)| *seed);
    for (seed, minutes) in seeds {
        assert_eq!(run("cell", seed, &options(minutes, None)).unwrap().failures, [], "seed {seed}");
    }
}

/// Held by tests of the machines and by the models only: no seed that notices them is known yet.
const UNNOTICED: [Rule; 7] = [
    Rule::StaleEpochAccepted,
    Rule::ReadWithoutLease,
    Rule::LeaseFromArrival,
    Rule::RepeatApplied,
    Rule::ClosedHandlesRevived,
    Rule::ClocksUnchecked,
    Rule::OpensAtOnce,
];

#[test]
fn every_other_rule_has_a_seed() {
    let known = |rule: &Rule| TABLE.iter().any(|(known, ..)| known == rule);
    let missing: Vec<Rule> = Rule::ALL.into_iter().filter(|rule| !known(rule)).collect();
    assert_eq!(missing, UNNOTICED);
}
