//! Every rule of Sketch is needed: without one of them a seed turns red by a claim that the rule is there for, and the same seed is
//! green with it.

use std::collections::BTreeSet;
use std::time::Duration;
use tidings_sim::mutant::Mutant;
use tidings_sim::{Options, run};
use tidings_sketch::mutant::Mutant as Rule;

const DELAYED: &[&str] = &["reads_are_delayed_once"];
/// What a liar alone can bring about.
const LIARS: &[&str] = &["answers_were_true", "reads_are_delayed_once", "fast_answers_were_agreed_on"];
/// The same without a sketcher.
const UNREMEMBERED: &[&str] = &["answers_were_true", "reads_are_delayed_once", "remembered_answers_were_ordered"];
/// Seeds that are tried behind the known one: what a seed does changes with the product.
const OTHERS: std::ops::RangeInclusive<u64> = 1..=40;

/// A rule, the seed that notices its absence, and by which claims.
const TABLE: &[(Rule, u64, &[&str])] = &[
    (Rule::MismatchAccepted, 1, LIARS),
    (Rule::UpdateOfThen, 32, DELAYED),
    (Rule::ComparedWithThen, 12, DELAYED),
    (Rule::AnsweredFirst, 2, DELAYED),
    (Rule::NoFloor, 1, DELAYED),
    (Rule::IncarnationIgnored, 26, DELAYED),
    (Rule::ErrorsKeepEntry, 6, DELAYED),
    (Rule::RequestUnbound, 1, &["answers_were_true", "fast_answers_were_agreed_on"]),
    (Rule::QuorumShort, 1, LIARS),
    (Rule::NonceIgnored, 3, DELAYED),
    (Rule::SigmaUnmatched, 17, DELAYED),
    (Rule::EntriesOutliveRange, 2, DELAYED),
    (Rule::LostOfOneSite, 6, DELAYED),
    (Rule::SessionIgnored, 8, &["sessions_read_their_writes"]),
    (Rule::ExecutedAgain, 1, &["writes_are_linearizable"]),
];

/// The same for D-Prophecy's.
const DIRECT: &[(Rule, u64, &[&str])] = &[
    (Rule::OrderedShort, 149, DELAYED),
    (Rule::FastQuorumShort, 1, UNREMEMBERED),
    (Rule::NullCounts, 1, UNREMEMBERED),
    (Rule::BodyUnchecked, 1, UNREMEMBERED),
    (Rule::FastNonceIgnored, 2, DELAYED),
    (Rule::RepliedFirst, 1, DELAYED),
    (Rule::RepeatRemembered, 5, DELAYED),
];

/// Rules that no seed here misses: tests of the machines hold them (`crates/sketch/tests/it`, `crates/sketch/src/http`).
const ELSEWHERE: &[Rule] = &[
    Rule::OverlapKept,
    Rule::Joined,
    Rule::LeaseIgnored,
    Rule::PlaceUnmatched,
    Rule::ReplayRemembered,
    Rule::ExecutorTrusted,
    Rule::TransferKeepsTable,
    Rule::AppliedIsNewest,
    Rule::BlackListIgnored,
    Rule::AllEjected,
    Rule::AllowanceIgnored,
    Rule::ConditionsForwarded,
    Rule::InputUnsketched,
];

/// Two minutes of faults.
fn options(mutant: Option<Rule>) -> Options {
    Options { simulated: Duration::from_secs(120), mutant: mutant.map(Mutant::Sketch), ..Options::default() }
}

fn each_is_missed(scenario: &str, table: &[(Rule, u64, &[&str])]) {
    let (mut green, mut unnoticed) = (BTreeSet::new(), Vec::new());
    for (rule, known, by) in table {
        let seeds = std::iter::once(*known).chain(OTHERS.filter(|seed| seed != known));
        let red = seeds.filter_map(|seed| run(scenario, seed, &options(Some(*rule))).ok()?.failures.pop());
        let Some(failure) = red.into_iter().find(|failure| by.contains(&failure.invariant.as_str())) else {
            unnoticed.push(*rule);
            continue;
        };
        let replay = format!("tidings sim {scenario} --seed {} --mutant {rule} --length 2", failure.seed);
        assert_eq!(failure.replay, replay);
        if green.insert(failure.seed) {
            assert_eq!(run(scenario, failure.seed, &options(None)).unwrap().failures, [], "seed {}", failure.seed);
        }
    }
    assert_eq!(unnoticed, [], "left out, and nobody missed them");
}

#[test]
fn every_rule_is_missed_when_it_is_left_out() {
    each_is_missed("sketch", TABLE);
}

#[test]
fn every_rule_of_d_prophecy_is_missed_when_it_is_left_out() {
    each_is_missed("sketch-direct", DIRECT);
}

#[test]
fn every_rule_has_a_seed_or_is_held_elsewhere() {
    let rules: BTreeSet<Rule> =
        TABLE.iter().chain(DIRECT).map(|(rule, ..)| *rule).chain(ELSEWHERE.iter().copied()).collect();
    assert_eq!(rules, BTreeSet::from(Rule::ALL));
}
