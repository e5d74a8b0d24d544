//! Disks that are slow, full, torn or damaged.

use crate::harness::{LEASE, World};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::NodeId;
use tidings_base::agreed::Refusal;
use tidings_consensus::{Flush, LostLog, Mutant, ProposeError, Standing, StartError};
use tidings_log::testing::SimDisk;

const ALL: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

fn others(node: NodeId) -> impl Iterator<Item = NodeId> {
    ALL.into_iter().filter(move |other| *other != node)
}

#[test]
fn a_majority_with_quick_disks_does_not_wait_for_a_slow_one() {
    let mut world = World::new(3, 3, 40);
    world.start(NodeId(1));
    world.start(NodeId(2));
    world.flush = Flush::Paced(Duration::from_millis(400));
    world.start(NodeId(3));
    world.put("first");
    world.until("a leader with a quick disk", |world| {
        let (leader, _) = world.leader();
        if leader == NodeId(3) {
            world.wait(world.group(leader).hand_over());
        }
        leader != NodeId(3)
    });
    let began = world.elapsed();
    for n in 0..20 {
        world.put(format!("{n}"));
    }
    assert!(world.elapsed() - began < Duration::from_millis(20 * 100), "{:?}", world.elapsed() - began);
    world.until("the slow one has all of it", |world| world.list(NodeId(3)).len() == 21);
}

#[test]
fn a_group_on_slow_disks_is_slow_and_nothing_else() {
    let mut world = World::new(3, 3, 41);
    world.flush = Flush::Paced(Duration::from_millis(40));
    ALL.into_iter().for_each(|node| world.start(node));
    for n in 0..10 {
        world.put(format!("{n}"));
    }
    world.until("all have all of it", |world| ALL.into_iter().all(|node| world.list(node).len() == 10));
}

#[test]
fn a_full_disk_stops_its_replica_and_nothing_that_was_applied_is_lost() {
    let mut world = World::running(3, 42);
    world.put("first");
    let (leader, epoch) = world.leader();
    world.disk(leader).set_full_at(Some(world.disk(leader).used()));
    let group = world.group(leader);
    let mut applied = 1;
    // Segments are reserved in advance: it takes a while until the disk has to grow.
    let failed = (0..100).find_map(|n| {
        let outcome = world.wait(group.propose(vec![n; 8 << 10].into()));
        applied += usize::from(outcome.is_ok());
        outcome.err()
    });
    assert!(matches!(failed, Some(ProposeError::Unknown | ProposeError::Refused(_))), "{failed:?}");
    world.until("it stopped", |world| world.group(leader).status().standing == Standing::Stopped);
    assert_eq!(world.wait(group.propose("x".into())), Err(ProposeError::Refused(Refusal::Stopped)));
    assert_eq!(world.wait(group.barrier()), Err(Refusal::Stopped));
    world.until("another leads", |world| world.leader().1 > epoch);
    world.put("second");

    world.power_off(leader);
    world.disk(leader).set_full_at(None);
    world.start(leader);
    world.until("all agree again", |world| {
        let lists: Vec<_> = ALL.into_iter().map(|node| world.list(node)).collect();
        lists.iter().all(|list| *list == lists[0] && list.len() > applied)
    });
}

#[test]
fn a_failed_sync_stops_a_single_member_and_what_it_acknowledged_is_there_after_the_restart() {
    let mut world = World::running(1, 43);
    world.put("kept");
    world.disk(NodeId(1)).fail_sync_after(0, io::ErrorKind::Other);
    let group = world.group(NodeId(1));
    assert!(matches!(world.wait(group.propose("perhaps".into())), Err(ProposeError::Unknown)));
    world.until("it stopped", |world| world.group(NodeId(1)).status().standing == Standing::Stopped);
    world.power_off(NodeId(1));
    world.start(NodeId(1));
    world.put("after");
    let list = world.list(NodeId(1));
    assert_eq!((&list[0].1[..], &list.last().unwrap().1[..]), (&b"kept"[..], &b"after"[..]));
}

/// A follower whose log gets shorter is none that openraft knows: its leader would stop.
#[test]
fn a_member_that_lost_its_log_counts_for_nothing_and_its_leader_goes_on() {
    let mut world = World::running(3, 44);
    world.put("first");
    let (leader, epoch) = world.leader();
    let lost = others(leader).next().unwrap();
    world.until("it has acknowledged something", |world| world.list(lost).len() == 1);
    world.power_off(lost);
    world.replace_disk(lost, SimDisk::new(44));
    world.start(lost);
    world.until("the leader names it", |world| world.group(leader).lost_logs() == [LostLog { node: lost }]);
    // So many that the log is cut, and a snapshot would be due.
    for n in 0..300 {
        world.put(format!("{n}"));
    }
    assert_eq!(world.leader(), (leader, epoch));
    // What it accepted before the loss counts for a lease.
    world.until("its promises count for nothing either", |world| world.group(leader).silent() == Some([lost].into()));
    assert!(world.list(lost).is_empty());

    // Removed and added again it begins from nothing, and that is no loss.
    world.wait(world.group(leader).remove_member(lost)).unwrap();
    world.power_off(lost);
    world.replace_disk(lost, SimDisk::new(45));
    world.founders(&[]);
    world.start(lost);
    world.wait(world.group(leader).add_member(lost, &format!("host-{lost}"))).unwrap();
    world.until("it has all", |world| world.list(lost).len() == 301);
    assert_eq!((world.group(leader).lost_logs(), world.leader()), (vec![], (leader, epoch)));
}

#[test]
fn power_loss_at_any_time_loses_nothing_that_was_answered() {
    for seed in 50..56 {
        let mut world = World::new(3, 3, seed);
        world.flush = Flush::Paced(Duration::from_millis(7));
        ALL.into_iter().for_each(|node| world.start(node));
        let mut promised = Vec::new();
        for round in 0..6 {
            for n in 0..5 {
                promised.push((world.put(format!("{round} {n}")), format!("{round} {n}")));
            }
            let (leader, _) = world.leader();
            let group = world.group(leader);
            // In flight when the power goes.
            let _unheard = world.wait(async {
                let asked = (0..20).map(|n| group.propose(format!("lost? {round} {n}").into()));
                tokio::time::timeout(Duration::from_millis(9), futures::future::join_all(asked)).await.is_ok()
            });
            let victims: Vec<NodeId> = if round % 2 == 0 { ALL.to_vec() } else { others(leader).take(1).collect() };
            victims.iter().for_each(|node| world.power_off(*node));
            victims.iter().for_each(|node| world.start(*node));
        }
        world.put("end");
        let (leader, _) = world.leader();
        let list = world.list(leader);
        for (index, command) in promised {
            assert!(list.iter().any(|(at, c)| *at == index && c[..] == *command.as_bytes()), "seed {seed}: {command}");
        }
    }
}

#[test]
fn damage_is_named_and_refused() {
    damage(None);
}

#[test]
#[should_panic(expected = "a log that is gone: Ok(())")]
fn a_log_begun_anew_beside_an_old_vote_is_noticed() {
    damage(Some(Mutant::LostLog));
}

fn damage(mutant: Option<Mutant>) {
    let mut world = World::running_without(mutant, 1, 60);
    for n in 0..300 {
        world.put(format!("{n}"));
    }
    world.shut_down(NodeId(1));
    let disk = world.disk(NodeId(1));
    let whole = disk.duplicate();
    let names: Vec<String> = disk.files().into_iter().map(|(name, _)| name).collect();
    let snapshot = names.iter().find(|name| name.starts_with("snapshot-")).expect("a snapshot was taken").clone();

    let mut start_on = |damage: &dyn Fn(&tidings_log::testing::SimDisk)| {
        let disk = whole.duplicate();
        damage(&disk);
        world.replace_disk(NodeId(1), disk);
        let started = world.try_start(NodeId(1));
        if started.is_ok() {
            world.shut_down(NodeId(1));
        }
        started
    };
    assert!(start_on(&|_| ()).is_ok(), "an undamaged copy starts");
    let gone = start_on(&|disk| {
        let segments = disk.files().into_iter().filter(|(name, _)| name.ends_with(".seg"));
        segments.for_each(|(name, _)| assert!(disk.lose_file(&name)));
    });
    assert!(
        matches!(&gone, Err(StartError::Damaged { file, .. }) if file == "the log"),
        "a log that is gone: {gone:?}"
    );
    let lost = start_on(&|disk| assert!(disk.lose_file(&snapshot)));
    assert!(matches!(lost, Err(StartError::Gap { .. })), "{lost:?}");
    let flipped = start_on(&|disk| assert!(disk.flip_bit(&snapshot, 8 * 300)));
    assert!(matches!(&flipped, Err(StartError::State(e)) if e.what.contains(&snapshot)), "{flipped:?}");
    let head = start_on(&|disk| assert!(disk.flip_bit(&snapshot, 8 * 14)));
    assert!(matches!(&head, Err(StartError::Damaged { file, .. }) if *file == snapshot), "{head:?}");
    let cut = start_on(&|disk| assert!(disk.cut_file(&snapshot, 200)));
    assert!(matches!(&cut, Err(StartError::State(e)) if e.what.contains(&snapshot)), "{cut:?}");
    let vote = start_on(&|disk| assert!(disk.lose_file("vote")));
    assert!(matches!(&vote, Err(StartError::Damaged { file, .. }) if file == "vote"), "{vote:?}");
    let vote = start_on(&|disk| assert!(disk.flip_bit("vote", 100)));
    assert!(matches!(&vote, Err(StartError::Damaged { file, .. }) if file == "vote"), "{vote:?}");
    let purged = start_on(&|disk| assert!(disk.lose_file("purged")));
    assert!(matches!(&purged, Err(StartError::Damaged { file, .. }) if file == "purged"), "{purged:?}");
    world.sleep(LEASE);
}

/// What `tidings doctor` looks at without starting: it must name what a start would refuse.
#[test]
fn the_check_names_lost_and_damaged_small_files_and_a_lost_log() {
    let mut world = World::running(1, 61);
    for n in 0..300 {
        world.put(format!("{n}"));
    }
    world.shut_down(NodeId(1));
    let whole = world.disk(NodeId(1));
    let checked = |damage: &dyn Fn(&SimDisk)| {
        let disk = whole.duplicate();
        damage(&disk);
        let before = disk.files();
        let report = tidings_log::verify(&disk, None).unwrap();
        let result = tidings_consensus::check(Arc::new(disk.clone()), &report, None);
        assert_eq!(disk.files(), before, "a check only looks");
        result.map_err(|error| match error {
            StartError::Damaged { file, .. } => file,
            other => panic!("{other}"),
        })
    };
    assert!(checked(&|_| ()).is_ok());
    assert_eq!(checked(&|disk| assert!(disk.lose_file("vote"))), Err("vote".into()));
    assert_eq!(checked(&|disk| assert!(disk.flip_bit("vote", 100))), Err("vote".into()));
    assert_eq!(checked(&|disk| assert!(disk.flip_bit("purged", 100))), Err("purged".into()));
    let gone = checked(&|disk| {
        let segments = disk.files().into_iter().filter(|(name, _)| name.ends_with(".seg"));
        segments.for_each(|(name, _)| assert!(disk.lose_file(&name)));
    });
    assert_eq!(gone, Err("the log".into()));
}
