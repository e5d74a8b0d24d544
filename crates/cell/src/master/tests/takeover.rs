//! Fail-over: epochs, resumption, opening, handles rebuilt (R1, R6, R7, R8, R12).

use super::harness::*;
use crate::SessionId;
use crate::master::{Master, Options};
use crate::mutant::Mutant;
use crate::path::Place;
use bytes::Bytes;
use prost::Message as _;
use tidings_base::agreed::{Heard, Role};
use tidings_wire::v1;
use tidings_wire::v1::LockMode::Exclusive;
use tidings_wire::v1::cell_message::Message;

fn holders(cell: &Cell) -> usize {
    cell.state.lock(&Place::parse("app", "/l").unwrap()).unwrap().holders.len()
}

#[test]
fn a_new_master_waits_for_its_sessions_and_opens_when_all_are_back() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    cell.file(&mut a, "/f");
    cell.fail_over();
    assert_eq!(cell.code(&mut a, write(at_path("/f"), "x")), "cell.resume");
    assert_eq!(cell.renew(&a).unwrap_err().code, "cell.opening");
    let create = Message::CreateSession(v1::CreateSession { lease_ms: 0, secret: 3, link: 3, keeper: 0 });
    assert_eq!(cell.ask(a.outside(create)).unwrap_err().code, "cell.opening");
    let resumed = cell.resume(&mut a, Vec::new()).unwrap();
    assert_eq!((resumed.epoch, resumed.lease_us), (2, 12_000_000));
    assert_eq!(cell.code(&mut a, write(at_path("/f"), "x")), "cell.opening");
    assert_eq!(cell.keep_alive(&mut a), None, "KeepAlives are answered meanwhile");
    cell.resume(&mut b, Vec::new()).unwrap();
    assert!(cell.call(&mut a, write(at_path("/f"), "x")).is_ok());
}

#[test]
fn it_opens_when_no_copy_can_be_in_use_any_more() {
    let opens_early = |mutant| {
        let mut cell = Cell::with(mutant);
        let (mut a, _b) = (cell.client("a"), cell.client("b"));
        cell.file(&mut a, "/f");
        cell.fail_over();
        cell.resume(&mut a, Vec::new()).unwrap();
        cell.pass(millis(1_979));
        let early = cell.call(&mut a, write(at_path("/f"), "x")).is_ok();
        cell.pass(millis(1));
        assert!(cell.call(&mut a, write(at_path("/f"), "y")).is_ok());
        early
    };
    assert!(!opens_early(None) && opens_early(Some(Mutant::OpensAtOnce)));
}

#[test]
fn a_session_that_does_not_come_back_lives_as_long_as_any_client_may_believe() {
    let lives = |mutant, seconds: u64| {
        let mut cell = Cell::with(mutant);
        let a = cell.client("a");
        cell.fail_over();
        cell.pass(millis(seconds * 1_000 + 100));
        cell.state.session(SessionId(a.session)).is_some()
    };
    assert!(lives(None, 13) && !lives(None, 14), "12 s and a tenth");
    assert!(!lives(Some(Mutant::CeilingIgnored), 10));
}

#[test]
fn the_platforms_own_sessions_end_as_soon_as_they_asked_and_hold_nobody_up() {
    let mut cell = Cell::new();
    let mut own = Client::new("own");
    own.caller.app = ".own".into();
    let create = v1::CreateSession { lease_ms: 3_000, secret: own.secret, link: own.link, keeper: 0 };
    let Ok(Message::SessionCreated(created)) = cell.ask(own.outside(Message::CreateSession(create))) else {
        panic!("no session");
    };
    (own.session, own.epoch) = (created.session, created.epoch);
    let mut a = cell.client("a");
    cell.file(&mut own, "/f");
    assert_eq!(cell.read(&own, "/f").stamp, None, "they cache nothing");
    cell.fail_over();
    cell.resume(&mut a, Vec::new()).unwrap();
    assert!(cell.call(&mut a, write(at_path("/"), "x")).unwrap_err().code != "cell.opening", "nobody waits for them");
    cell.pass(millis(3_200));
    assert!(cell.state.session(SessionId(own.session)).is_some());
    cell.pass(millis(200));
    assert!(cell.state.session(SessionId(own.session)).is_none(), "3 s and a tenth");
    assert!(cell.state.session(SessionId(a.session)).is_some());
}

/// A session that the process of a node keeps.
fn kept_by(cell: &mut Cell, node: u64, name: &str, app: &str) -> Client {
    let mut client = Client::new(name);
    client.caller.app = app.into();
    let create = v1::CreateSession { lease_ms: 0, secret: client.secret, link: client.link, keeper: node };
    let created = cell.ask(client.outside(Message::CreateSession(create)));
    let Ok(Message::SessionCreated(created)) = created else { panic!("{created:?}") };
    (client.session, client.epoch) = (created.session, created.epoch);
    client
}

#[test]
fn alone_it_ends_what_earlier_processes_of_its_node_kept() {
    let take_over = |alone: bool, remote: bool| {
        let mut cell = Cell::new();
        let (mut own, mut rest) = (kept_by(&mut cell, 1, "own", ".own"), kept_by(&mut cell, 1, "rest", "app"));
        let other = kept_by(&mut cell, 2, "other", ".own");
        let lock = cell.file(&mut own, "/leader");
        assert!(cell.call(&mut own, acquire(lock, Exclusive)).is_ok());
        cell.open(&mut rest, all("/e", ephemeral()));
        if remote {
            cell.client("remote");
        }
        cell.restart(alone);
        (cell, [own, rest, other])
    };
    let alive = |cell: &Cell, clients: &[Client; 3]| {
        clients.each_ref().map(|client| cell.state.session(SessionId(client.session)).is_some())
    };
    let (mut cell, clients) = take_over(true, false);
    assert_eq!(alive(&cell, &clients), [false, false, true], "another node's process may live");
    assert!(cell.state.locks().all(|(_, lock)| lock.holders.is_empty()));
    // It is open, and what begins from here on is this process's own, whoever leads meanwhile.
    let mut own = kept_by(&mut cell, 1, "own", ".own");
    cell.hear(Heard::Role(Role::Follower { leader: None }));
    cell.lead();
    assert!(cell.resume(&mut own, Vec::new()).is_ok());
    // What others may have cached changes only when the cell opens.
    let (mut cell, clients) = take_over(true, true);
    assert_eq!(alive(&cell, &clients), [false, true, true]);
    cell.pass(millis(1_979));
    assert_eq!(alive(&cell, &clients), [false, true, true]);
    cell.pass(millis(1));
    assert_eq!(alive(&cell, &clients), [false, false, true]);
    // One of several members knows nothing of the kind.
    let (cell, clients) = take_over(false, false);
    assert_eq!(alive(&cell, &clients), [true; 3]);
}

#[test]
fn an_end_by_order_outlives_the_master_that_heard_it() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    let lock = cell.file(&mut a, "/l");
    assert!(cell.call(&mut a, acquire(lock, Exclusive)).is_ok());
    let end = Message::EndSession(v1::EndSession { session: a.session });
    let op = cell.send(Client::operator().outside(end));
    cell.pass(secs(6));
    assert_eq!(cell.take(op), Some(Ok(Message::Done(v1::CellDone::default()))), "it is decided");
    cell.fail_over();
    assert_eq!(cell.resume(&mut a, Vec::new()).unwrap_err().code, "cell.expired");
    // R10: the lock stays with it for as long as it may believe in it.
    cell.pass(secs(13));
    assert_eq!(holders(&cell), 1);
    cell.pass(millis(300));
    assert!(cell.state.session(SessionId(a.session)).is_none());
}

#[test]
fn a_session_that_ended_is_not_safe_again() {
    let safe = |mutant| {
        let mut cell = Cell::with(mutant);
        let mut a = cell.client("a");
        cell.pass(secs(13));
        cell.fail_over();
        cell.resume(&mut a, Vec::new()).is_ok()
    };
    assert!(!safe(None) && safe(Some(Mutant::Resurrection)));
}

#[test]
fn handles_are_rebuilt_from_their_tokens() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    let file = cell.open(&mut a, all("/f", Some(v1::CreateNode::default())));
    let gone = cell.open(&mut a, all("/g", Some(v1::CreateNode::default())));
    let lock = cell.open(&mut a, all("/l", Some(v1::CreateNode::default())));
    let read_only = cell.open(&mut a, v1::OpenNode { write: false, lock: false, ..all("/f", None) });
    let ephemeral_kept = cell.open(&mut a, all("/e", ephemeral()));
    let ephemeral_closed = cell.open(&mut a, all("/e", None));
    let foreign = cell.open(&mut b, all("/f", None));
    assert!(cell.call(&mut a, acquire(lock.handle, Exclusive)).is_ok());
    assert!(cell.call(&mut a, close(ephemeral_closed.handle)).is_ok());
    assert!(cell.call(&mut b, delete(at_path("/g"))).is_ok());
    cell.file(&mut b, "/g");
    cell.fail_over();
    let mut forged = file.token.to_vec();
    *forged.last_mut().unwrap() ^= 1;
    let tokens = [&file, &gone, &lock, &read_only, &ephemeral_kept, &ephemeral_closed, &foreign];
    let mut tokens: Vec<Bytes> = tokens.iter().map(|opened| opened.token.clone()).collect();
    tokens.push(forged.into());
    let resumed = cell.resume(&mut a, tokens).unwrap();
    assert_eq!(resumed.gone, [gone.handle]);
    assert_eq!(resumed.locks.len(), 1);
    assert_eq!((resumed.locks[0].handle, resumed.locks[0].path.as_str()), (lock.handle, "/l"));
    cell.resume(&mut b, Vec::new()).unwrap();
    assert!(cell.call(&mut a, write(at_handle(file.handle), "x")).is_ok());
    assert_eq!(cell.code(&mut a, write(at_handle(read_only.handle), "x")), "cell.denied");
    for gone in [&gone, &ephemeral_closed] {
        assert_eq!(cell.code(&mut a, write(at_handle(gone.handle), "x")), "cell.bad_handle");
    }
    assert!(cell.call(&mut a, release(lock.handle)).is_ok());
    // Watches are rebuilt, too.
    cell.hold(&mut a);
    assert!(cell.call(&mut b, write(at_path("/f"), "y")).is_ok());
    assert!(cell.kept(&mut a).unwrap().batch.unwrap().events.iter().any(|event| event.handle == file.handle));
}

#[test]
fn a_token_that_nobody_sealed_is_worth_nothing() {
    let taken = |mutant| {
        let mut cell = Cell::with(mutant);
        let (mut a, mut b) = (cell.client("a"), cell.client("b"));
        cell.file(&mut a, "/f");
        cell.fail_over();
        let instance = cell.state.instance(&Place::parse("app", "/f").unwrap()).unwrap();
        let body = v1::HandleBody {
            incarnation: 1,
            session: b.session,
            principal: b.caller.principal.clone(),
            app: "app".into(),
            path: "/f".into(),
            instance,
            write: true,
            number: 77,
            ..Default::default()
        };
        let token = v1::SealedHandle { body: body.encode_to_vec().into(), ..Default::default() }.encode_to_vec();
        cell.resume(&mut b, vec![token.into()]).unwrap();
        cell.resume(&mut a, Vec::new()).unwrap();
        cell.call(&mut b, write(at_handle(77), "x")).is_ok()
    };
    assert!(!taken(None) && taken(Some(Mutant::MacIgnored)));
}

#[test]
fn a_resumption_that_comes_twice_changes_nothing() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    let opened = cell.open(&mut b, all("/f", Some(v1::CreateNode::default())));
    cell.fail_over();
    cell.resume(&mut a, Vec::new()).unwrap();
    cell.resume(&mut b, vec![opened.token.clone()]).unwrap();
    assert!(cell.call(&mut b, close(opened.handle)).is_ok());
    assert!(cell.read(&b, "/f").stamp.is_some());
    cell.renew(&b).unwrap();
    cell.hold(&mut b);
    let late = cell.resume(&mut b, vec![opened.token]).unwrap();
    assert_eq!(late.gone, [opened.handle], "closed since");
    let request = a.numbered(write(at_path("/f"), "x"));
    let op = cell.send(request);
    assert_eq!(cell.take(op), None, "what was cached since is still known");
    assert!(cell.kept(&mut b).unwrap().batch.is_some());
}

#[test]
fn a_late_copy_of_an_open_does_not_revive_a_closed_handle() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    let handle = cell.file(&mut a, "/f");
    assert!(cell.call(&mut a, close(handle)).is_ok());
    a.answered_below = a.number + 1;
    assert_eq!(cell.code(&mut a, write(at_handle(handle), "x")), "cell.bad_handle");
    let late = cell.ask(a.inside(handle, Message::Open(all("/f", None))));
    assert_eq!(late.unwrap_err().code, "cell.answered_already");
}

#[test]
fn a_change_whose_answer_was_lost_is_answered_by_the_next_master_and_not_made_again() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    cell.file(&mut a, "/f");
    cell.instant = false;
    let request = a.numbered(write(at_path("/f"), "mine"));
    let op = cell.send(request);
    let (_, command) = cell.log.pop_front().unwrap();
    let _ = cell.apply(&command);
    cell.instant = true;
    cell.fail_over();
    assert_eq!(cell.take(op).unwrap().unwrap_err().code, "cell.outcome_unknown");
    cell.resume(&mut a, Vec::new()).unwrap();
    cell.resume(&mut b, Vec::new()).unwrap();
    assert!(cell.call(&mut b, write(at_path("/f"), "later")).is_ok());
    assert!(matches!(cell.ask(a.inside(a.number, write(at_path("/f"), "mine"))), Ok(Message::Done(_))));
    assert_eq!(cell.read(&a, "/f").contents, "later");
}

#[test]
fn a_deposed_masters_late_proposal_changes_nothing() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    cell.file(&mut a, "/f");
    cell.instant = false;
    let request = a.numbered(write(at_path("/f"), "late"));
    cell.send(request);
    let (_, late) = cell.log.pop_front().unwrap();
    cell.instant = true;
    cell.fail_over();
    let _ = cell.apply(&late);
    cell.resume(&mut a, Vec::new()).unwrap();
    assert_eq!(cell.read(&a, "/f").contents, "");
}

#[test]
fn every_new_master_waits_a_lock_delay_in_full() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    let delay = v1::OpenNode { lock_delay_ms: Some(10_000), ..all("/l", Some(v1::CreateNode::default())) };
    let handle = cell.open(&mut a, delay).handle;
    assert!(cell.call(&mut a, acquire(handle, Exclusive)).is_ok());
    cell.pass(secs(13));
    cell.pass(secs(8));
    cell.fail_over();
    let mut b = cell.client("b");
    let handle = cell.file(&mut b, "/l");
    let request = b.numbered(acquire(handle, Exclusive));
    cell.send(request);
    cell.pass(millis(10_900));
    assert_eq!(holders(&cell), 0);
    cell.pass(millis(200));
    assert_eq!(holders(&cell), 1);
}

#[test]
fn whoever_waits_when_the_role_is_lost_is_sent_on() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    cell.hold(&mut a);
    let held = a.held.unwrap();
    cell.hear(Heard::Role(Role::Follower { leader: None }));
    assert_eq!(cell.take(held).unwrap().unwrap_err().code, "cell.not_master");
    assert_eq!(cell.ask(a.inside(0, read("/"))).unwrap_err().code, "cell.not_master");
    assert_eq!(cell.master.deadline(), None);
}

#[test]
fn a_call_that_knows_another_epoch_is_told_to_resume() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    cell.fail_over();
    cell.resume(&mut a, Vec::new()).unwrap();
    a.epoch = 1;
    assert_eq!(cell.code(&mut a, write(at_path("/f"), "x")), "cell.resume");
}

#[test]
fn a_resumption_meant_for_another_epoch_is_no_flush() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    let late = v1::ResumeSession { link: a.link, handles: Vec::new(), epoch: a.epoch };
    cell.fail_over();
    // Sent to the master of the earlier epoch, and delivered to this one.
    let answer = cell.ask(a.inside(0, Message::ResumeSession(late))).unwrap();
    let Message::ResumeNeeded(needed) = answer else { panic!("taken for a flush: {answer:?}") };
    assert!(needed.epoch > a.epoch);
    assert_eq!(cell.code(&mut a, write(at_path("/f"), "x")), "cell.resume");
    cell.resume(&mut a, Vec::new()).unwrap();
}

#[test]
fn a_closed_handle_is_not_revived() {
    let revived = |mutant| {
        let mut cell = Cell::with(mutant);
        let mut a = cell.client("a");
        let kept = cell.open(&mut a, all("/f", Some(v1::CreateNode::default())));
        let closed = cell.open(&mut a, v1::OpenNode { events: 0, lock: false, ..all("/f", None) });
        let locked = cell.open(&mut a, all("/f", None));
        assert!(cell.call(&mut a, acquire(locked.handle, Exclusive)).is_ok());
        assert!(cell.call(&mut a, close(closed.handle)).is_ok());
        assert!(cell.call(&mut a, close(locked.handle)).is_ok());
        cell.fail_over();
        let tokens = [&kept, &closed, &locked].map(|opened| opened.token.clone()).to_vec();
        let resumed = cell.resume(&mut a, tokens).unwrap();
        assert_eq!(resumed.gone, [0; 0], "who closed it needs not hear that it is closed");
        assert!(cell.call(&mut a, write(at_handle(kept.handle), "x")).is_ok());
        let revived =
            [closed.handle, locked.handle].map(|handle| cell.call(&mut a, write(at_handle(handle), "x")).is_ok());
        if mutant.is_none() {
            // Nor is it opened anew by a late copy of its open, and closing it once more changes nothing.
            let again = Message::Open(all("/f", None));
            assert_eq!(cell.ask(a.inside(closed.handle, again)).unwrap_err().code, "cell.answered_already");
            assert!(cell.call(&mut a, close(closed.handle)).is_ok());
            // However long its client keeps the answer to it unacknowledged.
            let made = a.numbered(Message::Open(all("/made", Some(v1::CreateNode::default()))));
            let Ok(Message::Opened(opened)) = cell.ask(made.clone()) else { panic!("not made") };
            assert!(cell.call(&mut a, close(opened.handle)).is_ok());
            assert_eq!(cell.ask(made).unwrap_err().code, "cell.answered_already");
        }
        revived
    };
    assert_eq!(revived(None), [false, false]);
    assert_eq!(revived(Some(Mutant::ClosedHandlesRevived)), [true, true]);
}

#[test]
fn closes_are_answered_when_they_are_agreed_on_many_with_one_entry() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    let of_a: Vec<u64> = (0..3).map(|_| cell.open(&mut a, all("/", None)).handle).collect();
    let of_b = cell.open(&mut b, all("/", None)).handle;
    cell.instant = false;
    let send = |cell: &mut Cell, client: &mut Client, handle| {
        let request = client.numbered(close(handle));
        cell.send(request)
    };
    let first = send(&mut cell, &mut a, of_a[0]);
    let rest = [send(&mut cell, &mut b, of_b), send(&mut cell, &mut a, of_a[1]), send(&mut cell, &mut a, of_a[2])];
    assert_eq!((cell.log.len(), cell.take(first)), (1, None), "one is under way, and nobody is answered");
    assert!(cell.apply_one() && matches!(cell.take(first), Some(Ok(Message::Done(_)))));
    assert_eq!(cell.log.len(), 1, "the others go together");
    // The log has no room for them: who asks again is closed then.
    cell.refuse_one(tidings_base::agreed::Refusal::Busy);
    assert!(rest.iter().all(|op| cell.take(*op).is_some_and(|answer| answer.is_err())));
    let again = send(&mut cell, &mut b, of_b);
    assert!(cell.apply_one() && matches!(cell.take(again), Some(Ok(Message::Done(_)))));
    assert!(cell.state.is_closed(SessionId(b.session), crate::HandleNumber(of_b)));
    // What was opened and closed, and what was neither, is one range.
    a.answered_below = a.number + 1;
    for handle in &of_a[1..] {
        send(&mut cell, &mut a, *handle);
        cell.apply_one();
    }
    let closed: Vec<bool> =
        (1..=a.number).map(|number| cell.state.is_closed(SessionId(a.session), crate::HandleNumber(number))).collect();
    assert!(closed[..3].iter().all(|closed| *closed) && !closed[3..].iter().any(|closed| *closed), "{closed:?}");
}

#[test]
fn closing_what_this_master_never_heard_of_frees_what_the_state_keeps() {
    // The later one first: the earlier one's number goes with it, and what it keeps does not.
    for later_first in [false, true] {
        let mut cell = Cell::new();
        let mut a = cell.client("a");
        let node = cell.open(&mut a, all("/e", ephemeral())).handle;
        let lock = cell.file(&mut a, "/l");
        assert!(cell.call(&mut a, acquire(lock, Exclusive)).is_ok());
        cell.fail_over();
        cell.resume(&mut a, Vec::new()).unwrap();
        assert_eq!(holders(&cell), 1);
        a.answered_below = a.number + 1;
        for handle in if later_first { [lock, node] } else { [node, lock] } {
            assert!(cell.call(&mut a, close(handle)).is_ok());
            assert!(cell.state.is_closed(SessionId(a.session), crate::HandleNumber(handle)));
        }
        assert_eq!(holders(&cell), 0);
        assert_eq!(cell.state.instance(&Place::parse("app", "/e").unwrap()), None);
    }
}

#[test]
fn a_close_that_comes_again_is_one_and_a_cancelled_one_is_none() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    let handles = [(); 2].map(|()| cell.open(&mut a, all("/", None)).handle);
    cell.instant = false;
    let request = a.numbered(close(handles[0]));
    cell.send(request);
    let request = a.numbered(close(handles[1]));
    let (first, again) = (cell.send(request.clone()), cell.send(request));
    assert_eq!(cell.take(first).expect("superseded").unwrap_err().code, "cell.busy");
    cell.input(crate::master::Input::Cancel { op: again });
    assert!(cell.apply_one());
    assert!(cell.log.is_empty(), "nobody waits for the other one");
}

#[test]
fn a_handle_whose_token_cannot_be_read_any_more_is_reported_gone() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    let create = || Some(v1::CreateNode::default());
    let (own, other) = (cell.open(&mut a, all("/f", create())), cell.open(&mut b, all("/g", create())));
    let unknown_key = |token: &Bytes| {
        let sealed = v1::SealedHandle::decode(token.clone()).unwrap();
        Bytes::from(v1::SealedHandle { key: sealed.key + 1_000, ..sealed }.encode_to_vec())
    };
    let tokens = vec![unknown_key(&own.token), unknown_key(&other.token)];
    cell.fail_over();
    for _ in 0..2 {
        assert_eq!(cell.resume(&mut a, tokens.clone()).unwrap().gone, [own.handle]);
    }
}

#[test]
fn a_shorter_cache_lease_counts_for_later_masters_once_the_longer_ones_are_over() {
    let mut cell = Cell::new();
    cell.master = Master::new(Options { cache_lease: secs(5), ..options(None) });
    cell.lead();
    cell.client("a");
    assert_eq!(cell.state.cache_lease_ms(), 5_000);
    cell.fail_over();
    cell.pass(millis(5_499));
    assert_eq!(cell.state.cache_lease_ms(), 5_000, "copies may be in use");
    cell.pass(millis(1));
    assert_eq!(cell.state.cache_lease_ms(), CACHE_LEASE.as_millis() as u32);
    cell.fail_over();
    cell.pass(millis(1_979));
    assert!(cell.ask(Client::new("b").outside(read("/f"))).is_err(), "it opens after the shorter one");
    cell.pass(millis(1));
    assert!(cell.ask(Client::new("b").outside(read("/f"))).is_ok());
}
