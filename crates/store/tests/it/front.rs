//! The front as a machine: no driver but the test.

use bytes::Bytes;
use std::time::Duration;
use tidings_base::agreed::{AgreedState, Ask, Entry, Heard, Refusal, Role};
use tidings_base::{Class, Epoch, Error, LogIndex, Machine, Mono, NodeId, Now, OpId, Outbox, Wall};
use tidings_store::front::{Front, Input, Options, Output, Reply, Request};
use tidings_store::messages::*;
use tidings_store::{MemoryKv, Query, StoreState};
use tidings_wire::v1;
use tidings_wire::v1::feed_message::Message as FeedMessage;
use tidings_wire::v1::store_message::Message as StoreMessage;

/// A front with its state, a clock, and outputs that the test performs when it likes.
struct Bench {
    front: Front,
    state: StoreState<MemoryKv>,
    now: Now,
    last_op: u64,
    out: Vec<Output>,
}

impl Bench {
    fn new(options: Options) -> Bench {
        let state = StoreState::open(MemoryKv::new()).unwrap();
        let now = Now { mono: Mono(1_000_000_000), wall: Wall(0) };
        let mut bench = Bench { front: Front::new(options), state, now, last_op: 1, out: Vec::new() };
        bench.role(Role::Leader { epoch: Epoch(1) });
        bench
    }

    fn feed(&mut self, input: Input) {
        let mut out = Outbox::new();
        self.front.handle(self.now, input, &mut out);
        self.out.extend(out);
    }

    fn role(&mut self, role: Role) {
        self.feed(Input::Heard(Heard::Role(role)));
    }

    fn request(&mut self, request: Request) -> OpId {
        self.last_op += 2;
        let op = OpId(self.last_op);
        self.feed(Input::Request { op, request, deadline: None });
        op
    }

    fn store(&mut self, message: StoreMessage) -> OpId {
        self.request(Request::Store(message))
    }

    fn consume(&mut self, limit: u32, wait_ms: u32, redeliver_ms: u32) -> OpId {
        let wanted = v1::Consume { redeliver_ms, ..consume("t", "g", limit, wait_ms) };
        self.request(Request::Feed(FeedMessage::Consume(wanted)))
    }

    fn append(&mut self, count: usize) {
        let entries = vec![Bytes::from("entry"); count];
        self.request(Request::Feed(FeedMessage::Append(v1::Append { topic: "t".into(), entries })));
        self.settle();
    }

    fn ack(&mut self, numbers: Vec<u64>) -> OpId {
        self.request(Request::Feed(FeedMessage::Ack(v1::Ack { topic: "t".into(), group: "g".into(), numbers })))
    }

    fn pass(&mut self, by: Duration) {
        self.now.mono = self.now.mono + by;
        let mut out = Outbox::new();
        self.front.wake(self.now, &mut out);
        self.out.extend(out);
    }

    fn apply(&mut self, op: OpId, command: &[u8]) -> Heard {
        let index = LogIndex(self.state.position().index.0 + 1);
        let mut results = self.state.apply(&[Entry { index, command }], Bytes::new()).unwrap();
        Heard::Applied { op, index, result: results.remove(0) }
    }

    /// Performs everything but replies and reads, until nothing is left to do; replies stay in `out`.
    fn settle(&mut self) {
        while let Some(at) = self.out.iter().position(|o| matches!(o, Output::Ask(_) | Output::Look { .. })) {
            match self.out.remove(at) {
                Output::Ask(Ask::Propose { op, command }) => {
                    let heard = self.apply(op, &command);
                    self.feed(Input::Heard(heard));
                }
                Output::Ask(Ask::ReadBarrier { op }) => {
                    self.feed(Input::Heard(Heard::Passed { op, index: self.state.position().index }));
                }
                Output::Look { line, query } => {
                    let answer = Ok(self.state.reader().feed(&query).unwrap());
                    self.feed(Input::Looked { line, answer });
                }
                _ => unreachable!(),
            }
        }
    }

    fn replies(&mut self) -> Vec<(OpId, Reply)> {
        let (replies, rest) = self.out.drain(..).partition(|o| matches!(o, Output::Reply { .. }));
        self.out = rest;
        let replies: Vec<Output> = replies;
        replies
            .into_iter()
            .map(|o| match o {
                Output::Reply { op, reply } => (op, reply),
                _ => unreachable!(),
            })
            .collect()
    }

    fn delivered(&mut self) -> Vec<(OpId, Vec<(u64, u32)>)> {
        let replies = self.replies().into_iter();
        let delivered = replies.filter_map(|(op, reply)| match reply {
            Reply::Feed(FeedMessage::Deliveries(d)) => {
                Some((op, d.deliveries.iter().map(|d| (d.number, d.redelivered)).collect()))
            }
            Reply::Feed(_) => None,
            other => panic!("{other:?}"),
        });
        delivered.collect()
    }

    fn errors(&mut self) -> Vec<(OpId, Error, Option<NodeId>)> {
        let replies = self.replies().into_iter();
        let errors = replies.map(|(op, reply)| match reply {
            Reply::Error { error, leader } => (op, error, leader),
            other => panic!("{other:?}"),
        });
        errors.collect()
    }
}

fn write(at: &'static str) -> StoreMessage {
    StoreMessage::Apply(put("g", at, cell("c", 1, "v")))
}

#[test]
fn a_write_is_answered_only_when_it_is_applied() {
    let mut bench = Bench::new(Options::default());
    let op = bench.store(write("r"));
    assert_eq!(bench.replies(), [], "nothing is known yet");
    let [Output::Ask(Ask::Propose { op: proposed, command })] = &bench.out[..] else { panic!("{:?}", bench.out) };
    let (proposed, command) = (*proposed, command.clone());
    assert_eq!(proposed, op);
    let heard = bench.apply(op, &command);
    bench.feed(Input::Heard(heard.clone()));
    let applied = Reply::Store(StoreMessage::Applied(v1::Applied::default()));
    assert_eq!(bench.replies(), [(op, applied)]);
    bench.feed(Input::Heard(heard));
    assert_eq!(bench.replies(), [], "an answer is given once");
    assert_eq!((bench.front.open_operations(), bench.front.deadline()), (0, None));
}

#[test]
fn refusals_and_unknown_outcomes_have_their_class_and_the_leader() {
    let mut bench = Bench::new(Options::default());
    let cases = [
        (Refusal::NotLeader { leader: Some(NodeId(7)) }, "store.not_leader", Class::Unreachable, Some(NodeId(7))),
        (Refusal::Busy, "store.busy", Class::Unreachable, None),
        (Refusal::TooLarge, "store.too_large", Class::Invalid, None),
        (Refusal::Stopped, "store.stopped", Class::Unreachable, None),
    ];
    for (refusal, code, class, leader) in cases {
        let op = bench.store(write("r"));
        bench.feed(Input::Heard(Heard::Refused { op, refusal }));
        let [(answered, error, told)] = &bench.errors()[..] else { panic!() };
        assert_eq!((*answered, error.code.as_ref(), error.class, *told), (op, code, class, leader));
        assert!(!error.hint.is_empty());
    }
    let op = bench.store(write("r"));
    bench.feed(Input::Heard(Heard::Unknown { op }));
    assert_eq!(bench.errors()[0].1.class, Class::OutcomeUnknown);
    let op = bench.store(write("r"));
    bench.pass(Duration::from_secs(9));
    assert_eq!(bench.errors(), [], "not yet");
    bench.pass(Duration::from_secs(1));
    let [(answered, error, None)] = &bench.errors()[..] else { panic!() };
    assert_eq!((*answered, error.class), (op, Class::OutcomeUnknown), "a write that takes too long is unknown");
    assert_eq!(bench.front.open_operations(), 0);
}

#[test]
fn bad_input_never_reaches_the_log() {
    let mut bench = Bench::new(Options::default());
    bench.store(StoreMessage::Apply(apply(vec![])));
    bench.store(StoreMessage::Get(v1::Get::default()));
    bench.store(StoreMessage::Rows(v1::Rows::default()));
    bench.request(Request::Feed(FeedMessage::Acked(v1::Acked {})));
    bench.consume(0, 0, 0);
    let _ = bench.out.pop();
    let errors = bench.errors();
    assert_eq!(errors.len(), 4);
    assert!(errors.iter().all(|(_, error, _)| error.class == Class::Invalid));
    assert_eq!(bench.out, []);
}

#[test]
fn one_barrier_serves_many_reads_but_none_that_came_after_it() {
    let mut bench = Bench::new(Options::default());
    let first = bench.store(StoreMessage::Get(get("g", "r")));
    let later = [bench.store(StoreMessage::Get(get("g", "s"))), bench.store(StoreMessage::Status(v1::StoreStatus {}))];
    let [Output::Ask(Ask::ReadBarrier { op })] = bench.out[..] else { panic!("{:?}", bench.out) };
    assert_eq!(op.0 % 2, 0, "the front's own operations are even");
    bench.out.clear();
    bench.feed(Input::Heard(Heard::Passed { op, index: LogIndex(0) }));
    let Output::Read { op: read, query: Query::Get(_) } = &bench.out[0] else { panic!("{:?}", bench.out) };
    assert_eq!(*read, first);
    let Output::Ask(Ask::ReadBarrier { op }) = bench.out[1] else { panic!("{:?}", bench.out) };
    bench.out.clear();
    bench.feed(Input::Heard(Heard::Refused { op, refusal: Refusal::NotLeader { leader: Some(NodeId(2)) } }));
    let errors = bench.errors();
    assert_eq!(errors.iter().map(|e| (e.0, e.2)).collect::<Vec<_>>(), later.map(|op| (op, Some(NodeId(2)))));
    assert_eq!((bench.front.open_operations(), bench.front.deadline()), (0, None));
}

#[test]
fn a_barrier_that_is_never_answered_does_not_stop_the_next() {
    let mut bench = Bench::new(Options::default());
    bench.store(StoreMessage::Get(get("g", "r")));
    bench.consume(1, 60_000, 0);
    bench.out.clear();
    bench.pass(Duration::from_secs(10));
    assert_eq!(bench.errors().len(), 1, "the read ran out of time");
    assert!(
        bench.out.iter().any(|o| matches!(o, Output::Ask(Ask::ReadBarrier { .. }))),
        "the consumer's look is asked"
    );
    bench.settle();
    bench.append(1);
    assert_eq!(bench.delivered().len(), 1);
}

#[test]
fn there_is_a_bound_on_open_operations() {
    let mut bench = Bench::new(Options { max_operations: 3, ..Options::default() });
    bench.store(write("a"));
    bench.store(StoreMessage::Get(get("g", "r")));
    bench.consume(1, 1000, 0);
    let op = bench.store(write("b"));
    let [(refused, error, None)] = &bench.errors()[..] else { panic!() };
    assert_eq!((*refused, error.code.as_ref()), (op, "store.busy"));
    bench.settle();
    bench.replies();
    bench.store(write("b"));
    bench.settle();
    assert!(matches!(bench.replies()[..], [(_, Reply::Store(StoreMessage::Applied(_)))]));
}

#[test]
fn consumers_are_served_in_order_and_each_entry_goes_to_one() {
    let mut bench = Bench::new(Options::default());
    let (first, second) = (bench.consume(2, 1000, 0), bench.consume(2, 1000, 0));
    bench.settle();
    assert_eq!(bench.delivered(), []);
    bench.append(3);
    assert_eq!(bench.delivered(), [(first, vec![(1, 0), (2, 0)]), (second, vec![(3, 0)])]);
    assert_eq!(bench.front.outstanding_entries(), 3);
    let third = bench.consume(2, 1000, 0);
    bench.settle();
    bench.pass(Duration::from_millis(999));
    bench.settle();
    assert_eq!(bench.delivered(), [], "all three are with consumers");
    bench.pass(Duration::from_millis(1));
    bench.settle();
    assert_eq!(bench.delivered(), [(third, vec![])], "the wait ends with nothing");
}

#[test]
fn an_entry_comes_again_after_its_time_unless_it_is_acknowledged() {
    let mut bench = Bench::new(Options::default());
    let first = bench.consume(10, 0, 500);
    bench.append(3);
    bench.settle();
    assert_eq!(bench.delivered(), [(first, vec![(1, 0), (2, 0), (3, 0)])]);
    bench.ack(vec![2]);
    bench.settle();
    let second = bench.consume(10, 60_000, 0);
    bench.settle();
    bench.pass(Duration::from_millis(499));
    bench.settle();
    assert_eq!(bench.delivered(), []);
    bench.pass(Duration::from_millis(1));
    bench.settle();
    assert_eq!(bench.delivered(), [(second, vec![(1, 1), (3, 1)])]);
    let third = bench.consume(10, 60_000, 0);
    bench.settle();
    bench.pass(Duration::from_secs(30));
    bench.settle();
    assert_eq!(bench.delivered(), [(third, vec![(1, 2), (3, 2)])], "30 s unless told otherwise");
}

#[test]
fn an_entry_acknowledged_while_a_look_is_under_way_is_not_delivered() {
    let mut bench = Bench::new(Options::default());
    bench.consume(10, 0, 10);
    bench.append(2);
    bench.settle();
    bench.delivered();
    bench.pass(Duration::from_millis(10));
    let again = bench.consume(10, 1000, 0);
    // The look is read, but its answer is still on its way when the acknowledgement is applied.
    let Some(Output::Ask(Ask::ReadBarrier { op })) = bench.out.pop() else { panic!("{:?}", bench.out) };
    bench.feed(Input::Heard(Heard::Passed { op, index: LogIndex(0) }));
    let Some(Output::Look { line, query }) = bench.out.pop() else { panic!("{:?}", bench.out) };
    let answer = bench.state.reader().feed(&query).unwrap();
    bench.ack(vec![1]);
    bench.settle();
    bench.feed(Input::Looked { line, answer: Ok(answer) });
    assert_eq!(bench.delivered(), [(again, vec![(2, 1)])]);
}

#[test]
fn losing_leadership_sends_consumers_away_and_a_new_leadership_delivers_again() {
    let mut bench = Bench::new(Options::default());
    let first = bench.consume(1, 0, 0);
    bench.append(2);
    bench.settle();
    assert_eq!(bench.delivered(), [(first, vec![(1, 0)])]);
    bench.ack(vec![1]);
    bench.settle();
    let second = bench.consume(5, 1000, 0);
    bench.settle();
    assert_eq!(bench.delivered(), [(second, vec![(2, 0)])]);
    let waiting = bench.consume(5, 60_000, 0);
    bench.settle();
    bench.role(Role::Follower { leader: Some(NodeId(3)) });
    let [(op, error, leader)] = &bench.errors()[..] else { panic!() };
    assert_eq!((*op, error.code.as_ref(), *leader), (waiting, "feed.not_leader", Some(NodeId(3))));
    let op = bench.consume(5, 1000, 0);
    assert_eq!(bench.errors()[0].0, op, "a follower serves no consumers");
    assert_eq!((bench.front.outstanding_entries(), bench.front.deadline()), (0, None));
    bench.role(Role::Leader { epoch: Epoch(2) });
    let third = bench.consume(5, 1000, 0);
    bench.settle();
    assert_eq!(
        bench.delivered(),
        [(third, vec![(2, 0)])],
        "unacknowledged entries come at once, acknowledged ones never"
    );
    bench.role(Role::Leader { epoch: Epoch(5) });
    let fourth = bench.consume(5, 1000, 0);
    bench.settle();
    assert_eq!(bench.delivered(), [(fourth, vec![(2, 0)])], "another epoch is another leadership");
}

#[test]
fn an_append_of_unknown_outcome_reaches_waiting_consumers() {
    let mut bench = Bench::new(Options::default());
    let waiting = bench.consume(5, 60_000, 0);
    bench.settle();
    let entries = vec![Bytes::from("entry")];
    bench.request(Request::Feed(FeedMessage::Append(v1::Append { topic: "t".into(), entries })));
    let Some(Output::Ask(Ask::Propose { op, command })) = bench.out.pop() else { panic!("{:?}", bench.out) };
    bench.apply(op, &command);
    bench.feed(Input::Heard(Heard::Unknown { op }));
    assert_eq!(bench.errors()[0].1.class, Class::OutcomeUnknown);
    bench.pass(Duration::from_secs(1));
    bench.settle();
    assert_eq!(bench.delivered(), [(waiting, vec![(1, 0)])]);
}

#[test]
fn a_consumer_that_went_away_takes_nothing() {
    let mut bench = Bench::new(Options::default());
    let gone = bench.consume(5, 60_000, 0);
    bench.settle();
    bench.feed(Input::Cancel { op: gone });
    assert_eq!(bench.front.open_operations(), 0);
    bench.append(1);
    bench.settle();
    let here = bench.consume(5, 60_000, 0);
    bench.settle();
    assert_eq!(bench.delivered(), [(here, vec![(1, 0)])]);
    let read = bench.store(StoreMessage::Get(get("g", "r")));
    bench.feed(Input::Cancel { op: read });
    bench.settle();
    assert_eq!(bench.out, [], "a cancelled read is not performed");
}

#[test]
fn a_join_that_fails_tells_the_consumer() {
    let mut bench = Bench::new(Options::default());
    let op = bench.consume(5, 60_000, 0);
    let Some(Output::Ask(Ask::ReadBarrier { op: barrier })) = bench.out.pop() else { panic!() };
    bench.feed(Input::Heard(Heard::Passed { op: barrier, index: LogIndex(0) }));
    let Some(Output::Look { line, query }) = bench.out.pop() else { panic!() };
    let answer = Ok(bench.state.reader().feed(&query).unwrap());
    bench.feed(Input::Looked { line, answer });
    let Some(Output::Ask(Ask::Propose { op: join, .. })) = bench.out.pop() else { panic!() };
    bench.feed(Input::Heard(Heard::Unknown { op: join }));
    let [(failed, error, None)] = &bench.errors()[..] else { panic!() };
    assert_eq!((*failed, error.class), (op, Class::OutcomeUnknown));
    assert_eq!(bench.front.open_operations(), 0);
}
