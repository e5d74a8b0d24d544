//! One model a rule.

use super::world::{Budget, Setup, Who, World};
use std::time::Duration;
use tidings_explore::{Bounds, Seen, explore};
use tidings_placement::mutant::Mutant;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// The first owner's packets are slow; everybody else's arrive at once.
const FIRST: fn(Who) -> bool = |who| who == Who::Owner(0);

/// One state of so many is followed into calm. A mutant is sought by what it breaks at once.
fn calm(mutant: Option<Mutant>) -> u64 {
    if mutant.is_none() { 64 } else { 0 }
}

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
        slow: FIRST,
        in_flight: 3,
        loyal: false,
        calm_one_in: calm(mutant),
        budget: Budget { ticks: 9, losses: 1, repeats: 1, ..Budget::default() },
    }
}

/// The first owner's clock is slow by ρ, and it is out of reach: on real time its lease ends after 12 s, and 12 s of the
/// manager's clock are over after 10.9.
fn skew(mutant: Option<Mutant>) -> Setup {
    let budget = Budget { ticks: 4, ..Budget::default() };
    Setup { manager_rate: 110, owner_rates: [100, 110], in_flight: 2, budget, ..setup(mutant) }
}

/// An answer is long under way.
fn late(mutant: Option<Mutant>) -> Setup {
    let budget = Budget { ticks: 7, losses: 1, ..Budget::default() };
    Setup { in_flight: 2, budget, ..setup(mutant) }
}

/// The first leader is cut off together with the first owner.
fn cut_off(mutant: Option<Mutant>) -> Setup {
    let budget = Budget { ticks: 10, fail_overs: 1, ..Budget::default() };
    Setup { slow: |_| false, loyal: true, budget, ..setup(mutant) }
}

/// A fail-over, with packets of the time before it still under way. The first owner's lease is not over.
fn fail_over(mutant: Option<Mutant>) -> Setup {
    Setup { in_flight: 20, tick: MS(1_000), budget: Budget { ticks: 4, ..Budget::default() }, ..setup(mutant) }
}

/// Long renewals, so that an answer to the latest question can come after the lease.
fn lapse(mutant: Option<Mutant>) -> Setup {
    let budget = Budget { ticks: 6, losses: 2, repeats: 1, ..Budget::default() };
    Setup { lease: MS(72_000), renew: MS(60_000), tick: MS(31_000), budget, ..setup(mutant) }
}

/// Answers cross questions; afterwards all must be well again.
fn race(mutant: Option<Mutant>) -> Setup {
    Setup { calm_one_in: 4, budget: Budget { ticks: 3, losses: 1, repeats: 1, ..Budget::default() }, ..setup(mutant) }
}

/// A lookup that comes back.
fn away(mutant: Option<Mutant>) -> Setup {
    let budget = Budget { ticks: 3, losses: 1, restarts: 1, ..Budget::default() };
    Setup { hands_over: true, with_lookup: true, slow: |who| who == Who::Lookup, budget, ..setup(mutant) }
}

/// Restarts and drains while everything is slow.
fn everything(mutant: Option<Mutant>) -> Setup {
    Setup {
        slow: |_| true,
        in_flight: 6,
        hands_over: true,
        with_lookup: true,
        manager_rate: 110,
        owner_rates: [100, 110],
        budget: Budget { ticks: 12, losses: 4, repeats: 2, fail_overs: 2, restarts: 1, drains: 1 },
        ..setup(mutant)
    }
}

type Rule = (fn(Option<Mutant>) -> Setup, fn(&Setup) -> World, usize);

const RULES: &[(Mutant, Rule)] = &[
    (Mutant::NoSkewMargin, (skew, World::nearly_over, 6)),
    (Mutant::LeaseFromReceipt, (late, World::joining, 12)),
    (Mutant::NoSequenceNumbers, (late, World::joining, 12)),
    (Mutant::NoLeaderCheck, (cut_off, World::begun, 14)),
    (Mutant::NoHello, (fail_over, World::elected_anew, 6)),
    (Mutant::HeardNotAdvanced, (race, World::begun, 7)),
    (Mutant::LapseRevived, (lapse, World::begun, 9)),
    (Mutant::CleanFlag, (away, World::away, 6)),
];

/// Rules whose models are so small that every order of their steps is taken.
const SMALL: &[Mutant] = &[Mutant::NoSkewMargin, Mutant::NoLeaderCheck, Mutant::NoHello, Mutant::HeardNotAdvanced];

/// What `cargo test` spends on one model.
const SHORT: Bounds = Bounds { depth: 0, states: 20_000, time: Duration::from_secs(20) };

#[test]
fn every_rule_that_is_left_out_is_noticed() {
    let mut unnoticed: Vec<Mutant> = Vec::new();
    for (mutant, (setup, beginning, depth)) in RULES {
        let bounds = Bounds { depth: *depth, states: 400_000, time: Duration::from_secs(60) };
        let seen = explore(&setup(Some(*mutant)), *beginning, bounds);
        println!("{mutant}: {} states: {:?}", seen.states, seen.wrong);
        unnoticed.extend(seen.wrong.is_none().then_some(*mutant));
    }
    assert_eq!(unnoticed, []);
}

#[test]
fn nothing_is_wrong_with_every_rule() {
    for (mutant, (setup, beginning, depth)) in RULES {
        let small = SMALL.contains(mutant);
        // The small ones end long before that.
        let time = if small { Duration::from_secs(300) } else { SHORT.time };
        let bounds = Bounds { depth: *depth, time, ..SHORT };
        let Seen { wrong, states, exhausted } = explore(&setup(None), *beginning, bounds);
        assert_eq!(wrong, None, "the model of {mutant}");
        println!("{mutant}: {states} states, exhausted: {exhausted}");
        assert!(states >= 50, "only {states} states were seen in the model of {mutant}");
        assert!(exhausted || !small, "the model of {mutant} is not small any more");
    }
}

#[test]
fn nothing_is_wrong_with_everything_at_once() {
    for beginning in [World::begun, World::joining] {
        let bounds = Bounds { depth: 5, states: 6_000, time: Duration::from_secs(5) };
        let seen = explore(&everything(None), beginning, bounds);
        assert_eq!(seen.wrong, None);
        assert!(seen.states >= 50, "only {} states were seen", seen.states);
    }
}

#[test]
#[ignore = "ten minutes: scripts/model.sh"]
fn nothing_is_wrong_for_ten_minutes() {
    let time = Duration::from_secs(55);
    for (mutant, (setup, beginning, depth)) in RULES {
        let seen = explore(&setup(None), *beginning, Bounds { depth: depth + 3, states: 200_000, time });
        assert_eq!(seen.wrong, None, "the model of {mutant}");
        println!("{mutant}: {} states, exhausted: {}", seen.states, seen.exhausted);
    }
    for beginning in [World::begun, World::joining] {
        let seen = explore(&everything(None), beginning, Bounds { depth: 30, states: 200_000, time });
        assert_eq!(seen.wrong, None);
        println!("everything: {} states", seen.states);
    }
}
