//! What operators ask.

use super::harness::*;
use crate::SessionId;
use crate::master::{Master, Options};
use crate::namespace::{Namespace, backup};
use crate::path::Place;
use tidings_wire::v1;
use tidings_wire::v1::LockMode::Exclusive;
use tidings_wire::v1::cell_message::Message;

#[test]
fn operators_see_sessions_and_locks_and_others_do_not() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    let handle = cell.file(&mut a, "/l");
    cell.open(&mut a, all("/e", ephemeral()));
    assert!(cell.call(&mut a, acquire(handle, Exclusive)).is_ok());
    let handle = cell.file(&mut b, "/l");
    let request = b.numbered(acquire(handle, Exclusive));
    cell.send(request);
    let operator = Client::operator();
    let Ok(Message::SessionList(list)) = cell.ask(operator.outside(Message::ListSessions(v1::ListSessions::default())))
    else {
        panic!()
    };
    let first = &list.sessions[0];
    assert_eq!((list.sessions.len(), first.session, first.handles, first.locks), (2, a.session, 2, 1));
    assert_eq!((first.ephemerals, first.watches, first.resumed), (1, 2, true));
    assert!((1..=12_000).contains(&first.remaining_ms) && first.cached > 0);
    let Ok(Message::LockList(locks)) = cell.ask(operator.outside(Message::ListLocks(v1::ListLocks::default()))) else {
        panic!()
    };
    let lock = &locks.locks[0];
    assert_eq!((lock.path.as_str(), &lock.holders[..], lock.waiters), ("/l", &[a.session][..], 1));
    for message in [
        Message::ListSessions(v1::ListSessions::default()),
        Message::ListLocks(v1::ListLocks::default()),
        Message::EndSession(v1::EndSession { session: a.session }),
        Message::SetQuota(v1::SetQuota::default()),
        Message::Restore(v1::RestoreCell::default()),
    ] {
        assert_eq!(cell.ask(b.outside(message)).unwrap_err().code, "cell.operators_only");
    }
}

#[test]
fn locks_are_listed_in_order_whatever_the_pages() {
    const LOCKS: usize = 1_203;
    let mut cell = Cell::new();
    let mut clients = ["a", "b", "c", "d"].map(|name| cell.client(name));
    for number in 0..LOCKS {
        let a = &mut clients[number % 4];
        // In no order of theirs.
        let handle = cell.file(a, &format!("/{:04}", number * 701 % LOCKS));
        assert!(cell.call(a, acquire(handle, Exclusive)).is_ok());
    }
    let mut list = v1::ListLocks::default();
    let (mut pages, mut paths) = (0, Vec::new());
    loop {
        let Ok(Message::LockList(page)) = cell.ask(Client::operator().outside(Message::ListLocks(list.clone()))) else {
            panic!()
        };
        pages += 1;
        paths.extend(page.locks.iter().map(|lock| lock.path.clone()));
        let last = page.locks.last().unwrap();
        list = v1::ListLocks { after_app: last.app.clone(), after_path: last.path.clone() };
        if !page.more {
            break;
        }
    }
    assert_eq!((pages, paths), (3, (0..LOCKS).map(|number| format!("/{number:04}")).collect()));
    let between = v1::ListLocks { after_app: "app".into(), after_path: "/1201x".into() };
    let Ok(Message::LockList(rest)) = cell.ask(Client::operator().outside(Message::ListLocks(between))) else {
        panic!()
    };
    assert_eq!(rest.locks.iter().map(|lock| lock.path.as_str()).collect::<Vec<_>>(), ["/1202"]);
}

#[test]
fn an_operator_ends_a_session_as_if_it_were_lost() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    let handle = cell.file(&mut a, "/l");
    assert!(cell.call(&mut a, acquire(handle, Exclusive)).is_ok());
    cell.hold(&mut a);
    let end = |session| Client::operator().outside(Message::EndSession(v1::EndSession { session }));
    let op = cell.send(end(a.session));
    let held = a.held.unwrap();
    assert_eq!(cell.take(held).unwrap().unwrap_err().code, "cell.expired", "it hears of it at once");
    assert_eq!(cell.ask(a.inside(0, read("/l"))).unwrap_err().code, "cell.expired");
    // Whether it hears of it or not: its lock is its own until its lease is over, and held back from then on.
    cell.pass(millis(11_900));
    assert!(matches!(cell.take(op), Some(Ok(Message::Done(_)))), "within the time of a call");
    let place = Place::parse("app", "/l").unwrap();
    assert!(cell.state.lock(&place).unwrap().delay.is_none() && cell.state.session(SessionId(a.session)).is_some());
    let again = cell.send(end(a.session));
    cell.pass(millis(200));
    assert!(matches!(cell.take(again), Some(Ok(Message::Done(_)))));
    assert_eq!(cell.state.session(SessionId(a.session)), None);
    assert!(cell.state.lock(&place).unwrap().delay.is_some());
    let mut b = cell.client("b");
    let handle = cell.file(&mut b, "/l");
    assert_eq!(cell.code(&mut b, try_acquire(handle, Exclusive)), "cell.lock_held");
    assert_eq!(cell.ask(end(a.session)).unwrap_err().code, "cell.no_session");
}

#[test]
fn a_session_that_closes_itself_meanwhile_ends_at_once() {
    let mut cell = Cell::new();
    let a = cell.client("a");
    let op = cell.send(Client::operator().outside(Message::EndSession(v1::EndSession { session: a.session })));
    assert_eq!(cell.take(op), None);
    let stranger = Client { secret: 1, ..a.clone() };
    let close = || Message::CloseSession(v1::CloseSession {});
    assert_eq!(cell.ask(stranger.inside(0, close())).unwrap_err().code, "cell.not_your_session");
    assert!(matches!(cell.ask(a.inside(0, close())), Ok(Message::Done(_))));
    assert!(matches!(cell.take(op), Some(Ok(Message::Done(_)))));
    assert_eq!(cell.state.session(SessionId(a.session)), None);
}

#[test]
fn a_link_is_forgotten_when_nobody_can_believe_in_its_sessions() {
    let mut cell = Cell::new();
    let a = cell.client("a");
    cell.renew(&a).unwrap();
    let restore = v1::RestoreCell { offset: 0, bytes: backup_of_nothing(), total: 0, replace: true };
    let total = restore.bytes.len() as u64;
    let restore = Message::Restore(v1::RestoreCell { total, ..restore });
    cell.send(Client::operator().outside(restore));
    cell.pass(secs(2));
    assert_eq!(cell.state.session_count(), 0);
    assert_eq!(cell.renew(&a).unwrap().owing, [a.session], "its client may believe it alive");
    assert!(cell.master.left_behind().contains("links"));
    cell.pass(secs(11));
    assert_eq!(cell.master.left_behind(), "");
}

fn backup_of_nothing() -> bytes::Bytes {
    backup::pieces(&Namespace::new()).flatten().collect::<Vec<u8>>().into()
}

#[test]
fn keys_rotate_and_what_older_ones_sealed_still_opens() {
    let mut cell = Cell::new();
    cell.master = Master::new(Options { rotate: secs(30), ..options(None) });
    cell.lead();
    let mut a = cell.client("a");
    let old = cell.open(&mut a, all("/f", Some(v1::CreateNode::default())));
    let first = cell.state.keys().newest();
    for six in 0..6 {
        assert_eq!(cell.state.keys().newest(), first + six / 3);
        cell.hold(&mut a);
        cell.pass(secs(10));
        cell.kept(&mut a);
    }
    assert_eq!(cell.state.keys().newest(), first + 2);
    let new = cell.open(&mut a, all("/f", None));
    assert_ne!(cell.state.keys().open_handle(&new.token).unwrap(), cell.state.keys().open_handle(&old.token).unwrap());
    cell.fail_over();
    assert!(cell.resume(&mut a, vec![old.token, new.token]).unwrap().gone.is_empty());
    assert!(cell.call(&mut a, write(at_handle(old.handle), "x")).is_ok());
    assert!(cell.call(&mut a, write(at_handle(new.handle), "y")).is_ok());
}

#[test]
fn quotas_keys_and_what_needs_a_session() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    let operator = Client::operator();
    let set = v1::SetQuota { path: "/".into(), max_nodes: 3, max_bytes: 0 };
    assert!(matches!(cell.ask(operator.outside(Message::SetQuota(set))), Ok(Message::Done(_))));
    let get = Message::GetQuota(v1::GetQuota { path: "/".into() });
    assert!(matches!(cell.ask(a.outside(get)), Ok(Message::Quota(quota)) if quota.max_nodes == 3));
    cell.file(&mut a, "/one");
    let keys = cell.ask(a.outside(Message::Keys(v1::CellKeys {})));
    assert!(matches!(keys, Ok(Message::KeysReply(reply)) if reply.keys.len() == 1));
    assert!(matches!(cell.ask(a.outside(read("/one"))), Ok(Message::NodeRead(read)) if read.stamp.is_none()));
    assert_eq!(cell.ask(a.outside(write(at_path("/one"), "x"))).unwrap_err().code, "cell.bad_call");
    assert_eq!(cell.ask(a.outside(Message::Backup(v1::BackupCell {}))).unwrap_err().code, "cell.bad_call");
    assert_eq!(cell.ask(v1::CellMessage::default()).unwrap_err().code, "cell.bad_call");
}

#[test]
fn a_restore_ends_every_session_and_waits_for_every_copy() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    cell.file(&mut a, "/f");
    assert!(cell.read(&b, "/f").stamp.is_some());
    cell.renew(&b).unwrap();
    cell.hold(&mut b);
    let restore = v1::RestoreCell { offset: 0, bytes: "no backup".into(), total: 9, replace: true };
    let op = cell.send(Client::operator().outside(Message::Restore(restore)));
    assert_eq!(cell.take(op), None);
    assert!(cell.kept(&mut b).unwrap().batch.unwrap().flush);
    cell.hold(&mut b);
    assert_eq!(cell.take(op).unwrap().unwrap_err().code, "cell.damaged_backup", "nothing was changed");
    assert!(cell.read(&b, "/f").stamp.is_some());
    assert_eq!(cell.state.session_count(), 2);
}

#[test]
fn pieces_of_an_interrupted_restore_are_dropped() {
    let mut cell = Cell::new();
    let piece = |cell: &mut Cell, offset| {
        let piece = v1::RestoreCell { offset, bytes: "piece".into(), total: 0, replace: true };
        assert!(cell.ask(Client::operator().outside(Message::Restore(piece))).is_ok());
    };
    piece(&mut cell, 0);
    cell.pass(secs(59));
    piece(&mut cell, 5);
    cell.pass(secs(59));
    assert!(cell.state.has_staged());
    cell.pass(secs(1));
    assert!(!cell.state.has_staged());
    piece(&mut cell, 0);
    assert!(cell.state.has_staged(), "another one begins anew");
}
