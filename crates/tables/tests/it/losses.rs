//! What is lost, late, twice or from somebody who is deposed between gateway and processors (R3): never silence.

use crate::client::{agrees, delete, everything, folded, put, version, write};
use crate::holding::public;
use crate::world::{World, data, user};
use tidings_predicate::{Key, Packed, Value};
use tidings_tables::gateway::{self, Event};
use tidings_tables::live::{Body, Frame};
use tidings_tables::names::{GatewayId, QueryId};
use tidings_tables::processor::Input;

/// A world with a query that lost a frame once, so that its second installation goes on from a cursor.
fn reinstalled(predicate: &str) -> World {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    world.watch(1, everything(&ann, &Packed::empty(), predicate));
    world.run(100);
    world.deaf = true;
    version(write(&mut world, 0, &ann, put("a", "a", 1)));
    world.deaf = false;
    version(write(&mut world, 0, &ann, put("b", "a", 1)));
    world.run(2_000);
    assert_eq!(world.installs.len(), 2);
    world
}

#[test]
fn an_installation_that_comes_twice_hides_no_loss() {
    let mut world = reinstalled("");
    let ann = user("ann");
    let twice = world.installs[1].clone();
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    world.deaf = true;
    version(write(&mut world, 0, &ann, delete("k")));
    world.deaf = false;
    // From the cursor of then to now nothing has happened to `k`: it came and went.
    world.tell_processor(0, Input::Install(Box::new(twice)));
    world.run(5_000);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
}

#[test]
fn an_installation_that_comes_twice_is_not_begun_again() {
    let mut world = reinstalled("team == 'a'");
    let ann = user("ann");
    let twice = world.installs[1].clone();
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    version(write(&mut world, 0, &ann, put("l", "b", 1)));
    world.tell_processor(0, Input::Install(Box::new(twice)));
    version(write(&mut world, 0, &ann, put("m", "a", 1)));
    world.run(5_000);
    agrees(&mut world, 1, &Packed::empty(), "team == 'a'").unwrap();
    assert_eq!(world.installs.len(), 2);
}

#[test]
fn what_goes_on_from_an_earlier_picture_is_a_gap() {
    let mut world = reinstalled("");
    let ann = user("ann");
    let (partition, installation) = (world.id(0), world.installs[1].installation);
    let previous = version(write(&mut world, 0, &ann, put("k", "a", 1)));
    version(write(&mut world, 0, &ann, put("l", "a", 1)));
    world.deaf = true;
    let position = version(write(&mut world, 0, &ann, delete("l")));
    world.deaf = false;
    let (body, epoch) = (Body::Changes(Vec::new()), 1);
    let (previous_epoch, piece, more) = (epoch, 0, false);
    let term = world.directory.partitions[0].term;
    let frame = Frame { partition, term, installation, epoch, previous_epoch, previous, position, piece, more, body };
    world.tell_gateway(gateway::Input::Frame { number: 1, frame: Box::new(frame) });
    world.run(5_000);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
}

#[test]
fn a_first_progress_that_is_lost_is_missed() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    world.run(100);
    let (other, partition) = (world.node(), world.id(0));
    world.lease(0, other);
    world.tell_processor(0, Input::Lost { partition });
    world.run(100);
    // The frame, and the first word of the new owner about it.
    world.deaf = true;
    version(write(&mut world, other, &ann, put("k", "a", 1)));
    world.run(1_100);
    world.deaf = false;
    world.run(3_000);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
}

#[test]
fn a_progress_that_is_lost_while_nothing_is_committed_is_missed() {
    let mut world = World::calm(None, public());
    let (ann, partition) = (user("ann"), world.id(0));
    world.taking = false;
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    for n in 0..70 {
        version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
    }
    // The client has taken nothing and is behind; now it takes, and what it would hear is lost with the word about it.
    world.run(3_000);
    assert!(folded(&world, 1).rows.len() < 70);
    world.deaf = true;
    let query = QueryId { gateway: GatewayId(1), number: 1 };
    world.tell_processor(0, Input::Taken { query, partition, frames: 60 });
    world.run(1_100);
    world.deaf = false;
    world.run(3_000);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
}

#[test]
fn room_that_was_given_unheard_is_given_again() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    world.taking = false;
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    for n in 0..70 {
        version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
    }
    world.run(3_000);
    assert!(folded(&world, 1).rows.len() < 70);
    world.deaf = true;
    world.tell_gateway(gateway::Input::Taken { number: 1, events: 64 });
    world.run(10);
    world.deaf = false;
    world.run(3_000);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
    assert_eq!(world.installs.len(), 1);
}

#[test]
fn a_query_that_ended_unheard_begins_again_once() {
    let mut world = World::tuned(None, public(), |options| options.log_changes = 2);
    world.taking = false;
    let (ann, partition) = (user("ann"), world.id(0));
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    world.watch(2, everything(&ann, &Packed::empty(), "n < 0"));
    for n in 0..70 {
        version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
    }
    world.run(3_000);
    // What it would take now the log has let go: it ends, and nobody hears it.
    world.deaf = true;
    let query = QueryId { gateway: GatewayId(1), number: 1 };
    world.tell_processor(0, Input::Taken { query, partition, frames: 60 });
    world.run(10);
    world.deaf = false;
    let installs = world.installs.len();
    world.run(8_000);
    assert_eq!(world.installs.len(), installs + 1);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
}

#[test]
fn what_is_read_again_is_told_so_whatever_was_lost() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    let mut watch = everything(&ann, &Packed::empty(), "");
    watch.ask.limit = Some(3);
    world.watch(1, watch);
    world.run(3_000);
    let told = |world: &World| world.events.iter().filter(|(_, event)| *event == Ok(Event::Again)).count();
    let mut before = told(&world);
    assert_eq!(before, 1);
    for n in 0..2 {
        let data = data(&[("team", Value::Int(n))]);
        world.tell_gateway(gateway::Input::UpdateData { number: 1, data });
        world.run(500);
        assert!(!folded(&world, 1).settling && told(&world) > before);
        before = told(&world);
    }
    // One is lost, and its owner after it.
    world.deaf = true;
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    world.run(200);
    world.deaf = false;
    world.run(3_000);
    assert!(told(&world) > before);
    before = told(&world);
    let other = world.node();
    world.lease(0, other);
    world.run(3_000);
    assert!(told(&world) > before);
    before = told(&world);
    version(write(&mut world, other, &ann, put("k", "a", 2)));
    world.run(200);
    assert_eq!(told(&world), before + 1);
}

#[test]
fn an_owner_that_was_deposed_and_does_not_know_disturbs_nobody() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    world.run(3_000);
    let other = world.node();
    world.lease(0, other);
    world.run(100);
    version(write(&mut world, other, &ann, put("k", "a", 2)));
    world.run(5_000);
    let installs = world.installs.len();
    for n in 0..10 {
        version(write(&mut world, other, &ann, put(&format!("l{n}"), "a", n)));
        world.run(1_000);
    }
    // It still says how far it is, every second, and nobody minds.
    assert_eq!(world.nodes[0].processor.as_ref().unwrap().partitions().count(), 1);
    assert_eq!(world.installs.len(), installs);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
    assert_eq!(folded(&world, 1).rows.get(&Key::from("l9")).map(|_| ()), Some(()));
}

#[test]
fn what_is_acquired_again_under_the_same_lease_has_forgotten_its_queries() {
    // Whether or not the directory is told of: the lease is the same, and there is nothing yet that could be missed.
    for told in [false, true] {
        let mut world = World::calm(None, public());
        let ann = user("ann");
        world.watch(1, everything(&ann, &Packed::empty(), ""));
        world.run(3_000);
        let (partition, (node, lease)) = (world.id(0), world.owners[&0]);
        let acquired = world.directory.acquire(0, lease).unwrap();
        world.tell_processor(node, Input::Lost { partition });
        world.tell_processor(node, Input::Gained(Box::new(acquired)));
        world.run(100);
        if told {
            world.directory_changed();
        } else {
            // Another query of the same gateway: it hears that all is well.
            world.watch(2, everything(&ann, &Packed::empty(), ""));
        }
        world.run(1_500);
        version(write(&mut world, 0, &ann, put("k", "a", 1)));
        world.run(if told { 200 } else { 3_000 });
        agrees(&mut world, 1, &Packed::empty(), "").unwrap();
    }
}
