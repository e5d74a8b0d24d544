//! The suite that the simulator's model passes too.

use crate::harness::World;
use std::ops::Range;
use std::time::Duration;
use tidings_consensus::Flush;
use tidings_sim::conformance;

fn conforms(flush: Flush, seeds: Range<u64>) {
    let mut make = |nodes: usize, seed: u64| {
        let mut world = World::new(nodes as u64, nodes as u64, seed);
        world.flush = flush;
        for node in conformance::Cluster::nodes(&world) {
            world.start(node);
        }
        Box::new(world) as Box<dyn conformance::Cluster>
    };
    if let Err(what) = conformance::run_all(&mut make, seeds) {
        panic!("{what}");
    }
}

#[test]
fn the_binding_does_what_every_agreed_log_does() {
    conforms(Flush::Inline, 0..1);
}

#[test]
fn the_binding_does_it_while_the_disk_lags_behind() {
    conforms(Flush::Paced(Duration::from_millis(5)), 100..101);
}

/// For the extended run: `TIDINGS_SEEDS=<first>..<end> cargo test -p tidings-consensus --test it -- --ignored`.
#[test]
#[ignore = "many seeds; part of the extended run"]
fn the_binding_does_it_with_many_seeds() {
    let seeds = std::env::var("TIDINGS_SEEDS").unwrap_or_else(|_| "0..20".into());
    let (first, end) = seeds.split_once("..").expect("TIDINGS_SEEDS is <first>..<end>");
    let (first, end): (u64, u64) = (first.parse().unwrap(), end.parse().unwrap());
    for seed in first..end {
        let paces = [Flush::Inline, Flush::Paced(Duration::from_millis(5)), Flush::Paced(Duration::from_millis(70))];
        conforms(paces[seed as usize % 3], seed..seed + 1);
    }
}
