//! R3: the word that a device has gone, while its partition is in nobody's hands, or in other ones than its gateway believes.

use crate::client::{everything, put, version, write};
use crate::holding::public;
use crate::world::{World, user};
use tidings_predicate::Packed;
use tidings_tables::gateway::{Input, Watch};
use tidings_tables::live::{Body, Frame};
use tidings_tables::names::{Endpoint, NetId, Object, Position, Term};
use tidings_tables::refusal::Refusal;

/// Whoever was asked first, and is not the owner any more, says so of the query: its word is no word of the owner.
#[test]
fn r3_the_word_that_a_device_has_left_goes_on_to_the_owner() {
    for refusal in [Refusal::Moved, Refusal::Behind, Refusal::Busy, Refusal::Store("slow".to_owned())] {
        let mut world = World::calm(None, public());
        let (ann, netid) = (user("ann"), NetId([5; 16]));
        let before = version(write(&mut world, 0, &ann, put("k", "a", 1)));
        // Nothing comes to the owner that is.
        world.deaf = true;
        let endpoint = Some(Endpoint { netid, app: "shop".to_owned() });
        world.watch(1, Watch { endpoint, ..everything(&ann, &Packed::empty(), "") });
        world.run(10);
        world.tell_gateway(Input::Unwatch { number: 1 });
        world.run(10);
        let (partition, previous, position) = (world.id(0), Position::ZERO, Position::ZERO);
        let (term, installation, body) = (Term::default(), 1, Body::Ended(refusal.clone()));
        let (piece, more) = (0, false);
        let moved =
            Frame { partition, term, installation, epoch: 1, previous_epoch: 1, previous, position, piece, more, body };
        world.tell_gateway(Input::Frame { number: 1, frame: Box::new(moved) });
        world.run(1_000);
        world.deaf = false;
        world.run(3_000);
        let object = Object { partition, netid: Some(netid) };
        let told = world.publications.iter().flat_map(|(_, all)| all).filter(|(of, _)| *of == object);
        let told: Vec<Position> = told.map(|(_, position)| *position).collect();
        assert_eq!(told, [before], "{refusal:?}");
    }
}
