//! The front under random schedules: requests, answers of the log, looks, time and leadership in any order.
//!
//! Whatever happens, every request is answered once; an entry is with one consumer at a time, until its time is over or
//! the leadership; none comes after its acknowledgement was answered; and when things calm down, all are delivered.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::agreed::{AgreedState, Ask, Entry, Heard, Refusal, Role};
use tidings_base::{Class, Epoch, LogIndex, Machine, Mono, Now, OpId, Outbox, Seeded, Wall};
use tidings_store::front::{Front, Input, Options, Output, Reply, Request};
use tidings_store::messages::*;
use tidings_store::{FeedAnswer, MemoryKv, StoreState};
use tidings_wire::v1;
use tidings_wire::v1::feed_message::Message as FeedMessage;
use tidings_wire::v1::store_message::Message as StoreMessage;

const REDELIVER_MS: u32 = 2_000;

struct Run {
    rng: Seeded,
    front: Front,
    state: StoreState<MemoryKv>,
    now: Now,
    last_op: u64,
    epoch: u64,
    leading: bool,
    /// What the driver has not done yet; proposals keep their order, all else does not.
    todo: Vec<Output>,
    /// Inputs on their way.
    coming: Vec<Input>,
    unanswered: BTreeMap<OpId, Asked>,
    /// With whom an entry is, until when, in which epoch.
    out: BTreeMap<u64, (Mono, u64)>,
    acked: BTreeSet<u64>,
    seen: BTreeSet<u64>,
    faults: bool,
}

enum Asked {
    Other,
    Ack(Vec<u64>),
}

impl Run {
    fn new(seed: u64) -> Run {
        Run {
            rng: Seeded::new(seed),
            front: Front::new(Options::default()),
            state: StoreState::open(MemoryKv::new()).unwrap(),
            now: Now { mono: Mono(1), wall: Wall(1) },
            last_op: 1,
            epoch: 0,
            leading: false,
            todo: Vec::new(),
            coming: Vec::new(),
            unanswered: BTreeMap::new(),
            out: BTreeMap::new(),
            acked: BTreeSet::new(),
            seen: BTreeSet::new(),
            faults: true,
        }
    }

    fn input(&mut self, input: Input) {
        let mut out = Outbox::new();
        self.front.handle(self.now, input, &mut out);
        self.take(out);
    }

    fn take(&mut self, out: Outbox<Output>) {
        for output in out {
            match output {
                Output::Reply { op, reply } => self.replied(op, reply),
                Output::Read { op, .. } => assert!(self.unanswered.remove(&op).is_some(), "a read is let go once"),
                other => self.todo.push(other),
            }
        }
    }

    fn replied(&mut self, op: OpId, reply: Reply) {
        let asked = self.unanswered.remove(&op).expect("a request is answered once");
        match reply {
            Reply::Feed(FeedMessage::Deliveries(d)) => {
                assert!(self.leading, "only a leader delivers");
                for delivery in d.deliveries {
                    let number = delivery.number;
                    assert!(!self.acked.contains(&number), "entry {number} came after its acknowledgement");
                    let until = self.now.mono + Duration::from_millis(u64::from(REDELIVER_MS));
                    if let Some((until, epoch)) = self.out.insert(number, (until, self.epoch)) {
                        let over = until <= self.now.mono || epoch != self.epoch;
                        assert!(over, "entry {number} is with two consumers at once");
                    }
                    self.seen.insert(number);
                }
            }
            Reply::Feed(FeedMessage::Acked(_)) => {
                if let Asked::Ack(numbers) = asked {
                    self.acked.extend(numbers);
                }
            }
            Reply::Error { error, .. } => {
                let expected = [Class::Unreachable, Class::OutcomeUnknown, Class::NotFound];
                assert!(expected.contains(&error.class), "{error:?}");
            }
            _ => {}
        }
    }

    fn request(&mut self, request: Request, asked: Asked) {
        self.last_op += 2;
        let op = OpId(self.last_op);
        self.unanswered.insert(op, asked);
        self.input(Input::Request { op, request, deadline: None });
    }

    fn consume(&mut self, wait_ms: u32) {
        let limit = self.rng.between(1, 6) as u32;
        let wanted = v1::Consume { redeliver_ms: REDELIVER_MS, ..consume("t", "g", limit, wait_ms) };
        self.request(Request::Feed(FeedMessage::Consume(wanted)), Asked::Other);
    }

    fn ack(&mut self, count: u64) {
        let open: Vec<u64> = self.seen.difference(&self.acked).copied().collect();
        let numbers: Vec<u64> = (0..count).filter_map(|_| self.rng.pick(&open).copied()).collect();
        if !numbers.is_empty() {
            let ack = v1::Ack { topic: "t".into(), group: "g".into(), numbers: numbers.clone() };
            self.request(Request::Feed(FeedMessage::Ack(ack)), Asked::Ack(numbers));
        }
    }

    fn append(&mut self) {
        let entries = vec![Bytes::from("entry"); self.rng.between(1, 4) as usize];
        let append = v1::Append { topic: "t".into(), entries };
        self.request(Request::Feed(FeedMessage::Append(append)), Asked::Other);
    }

    fn lead(&mut self, lead: bool) {
        self.epoch += u64::from(lead);
        self.leading = lead;
        let role = if lead { Role::Leader { epoch: Epoch(self.epoch) } } else { Role::Follower { leader: None } };
        self.input(Input::Heard(Heard::Role(role)));
    }

    /// Performs one thing that the front wants: the oldest proposal, or anything else.
    fn perform(&mut self) {
        if self.todo.is_empty() {
            return;
        }
        let at = self.rng.below(self.todo.len() as u64) as usize;
        let is_proposal = |o: &Output| matches!(o, Output::Ask(Ask::Propose { .. }));
        let at = if is_proposal(&self.todo[at]) { self.todo.iter().position(is_proposal).unwrap_or(at) } else { at };
        let fault = self.faults && self.rng.one_in(8);
        let input = match self.todo.remove(at) {
            Output::Ask(Ask::Propose { op, command }) => {
                if !self.leading {
                    Input::Heard(Heard::Refused { op, refusal: Refusal::NotLeader { leader: None } })
                } else if fault && self.rng.one_in(2) {
                    Input::Heard(Heard::Unknown { op })
                } else {
                    let index = LogIndex(self.state.position().index.0 + 1);
                    let entry = Entry { index, command: &command };
                    let result = self.state.apply(&[entry], Bytes::new()).unwrap().remove(0);
                    if fault {
                        Input::Heard(Heard::Unknown { op })
                    } else {
                        Input::Heard(Heard::Applied { op, index, result })
                    }
                }
            }
            Output::Ask(Ask::ReadBarrier { op }) if fault || !self.leading => {
                Input::Heard(Heard::Refused { op, refusal: Refusal::NotLeader { leader: None } })
            }
            Output::Ask(Ask::ReadBarrier { op }) => Input::Heard(Heard::Passed { op, index: LogIndex(0) }),
            Output::Look { line, query } => {
                let answer: FeedAnswer = self.state.reader().feed(&query).unwrap();
                Input::Looked { line, answer: Ok(answer) }
            }
            other => panic!("{other:?}"),
        };
        self.coming.push(input);
    }

    /// Lets one answer arrive: those of the log in their order.
    fn arrive(&mut self) {
        if self.coming.is_empty() {
            return;
        }
        let at = self.rng.below(self.coming.len() as u64) as usize;
        let is_heard = |i: &Input| matches!(i, Input::Heard(_));
        let at = if is_heard(&self.coming[at]) { self.coming.iter().position(is_heard).unwrap_or(at) } else { at };
        let input = self.coming.remove(at);
        self.input(input);
    }

    fn pass(&mut self, by: Duration) {
        self.now.mono = self.now.mono + by;
        let mut out = Outbox::new();
        self.front.wake(self.now, &mut out);
        self.take(out);
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..30 => self.perform(),
            30..60 => self.arrive(),
            60..70 => {
                let wait = self.rng.below(3_000) as u32;
                self.consume(wait);
            }
            70..78 => self.append(),
            78..88 => {
                let count = self.rng.between(1, 5);
                self.ack(count);
            }
            88..90 => self.request(Request::Store(StoreMessage::Get(get("g", "r"))), Asked::Other),
            90..97 => {
                let by = Duration::from_millis(self.rng.below(1_000));
                self.pass(by);
            }
            97..98 => {
                let waiting: Vec<OpId> = self.unanswered.keys().copied().collect();
                if let Some(op) = self.rng.pick(&waiting).copied() {
                    self.input(Input::Cancel { op });
                    // Whether it is answered nevertheless depends on what it was.
                    self.unanswered.insert(op, Asked::Other);
                }
            }
            _ => {
                let lead = !self.leading || self.rng.one_in(3);
                self.lead(lead);
            }
        }
    }

    fn calm(&mut self) {
        while !self.todo.is_empty() || !self.coming.is_empty() {
            self.perform();
            self.arrive();
        }
    }
}

#[test]
fn any_schedule_keeps_the_promises_of_the_feed() {
    for seed in 0..300 {
        let mut run = Run::new(seed);
        run.lead(true);
        for _ in 0..400 {
            run.step();
        }
        // Calm: no more faults, and everything that was appended must be delivered and acknowledged.
        run.faults = false;
        run.lead(true);
        run.calm();
        run.pass(Duration::from_secs(61));
        run.calm();
        let topic = run.state.reader().topic(b"t").unwrap().unwrap_or_default();
        for _ in 0..10_000 {
            let floor = run.state.reader().topic(b"t").unwrap().and_then(|t| t.groups.get(&b"g"[..]).cloned());
            if floor.is_some_and(|acks| acks.floor() == topic.last) {
                break;
            }
            run.consume(0);
            run.calm();
            run.ack(5);
            run.calm();
            run.pass(Duration::from_millis(500));
            run.calm();
        }
        let acks = run.state.reader().topic(b"t").unwrap().unwrap().groups.get(&b"g"[..]).cloned();
        assert_eq!(acks.map(|a| a.floor()), Some(topic.last), "seed {seed}: everything is delivered in the end");
        run.pass(Duration::from_secs(120));
        run.calm();
        assert_eq!(run.front.open_operations(), 0, "seed {seed}: nothing stays open");
        assert_eq!(run.front.deadline(), None, "seed {seed}: nothing is waited for");
    }
}
