//! F3: what becomes of clients when state is lost, or their application begins anew.

use super::*;
use crate::desk::APP;
use std::collections::BTreeSet;
use tidings_base::KeyHash;
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

/// Users of their own principals, spread over the ring, with one object each.
fn users(desk: &mut Desk<Registrar>, many: u64) {
    for number in 1..=many {
        let caller = || Caller { app: APP.into(), principal: format!("user-{number}") };
        let hello = v1::NotifyHello { nonce: number, persistent: true, ..Default::default() };
        desk.from(caller(), number, v1::NotifyUp { hello: Some(hello), ..Default::default() });
        let token = desk.downs().into_iter().find_map(|down| down.grant).unwrap().token;
        let interest = v1::ObjectInterest { object: Bytes::from_static(b"x"), known_version: 0 };
        let changes = vec![v1::RegistrationChange { change: Some(Change::Register(interest)) }];
        desk.from(caller(), number, v1::NotifyUp { token, first: 1, latest: 1, changes, ..Default::default() });
    }
}

/// Lets time pass until a scrub has begun.
fn scrub_begins(desk: &mut Desk<Registrar>) {
    for _ in 0..61 {
        desk.pass(1_000);
        if desk.machine.pending() > 0 {
            return;
        }
    }
    panic!("no scrub within a minute");
}

/// §4.2.5: nothing of a scrub is left out, however little room there is, and changes have theirs.
#[test]
fn f3_a_scrub_waits_for_room_and_leaves_nobody_out() {
    const MANY: u64 = 300;
    let scrub_every = Duration::from_secs(60);
    let mut desk = Desk::registrar(Options { scrub_every, max_pending: 100, ..Default::default() });
    users(&mut desk, MANY);
    assert!(desk.match_all(3).len() >= 100);
    for _ in 0..10 {
        // What there was no room for is found by its marker.
        desk.pass(1_000);
        desk.match_all(3);
    }
    desk.take();
    scrub_begins(&mut desk);
    let waiting = desk.machine.pending();
    assert!((50..100).contains(&waiting), "{waiting} take the room of changes");
    let scrubbed: BTreeSet<String> = desk.match_all(3).into_iter().filter_map(|call| Some(call.client?.user)).collect();
    assert_eq!((scrubbed.len(), desk.machine.pending()), (MANY as usize, 0));
}

/// Answers one page of a look that is held; whether there was one.
fn page(desk: &mut Desk<Registrar>) -> bool {
    let scan = desk.held.iter().position(|(_, request)| matches!(request, StoreRequest::Scan(_)));
    let Some((id, request)) = scan.and_then(|at| desk.held.remove(at)) else { return false };
    let result = desk.store.perform(&request);
    desk.give(Input::Stored { id, result });
    true
}

/// The users whose registrations have come to their matchers.
fn told(desk: &mut Desk<Registrar>) -> Vec<String> {
    desk.match_all(3).into_iter().filter_map(|call| Some(call.client?.user)).collect()
}

/// F5: a look that takes long goes on to its end, whatever is dropped and looked for again meanwhile.
#[test]
fn f5_the_last_rows_are_looked_at_though_every_look_drops_something() {
    const MANY: u64 = 300;
    let mut old = desk(None);
    users(&mut old, MANY);
    let mut new = Desk::registrar(Options { max_pending: 4, ..Default::default() });
    new.store = old.store.clone();
    new.give(Input::Lost { range: KeyRange::FULL });
    new.hold = true;
    new.give(Input::Gained { range: KeyRange::FULL, lease: LeaseNumber::new(6).unwrap() });
    for _ in 0..100 {
        // A page takes longer than the pause before what was dropped is looked for, and no matcher answers.
        new.pass(600);
        page(&mut new);
        while let Some(at) = new.held.iter().position(|(_, request)| !matches!(request, StoreRequest::Scan(_))) {
            new.held.swap(0, at);
            new.release();
        }
        assert!(new.machine.pending() <= 4);
    }
    assert_eq!(new.machine.clients(), MANY as usize, "all of them are online");
}

/// However many ranges there are.
#[test]
fn f3_a_scrub_reads_one_page_at_a_time() {
    let mut desk = Desk::registrar(Options { scrub_every: Duration::from_secs(60), ..Default::default() });
    let (one, other) = KeyRange::FULL.split(KeyHash(u64::MAX / 2)).unwrap();
    [one, other].into_iter().for_each(|range| desk.give(Input::Gained { range, lease: lease() }));
    users(&mut desk, 100);
    desk.match_all(3);
    desk.hold = true;
    desk.pass(61_000);
    let pages = |desk: &Desk<Registrar>| desk.held.iter().filter(|(_, it)| matches!(it, StoreRequest::Scan(_))).count();
    assert_eq!(pages(&desk), 1);
    page(&mut desk);
    assert_eq!(pages(&desk), 1, "the next one");
}

/// F3: a scrub goes on where a range is cut or gained under another lease, where an application begins anew, and once rows
/// can be read.
#[test]
fn f3_a_scrub_is_not_lost_on_the_way() {
    const MANY: u64 = 300;
    let scrub_every = Duration::from_secs(60);
    for trouble in ["a cut", "a reset", "rows that fail", "another lease"] {
        let mut desk = Desk::registrar(Options { scrub_every, ..Default::default() });
        users(&mut desk, MANY);
        desk.match_all(3);
        (1..=MANY).for_each(|number| desk.give(Input::Closed(channel(number))));
        desk.pass(61_000);
        desk.match_all(3);
        desk.hold = true;
        let pages = |desk: &Desk<Registrar>| desk.held.iter().any(|(_, it)| matches!(it, StoreRequest::Scan(_)));
        let begun = (0..61).any(|_| {
            desk.pass(1_000);
            pages(&desk)
        });
        assert!(begun, "a page of it is under way");
        let mut stays = KeyRange::FULL;
        match trouble {
            "a cut" => {
                let (kept, lost) = KeyRange::FULL.split(KeyHash(u64::MAX / 2)).unwrap();
                desk.give(Input::Lost { range: lost });
                stays = kept;
            }
            "a reset" => {
                let generations = [("another".to_owned(), 1)].into();
                desk.give(Input::Realm(Realm { generations, ..realm() }));
            }
            "another lease" => {
                desk.give(Input::Gained { range: KeyRange::FULL, lease: LeaseNumber::new(6).unwrap() });
            }
            _ => {
                // Rows of clients cannot be read once.
                page(&mut desk);
                while let Some((id, _)) = desk.held.pop_front() {
                    desk.give(Input::Stored { id, result: Err(unavailable()) });
                }
            }
        }
        desk.release_all();
        let mut scrubbed = BTreeSet::new();
        for _ in 0..5 {
            scrubbed.extend(told(&mut desk));
            desk.pass(1_000);
        }
        let kept = |number: &u64| stays.contains(client_key(&format!("user-{number}"), 0).hash());
        assert_eq!(scrubbed.len(), (1..=MANY).filter(kept).count(), "{trouble}");
    }
}

/// A range is divided while its rows are looked through: the rest of what stays is looked through, too.
#[test]
fn f5_nothing_is_overlooked_where_a_range_is_cut_while_pages_wait() {
    let mut old = desk(None);
    users(&mut old, 400);
    let mut new = desk(None);
    new.store = old.store.clone();
    new.hold = true;
    new.give(Input::Gained { range: KeyRange::FULL, lease: LeaseNumber::new(6).unwrap() });
    // Clients are being read, as many as may be, and the next page waits for them.
    while page(&mut new) {}
    assert!((256..400).contains(&new.held.len()), "{}", new.held.len());
    let (kept, lost) = KeyRange::FULL.split(KeyHash(u64::MAX / 8 * 7)).expect("a point within");
    new.give(Input::Lost { range: lost });
    new.release_all();
    let mut taken = BTreeSet::new();
    for _ in 0..10 {
        taken.extend(new.match_all(3).into_iter().filter_map(|call| Some(call.client?.user)));
        new.pass(1_000);
    }
    let stays = |number: &u64| kept.contains(client_key(&format!("user-{number}"), 0).hash());
    assert_eq!(taken.len(), (1..=400).filter(stays).count());
}

/// F5: somebody asked for a client before the look came by, and its row cannot be read: it is looked for all the same.
#[test]
fn f5_who_is_being_read_as_a_look_passes_is_looked_for() {
    let mut old = desk(None);
    let grant = old.hello(1, 11, &none()).unwrap();
    old.register(&grant, 1, 1, b"x");
    let key = old.key_of(&grant);
    let mut new = desk(None);
    new.store = old.store.clone();
    new.hold = true;
    moves(&mut new, 5);
    // A notification has the row read before the page comes, which shows that a registration is not complete.
    assert_eq!(new.notify(&key, b"y", 3, false), None);
    assert!(page(&mut new));
    let Some((id, StoreRequest::Get(_))) = new.held.pop_front() else { panic!("the row is read once") };
    assert!(new.held.is_empty());
    new.give(Input::Stored { id, result: Err(unavailable()) });
    assert_eq!(new.machine.clients(), 0);
    new.release_all();
    new.pass(2_000);
    assert_eq!(new.match_all(3).iter().map(|call| call.object.as_ref()).collect::<Vec<_>>(), [b"x"]);
}

/// F3: however much waits for a client, a scrub of it is not left out.
#[test]
fn f3_a_scrub_comes_to_whoever_has_its_hands_full() {
    let mut desk = Desk::registrar(Options { scrub_every: Duration::from_secs(60), ..Default::default() });
    let grant = registered(&mut desk, 3);
    let key = desk.key_of(&grant);
    desk.give(Input::Closed(channel(1)));
    desk.pass(61_000);
    desk.match_all(3);
    assert_eq!(desk.machine.clients(), 0);
    desk.hold = true;
    let refused = (0..100).filter(|_| desk.notify(&key, b"y", 3, false) == Some(Outcome::Failed)).count();
    assert!(refused > 0, "nothing more may wait");
    let begun = (0..61).any(|_| {
        desk.pass(1_000);
        page(&mut desk)
    });
    assert!(begun, "a scrub has come by");
    desk.release_all();
    assert_eq!(told(&mut desk), ["ann"]);
}
