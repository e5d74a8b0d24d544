//! R4: no cached read is stale after a write was answered, whatever overtakes what.

use super::checking::{breaks, holds};
use super::client::Part;
use super::world::{Budget, Setup, World};
use std::time::Duration;
use tidings_cell::mutant::Mutant;

/// The writer and the links are quick, the reader's session is not.
fn setup(mutant: Option<Mutant>) -> Setup {
    Setup {
        mutant,
        clients: 2,
        tick: Duration::from_millis(500),
        master_rate: 100,
        client_rate: 90,
        lease: Duration::from_secs(12),
        cache_lease: Duration::from_millis(1_000),
        links: true,
        slow: |sender, _| sender.client == 1 && sender.part == Part::Session,
        budget: Budget { ticks: 2, reads: 2, writes: 2, ..Budget::default() },
    }
}

#[test]
fn no_cached_read_is_stale_after_a_write_was_answered() {
    holds(&setup(None), World::begun, 8, 1_000);
}

#[test]
fn nor_with_a_slow_link_and_losses() {
    let slow = |sender: super::world::Sender, _: &_| sender.client == 1;
    let budget = Budget { ticks: 2, reads: 1, writes: 1, losses: 1, ..Budget::default() };
    holds(&Setup { slow, budget, ..setup(None) }, World::begun, 9, 1_000);
}

#[test]
fn nor_is_an_own_write_hidden_by_a_slow_read() {
    let slow = |sender: super::world::Sender, _: &_| sender.part == Part::Session;
    let budget = Budget { reads: 2, writes: 2, losses: 1, ..Budget::default() };
    holds(&Setup { clients: 1, slow, budget, ..setup(None) }, World::begun, 9, 1_000);
}

#[test]
fn each_rule_that_is_left_out_is_noticed() {
    for mutant in [Mutant::StampIgnored, Mutant::ImplicitAck, Mutant::NoInvalidationWait, Mutant::LeaseFromArrival] {
        breaks(&setup(Some(mutant)), World::begun, 8);
    }
}
