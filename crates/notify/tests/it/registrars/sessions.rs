//! F8: tokens that grow old, channels that change hands, handshakes that come again.

use super::*;
use tidings_notify::token::Keys;

fn beat(desk: &mut Desk<Registrar>, token: &Bytes, number: u64) -> Vec<v1::NotifyDown> {
    desk.from(ann(), number, v1::NotifyUp { token: token.clone(), first: 1, ..Default::default() });
    desk.downs()
}

#[test]
fn f8_a_token_is_renewed_before_its_key_is_retired() {
    let mut desk = desk(None);
    desk.give(Input::Keys(Keys::new([(1, &b"one"[..])])));
    let grant = desk.hello(1, 11, &none()).unwrap();
    assert!(beat(&mut desk, &grant.token, 1).iter().all(|down| down.token.is_empty()));
    desk.give(Input::Keys(Keys::new([(1, &b"one"[..]), (2, b"two")])));
    let renewed = beat(&mut desk, &grant.token, 1).into_iter().find(|down| !down.token.is_empty()).expect("a token");
    assert_eq!(renewed.session, grant.session);
    desk.give(Input::Keys(Keys::new([(2, &b"two"[..])])));
    assert!(beat(&mut desk, &renewed.token, 1).iter().all(|down| down.refusal.is_none() && down.token.is_empty()));
    beat(&mut desk, &grant.token, 1);
    desk.from(ann(), 1, v1::NotifyUp { token: grant.token.clone(), first: 1, ..Default::default() });
    assert_eq!(desk.refusals(), [Refused::BadToken]);
}

#[test]
fn an_id_whose_channel_is_another_ones_is_offline() {
    let mut desk = desk(None);
    let first = registered(&mut desk, 5);
    // Its state is lost, and by the same channel it starts as new.
    let second = desk.hello(1, 12, &none()).unwrap();
    assert_ne!(desk.key_of(&first), desk.key_of(&second));
    let row = |key: &[u8]| {
        let written = desk.writes.iter().filter(|write| write.row.ends_with(key)).flat_map(|write| &write.cells);
        written.filter(|cell| cell.column == b"presence"[..]).max_by_key(|cell| cell.timestamp).unwrap().value.is_some()
    };
    let there = [&first, &second].map(|grant| row(desk.key_of(grant).id()));
    assert_eq!(there, [false, true]);
    // Its end is the end of the one that is there.
    desk.give(Input::Closed(channel(1)));
    assert_eq!(desk.machine.clients(), 0);
}

/// The next owner finds both rows as if both were there: the end of the first was not written yet.
#[test]
fn whoever_came_last_by_a_channel_has_it_at_the_next_owner_too() {
    for seed in 0..16 {
        let mut desk = Desk::registrar(Options { seed, ..Default::default() });
        let first = registered(&mut desk, 5);
        desk.hold = true;
        assert_eq!(desk.hello(1, 12, &none()), None);
        let second = loop {
            assert!(desk.release(), "seed {seed}: the second is granted its session");
            if let Some(grant) = desk.downs().into_iter().find_map(|down| down.grant) {
                break grant;
            }
        };
        assert_ne!(desk.key_of(&first), desk.key_of(&second));
        desk.held.clear();
        desk.hold = false;
        moves(&mut desk, lease().get() + 1);
        desk.downs();
        desk.pass(1_500);
        assert!(desk.downs().iter().all(|down| down.session == second.session), "seed {seed}");
        desk.give(Input::Closed(channel(1)));
        assert_eq!(desk.machine.clients(), 0, "seed {seed}");
    }
}

#[test]
fn f8_a_handshake_that_is_repeated_to_the_next_owner_gets_the_same_id() {
    let mut first = desk(None);
    let granted = first.hello(1, 11, &none()).unwrap();
    let mut next = Desk::registrar(Options { seed: 1, ..Default::default() });
    next.store = std::mem::take(&mut first.store);
    let again = next.hello(2, 11, &none()).unwrap();
    assert_eq!((again.session, next.key_of(&again)), (granted.session, first.key_of(&granted)));
    let another = next.hello(3, 12, &none()).unwrap();
    assert_ne!(next.key_of(&another), next.key_of(&again));
}

#[test]
fn those_who_come_at_the_same_time_are_counted_together() {
    let mut desk = Desk::registrar(Options { max_ids: 2, ..Default::default() });
    desk.hold = true;
    for nonce in 1..=4 {
        desk.hello(nonce, nonce, &none());
    }
    // The store has looked for all of them before any of them was there.
    let looked: Vec<_> = desk.held.drain(..).collect();
    let found: Vec<_> = looked.into_iter().map(|(id, request)| (id, desk.store.perform(&request))).collect();
    desk.hold = false;
    found.into_iter().for_each(|(id, result)| desk.give(Input::Stored { id, result }));
    let downs = desk.downs();
    let granted = downs.iter().filter(|down| down.grant.is_some()).count();
    let refused = downs.iter().filter_map(|down| down.refusal.as_ref());
    assert_eq!((granted, refused.filter(|why| why.reason() == Refused::TooManyIds).count()), (2, 2));
}
