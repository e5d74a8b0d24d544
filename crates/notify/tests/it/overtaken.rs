//! Notifications to clients that are online are logged after a while: acks that come before spare the log (§4.2.3, F9).

use crate::desk::{Desk, channel};
use bytes::Bytes;
use tidings_base::KeyRange;
use tidings_notify::Outcome;
use tidings_notify::mutant::Mutant;
use tidings_notify::names::ClientKey;
use tidings_notify::registrar::{Input, Options, Output, Registrar};
use tidings_wire::v1;

/// A client that has registered `x` and has acknowledged version 5 of it.
fn online() -> (Desk<Registrar>, v1::NotifyGrant, ClientKey) {
    online_without(None)
}

fn online_without(mutant: Option<Mutant>) -> (Desk<Registrar>, v1::NotifyGrant, ClientKey) {
    let mut desk = Desk::registrar(Options { mutant, ..Default::default() });
    let grant = desk.hello(1, 11, &Bytes::new()).unwrap();
    desk.register(&grant, 1, 1, b"x");
    desk.match_all(5);
    desk.ack(&grant, 1, b"x", 5, 0);
    desk.writes.clear();
    desk.take();
    let key = desk.key_of(&grant);
    (desk, grant, key)
}

/// What matchers were answered, and whether anything was logged.
fn came_of_it(desk: &mut Desk<Registrar>) -> (Vec<Outcome>, bool) {
    let outcomes = desk.take().into_iter().filter_map(|out| match out {
        Output::Notified { outcome, .. } => Some(outcome),
        _ => None,
    });
    let outcomes = outcomes.collect();
    let writes = std::mem::take(&mut desk.writes);
    let logged =
        writes.iter().flat_map(|write| &write.cells).any(|cell| cell.column == "log-x" && cell.value.is_some());
    (outcomes, logged)
}

#[test]
fn an_ack_that_comes_soon_spares_the_log() {
    let (mut desk, grant, key) = online();
    assert_eq!(desk.notify(&key, b"x", 6, false), None, "neither acknowledged nor logged: the marker must stay");
    let pushed = desk.downs().into_iter().flat_map(|down| down.notifications).any(|news| news.version == 6);
    assert!(pushed, "it is sent at once");
    desk.ack(&grant, 1, b"x", 6, 0);
    assert_eq!(came_of_it(&mut desk), (vec![Outcome::Done], false));
    desk.pass(100);
    assert_eq!(came_of_it(&mut desk), (vec![], false));
}

#[test]
fn what_is_not_acknowledged_is_logged_before_the_matcher_hears_that_it_is_done() {
    let (mut desk, grant, key) = online();
    desk.notify(&key, b"x", 7, false);
    desk.ack(&grant, 1, b"x", 6, 0);
    assert_eq!(came_of_it(&mut desk), (vec![], false), "that was an ack of something else");
    desk.hold = true;
    desk.pass(30);
    assert_eq!(came_of_it(&mut desk), (vec![], false), "it is not stable yet");
    desk.release_all();
    assert_eq!(came_of_it(&mut desk), (vec![Outcome::Done], true));
}

#[test]
fn what_was_only_sent_is_not_done() {
    for (mutant, answered) in [(None, None), (Some(Mutant::SentIsDone), Some(Outcome::Done))] {
        let (mut desk, _, key) = online_without(mutant);
        assert_eq!(desk.notify(&key, b"x", 6, false), answered);
    }
}

#[test]
fn a_client_that_goes_is_not_waited_for() {
    let (mut desk, _, key) = online();
    desk.notify(&key, b"x", 8, false);
    desk.give(Input::Closed(channel(1)));
    assert_eq!(came_of_it(&mut desk), (vec![Outcome::Done], true));
    // And one that is gone not at all.
    assert_eq!(desk.notify(&key, b"x", 9, false), Some(Outcome::Done));
}

#[test]
fn a_range_that_goes_takes_what_waits_with_it() {
    let (mut desk, _, key) = online();
    desk.notify(&key, b"x", 9, false);
    desk.give(Input::Lost { range: KeyRange::FULL });
    assert_eq!(came_of_it(&mut desk), (vec![Outcome::Moved], false));
}

#[test]
fn what_is_unregistered_meanwhile_is_not_logged() {
    let (mut desk, grant, key) = online();
    desk.notify(&key, b"x", 9, false);
    let change = Some(v1::registration_change::Change::Unregister(Bytes::from_static(b"x")));
    let changes = vec![v1::RegistrationChange { change }];
    let token = grant.token.clone();
    desk.from(crate::desk::ann(), 1, v1::NotifyUp { token, latest: 100, first: 100, changes, ..Default::default() });
    desk.pass(30);
    let (outcomes, logged) = came_of_it(&mut desk);
    assert!(matches!(outcomes[..], [Outcome::NotRegistered(_)]) && !logged, "{outcomes:?}");
}
