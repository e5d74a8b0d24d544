//! What live queries tell whom: R7, bounds of partitions are keys; and lists of access.

use crate::client::{agrees, delete, everything, folded, put, shown_to, version, write};
use crate::holding::{Held, breaks, held, public};
use crate::world::{World, user};
use tidings_base::Wall;
use tidings_predicate::Packed;
use tidings_tables::acl::{Change, Right};
use tidings_tables::calls::Caller;
use tidings_tables::gateway::{Event, Start, Watch};
use tidings_tables::mutant::Mutant;
use tidings_tables::refusal::Refusal;

/// A user as such, who does not administer the table.
pub fn plain(name: &str) -> Caller {
    Caller { principal: format!("user:shop/{name}"), ..user(name) }
}

/// Some records, and a hidden one at which the table is cut; its two partitions.
fn cut(mutant: Option<Mutant>) -> (World, [u32; 2]) {
    let mut world = World::calm(mutant, public());
    for n in 0..6 {
        version(write(&mut world, 0, &user("ann"), put(&format!("k{n}"), "a", n)));
        version(write(&mut world, 0, &user("ann"), put(&format!("z{n}"), "a", n)));
    }
    version(write(&mut world, 0, &user("ann"), shown_to(put("m-secret", "a", 1), "false")));
    let parts = world.split(0, &"m-secret".into()).unwrap();
    (world, parts)
}

/// Whether nobody was told where the table is cut.
fn unbounded(world: &World, number: u64) -> Held {
    for (_, event) in world.events.iter().filter(|(of, _)| *of == number) {
        if let Ok(Event::Reset { start, end, .. }) = event {
            held(start.is_none() && end.is_none(), || format!("told {start:?} {end:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn r7_whoever_does_not_administer_a_table_is_not_told_where_it_is_cut() {
    breaks(
        |mutant| {
            let (mut world, [left, right]) = cut(mutant);
            world.lease(left, 0);
            world.lease(right, 0);
            world.run(500);
            world.watch(1, everything(&plain("bob"), &Packed::empty(), ""));
            world.watch(2, everything(&user("ann"), &Packed::empty(), ""));
            world.run(2_000);
            agrees(&mut world, 1, &Packed::empty(), "")?;
            held(folded(&world, 1).resets == 1, || "one reset of all".to_owned())?;
            // One of them begins anew: its next owner has no log of what was missed. So does the other one, for him.
            world.deaf = true;
            version(write(&mut world, 0, &user("ann"), put("z9", "a", 9)));
            version(write(&mut world, 0, &user("ann"), delete("z1")));
            let other = world.node();
            world.lease(right, other);
            world.run(100);
            world.deaf = false;
            world.run(8_000);
            version(write(&mut world, 0, &user("ann"), put("k9", "a", 9)));
            world.run(3_000);
            held(folded(&world, 1).resets > 1, || "it began anew".to_owned())?;
            for number in [1, 2] {
                agrees(&mut world, number, &Packed::empty(), "")?;
            }
            // The application is told, and is spared the rest.
            let bounded = |event: &Event| matches!(event, Event::Reset { start: Some(_), .. });
            let told = world.events.iter().any(|(of, event)| *of == 2 && event.as_ref().is_ok_and(bounded));
            held(told, || "bounds for whoever administers".to_owned())?;
            unbounded(&world, 1)
        },
        &[Mutant::BoundsTold],
    );
}

/// What changes in one partition waits for the rows of the others, and is told behind them; so is a cursor.
#[test]
fn r7_a_reset_of_all_is_one() {
    let (mut world, [left, right]) = cut(None);
    world.lease(left, 0);
    world.run(500);
    world.watch(1, everything(&plain("bob"), &Packed::empty(), ""));
    world.run(1_000);
    version(write(&mut world, 0, &user("ann"), put("k7", "a", 7)));
    version(write(&mut world, 0, &user("ann"), delete("k0")));
    world.run(3_000);
    let early = folded(&world, 1);
    assert!(early.rows.is_empty() && early.resets == 0 && early.cursor.is_none(), "{early:?}");
    world.lease(right, 0);
    world.run(3_000);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
    unbounded(&world, 1).unwrap();
    let all = folded(&world, 1);
    assert_eq!((all.resets, all.rows.len()), (1, 12));

    // The cursor goes on where it was, in both.
    let cursor = all.cursor.unwrap();
    world.tell_gateway(tidings_tables::gateway::Input::Unwatch { number: 1 });
    version(write(&mut world, 0, &user("ann"), put("z7", "a", 7)));
    world.watch(2, Watch { start: Start::Cursor(cursor), ..everything(&plain("bob"), &Packed::empty(), "") });
    world.run(3_000);
    let gone_on = folded(&world, 2);
    assert_eq!((gone_on.resets, gone_on.rows.len()), (0, 1), "{gone_on:?}");
}

/// A table that is cut in the middle of a reset begins it anew.
#[test]
fn r7_a_reset_of_all_survives_a_cut() {
    let (mut world, [left, right]) = cut(None);
    world.lease(left, 0);
    world.run(500);
    world.watch(1, everything(&plain("bob"), &Packed::empty(), ""));
    world.run(1_000);
    version(write(&mut world, 0, &user("ann"), put("k8", "a", 8)));
    let children = world.split(left, &"k3".into()).unwrap();
    lease_all(&mut world, &children);
    version(write(&mut world, 0, &user("ann"), delete("k4")));
    world.lease(right, 0);
    world.run(5_000);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
    unbounded(&world, 1).unwrap();
    assert_eq!(folded(&world, 1).resets, 1);
}

fn lease_all(world: &mut World, children: &[u32]) {
    for child in children {
        world.lease(*child, 0);
    }
    world.run(500);
}

fn list(world: &mut World, who: &str, allow: &[Right], deny: &[Right]) {
    let (allow, deny) = (allow.iter().copied().collect(), deny.iter().copied().collect());
    let change = Change { who: who.to_owned(), remove: false, allow, deny };
    world.directory.change_acl(&user("maker"), Some(true), &[change]).unwrap();
    world.directory_changed();
}

#[test]
fn live_queries_of_those_who_are_shut_out_end() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            version(write(&mut world, 0, &user("ann"), put("k", "a", 1)));
            list(&mut world, "user:shop/bob", &[Right::Read], &[]);
            world.run(10);
            world.watch(1, everything(&plain("bob"), &Packed::empty(), ""));
            world.watch(2, everything(&plain("carl"), &Packed::empty(), ""));
            world.watch(3, everything(&user("ann"), &Packed::empty(), ""));
            world.run(1_000);
            let [bob, carl] = [1, 2].map(|number| folded(&world, number));
            held(carl.ended == Some(Refusal::NotAllowed) && carl.rows.is_empty(), || format!("{carl:?}"))?;
            held(bob.ended.is_none() && bob.rows.len() == 1, || format!("{bob:?}"))?;
            list(&mut world, "*", &[], &[Right::Read]);
            world.run(100);
            version(write(&mut world, 0, &user("ann"), put("l", "a", 1)));
            world.run(3_000);
            let bob = folded(&world, 1);
            held(bob.ended == Some(Refusal::NotAllowed) && bob.rows.len() == 1, || format!("{bob:?}"))?;
            agrees(&mut world, 3, &Packed::empty(), "")
        },
        &[Mutant::ListIgnored],
    );
}

/// R8: whose claims have expired is nobody of whom a list speaks.
#[test]
fn r8_an_expired_name_is_no_name() {
    let mut world = World::calm(None, public());
    version(write(&mut world, 0, &user("ann"), put("k", "a", 1)));
    list(&mut world, "user:shop/bob", &[Right::Read], &[]);
    world.run(10);
    let expires = Some(Wall(world.now().wall.0 + 2_000_000));
    world.watch(1, everything(&Caller { expires, ..plain("bob") }, &Packed::empty(), ""));
    world.run(1_000);
    assert_eq!((folded(&world, 1).ended, folded(&world, 1).rows.len()), (None, 1));
    world.run(2_000);
    assert_eq!(folded(&world, 1).ended, Some(Refusal::NotAllowed));
}
