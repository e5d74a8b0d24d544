//! Numbers: how many a lease has, and what is stored under them.

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use tidings_notify::rows::StoreRequest;

fn unregister(desk: &mut Desk<Registrar>, grant: &v1::NotifyGrant, op: u64) {
    let changes = vec![v1::RegistrationChange { change: Some(Change::Unregister(Bytes::from_static(b"x"))) }];
    let token = grant.token.clone();
    desk.from(ann(), 1, v1::NotifyUp { token, first: op, latest: op, changes, ..Default::default() });
    desk.match_all(0);
}

/// F2: nothing is stamped with a number twice, and nothing with one that no later owner could exceed.
#[test]
fn f2_a_lease_whose_numbers_are_used_up_is_given_up() {
    let mut desk = Desk::registrar(Options { numbers: 160, ..Default::default() });
    let grant = desk.hello(1, 11, &none()).unwrap();
    let mut worn = 0;
    for op in 1..=200 {
        desk.register(&grant, 1, op, b"x");
        desk.match_all(5);
        worn += desk.take().iter().filter(|out| matches!(out, Output::Worn { lease: of } if *of == lease())).count();
    }
    assert_eq!(worn, 1);
    let stamps = |desk: &Desk<Registrar>| -> Vec<u64> {
        let cells = desk.writes.iter().flat_map(|write| &write.cells).filter(|cell| cell.column.starts_with(b"reg-"));
        cells.map(|cell| cell.timestamp).collect()
    };
    let first = stamps(&desk);
    assert!((140..200).contains(&first.len()), "{}", first.len());
    assert!(first.windows(2).all(|pair| pair[0] < pair[1]));
    let next = LeaseNumber::new(lease().get() + 1).unwrap();
    moves(&mut desk, next.get());
    let last = first.len() as u64;
    let changes = vec![v1::RegistrationChange {
        change: Some(Change::Register(v1::ObjectInterest { object: Bytes::from_static(b"y"), known_version: 0 })),
    }];
    let up = v1::NotifyUp {
        token: grant.token,
        first: last + 1,
        latest: last + 1,
        contact: 1,
        changes,
        ..Default::default()
    };
    desk.give(Input::Up { caller: ann(), channel: channel(1), lease: next, message: Box::new(up) });
    let all = stamps(&desk);
    assert_eq!(all.len(), first.len() + 1);
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
}

/// F9: what was acknowledged before a registration was given up says nothing of the next one.
#[test]
fn f9_the_ack_of_an_earlier_registration_hides_nothing_of_the_next_one() {
    for logged in [false, true] {
        let mut desk = desk(None);
        let grant = registered(&mut desk, if logged { 4 } else { 5 });
        let key = desk.key_of(&grant);
        if logged {
            desk.ack(&grant, 1, b"x", 4, 0);
            assert_eq!(desk.notify(&key, b"x", 5, false), Some(Outcome::Done));
        }
        desk.ack(&grant, 1, b"x", 5, 0);
        unregister(&mut desk, &grant, 100);
        desk.register(&grant, 1, 101, b"x");
        desk.match_all(5);
        assert_eq!(notifications(desk.downs()).pop(), Some((5, false)));
        // It is lost on the way, and so is its owner.
        moves(&mut desk, lease().get() + 1);
        assert_eq!(notifications(desk.downs()), [(5, false)], "logged: {logged}");
        desk.give(Input::Lost { range: KeyRange::FULL });
        moves(&mut desk, lease().get());
        desk.ack(&grant, 1, b"x", 5, 0);
        moves(&mut desk, lease().get() + 2);
        assert_eq!(notifications(desk.downs()), [], "logged: {logged}");
    }
}

/// §4.2.5: the bound holds for what is found by its marker, too.
#[test]
fn what_is_found_by_its_marker_waits_until_there_is_room() {
    let mut desk = Desk::registrar(Options { max_pending: 4, ..Default::default() });
    let grant = desk.hello(1, 11, &none()).unwrap();
    let objects: [&[u8]; 10] = [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9"];
    for (op, object) in (1..).zip(objects) {
        desk.register(&grant, 1, op, object);
    }
    assert_eq!(desk.machine.pending(), 4);
    moves(&mut desk, lease().get() + 1);
    let mut propagated = BTreeSet::new();
    for _ in 0..10 {
        assert!(desk.machine.pending() <= 4, "{}", desk.machine.pending());
        propagated.extend(desk.match_all(5).into_iter().map(|call| call.object));
        desk.pass(1_000);
    }
    assert_eq!(propagated.len(), 10);
    assert_eq!(desk.machine.pending(), 0);
}

/// What was registered once leaves nothing behind that every later reading of the row would meet.
#[test]
fn nothing_of_an_object_that_is_unregistered_stays_in_the_row() {
    for version in [0, 5] {
        let mut desk = desk(None);
        let grant = registered(&mut desk, version);
        let key = desk.key_of(&grant);
        desk.notify(&key, b"x", 6, false);
        unregister(&mut desk, &grant, 100);
        let mut cells: BTreeMap<Bytes, (u64, bool)> = BTreeMap::new();
        for cell in desk.writes.iter().filter(|write| write.row.ends_with(key.id())).flat_map(|write| &write.cells) {
            // At equal timestamps a tombstone wins.
            let (latest, gone) = cells.entry(cell.column.clone()).or_default();
            (*latest, *gone) = (*latest, *gone).max((cell.timestamp, cell.value.is_none()));
        }
        let live = cells.iter().filter(|(column, (_, gone))| column.ends_with(b"-x") && !gone);
        assert_eq!(live.collect::<Vec<_>>(), []);
        desk.register(&grant, 1, 101, b"x");
        desk.match_all(6);
        moves(&mut desk, lease().get() + 1);
        assert_eq!(notifications(desk.downs()), [(6, false)], "what is known is told anew");
    }
}

/// §4.2.3: retransmission does not depend on what a client says.
#[test]
fn a_client_whose_row_could_not_be_written_nor_read_is_found_again() {
    let mut desk = desk(None);
    let grant = registered(&mut desk, 5);
    let key = desk.key_of(&grant);
    desk.hold = true;
    desk.notify(&key, b"x", 6, false);
    for wanted in ["write", "read"] {
        let (id, request) = desk.held.pop_front().expect(wanted);
        assert_eq!(matches!(request, StoreRequest::Write(_)), wanted == "write", "{request:?}");
        desk.give(Input::Stored { id, result: Err(unavailable()) });
    }
    assert_eq!((desk.machine.clients(), desk.held.len()), (0, 0), "nothing of it is in memory");
    desk.hold = false;
    desk.downs();
    desk.pass(10_000);
    assert!(notifications(desk.downs()).contains(&(5, false)));
}

/// What fails at some matchers holds up nothing that belongs to others.
#[test]
fn registrations_at_matchers_that_fail_hold_up_no_others() {
    let mut desk = desk(None);
    let grant = desk.hello(1, 11, &none()).unwrap();
    for op in 1..=600u64 {
        let object = Bytes::from(format!("{op:04}"));
        let interest = v1::ObjectInterest { object, known_version: 0 };
        let changes = vec![v1::RegistrationChange { change: Some(Change::Register(interest)) }];
        let token = grant.token.clone();
        desk.from(ann(), 1, v1::NotifyUp { token, first: op, latest: op, changes, ..Default::default() });
    }
    let mut done = BTreeSet::new();
    for _ in 0..20 {
        for out in desk.take() {
            let Output::ToMatcher { id, call, .. } = out else { continue };
            let fails = call.object.as_ref() < &b"0301"[..];
            let outcome = if fails { Outcome::Failed } else { Outcome::Done };
            if !fails {
                done.insert(call.object.clone());
            }
            desk.give(Input::Matched { id, outcome, version: 5 });
        }
        desk.pass(100);
    }
    assert_eq!(done.len(), 300);
}
