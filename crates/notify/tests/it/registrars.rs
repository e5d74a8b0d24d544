//! The registrar's rules, each with the rule left out where that shows.

use crate::desk::{APP, Desk, ann, channel, client_key, lease, realm};
use crate::model::unavailable;
use bytes::Bytes;
use std::time::Duration;
use tidings_base::KeyRange;
use tidings_notify::Outcome;
use tidings_notify::mutant::Mutant;
use tidings_notify::names::Caller;
use tidings_notify::registrar::{Hooks, Input, Options, Output, Registrar, Verdict};
use tidings_notify::rows::{Realm, StoreRequest};
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
fn f3_a_raised_incarnation_refuses_old_tokens() {
    for mutant in [None, Some(Mutant::IncarnationIgnored)] {
        let mut desk = desk(mutant);
        let grant = registered(&mut desk, 0);
        desk.downs();
        desk.give(Input::Realm(Realm { incarnation: 2, ..realm() }));
        desk.register(&grant, 1, 2, b"y");
        let refused = desk.refusals();
        match mutant {
            None => assert_eq!(refused, [Refused::InvalidId, Refused::InvalidId]),
            Some(_) => assert_eq!(refused, vec![]),
        }
    }
}

/// They lie there until they are deleted.
#[test]
fn f3_rows_of_an_earlier_generation_are_taken_to_no_matcher_of_the_new_one() {
    let mut old = desk(None);
    let grant = old.hello(1, 11, &none()).unwrap();
    old.register(&grant, 1, 1, b"x");
    let reset = |generation| Realm { generations: [(APP.to_owned(), generation)].into(), ..realm() };
    for (generation, taken) in [(0, 1), (1, 0)] {
        let mut new = Desk::seat(Registrar::new(Options::default()));
        new.store = old.store.clone();
        new.give(Input::Realm(reset(generation)));
        new.give(Input::Gained { range: KeyRange::FULL, lease: tidings_base::LeaseNumber::new(6).unwrap() });
        assert_eq!((new.match_all(4).len(), new.downs().is_empty()), (taken, taken == 0), "generation {generation}");
    }
}

/// Whether a client that has this grant is told that nobody knows the latest version of what it registers.
fn hears_of_the_loss(desk: &mut Desk<Registrar>, grant: &v1::NotifyGrant, number: u64) -> bool {
    desk.register(grant, number, 1, b"x");
    desk.match_all(5);
    notifications(desk.downs()).iter().any(|(_, unknown)| *unknown)
}

#[test]
fn f3_who_gets_another_id_before_it_has_heard_of_a_loss_hears_of_it() {
    let before_the_loss = Bytes::from_static(b"a token of another time");
    // Its storage was copied: both get to hear.
    let mut desk = desk(None);
    let first = desk.hello(1, 11, &before_the_loss).unwrap();
    desk.hello(2, 12, &first.token).unwrap();
    let clone = desk.hello(3, 13, &first.token).unwrap();
    assert_ne!(clone.salt, first.salt);
    assert!(hears_of_the_loss(&mut desk, &clone, 3));

    // The id was never stored, and the handshake is repeated.
    let mut desk = self::desk(None);
    desk.hold = true;
    assert_eq!(desk.hello(1, 11, &before_the_loss), None);
    assert!(desk.release(), "its ids are counted");
    let (id, request) = desk.held.pop_front().unwrap();
    assert!(matches!(request, StoreRequest::Write(_)), "{request:?}");
    desk.give(Input::Stored { id, result: Err(unavailable()) });
    desk.release_all();
    let grant = desk.hello(1, 11, &before_the_loss).unwrap();
    assert!(hears_of_the_loss(&mut desk, &grant, 1));

    // Who has lost nothing hears of nothing.
    let mut desk = self::desk(None);
    let first = desk.hello(1, 11, &none()).unwrap();
    desk.hello(2, 12, &first.token).unwrap();
    let clone = desk.hello(3, 13, &first.token).unwrap();
    assert!(!hears_of_the_loss(&mut desk, &clone, 3));
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
        assert!(columns(&write.cells, true).contains(&"log-x".into()));
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

fn offline_for_days(desk: &mut Desk<Registrar>) -> v1::NotifyGrant {
    let grant = registered(desk, 5);
    desk.give(Input::Closed(channel(1)));
    desk.take();
    desk.pass(8 * 24 * 3_600_000);
    grant
}

fn confirm(desk: &mut Desk<Registrar>, held: bool) {
    assert!(desk.confirm(held), "collection asks whether the lease held");
}

#[test]
fn f10_a_client_that_is_long_gone_is_collected_in_order_and_not_revived() {
    for (mutant, refused) in [(None, vec![Refused::InvalidId]), (Some(Mutant::CreatedIgnored), vec![])] {
        let mut desk = desk(mutant);
        let grant = offline_for_days(&mut desk);
        let key = desk.key_of(&grant);
        confirm(&mut desk, true);
        let calls = desk.match_all(0);
        assert!(calls.len() == 1 && !calls[0].registered);
        assert_eq!(desk.machine.clients(), 0);
        let left = desk.store.perform(&StoreRequest::Get(v1::Get {
            key: Some(v1::RowKey {
                group: Bytes::from_static(tidings_notify::rows::REGISTRAR),
                row: [&1u64.to_be_bytes()[..], key.as_bytes()].concat().into(),
            }),
            columns: Vec::new(),
        }));
        assert_eq!(left, Ok(tidings_notify::rows::StoreReply::Row(None)));
        desk.register(&grant, 4, 2, b"y");
        assert_eq!(desk.refusals(), refused);
        if mutant.is_none() {
            assert_ne!(desk.hello(5, 55, &grant.token).unwrap().salt, grant.salt);
        }
    }
}

#[test]
fn f10_a_deposed_collector_deletes_nothing_more() {
    let mut desk = desk(None);
    offline_for_days(&mut desk);
    confirm(&mut desk, false);
    assert_eq!(desk.match_all(0).len(), 0);
    // What it left is a row without `created`: the owner that finds it collects it.
    desk.pass(2 * 3_600_000);
    let calls = desk.match_all(0);
    assert!(!calls.is_empty() && calls.iter().all(|call| !call.registered));
    assert_eq!(desk.machine.clients(), 0);
}

#[test]
fn f10_messages_of_a_client_wait_for_its_collection() {
    let mut desk = desk(None);
    let grant = offline_for_days(&mut desk);
    desk.register(&grant, 4, 2, b"y");
    assert_eq!(desk.downs(), vec![]);
    confirm(&mut desk, true);
    desk.match_all(0);
    assert_eq!(desk.refusals(), [Refused::InvalidId]);
}

#[test]
fn hooks_decide_and_what_they_do_not_know_is_deferred() {
    let options = Options { hooks: Hooks::All, ..Default::default() };
    let mut desk = Desk::registrar(options);
    let grant = desk.hello(1, 11, &none()).unwrap();
    let answer = |desk: &mut Desk<Registrar>, verdict| {
        let out = desk.take();
        let ids = out.iter().filter_map(|out| match out {
            Output::Authorize { id, .. } => Some(*id),
            _ => None,
        });
        let ids: Vec<_> = ids.collect();
        desk.out = out.into_iter().filter(|out| !matches!(out, Output::Authorize { .. })).collect();
        ids.iter().for_each(|id| desk.give(Input::Authorized { id: *id, verdict }));
        ids.len()
    };
    let failures = |desk: &mut Desk<Registrar>| -> Vec<v1::RegistrationFailure> {
        desk.downs().iter().flat_map(|down| &down.statuses).map(|status| status.failure()).collect()
    };
    for (op, verdict, failure) in
        [(1, Verdict::Unsure, v1::RegistrationFailure::Transient), (2, Verdict::No, v1::RegistrationFailure::Permanent)]
    {
        desk.register(&grant, 1, op, b"x");
        assert_eq!(answer(&mut desk, verdict), 1);
        assert_eq!(failures(&mut desk), [failure]);
    }
    desk.register(&grant, 1, 3, b"x");
    assert_eq!(answer(&mut desk, Verdict::Yes), 1);
    desk.match_all(9);
    // Before it is sent: not known, then yes, then no.
    assert_eq!(answer(&mut desk, Verdict::Unsure), 1);
    assert_eq!(notifications(desk.downs()), vec![]);
    desk.pass(1_500);
    assert_eq!(answer(&mut desk, Verdict::Yes), 1);
    assert_eq!(notifications(desk.downs()), [(9, false)]);
    desk.pass(3_000);
    assert!(answer(&mut desk, Verdict::No) >= 1);
    assert_eq!(failures(&mut desk), [v1::RegistrationFailure::Permanent]);
    assert!(!desk.match_all(0)[0].registered);
}

/// Answers every question to the application; how many there were.
fn judge(desk: &mut Desk<Registrar>, verdict: Verdict) -> usize {
    let (asks, rest) = desk.take().into_iter().partition(|out| matches!(out, Output::Authorize { .. }));
    desk.out = rest;
    for ask in &asks {
        if let Output::Authorize { id, .. } = ask {
            desk.give(Input::Authorized { id: *id, verdict });
        }
    }
    Vec::<Output>::len(&asks)
}

#[test]
fn a_hook_that_hangs_holds_up_no_news_of_other_objects() {
    let mut desk = Desk::registrar(Options { hooks: Hooks::All, log_after: Duration::ZERO, ..Default::default() });
    let grant = desk.hello(1, 11, &none()).unwrap();
    desk.register(&grant, 1, 1, b"y");
    assert_eq!(judge(&mut desk, Verdict::Yes), 1);
    desk.match_all(1);
    judge(&mut desk, Verdict::Yes);
    desk.downs();
    // Nobody answers this one for now.
    desk.register(&grant, 1, 2, b"x");
    let hangs = desk.take();
    let key = desk.key_of(&grant);
    assert_eq!(desk.notify(&key, b"y", 5, false), Some(Outcome::Done));
    assert_eq!(judge(&mut desk, Verdict::Yes), 1);
    assert_eq!(notifications(desk.downs()), [(5, false)]);
    desk.out.extend(hangs);
    assert_eq!(judge(&mut desk, Verdict::Yes), 1);
    assert_eq!(desk.match_all(0)[0].object, b"x"[..]);
}

/// What one connection's token allows says nothing of the next one's.
#[test]
fn a_verdict_about_one_connection_is_none_about_another() {
    for verdict in [Verdict::Yes, Verdict::No] {
        let mut desk = Desk::registrar(Options { hooks: Hooks::All, ..Default::default() });
        let grant = desk.hello(1, 11, &none()).unwrap();
        desk.register(&grant, 1, 1, b"x");
        judge(&mut desk, Verdict::Yes);
        desk.match_all(1);
        judge(&mut desk, Verdict::Yes);
        desk.downs();
        let key = desk.key_of(&grant);
        desk.notify(&key, b"x", 5, false);
        let about_the_first = desk.take();
        // The client comes by another connection.
        desk.ack(&grant, 2, b"x", 1, 0);
        let about_the_second = desk.take();
        desk.out = about_the_first;
        assert_eq!(judge(&mut desk, verdict), 1);
        let (told, unregistered) = (notifications(desk.downs()), desk.match_all(0).len());
        assert_eq!((told, unregistered), (vec![], 0), "{verdict:?}");
        desk.out = about_the_second;
        assert_eq!(judge(&mut desk, Verdict::Yes), 1);
        assert_eq!(notifications(desk.downs()), [(5, false)]);
    }
}

#[test]
fn what_rides_along_waits_for_the_hook_and_is_dropped_with_a_later_version() {
    let mut desk =
        Desk::registrar(Options { hooks: Hooks::Of([crate::desk::APP.into()].into()), ..Default::default() });
    let grant = desk.hello(1, 11, &none()).unwrap();
    desk.register(&grant, 1, 1, b"x");
    judge(&mut desk, Verdict::Yes);
    desk.match_all(1);
    judge(&mut desk, Verdict::Yes);
    desk.downs();
    let key = desk.key_of(&grant);
    let hint = |desk: &mut Desk<Registrar>, version, payload: &'static str| {
        let notify = v1::ClientNotify {
            realm: crate::desk::wire_realm(),
            client: Some(key.to_message()),
            object: Bytes::from_static(b"x"),
            version,
            hint: true,
            payload: payload.into(),
            ..Default::default()
        };
        let request = tidings_notify::RequestId(0);
        desk.give(Input::Notify { request, lease: lease(), notify: Box::new(notify) });
    };
    hint(&mut desk, 7, "seven");
    assert_eq!(judge(&mut desk, Verdict::Yes), 1);
    let sent: Vec<v1::Notification> = desk.downs().into_iter().flat_map(|down| down.notifications).collect();
    assert_eq!((sent[0].version, &sent[0].payload[..], sent[0].times.is_some()), (7, &b"seven"[..], true));
    hint(&mut desk, 8, "eight");
    let earlier = desk.take();
    hint(&mut desk, 9, "nine");
    desk.take();
    desk.out = earlier;
    judge(&mut desk, Verdict::Yes);
    let sent: Vec<v1::Notification> = desk.downs().into_iter().flat_map(|down| down.notifications).collect();
    assert_eq!((sent[0].version, sent[0].payload.is_empty()), (9, true));
}

#[test]
fn f3_a_scrub_takes_registrations_to_their_matchers_again() {
    let every = Duration::from_secs(60);
    let mut desk = Desk::registrar(Options { scrub_every: every, ..Default::default() });
    let grant = desk.hello(1, 11, &none()).unwrap();
    desk.register(&grant, 1, 1, b"x");
    let first = desk.match_all(3);
    desk.ack(&grant, 1, b"x", 3, 0);
    desk.downs();
    // Whatever its matcher knows: what the client has is nothing new, and what nobody knows is not told again.
    for known in [3, 0] {
        desk.pass(every.as_millis() as u64);
        let again = desk.match_all(known);
        assert_eq!(
            again.iter().map(|call| (call.seqno, call.registered)).collect::<Vec<_>>(),
            [(first[0].seqno, true)]
        );
        assert_eq!((notifications(desk.downs()), desk.machine.pending()), (vec![], 0));
    }
    // A version that was missed is told.
    desk.pass(every.as_millis() as u64);
    desk.match_all(9);
    assert_eq!(notifications(desk.downs()), [(9, false)]);
    // Clients that are offline are looked after, too.
    desk.ack(&grant, 1, b"x", 9, 0);
    desk.give(Input::Closed(channel(1)));
    assert_eq!(desk.machine.clients(), 0);
    desk.pass(every.as_millis() as u64);
    assert_eq!(desk.match_all(9).len(), 1);
    assert_eq!(desk.machine.clients(), 0);
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
