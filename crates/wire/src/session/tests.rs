//! Scripts for single rules, and two sessions on a pipe under random use.

use super::*;
use crate::limits::HELLO_FRAME;
use crate::v1::{StoreMessage, StoreStatus, store_message};
use proptest::prelude::*;
use prost::Message as _;
use std::collections::VecDeque;
use std::time::Duration;
use tidings_base::Class;

fn at(millis: u64) -> Now {
    Now { mono: Mono(millis * 1_000_000), ..Now::default() }
}

fn body() -> Body {
    Body::Store(StoreMessage { message: Some(store_message::Message::Status(StoreStatus {})) })
}

fn limits() -> Limits {
    Limits { max_frame: 64 << 10, max_operations: 4, max_operation_bytes: 200, initial_credit: 3 }
}

fn patience() -> Patience {
    Patience {
        handshake: Duration::from_millis(1_000),
        ping_after: Duration::from_millis(1_000),
        dead_after: Duration::from_millis(2_500),
        stall: Duration::from_millis(3_000),
    }
}

/// One end under test, with what its callers and handlers know.
struct End {
    session: Session,
    /// Operations begun here that have not ended for their caller: whether the request is complete.
    waiting: BTreeMap<OpId, bool>,
    ended: u64,
    failures: BTreeMap<OpId, Error>,
    begun: u64,
    next: OpId,
    /// Operations begun there that the handler has not ended: how many frames it may still send.
    working: BTreeMap<OpId, u32>,
    seen: BTreeSet<OpId>,
    closed: Option<Error>,
    went_away: bool,
    ready: bool,
}

impl End {
    fn new(side: Side) -> End {
        let mut config = match side {
            Side::Connector => Config::connector(),
            Side::Acceptor => Config::acceptor(limits()),
        };
        config.patience = patience();
        End {
            session: Session::new(Arc::new(config), at(0)),
            waiting: BTreeMap::new(),
            ended: 0,
            failures: BTreeMap::new(),
            begun: 0,
            next: side.first_op(),
            working: BTreeMap::new(),
            seen: BTreeSet::new(),
            closed: None,
            went_away: false,
            ready: false,
        }
    }

    fn give(&mut self, now: Now, input: Input, wire: &mut VecDeque<Frame>) {
        let mut out = Outbox::new();
        self.session.handle(now, input, &mut out);
        self.take(now, out, wire);
    }

    fn wake(&mut self, now: Now, wire: &mut VecDeque<Frame>) {
        let mut out = Outbox::new();
        self.session.wake(now, &mut out);
        self.take(now, out, wire);
    }

    /// Does what the session says, and holds it to its promises.
    fn take(&mut self, now: Now, out: Outbox<Output>, wire: &mut VecDeque<Frame>) {
        for output in out {
            if self.closed.is_some() {
                // A caller that comes too late is told so; nothing else follows the end.
                assert!(matches!(output, Output::Failed { .. }), "after the end: {output:?}");
            }
            match output {
                Output::Transmit(frame) => wire.push_back(frame),
                Output::Hello(_) => {
                    let accept = Input::Accept { node: NodeId(7), principal: "app:test".into(), limits: limits() };
                    self.give(now, accept, wire);
                }
                Output::Ready { limits: agreed, .. } => {
                    assert_eq!(agreed, limits());
                    assert!(!std::mem::replace(&mut self.ready, true), "ready once");
                }
                Output::Answer { op, more, .. } => {
                    assert!(self.waiting.contains_key(&op), "an answer to {op}, which had ended");
                    if !more {
                        self.end(op);
                    }
                }
                Output::Failed { op, error } => {
                    self.end(op);
                    self.failures.insert(op, error);
                }
                Output::Released { op } => assert!(!self.waiting.contains_key(&op), "{op} still waits"),
                Output::Opened { op, more, .. } => {
                    assert!(self.seen.insert(op), "{op} began twice");
                    self.working.insert(op, limits().initial_credit);
                    let _ = more;
                }
                Output::Continued { op, .. } => assert!(self.working.contains_key(&op), "{op} had ended"),
                Output::Granted { op, frames } => {
                    if let Some(credit) = self.working.get_mut(&op) {
                        *credit += frames;
                    }
                }
                Output::Dropped { op } => {
                    assert!(self.working.remove(&op).is_some(), "{op} had ended");
                }
                Output::GoAway(_) => assert!(!std::mem::replace(&mut self.went_away, true)),
                Output::Closed(why) => {
                    assert!(self.waiting.is_empty() && self.working.is_empty(), "the end comes last");
                    assert_eq!(self.session.open_operations(), 0);
                    self.closed = Some(why);
                }
            }
        }
        assert!(self.session.open_operations() <= 2 * limits().max_operations as usize);
        if self.closed.is_none() {
            assert!(self.session.deadline().is_some(), "a live session always has a next deadline");
        }
    }

    fn end(&mut self, op: OpId) {
        assert!(self.waiting.remove(&op).is_some(), "{op} ended twice");
        self.ended += 1;
    }

    fn begin(&mut self, now: Now, more: bool, deadline: Option<Mono>, wire: &mut VecDeque<Frame>) -> OpId {
        let op = self.next;
        self.next = OpId(op.0 + 2);
        self.begun += 1;
        self.waiting.insert(op, !more);
        self.give(now, Input::Begin { op, body: body(), more, deadline }, wire);
        op
    }

    /// One of the operations that wait or are worked on, by any number.
    fn pick<T>(map: &BTreeMap<OpId, T>, by: u8) -> Option<OpId> {
        map.keys().nth(usize::from(by) % map.len().max(1)).copied()
    }
}

/// Two ends and the frames between them.
struct Pair {
    ends: [End; 2],
    /// `wires[i]` carries what end `i` sent.
    wires: [VecDeque<Frame>; 2],
    millis: u64,
}

impl Pair {
    fn new() -> Pair {
        let mut pair =
            Pair { ends: [End::new(Side::Connector), End::new(Side::Acceptor)], wires: Default::default(), millis: 0 };
        let hello = v1::Hello { min: 1, max: 1, ..Default::default() };
        pair.give(0, Input::Connect(hello));
        pair.settle();
        assert!(pair.ends.iter().all(|end| end.ready));
        pair
    }

    fn now(&self) -> Now {
        at(self.millis)
    }

    fn give(&mut self, end: usize, input: Input) {
        let now = self.now();
        self.ends[end].give(now, input, &mut self.wires[end]);
    }

    fn deliver(&mut self, from: usize) -> bool {
        let Some(frame) = self.wires[from].pop_front() else { return false };
        let bytes = frame.encoded_len();
        self.give(1 - from, Input::Received { frame, bytes });
        true
    }

    /// Delivers everything. A carrier ends for the other side when one side has closed and all it said has arrived.
    fn settle(&mut self) {
        loop {
            while self.deliver(0) | self.deliver(1) {}
            let ended = (0..2).find(|end| self.ends[*end].closed.is_some() && self.ends[1 - *end].closed.is_none());
            match ended {
                Some(end) => self.give(1 - end, Input::Lost(error::closed())),
                None => return,
            }
        }
    }

    fn begin(&mut self, end: usize, more: bool, within: Option<u64>) -> OpId {
        let now = self.now();
        let deadline = within.map(|millis| at(self.millis + millis).mono);
        self.ends[end].begin(now, more, deadline, &mut self.wires[end])
    }

    fn answer(&mut self, end: usize, op: OpId, more: bool) {
        match (more, self.ends[end].working.get_mut(&op)) {
            (true, Some(credit)) => *credit = credit.saturating_sub(1),
            (false, Some(_)) => {
                self.ends[end].working.remove(&op);
            }
            _ => {}
        }
        self.give(end, Input::Send { op, body: body(), more });
    }

    fn pass(&mut self, millis: u64) {
        self.millis += millis;
        let now = self.now();
        for i in 0..2 {
            self.ends[i].wake(now, &mut self.wires[i]);
        }
    }
}

#[test]
fn a_call_is_answered_and_nothing_stays() {
    let mut pair = Pair::new();
    let op = pair.begin(0, false, None);
    pair.settle();
    pair.answer(1, op, true);
    pair.answer(1, op, false);
    pair.settle();
    assert_eq!((pair.ends[0].ended, pair.ends[0].session.open_operations()), (1, 0));
    assert_eq!(pair.ends[1].session.open_operations(), 0);
    // And the other way round.
    let op = pair.begin(1, false, None);
    assert_eq!(op, OpId(2));
    pair.settle();
    pair.answer(0, op, false);
    pair.settle();
    assert_eq!(pair.ends[1].ended, 1);
}

#[test]
fn a_cancelled_call_counts_until_the_other_side_ended_it() {
    let mut pair = Pair::new();
    let op = pair.begin(0, false, None);
    pair.ends[0].waiting.remove(&op);
    pair.give(0, Input::Cancel { op });
    assert!(pair.ends[0].session.is_abandoned(op));
    pair.settle();
    assert!(pair.ends[1].working.is_empty());
    assert_eq!(pair.ends[0].session.open_operations(), 0);
}

#[test]
fn a_deadline_ends_a_call_here_and_there() {
    let mut pair = Pair::new();
    let op = pair.begin(0, false, Some(50));
    pair.settle();
    assert_eq!(pair.ends[0].session.deadline(), Some(at(50).mono));
    pair.pass(50);
    assert!(!pair.ends[0].waiting.contains_key(&op));
    pair.settle();
    assert!(pair.ends[1].working.is_empty());
    // One that comes too late is never sent.
    pair.begin(0, false, Some(0));
    assert!(pair.ends[0].waiting.is_empty() && pair.wires[0].is_empty());
}

#[test]
fn more_operations_than_allowed_are_refused_at_either_end() {
    let mut pair = Pair::new();
    for _ in 0..limits().max_operations {
        pair.begin(0, false, None);
    }
    let over = pair.begin(0, false, None);
    assert!(!pair.ends[0].waiting.contains_key(&over), "refused before it is sent");
    pair.settle();
    // A connector that does not count is refused by the acceptor, and the rest goes on.
    let frame = Frame { op: 99, more: false, body: Some(body()) };
    pair.give(1, Input::Received { frame, bytes: 4 });
    let refused = pair.wires[1].pop_back().unwrap();
    assert_eq!((refused.op, code(&refused)), (99, "control.busy".into()));
    assert_eq!(pair.ends[1].working.len(), limits().max_operations as usize);
}

fn code(frame: &Frame) -> String {
    match &frame.body {
        Some(Body::Control(v1::Control { message: Some(Control::Error(error)) })) => error.code.clone(),
        other => panic!("no error: {other:?}"),
    }
}

#[test]
fn frames_beyond_the_credit_end_their_operation_and_no_other() {
    let mut pair = Pair::new();
    let (slow, other) = (pair.begin(0, false, None), pair.begin(0, false, None));
    pair.settle();
    for _ in 0..limits().initial_credit {
        pair.answer(1, slow, true);
    }
    assert_eq!(pair.ends[1].session.credit(slow), 0);
    pair.give(1, Input::Send { op: slow, body: body(), more: true });
    assert_eq!(code(pair.wires[1].back().unwrap()), "control.slow_reader");
    pair.settle();
    pair.answer(1, other, false);
    pair.settle();
    assert_eq!(pair.ends[0].ended, 2);
}

#[test]
fn a_reader_that_uses_frames_up_grants_more() {
    let mut pair = Pair::new();
    let op = pair.begin(0, false, None);
    pair.settle();
    for _ in 0..20 {
        pair.answer(1, op, true);
        pair.settle();
        pair.give(0, Input::Consumed { op, frames: 1 });
        pair.settle();
    }
    pair.answer(1, op, false);
    pair.settle();
    assert_eq!(pair.ends[0].ended, 1);
}

#[test]
fn an_operation_over_its_bytes_ends() {
    let mut pair = Pair::new();
    let op = pair.begin(0, true, None);
    let big = Frame { op: op.0, more: true, body: Some(body()) };
    pair.settle();
    pair.give(1, Input::Received { frame: big, bytes: 201 });
    assert_eq!(code(pair.wires[1].back().unwrap()), "control.too_large");
    assert!(pair.ends[1].working.is_empty());
}

#[test]
fn unknown_messages_are_answered_with_unsupported() {
    let mut pair = Pair::new();
    let unknown = [None, Some(Body::Store(StoreMessage { message: None }))];
    for (op, body) in [1, 3].into_iter().zip(unknown) {
        pair.give(1, Input::Received { frame: Frame { op, more: false, body }, bytes: 2 });
        let answer = pair.wires[1].pop_back().unwrap();
        assert_eq!((answer.op, code(&answer)), (op, "control.unsupported".into()));
    }
    // On the connection itself they are ignored.
    pair.give(1, Input::Received { frame: Frame::default(), bytes: 0 });
    let control = Some(Body::Control(v1::Control { message: None }));
    pair.give(1, Input::Received { frame: Frame { op: 0, more: false, body: control }, bytes: 2 });
    assert!(pair.ends[1].closed.is_none() && pair.wires[1].is_empty());
}

#[test]
fn frames_against_the_rules_close_the_connection_with_a_name() {
    let frames = [
        // An answer to what was never begun.
        Frame { op: 2, more: false, body: Some(body()) },
        // A part's message about the connection itself.
        Frame { op: 0, more: false, body: Some(body()) },
        // A second handshake.
        Frame { op: 0, more: false, body: Some(control_body(Control::Hello(v1::Hello::default()))) },
        // An operation that begins with a control message.
        Frame { op: 1, more: false, body: Some(control_body(Control::Cancel(v1::Cancel {}))) },
    ];
    for frame in frames {
        let mut pair = Pair::new();
        pair.give(1, Input::Received { frame, bytes: 4 });
        assert_eq!(pair.ends[1].closed.as_ref().unwrap().code, "control.protocol");
        assert_eq!(code(pair.wires[1].back().unwrap()), "control.protocol");
        pair.settle();
        assert_eq!(pair.ends[0].closed.as_ref().unwrap().code, "control.protocol");
    }
}

#[test]
fn a_frame_before_the_handshake_or_too_large_for_it_closes() {
    let cases = [
        (Frame { op: 1, more: false, body: Some(body()) }, 4, "control.protocol"),
        (Frame::default(), HELLO_FRAME + 1, "control.too_large"),
        (
            Frame {
                op: 0,
                more: false,
                body: Some(control_body(Control::Hello(v1::Hello { min: 9, max: 9, ..Default::default() }))),
            },
            4,
            "control.version",
        ),
    ];
    for (frame, bytes, expected) in cases {
        let (mut end, mut wire) = (End::new(Side::Acceptor), VecDeque::new());
        end.give(at(0), Input::Received { frame, bytes }, &mut wire);
        assert_eq!(end.closed.unwrap().code, expected);
        assert_eq!(code(&wire[0]), expected);
    }
    let (mut silent, mut wire) = (End::new(Side::Acceptor), VecDeque::new());
    assert_eq!(silent.session.deadline(), Some(at(1_000).mono));
    silent.wake(at(1_000), &mut wire);
    assert_eq!(silent.closed.unwrap().code, "control.handshake");
}

#[test]
fn a_live_peer_answers_pings_and_a_dead_one_is_noticed() {
    let mut pair = Pair::new();
    for _ in 0..10 {
        pair.pass(1_000);
        pair.settle();
    }
    assert!(pair.ends.iter().all(|end| end.closed.is_none()), "both answer");
    let op = pair.begin(0, false, None);
    // From now on nothing arrives.
    for _ in 0..3 {
        pair.pass(1_000);
        pair.wires.iter_mut().for_each(VecDeque::clear);
    }
    assert_eq!(pair.ends[0].closed.as_ref().unwrap().code, "control.dead_peer");
    assert!(!pair.ends[0].waiting.contains_key(&op));
}

#[test]
fn a_host_that_slept_asks_before_it_buries() {
    let mut pair = Pair::new();
    pair.pass(1_000_000);
    assert!(pair.ends.iter().all(|end| end.closed.is_none()));
    pair.settle();
    pair.pass(1_400);
    assert!(pair.ends.iter().all(|end| end.closed.is_none()));
}

#[test]
fn a_blocked_carrier_is_given_up_after_the_stall_and_not_by_silence() {
    let mut pair = Pair::new();
    pair.give(1, Input::Blocked);
    pair.pass(2_900);
    assert!(pair.ends[1].closed.is_none(), "what is not read cannot be heard");
    pair.give(1, Input::Unblocked);
    pair.give(1, Input::Blocked);
    pair.pass(3_000);
    assert_eq!(pair.ends[1].closed.as_ref().unwrap().code, "control.slow_reader");
}

#[test]
fn a_farewell_lets_open_operations_end_and_nothing_begin() {
    let mut pair = Pair::new();
    let op = pair.begin(0, false, None);
    pair.settle();
    pair.give(1, Input::GoAway { reason: "restart".into(), redirect: Some("other:1".into()) });
    // Begun before the farewell was heard.
    let late = pair.begin(0, false, None);
    pair.settle();
    assert!(pair.ends[0].went_away && !pair.ends[0].waiting.contains_key(&late));
    assert_eq!(pair.ends[0].failures[&late].class, Class::Unreachable, "it certainly did not happen");
    assert!(!pair.ends[0].session.may_begin());
    assert!(pair.ends[1].closed.is_none(), "one is still open");
    pair.answer(1, op, false);
    assert_eq!(pair.ends[1].closed.as_ref().unwrap().redirect.as_deref(), Some("other:1"));
    pair.settle();
    assert!(pair.ends[0].waiting.is_empty());
}

#[test]
fn what_was_sent_is_unknown_after_a_loss_and_what_was_not_is_unreachable() {
    let (mut end, mut wire) = (Pair::new().ends.into_iter().next().unwrap(), VecDeque::new());
    let sent = end.begin(at(0), false, None, &mut wire);
    let mut out = Outbox::new();
    end.session.handle(at(0), Input::Lost(error::closed()), &mut out);
    let unsent = OpId(sent.0 + 2);
    end.session.handle(at(0), Input::Begin { op: unsent, body: body(), more: false, deadline: None }, &mut out);
    let classes: Vec<(OpId, Class)> = out
        .into_iter()
        .filter_map(|output| match output {
            Output::Failed { op, error } => Some((op, error.class)),
            _ => None,
        })
        .collect();
    assert_eq!(classes, [(sent, Class::OutcomeUnknown), (unsent, Class::Unreachable)]);
}

#[derive(Clone, Debug)]
enum Step {
    Deliver(bool),
    Begin { end: bool, more: bool, within: Option<u16> },
    Continue { end: bool, which: u8, more: bool },
    Answer { end: bool, which: u8, more: bool },
    Fail { end: bool, which: u8 },
    Cancel { end: bool, which: u8 },
    Consume { end: bool, which: u8, frames: u8 },
    Pass(u16),
    Block(bool),
    Unblock(bool),
    GoAway(bool),
    Cut,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => any::<bool>().prop_map(Step::Deliver),
        8 => (any::<bool>(), any::<bool>(), proptest::option::of(0u16..3_000))
            .prop_map(|(end, more, within)| Step::Begin { end, more, within }),
        4 => any::<(bool, u8, bool)>().prop_map(|(end, which, more)| Step::Continue { end, which, more }),
        8 => any::<(bool, u8, bool)>().prop_map(|(end, which, more)| Step::Answer { end, which, more }),
        1 => any::<(bool, u8)>().prop_map(|(end, which)| Step::Fail { end, which }),
        2 => any::<(bool, u8)>().prop_map(|(end, which)| Step::Cancel { end, which }),
        4 => (any::<bool>(), any::<u8>(), 0u8..4).prop_map(|(end, which, frames)| Step::Consume { end, which, frames }),
        3 => (0u16..600).prop_map(Step::Pass),
        1 => any::<bool>().prop_map(Step::Block),
        1 => any::<bool>().prop_map(Step::Unblock),
        1 => any::<bool>().prop_map(Step::GoAway),
        1 => Just(Step::Cut),
    ]
}

impl Pair {
    fn step(&mut self, step: Step) {
        match step {
            Step::Deliver(from) => {
                self.deliver(usize::from(from));
            }
            Step::Begin { end, more, within } => {
                self.begin(usize::from(end), more, within.map(u64::from));
            }
            Step::Continue { end, which, more } => {
                let end = usize::from(end);
                if let Some(op) = End::pick(&self.ends[end].waiting, which) {
                    self.give(end, Input::Send { op, body: body(), more });
                }
            }
            Step::Answer { end, which, more } => {
                let end = usize::from(end);
                if let Some(op) = End::pick(&self.ends[end].working, which) {
                    // One in four handlers does not look at its credit.
                    let may = self.ends[end].working[&op] > 0 || which.is_multiple_of(4);
                    self.answer(end, op, more && may);
                }
            }
            Step::Fail { end, which } => {
                let end = usize::from(end);
                if let Some(op) = End::pick(&self.ends[end].working, which) {
                    self.ends[end].working.remove(&op);
                    self.give(end, Input::Fail { op, error: error::unanswered() });
                }
            }
            Step::Cancel { end, which } => {
                let end = usize::from(end);
                if let Some(op) = End::pick(&self.ends[end].waiting, which) {
                    self.ends[end].end(op);
                    self.give(end, Input::Cancel { op });
                }
            }
            Step::Consume { end, which, frames } => {
                let end = usize::from(end);
                if let Some(op) = End::pick(&self.ends[end].waiting, which) {
                    self.give(end, Input::Consumed { op, frames: frames.into() });
                }
            }
            Step::Pass(millis) => self.pass(millis.into()),
            Step::Block(end) => self.give(usize::from(end), Input::Blocked),
            Step::Unblock(end) => self.give(usize::from(end), Input::Unblocked),
            Step::GoAway(end) => {
                self.give(usize::from(end), Input::GoAway { reason: "test".into(), redirect: None });
            }
            Step::Cut => {
                self.wires.iter_mut().for_each(VecDeque::clear);
                for end in 0..2 {
                    self.give(end, Input::Lost(error::closed()));
                }
            }
        }
    }
}

proptest! {
    /// Whatever callers, handlers, time and the pipe do: every operation ends once, and nothing stays behind.
    #[test]
    fn every_operation_ends_once_and_nothing_leaks(steps in proptest::collection::vec(step(), 0..300)) {
        let mut pair = Pair::new();
        for step in steps {
            pair.step(step);
        }
        // All is quiet now: everything arrives, and the handlers end what they work on.
        pair.settle();
        for end in 0..2 {
            for op in pair.ends[end].working.keys().copied().collect::<Vec<_>>() {
                pair.answer(end, op, false);
            }
        }
        pair.settle();
        for end in &pair.ends {
            prop_assert!(end.working.is_empty());
            prop_assert!(end.waiting.is_empty(), "{:?} still wait", end.waiting);
            prop_assert_eq!(end.begun, end.ended);
            prop_assert!(end.failures.iter().all(|(op, error)| error.class != Class::Unreachable
                || !pair.ends.iter().any(|other| other.seen.contains(op))), "what the other side began may have happened");
            prop_assert_eq!(end.session.open_operations(), 0);
            prop_assert!(end.session.deadlines.is_empty());
        }
    }

    /// A peer that sends anything at all cannot make a session panic, or hold more than its limits.
    #[test]
    fn any_frames_are_survived(frames in proptest::collection::vec((0u64..12, any::<bool>(), 0u8..14, 0usize..300), 0..100)) {
        for side in [Side::Connector, Side::Acceptor] {
            let mut pair = Pair::new();
            let end = usize::from(side == Side::Acceptor);
            pair.begin(end, false, None);
            pair.begin(end, true, None);
            for (op, more, kind, bytes) in &frames {
                let control = |message| Some(control_body(message));
                let body = match kind {
                    0 => None,
                    1 => Some(Body::Control(v1::Control { message: None })),
                    2 => control(Control::Hello(v1::Hello { min: 1, max: 1, ..Default::default() })),
                    3 => control(Control::Welcome(v1::Welcome { version: 1, ..Default::default() })),
                    4 => control(Control::Error(v1::Error::default())),
                    5 => control(Control::Cancel(v1::Cancel {})),
                    6 => control(Control::Credit(v1::Credit { frames: u32::MAX })),
                    7 => control(Control::Ping(v1::Ping { nonce: 1 })),
                    8 => control(Control::Pong(v1::Pong { nonce: 1 })),
                    9 => control(Control::GoAway(v1::GoAway::default())),
                    10 => Some(Body::Store(StoreMessage { message: None })),
                    _ => Some(body()),
                };
                let frame = Frame { op: *op, more: *more, body };
                pair.give(end, Input::Received { frame, bytes: *bytes });
                prop_assert!(pair.ends[end].working.len() <= limits().max_operations as usize);
            }
        }
    }
}
