//! The claim about the feed.

use tidings_sim::scenarios::store::fact::{Action, ClientFact, OpName, Outcome};

use super::log_claims::judge;
use tidings_sim::invariants::feed_delivers_every_entry::*;
use tidings_sim::kernel::HostId;

fn ask(number: u64, action: Action) -> (u32, ClientFact) {
    (0, ClientFact::Asked { op: OpName { client: HostId(0), number }, action })
}

fn tell(number: u64, outcome: Outcome) -> (u32, ClientFact) {
    (0, ClientFact::Told { op: OpName { client: HostId(0), number }, outcome })
}

fn consume(number: u64, entries: &[(u64, u64)]) -> [(u32, ClientFact); 2] {
    let action = Action::Consume { topic: 0, group: 0 };
    [ask(number, action), tell(number, Outcome::Delivered(entries.to_vec()))]
}

fn append(number: u64, entry: u64, first: u64) -> [(u32, ClientFact); 2] {
    [ask(number, Action::Append { topic: 0, entries: vec![entry] }), tell(number, Outcome::Appended { first })]
}

fn ack(number: u64, entry: u64) -> [(u32, ClientFact); 2] {
    let action = Action::Ack { topic: 0, group: 0, numbers: vec![entry] };
    [ask(number, action), tell(number, Outcome::Done)]
}

fn judged(steps: &[[(u32, ClientFact); 2]]) -> Result<(), String> {
    judge(&mut FeedDeliversEveryEntry::new(vec![(0, 0)]), &steps.concat())
}

#[test]
fn a_good_feed_is_let_pass() {
    let steps = [consume(1, &[]), append(2, 77, 1), consume(3, &[(1, 77)]), consume(4, &[(1, 77)]), ack(5, 1)];
    assert_eq!(judged(&steps), Ok(()));
    // Appended before the group was known: it may be dropped.
    assert_eq!(judged(&[append(1, 77, 1), consume(2, &[])]), Ok(()));
}

#[test]
fn each_sin_is_noticed() {
    for sin in [
        vec![consume(1, &[]), append(2, 77, 1)],
        vec![append(1, 77, 1), append(2, 78, 1)],
        vec![append(1, 77, 2), append(2, 78, 1)],
        vec![append(1, 77, 1), append(2, 77, 2)],
        vec![consume(1, &[(1, 77)])],
        vec![append(1, 77, 1), consume(2, &[(1, 77)]), ack(3, 1), consume(4, &[(1, 77)])],
    ] {
        assert!(judged(&sin).is_err(), "{sin:?}");
    }
}
