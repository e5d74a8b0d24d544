//! R3: the client's lease never outlives the master's, whatever the delays, with the clocks' rates at the bound.

use super::checking::{breaks, holds};
use super::world::{Budget, Setup, World};
use std::time::Duration;
use tidings_cell::mutant::Mutant;

fn setup(client_rate: u64, mutant: Option<Mutant>) -> Setup {
    Setup {
        mutant,
        clients: 1,
        tick: Duration::from_secs(1),
        master_rate: 100,
        client_rate,
        lease: Duration::from_secs(4),
        cache_lease: Duration::from_millis(1_800),
        links: false,
        slow: |_, _| true,
        budget: Budget { ticks: 8, losses: 1, ..Budget::default() },
    }
}

fn beginning(setup: &Setup) -> World {
    let mut world = World::new(setup);
    world.begin(setup, 0);
    world
}

#[test]
fn a_lease_never_outlives_the_masters() {
    for client_rate in [90, 100, 110] {
        holds(&setup(client_rate, None), beginning, 11, 1_000);
    }
}

#[test]
fn a_lease_dated_from_its_arrival_does() {
    for client_rate in [90, 100] {
        breaks(&setup(client_rate, Some(Mutant::LeaseFromArrival)), beginning, 11);
    }
}
