//! Members come and go, also while the network is cut.

use crate::harness::{LEASE, World};
use std::collections::BTreeSet;
use tidings_base::NodeId;
use tidings_consensus::{ChangeError, Standing};

fn voters(world: &World, node: NodeId) -> BTreeSet<NodeId> {
    world.group(node).status().members.into_iter().filter(|m| m.voter).map(|m| m.node).collect()
}

fn set(nodes: &[u64]) -> BTreeSet<NodeId> {
    nodes.iter().copied().map(NodeId).collect()
}

#[test]
fn a_single_member_becomes_three_and_one_again() {
    let mut world = World::new(3, 1, 80);
    world.start(NodeId(1));
    for n in 0..300 {
        world.put(format!("{n}"));
    }
    for new in [2, 3].map(NodeId) {
        world.start(new);
        world.wait(world.group(NodeId(1)).add_member(new, &format!("host-{new}"))).unwrap();
    }
    world
        .until("all have everything", |world| world.list(NodeId(3)).len() == 300 && world.list(NodeId(2)).len() == 300);
    assert_eq!(voters(&world, NodeId(2)), set(&[1, 2, 3]));
    world.put("with three");
    let again = world.wait(world.group(NodeId(1)).add_member(NodeId(2), "host-2"));
    assert_eq!(again, Err(ChangeError::Already(NodeId(2))));
    let nobody = world.wait(world.group(NodeId(1)).remove_member(NodeId(9)));
    assert_eq!(nobody, Err(ChangeError::NoMember(NodeId(9))));

    // The leader leaves: it hands over, and the new leader removes it.
    let (leader, _) = world.leader();
    let asked = world.wait(world.group(leader).remove_member(leader));
    let Err(ChangeError::NotLeader { leader: Some(next) }) = asked else { panic!("not handed over: {asked:?}") };
    world.until("the one that it named leads", |world| world.leader().0 == next);
    world.wait(world.group(next).remove_member(leader)).unwrap();
    world.put("with two");
    let last = [1, 2, 3].map(NodeId).into_iter().find(|n| *n != leader && *n != next).unwrap();
    let (now, _) = world.leader();
    let leaving = if now == next { last } else { next };
    world.wait(world.group(now).remove_member(leaving)).unwrap();
    world.put("alone");
    assert_eq!(voters(&world, now), BTreeSet::from([now]));
    assert_eq!(world.wait(world.group(now).remove_member(now)), Err(ChangeError::LastVoter(now)));
    assert_eq!(world.list(now).len(), 303);
}

#[test]
fn nobody_leaves_whom_the_others_need_for_a_majority() {
    let mut world = World::running(3, 89);
    world.put("with three");
    let (leader, _) = world.leader();
    let others: Vec<NodeId> = [1, 2, 3].map(NodeId).into_iter().filter(|node| *node != leader).collect();
    let (dead, alive) = (others[0], others[1]);
    world.power_off(dead);
    world.until("the leader misses it", |world| world.group(leader).silent().is_some_and(|s| s.contains(&dead)));
    let refused = world.wait(world.group(leader).remove_member(alive));
    assert_eq!(refused, Err(ChangeError::NoMajorityLeft { leaving: alive, missed: vec![dead] }));
    world.put("still served");
    world.wait(world.group(leader).remove_member(dead)).unwrap();
    world.put("with two");
    world.until("the other one has all", |world| world.list(alive).len() == 3);
}

#[test]
fn a_dead_member_is_replaced_while_the_others_serve() {
    let mut world = World::new(4, 3, 81);
    (1..=4).map(NodeId).for_each(|node| world.start(node));
    world.put("first");
    let (leader, _) = world.leader();
    let dead = [1, 2, 3].map(NodeId).into_iter().find(|n| *n != leader).unwrap();
    world.power_off(dead);
    world.wait(world.group(leader).replace_member(dead, NodeId(4), "host-4")).unwrap();
    let expected: BTreeSet<NodeId> = [1, 2, 3, 4].map(NodeId).into_iter().filter(|n| *n != dead).collect();
    assert_eq!(voters(&world, leader), expected);
    world.put("second");
    world.until("the new one has everything", |world| world.list(NodeId(4)).len() == 2);
    // With the old one gone for good, the new one's vote counts: another may fail.
    let third = expected.iter().copied().find(|n| *n != leader && *n != NodeId(4)).unwrap();
    world.power_off(third);
    world.put("third");
    assert_eq!(
        world.group(NodeId(4)).status().standing,
        if world.leader().0 == NodeId(4) { Standing::Leader } else { Standing::Follower }
    );
}

#[test]
fn a_member_that_cannot_be_reached_stays_without_a_vote() {
    let mut world = World::new(4, 3, 82);
    world.timings.catch_up = LEASE * 5;
    (1..=4).map(NodeId).for_each(|node| world.start(node));
    world.put("first");
    let (leader, _) = world.leader();
    world.isolate(NodeId(4));
    let added = world.wait(world.group(leader).add_member(NodeId(4), "host-4"));
    assert!(matches!(added, Err(ChangeError::TooSlow { node: NodeId(4), .. })), "{added:?}");
    assert_eq!(voters(&world, leader), set(&[1, 2, 3]));
    world.mend();
    world.until("it may vote after all", |world| {
        let (leader, _) = world.leader();
        world.wait(world.group(leader).add_member(NodeId(4), "host-4")).is_ok()
    });
    assert_eq!(voters(&world, world.leader().0), set(&[1, 2, 3, 4]));
}

#[test]
fn a_change_begun_by_a_leader_that_is_cut_off_is_made_by_all_or_by_none() {
    for seed in 90..96 {
        let mut world = World::new(5, 3, seed);
        (1..=5).map(NodeId).for_each(|node| world.start(node));
        world.put("first");
        let (leader, epoch) = world.leader();
        let other = [1, 2, 3].map(NodeId).into_iter().find(|n| *n != leader).unwrap();
        let group = world.group(leader);
        // The cut comes at some time during the change.
        let cut_after = LEASE / 100 * (seed as u32 - 89);
        let outcome = world.wait(async {
            let change = group.replace_member(other, NodeId(4), "host-4");
            let cut = async {
                tokio::time::sleep(cut_after).await;
                for node in (1..=5).map(NodeId).filter(|n| *n != leader && *n != NodeId(5)) {
                    world.cut(node, leader);
                    world.cut(leader, node);
                }
            };
            tokio::join!(change, cut).0
        });
        world.sleep(LEASE * 3);
        world.mend();
        world.put("second");
        let changed: BTreeSet<NodeId> = [1, 2, 3, 4].map(NodeId).into_iter().filter(|n| *n != other).collect();
        world.until("all that belong to it agree on the members, old or new", |world| {
            let (leader, _) = world.leader();
            let members = voters(world, leader);
            let settled = members == set(&[1, 2, 3]) || members == changed;
            let same = |node: &NodeId| voters(world, *node) == members && world.list(*node) == world.list(leader);
            settled && members.iter().all(same)
        });
        let members = voters(&world, world.leader().0);
        if outcome.is_ok() {
            assert_eq!(members, changed, "seed {seed}");
        }
        assert!(world.leader().1 >= epoch);
    }
}
