//! Leases, jeopardy, the end, and other masters.

use super::*;
use v1::CellEventKind::{ChildrenChanged, ContentsChanged, FailOver, HandleInvalid, LockLost};

#[test]
fn a_keep_alive_is_always_under_way_and_acknowledges_what_was_done_before_it() {
    let mut bench = Bench::caching(options());
    let handle = bench.opened_beside(open("/a"));
    let (ticket, first) = bench.keep_alive();
    assert_eq!(first.ack, Some(v1::CellAck { epoch: EPOCH, seq: 0 }));
    bench.cache("/a");
    bench.order.clear();
    bench.answer(ticket, batch(1, &["/a"], vec![event(handle, ContentsChanged)]));
    assert_eq!(bench.order, ["drop", "tell", "send"]);
    let (ticket, next) = bench.keep_alive();
    assert_eq!(next.ack, Some(v1::CellAck { epoch: EPOCH, seq: 1 }));
    // The same batch again is acknowledged again and not told again.
    bench.take_told();
    bench.answer(ticket, batch(1, &["/a"], vec![event(handle, ContentsChanged)]));
    assert_eq!(bench.take_told(), []);
    assert_eq!(bench.keep_alive().1.ack, Some(v1::CellAck { epoch: EPOCH, seq: 1 }));
}

#[test]
fn the_lease_is_dated_from_the_request_and_shortened() {
    let mut bench = Bench::begun(options());
    let sent = bench.now;
    assert_eq!(bench.session.lease_until(), Some(sent + seconds(10.8)));
    let (ticket, _) = bench.keep_alive();
    bench.pass(seconds(9.0));
    // Held for 8 s at the master, a second under way.
    bench.answer(ticket, kept_alive(seconds(8.0)));
    assert_eq!(bench.session.lease_until(), Some(sent + seconds(18.0)));
    let mutant = Options { mutant: Some(Mutant::LeaseFromArrival), ..options() };
    assert_eq!(Bench::begun(mutant).session.lease_until(), Some(sent + LEASE));
}

#[test]
fn a_keep_alive_that_was_not_held_is_not_followed_in_a_tight_loop() {
    let mut bench = Bench::begun(options());
    let (ticket, _) = bench.keep_alive();
    bench.answer(ticket, kept_alive(Duration::ZERO));
    assert!(bench.sent.is_empty());
    bench.pass(seconds(0.1));
    bench.keep_alive();
}

#[test]
fn in_jeopardy_calls_wait_and_contact_makes_it_safe_again() {
    let mut bench = Bench::caching(options());
    let sent = bench.now;
    bench.keep_alive();
    let op = bench.call(write("/a"));
    let (lost, first, _) = bench.take_call();
    bench.pass(seconds(10.8));
    assert_eq!(bench.take_told(), [Event::Jeopardy]);
    assert!(bench.take_cache().contains(&CacheChange::Flush));
    assert_eq!(bench.session.lease_until(), None);
    bench.fail(lost, unreachable());
    bench.call(read("/a"));
    bench.pass(seconds(0.6));
    // Only the KeepAlive is sent again: the one under way was too old to trust.
    let (ticket, _) = bench.keep_alive();
    bench.order.clear();
    bench.pass(seconds(0.5));
    bench.answer(ticket, kept_alive(Duration::ZERO));
    assert_eq!(bench.take_told(), [Event::Safe { survived: vec![], lost: vec![] }]);
    assert_eq!(bench.order, ["flush", "until", "tell", "send", "send", "send"]);
    bench.take_sent();
    let (again, second, _) = bench.take_call();
    assert_eq!((second.number, second.answered_below), (first.number, first.number));
    bench.answer(again, done(1));
    assert_eq!(bench.take_answers(), [(op, Ok(done(1)))]);
    assert!(bench.session.lease_until() > Some(sent + seconds(20.0)));
}

#[test]
fn a_session_that_the_master_ended_is_never_safe_again() {
    for mutant in [None, Some(Mutant::Resurrection)] {
        let mut bench = Bench::begun(Options { mutant, ..options() });
        bench.keep_alive();
        let written = bench.call(write("/a"));
        bench.take_sent();
        bench.pass(seconds(11.0));
        let waiting = bench.call(read("/a"));
        let (ticket, _) = bench.keep_alive();
        bench.take_told();
        bench.fail(ticket, failure("cell.expired", Class::Refused));
        if mutant.is_some() {
            assert_eq!(bench.take_told(), [Event::Safe { survived: vec![], lost: vec![] }]);
            continue;
        }
        assert_eq!(bench.take_told(), [Event::Expired]);
        let answers = bench.take_answers();
        let outcome = |op| answers.iter().find(|(o, _)| *o == op).unwrap().1.as_ref().unwrap_err();
        assert_eq!((&*outcome(written).code, outcome(written).class), ("cell.expired", Class::OutcomeUnknown));
        assert_eq!((&*outcome(waiting).code, outcome(waiting).class), ("cell.expired", Class::Refused));
        // Whatever comes later changes nothing.
        bench.answer(ticket, kept_alive(Duration::ZERO));
        bench.renew_link(seconds(1.0), &[]);
        bench.input(Input::Close);
        bench.pass(seconds(100.0));
        assert!(bench.take_told().is_empty() && bench.sent.is_empty() && bench.session.is_over());
        let op = bench.call(read("/a"));
        assert!(matches!(&bench.take_answers()[..], [(o, Err(_))] if *o == op));
    }
}

#[test]
fn without_contact_the_grace_period_ends_it() {
    let mut bench = Bench::begun(options());
    bench.pass(seconds(10.8 + 44.9));
    assert_eq!(bench.take_told(), [Event::Jeopardy]);
    bench.pass(seconds(0.2));
    assert_eq!(bench.take_told(), [Event::Expired]);
    assert_eq!(bench.session.deadline(), None);
}

#[test]
fn a_host_that_slept_hears_of_jeopardy_before_anything_else() {
    let mut bench = Bench::caching(options());
    let (ticket, _) = bench.keep_alive();
    bench.now = bench.now + seconds(20.0);
    bench.answer(ticket, kept_alive(seconds(19.9)));
    assert_eq!(bench.take_told(), [Event::Jeopardy, Event::Safe { survived: vec![], lost: vec![] }]);
}

#[test]
fn a_reply_without_a_lease_or_with_one_that_is_over_makes_nothing_safe() {
    let mut bench = Bench::begun(options());
    let (old, _) = bench.keep_alive();
    bench.pass(seconds(11.0));
    bench.take_told();
    let (ticket, _) = bench.keep_alive();
    bench.fail(old, unreachable());
    assert!(bench.sent.is_empty(), "the other one is under way");
    bench.answer(ticket, Message::KeptAlive(v1::KeptAlive { epoch: EPOCH, ..Default::default() }));
    bench.pass(seconds(0.2));
    let (ticket, _) = bench.keep_alive();
    bench.now = bench.now + seconds(11.0);
    bench.answer(ticket, kept_alive(Duration::ZERO));
    assert_eq!(bench.take_told(), []);
    assert_eq!(bench.session.lease_until(), None);
}

#[test]
fn another_master_is_given_the_handles_and_takes_over_the_calls() {
    let mut bench = Bench::caching(options());
    let (kept, _) = bench.keep_alive();
    let held = bench.locked(v1::OpenNode { events: 1, ..open("/held") });
    let lost = bench.locked(open("/lost"));
    let gone = bench.opened(v1::OpenNode { events: 3, ..open("/gone") });
    let watch = bench.opened(v1::OpenNode { events: 3, ..open("/watch") });
    bench.cache("/x");
    bench.call(write("/y"));
    let (_, before, _) = bench.take_call();
    bench.fail(kept, failure("cell.resume", Class::Refused));
    assert_eq!(bench.take_cache(), [CacheChange::Flush, CacheChange::Until(Mono(0))]);
    let (ticket, request) = bench.take_sent();
    let Message::ResumeSession(resume) = request else { panic!("{request:?}") };
    let tokens: Vec<String> = ["/held", "/lost", "/gone", "/watch"].map(|p| format!("token of {p}")).to_vec();
    assert_eq!(resume.handles, tokens);
    // Not before the master knows the session.
    bench.call(read("/x"));
    assert!(bench.sent.is_empty());
    bench.resumed(ticket, &[held], &[gone]);
    let expected = [
        event(held, ContentsChanged),
        event(lost, LockLost),
        event(gone, HandleInvalid),
        event(watch, ContentsChanged),
        v1::CellEvent { more: true, ..event(watch, ChildrenChanged) },
    ];
    assert_eq!(bench.take_told(), expected.map(Event::Node));
    assert!(matches!(bench.take_sent().1, Message::KeepAlive(k) if k.ack == Some(v1::CellAck { epoch: 6, seq: 0 })));
    let (_, after, _) = bench.take_call();
    assert_eq!((after.number, after.epoch), (before.number, 6));
    assert!(matches!(bench.take_sent().1, Message::Read(_)));
    // The link's lease of the old epoch counts no more.
    bench.renew_link(seconds(1.0), &[]);
    assert_eq!(bench.take_cache(), []);
}

#[test]
fn safe_after_a_fail_over_in_jeopardy_names_the_locks_that_survived_and_those_that_did_not() {
    let mut bench = Bench::begun(options());
    bench.keep_alive();
    let (held, lost) = (bench.locked(open("/held")), bench.locked(open("/lost")));
    bench.opened(open("/other"));
    bench.pass(seconds(11.0));
    bench.take_told();
    let (kept, _) = bench.keep_alive();
    bench.fail(kept, failure("cell.resume", Class::Refused));
    let (ticket, _) = bench.take_sent();
    bench.resumed(ticket, &[held], &[]);
    let safe = Event::Safe { survived: vec![HandleNumber(held)], lost: vec![HandleNumber(lost)] };
    let told = [safe, Event::Node(event(lost, LockLost))];
    assert_eq!(bench.take_told(), told);
}

#[test]
fn a_deposed_master_cannot_resume_a_session_of_a_later_epoch() {
    let mut bench = Bench::begun(options());
    let (kept, _) = bench.keep_alive();
    bench.fail(kept, failure("cell.resume", Class::Refused));
    let (ticket, _) = bench.take_sent();
    let lease_us = LEASE.as_micros() as u64;
    bench.answer(ticket, Message::SessionResumed(v1::SessionResumed { epoch: 4, lease_us, ..Default::default() }));
    bench.pass(seconds(0.1));
    assert!(matches!(bench.take_sent().1, Message::ResumeSession(_)));
}

#[test]
fn fail_over_itself_is_not_told() {
    let mut bench = Bench::begun(options());
    let (ticket, _) = bench.keep_alive();
    bench.answer(ticket, batch(1, &[], vec![event(1, FailOver)]));
    assert_eq!(bench.take_told(), []);
}

#[test]
fn a_link_that_speaks_to_another_master_makes_the_session_resume() {
    let mut bench = Bench::begun(options());
    bench.keep_alive();
    let lease = Lease { epoch: 6, asked: bench.now, until: bench.now + seconds(1.0), owing: vec![] };
    bench.input(Input::CacheLease(lease));
    assert!(matches!(bench.take_sent().1, Message::ResumeSession(_)));
}

#[test]
fn a_keep_alive_is_sent_again_when_the_link_falls_silent() {
    let mut bench = Bench::begun(options());
    let (old, _) = bench.keep_alive();
    bench.renew_link(seconds(1.6), &[]);
    bench.pass(seconds(1.5));
    assert!(bench.sent.is_empty());
    bench.pass(seconds(0.2));
    let (new, _) = bench.keep_alive();
    // An answer to either counts.
    bench.answer(old, kept_alive(seconds(1.5)));
    assert!(bench.sent.is_empty(), "one is enough");
    bench.fail(new, failure("cell.resume", Class::Refused));
    assert!(matches!(bench.take_sent().1, Message::ResumeSession(_)));
    bench.answer(new, kept_alive(seconds(1.5)));
    assert!(bench.sent.is_empty());
}

#[test]
fn creation_goes_on_until_a_master_is_found_or_says_no() {
    let mut bench = Bench::new(options());
    for error in [unreachable(), failure("cell.opening", Class::Unreachable), unreachable()] {
        let (ticket, _) = bench.take_sent();
        bench.fail(ticket, error);
        assert!(bench.sent.is_empty());
        bench.pass(seconds(0.1));
    }
    let (ticket, _) = bench.take_sent();
    let op = bench.call(read("/a"));
    bench.fail(ticket, failure("control.forbidden", Class::Refused));
    assert_eq!(bench.take_told(), [Event::Expired]);
    let answers = bench.take_answers();
    assert!(matches!(&answers[..], [(o, Err(e))] if *o == op && e.code == "control.forbidden"));

    let mut bench = Bench::new(options());
    bench.pass(seconds(45.0));
    assert_eq!(bench.take_told(), [Event::Expired]);
}

#[test]
fn closing_is_bounded_and_answers_what_is_left() {
    let mut bench = Bench::begun(options());
    bench.keep_alive();
    let op = bench.call(write("/a"));
    bench.take_sent();
    bench.input(Input::Close);
    assert!(matches!(&bench.take_answers()[..], [(o, Err(e))] if *o == op && e.class == Class::OutcomeUnknown));
    let (ticket, request) = bench.take_sent();
    assert!(matches!(request, Message::CloseSession(_)));
    bench.fail(ticket, unreachable());
    bench.pass(seconds(0.1));
    let (ticket, _) = bench.take_sent();
    bench.answer(ticket, Message::Done(v1::CellDone::default()));
    assert_eq!(bench.take_told(), [Event::Closed]);

    let mut bench = Bench::begun(options());
    bench.input(Input::Close);
    bench.pass(seconds(5.0));
    assert_eq!(bench.take_told(), [Event::Closed]);

    // Another master hears of the session first.
    let mut bench = Bench::begun(options());
    bench.keep_alive();
    bench.input(Input::Close);
    let (ticket, _) = bench.take_sent();
    bench.fail(ticket, failure("cell.resume", Class::Refused));
    let (ticket, _) = bench.take_sent();
    bench.resumed(ticket, &[], &[]);
    assert!(matches!(bench.take_sent().1, Message::CloseSession(_)));
}

impl Bench {
    /// Opens a handle and puts the KeepAlive that was sent before back to the front.
    fn opened_beside(&mut self, request: v1::OpenNode) -> u64 {
        let keep_alive = self.sent.pop_front().expect("a KeepAlive is under way");
        let handle = self.opened(request);
        self.sent.push_front(keep_alive);
        handle
    }

    /// Caches the contents of a node.
    fn cache(&mut self, text: &str) {
        self.call(read(text));
        let (ticket, _) = self.take_sent();
        self.answer(ticket, found(0));
        assert_eq!(self.take_put(), [text]);
        self.take_answers();
    }

    fn resumed(&mut self, ticket: Ticket, held: &[u64], gone: &[u64]) {
        let locks = held.iter().map(|handle| v1::HeldLock { handle: *handle, ..Default::default() }).collect();
        let (lease_us, gone) = (LEASE.as_micros() as u64, gone.to_vec());
        let resumed = v1::SessionResumed { epoch: 6, lease_us, locks, gone, ..Default::default() };
        self.answer(ticket, Message::SessionResumed(resumed));
    }
}

#[test]
fn every_watcher_hears_of_a_change_after_a_fail_over() {
    let mut bench = Bench::begun(options());
    let (kept, _) = bench.keep_alive();
    let handle = bench.opened(v1::OpenNode { events: 7, ..open("/f") });
    let unwatched = bench.opened(open("/g"));
    bench.fail(kept, failure("cell.resume", Class::Unreachable));
    let (ticket, _) = bench.take_sent();
    bench.answer(ticket, Message::ResumeNeeded(v1::ResumeNeeded { epoch: EPOCH + 1 }));
    let (ticket, _) = bench.take_sent();
    let lease_us = LEASE.as_micros() as u64;
    let resumed = v1::SessionResumed { epoch: EPOCH + 1, lease_us, ..Default::default() };
    bench.answer(ticket, Message::SessionResumed(resumed));
    let kinds: Vec<v1::CellEventKind> = (bench.take_told().into_iter())
        .filter_map(|event| match event {
            Event::Node(event) => Some((event.handle, event.kind())),
            _ => None,
        })
        .inspect(|(of, _)| assert!(*of == handle && *of != unwatched))
        .map(|(_, kind)| kind)
        .collect();
    use v1::CellEventKind::{ChildrenChanged, ContentsChanged, LockAcquired};
    assert_eq!(kinds, [ContentsChanged, ChildrenChanged, LockAcquired]);
}
