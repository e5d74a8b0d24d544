//! What an exploration does not reach within its bounds, step by step: one story a rule, wrong without it and right with it.

use super::seats::KEY;
use super::world::{Budget, Setup, Step, Who, World};
use std::time::Duration;
use tidings_placement::mutant::Mutant;

const MS: fn(u64) -> Duration = Duration::from_millis;
const PLENTY: Budget = Budget { ticks: 400, losses: 400, repeats: 2, fail_overs: 1, restarts: 1, drains: 1 };

fn setup(mutant: Option<Mutant>) -> Setup {
    Setup {
        mutant,
        lease: MS(12_000),
        renew: MS(2_500),
        tick: MS(2_300),
        manager_rate: 100,
        owner_rates: [100, 100],
        hands_over: false,
        with_lookup: false,
        slow: |who| who == Who::Owner(0),
        in_flight: 6,
        loyal: false,
        calm_one_in: 0,
        budget: PLENTY,
    }
}

/// The first owner's clock is slow by ρ. It was granted everything and hears nothing more; a part of it is recalled for the
/// second. On real time its lease ends after 12 s, and 12 s of the manager's clock are over after 10.9.
fn a_slow_clock(mutant: Option<Mutant>) -> Option<String> {
    let setup = Setup { manager_rate: 110, owner_rates: [100, 110], ..setup(mutant) };
    let mut world = World::recalling(&setup);
    for _ in 0..5 {
        world.step(&setup, &Step::Tick);
    }
    world.wrong
}

/// The first owner is to leave and still holds its part. Its leader is elected anew, and the first thing that it hears is a
/// repetition of the owner's very first poll, in which it held nothing.
fn an_old_poll(mutant: Option<Mutant>) -> Option<String> {
    let setup = Setup { tick: MS(1_000), in_flight: 20, ..setup(mutant) };
    let mut world = World::leaving(&setup);
    while world.on_the_way() > 1 {
        world.step(&setup, &Step::Lose(1));
    }
    world.step(&setup, &Step::Cut);
    (0..4).for_each(|_| world.step(&setup, &Step::Tick));
    world.step(&setup, &Step::Elect(0));
    world.step(&setup, &Step::Deliver(0));
    // The other owner speaks to the new leader meanwhile; the first one's lease is not over.
    (0..6).for_each(|_| world.step(&setup, &Step::Tick));
    world.wrong
}

/// A lookup is away while the state of a key is lost with its owner's process, and while the key then moves cleanly.
fn a_lookup_away(mutant: Option<Mutant>) -> Option<String> {
    let setup = Setup { hands_over: true, with_lookup: true, slow: |who| who == Who::Lookup, ..setup(mutant) };
    // Few ranges move at a time, and each time takes a tick.
    let quick = Setup { tick: MS(100), ..setup.clone() };
    let mut world = World::begun(&setup);
    let holder = world.holder(KEY)?;
    let away = |world: &mut World, setup: &Setup, ticks: u32| {
        for _ in 0..ticks {
            world.step(setup, &Step::Tick);
            while let Some(at) = world.packet(Who::Lookup) {
                world.step(setup, &Step::Lose(at));
            }
        }
    };
    world.step(&setup, &Step::Restart(holder));
    away(&mut world, &setup, 8);
    away(&mut world, &quick, 60);
    assert_eq!(world.holder(KEY), Some(holder), "it has its own part again, without state");
    world.step(&setup, &Step::Drain(holder));
    away(&mut world, &quick, 60);
    assert_eq!(world.holder(KEY), Some(1 - holder), "it moved");
    for _ in 0..8 {
        world.step(&setup, &Step::Tick);
        while let Some(at) = world.packet(Who::Lookup).filter(|_| world.wrong.is_none()) {
            world.step(&setup, &Step::Deliver(at));
        }
    }
    assert!(world.lookup.as_ref().is_some_and(|seat| seat.changes >= 2), "it came back");
    world.wrong
}

#[test]
fn a_lease_outlasts_an_owners_slow_clock() {
    assert_eq!(a_slow_clock(None), None);
    let wrong = a_slow_clock(Some(Mutant::NoSkewMargin)).unwrap();
    assert!(wrong.starts_with("both owners hold"), "{wrong}");
}

#[test]
fn what_was_said_to_an_earlier_leader_releases_nothing() {
    assert_eq!(an_old_poll(None), None);
    let wrong = an_old_poll(Some(Mutant::NoHello)).unwrap();
    assert!(wrong.starts_with("both owners hold"), "{wrong}");
}

#[test]
fn a_clean_move_does_not_hide_an_earlier_loss() {
    assert_eq!(a_lookup_away(None), None);
    let wrong = a_lookup_away(Some(Mutant::CleanFlag)).unwrap();
    assert!(wrong.ends_with("heard of no loss"), "{wrong}");
}
