//! Sessions and their leases (R2, R3, R4, R6, R7).

use super::harness::*;
use crate::SessionId;
use crate::master::Input;
use crate::master::Measure;
use crate::mutant::Mutant;
use std::time::Duration;
use tidings_base::LogIndex;
use tidings_base::agreed::{Heard, Refusal};
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;

fn lives(cell: &Cell, client: &Client) -> bool {
    cell.state.session(SessionId(client.session)).is_some()
}

#[test]
fn a_keep_alive_is_held_until_a_third_of_the_lease_is_left() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    cell.file(&mut a, "/f");
    for _ in 0..10 {
        assert_eq!(cell.keep_alive(&mut a), None);
        let kept = loop {
            cell.pass(millis(10));
            if let Some(kept) = cell.kept(&mut a) {
                break kept;
            }
        };
        assert_eq!((kept.lease_us, kept.batch), (12_000_000, None));
        assert!((7_900_000..8_100_000).contains(&kept.held_us), "{}", kept.held_us);
    }
    cell.pass(millis(11_900));
    assert!(lives(&cell, &a));
    cell.pass(millis(200));
    assert!(!lives(&cell, &a), "its lease ran out");
    let keep = Message::KeepAlive(v1::KeepAlive { link: a.link, ..Default::default() });
    assert_eq!(cell.ask(a.inside(0, keep)).unwrap_err().code, "cell.no_session");
}

#[test]
fn a_keep_alive_is_answered_before_its_client_gives_up() {
    let mut cell = Cell::new();
    let a = cell.client("a");
    let keep = a.inside(0, Message::KeepAlive(v1::KeepAlive { link: a.link, ..Default::default() }));
    let deadline = cell.now.mono + secs(2);
    let op = cell.send_until(keep, Some(deadline));
    cell.pass(millis(1_900));
    assert!(matches!(cell.take(op), Some(Ok(Message::KeptAlive(kept))) if kept.lease_us == 12_000_000));
}

#[test]
fn a_session_has_the_lease_it_asked_for_up_to_a_minute() {
    let mut cell = Cell::new();
    for (asked, given) in [(2_000, 2), (30_000, 30), (500_000, 60)] {
        let mut client = Client::new("x");
        let create = v1::CreateSession { lease_ms: asked, secret: 1, link: 1, keeper: 0 };
        let Ok(Message::SessionCreated(created)) = cell.ask(client.outside(Message::CreateSession(create))) else {
            panic!()
        };
        (client.session, client.secret) = (created.session, 1);
        assert_eq!(created.lease_us, given * 1_000_000);
    }
    assert_eq!(cell.state.ceiling(), secs(60));
}

#[test]
fn no_lease_is_longer_than_the_ceiling() {
    let longest = |mutant| {
        let mut cell = Cell::with(mutant);
        let a = cell.client("a");
        let keep = a.inside(0, Message::KeepAlive(v1::KeepAlive { link: a.link, ..Default::default() }));
        let deadline = cell.now.mono;
        let op = cell.send_until(keep, Some(deadline));
        let Some(Ok(Message::KeptAlive(kept))) = cell.take(op) else { panic!() };
        Duration::from_micros(kept.lease_us) <= cell.state.ceiling()
    };
    assert!(longest(None) && !longest(Some(Mutant::CeilingIgnored)));
}

#[test]
fn many_keep_alives_stretch_the_leases_and_the_ceiling_is_agreed_first() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    cell.file(&mut a, "/f");
    let keep = a.inside(0, Message::KeepAlive(v1::KeepAlive { link: a.link, ..Default::default() }));
    let lease = |cell: &mut Cell, count: u32| {
        let mut last = 0;
        for _ in 0..count {
            let deadline = cell.now.mono;
            let op = cell.send_until(keep.clone(), Some(deadline));
            let Some(Ok(Message::KeptAlive(kept))) = cell.take(op) else { panic!() };
            last = kept.lease_us / 1_000_000;
            assert!(Duration::from_secs(last) <= cell.state.ceiling());
        }
        cell.pass(secs(1));
        last
    };
    let busy: Vec<u64> = (0..8).map(|_| lease(&mut cell, 6_000)).collect();
    assert_eq!((busy[0], busy[7]), (12, 60), "{busy:?}");
    let calm: Vec<u64> = (0..8).map(|_| lease(&mut cell, 10)).collect();
    assert_eq!(calm[7], 12, "{calm:?}");
    // The ceiling stays until everything that was granted under it has run out.
    assert_eq!(cell.state.ceiling(), secs(60));
    for _ in 0..70 {
        lease(&mut cell, 1);
    }
    assert_eq!(cell.state.ceiling(), secs(12));
}

#[test]
fn once_its_end_is_proposed_a_session_is_never_extended() {
    let extended = |mutant| {
        let mut cell = Cell::with(mutant);
        let mut a = cell.client("a");
        cell.file(&mut a, "/f");
        cell.instant = false;
        cell.pass(secs(13));
        assert_eq!(cell.log.len(), 1, "its end is in the log and not applied");
        assert!(lives(&cell, &a));
        let keep = Message::KeepAlive(v1::KeepAlive { link: a.link, ..Default::default() });
        let answer = cell.ask(a.inside(0, keep));
        if mutant.is_none() {
            assert_eq!(cell.code(&mut a, write(at_path("/f"), "x")), "cell.expired");
            let resume =
                Message::ResumeSession(v1::ResumeSession { link: a.link, handles: Vec::new(), epoch: a.epoch });
            assert_eq!(cell.ask(a.inside(0, resume)).unwrap_err().code, "cell.expired");
        }
        while cell.apply_one() {}
        assert!(!lives(&cell, &a));
        answer.is_ok()
    };
    assert!(!extended(None) && extended(Some(Mutant::Resurrection)));
}

#[test]
fn without_the_leader_lease_answers_and_leases_wait_for_a_barrier() {
    let at_once = |mutant| {
        let mut cell = Cell::with(mutant);
        let mut a = cell.client("a");
        cell.file(&mut a, "/f");
        cell.instant = false;
        let lapsed = cell.now.mono;
        cell.hear(Heard::LeaseUntil(lapsed));
        let read = cell.send(a.inside(0, read("/f")));
        let many = Message::ReadMany(v1::ReadMany { paths: vec!["/f".into(), "/g".into()] });
        let many = cell.send(a.inside(0, many));
        let keep = a.inside(0, Message::KeepAlive(v1::KeepAlive { link: a.link, ..Default::default() }));
        let keep = cell.send_until(keep, Some(lapsed));
        let renew = cell.send(a.outside(Message::RenewCache(v1::RenewCache { link: a.link, clock_us: None })));
        let open = a.numbered(Message::Open(all("/f", None)));
        let open = cell.send(open);
        let ops = [read, many, keep, renew, open];
        if ops.iter().any(|op| cell.answers.contains_key(op)) {
            return true;
        }
        // One barrier for the first, one for all that came while it was under way.
        for _ in 0..2 {
            assert_eq!(cell.barriers.len(), 1);
            cell.now.mono = cell.now.mono + millis(300);
            let op = cell.barriers.pop_front().unwrap();
            cell.hear(Heard::Passed { op, index: LogIndex(1) });
        }
        // Leases are dated from when the barrier was asked.
        assert!(matches!(cell.take(keep), Some(Ok(Message::KeptAlive(kept))) if kept.lease_us == 11_700_000));
        assert!(matches!(cell.take(renew), Some(Ok(Message::CacheRenewed(got))) if got.lease_us == 1_500_000));
        assert!([read, many, open].into_iter().all(|op| matches!(cell.take(op), Some(Ok(_)))));
        false
    };
    assert!(!at_once(None) && at_once(Some(Mutant::ReadWithoutLease)));
}

#[test]
fn a_master_without_its_majority_ends_nobody() {
    let mut cell = Cell::new();
    let (a, b) = (cell.client("a"), cell.client("b"));
    let keep = cell.send(a.inside(0, Message::KeepAlive(v1::KeepAlive { link: a.link, ..Default::default() })));
    cell.instant = false;
    let lapsed = cell.now.mono;
    cell.hear(Heard::LeaseUntil(lapsed));
    cell.pass(secs(20));
    assert!(cell.log.is_empty(), "nobody's end is proposed by a master that may be deposed");
    // The majority is back: who waited here lives on, who was silent is ended now.
    cell.instant = true;
    let op = cell.barriers.pop_front().expect("the lease waits for a barrier");
    cell.hear(Heard::Passed { op, index: LogIndex(1) });
    let until = cell.now.mono + secs(600);
    cell.hear(Heard::LeaseUntil(until));
    cell.pass(secs(2));
    assert!(matches!(cell.take(keep), Some(Ok(Message::KeptAlive(kept))) if kept.lease_us > 0));
    assert!(lives(&cell, &a) && !lives(&cell, &b));
}

#[test]
fn a_session_without_handles_and_calls_ends_after_a_minute() {
    let mut cell = Cell::new();
    let (mut a, mut b, mut c) = (cell.client("a"), cell.client("b"), cell.client("c"));
    cell.open(&mut a, v1::OpenNode { path: "/".into(), read: true, ..Default::default() });
    cell.open(&mut b, v1::OpenNode { path: "/acl".into(), read: true, ..Default::default() });
    cell.open(&mut c, v1::OpenNode { path: "/".into(), read: true, events: 2, ..Default::default() });
    for _ in 0..9 {
        for client in [&mut a, &mut b, &mut c] {
            if client.held.is_none_or(|op| cell.take(op).is_some()) && lives(&cell, client) {
                client.held = None;
                cell.keep_alive(client);
            }
        }
        cell.pass(secs(8));
    }
    assert_eq!((lives(&cell, &a), lives(&cell, &b), lives(&cell, &c)), (false, true, true));
}

#[test]
fn a_session_belongs_to_its_principal_and_its_secret() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    let mut thief = Client { caller: Client::new("b").caller, ..a.clone() };
    assert_eq!(cell.code(&mut thief, write(at_path("/f"), "x")), "cell.not_your_session");
    let mut guess = Client { secret: 1, ..a.clone() };
    assert_eq!(cell.code(&mut guess, write(at_path("/f"), "x")), "cell.not_your_session");
    let mut unknown = Client { session: 99, ..a.clone() };
    assert_eq!(cell.code(&mut unknown, write(at_path("/f"), "x")), "cell.no_session");
    assert_eq!(cell.code(&mut a, write(at_path("/f"), "x")), "cell.no_node");
    let other = v1::KeepAlive { link: 12_345, ..Default::default() };
    assert_eq!(cell.ask(a.inside(0, Message::KeepAlive(other))).unwrap_err().code, "cell.bad_call");
}

#[test]
fn a_closed_session_frees_everything_at_once() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    let handle = cell.file(&mut a, "/f");
    cell.open(&mut a, all("/e", ephemeral()));
    assert!(cell.call(&mut a, acquire(handle, v1::LockMode::Exclusive)).is_ok());
    assert!(matches!(cell.ask(a.inside(0, Message::CloseSession(v1::CloseSession {}))), Ok(Message::Done(_))));
    assert!(!lives(&cell, &a));
    assert_eq!(cell.read(&b, "/e").stat, None);
    let handle = cell.file(&mut b, "/f");
    assert!(matches!(cell.call(&mut b, try_acquire(handle, v1::LockMode::Exclusive)), Ok(Message::Acquired(_))));
}

#[test]
fn a_stream_of_news_does_not_starve_the_lease() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    let handle = cell.file(&mut a, "/f");
    cell.open(&mut b, all("/f", None));
    for round in 0..300 {
        cell.renew(&b).unwrap();
        if b.held.is_none() {
            cell.keep_alive(&mut b);
        }
        a.answered_below = a.number;
        let request = a.numbered(write(at_handle(handle), &round.to_string()));
        let op = cell.send(request);
        while cell.take(op).is_none() {
            cell.kept(&mut b);
            if b.held.is_none() {
                cell.keep_alive(&mut b);
            }
        }
        cell.kept(&mut b);
        let keep = a.inside(0, Message::KeepAlive(v1::KeepAlive { link: a.link, ..Default::default() }));
        let deadline = cell.now.mono;
        cell.send_until(keep, Some(deadline));
        cell.pass(millis(100));
    }
    assert!(lives(&cell, &b));
}

#[test]
fn a_cancelled_keep_alive_is_not_answered() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    cell.keep_alive(&mut a);
    let op = a.held.unwrap();
    cell.input(Input::Cancel { op });
    cell.pass(secs(9));
    assert_eq!(cell.take(op), None);
    assert!(lives(&cell, &a));
}

#[test]
fn without_the_leader_lease_a_silent_session_ends_behind_a_barrier() {
    let mut cell = Cell::new();
    let a = cell.client("a");
    let lapsed = cell.now.mono;
    cell.hear(Heard::LeaseUntil(lapsed));
    cell.instant = false;
    cell.pass(secs(13));
    assert!(cell.log.is_empty() && cell.barriers.len() == 1);
    let op = cell.barriers.pop_front().unwrap();
    cell.hear(Heard::Refused { op, refusal: Refusal::Busy });
    cell.pass(secs(1));
    assert!(lives(&cell, &a));
    let op = cell.barriers.pop_front().expect("asked again");
    cell.instant = true;
    cell.hear(Heard::Passed { op, index: LogIndex(1) });
    assert!(!lives(&cell, &a));
}

#[test]
fn a_client_whose_clock_is_out_of_bound_may_not_cache() {
    let refused = |mutant, percent: u64| {
        let mut cell = Cell::with(mutant);
        let mut a = cell.client("a");
        for turn in 0..120_u64 {
            cell.pass(millis(500));
            if turn % 10 == 0 {
                cell.hold(&mut a);
            }
            let clock_us = Some(5 + turn * 5_000 * percent);
            let renew = Message::RenewCache(v1::RenewCache { link: a.link, clock_us });
            if let Err(error) = cell.ask(a.outside(renew)) {
                assert_eq!(error.code, "cell.clock_out_of_bound");
                assert!(
                    matches!(cell.measured.last(), Some(Measure::ClockOutOfBound { ours, theirs, .. }) if ours != theirs)
                );
                return true;
            }
        }
        false
    };
    assert!(refused(None, 120) && refused(None, 80));
    assert!(!refused(None, 109) && !refused(None, 91));
    assert!(!refused(Some(Mutant::ClocksUnchecked), 120));
}

/// The lease that the last of so many KeepAlives is given, in seconds; then a second passes.
fn lease_among(cell: &mut Cell, client: &Client, count: u32) -> u64 {
    let mut last = 0;
    for _ in 0..count {
        let keep = Message::KeepAlive(v1::KeepAlive { link: client.link, ..Default::default() });
        let deadline = cell.now.mono;
        let op = cell.send_until(client.inside(0, keep), Some(deadline));
        let Some(Ok(Message::KeptAlive(kept))) = cell.take(op) else { panic!() };
        last = kept.lease_us / 1_000_000;
    }
    cell.pass(secs(1));
    last
}

/// A master that found the ceiling at a minute, which nobody needs any more; with a session of the usual lease.
fn high_ceiling() -> (Cell, Client) {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    let opened = cell.open(&mut a, all("/f", Some(v1::CreateNode::default())));
    let b = cell.client_with("b", 60_000);
    assert!(cell.ask(b.inside(0, Message::CloseSession(v1::CloseSession {}))).is_ok());
    cell.fail_over();
    cell.resume(&mut a, vec![opened.token]).unwrap();
    cell.hold(&mut a);
    for _ in 0..64 {
        lease_among(&mut cell, &a, 1);
    }
    assert_eq!(cell.state.ceiling(), secs(60), "what was granted under it may not have run out");
    (cell, a)
}

#[test]
fn a_new_master_lowers_a_ceiling_that_nobody_needs() {
    let (mut cell, a) = high_ceiling();
    for _ in 0..10 {
        lease_among(&mut cell, &a, 1);
    }
    assert_eq!(cell.state.ceiling(), secs(12));
}

#[test]
fn no_lease_is_stretched_while_a_lower_ceiling_is_in_the_log() {
    let (mut cell, a) = high_ceiling();
    cell.instant = false;
    for _ in 0..10 {
        lease_among(&mut cell, &a, 1);
    }
    assert_eq!((cell.log.len(), cell.state.ceiling()), (1, secs(60)));
    for _ in 0..3 {
        assert_eq!(lease_among(&mut cell, &a, 6_000), 12);
    }
    cell.apply_one();
    assert_eq!(cell.state.ceiling(), secs(12));
}
