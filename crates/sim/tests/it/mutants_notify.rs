//! Every rule of Notify is needed: without one of them a seed turns red by a claim that the rule is there for, and the same seed
//! is green with it.

use std::collections::BTreeSet;
use std::time::Duration;
use tidings_notify::mutant::Mutant as Rule;
use tidings_sim::mutant::Mutant;
use tidings_sim::{Options, run};

/// A last version that somebody does not know.
const MISSED: &[&str] = &["every_client_learns_the_latest_version"];
/// The same, or servers and clients that never come to agree.
const APART: &[&str] =
    &["every_client_learns_the_latest_version", "registrations_follow_intent", "lost_state_becomes_unknown"];
/// Registrations of which only one of the two views knows, or a last version that somebody does not.
const COPIES: &[&str] = &["copies_are_of_registrations", "every_client_learns_the_latest_version"];
const LEFT: &[&str] = &["nothing_is_left_of_earlier_realms"];
const FORGED: &[&str] = &["forged_tokens_open_nothing"];
/// Seeds that are tried behind the known one: what a seed does changes with the product.
const OTHERS: std::ops::RangeInclusive<u64> = 1..=16;

/// Under random faults.
const RANDOM: &str = "notify";
/// Under aimed trouble.
const AIMED: &str = "notify-directed";

/// A rule, the scenario and the seed that notice its absence, and by which claims.
const TABLE: &[(Rule, &str, u64, &[&str])] = &[
    (Rule::LeaseIgnored, AIMED, 3, MISSED),
    (Rule::SeqnoWithoutLease, RANDOM, 2, COPIES),
    (Rule::IncarnationIgnored, RANDOM, 1, APART),
    (Rule::LossUntold, AIMED, 1, MISSED),
    (Rule::StragglerAccepted, AIMED, 1, MISSED),
    (Rule::GenerationIgnored, RANDOM, 11, MISSED),
    (Rule::LeftoversKept, RANDOM, 11, LEFT),
    (Rule::AckClearsUnknown, AIMED, 1, MISSED),
    (Rule::NoMarker, RANDOM, 1, MISSED),
    (Rule::SpreadUnstored, AIMED, 1, COPIES),
    (Rule::NoRecovery, RANDOM, 8, APART),
    (Rule::ReadBeforeStore, RANDOM, 12, MISSED),
    (Rule::NoPostPropagation, RANDOM, 1, MISSED),
    (Rule::NotRegisteredIgnored, AIMED, 1, COPIES),
    (Rule::PageUnmarked, AIMED, 1, MISSED),
    (Rule::DigestIgnored, RANDOM, 1, APART),
    (Rule::MacIgnored, AIMED, 1, FORGED),
    (Rule::SupersededAccepted, AIMED, 1, APART),
    (Rule::NoRetransmission, AIMED, 1, MISSED),
    (Rule::SentIsDone, AIMED, 1, MISSED),
    (Rule::FutureAckAccepted, AIMED, 1, MISSED),
    (Rule::CreatedIgnored, RANDOM, 3, APART),
    (Rule::TombstonesForgotten, AIMED, 1, COPIES),
    (Rule::NoScratch, RANDOM, 1, MISSED),
    (Rule::ScratchDeletedWhole, RANDOM, 1, MISSED),
    (Rule::AlwaysSuppress, RANDOM, 21, MISSED),
];

/// Two minutes of random faults; all stories take fifteen.
fn time(scenario: &str) -> Duration {
    Duration::from_secs(if scenario == AIMED { 900 } else { 120 })
}

fn options(time: Duration, mutant: Option<Rule>) -> Options {
    Options { simulated: time, mutant: mutant.map(Mutant::Notify), ..Options::default() }
}

#[test]
fn every_rule_is_missed_when_it_is_left_out() {
    let (mut green, mut unnoticed) = (BTreeSet::new(), Vec::new());
    for (rule, scenario, known, by) in TABLE {
        let time = time(scenario);
        let seeds = std::iter::once(*known).chain(OTHERS.filter(|seed| seed != known));
        let red = seeds.filter_map(|seed| run(scenario, seed, &options(time, Some(*rule))).ok()?.failures.pop());
        let noticed = red.into_iter().find(|failure| by.contains(&failure.invariant.as_str()));
        let Some(failure) = noticed else {
            unnoticed.push(*rule);
            continue;
        };
        assert!(
            failure.replay.starts_with(&format!("tidings sim {scenario} --seed {} --mutant {rule}", failure.seed)),
            "{}",
            failure.replay
        );
        if green.insert((*scenario, failure.seed, time)) {
            let with = run(scenario, failure.seed, &options(time, None)).unwrap();
            assert_eq!(with.failures, [], "{scenario}, seed {}", failure.seed);
        }
    }
    assert_eq!(unnoticed, [], "left out, and nobody missed them");
}

#[test]
fn every_rule_has_a_seed() {
    let known = |rule: &Rule| TABLE.iter().any(|(known, ..)| known == rule);
    assert_eq!(Rule::ALL.into_iter().filter(|rule| !known(rule)).collect::<Vec<_>>(), []);
}
