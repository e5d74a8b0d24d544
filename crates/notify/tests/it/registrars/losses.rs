//! F3: what becomes of clients when state is lost, or their application begins anew.

use super::*;
use crate::desk::APP;
use tidings_notify::rows::StoreRequest;

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

/// Waits for the next scrub, whenever it begins, and answers it.
fn scrubbed(desk: &mut Desk<Registrar>, version: u64) -> Vec<v1::MatchRegistration> {
    for _ in 0..61 {
        desk.pass(1_000);
        let calls = desk.match_all(version);
        if !calls.is_empty() {
            return calls;
        }
    }
    Vec::new()
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
        let again = scrubbed(&mut desk, known);
        assert_eq!(
            again.iter().map(|call| (call.seqno, call.registered)).collect::<Vec<_>>(),
            [(first[0].seqno, true)]
        );
        assert_eq!((notifications(desk.downs()), desk.machine.pending()), (vec![], 0));
    }
    // A version that was missed is told.
    scrubbed(&mut desk, 9);
    assert_eq!(notifications(desk.downs()), [(9, false)]);
    // Clients that are offline are looked after, too.
    desk.ack(&grant, 1, b"x", 9, 0);
    desk.give(Input::Closed(channel(1)));
    assert_eq!(desk.machine.clients(), 0);
    assert_eq!(scrubbed(&mut desk, 9).len(), 1);
    assert_eq!(desk.machine.clients(), 0);
}
