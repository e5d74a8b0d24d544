//! Rules of Notify are needed: without one of them a seed turns red by a claim that the rule is there for, and the same seed
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
/// Seeds that are tried behind the known one: what a seed does changes with the product.
const OTHERS: std::ops::RangeInclusive<u64> = 1..=16;

/// A rule, a seed that notices its absence, and by which claims.
const TABLE: &[(Rule, u64, &[&str])] = &[
    (Rule::IncarnationIgnored, 2, APART),
    (Rule::GenerationIgnored, 2, MISSED),
    (Rule::SeqnoWithoutLease, 2, MISSED),
    (Rule::NoMarker, 1, MISSED),
    (Rule::NoRecovery, 3, APART),
    (Rule::NoPostPropagation, 1, MISSED),
    (Rule::DigestIgnored, 1, APART),
    (Rule::NoRetransmission, 13, MISSED),
    (Rule::CreatedIgnored, 1, APART),
    (Rule::NoScratch, 1, MISSED),
    (Rule::ScratchDeletedWhole, 7, MISSED),
    (Rule::AlwaysSuppress, 6, MISSED),
];

/// Held by the tests of the machines (`crates/notify/tests/it`). Forged tokens and acks of the future take a client that lies,
/// and harm nobody else; for the others no seed is known.
const ELSEWHERE: &[Rule] = &[
    Rule::LeaseIgnored,
    Rule::AckClearsUnknown,
    Rule::ReadBeforeStore,
    Rule::NotRegisteredIgnored,
    Rule::MacIgnored,
    Rule::SupersededAccepted,
    Rule::FutureAckAccepted,
];

/// Two minutes, but for what only many faults bring out.
fn time(rule: Rule) -> Duration {
    match rule {
        Rule::NoRetransmission => Options::default().simulated,
        _ => Duration::from_secs(120),
    }
}

fn options(time: Duration, mutant: Option<Rule>) -> Options {
    Options { simulated: time, mutant: mutant.map(Mutant::Notify), ..Options::default() }
}

#[test]
fn every_rule_is_missed_when_it_is_left_out() {
    let (mut green, mut unnoticed) = (BTreeSet::new(), Vec::new());
    for (rule, known, by) in TABLE {
        let seeds = std::iter::once(*known).chain(OTHERS.filter(|seed| seed != known));
        let red = seeds.filter_map(|seed| run("notify", seed, &options(time(*rule), Some(*rule))).ok()?.failures.pop());
        let noticed = red.into_iter().find(|failure| by.contains(&failure.invariant.as_str()));
        let Some(failure) = noticed else {
            unnoticed.push(*rule);
            continue;
        };
        assert_eq!(failure.replay, format!("tidings sim notify --seed {} --mutant {rule}", failure.seed));
        if green.insert((failure.seed, time(*rule))) {
            let with = run("notify", failure.seed, &options(time(*rule), None)).unwrap();
            assert_eq!(with.failures, [], "seed {}", failure.seed);
        }
    }
    assert_eq!(unnoticed, [], "left out, and nobody missed them");
}

#[test]
fn every_other_rule_is_named() {
    let known = |rule: &Rule| TABLE.iter().any(|(known, ..)| known == rule);
    let missing: Vec<Rule> = Rule::ALL.into_iter().filter(|rule| !known(rule)).collect();
    assert_eq!(missing, ELSEWHERE);
}
