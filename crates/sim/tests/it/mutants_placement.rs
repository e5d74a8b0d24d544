//! Every rule of placement is needed: without it a seed turns red, by a claim that the rule is there for, and the same seed
//! is green with it.

use std::time::Duration;
use tidings_placement::mutant::Mutant as Rule;
use tidings_sim::mutant::Mutant;
use tidings_sim::{Options, run};

/// Two owners of a key, or one that serves after another has got it.
const TWO: &[&str] = &["one_believer_per_key", "lease_numbers_only_grow"];
const UNOWNED: &[&str] = &["no_key_stays_unowned", "every_key_is_owned_again", "clients_are_served_again"];

/// Seeds that are tried behind the known one: what a seed does changes with the product.
const OTHERS: std::ops::RangeInclusive<u64> = 1..=12;

/// A rule, the scenario and the seed that notice its absence, and by which claims.
const TABLE: &[(Rule, &str, u64, &[&str])] = &[
    (Rule::NoSkewMargin, "placement-directed", 1, TWO),
    (Rule::NoSequenceNumbers, "placement-directed", 1, TWO),
    (Rule::NoLeaderCheck, "placement-directed", 1, TWO),
    (Rule::NoHello, "placement-directed", 1, TWO),
    (Rule::CleanFlag, "placement-directed", 7, &["losses_are_told"]),
    (Rule::TwinTaken, "placement-directed", 1, TWO),
    (Rule::LeaseFromReceipt, "placement", 1, &["leases_are_dated_from_the_question"]),
    (Rule::HeardNotAdvanced, "placement", 4, UNOWNED),
    (Rule::LapseRevived, "placement", 1, &["a_lapsed_lease_stays_lapsed"]),
    (Rule::UnknownIsDone, "placement", 5, TWO),
    (Rule::NumbersReused, "placement", 1, &["lease_numbers_only_grow"]),
    // Whoever comes back gets a part anew: only while it is away is what it held missed.
    (Rule::ExpiryUnnoticed, "placement-directed", 1, &["no_key_stays_unowned"]),
    (Rule::AddressUntold, "placement-directed", 1, &["addresses_are_told"]),
    (Rule::ClockStops, "placement-directed", 2, TWO),
];

fn options(mutant: Option<Rule>) -> Options {
    Options { simulated: Duration::from_secs(240), mutant: mutant.map(Mutant::Placement), ..Options::default() }
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

#[test]
fn every_rule_is_missed_when_it_is_left_out() {
    let mut green = std::collections::BTreeSet::new();
    for (rule, scenario, known, by) in TABLE {
        let Some((seed, replay)) = noticed(*rule, scenario, *known, by) else { panic!("{rule} was not missed") };
        println!("{rule}: {replay}");
        assert!(replay.starts_with(&format!("tidings sim {scenario} --seed {seed} --mutant {rule}")), "{replay}");
        if green.insert((*scenario, seed)) {
            assert_eq!(run(scenario, seed, &options(None)).unwrap().failures, [], "{scenario}, seed {seed}");
        }
    }
}

#[test]
fn every_rule_has_a_seed() {
    let known = |rule: &Rule| TABLE.iter().any(|(known, ..)| known == rule);
    // In the scenarios no application loses what it has taken over (F9), a loss of what a move was given up with is a loss that
    // is told (F9), and no namespace has times that F10 refuses: tests of the machines miss these (`owner/tests.rs`,
    // `manager/tests/moves.rs` and `records.rs` of `crates/placement/src`).
    let elsewhere = [Rule::MissingTaken, Rule::MovesCutShort, Rule::MovesForgotten, Rule::TimesUnchecked];
    assert_eq!(Rule::ALL.into_iter().filter(|rule| !known(rule)).collect::<Vec<_>>(), elsewhere);
}
