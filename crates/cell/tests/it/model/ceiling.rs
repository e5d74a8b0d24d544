//! R6: no lease outlives what a new master waits for.

use super::checking::{breaks, holds};
use super::client::Part;
use super::world::{Budget, Setup, World};
use std::time::Duration;
use tidings_cell::mutant::Mutant;

/// One session that is out of reach after the fail-over.
fn sessions(mutant: Option<Mutant>) -> Setup {
    Setup {
        mutant,
        clients: 1,
        tick: Duration::from_secs(2),
        master_rate: 100,
        client_rate: 90,
        lease: Duration::from_secs(8),
        cache_lease: Duration::from_millis(1_800),
        links: false,
        slow: |_, _| true,
        budget: Budget { ticks: 8, fail_overs: 1, ..Budget::default() },
    }
}

/// A reader that is out of reach after the fail-over, and a writer that is not.
fn caches(mutant: Option<Mutant>) -> Setup {
    Setup {
        clients: 2,
        tick: Duration::from_millis(400),
        cache_lease: Duration::from_millis(800),
        links: true,
        slow: |sender, _| sender.client == 1 && sender.part == Part::Session,
        budget: Budget { ticks: 4, reads: 1, writes: 1, fail_overs: 1, ..Budget::default() },
        ..sessions(mutant)
    }
}

#[test]
fn a_new_master_ends_no_session_that_its_client_counts_on() {
    holds(&sessions(None), World::begun, 10, 1_000);
}

#[test]
fn a_new_master_opens_after_the_last_cached_copy() {
    holds(&caches(None), World::begun, 8, 1_000);
}

#[test]
fn leases_beyond_the_ceiling_are_noticed() {
    breaks(&sessions(Some(Mutant::CeilingIgnored)), World::begun, 10);
}

#[test]
fn a_master_that_opens_at_once_is_noticed() {
    breaks(&caches(Some(Mutant::OpensAtOnce)), World::begun, 8);
}
