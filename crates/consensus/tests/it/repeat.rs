//! One seed decides a run: the same seed twice gives the same trace.

use crate::harness::World;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;
use tidings_base::{NodeId, Seeded};
use tidings_consensus::Flush;

/// Everything that three replicas said and hold after an eventful minute, and when they said it.
fn trace(seed: u64) -> u64 {
    let mut world = World::new(3, 3, seed);
    world.flush = Flush::Paced(Duration::from_millis(6));
    let nodes = [1, 2, 3].map(NodeId);
    nodes.into_iter().for_each(|node| world.start(node));
    world.lose_one_in(40);
    let mut rng = Seeded::new(seed).fork("what happens");
    for n in 0..60 {
        let node = nodes[rng.below(3) as usize];
        match rng.below(6) {
            0 => {
                world.power_off(node);
                world.sleep(Duration::from_millis(rng.below(1_500)));
                world.start(node);
            }
            1 => world.isolate(node),
            2 => world.mend(),
            _ => drop(world.wait(async {
                let group = world.group(node);
                tokio::time::timeout(Duration::from_millis(300), group.propose(format!("{n}").into())).await
            })),
        }
        world.sleep(Duration::from_millis(rng.below(900)));
    }
    let mut hasher = DefaultHasher::new();
    for node in nodes {
        for told in world.told(node) {
            (told.at, format!("{:?}", told.heard)).hash(&mut hasher);
        }
        for (index, command) in world.list(node) {
            (index.0, command).hash(&mut hasher);
        }
    }
    world.elapsed().hash(&mut hasher);
    hasher.finish()
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let (first, second) = (trace(7), trace(8));
    assert_eq!(first, trace(7));
    assert_eq!(second, trace(8));
    assert_ne!(first, second);
}
