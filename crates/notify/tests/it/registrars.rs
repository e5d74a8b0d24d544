//! The registrar's rules, each with the rule left out where that shows.

mod collecting;
mod hooks;
mod losses;
mod many;
mod numbers;
mod sessions;

use crate::desk::{Desk, ann, channel, client_key, lease, realm};
use crate::model::unavailable;
use bytes::Bytes;
use std::time::Duration;
use tidings_base::{KeyRange, LeaseNumber};
use tidings_notify::Outcome;
use tidings_notify::mutant::Mutant;
use tidings_notify::names::Caller;
use tidings_notify::registrar::{Input, Options, Output, Registrar};
use tidings_notify::rows::Realm;
use tidings_wire::v1;
use tidings_wire::v1::NotifyRefused as Refused;
use tidings_wire::v1::registration_change::Change;

fn desk(mutant: Option<Mutant>) -> Desk<Registrar> {
    // Nobody answers scrubs here, and clients that wait for an answer are not collected.
    let scrub_every = Duration::from_secs(365 * 24 * 3_600);
    // Whatever is to be logged is logged at once: `overtaken.rs` is about waiting for acks.
    Desk::registrar(Options { mutant, scrub_every, log_after: Duration::ZERO, ..Default::default() })
}

fn none() -> Bytes {
    Bytes::new()
}

/// A client with one object registered; nothing known of it.
fn registered(desk: &mut Desk<Registrar>, version: u64) -> v1::NotifyGrant {
    let grant = desk.hello(1, 11, &none()).unwrap();
    desk.register(&grant, 1, 1, b"x");
    assert_eq!(desk.match_all(version).len(), 1);
    grant
}

/// Another owner, or this one again, holds everything under this lease.
fn moves(desk: &mut Desk<Registrar>, lease: u32) {
    desk.give(Input::Lost { range: KeyRange::FULL });
    desk.take();
    desk.give(Input::Gained { range: KeyRange::FULL, lease: LeaseNumber::new(lease).unwrap() });
}

fn notifications(downs: Vec<v1::NotifyDown>) -> Vec<(u64, bool)> {
    let all = downs.into_iter().flat_map(|down| down.notifications);
    all.map(|n| (n.version, n.unknown > 0)).collect()
}

#[test]
fn f1_everything_that_is_said_stands_on_the_lease() {
    for (mutant, guarded) in [(None, true), (Some(Mutant::LeaseIgnored), false)] {
        let mut desk = desk(mutant);
        let key = {
            let grant = registered(&mut desk, 0);
            desk.key_of(&grant)
        };
        let sends = desk.take();
        assert!(sends.iter().any(|out| matches!(out, Output::Send { .. })));
        for out in &sends {
            if let Output::Send { guard, .. } = out {
                assert_eq!(guard.map(|guard| guard.lease), guarded.then_some(lease()));
            }
        }
        let notify = v1::ClientNotify {
            realm: crate::desk::wire_realm(),
            client: Some(key.to_message()),
            object: Bytes::from_static(b"x"),
            version: 3,
            ..Default::default()
        };
        let request = tidings_notify::RequestId(1);
        desk.give(Input::Notify { request, lease: lease(), notify: Box::new(notify) });
        let answered = desk.take().into_iter().find_map(|out| match out {
            Output::Notified { guard, outcome, .. } => Some((guard.is_some(), outcome)),
            _ => None,
        });
        assert_eq!(answered, Some((guarded, Outcome::Done)));
    }
}

#[test]
fn f1_a_key_that_is_not_held_is_not_served() {
    let mut desk = desk(None);
    let grant = registered(&mut desk, 0);
    let key = desk.key_of(&grant);
    desk.give(Input::Lost { range: KeyRange::FULL });
    desk.take();
    assert_eq!((desk.machine.clients(), desk.machine.pending()), (0, 0));
    assert_eq!(desk.notify(&key, b"x", 3, false), Some(Outcome::Moved));
    assert!(desk.hello(2, 12, &grant.token).is_none());
}

#[test]
fn f4_the_ack_of_a_version_leaves_the_unknown() {
    for (mutant, left) in [(None, vec![(0, true)]), (Some(Mutant::AckClearsUnknown), vec![])] {
        let mut desk = desk(mutant);
        let grant = registered(&mut desk, 0);
        let key = desk.key_of(&grant);
        assert_eq!(desk.notify(&key, b"x", 5, false), Some(Outcome::Done));
        assert_eq!(notifications(desk.downs()), [(0, true), (5, false), (0, true)]);
        desk.ack(&grant, 1, b"x", 5, 0);
        desk.downs();
        desk.pass(1_500);
        assert_eq!(notifications(desk.downs()), left);
        // And the other way round: the unknown's own ack, by its number alone.
        desk.ack(&grant, 1, b"x", 0, 1);
        desk.pass(3_000);
        assert_eq!(notifications(desk.downs()), left);
    }
}

#[test]
fn f5_markers_share_the_writes_of_what_they_stand_for() {
    let columns = |cells: &[v1::Cell], live: bool| -> Vec<String> {
        let cells = cells.iter().filter(|cell| cell.value.is_some() == live);
        cells.map(|cell| String::from_utf8_lossy(&cell.column).into_owned()).collect()
    };
    for mutant in [None, Some(Mutant::NoMarker)] {
        let mut desk = desk(mutant);
        let grant = desk.hello(1, 11, &none()).unwrap();
        desk.writes.clear();
        desk.register(&grant, 1, 1, b"x");
        let [write] = &desk.writes[..] else { panic!("one write") };
        let live = columns(&write.cells, true);
        assert!(live.contains(&"reg-x".into()));
        assert_eq!(live.contains(&"pending-x".into()), mutant.is_none());
        desk.writes.clear();
        desk.match_all(7);
        let [write] = &desk.writes[..] else { panic!("one write") };
        assert!(columns(&write.cells, true).contains(&"told-x".into()));
        assert!(columns(&write.cells, false).contains(&"pending-x".into()));
    }
}

#[test]
fn f5_a_new_owner_finds_the_markers_and_says_how_it_stands() {
    for (mutant, found) in [(None, 1), (Some(Mutant::NoRecovery), 0)] {
        let mut old = desk(mutant);
        let grant = old.hello(1, 11, &none()).unwrap();
        old.register(&grant, 1, 1, b"x");
        let mut new = Desk::seat(Registrar::new(Options { mutant, ..Default::default() }));
        new.store = old.store;
        new.give(Input::Realm(realm()));
        new.give(Input::Gained { range: KeyRange::FULL, lease: tidings_base::LeaseNumber::new(6).unwrap() });
        assert_eq!(new.downs().len(), found, "its digest");
        let calls = new.match_all(4);
        assert_eq!(calls.len(), found);
        assert_eq!(notifications(new.downs()).len(), found);
    }
}

/// Of what is not stable a matcher would know what no registrar knows.
#[test]
fn f5_a_matcher_hears_of_a_registration_when_the_row_says_so() {
    for (mutant, early) in [(None, 0), (Some(Mutant::SpreadUnstored), 1)] {
        let mut desk = desk(mutant);
        let grant = desk.hello(1, 11, &none()).unwrap();
        desk.hold = true;
        desk.register(&grant, 1, 1, b"x");
        assert_eq!(desk.match_all(0).len(), early, "{mutant:?}");
        desk.hold = false;
        desk.release_all();
        assert_eq!(desk.match_all(0).len(), 1 - early, "{mutant:?}");
    }
}

/// F11: whoever can be read is found at once, and those who cannot when they can.
#[test]
fn f5_rows_that_cannot_be_read_hide_no_clients_of_others() {
    let mut old = desk(None);
    let bob = Caller { app: ann().app, principal: "bob".into() };
    for (number, caller) in [(1, ann()), (2, bob.clone())] {
        let hello = v1::NotifyHello { nonce: number, ..Default::default() };
        old.from(caller, number, v1::NotifyUp { hello: Some(hello), ..Default::default() });
    }
    let first = |caller: &Caller| Registrar::place_of(caller).0.to_be_bytes()[0];
    assert_ne!(first(&ann()) / 4, first(&bob) / 4, "they are not neighbours");
    let mut new = Desk::seat(Registrar::new(Options::default()));
    new.store = old.store;
    new.store.failing.insert(first(&ann()));
    new.give(Input::Realm(realm()));
    new.give(Input::Gained { range: KeyRange::FULL, lease: tidings_base::LeaseNumber::new(6).unwrap() });
    assert_eq!((new.downs().len(), new.machine.clients()), (1, 1), "one digest");
    new.store.failing.clear();
    new.pass(5_000);
    assert_eq!((new.downs().len(), new.machine.clients()), (1, 2), "and the other");
}

#[test]
fn f6_a_client_hears_that_it_is_registered_after_its_matcher_and_the_row() {
    let mut desk = desk(None);
    let grant = desk.hello(1, 11, &none()).unwrap();
    desk.register(&grant, 1, 1, b"x");
    let downs = desk.downs();
    assert!(downs.iter().all(|down| down.statuses.is_empty()) && downs.last().unwrap().pending == 1);
    desk.hold = true;
    desk.match_all(7);
    assert!(desk.downs().is_empty());
    desk.release_all();
    let downs = desk.downs();
    assert!(downs.iter().any(|down| down.statuses.iter().any(|status| status.registered)));
    assert_eq!((notifications(downs.clone()), downs.last().unwrap().pending), (vec![(7, false)], 0));
}

#[test]
fn f6_what_the_client_knows_is_not_told_but_the_unknown_is() {
    for (version, told) in [(7, vec![]), (9, vec![(9, false)]), (0, vec![(0, true)])] {
        let mut desk = desk(None);
        let grant = desk.hello(1, 11, &none()).unwrap();
        let interest = v1::ObjectInterest { object: Bytes::from_static(b"x"), known_version: 8 };
        let change = Some(v1::registration_change::Change::Register(interest));
        let changes = vec![v1::RegistrationChange { change }];
        let token = grant.token.clone();
        desk.from(ann(), 1, v1::NotifyUp { token, latest: 1, first: 1, changes, ..Default::default() });
        desk.match_all(version);
        assert_eq!(notifications(desk.downs()), told);
    }
}

#[test]
fn f6_an_unregistered_client_is_reported_with_a_number_that_spares_what_comes_later() {
    let mut desk = desk(None);
    let grant = registered(&mut desk, 3);
    let key = desk.key_of(&grant);
    let Some(Outcome::NotRegistered(seqno)) = desk.notify(&key, b"y", 3, false) else { panic!() };
    desk.register(&grant, 1, 2, b"y");
    let calls = desk.match_all(3);
    assert!(calls[0].seqno > seqno && seqno >> 32 == 5);
    assert!(matches!(desk.notify(&client_key("nobody", 1), b"x", 3, false), Some(Outcome::NotRegistered(_))));
    assert_eq!(desk.notify(&key, b"y", 4, true), None);
}

#[test]
fn f8_a_repeat_gets_the_same_grant_and_a_handshake_supersedes() {
    for mutant in [None, Some(Mutant::SupersededAccepted)] {
        let mut desk = desk(mutant);
        let first = desk.hello(1, 11, &none()).unwrap();
        assert_eq!(desk.hello(1, 11, &none()).as_ref(), Some(&first));
        let second = desk.hello(2, 12, &first.token).unwrap();
        assert!(second.session > first.session && second.salt == first.salt);
        assert_eq!(desk.hello(2, 12, &first.token).as_ref(), Some(&second));
        desk.register(&first, 1, 1, b"x");
        match mutant {
            None => assert_eq!(desk.refusals(), [Refused::Superseded]),
            Some(_) => assert_eq!(desk.refusals(), vec![]),
        }
        // Cloned storage: a handshake from a superseded session gets an id of its own.
        let clone = desk.hello(3, 13, &first.token).unwrap();
        assert_ne!(clone.salt, second.salt);
    }
}

#[test]
fn f8_what_is_stored_late_of_a_session_says_nothing_in_the_next() {
    let mut desk = desk(None);
    let first = desk.hello(1, 11, &none()).unwrap();
    desk.hold = true;
    desk.register(&first, 1, 1, b"x");
    assert_eq!(desk.hello(1, 12, &first.token), None, "the write of the registration is under way");
    assert!(desk.release());
    let echoes = |downs: Vec<v1::NotifyDown>| {
        let later = downs.into_iter().filter(|down| down.session > first.session);
        later.map(|down| down.echo).collect::<Vec<_>>()
    };
    let late = echoes(desk.downs());
    assert!(late.iter().all(|echo| *echo == 0), "the new session has changed nothing yet: {late:?}");
    // The write that begins it happens, and nobody hears of it: the session's first change is not taken for known.
    let (id, request) = desk.held.pop_front().unwrap();
    assert!(desk.store.perform(&request).is_ok());
    desk.give(Input::Stored { id, result: Err(unavailable()) });
    desk.release_all();
    let second = desk.hello(1, 12, &first.token).unwrap();
    assert!(second.session > first.session);
    desk.register(&second, 1, 1, b"y");
    let calls = desk.match_all(0);
    assert!(calls.iter().any(|call| call.object == "y"), "{calls:?}");
}

#[test]
fn f8_a_token_is_its_principals_alone() {
    let mut desk = desk(None);
    let grant = desk.hello(1, 11, &none()).unwrap();
    let bob = Caller { principal: "bob".into(), ..ann() };
    desk.from(bob, 2, v1::NotifyUp { token: grant.token.clone(), ..Default::default() });
    assert_eq!(desk.refusals(), [Refused::BadToken]);
    desk.from(ann(), 2, v1::NotifyUp { token: Bytes::from_static(b"junk"), ..Default::default() });
    assert_eq!(desk.refusals(), [Refused::BadToken]);
    let other = Caller { app: "other".into(), ..ann() };
    desk.from(other, 2, v1::NotifyUp { token: grant.token, ..Default::default() });
    assert_eq!(desk.refusals(), [Refused::BadToken]);
}

#[test]
fn f8_only_the_connection_that_presence_names_takes_a_client_offline() {
    let mut desk = desk(None);
    let grant = registered(&mut desk, 3);
    desk.hello(2, 12, &grant.token).unwrap();
    desk.give(Input::Closed(channel(1)));
    assert_eq!(desk.machine.clients(), 1);
    desk.give(Input::Closed(channel(2)));
    assert_eq!(desk.machine.clients(), 0);
}

#[test]
fn a_message_of_an_earlier_connection_does_not_take_the_client_back() {
    let mut desk = desk(None);
    let grant = registered(&mut desk, 3);
    desk.ack(&grant, 2, b"x", 3, 0);
    // It was on its way for long.
    desk.ack(&grant, 1, b"x", 3, 0);
    desk.give(Input::Closed(channel(1)));
    desk.downs();
    let key = desk.key_of(&grant);
    assert_eq!(desk.notify(&key, b"x", 4, false), Some(Outcome::Done));
    let to = desk.take().into_iter().find_map(|out| match out {
        Output::Send { channel, .. } => Some(channel),
        _ => None,
    });
    assert_eq!(to, Some(channel(2)));
}

/// It was on its way when the client came by another connection and said something else there; the next registrar knows of
/// neither.
#[test]
fn a_change_by_an_earlier_connection_undoes_nothing_that_was_said_by_a_later_one() {
    let mut desk = desk(None);
    let grant = registered(&mut desk, 3);
    desk.register(&grant, 2, 3, b"y");
    desk.match_all(0);
    desk.give(Input::Lost { range: KeyRange::FULL });
    desk.give(Input::Gained { range: KeyRange::FULL, lease: lease() });
    desk.pass(1_000);
    let change = Some(Change::Unregister(Bytes::from_static(b"x")));
    let changes = vec![v1::RegistrationChange { change }];
    desk.from(
        ann(),
        1,
        v1::NotifyUp { token: grant.token.clone(), first: 2, latest: 2, changes, ..Default::default() },
    );
    desk.match_all(0);
    desk.downs();
    let key = desk.key_of(&grant);
    assert_eq!(desk.notify(&key, b"x", 4, false), Some(Outcome::Done));
    assert!(notifications(desk.downs()).contains(&(4, false)), "it is registered still");
}

#[test]
fn f9_an_ack_counts_up_to_what_was_sent() {
    for (mutant, heard) in [(None, vec![(7, false)]), (Some(Mutant::FutureAckAccepted), vec![])] {
        let mut desk = desk(mutant);
        let grant = registered(&mut desk, 5);
        let key = desk.key_of(&grant);
        desk.ack(&grant, 1, b"x", 9, 0);
        desk.ack(&grant, 1, b"x", 5, 0);
        desk.downs();
        assert_eq!(desk.notify(&key, b"x", 7, false), Some(Outcome::Done));
        assert_eq!(notifications(desk.downs()), heard);
    }
}

/// What a client says it knows is believed for as long as the registration lasts, and no longer.
#[test]
fn f9_an_ack_hides_nothing_that_comes_after_a_new_registration() {
    let mut desk = desk(None);
    let grant = registered(&mut desk, 5);
    let key = desk.key_of(&grant);
    let change = |change| vec![v1::RegistrationChange { change: Some(change) }];
    let interest = |known_version| v1::ObjectInterest { object: Bytes::from_static(b"x"), known_version };
    let say = |desk: &mut Desk<Registrar>, first: u64, changes| {
        let token = grant.token.clone();
        desk.from(ann(), 1, v1::NotifyUp { token, first, latest: first, changes, ..Default::default() });
        desk.match_all(5);
    };
    say(&mut desk, 2, change(Change::Register(interest(1_000))));
    desk.ack(&grant, 1, b"x", 5, 0);
    say(&mut desk, 101, change(Change::Unregister(Bytes::from_static(b"x"))));
    say(&mut desk, 102, change(Change::Register(interest(5))));
    // It goes, and is told when it is back.
    desk.give(Input::Closed(channel(1)));
    assert_eq!(desk.notify(&key, b"x", 6, false), Some(Outcome::Done));
    desk.downs();
    desk.hello(2, 12, &grant.token).expect("it is back");
    desk.pass(1_500);
    assert!(notifications(desk.downs()).contains(&(6, false)));
}

#[test]
fn f9_what_was_acknowledged_first_is_not_logged() {
    let mut desk = desk(None);
    let grant = registered(&mut desk, 5);
    let key = desk.key_of(&grant);
    assert_eq!(desk.notify(&key, b"x", 6, true), None);
    desk.ack(&grant, 1, b"x", 6, 0);
    desk.writes.clear();
    assert_eq!(desk.notify(&key, b"x", 6, false), Some(Outcome::Done));
    assert!(desk.writes.is_empty());
}

#[test]
fn notifications_are_sent_again_ever_less_often_until_they_are_acknowledged() {
    for (mutant, at_least) in [(None, 4), (Some(Mutant::NoRetransmission), 0)] {
        let mut desk = desk(mutant);
        let grant = registered(&mut desk, 5);
        desk.downs();
        desk.pass(20_000);
        let sent = notifications(desk.downs()).len();
        assert!(sent >= at_least && sent <= 8, "{sent}");
        desk.ack(&grant, 1, b"x", 5, 0);
        desk.downs();
        desk.pass(200_000);
        assert_eq!(notifications(desk.downs()), vec![]);
    }
}

#[test]
fn what_breaks_a_limit_is_refused_by_name() {
    let mut desk = Desk::registrar(Options { max_registrations: 1, ..Default::default() });
    let grant = registered(&mut desk, 1);
    desk.downs();
    desk.register(&grant, 1, 2, b"one too many");
    desk.register(&grant, 1, 3, b"");
    let statuses = desk.downs().into_iter().flat_map(|down| down.statuses);
    assert_eq!(statuses.map(|s| s.failure()).collect::<Vec<_>>(), [v1::RegistrationFailure::Permanent; 2]);
    let changes = vec![v1::RegistrationChange::default(); 513];
    let token = grant.token.clone();
    desk.from(ann(), 1, v1::NotifyUp { token, latest: 600, first: 4, changes, ..Default::default() });
    assert_eq!(desk.refusals(), [Refused::Invalid]);
}

#[test]
fn under_pressure_entries_are_dropped_and_found_again() {
    let mut desk = Desk::registrar(Options { max_pending: 1, ..Default::default() });
    let grant = desk.hello(1, 11, &none()).unwrap();
    desk.register(&grant, 1, 1, b"x");
    desk.register(&grant, 1, 2, b"y");
    assert_eq!(desk.machine.pending(), 1);
    assert_eq!(desk.downs().last().unwrap().pending, 2);
    assert_eq!(desk.match_all(3).len(), 1);
    desk.pass(1_000);
    assert_eq!(desk.match_all(3).len(), 1);
    assert_eq!(desk.downs().last().unwrap().pending, 0);
}

#[test]
fn a_write_whose_outcome_is_unknown_is_not_believed() {
    let mut desk = desk(None);
    let grant = registered(&mut desk, 5);
    let key = desk.key_of(&grant);
    desk.take();
    desk.store.failing = (0..=255).collect();
    assert_eq!(desk.notify(&key, b"x", 8, false), Some(Outcome::Failed));
    desk.store.failing.clear();
    desk.take();
    desk.pass(Duration::from_secs(2).as_millis() as u64);
    assert_eq!(desk.notify(&key, b"x", 8, false), Some(Outcome::Done));
}
