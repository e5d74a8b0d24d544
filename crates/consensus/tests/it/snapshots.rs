//! Snapshots on disk and on the way, and states that are durable themselves.

use crate::harness::{LEASE, World};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::NodeId;
use tidings_base::agreed::SNAPSHOT_CHUNK;
use tidings_wire::v1::raft_message::Body;
use tidings_wire::v1::{RaftMessage, RaftSnapshotChunk};

const ALL: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

fn follower(world: &World) -> NodeId {
    let (leader, _) = world.leader();
    ALL.into_iter().find(|node| *node != leader).unwrap()
}

/// Writes until the log was cut beyond what `away` has, which is away for so long that nothing is kept for it.
fn outrun(world: &World, away: NodeId, bytes: usize) {
    world.sleep(LEASE * 5);
    let has = world.list(away).last().map_or(0, |(index, _)| index.0);
    for n in 0..400 {
        world.put(vec![n as u8; bytes]);
    }
    world.until("the log is cut", |world| world.group(world.leader().0).status().first.0 > has + 1);
}

fn all_same(world: &World) -> bool {
    let lists: Vec<_> = ALL.into_iter().map(|node| world.list(node)).collect();
    lists.iter().all(|list| *list == lists[0])
}

#[test]
fn a_replica_that_was_away_for_long_gets_a_snapshot_in_pieces() {
    for durable in [false, true] {
        let mut world = World::new(3, 3, 70);
        world.durable = durable;
        ALL.into_iter().for_each(|node| world.start(node));
        world.put("first");
        let away = follower(&world);
        world.power_off(away);
        outrun(&world, away, 3 * SNAPSHOT_CHUNK / 200);
        world.start(away);
        world.until("it has everything", all_same);
        world.put("last");
        world.until("it follows", all_same);
    }
}

#[test]
fn a_broken_stream_begins_again_until_it_gets_through() {
    let mut world = World::running(3, 71);
    world.put("first");
    let away = follower(&world);
    world.power_off(away);
    outrun(&world, away, 3 * SNAPSHOT_CHUNK / 200);
    world.lose_one_in(12);
    world.start(away);
    world.until("it has everything in spite of losses", all_same);
    world.mend();
    // Power loss while a snapshot comes in: what is half there is thrown away.
    world.power_off(away);
    outrun(&world, away, 3 * SNAPSHOT_CHUNK / 200);
    for _ in 0..5 {
        world.start(away);
        world.sleep(Duration::from_millis(25));
        world.power_off(away);
    }
    world.start(away);
    world.until("it has everything in spite of crashes", all_same);
}

/// The pieces of snapshots that went over the line, by stream: their numbers, in order.
type Seen = Arc<Mutex<BTreeMap<u64, Vec<u64>>>>;

/// A replica that was away for long comes back; the second piece of each of the first three streams is spoilt on the way.
fn with_spoilt_pieces(seed: u64, spoil: impl Fn(&mut RaftSnapshotChunk) + Send + 'static) -> (World, Seen) {
    let mut world = World::running(3, seed);
    world.put("first");
    let away = follower(&world);
    world.power_off(away);
    outrun(&world, away, 3 * SNAPSHOT_CHUNK / 200);
    let seen = Seen::default();
    let shown = seen.clone();
    world.spoil(move |message: &mut RaftMessage| {
        let Some(Body::Snapshot(chunk)) = &mut message.body else { return };
        let mut seen = shown.lock();
        seen.entry(chunk.stream).or_default().push(chunk.sequence);
        if chunk.sequence == 1 && seen.len() <= 3 {
            spoil(chunk);
        }
    });
    world.start(away);
    world.until("it has everything", all_same);
    (world, seen)
}

fn flip(chunk: &mut RaftSnapshotChunk) {
    let mut data = chunk.data.to_vec();
    data[100] ^= 4;
    chunk.data = data.into();
}

#[test]
fn a_piece_spoilt_on_the_way_ends_its_stream_at_once() {
    let (_world, seen) = with_spoilt_pieces(74, flip);
    let seen = seen.lock();
    let lengths: Vec<usize> = seen.values().map(Vec::len).collect();
    assert!(lengths.len() > 3 && lengths[..3].iter().all(|pieces| *pieces == 2), "{lengths:?}");
}

/// Something on the way that makes a new checksum for what it changed: the checksum of the whole tells.
#[test]
fn a_stream_whose_pieces_are_sound_one_by_one_must_be_sound_as_a_whole() {
    let (_world, seen) = with_spoilt_pieces(75, |chunk| {
        flip(chunk);
        chunk.checksum = crc32c::crc32c(&chunk.data);
    });
    let seen = seen.lock();
    assert!(seen.len() > 3, "a spoilt snapshot was taken: {:?}", seen.keys());
}

#[test]
fn a_restart_goes_on_from_the_snapshot_and_the_log_after_it() {
    for durable in [false, true] {
        let mut world = World::new(1, 1, 72);
        world.durable = durable;
        world.start(NodeId(1));
        let mut written = 0;
        for _ in 0..4 {
            for _ in 0..330 {
                world.put(format!("{written}"));
                written += 1;
            }
            world.power_off(NodeId(1));
            world.start(NodeId(1));
            world.wait(world.group(NodeId(1)).ready());
            let list = world.list(NodeId(1));
            assert_eq!(list.len(), written, "durable: {durable}");
            assert!(list.iter().enumerate().all(|(n, (_, command))| command[..] == *format!("{n}").as_bytes()));
        }
        let status = world.group(NodeId(1)).status();
        assert!(status.first.0 > 500, "the log was cut: {}", status.first);
        world.sleep(LEASE);
    }
}

#[test]
fn a_disk_too_full_for_a_snapshot_leaves_the_replica_running() {
    let mut world = World::new(1, 1, 73);
    world.limits.segment_bytes = 4 << 20;
    world.start(NodeId(1));
    world.put("first");
    world.disk(NodeId(1)).set_full_at(Some(world.disk(NodeId(1)).used() + 100));
    for n in 0..500 {
        world.put(format!("{n}"));
    }
    assert_eq!(world.group(NodeId(1)).status().first.0, 1, "nothing was cut without a snapshot");
    world.disk(NodeId(1)).set_full_at(None);
    for n in 0..500 {
        world.put(format!("{n}"));
    }
    world.until("the log is cut again", |world| world.group(NodeId(1)).status().first.0 > 1);
}

/// However few entries they are: a disk need not hold more, nor a start read more.
#[test]
fn a_log_of_large_entries_is_cut_by_its_bytes() {
    const ENTRY: usize = 8 << 10;
    for durable in [false, true] {
        let mut world = World::new(3, 3, 76);
        world.durable = durable;
        world.limits.snapshot_every = 1_000_000;
        (world.limits.snapshot_bytes, world.limits.keep_bytes) = (256 << 10, 128 << 10);
        ALL.into_iter().for_each(|node| world.start(node));
        let (mut longest, mut shortest, mut cut) = (0, u64::MAX, 1);
        for n in 0..400 {
            let last = world.put(vec![n as u8; ENTRY]);
            let first = world.group(world.leader().0).status().first;
            longest = longest.max(last.0 - first.0);
            if first.0 > cut {
                (cut, shortest) = (first.0, shortest.min(last.0 - first.0));
            }
            world.sleep(Duration::from_millis(20));
        }
        // What is kept, what comes until the next snapshot, and what comes while that is made.
        let most = (256 + 128) / 8 + 16;
        assert!(longest <= most, "durable: {durable}: {longest} entries");
        assert!(shortest >= 128 / 8 - 4, "durable: {durable}: {shortest} entries are left");
        world.until("the others cut theirs, too", |world| {
            ALL.into_iter().all(|node| world.list(node).len() as u64 - world.group(node).status().first.0 <= most)
        });
        // What was cut off is in the snapshot, and a short absence does not need it.
        let away = follower(&world);
        let has = world.list(away).len() as u64;
        world.power_off(away);
        for n in 0..8 {
            world.put(vec![n; ENTRY]);
        }
        assert!(world.group(world.leader().0).status().first.0 <= has, "the entries that it lacks are there");
        world.start(away);
        world.until("it has everything", all_same);
        assert_eq!(world.list(away).len(), 408);
        // All that they need is there when they start again.
        for node in ALL {
            world.power_off(node);
            world.start(node);
        }
        world.put("last");
        world.until("they have everything", |world| all_same(world) && world.list(away).len() == 409);
    }
}

/// It gets a snapshot, which takes a while, and more is written meanwhile than is kept: what follows the snapshot is there
/// when it has it, or it would get one snapshot after the other.
#[test]
fn a_member_catches_up_though_much_is_written_while_it_gets_a_snapshot() {
    for (piece, all) in [(Duration::from_millis(40), Duration::ZERO), (Duration::ZERO, LEASE * 6)] {
        let mut world = World::new(3, 3, 77);
        // The simulated disk takes a file away from those who are reading it, which would break a stream.
        world.durable = true;
        world.limits.snapshot_every = 1_000_000;
        (world.limits.snapshot_bytes, world.limits.keep_bytes) = (256 << 10, 64 << 10);
        ALL.into_iter().for_each(|node| world.start(node));
        world.put("first");
        let away = follower(&world);
        world.power_off(away);
        outrun(&world, away, 8 << 10);
        let streams = Seen::default();
        let shown = streams.clone();
        world.spoil(move |message: &mut RaftMessage| {
            if let Some(Body::Snapshot(chunk)) = &message.body {
                shown.lock().entry(chunk.stream).or_default().push(chunk.sequence);
            }
        });
        world.snapshots_take(piece, all);
        world.start(away);
        world.until("a snapshot is on its way", |_| !streams.lock().is_empty());
        let (cut, sent) = (world.group(world.leader().0).status().first, world.elapsed());
        for n in 0..400 {
            world.put(vec![n as u8; 8 << 10]);
            world.sleep(all / 300);
        }
        assert!(world.elapsed() - sent > all.max(Duration::from_millis(500)));
        world.until("it has everything", all_same);
        for n in 0..100 {
            world.put(vec![n; 8 << 10]);
        }
        world.until("what was kept for it goes", |world| world.group(world.leader().0).status().first.0 > cut.0 + 300);
        let streams = streams.lock();
        assert_eq!(streams.len(), 1, "{piece:?}, {all:?}: snapshots were sent again: {streams:?}");
    }
}
