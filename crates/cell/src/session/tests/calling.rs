//! Calls: numbers, repeats, cancels, bounds.

use super::*;
use crate::error;

#[test]
fn a_call_without_an_outcome_is_sent_again_under_its_number() {
    let mut bench = Bench::begun(options());
    bench.keep_alive();
    let op = bench.call(write("/a"));
    bench.call(write("/b"));
    let (mut ticket, first, _) = bench.take_call();
    let (other, second, _) = bench.take_call();
    assert_eq!((first.number, second.number, first.session, first.secret, first.epoch), (1, 2, ME, 9, EPOCH));
    bench.answer(other, done(1));
    let errors = [
        unreachable(),
        failure("control.unsent", Class::Unreachable),
        failure("cell.opening", Class::Unreachable),
        failure("cell.stale_epoch", Class::Refused),
    ];
    for error in errors {
        bench.fail(ticket, error);
        assert!(bench.sent.is_empty(), "not without a pause");
        bench.pass(seconds(0.6));
        let call;
        (ticket, call, _) = bench.take_call();
        assert_eq!((call.number, call.answered_below), (1, 1));
    }
    bench.take_answers();
    bench.answer(ticket, done(2));
    assert_eq!(bench.take_answers(), [(op, Ok(done(2)))]);
    bench.call(write("/c"));
    let (ticket, call, _) = bench.take_call();
    assert_eq!((call.number, call.answered_below), (3, 3));
    // A refusal is an outcome.
    let refusal = failure("cell.denied", Class::Refused);
    bench.fail(ticket, refusal.clone());
    assert!(matches!(&bench.take_answers()[..], [(_, Err(error))] if *error == refusal));
}

#[test]
fn calls_wait_for_the_session_to_begin() {
    let mut bench = Bench::new(options());
    bench.call(read("/a"));
    let (ticket, _) = bench.take_sent();
    assert!(bench.sent.is_empty());
    let created = v1::SessionCreated { session: ME, epoch: EPOCH, lease_us: 1_000_000, ..Default::default() };
    bench.answer(ticket, Message::SessionCreated(created));
    assert!(matches!(bench.take_sent().1, Message::KeepAlive(_)));
    let (_, call, _) = bench.take_call();
    assert_eq!((call.number, call.answered_below), (0, 1), "a read needs no number");
}

#[test]
fn a_queued_acquire_is_asked_again_under_its_number() {
    let mut bench = Bench::begun(options());
    bench.keep_alive();
    let handle = bench.opened(v1::OpenNode { lock: true, ..open("/l") });
    let op = bench.call(acquire(handle));
    let (ticket, first, _) = bench.take_call();
    bench.answer(ticket, Message::Waiting(v1::LockWaiting { before: 2 }));
    assert!(bench.sent.is_empty(), "it was not held: not without a pause");
    bench.pass(seconds(0.2));
    let (ticket, _, _) = bench.take_call();
    bench.pass(seconds(2.0));
    bench.answer(ticket, Message::Waiting(v1::LockWaiting { before: 1 }));
    let (ticket, again, _) = bench.take_call();
    assert_eq!(again.number, first.number);
    let acquired = Message::Acquired(v1::LockAcquired { generation: 3, ..Default::default() });
    bench.answer(ticket, acquired.clone());
    assert_eq!(bench.take_answers(), [(op, Ok(acquired))]);
}

#[test]
fn a_cancelled_acquire_leaves_the_queue_however_long_it_takes() {
    let mut bench = Bench::begun(options());
    bench.keep_alive();
    let handle = bench.opened(v1::OpenNode { lock: true, ..open("/l") });
    let op = bench.call(acquire(handle));
    let (granted, call, _) = bench.take_call();
    bench.input(Input::Cancel { op });
    let (ticket, cancel, message) = bench.take_call();
    assert_eq!(message, Message::CancelAcquire(v1::CancelAcquire { handle, number: call.number }));
    assert_eq!(cancel.answered_below, call.number, "its outcome is not known yet");
    bench.answer(granted, Message::Acquired(v1::LockAcquired::default()));
    bench.fail(ticket, unreachable());
    bench.pass(seconds(0.1));
    let (ticket, again, _) = bench.take_call();
    assert_eq!(again.number, cancel.number);
    bench.answer(ticket, done(1));
    assert_eq!(bench.take_answers(), []);
    bench.call(write("/a"));
    assert_eq!(bench.take_call().1.answered_below, cancel.number + 1);
}

#[test]
fn a_cancelled_call_goes_on_only_if_it_may_have_changed_something() {
    let mut bench = Bench::begun(options());
    bench.keep_alive();
    let read = bench.call(read("/a"));
    let (ticket, _) = bench.take_sent();
    bench.input(Input::Cancel { op: read });
    bench.fail(ticket, unreachable());
    bench.pass(seconds(1.0));
    assert!(bench.sent.is_empty());
    let change = bench.call(write("/a"));
    let (ticket, _) = bench.take_sent();
    bench.input(Input::Cancel { op: change });
    bench.fail(ticket, unreachable());
    bench.pass(seconds(1.0));
    let (ticket, _) = bench.take_sent();
    bench.answer(ticket, done(1));
    // What an abandoned open opened is closed.
    let opening = bench.call(Message::Open(open("/a")));
    let (ticket, call, _) = bench.take_call();
    bench.input(Input::Cancel { op: opening });
    bench.answer(ticket, Message::Opened(v1::NodeOpened { handle: call.number, ..Default::default() }));
    assert_eq!(bench.take_sent().1, Message::Close(v1::CloseHandle { handle: call.number }));
    assert_eq!(bench.take_answers(), []);
}

#[test]
fn calls_are_bounded_and_numbers_stay_within_the_window() {
    let mut bench = Bench::begun(options());
    bench.keep_alive();
    for i in 0..calls::MAX_CALLS {
        bench.call(write(&format!("/{i}")));
    }
    assert_eq!(bench.sent.len(), 960);
    bench.call(write("/more"));
    assert!(matches!(&bench.take_answers()[..], [(_, Err(error))] if error.code == "cell.busy"));
    let (ticket, _) = bench.take_sent();
    bench.answer(ticket, done(1));
    assert_eq!(bench.sent.len(), 960);
}

#[test]
fn an_acquire_that_waits_for_long_does_not_stop_the_other_calls() {
    let mut bench = Bench::begun(options());
    bench.keep_alive();
    let handle = bench.opened(v1::OpenNode { lock: true, ..open("/l") });
    let op = bench.call(acquire(handle));
    let (_, first, _) = bench.take_call();
    let mut acquires = Vec::new();
    for _ in 0..2_000 {
        bench.call(write("/a"));
        while let Some((ticket, message, _)) = bench.sent.pop_front() {
            let call = message.call.unwrap();
            assert!(call.number < call.answered_below + 1_024, "{call:?}");
            match message.message.unwrap() {
                Message::SetContents(_) => bench.answer(ticket, done(1)),
                Message::Acquire(acquire) if acquire.waits_as != 0 => {
                    assert_eq!(acquire.waits_as, acquires.last().map_or(first.number, |(_, number)| *number));
                    assert_eq!(call.answered_below, acquire.waits_as, "it is not confirmed yet");
                    bench.answer(ticket, Message::Waiting(v1::LockWaiting { before: 1 }));
                }
                Message::Acquire(_) => acquires.push((ticket, call.number)),
                // It keeps its place: it is never cancelled.
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(bench.take_answers().len(), 2_000);
    assert_eq!(acquires.len(), 4, "it waited under a later number, again and again");
    let (ticket, number) = acquires[3];
    assert!(number > first.number + 1_024);
    bench.answer(ticket, Message::Acquired(v1::LockAcquired::default()));
    assert!(matches!(&bench.take_answers()[..], [(o, Ok(_))] if *o == op));
}

#[test]
fn an_acquire_between_two_numbers_is_cancelled_under_both() {
    let mut bench = Bench::begun(options());
    bench.keep_alive();
    let handle = bench.opened(v1::OpenNode { lock: true, ..open("/l") });
    let op = bench.call(acquire(handle));
    let (_, first, _) = bench.take_call();
    let mut later = None;
    while later.is_none() {
        bench.call(write("/a"));
        while let Some((ticket, message, _)) = bench.sent.pop_front() {
            match message.message.unwrap() {
                Message::Acquire(acquire) => later = Some((message.call.unwrap().number, acquire.waits_as)),
                _ => bench.answer(ticket, done(1)),
            }
        }
    }
    let (later, waits_as) = later.unwrap();
    assert_eq!(waits_as, first.number);
    bench.input(Input::Cancel { op });
    let cancel = |number| Message::CancelAcquire(v1::CancelAcquire { handle, number });
    let (one, _, message) = bench.take_call();
    assert_eq!(message, cancel(first.number));
    let (two, _, message) = bench.take_call();
    assert_eq!(message, cancel(later));
    // What became of either is asked for until both are known.
    bench.answer(two, done(1));
    bench.call(write("/a"));
    let (ticket, call, _) = bench.take_call();
    assert_eq!(call.answered_below, first.number);
    bench.answer(ticket, done(1));
    bench.answer(one, done(1));
    bench.call(write("/a"));
    assert!(bench.take_call().1.answered_below > later);
}

#[test]
fn an_acquire_that_no_later_number_fits_is_made_anew() {
    let mut bench = Bench::begun(options());
    let (kept, _) = bench.keep_alive();
    let handle = bench.opened(v1::OpenNode { lock: true, ..open("/l") });
    bench.call(acquire(handle));
    let (_, first, _) = bench.take_call();
    // A resumption takes its time, and calls pile up meanwhile.
    bench.fail(kept, failure("cell.resume", Class::Unreachable));
    for _ in 0..2_000 {
        bench.call(write("/a"));
    }
    let (ticket, _) = bench.take_sent();
    let lease_us = LEASE.as_micros() as u64;
    bench.answer(ticket, Message::ResumeNeeded(v1::ResumeNeeded { epoch: EPOCH + 1 }));
    let (ticket, _) = bench.take_sent();
    let resumed = v1::SessionResumed { epoch: EPOCH + 1, lease_us, ..Default::default() };
    bench.answer(ticket, Message::SessionResumed(resumed));
    let cancelled = bench.sent.iter().any(|(_, message, _)| {
        message.message == Some(Message::CancelAcquire(v1::CancelAcquire { handle, number: first.number }))
    });
    assert!(cancelled);
}

#[test]
fn events_of_a_handle_wait_for_the_answer_to_its_open() {
    let mut bench = Bench::begun(options());
    let (kept, _) = bench.keep_alive();
    bench.call(Message::Open(v1::OpenNode { events: 2, ..open("/d") }));
    let (ticket, call, _) = bench.take_call();
    let child = |name: &str| v1::CellEvent {
        children: vec![name.into()],
        ..event(call.number, v1::CellEventKind::ChildrenChanged)
    };
    bench.answer(kept, batch(1, &[], vec![child("a"), child("b"), event(77, v1::CellEventKind::ContentsChanged)]));
    assert_eq!(bench.take_told(), [Event::Node(event(77, v1::CellEventKind::ContentsChanged))]);
    bench.order.clear();
    bench.answer(ticket, Message::Opened(v1::NodeOpened { handle: call.number, ..Default::default() }));
    assert_eq!(bench.order, ["answer", "tell"]);
    assert_eq!(bench.take_told(), [Event::Node(v1::CellEvent { more: true, ..child("a") })]);
}

#[test]
fn what_is_not_a_call_is_refused() {
    let mut bench = Bench::begun(options());
    bench.call(Message::KeepAlive(v1::KeepAlive::default()));
    assert!(matches!(&bench.take_answers()[..], [(_, Err(error))] if error.class == Class::Invalid));
}

#[test]
fn a_missing_session_in_an_operators_request_is_not_this_one() {
    let mut bench = Bench::begun(options());
    bench.keep_alive();
    bench.call(Message::EndSession(v1::EndSession { session: 1 }));
    let (ticket, _) = bench.take_sent();
    bench.fail(ticket, failure("cell.no_session", Class::NotFound));
    assert!(matches!(&bench.take_answers()[..], [(_, Err(error))] if error.code == "cell.no_session"));
    assert_eq!(bench.take_told(), []);
}

#[test]
fn a_grant_that_comes_after_the_end_of_its_node_is_none() {
    let mut bench = Bench::begun(options());
    let (kept, _) = bench.keep_alive();
    let handle = bench.opened(v1::OpenNode { lock: true, ..open("/l") });
    bench.call(acquire(handle));
    let (ticket, _) = bench.take_sent();
    bench.answer(kept, batch(1, &[], vec![event(handle, v1::CellEventKind::HandleInvalid)]));
    bench.answer(ticket, Message::Acquired(v1::LockAcquired::default()));
    assert!(matches!(&bench.take_answers()[..], [(_, Err(error))] if error.code == "cell.node_gone"));
}

#[test]
fn what_the_old_master_answers_during_a_resumption_is_asked_again() {
    let mut bench = Bench::begun(options());
    let (kept, _) = bench.keep_alive();
    bench.call(Message::Open(open("/a")));
    let (late, call, _) = bench.take_call();
    bench.fail(kept, failure("cell.resume", Class::Unreachable));
    let (ticket, _) = bench.take_sent();
    bench.answer(late, Message::Opened(v1::NodeOpened { handle: call.number, ..Default::default() }));
    assert_eq!(bench.take_answers(), []);
    let lease_us = LEASE.as_micros() as u64;
    let resumed = v1::SessionResumed { epoch: EPOCH + 1, lease_us, ..Default::default() };
    bench.answer(ticket, Message::SessionResumed(resumed));
    let again = bench.sent.iter().filter_map(|(_, message, _)| message.call).any(|sent| sent.number == call.number);
    assert!(again, "the new master must know the handle");
}

#[test]
fn what_an_ended_session_refused_has_not_happened_and_what_else_was_sent_may_have() {
    let mut bench = Bench::begun(options());
    bench.keep_alive();
    let ops = [bench.call(write("/repeated")), bench.call(write("/under way")), bench.call(write("/refused"))];
    let (repeated, _) = bench.take_sent();
    bench.fail(repeated, unreachable());
    bench.pass(seconds(0.1));
    bench.take_sent();
    let (refused, _) = bench.take_sent();
    bench.fail(refused, error::expired(ME));
    let classes: Vec<_> =
        bench.take_answers().into_iter().map(|(op, answer)| (op, answer.unwrap_err().class)).collect();
    let [first, second, third] = ops;
    assert_eq!(classes, [(first, Class::OutcomeUnknown), (second, Class::OutcomeUnknown), (third, Class::Refused)]);
    // An attempt before the refused one may have been taken.
    let mut bench = Bench::begun(options());
    bench.keep_alive();
    bench.call(write("/repeated"));
    let (ticket, _) = bench.take_sent();
    bench.fail(ticket, unreachable());
    bench.pass(seconds(0.1));
    let (ticket, _) = bench.take_sent();
    bench.fail(ticket, error::no_session(ME));
    assert!(matches!(&bench.take_answers()[..], [(_, Err(error))] if error.class == Class::OutcomeUnknown));
}

#[test]
fn a_session_whose_cache_is_in_use_makes_a_call_now_and_then() {
    let mut bench = Bench::caching(options());
    let (ticket, _) = bench.keep_alive();
    let lease_us = seconds(1_000.0).as_micros() as u64;
    bench.pass(seconds(1.0));
    bench.answer(ticket, Message::KeptAlive(v1::KeptAlive { epoch: EPOCH, lease_us, ..Default::default() }));
    bench.keep_alive();
    bench.call(read("/a"));
    let (ticket, _) = bench.take_sent();
    bench.answer(ticket, found(1));
    bench.pass(STIR * 3);
    assert!(bench.sent.is_empty(), "nobody reads");
    bench.input(Input::Served);
    bench.pass(Duration::ZERO);
    let (ticket, call, message) = bench.take_call();
    assert!(matches!(message, Message::Read(read) if read.uncached && read.target == target("/")) && call.number == 0);
    bench.take_answers();
    bench.answer(ticket, Message::NodeRead(v1::NodeRead::default()));
    assert_eq!(bench.take_answers(), [], "nobody waits for it");
    bench.input(Input::Served);
    bench.pass(STIR - seconds(0.1));
    assert!(bench.sent.is_empty(), "not before it is needed");
    bench.pass(seconds(0.1));
    bench.take_call();
}
