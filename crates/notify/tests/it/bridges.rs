//! The bridge's rules, each with the rule left out where that shows.

use crate::desk::{APP, Desk, realm};
use bytes::Bytes;
use prost::Message;
use tidings_notify::bridge::{Bridge, Input, Options, Output};
use tidings_notify::mutant::Mutant;
use tidings_notify::rows::Realm;
use tidings_notify::{CallId, Outcome};
use tidings_wire::v1;

fn desk(mutant: Option<Mutant>) -> Desk<Bridge> {
    let mut desk = Desk::seat(Bridge::new(Options { mutant, ..Default::default() }));
    desk.give(Input::Realm(realm()));
    // Scratch is read once at the start.
    desk.pass(1);
    desk
}

fn entry(object: &'static [u8], version: u64) -> Bytes {
    of_realm(object, version, (1, 0))
}

/// An entry that was called for under an incarnation and a generation.
fn of_realm(object: &'static [u8], version: u64, (incarnation, generation): (u64, u32)) -> Bytes {
    let object = object.into();
    let publication =
        v1::Publication { app: APP.into(), object, version, incarnation, generation, ..Default::default() };
    publication.encode_to_vec().into()
}

fn after_a_reset() -> Realm {
    let mut after = realm();
    after.generations.insert(APP.into(), 1);
    after
}

fn sent(desk: &mut Desk<Bridge>) -> Vec<(CallId, u64, bool)> {
    let out = desk.take();
    let calls = out.iter().filter_map(|out| match out {
        Output::ToMatcher { id, call, .. } => Some((*id, call.publication.as_ref()?.version, call.scratch)),
        _ => None,
    });
    let calls = calls.collect();
    desk.out = out.into_iter().filter(|out| !matches!(out, Output::ToMatcher { .. })).collect();
    calls
}

fn acks(desk: &mut Desk<Bridge>) -> Vec<u64> {
    let acks = desk.take().into_iter().filter_map(|out| match out {
        Output::Ack(number) => Some(number),
        _ => None,
    });
    acks.collect()
}

#[test]
fn entries_are_acknowledged_one_by_one_once_they_are_stable() {
    let mut desk = desk(None);
    desk.give(Input::Fed(vec![(1, entry(b"x", 1)), (2, entry(b"y", 1)), (3, Bytes::from_static(b"\xff"))]));
    // A redelivery while it is under way changes nothing.
    desk.give(Input::Fed(vec![(1, entry(b"x", 1))]));
    let calls = sent(&mut desk);
    assert_eq!((calls.len(), acks(&mut desk)), (2, vec![3]));
    desk.give(Input::Matched { id: calls[1].0, outcome: Outcome::Done });
    assert_eq!(acks(&mut desk), [2]);
    desk.give(Input::Matched { id: calls[0].0, outcome: Outcome::Moved });
    desk.pass(50);
    let again = sent(&mut desk);
    assert_eq!(again.len(), 1);
    desk.give(Input::Matched { id: again[0].0, outcome: Outcome::Done });
    assert_eq!(acks(&mut desk), [1]);
}

#[test]
fn f11_what_a_matcher_cannot_store_goes_to_scratch_and_back() {
    for outcome in [Some(Outcome::Failed), None] {
        let mut desk = desk(None);
        desk.give(Input::Fed(vec![(1, entry(b"x", 1))]));
        let calls = sent(&mut desk);
        match outcome {
            Some(outcome) => desk.give(Input::Matched { id: calls[0].0, outcome }),
            // Silence is a failure, too.
            None => desk.pass(250),
        }
        assert_eq!((acks(&mut desk), desk.writes.len()), (vec![1], 1));
        desk.pass(1_100 - desk.ms);
        let resent = sent(&mut desk);
        assert!(resent.len() == 1 && resent[0].2);
        desk.give(Input::Matched { id: resent[0].0, outcome: Outcome::Done });
        desk.pass(3_000);
        assert_eq!(sent(&mut desk), vec![]);
    }
}

#[test]
fn f11_nothing_is_acknowledged_before_it_is_in_scratch() {
    for (mutant, acked) in [(None, vec![]), (Some(Mutant::NoScratch), vec![1])] {
        let mut desk = desk(mutant);
        desk.give(Input::Fed(vec![(1, entry(b"x", 1))]));
        let calls = sent(&mut desk);
        desk.hold = true;
        desk.give(Input::Matched { id: calls[0].0, outcome: Outcome::Failed });
        assert_eq!(acks(&mut desk), acked);
    }
}

#[test]
fn f11_a_row_that_fails_is_followed_by_another_location() {
    let mut desk = desk(None);
    desk.give(Input::Fed(vec![(1, entry(b"x", 1))]));
    let calls = sent(&mut desk);
    desk.hold = true;
    desk.give(Input::Matched { id: calls[0].0, outcome: Outcome::Failed });
    // The location that comes first fails; others do not.
    let first = desk.held.iter().find_map(|(_, request)| match request {
        tidings_notify::rows::StoreRequest::Write(apply) => Some(apply.groups[0].rows[0].row.clone()),
        _ => None,
    });
    desk.store.failing.insert(first.unwrap()[8]);
    desk.release_all();
    assert!(acks(&mut desk).is_empty());
    desk.pass(5_000);
    assert_eq!(acks(&mut desk), [1]);
}

#[test]
fn f11_rows_of_scratch_that_cannot_be_read_hold_up_no_others() {
    let mut desk = desk(None);
    desk.give(Input::Fed(vec![(1, entry(b"x", 1)), (2, entry(b"z", 2))]));
    for (id, ..) in sent(&mut desk) {
        desk.give(Input::Matched { id, outcome: Outcome::Failed });
    }
    let [first, second] = &desk.writes[..] else { panic!("both are in scratch") };
    let (first, second) = (first.row[8], second.row[8]);
    assert_ne!(first / 4, second / 4, "they are not neighbours");
    desk.store.failing.insert(first);
    desk.pass(1_100);
    let resent = sent(&mut desk);
    assert_eq!(resent.iter().map(|(_, version, _)| *version).collect::<Vec<_>>(), [2]);
    desk.give(Input::Matched { id: resent[0].0, outcome: Outcome::Done });
    desk.store.failing.clear();
    desk.pass(2_100);
    assert_eq!(sent(&mut desk).iter().map(|(_, version, _)| *version).collect::<Vec<_>>(), [1]);
}

#[test]
fn f11_a_later_version_that_came_to_lie_there_stays() {
    for (mutant, left) in [(None, 1), (Some(Mutant::ScratchDeletedWhole), 0)] {
        // The answer to version 1 deletes at exactly 1.
        let mut desk = self::desk(mutant);
        desk.give(Input::Fed(vec![(1, entry(b"x", 1))]));
        let calls = sent(&mut desk);
        desk.give(Input::Matched { id: calls[0].0, outcome: Outcome::Failed });
        desk.pass(1_001);
        let back = sent(&mut desk);
        desk.give(Input::Fed(vec![(2, entry(b"x", 2))]));
        let calls = sent(&mut desk);
        desk.give(Input::Matched { id: calls[0].0, outcome: Outcome::Failed });
        desk.give(Input::Matched { id: back[0].0, outcome: Outcome::Done });
        desk.pass(1_200);
        assert_eq!(sent(&mut desk).len(), left);
    }
}

#[test]
fn f3_a_publication_from_before_a_reset_is_dropped() {
    let mut desk = desk(None);
    desk.give(Input::Realm(after_a_reset()));
    desk.give(Input::Fed(vec![(1, entry(b"x", 1 << 60))]));
    assert_eq!((sent(&mut desk), acks(&mut desk)), (vec![], vec![1]));
}

/// A later version may have been acknowledged and lost: who registers now must not take this one for the latest.
#[test]
fn f3_a_publication_that_was_called_for_before_a_loss_is_dropped_after_it() {
    for (mutant, told) in [(None, 0), (Some(Mutant::StragglerAccepted), 1)] {
        let mut desk = desk(mutant);
        desk.give(Input::Realm(Realm { incarnation: 2, ..realm() }));
        desk.give(Input::Fed(vec![(1, of_realm(b"x", 4, (1, 0)))]));
        assert_eq!((sent(&mut desk).len(), acks(&mut desk).len()), (told, 1 - told));
    }
    // One that was called for since, where that is not known yet, is left for those who know.
    let mut desk = desk(None);
    desk.give(Input::Fed(vec![(1, of_realm(b"x", 4, (2, 0)))]));
    assert_eq!((sent(&mut desk), acks(&mut desk)), (vec![], vec![]));
}

#[test]
fn f3_what_is_under_way_at_a_loss_goes_no_further() {
    let mut desk = desk(None);
    desk.give(Input::Fed(vec![(1, entry(b"a", 1)), (2, entry(b"b", 1)), (3, entry(b"c", 1)), (4, entry(b"d", 1))]));
    let calls = sent(&mut desk);
    // One is in scratch and on its way again, one waits for scratch, one for the range's next owner, one for its matcher.
    desk.give(Input::Matched { id: calls[0].0, outcome: Outcome::Failed });
    assert_eq!(acks(&mut desk), [1]);
    desk.hold = true;
    desk.give(Input::Matched { id: calls[1].0, outcome: Outcome::Failed });
    desk.give(Input::Matched { id: calls[2].0, outcome: Outcome::Moved });
    desk.writes.clear();
    desk.give(Input::Realm(Realm { incarnation: 2, ..realm() }));
    let mut acked = acks(&mut desk);
    acked.sort_unstable();
    assert_eq!(acked, [2, 3, 4]);
    desk.held.clear();
    desk.hold = false;
    desk.give(Input::Matched { id: calls[3].0, outcome: Outcome::Failed });
    desk.pass(5_000);
    assert_eq!((sent(&mut desk), desk.writes.len()), (vec![], 0));
    // What comes now is served.
    desk.give(Input::Fed(vec![(5, of_realm(b"a", 2, (2, 0)))]));
    assert_eq!(sent(&mut desk).len(), 1);
}

/// Another bridge knows of a reset already, and has put something into scratch.
#[test]
fn f3_what_is_in_scratch_from_after_a_reset_is_not_deleted_by_who_has_not_heard_of_it() {
    let mut knows = desk(None);
    knows.give(Input::Realm(after_a_reset()));
    knows.give(Input::Fed(vec![(1, of_realm(b"x", 1, (1, 1)))]));
    let calls = sent(&mut knows);
    knows.give(Input::Matched { id: calls[0].0, outcome: Outcome::Failed });
    let mut desk = desk(None);
    desk.store = std::mem::take(&mut knows.store);
    desk.pass(2_500);
    assert_eq!((sent(&mut desk), desk.writes.len()), (vec![], 0));
    desk.give(Input::Realm(after_a_reset()));
    desk.pass(2_500);
    assert!(!sent(&mut desk).is_empty());
}
