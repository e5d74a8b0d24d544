//! The network: cuts, weather, what is held up.

use tidings_sim::clock::SimTime;
use tidings_sim::kernel::HostId;

use std::time::Duration;
use tidings_base::Seeded;
use tidings_sim::network::*;

fn network(hosts: usize) -> Network {
    let mut network = Network::new(Seeded::new(1));
    network.grow(hosts);
    network
}

#[test]
fn a_one_way_cut_stops_one_way() {
    let mut network = network(2);
    let (a, b) = (HostId(0), HostId(1));
    let cut = network.cut(vec![(a, b)]);
    assert_eq!(network.route(SimTime::ZERO, a, b), Arrivals::default());
    assert!(network.route(SimTime::ZERO, b, a).first.is_some());
    network.heal(cut);
    network.heal(cut);
    assert!(network.route(SimTime::ZERO, a, b).first.is_some());
    assert_eq!(network.counts().cut, 1);
}

#[test]
fn overlapping_cuts_heal_one_by_one() {
    let mut network = network(3);
    let (a, b, c) = (HostId(0), HostId(1), HostId(2));
    let first = network.cut(vec![(a, b), (b, a)]);
    network.cut(vec![(a, b), (a, c)]);
    network.heal(first);
    assert!(!network.connected(a, b) && network.connected(b, a) && !network.connected(a, c));
    network.heal_all();
    assert!(network.connected(a, b) && network.connected(a, c));
}

#[test]
fn what_is_held_up_is_overtaken() {
    let mut network = network(2);
    let (a, b) = (HostId(0), HostId(1));
    network.hold_up(a, b, Duration::from_secs(2));
    let late = network.route(SimTime::ZERO, a, b).first;
    assert!(network.route(SimTime::ZERO, b, a).first < late);
    network.hold_up(a, b, Duration::ZERO);
    assert!(network.route(SimTime::ZERO, a, b).first < late);
    assert_eq!(network.counts().reordered, 1);
}

#[test]
fn bad_weather_drops_duplicates_delays_and_reorders() {
    let mut network = network(2);
    network.set_weather(Weather {
        drop: 0.1,
        duplicate: 0.1,
        tail: 0.1,
        tail_delay: Duration::from_secs(1),
        ..Weather::CALM
    });
    for i in 0..1_000 {
        network.route(SimTime(i * 100_000_000), HostId(0), HostId(1));
    }
    let counts = network.counts();
    assert_eq!(counts.sent, 1_000);
    for count in [counts.dropped, counts.duplicated, counts.delayed, counts.reordered] {
        assert!(count > 20 && count < 500, "{counts:?}");
    }
}
