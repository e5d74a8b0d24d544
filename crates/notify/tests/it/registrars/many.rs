//! Clients with many objects.

use super::*;
use std::collections::BTreeSet;
use tidings_notify::rows::StoreRequest;

fn name(number: usize) -> Bytes {
    format!("{number:0>200}").into()
}

fn interest(number: usize) -> v1::ObjectInterest {
    v1::ObjectInterest { object: name(number), known_version: 0 }
}

/// A client that has registered so many, each of which has a version that it has not heard of.
fn with_many(desk: &mut Desk<Registrar>, many: usize) -> v1::NotifyGrant {
    let grant = desk.hello(1, 11, &none()).unwrap();
    let all: Vec<v1::RegistrationChange> =
        (0..many).map(|number| v1::RegistrationChange { change: Some(Change::Register(interest(number))) }).collect();
    for (at, changes) in all.chunks(500).enumerate() {
        let (first, token) = (at as u64 * 500 + 1, grant.token.clone());
        let latest = first + changes.len() as u64 - 1;
        desk.from(ann(), 1, v1::NotifyUp { token, first, latest, changes: changes.to_vec(), ..Default::default() });
        desk.match_all(7);
    }
    grant
}

fn say(desk: &mut Desk<Registrar>, grant: &v1::NotifyGrant, up: v1::NotifyUp) {
    desk.from(ann(), 2, v1::NotifyUp { token: grant.token.clone(), ..up });
}

/// F7: what is no longer wanted may be much more than one command of the store takes.
#[test]
fn f7_a_set_that_shrinks_is_written_in_parts() {
    const MANY: usize = 9_000;
    let mut desk = desk(None);
    let grant = with_many(&mut desk, MANY);
    desk.downs();
    desk.writes.clear();
    let replacement = v1::Replacement { objects: vec![interest(3), interest(MANY)] };
    let changes = vec![v1::RegistrationChange { change: Some(Change::Replace(replacement)) }];
    let op = MANY as u64 + 1;
    desk.hold = true;
    say(&mut desk, &grant, v1::NotifyUp { first: op, latest: op, changes, ..Default::default() });
    let mut parts = 0;
    while let Some((_, StoreRequest::Write(apply))) = desk.held.front() {
        let cells = apply.groups.iter().flat_map(|group| &group.rows).flat_map(|row| &row.cells);
        let bytes: usize = cells.map(|cell| cell.column.len() + cell.value.as_ref().map_or(0, |it| it.len())).sum();
        assert!(bytes < (3 << 20) / 2, "{bytes} bytes in one write");
        assert!(desk.downs().iter().all(|down| down.echo < op), "nothing is confirmed before all of it is stable");
        parts += 1;
        desk.release();
    }
    assert!(parts > 2, "{parts}");
    desk.release_all();
    desk.match_all(7);
    let last = desk.downs().pop().expect("it is confirmed");
    assert_eq!((last.echo, last.digest.unwrap().count, last.pending), (op, 2, 0));
}

/// The objects of which a client hears, which it acknowledges as they come.
fn hears(
    desk: &mut Desk<Registrar>,
    grant: &v1::NotifyGrant,
    acknowledges: impl Fn(&Bytes) -> bool,
) -> BTreeSet<Bytes> {
    let mut heard = BTreeSet::new();
    loop {
        let told: Vec<v1::Notification> = desk.downs().into_iter().flat_map(|down| down.notifications).collect();
        if told.is_empty() {
            return heard;
        }
        let acks: Vec<v1::NotificationAck> = told
            .iter()
            .filter(|told| acknowledges(&told.object))
            .map(|told| v1::NotificationAck {
                object: told.object.clone(),
                version: told.version,
                unknown: told.unknown,
            })
            .collect();
        heard.extend(told.into_iter().map(|told| told.object));
        if !acks.is_empty() {
            say(desk, grant, v1::NotifyUp { first: 100_000, latest: 99_999, acks, ..Default::default() });
        }
    }
}

#[test]
fn who_comes_back_and_keeps_up_hears_of_everything_without_a_pause() {
    let mut desk = desk(None);
    let grant = with_many(&mut desk, 2_000);
    desk.give(Input::Closed(channel(1)));
    desk.downs();
    say(&mut desk, &grant, v1::NotifyUp { first: 100_000, latest: 99_999, ..Default::default() });
    assert_eq!(hears(&mut desk, &grant, |_| true).len(), 2_000);
}

#[test]
fn what_is_never_acknowledged_holds_up_nothing_else() {
    let mut desk = desk(None);
    let grant = with_many(&mut desk, 600);
    desk.give(Input::Closed(channel(1)));
    desk.downs();
    say(&mut desk, &grant, v1::NotifyUp { first: 100_000, latest: 99_999, ..Default::default() });
    let mut heard = BTreeSet::new();
    for _ in 0..4 {
        heard.extend(hears(&mut desk, &grant, |_| false));
        desk.pass(60_000);
    }
    assert_eq!(heard.len(), 600);
}

/// F3: a client has as many registrations as it likes, and a scrub of them takes a window at a time.
#[test]
fn f3_a_scrub_of_many_registrations_takes_all_of_them_little_by_little() {
    const MANY: usize = 1_500;
    let scrub_every = Duration::from_secs(60);
    let mut desk = Desk::registrar(Options { scrub_every, ..Default::default() });
    with_many(&mut desk, MANY);
    desk.pass(61_000);
    desk.take();
    let mut scrubbed = BTreeSet::new();
    for _ in 0..2 * MANY {
        assert!(desk.machine.pending() <= 256, "{} at a time", desk.machine.pending());
        // Those before it were given up as nobody answered.
        desk.pass(2_000);
        for out in desk.take() {
            let Output::ToMatcher { id, call, .. } = out else { continue };
            scrubbed.insert(call.object.clone());
            desk.give(Input::Matched { id, outcome: Outcome::Done, version: 7 });
        }
    }
    assert_eq!(scrubbed.len(), MANY);
}

/// A store that takes its time, and a client that does not.
#[test]
fn what_waits_for_one_row_is_bounded_and_said_again() {
    const MESSAGES: u64 = 200;
    for loads in [false, true] {
        let mut desk = desk(None);
        let grant = desk.hello(1, 11, &none()).unwrap();
        if loads {
            desk.give(Input::Lost { range: KeyRange::FULL });
        }
        desk.hold = true;
        if loads {
            desk.give(Input::Gained { range: KeyRange::FULL, lease: lease() });
        }
        let message = |number: u64| {
            let first = number * 500 + 1;
            let all = first..first + 500;
            let change =
                |op: u64| v1::RegistrationChange { change: Some(Change::Register(interest((op % 1_000) as usize))) };
            v1::NotifyUp { first, latest: first + 499, changes: all.map(change).collect(), ..Default::default() }
        };
        (0..MESSAGES).for_each(|number| say(&mut desk, &grant, message(number)));
        desk.release_all();
        desk.match_all(7);
        let done = desk.downs().iter().map(|down| down.echo).max().unwrap();
        assert!((500..=30 * 500).contains(&done), "{done} of {} changes were kept", MESSAGES * 500);
        // Whoever says again what was not confirmed gets to the end.
        for number in done / 500..MESSAGES {
            say(&mut desk, &grant, message(number));
            desk.match_all(7);
        }
        assert_eq!(desk.downs().iter().map(|down| down.echo).max(), Some(MESSAGES * 500));
    }
}

/// F5: what matchers have confirmed while the row was being written may be more than one command of the store takes.
#[test]
fn f5_many_confirmations_are_written_in_parts() {
    const MANY: usize = 9_000;
    let mut desk = desk(None);
    let grant = desk.hello(1, 11, &none()).unwrap();
    for first in (0..MANY).step_by(500) {
        let change = |number| v1::RegistrationChange { change: Some(Change::Register(interest(number))) };
        let (changes, first) = ((first..first + 500).map(change).collect(), first as u64 + 1);
        say(&mut desk, &grant, v1::NotifyUp { first, latest: first + 499, changes, ..Default::default() });
    }
    desk.hold = true;
    desk.match_all(7);
    let parts = parts(&mut desk);
    assert!(parts > 2, "{parts}");
    assert_eq!(desk.machine.pending(), 0);
}

/// Lets the store take one write after the other, none of which may be large; how many there are.
fn parts(desk: &mut Desk<Registrar>) -> usize {
    let mut parts = 0;
    while let Some((_, StoreRequest::Write(apply))) = desk.held.front() {
        let cells = apply.groups.iter().flat_map(|group| &group.rows).flat_map(|row| &row.cells);
        let bytes: usize = cells.map(|cell| cell.column.len() + cell.value.as_ref().map_or(0, |it| it.len())).sum();
        assert!(bytes < (3 << 20) / 2, "{bytes} bytes in one write");
        parts += 1;
        desk.release();
        desk.match_all(7);
    }
    parts
}

/// Whoever tells of a version tells again: clients that are offline are read so many at a time.
#[test]
fn clients_that_are_read_because_of_notifications_are_bounded() {
    let mut desk = desk(None);
    desk.hold = true;
    let key = |number: u64| client_key(&format!("user-{number}"), 1);
    assert_eq!(desk.notify(&key(1), b"x", 3, true), None);
    assert_eq!((desk.machine.clients(), desk.held.len()), (0, 0), "a hint is for whoever is there");
    let refused = (0..5_000).filter(|number| desk.notify(&key(*number), b"x", 3, false) == Some(Outcome::Failed));
    assert_eq!(refused.count(), 5_000 - 4_096);
    assert_eq!(desk.machine.clients(), 4_096);
}

/// §4.2.5: what is logged while the row is being written may be more than one command of the store takes.
#[test]
fn many_notifications_are_logged_in_parts() {
    const MANY: usize = 9_000;
    let mut desk = desk(None);
    let grant = with_many(&mut desk, MANY);
    let key = desk.key_of(&grant);
    desk.give(Input::Closed(channel(1)));
    desk.hold = true;
    // One write is under way, and the others wait for it.
    let tell = |desk: &mut Desk<Registrar>, number: usize| {
        let (request, object) = (tidings_notify::RequestId(number as u64), name(number));
        let client = Some(key.to_message());
        let notify =
            v1::ClientNotify { realm: crate::desk::wire_realm(), client, object, version: 8, ..Default::default() };
        desk.give(Input::Notify { request, lease: lease(), notify: Box::new(notify) });
    };
    tell(&mut desk, 0);
    desk.release();
    (1..MANY).for_each(|number| tell(&mut desk, number));
    let parts = parts(&mut desk);
    assert!(parts > 2, "{parts}");
    let told = |out: &Output| matches!(out, Output::Notified { outcome: Outcome::Done, .. });
    assert_eq!(desk.take().iter().filter(|out| told(out)).count(), MANY);
}

/// A client with one object that stays, which has ended as many registrations as an id may; whether its matchers have heard.
fn worn(desk: &mut Desk<Registrar>, heard: bool) -> v1::NotifyGrant {
    let grant = registered(desk, 7);
    let change = |change| v1::RegistrationChange { change: Some(change) };
    for number in 0..100 {
        if number == 60 {
            // It is counted in the row: neither another connection nor another owner begins anew.
            moves(desk, 5);
        }
        let changes = vec![change(Change::Register(interest(number))), change(Change::Unregister(name(number)))];
        let first = 2 * number as u64 + 2;
        say(desk, &grant, v1::NotifyUp { first, latest: first + 1, changes, ..Default::default() });
        if heard {
            desk.match_all(7);
        }
    }
    assert_eq!(desk.refusals(), [], "so many it may");
    grant
}

/// A row holds marks of every name that was ended: after so many its client goes on under another id.
#[test]
fn who_ends_ever_new_registrations_goes_on_under_another_id() {
    let mut desk = Desk::registrar(Options { max_ended: 100, ..Default::default() });
    let grant = worn(&mut desk, true);
    let key = desk.key_of(&grant);
    // It hears so whatever it says.
    say(&mut desk, &grant, v1::NotifyUp { first: 1_000, latest: 999, ..Default::default() });
    assert_eq!(desk.refusals(), [Refused::InvalidId]);
    // That may be lost: until it comes back it hears of everything, by whichever owner.
    moves(&mut desk, 5);
    assert_eq!(desk.notify(&key, b"x", 8, false), None);
    desk.pass(1_000);
    assert_eq!(notifications(desk.downs()).last(), Some(&(8, false)));
    let next = desk.hello(3, 33, &grant.token).unwrap();
    assert_ne!(desk.key_of(&next), key);
    assert!(desk.confirm(true), "its old id is collected");
    desk.match_all(7);
    assert_eq!(desk.machine.clients(), 1);
    // Nothing was lost: what it registers now it hears of as any other.
    desk.downs();
    desk.register(&next, 3, 1, b"x");
    desk.match_all(8);
    assert_eq!(notifications(desk.downs()), [(8, false)]);
    desk.ack(&next, 3, b"x", 8, 0);
    desk.register(&next, 3, 2, b"y");
    assert_eq!(desk.refusals(), []);
}

/// Whatever of the old id is still under way.
#[test]
fn an_id_is_worn_though_matchers_are_away() {
    let mut desk = Desk::registrar(Options { max_ended: 100, ..Default::default() });
    let grant = worn(&mut desk, false);
    let next = desk.hello(3, 33, &grant.token).unwrap();
    assert!(!desk.confirm(true), "it is not collected yet");
    // A repeat gets the same.
    assert_eq!(desk.hello(3, 33, &grant.token).map(|grant| grant.salt), Some(next.salt.clone()));
    desk.take();
    desk.register(&next, 3, 1, b"z");
    assert_eq!(desk.refusals(), []);
    desk.pass(3_000);
    desk.match_all(7);
    assert!(desk.confirm(true), "now it is");
    desk.match_all(7);
    assert_eq!((desk.machine.clients(), desk.machine.pending()), (1, 0));
}

/// The new id is stable before the old one goes: whatever fails on the way, nothing is forgotten, and nobody is deaf.
#[test]
fn a_worn_id_goes_once_the_other_one_is_stable() {
    let mut desk = Desk::registrar(Options { max_ended: 100, max_ids: 1, ..Default::default() });
    let grant = worn(&mut desk, true);
    let key = desk.key_of(&grant);
    desk.hold = true;
    assert_eq!(desk.hello(3, 33, &grant.token), None);
    // It is said again before the first one is answered, and the store fails once.
    assert_eq!(desk.hello(3, 33, &grant.token), None);
    while let Some((id, request)) = desk.held.pop_front() {
        assert!(!matches!(request, StoreRequest::Write(_)), "nothing of the old id goes");
        desk.give(Input::Stored { id, result: Err(unavailable()) });
    }
    desk.release_all();
    assert!(!desk.confirm(true));
    // Its principal may have one id, and has: the worn one does not count. It is not new to the servers.
    let next = desk.hello(3, 33, &grant.token).expect("another id");
    assert_ne!(desk.key_of(&next), key);
    assert!(desk.confirm(true), "now the old one goes");
    desk.match_all(7);
    assert_eq!(desk.machine.clients(), 1);
    desk.downs();
    desk.register(&next, 3, 1, b"x");
    desk.match_all(8);
    assert_eq!(notifications(desk.downs()), [(8, false)], "nothing was lost");
    // The same handshake once more, from a queue where it waited.
    assert_eq!(desk.hello(3, 33, &grant.token).map(|again| again.salt), Some(next.salt));
    assert_eq!(desk.machine.clients(), 1);
}

/// Two tabs with one token: whoever loses the id hears so.
#[test]
fn whoever_else_uses_a_worn_id_is_told() {
    let mut desk = Desk::registrar(Options { max_ended: 100, ..Default::default() });
    let grant = worn(&mut desk, true);
    // The client itself is silent, on its own connection (2), while another one comes by its token.
    let previous = grant.token.clone();
    let hello = v1::NotifyHello { nonce: 33, previous, source: Bytes::from_static(b"phone"), persistent: true };
    desk.from(ann(), 3, v1::NotifyUp { hello: Some(hello), ..Default::default() });
    let (mut granted, mut refused) = (false, Vec::new());
    for out in desk.take() {
        let Output::Send { channel, message, .. } = &out else {
            desk.out.push(out);
            continue;
        };
        granted |= channel.number == 3 && message.grant.is_some();
        refused.extend(message.refusal.as_ref().map(|refusal| (channel.number, refusal.reason())));
    }
    assert_eq!((granted, refused), (true, vec![(2, Refused::InvalidId)]));
    assert!(desk.confirm(true));
    // Goodbye is goodbye, however worn.
    let mut desk = Desk::registrar(Options { max_ended: 100, ..Default::default() });
    let grant = worn(&mut desk, true);
    let key = desk.key_of(&grant);
    say(&mut desk, &grant, v1::NotifyUp { goodbye: true, ..Default::default() });
    assert_eq!(desk.refusals(), []);
    assert_eq!(desk.notify(&key, b"x", 9, true), None);
    assert_eq!(desk.downs(), [], "nobody is there");
}

/// The same handshake twice, while the row of the worn id is read: one id comes of it.
#[test]
fn a_handshake_that_is_repeated_while_a_worn_id_is_read_has_one_answer() {
    let mut desk = Desk::registrar(Options { max_ended: 100, ..Default::default() });
    let grant = worn(&mut desk, true);
    desk.give(Input::Closed(channel(2)));
    // Nobody else has granted anything lately, and the principal's ids are counted.
    desk.pass(7 * 60_000);
    desk.hello(9, 99, &none()).unwrap();
    assert_eq!(desk.machine.clients(), 1);
    desk.hold = true;
    (0..2).for_each(|_| assert_eq!(desk.hello(3, 33, &grant.token), None));
    desk.release_all();
    let granted: BTreeSet<Bytes> = desk.downs().into_iter().filter_map(|down| Some(down.grant?.salt)).collect();
    assert_eq!(granted.len(), 1, "one id");
    assert!(desk.confirm(true), "the old one goes");
    desk.match_all(7);
    assert_eq!(desk.machine.clients(), 2);
}
