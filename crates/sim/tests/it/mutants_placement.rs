//! Rules of placement are needed: without one of them one of the first seeds turns red, by the claim that the rule is there
//! for; `scenario_placement` holds the same seeds green. What needs a rarer story is shown by the models.

use std::time::Duration;
use tidings_placement::mutant::Mutant as Rule;
use tidings_sim::mutant::Mutant;
use tidings_sim::{Options, run};

/// Two owners of a key, or one that serves after another has got it.
const TWO: &[&str] = &["one_believer_per_key", "lease_numbers_only_grow"];
const UNOWNED: &[&str] = &["every_key_is_owned_again", "clients_are_served_again"];

/// A rule, and the claims that notice its absence.
const TABLE: &[(Rule, &[&str])] = &[
    (Rule::NoSkewMargin, TWO),
    (Rule::NoSequenceNumbers, &["one_believer_per_key", "lease_numbers_only_grow", "a_lapsed_lease_stays_lapsed"]),
    (Rule::LeaseFromReceipt, &["leases_are_dated_from_the_question"]),
    (Rule::NoLeaderCheck, TWO),
    (Rule::NoHello, &["one_believer_per_key", "lease_numbers_only_grow", "losses_are_told"]),
    (Rule::HeardNotAdvanced, UNOWNED),
    (Rule::LapseRevived, &["a_lapsed_lease_stays_lapsed"]),
    (Rule::CleanFlag, &["losses_are_told"]),
];

/// The first of these seeds that notices is enough.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=20;

#[test]
fn every_rule_is_missed_when_it_is_left_out() {
    for (rule, by) in TABLE.iter().filter(|(rule, _)| !MODELLED.contains(rule)) {
        let mutant = Some(Mutant::Placement(*rule));
        let options = Options { simulated: Duration::from_secs(300), mutant, ..Options::default() };
        let red = SEEDS.filter_map(|seed| run("placement", seed, &options).ok()?.failures.pop()).next();
        let Some(failure) = red else { panic!("{rule} was not missed by any of {SEEDS:?}") };
        println!("{rule}: {failure:?}");
        assert!(by.contains(&failure.invariant.as_str()), "{rule}, seed {}: {}", failure.seed, failure.invariant);
        assert_eq!(failure.replay, format!("tidings sim placement --seed {} --mutant {rule}", failure.seed));
    }
}

/// No seed that notices them is known: the models of `tidings-placement` do (`rules.rs`, `scripts.rs`).
const MODELLED: &[Rule] =
    &[Rule::NoSkewMargin, Rule::NoSequenceNumbers, Rule::NoLeaderCheck, Rule::NoHello, Rule::CleanFlag];
