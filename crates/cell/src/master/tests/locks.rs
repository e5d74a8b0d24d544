//! Locks: queues, grants, delays, sequencers, their events.

use super::harness::*;
use crate::mutant::Mutant;
use crate::namespace::Namespace;
use crate::path::Place;
use prost::Message as _;
use tidings_base::OpId;
use tidings_wire::v1;
use tidings_wire::v1::CellEventKind as Kind;
use tidings_wire::v1::LockMode::{Exclusive, Shared};
use tidings_wire::v1::cell_message::Message;

/// So many clients, each with a handle on `/l`.
fn rivals<const N: usize>(cell: &mut Cell) -> [(Client, u64); N] {
    std::array::from_fn(|n| {
        let mut client = cell.client(&format!("rival {n}"));
        let handle = cell.file(&mut client, "/l");
        (client, handle)
    })
}

fn send(cell: &mut Cell, client: &mut Client, message: Message) -> OpId {
    let request = client.numbered(message);
    cell.send(request)
}

fn acquired(cell: &mut Cell, op: OpId) -> bool {
    match cell.take(op) {
        Some(Ok(Message::Acquired(_))) => true,
        None => false,
        other => panic!("{other:?}"),
    }
}

fn holders(state: &Namespace) -> Vec<u64> {
    let place = Place::parse("app", "/l").unwrap();
    state.lock(&place).unwrap().holders.keys().map(|holder| holder.0.0).collect()
}

fn keep_all(cell: &mut Cell, clients: &mut [(Client, u64)]) {
    for (client, _) in clients {
        let keep = client.inside(0, Message::KeepAlive(v1::KeepAlive { link: client.link, ..Default::default() }));
        let deadline = cell.now.mono;
        cell.send_until(keep, Some(deadline));
    }
}

/// What a client hears, in order, until its KeepAlive is held.
fn events(cell: &mut Cell, client: &mut Client) -> Vec<(u64, Kind)> {
    let mut events = Vec::new();
    loop {
        let kept = if client.held.is_some() { cell.kept(client) } else { cell.keep_alive(client) };
        let Some(kept) = kept else { return events };
        events.extend(kept.batch.unwrap_or_default().events.iter().map(|event| (event.handle, event.kind())));
    }
}

#[test]
fn waiters_are_granted_in_the_order_they_came() {
    let in_order = |mutant| {
        let mut cell = Cell::with(mutant);
        let mut rivals: [_; 5] = rivals(&mut cell);
        let ops: Vec<OpId> =
            rivals.iter_mut().map(|(client, handle)| send(&mut cell, client, acquire(*handle, Exclusive))).collect();
        (0..5).all(|turn| {
            let right =
                acquired(&mut cell, ops[turn]) && ops[turn + 1..].iter().all(|op| !cell.answers.contains_key(op));
            let (client, handle) = &mut rivals[turn];
            right && cell.call(client, release(*handle)).is_ok()
        })
    };
    assert!(in_order(None) && !in_order(Some(Mutant::QueueJumping)));
}

#[test]
fn a_grant_follows_right_behind_the_release() {
    let mut cell = Cell::new();
    let [mut a, mut b] = rivals(&mut cell);
    assert!(cell.call(&mut a.0, acquire(a.1, Exclusive)).is_ok());
    let waiting = send(&mut cell, &mut b.0, acquire(b.1, Exclusive));
    cell.instant = false;
    let released = send(&mut cell, &mut a.0, release(a.1));
    assert_eq!(cell.log.len(), 2, "both are in the log before either is applied");
    cell.apply_one();
    assert!(cell.take(released).is_some() && !acquired(&mut cell, waiting));
    cell.apply_one();
    assert!(acquired(&mut cell, waiting));
    assert_eq!(holders(&cell.state), [b.0.session]);
}

#[test]
fn shared_holders_share_and_nobody_overtakes_an_exclusive_waiter() {
    let mut cell = Cell::new();
    let [mut a, mut b, mut c, mut d] = rivals(&mut cell);
    assert!(cell.call(&mut a.0, acquire(a.1, Shared)).is_ok());
    assert!(cell.call(&mut b.0, acquire(b.1, Shared)).is_ok());
    let exclusive = send(&mut cell, &mut c.0, acquire(c.1, Exclusive));
    let shared = send(&mut cell, &mut d.0, acquire(d.1, Shared));
    assert_eq!(cell.code(&mut d.0, try_acquire(d.1, Shared)), "cell.lock_held");
    assert!(cell.call(&mut a.0, release(a.1)).is_ok());
    assert!(!acquired(&mut cell, exclusive) && !acquired(&mut cell, shared));
    assert!(cell.call(&mut b.0, release(b.1)).is_ok());
    assert!(acquired(&mut cell, exclusive) && !acquired(&mut cell, shared));
    assert!(cell.call(&mut c.0, release(c.1)).is_ok());
    assert!(acquired(&mut cell, shared));
}

#[test]
fn a_shared_request_goes_on_when_the_exclusive_one_before_it_leaves() {
    let mut cell = Cell::new();
    let [mut a, mut b, mut c] = rivals(&mut cell);
    assert!(cell.call(&mut a.0, acquire(a.1, Shared)).is_ok());
    let exclusive = send(&mut cell, &mut b.0, acquire(b.1, Exclusive));
    let number = b.0.number;
    let shared = send(&mut cell, &mut c.0, acquire(c.1, Shared));
    let cancel = Message::CancelAcquire(v1::CancelAcquire { handle: b.1, number });
    assert!(matches!(cell.call(&mut b.0, cancel), Ok(Message::Done(_))));
    assert_eq!(cell.take(exclusive).unwrap().unwrap_err().code, "cell.cancelled");
    assert!(acquired(&mut cell, shared));
    // A late copy of the cancelled acquire does not wait again.
    let late = cell.ask(b.0.inside(number, acquire(b.1, Exclusive)));
    assert_eq!(late.unwrap_err().code, "cell.answered_already");
}

#[test]
fn what_locks_refuse() {
    let mut cell = Cell::new();
    let [mut a, mut b] = rivals(&mut cell);
    assert_eq!(cell.code(&mut a.0, release(a.1)), "cell.not_held");
    assert!(cell.call(&mut a.0, acquire(a.1, Exclusive)).is_ok());
    assert_eq!(cell.code(&mut a.0, acquire(a.1, Exclusive)), "cell.already_held");
    assert_eq!(cell.code(&mut b.0, try_acquire(b.1, Shared)), "cell.lock_held");
    let reader = cell.open(&mut b.0, v1::OpenNode { lock: false, ..all("/l", None) }).handle;
    assert_eq!(cell.code(&mut b.0, acquire(reader, Shared)), "cell.denied");
    assert_eq!(cell.code(&mut b.0, acquire(999, Shared)), "cell.bad_handle");
    assert_eq!(cell.code(&mut b.0, acquire(b.1, v1::LockMode::Unspecified)), "cell.bad_call");
    assert_eq!(cell.code(&mut b.0, Message::GetSequencer(v1::GetSequencer { handle: b.1 })), "cell.not_held");
}

#[test]
fn a_waiter_is_told_to_ask_again_and_keeps_its_place() {
    let mut cell = Cell::new();
    let mut rivals: [_; 3] = rivals(&mut cell);
    assert!(cell.call(&mut rivals[0].0, acquire(1, Exclusive)).is_ok());
    let first = send(&mut cell, &mut rivals[1].0, acquire(1, Exclusive));
    let second = send(&mut cell, &mut rivals[2].0, acquire(1, Exclusive));
    for _ in 0..5 {
        cell.pass(millis(5_020));
        keep_all(&mut cell, &mut rivals);
    }
    let before = |cell: &mut Cell, op| match cell.take(op) {
        Some(Ok(Message::Waiting(waiting))) => waiting.before,
        other => panic!("{other:?}"),
    };
    assert_eq!((before(&mut cell, first), before(&mut cell, second)), (0, 1));
    // The second asks again first: it does not overtake.
    let again = |client: &Client| client.inside(client.number, acquire(1, Exclusive));
    let second = cell.send(again(&rivals[2].0));
    assert!(cell.call(&mut rivals[0].0, release(1)).is_ok());
    assert_eq!(holders(&cell.state), [rivals[1].0.session]);
    let first = cell.send(again(&rivals[1].0));
    assert!(acquired(&mut cell, first), "the grant is found in the window");
    assert!(!acquired(&mut cell, second));
    let twice = cell.send(again(&rivals[2].0));
    assert_eq!(cell.take(second).unwrap().unwrap_err().code, "cell.busy", "the later copy takes the answer");
    assert!(cell.call(&mut rivals[1].0, release(1)).is_ok());
    assert!(acquired(&mut cell, twice));
}

#[test]
fn a_cancel_releases_what_was_granted_meanwhile_and_nothing_else() {
    let mut cell = Cell::new();
    let [mut a, mut b] = rivals(&mut cell);
    assert!(cell.call(&mut a.0, acquire(a.1, Exclusive)).is_ok());
    let granted = a.0.number;
    assert_eq!(cell.code(&mut a.0, acquire(a.1, Exclusive)), "cell.already_held");
    let refused = a.0.number;
    let cancel = |number| Message::CancelAcquire(v1::CancelAcquire { handle: 1, number });
    assert!(cell.call(&mut a.0, cancel(refused)).is_ok());
    assert_eq!(holders(&cell.state), [a.0.session], "that acquire had got nothing");
    let waiting = send(&mut cell, &mut b.0, acquire(b.1, Exclusive));
    assert!(cell.call(&mut a.0, cancel(granted)).is_ok());
    assert!(acquired(&mut cell, waiting));
    // A grant in the log is followed by its release.
    let number = b.0.number + 2;
    assert!(cell.call(&mut b.0, release(b.1)).is_ok());
    cell.instant = false;
    let op = send(&mut cell, &mut b.0, acquire(b.1, Exclusive));
    let done = send(&mut cell, &mut b.0, cancel(number));
    while cell.apply_one() {}
    assert!(cell.take(op).is_some() && matches!(cell.take(done), Some(Ok(_))));
    assert!(holders(&cell.state).is_empty());
}

#[test]
fn a_lost_lock_is_held_back_and_a_lost_shared_one_from_exclusive_requests_only() {
    let mut cell = Cell::new();
    for mode in [Exclusive, Shared] {
        let (mut a, mut others): (_, [_; 2]) = (cell.client("a"), rivals(&mut cell));
        let delay = v1::OpenNode { lock_delay_ms: Some(20_000), ..all("/l", None) };
        let handle = cell.open(&mut a, delay).handle;
        assert!(cell.call(&mut a, acquire(handle, mode)).is_ok());
        let op = send(&mut cell, &mut others[0].0, acquire(1, Exclusive));
        cell.pass(secs(6));
        keep_all(&mut cell, &mut others);
        cell.pass(millis(6_100));
        keep_all(&mut cell, &mut others);
        assert!(holders(&cell.state).is_empty() && !acquired(&mut cell, op));
        let (client, _) = &mut others[1];
        if mode == Shared {
            // Nobody overtakes the exclusive waiter, the delay does not stand in the way.
            let cancel = v1::CancelAcquire { handle: 1, number: others[0].0.number };
            assert!(cell.call(&mut others[0].0, Message::CancelAcquire(cancel)).is_ok());
            let (client, _) = &mut others[1];
            assert!(cell.call(client, try_acquire(1, Shared)).is_ok());
            assert!(cell.call(client, release(1)).is_ok());
            cell.take(op);
        } else {
            assert_eq!(cell.code(client, try_acquire(1, Shared)), "cell.lock_held");
        }
        let op = if mode == Shared { send(&mut cell, &mut others[0].0, acquire(1, Exclusive)) } else { op };
        for _ in 0..2 {
            cell.pass(secs(7));
            keep_all(&mut cell, &mut others);
        }
        assert!(holders(&cell.state).is_empty(), "20 s and a tenth are not over");
        cell.pass(millis(8_100));
        assert_eq!(holders(&cell.state), [others[0].0.session]);
        for (client, _) in &others {
            assert!(cell.ask(client.inside(0, Message::CloseSession(v1::CloseSession {}))).is_ok());
        }
        cell.take(op);
    }
}

#[test]
fn holders_watchers_and_waiters_hear_what_happens() {
    let mut cell = Cell::new();
    let [mut a, mut b, mut watcher] = rivals(&mut cell);
    cell.hold(&mut a.0);
    cell.hold(&mut watcher.0);
    assert!(cell.call(&mut a.0, acquire(a.1, Exclusive)).is_ok());
    assert_eq!(events(&mut cell, &mut watcher.0), [(watcher.1, Kind::LockAcquired)]);
    assert_eq!(events(&mut cell, &mut a.0), [(a.1, Kind::LockAcquired)]);
    cell.hold(&mut a.0);
    let op = send(&mut cell, &mut b.0, acquire(b.1, Exclusive));
    assert_eq!(events(&mut cell, &mut a.0), [(a.1, Kind::ConflictingRequest)]);
    cell.hold(&mut a.0);
    // The node goes, and the lock with it.
    assert!(cell.call(&mut watcher.0, delete(at_path("/l"))).is_ok());
    assert_eq!(cell.take(op).unwrap().unwrap_err().code, "cell.node_gone");
    assert_eq!(events(&mut cell, &mut a.0), [(a.1, Kind::LockLost), (a.1, Kind::HandleInvalid)]);
}

#[test]
fn a_new_holder_hears_at_once_that_others_wait() {
    let mut cell = Cell::new();
    let [mut a, mut b, mut c] = rivals(&mut cell);
    assert!(cell.call(&mut a.0, acquire(a.1, Exclusive)).is_ok());
    send(&mut cell, &mut b.0, acquire(b.1, Exclusive));
    send(&mut cell, &mut c.0, acquire(c.1, Exclusive));
    cell.hold(&mut b.0);
    assert!(cell.call(&mut a.0, release(a.1)).is_ok());
    assert_eq!(events(&mut cell, &mut b.0), [(b.1, Kind::LockAcquired), (b.1, Kind::ConflictingRequest)]);
}

#[test]
fn a_sequencer_is_valid_while_the_lock_is_held_as_it_says() {
    let check = |cell: &mut Cell, token: &bytes::Bytes| {
        let check = Message::CheckSequencer(v1::CheckSequencer { token: token.clone() });
        match cell.ask(Client::new("anybody").outside(check)) {
            Ok(Message::SequencerChecked(checked)) => checked.valid,
            other => panic!("{other:?}"),
        }
    };
    let mut cell = Cell::new();
    let [mut a, mut b] = rivals(&mut cell);
    let Ok(Message::Acquired(got)) = cell.call(&mut a.0, acquire(a.1, Exclusive)) else { panic!() };
    assert!(check(&mut cell, &got.sequencer));
    let get = Message::GetSequencer(v1::GetSequencer { handle: a.1 });
    assert_eq!(cell.call(&mut a.0, get).unwrap(), Message::Sequencer(v1::Sequencer { token: got.sequencer.clone() }));
    cell.file(&mut b.0, "/data");
    let fenced = |token: &bytes::Bytes| {
        Message::SetContents(v1::SetContents {
            target: at_path("/data"),
            sequencers: vec![token.clone()],
            ..Default::default()
        })
    };
    assert!(cell.call(&mut b.0, fenced(&got.sequencer)).is_ok());
    assert!(cell.call(&mut a.0, release(a.1)).is_ok());
    assert!(!check(&mut cell, &got.sequencer));
    assert_eq!(cell.code(&mut b.0, fenced(&got.sequencer)), "cell.stale_sequencer");
    assert_eq!(cell.code(&mut b.0, fenced(&"forged".into())), "cell.bad_sequencer");
}

#[test]
fn closing_a_handle_releases_its_lock_and_leaves_its_queues() {
    let mut cell = Cell::new();
    let [mut a, mut b, mut c] = rivals(&mut cell);
    assert!(cell.call(&mut a.0, acquire(a.1, Exclusive)).is_ok());
    let gone = send(&mut cell, &mut b.0, acquire(b.1, Exclusive));
    let next = send(&mut cell, &mut c.0, acquire(c.1, Exclusive));
    assert!(cell.call(&mut b.0, close(b.1)).is_ok());
    assert!(matches!(cell.take(gone), Some(Err(_))));
    assert!(cell.call(&mut a.0, close(a.1)).is_ok());
    assert!(acquired(&mut cell, next));
    assert_eq!(cell.code(&mut a.0, acquire(a.1, Exclusive)), "cell.bad_handle");
}

#[test]
fn a_close_behind_a_grant_that_is_not_proposed_takes_it_back() {
    let mut cell = Cell::new();
    let [mut a, mut b] = rivals(&mut cell);
    // A copy of the node that is never acknowledged keeps the grant from being proposed.
    assert!(cell.read(&b.0, "/l").stamp.is_some());
    cell.renew(&b.0).unwrap();
    let op = send(&mut cell, &mut a.0, acquire(a.1, Exclusive));
    assert!(!acquired(&mut cell, op));
    let closed = send(&mut cell, &mut a.0, close(a.1));
    assert!(matches!(cell.take(op), Some(Err(_))) && matches!(cell.take(closed), Some(Ok(_))));
    cell.pass(CACHE_LEASE);
    assert!(holders(&cell.state).is_empty());
    assert!(cell.call(&mut b.0, acquire(b.1, Exclusive)).is_ok());
}

#[test]
fn ten_thousand_wait_for_one_lock() {
    let mut cell = Cell::new();
    let mut crowd: Vec<(Client, OpId)> = Vec::new();
    for n in 0..10_000 {
        let mut client = cell.client_with(&format!("c{n}"), 60_000);
        let handle = cell.open(&mut client, v1::OpenNode { events: 0, ..all("/l", Some(v1::CreateNode::default())) });
        let op = send(&mut cell, &mut client, acquire(handle.handle, Exclusive));
        crowd.push((client, op));
    }
    for (client, op) in &mut crowd {
        assert!(acquired(&mut cell, *op));
        assert!(cell.call(client, release(1)).is_ok());
    }
}

#[test]
fn a_late_copy_of_a_refused_try_is_refused_again() {
    let mut cell = Cell::new();
    let [mut a, mut b] = rivals(&mut cell);
    assert!(cell.call(&mut a.0, acquire(a.1, Exclusive)).is_ok());
    let tried = b.0.numbered(try_acquire(b.1, Exclusive));
    assert_eq!(cell.ask(tried.clone()).unwrap_err().code, "cell.lock_held");
    // Refused at apply: somebody was granted the lock in between.
    assert!(cell.call(&mut a.0, release(a.1)).is_ok());
    cell.instant = false;
    let raced = b.0.numbered(try_acquire(b.1, Exclusive));
    let op = cell.send(raced.clone());
    let take = cell.log.pop_front().unwrap();
    let mut other = v1::CellCommand::decode(take.1.clone()).unwrap();
    other.actor = Some(v1::CellActor { session: a.0.session, number: 900, answered_below: 0 });
    if let Some(v1::cell_command::Command::TakeLock(take)) = &mut other.command {
        take.handle = a.1;
    }
    cell.apply(&other.encode_to_vec().into());
    cell.log.push_back(take);
    cell.apply_one();
    assert_eq!(cell.take(op).unwrap().unwrap_err().code, "cell.lock_held");
    cell.instant = true;
    assert!(cell.call(&mut a.0, release(a.1)).is_ok());
    for late in [tried.clone(), raced] {
        assert_eq!(cell.ask(late).unwrap_err().code, "cell.lock_held", "its client was told so");
        assert_eq!(holders(&cell.state), [0; 0]);
    }
    b.0.answered_below = b.0.number + 1;
    assert!(cell.call(&mut b.0, try_acquire(b.1, Exclusive)).is_ok());
    assert_eq!(cell.ask(tried).unwrap_err().code, "cell.answered_already");
}

#[test]
fn what_one_session_can_have_remembered_is_bounded() {
    let mut cell = Cell::new();
    let [mut a, mut b] = rivals(&mut cell);
    assert!(cell.call(&mut a.0, acquire(a.1, Exclusive)).is_ok());
    let cancel = |number| Message::CancelAcquire(v1::CancelAcquire { handle: 1, number });
    assert_eq!(cell.code(&mut b.0, cancel(5_000)), "cell.too_many_outstanding");
    assert_eq!(cell.ask(b.0.inside(1_024, acquire(b.1, Exclusive))).unwrap_err().code, "cell.too_many_outstanding");
    // Acquires whose answers nobody waits for leave the queue.
    for _ in 0..3_000 {
        b.0.answered_below = b.0.number + 1;
        send(&mut cell, &mut b.0, acquire(b.1, Exclusive));
        let before = b.0.number - 1;
        cell.call(&mut b.0, cancel(before)).unwrap();
    }
    let Ok(Message::LockList(locks)) =
        cell.ask(Client::operator().outside(Message::ListLocks(v1::ListLocks::default())))
    else {
        panic!()
    };
    assert!(locks.locks[0].waiters <= 1, "{} wait", locks.locks[0].waiters);
    assert!(cell.call(&mut a.0, release(a.1)).is_ok());
}

#[test]
fn a_wait_goes_on_under_a_later_number_and_keeps_its_place() {
    let mut cell = Cell::new();
    let [mut a, mut b] = rivals(&mut cell);
    let mut c = cell.client("c");
    let of_c = cell.open(&mut c, all("/l", None)).handle;
    assert!(cell.call(&mut a.0, acquire(a.1, Exclusive)).is_ok());
    let waits = send(&mut cell, &mut b.0, acquire(b.1, Exclusive));
    let behind = send(&mut cell, &mut c, acquire(of_c, Exclusive));
    let first = b.0.number;
    b.0.number += 700;
    let acquiring = v1::AcquireLock { handle: b.1, mode: Exclusive as i32, try_only: false, waits_as: first };
    let renumbered = b.0.numbered(Message::Acquire(acquiring));
    assert_eq!(cell.ask(renumbered.clone()), Ok(Message::Waiting(v1::LockWaiting { before: 0 })));
    assert!(cell.take(waits).unwrap().is_err(), "nobody waits under the first number any more");
    // Copies that are late change nothing.
    assert!(cell.ask(renumbered.clone()).is_ok());
    assert_eq!(cell.ask(b.0.inside(first, acquire(b.1, Exclusive))).unwrap_err().code, "cell.answered_already");
    // The window moves on, and the wait asks again under its number.
    b.0.answered_below = b.0.number;
    let number = b.0.number;
    let asks = cell.send(b.0.inside(number, acquire(b.1, Exclusive)));
    assert!(cell.call(&mut a.0, release(a.1)).is_ok());
    assert!(matches!(cell.take(asks), Some(Ok(Message::Acquired(_)))));
    assert_eq!(cell.take(behind), None);
    // Granted meanwhile, under either number: that is the answer.
    assert!(matches!(cell.ask(renumbered), Ok(Message::Acquired(_))));
    let granted = c.number;
    assert!(cell.call(&mut b.0, release(b.1)).is_ok());
    assert!(matches!(cell.take(behind), Some(Ok(Message::Acquired(_)))));
    let late = v1::AcquireLock { handle: of_c, mode: Exclusive as i32, try_only: false, waits_as: granted };
    assert!(matches!(cell.call(&mut c, Message::Acquire(late)), Ok(Message::Acquired(_))));
    assert_eq!(cell.code(&mut c, Message::Acquire(v1::AcquireLock { waits_as: u64::MAX, ..late })), "cell.bad_call");
}

#[test]
fn a_repeated_acquire_is_granted_only_while_it_holds_the_lock() {
    let mut cell = Cell::new();
    let [mut a, mut b] = rivals(&mut cell);
    let taken = a.0.numbered(acquire(a.1, Exclusive));
    for _ in 0..2 {
        assert!(matches!(cell.ask(taken.clone()), Ok(Message::Acquired(_))));
    }
    assert!(cell.call(&mut a.0, release(a.1)).is_ok());
    assert_eq!(cell.ask(taken.clone()).unwrap_err().code, "cell.not_held");
    assert!(cell.call(&mut a.0, acquire(a.1, Exclusive)).is_ok());
    assert_eq!(cell.ask(taken.clone()).unwrap_err().code, "cell.not_held", "by another acquire");
    assert!(cell.call(&mut b.0, delete(at_path("/l"))).is_ok());
    assert_eq!(cell.ask(taken).unwrap_err().code, "cell.node_gone");
}

#[test]
fn a_grant_in_the_log_behind_the_close_of_its_handle_is_none() {
    for closed in [false, true] {
        let mut cell = Cell::new();
        let [mut a] = rivals(&mut cell);
        if closed {
            assert!(cell.call(&mut a.0, close(a.1)).is_ok());
        }
        let instance = cell.state.instance(&Place::parse("app", "/l").unwrap()).unwrap();
        let (app, path, mode) = ("app".into(), "/l".into(), Exclusive as i32);
        let take = v1::TakeLock { app, path, instance, handle: a.1, mode, lock_delay_ms: 0 };
        let actor = Some(v1::CellActor { session: a.0.session, number: a.0.number + 1, answered_below: 0 });
        let command = Some(v1::cell_command::Command::TakeLock(take));
        let command = v1::CellCommand { actor, epoch: a.0.epoch, command };
        cell.apply(&command.encode_to_vec().into());
        assert_eq!(holders(&cell.state).is_empty(), closed);
    }
}

#[test]
fn whoever_waits_for_locks_and_whoever_frees_something_takes_no_room_from_calls() {
    let mut cell = Cell::new();
    // As many as one queue takes, and more in another.
    let mut clients: Vec<Client> = (0..70).map(|n| cell.client(&format!("waiter {n}"))).collect();
    let mut holder = cell.client("holder");
    let mut held = Vec::new();
    for path in ["/l", "/m"] {
        held.push(cell.file(&mut holder, path));
        assert!(cell.call(&mut holder, acquire(held[held.len() - 1], Exclusive)).is_ok());
    }
    for (n, client) in clients.iter_mut().enumerate() {
        let handle = cell.file(client, ["/l", "/m"][n % 2]);
        for _ in 0..1_000 {
            send(&mut cell, client, acquire(handle, Exclusive));
        }
    }
    assert!(cell.answers.is_empty(), "all of them wait");
    cell.read(&holder, "/f");
    // Whoever asks has to wait for a barrier, and there is room for no more.
    cell.instant = false;
    cell.hear(tidings_base::agreed::Heard::LeaseUntil(tidings_base::Mono(0)));
    for _ in 0..65_536 {
        cell.send(holder.inside(0, read("/f")));
    }
    assert!(cell.answers.is_empty());
    let beyond = cell.send(holder.inside(0, read("/f")));
    assert_eq!(cell.take(beyond).unwrap().unwrap_err().code, "cell.busy");
    let freed = send(&mut cell, &mut holder, release(held[0]));
    let closed = send(&mut cell, &mut holder, close(held[1]));
    assert_eq!((cell.take(freed), cell.take(closed)), (None, None), "both are on their way");
}
