//! The way of a publication that few wait for: its matcher has nothing to read, and tells of it before it is stable.

use crate::desk::{APP, Desk, client_key, lease, wire_realm};
use bytes::Bytes;
use tidings_base::{KeyRange, LeaseNumber, Machine, Outbox};
use tidings_notify::matcher::{Input, Matcher, Options, Output};
use tidings_notify::mutant::Mutant;
use tidings_notify::names::ClientKey;
use tidings_notify::rows::StoreRequest;
use tidings_notify::{Outcome, RequestId};
use tidings_wire::v1;

fn desk(mutant: Option<Mutant>) -> Desk<Matcher> {
    Desk::matcher(Options { mutant, hints: false, ..Default::default() })
}

fn user(name: &str) -> ClientKey {
    client_key(name, 1)
}

/// Everybody who is told of a version, in order.
fn told(desk: &mut Desk<Matcher>, outcome: Outcome) -> Vec<String> {
    let mut told: Vec<String> = desk.tell_all(outcome).into_iter().map(|(user, _)| user).collect();
    told.sort();
    told
}

fn reads(desk: &Desk<Matcher>) -> bool {
    desk.held.iter().any(|(_, request)| matches!(request, StoreRequest::Scan(_)))
}

#[test]
fn an_object_that_few_have_registered_is_read_once() {
    let mut desk = desk(None);
    desk.registers(1, b"x", &user("ann"), b"", 10);
    desk.publish(2, b"x", 3, b"");
    assert_eq!(told(&mut desk, Outcome::Done), ["ann"]);
    desk.hold = true;
    desk.publish(3, b"x", 4, b"");
    desk.release();
    assert!(!reads(&desk), "nothing is read");
    desk.release_all();
    assert_eq!(told(&mut desk, Outcome::Done), ["ann"]);
}

#[test]
fn f6_who_registers_later_is_told_and_who_is_gone_is_forgotten() {
    let mut desk = desk(None);
    desk.registers(1, b"x", &user("ann"), b"", 10);
    desk.publish(2, b"x", 3, b"");
    told(&mut desk, Outcome::Done);
    desk.registers(4, b"x", &user("bob"), b"", 11);
    desk.publish(5, b"x", 5, b"");
    assert_eq!(told(&mut desk, Outcome::NotRegistered(50)), ["ann", "bob"]);
    desk.publish(6, b"x", 6, b"");
    assert_eq!(told(&mut desk, Outcome::Done), [""; 0]);
}

#[test]
fn f6_a_page_that_was_read_before_a_registration_is_not_remembered() {
    for (mutant, after) in [(None, vec!["ann", "bob"]), (Some(Mutant::PageUnmarked), vec!["ann"])] {
        let mut desk = desk(mutant);
        desk.registers(1, b"x", &user("ann"), b"", 10);
        let page = late_page(&mut desk);
        // Meanwhile somebody registers and is answered.
        desk.registers(3, b"x", &user("bob"), b"", 11);
        desk.give(page);
        assert_eq!(told(&mut desk, Outcome::Done), ["ann"], "bob has read the version");
        desk.publish(4, b"x", 4, b"");
        assert_eq!(told(&mut desk, Outcome::Done), after);
    }
}

/// Version 3 is published; its page is read, and that answer is late.
fn late_page(desk: &mut Desk<Matcher>) -> Input {
    desk.hold = true;
    desk.publish(2, b"x", 3, b"");
    desk.release();
    assert!(reads(desk));
    let (id, request) = desk.held.pop_front().unwrap();
    desk.hold = false;
    Input::Stored { id, result: desk.store.perform(&request) }
}

#[test]
fn f12_a_page_that_was_read_before_a_version_was_stored_is_not_remembered() {
    let mut desk = desk(None);
    desk.registers(1, b"x", &user("ann"), b"", 10);
    let page = late_page(&mut desk);
    desk.publish(3, b"x", 5, b"");
    desk.give(page);
    while !told(&mut desk, Outcome::Done).is_empty() {}
    desk.take();
    // It comes after 5, which is stored: who made that must hear of this one, and people see that it came late.
    desk.publish(4, b"x", 4, b"");
    let behind = desk.take().into_iter().find_map(|out| match out {
        Output::Behind { version, latest, .. } => Some((version, latest)),
        _ => None,
    });
    assert_eq!(behind, Some((4, 5)));
}

#[test]
fn f1_under_another_lease_everything_is_read_again() {
    let mut desk = desk(None);
    desk.registers(1, b"x", &user("ann"), b"", 10);
    desk.publish(2, b"x", 3, b"");
    told(&mut desk, Outcome::Done);
    desk.give(Input::Gained { range: KeyRange::FULL, lease: lease() });
    desk.hold = true;
    desk.publish(7, b"x", 7, b"");
    desk.release();
    assert!(reads(&desk));
}

/// An owner that has lost its lease without knowing misses what its successor has answered: its marker must stay.
#[test]
fn f1_a_marker_is_cleared_only_while_the_lease_holds() {
    for (mutant, guarded) in [(None, true), (Some(Mutant::LeaseIgnored), false)] {
        let mut desk = desk(mutant);
        desk.registers(1, b"x", &user("ann"), b"", 10);
        desk.publish(2, b"x", 3, b"");
        let [(id, _)] = desk.tells()[..] else { panic!("one is told") };
        let (now, mut out) = (desk.now(), Outbox::new());
        desk.machine.handle(now, Input::Notified { id, outcome: Outcome::Done }, &mut out);
        let guards = out.into_iter().filter_map(|out| match out {
            Output::Store { guard, .. } => Some(guard.is_some()),
            _ => None,
        });
        assert_eq!(guards.collect::<Vec<_>>(), [guarded]);
    }
}

/// Whether each of those who were told since was told by a hint.
fn hints(desk: &mut Desk<Matcher>) -> Vec<bool> {
    desk.tells().iter().map(|(_, notify)| notify.hint).collect()
}

fn of_x(version: u64, generation: u32) -> v1::Publication {
    let object = Bytes::from_static(b"x");
    v1::Publication { app: APP.into(), object, version, generation, incarnation: 1, ..Default::default() }
}

fn hinting() -> Desk<Matcher> {
    let mut desk = Desk::matcher(Options::default());
    desk.registers(1, b"x", &user("ann"), b"", 10);
    desk
}

#[test]
fn the_fast_path_begins_before_anything_is_stable_and_only_once() {
    let mut desk = hinting();
    desk.writes.clear();
    desk.give(Input::Hint { lease: lease(), publication: Box::new(of_x(3, 0)) });
    assert_eq!((hints(&mut desk), desk.writes.len()), (vec![true], 0));
    // What is reliable follows when it is stable, and nobody is hinted again.
    let call = v1::MatchPublication { realm: wire_realm(), publication: Some(of_x(3, 0)), scratch: false };
    desk.give(Input::Publish { request: RequestId(2), lease: lease(), call: Box::new(call) });
    assert_eq!(hints(&mut desk), [false]);
}

#[test]
fn what_the_fast_path_reads_at_a_time_is_bounded() {
    let mut desk = hinting();
    desk.hold = true;
    let hint = |name: String| {
        let publication = v1::Publication { object: Bytes::from(name), ..of_x(3, 0) };
        Input::Hint { lease: lease(), publication: Box::new(publication) }
    };
    (0..5_000).for_each(|at| desk.give(hint(format!("object-{at}"))));
    let reads = desk.held.len();
    assert!((1..5_000).contains(&reads), "{reads}");
    // Where there was no room early, it is told when it is stable.
    let call = v1::MatchPublication { realm: wire_realm(), publication: Some(of_x(3, 0)), scratch: false };
    desk.give(Input::Hint { lease: lease(), publication: Box::new(of_x(3, 0)) });
    assert_eq!(desk.held.len(), reads);
    desk.release_all();
    desk.give(Input::Publish { request: RequestId(2), lease: lease(), call: Box::new(call) });
    assert_eq!(hints(&mut desk), [true, false]);
}

#[test]
fn hints_of_another_lease_or_generation_or_of_nothing_are_dropped() {
    let mut desk = hinting();
    let other = LeaseNumber::new(9).unwrap();
    let lost = v1::Publication { incarnation: 0, ..of_x(3, 0) };
    for (lease, publication) in [(other, of_x(3, 0)), (lease(), of_x(3, 1)), (lease(), of_x(0, 0)), (lease(), lost)] {
        desk.give(Input::Hint { lease, publication: Box::new(publication) });
        assert_eq!(hints(&mut desk), [false; 0]);
    }
    // A later version was told of early, and is lost: an earlier one is published, and told by what is reliable.
    desk.give(Input::Hint { lease: lease(), publication: Box::new(of_x(5, 0)) });
    assert_eq!(hints(&mut desk), [true]);
    desk.publish(2, b"x", 4, b"");
    assert_eq!(hints(&mut desk), [false]);
}
