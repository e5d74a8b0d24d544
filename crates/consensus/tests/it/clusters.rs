//! A cluster knows its own: its members agree on its number, and nobody follows a stranger.

use crate::harness::{LEASE, World};
use tidings_base::NodeId;
use tidings_consensus::{ChangeError, ClusterId, OtherCluster};

const THREE: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

/// Waits until these have written down one and the same number.
fn agreed(world: &World, nodes: &[NodeId]) -> ClusterId {
    world.until("all know their cluster", |world| {
        let first = world.cluster(nodes[0]);
        first.is_some() && nodes.iter().all(|node| world.cluster(*node) == first)
    });
    world.cluster(nodes[0]).unwrap()
}

#[test]
fn members_agree_on_one_number_though_messages_and_leaders_are_lost() {
    for seed in 300..306 {
        let mut world = World::new(3, 3, seed);
        world.named = true;
        THREE.into_iter().for_each(|node| world.start(node));
        world.lose_one_in(5);
        let (leader, _) = world.leader();
        // At some time around the proposal of the number.
        world.sleep(LEASE / 20 * (seed as u32 - 300));
        world.isolate(leader);
        world.sleep(LEASE * 4);
        world.power_off(leader);
        world.mend();
        world.start(leader);
        let cluster = agreed(&world, &THREE);
        // A later leader proposes none, and a restart forgets none.
        world.power_off(world.leader().0);
        world.put("on");
        let gone = THREE.into_iter().find(|node| world.cluster(*node) != Some(cluster));
        assert_eq!(gone, None, "seed {seed}");
    }
}

#[test]
fn a_group_of_an_earlier_version_gets_a_number_when_it_is_led_by_this_one() {
    let mut world = World::running(3, 310);
    world.put("old");
    world.sleep(LEASE);
    assert!(THREE.iter().all(|node| world.cluster(*node).is_none()));
    world.named = true;
    for node in THREE {
        world.power_off(node);
        world.start(node);
        world.put("between");
    }
    agreed(&world, &THREE);
}

#[test]
fn a_node_that_joins_takes_the_number_of_the_leader_that_it_follows() {
    let mut world = World::new(4, 3, 311);
    world.named = true;
    THREE.into_iter().for_each(|node| world.start(node));
    // Enough for a snapshot: the entry with the number is cut off the log.
    for n in 0..300 {
        world.put(format!("{n}"));
    }
    let cluster = agreed(&world, &THREE);
    world.founders(&[]);
    world.start(NodeId(4));
    let (leader, _) = world.leader();
    world.wait(world.group(leader).add_member(NodeId(4), "host-4")).unwrap();
    assert_eq!(agreed(&world, &[NodeId(4), leader]), cluster);
    world.power_off(NodeId(4));
    world.start(NodeId(4));
    assert_eq!(world.group(NodeId(4)).cluster(), Some(cluster), "it is told at the start");
}

#[test]
fn a_node_of_another_cluster_is_neither_added_nor_harmed() {
    let mut world = World::new(4, 3, 312);
    world.named = true;
    THREE.into_iter().for_each(|node| world.start(node));
    world.put("ours");
    let cluster = agreed(&world, &THREE);
    let (leader, _) = world.leader();
    world.founders(&[4]);
    world.start(NodeId(4));
    let stranger = world.group(NodeId(4));
    world.wait(stranger.ready());
    world.wait(stranger.propose("theirs".into())).unwrap();
    let theirs = agreed(&world, &[NodeId(4)]);
    assert_ne!(theirs, cluster);

    let added = world.wait(world.group(leader).add_member(NodeId(4), "host-4"));
    let other = OtherCluster { node: NodeId(4), cluster: theirs };
    assert_eq!(added, Err(ChangeError::OtherCluster(other)));
    assert_eq!(world.group(leader).strangers(), [other]);
    assert_eq!(stranger.strangers(), [OtherCluster { node: leader, cluster }]);
    let members = world.group(leader).status().members;
    assert!(members.iter().all(|member| member.node != NodeId(4)), "{members:?}");
    world.wait(world.group(leader).propose("ours too".into())).unwrap();
    world.wait(stranger.propose("theirs too".into())).expect("it leads its own cluster still");
    assert_eq!((world.list(leader).len(), world.list(NodeId(4)).len()), (2, 2));
    assert_eq!(agreed(&world, &[NodeId(4)]), theirs);
}

#[test]
fn another_node_at_the_address_of_a_dead_member_does_not_speak_for_it() {
    let mut world = World::new(4, 3, 313);
    THREE.into_iter().for_each(|node| world.start(node));
    world.put("ours");
    let (leader, _) = world.leader();
    let dead: Vec<NodeId> = THREE.into_iter().filter(|node| *node != leader).collect();
    dead.iter().for_each(|node| world.power_off(*node));
    world.founders(&[]);
    world.start(NodeId(4));
    world.stands_in(NodeId(4), dead[0]);
    world.sleep(LEASE * 8);
    let group = world.group(leader);
    let missed = world.wait(async { group.missed() }).expect("it has no majority");
    let nodes: Vec<NodeId> = missed.members.iter().map(|member| member.node).collect();
    assert_eq!((missed.hopeless, nodes), (true, dead.clone()));
    // What it says has confused nobody: with a real member the group serves again.
    world.start(dead[1]);
    world.put("again");
    assert_eq!(world.list(leader).len(), 2);
}
