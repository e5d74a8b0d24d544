//! Sketchers in front of a group with liars in it, in a small deterministic world; and the claims S1 to S5 about it.

mod direct;
mod group;
mod ordering;
mod sketchers;
mod world;

use std::collections::BTreeSet;
use tidings_sketch::mutant::Mutant;
use tidings_sketch::replica::liar::Sin;
use world::{Carries, Counts, Plan, World};

/// Runs a world; what it claims is broken, if something is.
fn run(plan: Plan, mutant: Option<Mutant>) -> Result<Counts, String> {
    let name = format!("{plan:?}, {mutant:?}");
    World::new(plan, mutant).run().map_err(|broken| format!("{name}: {broken}"))
}

#[test]
fn no_read_goes_back_whatever_one_liar_does() {
    let mut total = Counts::default();
    let only = std::env::var("SKETCH_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in only.map_or(0..18, |seed| seed..seed + 1) {
        match run(Plan::of(seed), None) {
            Ok(counts) => total.add(&counts),
            Err(broken) => panic!("{broken}"),
        }
    }
    // The worlds are worth something only if everything happens in them.
    println!("{total:?}");
    assert!(only.is_some() || total.all_happened(), "{total:?}");
}

#[test]
fn the_same_seed_gives_the_same_world() {
    assert_eq!(run(Plan::of(7), None), run(Plan::of(7), None));
    assert_ne!(run(Plan::of(7), None), run(Plan::of(8), None));
}

/// Each of these rules is noticed by a world without it, in a kept seed whose world holds with it.
#[test]
fn worlds_without_a_rule_break() {
    let noticed = [
        (Mutant::MismatchAccepted, 0, "older"),
        (Mutant::UpdateOfThen, 3, "older"),
        (Mutant::ComparedWithThen, 1, "older"),
        (Mutant::AnsweredFirst, 0, "older"),
        (Mutant::Joined, 0, "older"),
        (Mutant::NoFloor, 8, "older"),
        (Mutant::IncarnationIgnored, 3, "older"),
        (Mutant::ErrorsKeepEntry, 0, "older"),
        (Mutant::RequestUnbound, 45, "older"),
        (Mutant::QuorumShort, 0, "older"),
        (Mutant::NonceIgnored, 0, "older"),
        (Mutant::SigmaUnmatched, 17, "older"),
        (Mutant::LeaseIgnored, 64, "older"),
        (Mutant::EntriesOutliveRange, 0, "older"),
        (Mutant::SessionIgnored, 3, "own write"),
        (Mutant::ExecutedAgain, 0, "twice"),
    ];
    for (mutant, seed, sentence) in noticed {
        let broken = run(Plan::of(seed), Some(mutant)).err();
        assert!(broken.as_ref().is_some_and(|broken| broken.contains(sentence)), "{mutant:?}: {broken:?}");
    }
    for seed in noticed.map(|(_, seed, _)| seed).into_iter().collect::<BTreeSet<_>>() {
        assert_eq!(run(Plan::of(seed), None).err(), None);
    }
}

/// Rule J: entries go along with a range that is handed over, copied once nobody answers for it any more. No read goes back, and
/// more of them are fast; copied while the owner still answers, or for a move that was called off, they bring back what was.
#[test]
fn entries_are_carried_once_nobody_answers_for_their_range() {
    let world = |seed, carries| run(Plan { moves: true, carries, ..Plan::of(seed) }, None);
    let fast = |carries| -> u64 {
        (0..8).map(|seed| world(seed, carries).unwrap_or_else(|broken| panic!("{broken}")).fast()).sum()
    };
    let (with, without) = (fast(Carries::Frozen), fast(Carries::Nothing));
    assert!(with > without, "{with} fast reads with entries that are carried, {without} without");
    for left_out in [Carries::Early, Carries::Leaked] {
        let broken = (0..20).find_map(|seed| world(seed, left_out).err());
        assert!(broken.as_ref().is_some_and(|broken| broken.contains("older")), "{left_out:?}: {broken:?}");
    }
}

/// Before members that fail and do not lie: one is asked for the newest, others lag, and no read goes back. Red if whoever is asked says
/// what it has applied, and if an answer is not held against what is remembered.
#[test]
fn no_read_goes_back_before_members_that_lag() {
    let mut total = Counts::default();
    for seed in 0..12 {
        match run(Plan::tolerant(seed), None) {
            Ok(counts) => total.add(&counts),
            Err(broken) => panic!("{broken}"),
        }
    }
    assert!(total.lagging_members_were_asked(), "{total:?}");
    for left_out in [Mutant::AppliedIsNewest, Mutant::MismatchAccepted, Mutant::NoFloor, Mutant::SessionIgnored] {
        let broken = (0..60).find_map(|seed| run(Plan::tolerant(seed), Some(left_out)).err());
        let noticed = broken.as_ref().is_some_and(|broken| broken.contains("older") || broken.contains("own write"));
        assert!(noticed, "{left_out:?}: {broken:?}");
    }
}

/// With one liar more than the group bears, made-up answers come through: the claim needs its assumption.
#[test]
fn two_liars_of_four_break_it() {
    let broken = (0..10).find_map(|seed| run(Plan { liars: 2, sin: Sin::Forger, ..Plan::of(seed) }, None).err());
    let broken = broken.expect("two forgers of four make up what they like");
    assert!(broken.contains("never was"), "{broken}");
}
