//! R7: a session that has ended is never safe again.

use super::checking::{breaks, holds};
use super::world::{Budget, Setup, World};
use std::time::Duration;
use tidings_cell::mutant::Mutant;

fn setup(mutant: Option<Mutant>) -> Setup {
    Setup {
        mutant,
        clients: 1,
        tick: Duration::from_secs(1),
        master_rate: 100,
        client_rate: 90,
        lease: Duration::from_secs(4),
        cache_lease: Duration::from_millis(1_800),
        links: false,
        slow: |_, _| true,
        budget: Budget { ticks: 9, fail_overs: 1, ..Budget::default() },
    }
}

#[test]
fn a_session_that_has_ended_is_never_safe_again() {
    holds(&setup(None), World::begun, 12, 1_000);
}

#[test]
fn a_session_that_is_raised_from_the_dead_is_noticed() {
    breaks(&setup(Some(Mutant::Resurrection)), World::begun, 12);
}
