//! All four machines together, in a small deterministic world; and the claims N1 and N2 about it.

mod bridges;
mod clients;
mod desk;
mod matchers;
mod model;
mod newcomers;
mod overtaken;
mod registrars;
mod remembering;
mod world;

use tidings_notify::mutant::Mutant;
use world::{Plan, World};

/// Runs a world; what it claims is broken, if something is.
fn run(seed: u64, mutant: Option<Mutant>) -> Result<world::Counts, String> {
    let mut world = World::new(seed, Plan::of(seed), mutant);
    world.run().map_err(|broken| format!("seed {seed}, {mutant:?}: {broken}"))
}

#[test]
fn every_client_learns_the_latest_version_whatever_fails() {
    let mut total = world::Counts::default();
    let first = std::env::var("NOTIFY_SEED").ok().and_then(|seed| seed.parse().ok());
    // Behind the first ones are those that have found something.
    for seed in first.map_or_else(|| (0..60).chain([148, 212]).collect(), |seed| vec![seed]) {
        match run(seed, None) {
            Ok(counts) => total.add(&counts),
            Err(broken) => panic!("{broken}"),
        }
    }
    // The worlds are worth something only if everything happens in them.
    println!("{total:?}");
    assert!(first.is_some() || total.all_happened(), "{total:?}");
}

#[test]
fn the_same_seed_gives_the_same_world() {
    assert_eq!(run(7, None), run(7, None));
    assert_ne!(run(7, None), run(8, None));
}

/// Each of these rules is noticed by a world without it.
#[test]
fn worlds_without_a_rule_break() {
    let noticed = [
        (Mutant::IncarnationIgnored, 40),
        (Mutant::NoMarker, 60),
        (Mutant::NoRecovery, 200),
        (Mutant::NoPostPropagation, 40),
        (Mutant::DigestIgnored, 40),
        (Mutant::NoRetransmission, 40),
        (Mutant::NoScratch, 40),
        (Mutant::AlwaysSuppress, 60),
        (Mutant::GenerationIgnored, 60),
    ];
    for (mutant, seeds) in noticed {
        let broken = (0..seeds).find_map(|seed| run(seed, Some(mutant)).err());
        assert!(broken.is_some(), "{seeds} worlds without {mutant:?} hold all the same");
    }
}
