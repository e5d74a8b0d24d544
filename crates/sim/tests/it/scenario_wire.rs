//! Scenario `wire`: green under fire, and red when a carrier breaks its contract.

use tidings_sim::carrier;
use tidings_sim::mutant::Mutant;
use tidings_sim::{Options, run, run_seeds};

/// How many seeds a broken carrier may survive.
const SEEDS: u64 = 40;

#[test]
fn seeds_are_green_and_every_claim_is_checked() {
    let report = run_seeds("wire", 1..=10, &Options::default(), 2, &mut |_, _| true).unwrap();
    assert_eq!(report.failures, []);
    let hours = report.simulated_seconds / 3_600.0;
    assert!(report.operations as f64 / hours >= 1_000.0, "{report:?}");
    assert!(report.fault_count() as f64 / hours >= 10.0, "{report:?}");
    assert!(report.answered > report.operations / 4, "{} of {}", report.answered, report.operations);
    assert!(report.invariants.values().all(|checks| *checks > 0), "{:?}", report.invariants);
    for kind in ["message_dropped", "message_duplicated", "message_reordered", "kill", "pause", "partition"] {
        assert!(report.faults.get(kind).is_some_and(|count| *count > 0), "no {kind} in {:?}", report.faults);
    }
}

#[test]
fn the_same_seed_gives_the_same_hash() {
    let hash = |seed| run("wire", seed, &Options::default()).unwrap().trace_hash;
    assert_eq!(hash(3), hash(3));
    assert_ne!(hash(3), hash(4));
}

#[test]
fn a_carrier_that_breaks_its_contract_is_noticed() {
    for broken in carrier::Mutant::ALL {
        let options = Options { mutant: Some(Mutant::Carrier(broken)), ..Options::default() };
        let red = |seed: &u64| !run("wire", *seed, &options).unwrap().failures.is_empty();
        assert!((1..=SEEDS).any(|seed| red(&seed)), "{} survived {SEEDS} seeds", broken.name());
    }
}
