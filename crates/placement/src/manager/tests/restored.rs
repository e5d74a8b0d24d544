//! A leader whose world is not as the records say: the cell was restored, or it is told of slower fail-overs.

use super::*;
use crate::config::FailOver;

#[test]
fn after_a_restore_nothing_is_given_before_unrecorded_leases_have_ended() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.pass(Duration::from_secs(1));
    let watching = world.add_lookup();
    let backup = world.files.clone();
    world.add_owner(owner_options("b", 1), None);
    world.pass(Duration::from_secs(5));
    assert!(world.share(1) > 0.1);
    let held = |world: &World| -> Vec<_> { world.owners.iter().flat_map(|o| o.checks.held(world.now)).collect() };
    let last = held(&world).iter().map(|leased| leased.lease).max().unwrap();
    // What the second owner was given is not recorded any more, and the lock's generation has gone back, too.
    world.depose();
    world.files = backup;
    world.lookups[watching].1.clear();
    world.epoch = epoch(1_790_000_000_000, 0);
    world.elect(1);
    world.pass(Duration::from_secs(16));
    assert_eq!(held(&world), [], "their leases have ended, and nothing is granted yet");
    world.pass(Duration::from_secs(10));
    assert!((world.covered() - 1.0).abs() < 1e-9);
    assert!(world.share(0) > 0.1 && world.share(1) > 0.1, "without human hands");
    assert!(held(&world).iter().all(|leased| leased.lease > last), "F8: a number is used once");
    assert_eq!(world.lookups[watching].1.first(), Some(&KeyRange::FULL), "F7: it is another table");
    // The next leader of the same era has nothing to wait for.
    let before = held(&world);
    world.depose();
    world.elect(0);
    world.pass(Duration::from_secs(3));
    assert_eq!(held(&world), before);
}

#[test]
fn a_leader_that_follows_soon_after_a_restore_rests_too() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.pass(Duration::from_secs(1));
    let backup = world.files.clone();
    world.add_owner(owner_options("b", 1), None);
    world.pass(Duration::from_secs(5));
    // Nobody hears from it, and it holds what is recorded as another's.
    world.owners[1].up = false;
    world.depose();
    world.files = backup;
    world.epoch = epoch(1_790_000_000_000, 0);
    world.elect(1);
    world.pass(Duration::from_secs(3));
    world.depose();
    world.elect(0);
    world.pass(Duration::from_secs(8));
    world.at_most_one_owner();
    world.pass(Duration::from_secs(15));
    assert_eq!(world.share(0), 1.0, "and then gives everything to who is left");
}

#[test]
fn a_namespace_that_a_restore_lost_comes_back_with_later_numbers_after_a_rest() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.pass(Duration::from_secs(1));
    let last = world.owners[0].checks.held(world.now).iter().map(|leased| leased.lease).max().unwrap();
    world.owners[0].up = false;
    world.depose();
    world.files.clear();
    world.epoch = epoch(1_790_000_000_000, 0);
    world.elect(1);
    let config = v1::NamespaceConfig { lease_ms: 12_000, renew_ms: 2_500, ..Default::default() };
    let create = v1::NamespaceCreate { namespace: "n".into(), config: Some(config) };
    for _ in 0..2 {
        let refused = world.operate(Message::NamespaceCreate(create.clone())).unwrap_err();
        assert_eq!(refused.code, "placement.restored", "leases of any common length may still run");
        world.pass(Duration::from_secs(66));
    }
    world.operate(Message::NamespaceCreate(create)).unwrap();
    world.add_owner(owner_options("b", 1), None);
    world.pass(Duration::from_secs(5));
    assert_eq!(world.share(1), 1.0);
    assert!(world.owners[1].checks.held(world.now).iter().all(|leased| leased.lease > last), "F8: used once");
}

/// A world whose cell was brought back to nothing, and managers that have met the new one.
fn restored_to_nothing() -> World {
    let mut world = World::new();
    world.depose();
    world.files.clear();
    world.epoch = epoch(INCARNATION, 0);
    for manager in 0..2 {
        world.feed(manager, Input::Met { incarnation: INCARNATION });
    }
    world
}

const INCARNATION: u64 = 1_790_000_000_000;

fn create(world: &mut World) -> Result<Message, Error> {
    let config = v1::NamespaceConfig { lease_ms: 12_000, renew_ms: 2_500, ..Default::default() };
    world.operate(Message::NamespaceCreate(v1::NamespaceCreate { namespace: "n".into(), config: Some(config) }))
}

#[test]
fn leaders_that_follow_each_other_after_a_restore_rest_together_and_not_each_anew() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.pass(Duration::from_secs(1));
    world.depose();
    world.epoch = epoch(INCARNATION, 0);
    for manager in 0..2 {
        world.feed(manager, Input::Met { incarnation: INCARNATION });
    }
    // Nobody leads for as long as a lease and a session last.
    for leader in [1, 0, 1, 0] {
        world.elect(leader);
        world.pass(Duration::from_secs(5));
        world.depose();
    }
    world.elect(1);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.share(0), 1.0);
}

#[test]
fn once_a_leader_has_rested_after_a_restore_no_later_one_does() {
    let mut world = restored_to_nothing();
    world.elect(1);
    let refused = create(&mut world).unwrap_err();
    assert_eq!(refused.code, "placement.restored");
    assert!(refused.message.contains("for 70 s"), "it says for how long: {}", refused.message);
    world.pass(Duration::from_secs(71));
    // A process that knows nothing but the cell's files.
    world.depose();
    world.managers[0] = Manager::new(Options::default());
    world.elect(0);
    create(&mut world).unwrap();
    let list = world.operate(Message::NamespaceList(v1::NamespaceList {})).unwrap();
    let Message::NamespaceListReply(list) = list else { panic!("not a list") };
    assert_eq!(list.namespaces.len(), 1, "what says so is no namespace");
}

#[test]
fn epochs_grow_over_restores() {
    assert_eq!(epoch(1, 7), 7);
    assert!(epoch(2, 0) > epoch(1, 1_000_000));
    assert!(epoch(1_790_000_000_001, 3) > epoch(1_790_000_000_000, 9));
}

#[test]
fn a_leader_says_which_leases_would_not_outlast_it() {
    let tight = |world: &mut World| {
        let list = world.operate(Message::NamespaceList(v1::NamespaceList {})).unwrap();
        let Message::NamespaceListReply(list) = list else { panic!("not a list") };
        let now = world.now();
        (!list.namespaces[0].warning.is_empty(), world.managers[world.leader].gauges(now).tight)
    };
    let mut world = World::new();
    assert_eq!(tight(&mut world), (false, 0));
    world.managers[1] =
        Manager::new(Options::default()).outlasting(FailOver { cell: Duration::from_secs(30), ..FailOver::default() });
    world.depose();
    world.elect(1);
    assert_eq!(tight(&mut world), (true, 1));
}
