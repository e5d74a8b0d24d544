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
