//! D-Prophecy: what counts for a client, what a replica remembers, and both in a world with a liar.

mod client;
mod replica;
mod world;

use std::collections::BTreeSet;
use tidings_sketch::mutant::Mutant;
use tidings_sketch::replica::liar::Sin;
use world::{Counts, Plan, World};

fn run(plan: Plan, mutant: Option<Mutant>) -> Result<Counts, String> {
    let name = format!("{plan:?}, {mutant:?}");
    World::new(plan, mutant).run().map_err(|broken| format!("{name}: {broken}"))
}

#[test]
fn no_read_goes_back_without_a_sketcher_either() {
    let mut total = Counts::default();
    for seed in 0..60 {
        match run(Plan::of(seed), None) {
            Ok(counts) => total.add(&counts),
            Err(broken) => panic!("{broken}"),
        }
    }
    // The worlds are worth something only if everything happens in them.
    println!("{total:?}");
    assert!(total.all_happened(), "{total:?}");
}

#[test]
fn the_same_seed_gives_the_same_world() {
    assert_eq!(run(Plan::of(7), None), run(Plan::of(7), None));
    assert_ne!(run(Plan::of(7), None), run(Plan::of(8), None));
}

/// Each of these rules is noticed by a world without it, in a kept seed (or one of the next) whose world holds with it.
#[test]
fn worlds_without_a_rule_break() {
    let noticed = [
        (Mutant::OrderedShort, 5, "older"),
        (Mutant::FastQuorumShort, 0, ""),
        (Mutant::ExecutorTrusted, 14, "older"),
        (Mutant::NullCounts, 2, ""),
        (Mutant::BodyUnchecked, 0, ""),
        (Mutant::FastNonceIgnored, 1, "older"),
        (Mutant::RepliedFirst, 0, "older"),
        (Mutant::RepeatRemembered, 10, "older"),
        (Mutant::ReplayRemembered, 14, "older"),
        (Mutant::TransferKeepsTable, 114, "older"),
        (Mutant::ErrorsKeepEntry, 0, "older"),
    ];
    let (mut seeds, mut unnoticed) = (BTreeSet::new(), Vec::new());
    for (mutant, known, sentence) in noticed {
        let red = (known..known + 200).find(|seed| {
            let broken = run(Plan::of(*seed), Some(mutant)).err();
            broken.is_some_and(|broken| broken.contains(sentence) && !broken.contains("never answered"))
        });
        match red {
            Some(seed) => _ = seeds.insert(seed),
            None => unnoticed.push(mutant),
        }
    }
    assert_eq!(unnoticed, [], "left out, and nobody missed them");
    for seed in seeds {
        assert_eq!(run(Plan::of(seed), None).err(), None);
    }
}

/// With one liar more than the group bears, the claim needs its assumption.
#[test]
fn two_liars_of_four_break_it() {
    let plan = |seed| Plan { liars: 2, sin: Sin::Forger, true_in_order: false, ..Plan::of(seed) };
    let broken = (0..20).find_map(|seed| run(plan(seed), None).err().filter(|broken| broken.contains("never was")));
    assert!(broken.is_none(), "two forgers of four do not make 2f + 1: {broken:?}");
    let plan = |seed| Plan { liars: 3, ..plan(seed) };
    let broken = (0..20).find_map(|seed| run(plan(seed), None).err().filter(|broken| broken.contains("never was")));
    assert!(broken.is_some(), "three of them make up what they like");
    let plan = |seed| Plan { liars: 2, sin: Sin::Stale, ..Plan::of(seed) };
    let broken = (0..60).find_map(|seed| run(plan(seed), None).err().filter(|broken| broken.contains("older")));
    assert!(broken.is_some(), "two who say what they like of the past take readers back");
}
