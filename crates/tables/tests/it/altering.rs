//! Tables that are altered while they are used.

use crate::client::{agrees, delete, everything, folded, named, pages, put, read, version, write};
use crate::holding::public;
use crate::world::{TABLE, World, data, user};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Wall;
use tidings_predicate::Packed;
use tidings_tables::calls::{Access, Answer, Caller, Level, Outcome, Span, Update, Write};
use tidings_tables::directory::{Column, Kind, Properties, Schema};
use tidings_tables::gateway;
use tidings_tables::processor::Input;
use tidings_tables::refusal::Refusal;

fn guest() -> Caller {
    let (app, principal) = (String::new(), String::new());
    Caller { access: Access::Public, app, principal, claims: Packed::empty(), ..user("") }
}

fn stricter() -> Properties {
    let column = Column { holds: [Kind::String].into(), required: true };
    Properties {
        access: Access::User,
        schema: Some(Schema { columns: [("team".to_owned(), column)].into(), closed: false }),
        may_write: Some("new == null || new.n < 10".to_owned()),
        max_records: Some(2),
        ..public()
    }
}

/// With one column and no other.
fn closed() -> Properties {
    let column = Column { holds: [Kind::String].into(), required: false };
    Properties { schema: Some(Schema { columns: [("team".to_owned(), column)].into(), closed: true }), ..public() }
}

/// Alters the table, and tells its first owner.
fn alter(world: &mut World, properties: Properties) {
    world.directory.alter(&user("maker"), properties).unwrap();
    let properties = Box::new(world.directory.properties.clone());
    world.tell_processor(0, Input::Altered { table: TABLE, properties });
    world.directory_changed();
}

fn names_what_is_not_there(refusal: &Refusal) -> bool {
    tidings_base::Error::from(refusal.clone()).code == "tables.predicate_name"
}

#[test]
fn everybody_is_held_to_what_the_table_is_now() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    version(write(&mut world, 0, &guest(), put("k", "a", 1)));
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    world.run(500);
    alter(&mut world, stricter());
    world.run(100);
    let all = || read(Span::All, Level::Committed, &Packed::empty());
    // Once by the owner that was told, once by the next one, which has it from the directory.
    for (owner, key) in [(0, "l"), (1, "k")] {
        assert_eq!(write(&mut world, owner, &guest(), put("m", "a", 1)), Some(Err(Refusal::Access)));
        assert_eq!(pages(&mut world, owner, 0, &guest(), all()).map(|page| page.records.len()), Err(Refusal::Access));
        let alone = Update::Put { columns: data(&[("n", 1.into())]), predicate: String::new() };
        let refused = write(&mut world, owner, &ann, Write { change: alone, ..put(key, "a", 1) });
        assert!(matches!(refused, Some(Ok(Answer::Written(Outcome::Refused(Refusal::Schema(_)))))), "{refused:?}");
        let refused = |refusal| Some(Ok(Answer::Written(Outcome::Refused(refusal))));
        assert_eq!(write(&mut world, owner, &ann, put(key, "a", 10)), refused(Refusal::MayNotWrite));
        version(write(&mut world, owner, &ann, put(key, "a", 9)));
        assert_eq!(write(&mut world, owner, &ann, put("m", "a", 1)), refused(Refusal::Quota));
        if owner == 0 {
            assert_eq!(world.node(), 1);
            world.lease(0, 1);
            world.run(100);
        }
    }
    world.run(3_000);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
}

/// Whoever is told first, owner or gateway.
#[test]
fn a_query_of_whom_may_not_read_any_more_ends() {
    for gateway in [false, true] {
        let mut world = World::calm(None, public());
        version(write(&mut world, 0, &user("ann"), put("k", "a", 1)));
        world.watch(1, everything(&guest(), &Packed::empty(), ""));
        world.watch(2, everything(&user("ann"), &Packed::empty(), ""));
        world.run(500);
        assert_eq!(folded(&world, 1).rows.len(), 1);
        world.directory.alter(&user("maker"), stricter()).unwrap();
        let properties = Box::new(world.directory.properties.clone());
        match gateway {
            true => world.tell_gateway(gateway::Input::Directory(Arc::new(world.directory.clone()))),
            false => world.tell_processor(0, Input::Altered { table: TABLE, properties }),
        }
        world.run(100);
        let heard = folded(&world, 1);
        version(write(&mut world, 0, &user("ann"), put("k", "a", 2)));
        world.run(3_000);
        assert_eq!(heard.ended, Some(Refusal::Access), "told the gateway: {gateway}");
        assert_eq!(folded(&world, 1).rows, heard.rows);
        agrees(&mut world, 2, &Packed::empty(), "").unwrap();
    }
}

/// R8: the owner knows of a table's level before the gateway that takes a reader's claims away.
#[test]
fn whose_claims_are_over_is_held_to_what_the_owner_knows() {
    let mut world = World::calm(None, public());
    version(write(&mut world, 0, &user("ann"), put("k", "a", 1)));
    let expires = Some(Wall(world.now().wall.0 + 2_000_000));
    world.watch(1, everything(&Caller { expires, ..user("ann") }, &Packed::empty(), ""));
    world.run(500);
    world.directory.alter(&user("maker"), stricter()).unwrap();
    let properties = Box::new(world.directory.properties.clone());
    world.tell_processor(0, Input::Altered { table: TABLE, properties });
    world.run(500);
    assert_eq!((folded(&world, 1).rows.len(), folded(&world, 1).ended), (1, None));
    world.run(3_000);
    version(write(&mut world, 0, &user("bob"), put("l", "a", 2)));
    world.run(1_000);
    assert_eq!((folded(&world, 1).rows.len(), folded(&world, 1).ended), (1, Some(Refusal::Access)));
}

/// Marks go with later commits, some hundred at a time; what was written over one meanwhile stays.
#[test]
fn an_old_mark_that_goes_hides_nothing_that_was_written_since() {
    let marks = Properties { tombstones_s: 1, ..public() };
    let mut world = World::tuned(None, marks, |options| options.log_time = Duration::from_secs(1));
    let ann = user("ann");
    let key = |n: u32| format!("k{n:03}");
    for n in 0..300 {
        version(write(&mut world, 0, &ann, put(&key(n), "a", 1)));
        version(write(&mut world, 0, &ann, delete(&key(n))));
    }
    world.run(5_000);
    // A scan meets all of them; the next commits take them away.
    let all = || read(Span::All, Level::Latest, &Packed::empty());
    assert!(pages(&mut world, 0, 0, &ann, all()).unwrap().records.is_empty());
    version(write(&mut world, 0, &ann, put(&key(299), "a", 2)));
    version(write(&mut world, 0, &ann, put("other", "a", 3)));
    let one = read(Span::Only(key(299).as_str().into()), Level::Latest, &Packed::empty());
    assert_eq!(pages(&mut world, 0, 0, &ann, one).unwrap().records.len(), 1);
    assert_eq!(pages(&mut world, 0, 0, &ann, all()).unwrap().records.len(), 2);
}

/// R6: whoever repeats a write hears what became of it, whatever the table is by then.
#[test]
fn what_was_decided_before_a_table_was_closed_is_told_again() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    let team = |op: u64| {
        let change = Update::Put { columns: data(&[("team", "a".into())]), predicate: "n == 1".to_owned() };
        named(Write { change, ..put("k", "a", 1) }, op, 0, None)
    };
    let first = version(write(&mut world, 0, &ann, team(1)));
    alter(&mut world, closed());
    let other = world.node();
    for owner in [0, other] {
        world.lease(0, owner);
        world.run(200);
        assert_eq!(version(write(&mut world, owner, &ann, team(1))), first);
        let refused = write(&mut world, owner, &ann, team(2));
        assert!(matches!(&refused, Some(Err(why)) if names_what_is_not_there(why)), "{refused:?}");
    }
}

/// What a table declares later ends no live query: neither at its owner nor at the next one.
#[test]
fn a_query_of_what_a_table_had_before_it_was_closed_goes_on() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    world.watch(1, everything(&ann, &Packed::empty(), "n >= 1"));
    world.run(500);
    alter(&mut world, closed());
    let other = world.node();
    for owner in [0, other] {
        world.lease(0, owner);
        world.run(3_000);
        agrees(&mut world, 1, &Packed::empty(), "n >= 1").unwrap();
        assert_eq!((folded(&world, 1).rows.len(), folded(&world, 1).ended), (1, None));
        // New texts know the columns that there are.
        let team = Update::Put { columns: data(&[("team", "b".into())]), predicate: "n == 1".to_owned() };
        let refused = write(&mut world, owner, &ann, Write { change: team, ..put("l", "b", 1) });
        assert!(matches!(&refused, Some(Err(why)) if names_what_is_not_there(why)), "{refused:?}");
    }
    version(write(&mut world, other, &ann, delete("k")));
    world.run(1_000);
    assert_eq!(folded(&world, 1).rows.len(), 0);
}
