//! The matcher's rules, each with the rule left out where that shows.

use crate::desk::{APP, Desk, client_key};
use bytes::Bytes;
use std::collections::BTreeSet;
use tidings_base::{KeyRange, LeaseNumber};
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

fn told(mut list: Vec<(String, u64)>) -> Vec<(String, u64)> {
    list.sort();
    list
}

fn of(list: &[(&str, u64)]) -> Vec<(String, u64)> {
    list.iter().map(|(name, version)| ((*name).into(), *version)).collect()
}

#[test]
fn f1_what_is_acknowledged_stands_on_the_lease() {
    for (mutant, guarded) in [(None, true), (Some(Mutant::LeaseIgnored), false)] {
        let mut desk = desk(mutant);
        desk.registers(1, b"x", &user("ann"), b"", 10);
        desk.publish(2, b"x", 3, b"");
        assert_eq!(desk.answers(), [(1, Outcome::Done, 0, guarded), (2, Outcome::Done, 0, guarded)]);
    }
}

#[test]
fn f1_another_lease_or_realm_is_told_to_look_again() {
    let mut desk = desk(None);
    desk.give(Input::Gained { range: KeyRange::FULL, lease: LeaseNumber::new(9).unwrap() });
    desk.publish(1, b"x", 3, b"");
    assert_eq!(desk.answers(), [(1, Outcome::Moved, 0, false)]);
    let realm = Some(v1::NotifyRealm { incarnation: 2, generation: 0 });
    let publication =
        v1::Publication { app: APP.into(), object: Bytes::from_static(b"x"), version: 1, ..Default::default() };
    let call = v1::MatchPublication { realm, publication: Some(publication), scratch: false };
    let lease = LeaseNumber::new(9).unwrap();
    desk.give(Input::Publish { request: RequestId(2), lease, call: Box::new(call) });
    assert_eq!(desk.answers(), [(2, Outcome::Moved, 0, false)]);
}

#[test]
fn f1_a_range_that_goes_takes_its_work_with_it() {
    let mut desk = desk(None);
    desk.hold = true;
    desk.publish(1, b"x", 3, b"");
    desk.registers(2, b"x", &user("ann"), b"", 10);
    desk.give(Input::Lost { range: KeyRange::FULL });
    let outcomes: BTreeSet<u64> = desk
        .answers()
        .into_iter()
        .map(|(request, outcome, ..)| {
            assert_eq!(outcome, Outcome::Moved);
            request
        })
        .collect();
    assert_eq!(outcomes, BTreeSet::from([1, 2]));
    desk.release_all();
    assert_eq!((desk.answers(), desk.tells().len(), desk.machine.jobs()), (vec![], 0, 0));
}

/// A registration and a publication at the same time: one of them must see the other.
#[test]
fn f6_a_registration_is_stored_before_the_version_is_read() {
    for mutant in [None, Some(Mutant::ReadBeforeStore)] {
        let mut desk = desk(mutant);
        desk.hold = true;
        desk.registers(1, b"x", &user("ann"), b"", 10);
        // Its first step happens, then all of the publication, then the rest of it.
        let (id, request) = desk.held.pop_front().unwrap();
        assert_eq!(matches!(request, StoreRequest::Write(_)), mutant.is_none());
        let result = desk.store.perform(&request);
        desk.hold = false;
        desk.publish(2, b"x", 3, b"");
        let told = desk.tell_all(Outcome::Done);
        desk.give(Input::Stored { id, result });
        let version = desk.answers().into_iter().find(|answer| answer.0 == 1).unwrap().2;
        assert_eq!(version == 0 && told.is_empty(), mutant.is_some(), "nobody would ever hear of version 3");
    }
}

#[test]
fn f6_a_registration_that_is_not_there_ends_but_a_later_one_stays() {
    for (mutant, left) in [(None, 0), (Some(Mutant::NotRegisteredIgnored), 1)] {
        let mut desk = desk(mutant);
        desk.registers(1, b"x", &user("ann"), b"", 10);
        desk.publish(2, b"x", 3, b"");
        assert_eq!(desk.tell_all(Outcome::NotRegistered(10)), of(&[("ann", 3)]));
        desk.publish(3, b"x", 4, b"");
        assert_eq!(desk.tell_all(Outcome::NotRegistered(10)).len(), left);
        desk.registers(4, b"x", &user("ann"), b"", 11);
        desk.publish(5, b"x", 5, b"");
        assert_eq!(desk.tell_all(Outcome::NotRegistered(10)).len(), 1);
        desk.publish(6, b"x", 6, b"");
        assert_eq!(desk.tell_all(Outcome::Done).len(), 1);
    }
}

#[test]
fn f5_a_new_owner_goes_on_where_the_old_one_ended() {
    for (mutant, found) in [(None, of(&[("ann", 3)])), (Some(Mutant::NoRecovery), vec![])] {
        let mut old = desk(mutant);
        old.registers(1, b"x", &user("ann"), b"phone", 10);
        old.publish(2, b"x", 3, b"phone");
        // F12: it has made the version itself, and is left out as long as every marker is known.
        assert_eq!(old.tell_all(Outcome::Done).len(), usize::from(mutant.is_some()));
        assert_eq!(old.machine.jobs(), 0);
        old.registers(3, b"y", &user("ann"), b"", 10);
        old.publish(4, b"y", 3, b"");
        assert_eq!(old.machine.jobs(), 1);
        let mut new = desk(mutant);
        new.store = old.store;
        new.give(Input::Gained { range: KeyRange::FULL, lease: LeaseNumber::new(6).unwrap() });
        assert_eq!(new.tell_all(Outcome::Done), found);
        assert_eq!(new.machine.jobs(), 0);
    }
}

/// F11: what is around rows that fail is found at once, and they are when they can be read.
#[test]
fn f5_rows_that_cannot_be_read_hide_no_markers_of_others() {
    let mut old = desk(None);
    for (request, object, version) in [(1, &b"x"[..], 3), (3, b"y", 4)] {
        old.registers(request, object, &user("ann"), b"", 10);
        old.publish(request + 1, object, version, b"");
    }
    let first = |object: &[u8]| tidings_notify::names::object_hash("app", object).0.to_be_bytes()[0];
    assert_ne!(first(b"x") / 4, first(b"y") / 4, "they are not neighbours");
    let mut new = desk(None);
    new.store = old.store;
    new.store.failing.insert(first(b"x"));
    new.give(Input::Gained { range: KeyRange::FULL, lease: crate::desk::lease() });
    assert_eq!(new.tell_all(Outcome::Done), of(&[("ann", 4)]));
    new.pass(5_000);
    assert_eq!(new.tell_all(Outcome::Done), vec![]);
    new.store.failing.clear();
    new.pass(5_000);
    // It waited for an answer meanwhile, and asked again.
    let mut heard = new.tell_all(Outcome::Done);
    heard.dedup();
    assert_eq!(heard, of(&[("ann", 3)]));
    // F12: by now every marker is known, and whoever made a version is left out.
    new.registers(7, b"y", &user("bob"), b"phone", 11);
    new.publish(8, b"y", 5, b"phone");
    assert_eq!(new.tell_all(Outcome::Done), of(&[("ann", 5)]));
}

#[test]
fn f12_the_maker_is_left_out_only_if_everything_before_was_told() {
    let mut desk = desk(None);
    desk.registers(1, b"x", &user("ann"), b"phone", 10);
    desk.registers(2, b"x", &user("bob"), b"", 10);
    desk.answers();
    desk.publish(3, b"x", 3, b"phone");
    assert_eq!(desk.tell_all(Outcome::Done), of(&[("bob", 3)]));
    // Something earlier is still on its way: nobody is left out.
    for (mutant, rest) in [(None, of(&[("ann", 5), ("bob", 5)])), (Some(Mutant::AlwaysSuppress), of(&[("bob", 5)]))] {
        let mut desk = self::desk(mutant);
        desk.registers(1, b"x", &user("ann"), b"phone", 10);
        desk.registers(2, b"x", &user("bob"), b"", 10);
        desk.publish(3, b"x", 4, b"");
        let first = desk.tells();
        desk.publish(4, b"x", 5, b"phone");
        for (id, _) in first {
            desk.give(Input::Notified { id, outcome: Outcome::Done });
        }
        assert_eq!(told(desk.tell_all(Outcome::Done)), rest);
    }
}

/// Ann has made version 5 herself, and need not be told of it.
fn made_by_ann() -> Desk<Matcher> {
    let mut desk = desk(None);
    desk.registers(1, b"x", &user("ann"), b"phone", 10);
    desk.publish(2, b"x", 5, b"phone");
    desk.answers();
    desk
}

#[test]
fn f12_a_version_that_comes_late_reaches_the_maker_of_the_later_one() {
    let mut desk = made_by_ann();
    assert_eq!(desk.machine.jobs(), 0);
    desk.publish(3, b"x", 4, b"");
    // No marker stands for it, so the answer waits until ann has heard.
    assert_eq!(desk.answers(), vec![]);
    assert_eq!(desk.tell_all(Outcome::Done), of(&[("ann", 4)]));
    assert_eq!(desk.answers(), [(3, Outcome::Done, 0, true)]);
}

/// What is sent again and again while a job goes on does not gather behind it.
#[test]
fn calls_that_wait_for_one_job_are_bounded() {
    let mut desk = made_by_ann();
    for request in 100..200 {
        desk.publish_from_scratch(request, b"x", 4);
    }
    // They are told so, and what they ask for lies in scratch.
    let refused = desk.answers();
    assert!(refused.iter().all(|(_, outcome, ..)| *outcome == Outcome::Failed), "{refused:?}");
    let calls = desk.tells();
    for (id, _) in &calls {
        desk.give(Input::Notified { id: *id, outcome: Outcome::Done });
    }
    desk.tell_all(Outcome::Done);
    let done = desk.answers().len();
    assert_eq!((refused.len() + done, desk.machine.jobs()), (100, 0));
    assert!((1..=40).contains(&done), "{done} waited");
}

/// A registrar is away while somebody publishes all the time: what cannot wait goes to scratch.
#[test]
fn publications_that_wait_for_one_job_are_bounded() {
    let mut desk = made_by_ann();
    // Nobody has told ann of 4, and nothing stored says so: whoever comes waits.
    desk.publish(3, b"x", 4, b"");
    for version in 6..3_000 {
        desk.publish(version, b"x", version, b"");
    }
    let answers = desk.answers();
    let refused = answers.iter().filter(|(_, outcome, ..)| *outcome == Outcome::Failed).count();
    assert!(refused > 1_000, "{refused} of {}", answers.len());
    for _ in 0..10 {
        desk.tell_all(Outcome::Done);
    }
    assert_eq!((answers.len() + desk.answers().len(), desk.machine.jobs()), (2_995, 0));
}

#[test]
fn versions_that_go_backwards_change_nothing() {
    let mut desk = desk(None);
    desk.publish(1, b"x", 5, b"");
    desk.publish(2, b"x", 3, b"");
    desk.publish(3, b"x", 5, b"");
    assert_eq!(desk.answers().len(), 3);
    desk.registers(4, b"x", &user("ann"), b"", 10);
    assert_eq!(desk.answers(), [(4, Outcome::Done, 5, true)]);
    assert_eq!(desk.machine.jobs(), 0);
}

#[test]
fn one_registrars_trouble_does_not_hold_up_the_others() {
    let mut desk = desk(None);
    for at in 0..200u8 {
        desk.registers(1, b"x", &client_key(&format!("user-{at:03}"), at), b"", 10);
    }
    desk.publish(2, b"x", 3, b"");
    let calls = desk.tells();
    assert_eq!(calls.len(), 200, "every page is read though nobody has answered yet");
    for (id, notify) in calls {
        let bad = notify.client.unwrap().user == "user-007";
        desk.give(Input::Notified { id, outcome: if bad { Outcome::Failed } else { Outcome::Done } });
    }
    assert_eq!(desk.machine.jobs(), 1);
    // A later version goes out to everybody all the same.
    desk.publish(3, b"x", 4, b"");
    let calls = desk.tells();
    assert_eq!(calls.len(), 200);
    for (id, notify) in calls {
        assert_eq!(notify.version, 4);
        let bad = notify.client.unwrap().user == "user-007";
        desk.give(Input::Notified { id, outcome: if bad { Outcome::Failed } else { Outcome::Done } });
    }
    desk.pass(10_000);
    let again = desk.tell_all(Outcome::Done);
    assert!(!again.is_empty() && again.iter().all(|(name, version)| name == "user-007" && *version == 4));
    desk.pass(10_000);
    assert_eq!(desk.machine.jobs(), 0);
}

#[test]
fn a_hot_object_is_told_to_as_many_at_a_time_as_a_node_takes() {
    const MANY: usize = 10_000;
    let mut desk = desk(None);
    for at in 0..MANY {
        desk.registers(1, b"x", &client_key(&format!("user-{at:05}"), 1), b"", 10);
    }
    desk.publish(2, b"x", 3, b"");
    let mut told = BTreeSet::new();
    for _ in 0..MANY {
        let calls = desk.tells();
        if calls.is_empty() {
            break;
        }
        assert!(calls.len() <= 4_096, "{} at a time", calls.len());
        for (id, notify) in calls {
            assert!(told.insert(notify.client.unwrap().user), "told twice");
            desk.give(Input::Notified { id, outcome: Outcome::Done });
        }
    }
    assert_eq!((told.len(), desk.machine.jobs()), (MANY, 0));
}

#[test]
fn jobs_beyond_the_bound_are_dropped_and_found_again() {
    let mut desk = Desk::matcher(Options { max_jobs: 1, hints: false, ..Default::default() });
    desk.registers(1, b"x", &user("ann"), b"", 10);
    desk.registers(2, b"y", &user("ann"), b"", 10);
    desk.answers();
    desk.publish(3, b"x", 3, b"");
    desk.publish(4, b"y", 4, b"");
    assert_eq!(desk.answers(), [(3, Outcome::Done, 0, true), (4, Outcome::Failed, 0, false)]);
    assert_eq!(desk.tell_all(Outcome::Done), of(&[("ann", 3)]));
    desk.pass(1_000);
    assert_eq!(desk.tell_all(Outcome::Done), of(&[("ann", 4)]));
}

#[test]
fn hints_leave_before_the_version_is_stable() {
    let mut desk = Desk::matcher(Options::default());
    desk.registers(1, b"x", &user("ann"), b"", 10);
    desk.hold = true;
    desk.publish(2, b"x", 3, b"");
    let scan = desk.held.iter().position(|(_, request)| matches!(request, StoreRequest::Scan(_))).unwrap();
    let (id, request) = desk.held.remove(scan).unwrap();
    let result = desk.store.perform(&request);
    desk.give(Input::Stored { id, result });
    let hints = desk.tells();
    assert!(hints.len() == 1 && hints[0].1.hint && hints[0].1.version == 3);
    assert_eq!(desk.answers().len(), 1, "only the registration is answered");
    desk.release_all();
    assert!(!desk.tells()[0].1.hint);
}

/// Versions that were found to be behind others.
fn behind(desk: &mut Desk<Matcher>) -> Vec<(u64, u64)> {
    let (found, rest) = desk.take().into_iter().partition(|out| matches!(out, Output::Behind { .. }));
    desk.out = rest;
    let versions = |out| match out {
        Output::Behind { version, latest, .. } => (version, latest),
        _ => unreachable!(),
    };
    Vec::into_iter(found).map(versions).collect()
}

#[test]
fn versions_that_go_backwards_are_ignored_and_noticed() {
    let mut desk = desk(None);
    desk.publish(1, b"o", 7, b"");
    desk.publish(2, b"o", 7, b"");
    assert_eq!(behind(&mut desk), []);
    desk.publish(3, b"o", 2, b"");
    assert_eq!(behind(&mut desk), [(2, 7)]);
    assert_eq!(desk.answers().len(), 3, "it is accepted all the same");
    let row = desk.writes.iter().rev().find(|write| write.cells[0].column == b"behind"[..]).expect("people can see it");
    assert_eq!((row.cells[0].timestamp, row.cells[0].value.as_deref()), (7, Some(&2u64.to_be_bytes()[..])));
    // What is published in order may be stored out of order.
    desk.hold = true;
    desk.publish(4, b"p", 5, b"");
    desk.publish(5, b"p", 6, b"");
    desk.release_all();
    assert_eq!(behind(&mut desk), []);
    // And the other way round.
    desk.hold = true;
    desk.publish(6, b"p", 9, b"");
    desk.publish(7, b"p", 8, b"");
    desk.release_all();
    assert_eq!(behind(&mut desk), [(8, 9)]);
}
