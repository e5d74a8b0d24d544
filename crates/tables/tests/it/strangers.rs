//! Readers of whom nothing is known, beside those who are known: a public table is not theirs alone.

use crate::client::{everything, folded};
use crate::holding::public;
use crate::world::{World, data, user};
use tidings_base::Error;
use tidings_predicate::Packed;
use tidings_tables::calls::{Access, Caller};
use tidings_tables::gateway::Input;
use tidings_tables::processor::Options;

/// Whoever shows nothing.
fn nobody() -> Caller {
    let (user, principal, claims) = (String::new(), "nobody".to_owned(), Packed::empty());
    Caller { access: Access::Public, app: "shop".to_owned(), user, principal, claims, expires: None }
}

/// Why each of these queries has ended, those of strangers and of users.
fn ended(tune: fn(&mut Options), predicate: impl Fn(u64) -> String) -> [Vec<Option<String>>; 2] {
    let mut world = World::tuned(None, public(), tune);
    let code =
        |world: &World, number| folded(world, number).ended.map(|refusal| Error::from(refusal).code.into_owned());
    for number in 1..=8 {
        let caller = if number <= 4 { nobody() } else { user("ann") };
        world.watch(number, everything(&caller, &Packed::empty(), &predicate(number)));
        world.run(1_000);
    }
    [1..=4, 5..=8].map(|numbers| numbers.map(|number| code(&world, number)).collect())
}

#[test]
fn strangers_leave_room_in_the_index_to_those_who_are_known() {
    let full = || Some("tables.predicate_full".to_owned());
    let some = [None, None, full(), full()];
    let scanned = ended(|options| options.index.scanned = 8, |number| format!("n != {number}"));
    let patterned = ended(|options| options.index.patterns = 8, |number| format!("team.matches('a{number}.*b')"));
    let shapes = ended(|options| options.index.templates = 8, |number| format!("c{number} == 1"));
    let fields = ended(|options| options.index.schemes = 8, |number| format!("c{number} == 1"));
    for [strangers, known] in [scanned, patterned, shapes, fields] {
        assert_eq!((strangers.as_slice(), known.as_slice()), (&some[..], &[const { None }; 4][..]));
    }
    // What is looked up like others takes nothing that is scarce.
    let [strangers, known] = ended(|options| options.index.scanned = 0, |number| format!("n == {number}"));
    assert_eq!((strangers, known), (vec![None; 4], vec![None; 4]));
}

/// Other data of a reader bring it to another place.
#[test]
fn strangers_take_no_more_by_other_data() {
    let mut world = World::tuned(None, public(), |options| options.index.scanned = 8);
    let (found, scanned) = (data(&[("any", false.into())]), data(&[("any", true.into())]));
    for number in 1..=4 {
        world.watch(number, everything(&nobody(), &found, "reader.any && n != 1 || n == 1"));
    }
    world.run(3_000);
    assert!((1..=4).all(|number| folded(&world, number).ended.is_none()), "{:?}", world.events);
    for number in 1..=4 {
        world.tell_gateway(Input::UpdateData { number, data: scanned.clone() });
        world.run(1_000);
    }
    let ended: Vec<bool> = (1..=4).map(|number| folded(&world, number).ended.is_some()).collect();
    assert_eq!(ended, [false, false, true, true]);
}
