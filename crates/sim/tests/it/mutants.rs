//! The simulator is worth something: each known bug turns a seed red, and the same seed is green without it.

use tidings_sim::mutant::Mutant;
use tidings_sim::{Options, run};

/// How many seeds a mutant may survive.
const SEEDS: u64 = 200;

/// The first of these seeds that notices, and the invariant that did.
fn noticed(mutant: Mutant, seeds: impl IntoIterator<Item = u64>) -> (u64, String) {
    for seed in seeds {
        let report = run("store", seed, &Options { mutant: Some(mutant), ..Options::default() }).unwrap();
        if let Some(failure) = report.failures.first() {
            assert!(
                failure.replay.starts_with(&format!("tidings sim store --seed {seed} --mutant {mutant}")),
                "{}",
                failure.replay
            );
            return (seed, failure.invariant.clone());
        }
    }
    panic!("{mutant} survived {SEEDS} seeds");
}

fn red_with_and_green_without(mutant: Mutant, by: &[&str]) {
    red_with_and_green_without_on(mutant, by, 1);
}

/// For a bug that few seeds notice: the one that is known to comes first, and the others only if it has ceased to.
fn red_with_and_green_without_on(mutant: Mutant, by: &[&str], known: u64) {
    let (seed, invariant) = noticed(mutant, [known].into_iter().chain(1..=SEEDS));
    assert!(by.contains(&invariant.as_str()), "{mutant}, seed {seed}: noticed by {invariant}");
    let sound = run("store", seed, &Options::default()).unwrap();
    assert_eq!(sound.failures, []);
}

#[test]
fn a_skipped_fsync_is_noticed() {
    red_with_and_green_without(Mutant::SkippedFsync, &["synced_records_survive"]);
}

#[test]
fn an_early_acknowledgement_is_noticed() {
    let by = ["replicas_agree", "acknowledged_writes_survive", "reads_are_linearizable", "feed_delivers_every_entry"];
    red_with_and_green_without(Mutant::EarlyAcknowledgement, &by);
}

#[test]
fn a_double_apply_is_noticed() {
    red_with_and_green_without(Mutant::DoubleApply, &["applied_once_in_order", "feed_delivers_every_entry"]);
}

#[test]
fn a_lost_vote_is_noticed() {
    let by = ["one_leader_per_epoch", "replicas_agree", "leases_exclude_other_leaders"];
    red_with_and_green_without(Mutant::LostVote, &by);
}

#[test]
fn a_reordered_apply_is_noticed() {
    let by = ["replicas_agree", "acknowledged_writes_survive", "requests_are_understood"];
    red_with_and_green_without(Mutant::ReorderedApply, &by);
}

#[test]
fn a_hasty_rejoin_is_noticed() {
    let by = ["one_leader_per_epoch", "replicas_agree", "reads_are_linearizable", "acknowledged_writes_survive"];
    red_with_and_green_without(Mutant::HastyRejoin, &by);
}

#[test]
fn a_stale_read_is_noticed() {
    red_with_and_green_without_on(Mutant::StaleRead, &["reads_are_linearizable"], 32);
}

#[test]
fn a_forgotten_lease_is_noticed() {
    red_with_and_green_without_on(Mutant::ForgottenLease, &["leases_exclude_other_leaders"], 33);
}

#[test]
fn every_mutant_has_a_name_that_finds_it() {
    for mutant in Mutant::ALL {
        assert_eq!(mutant.name().parse(), Ok(mutant));
    }
    assert!("sound".parse::<Mutant>().unwrap_err().contains("lost-vote"));
}
