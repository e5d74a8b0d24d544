//! A manager's machine with owners that do just what the protocol asks of them, in virtual time: no sockets, no disk.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tidings_base::{Error, Machine, Mono, Now, OpId, Outbox, Wall};
use tidings_placement::manager::file::File;
use tidings_placement::manager::{Input, Manager, Options, Outcome, Output};
use tidings_wire::v1;
use tidings_wire::v1::placement_message::Message;

const NAMESPACE: &str = "bench";

#[derive(Clone, Default)]
struct Talker {
    seq: u64,
    heard: u64,
    epoch: u64,
    claims: Vec<v1::LeasedRange>,
    load: Option<v1::OwnerLoad>,
}

/// A pool.
pub struct Crowd {
    manager: Manager,
    now: Mono,
    files: BTreeMap<File, u64>,
    owners: Vec<Talker>,
    next_op: u64,
    waiting: BTreeMap<OpId, usize>,
    refused: Option<Error>,
}

impl Crowd {
    /// A pool of so many owners, who have joined one after the other.
    pub fn new(owners: u32, config: v1::NamespaceConfig, seed: u64) -> Result<Crowd, Error> {
        let mut crowd = Crowd {
            manager: Manager::new(Options { seed, ..Options::default() }),
            now: Mono(1_000_000_000),
            files: BTreeMap::new(),
            owners: vec![Talker::default(); owners as usize],
            next_op: 1,
            waiting: BTreeMap::new(),
            refused: None,
        };
        crowd.feed(Input::SessionUntil(Mono(u64::MAX)));
        crowd.feed(Input::Elected { epoch: 1 });
        let create = v1::NamespaceCreate { namespace: NAMESPACE.into(), config: Some(config) };
        crowd.feed(Input::Operate { op: OpId(0), request: Message::NamespaceCreate(create) });
        for owner in 0..crowd.owners.len() {
            crowd.say(owner);
            crowd.pass(Duration::from_millis(20));
        }
        crowd.refused.take().map_or(Ok(crowd), Err)
    }

    fn at(&self) -> Now {
        Now { mono: self.now, wall: Wall(0) }
    }

    fn feed(&mut self, input: Input) {
        let mut out = Outbox::new();
        self.manager.handle(self.at(), input, &mut out);
        self.perform(out);
    }

    fn perform(&mut self, out: Outbox<Output>) {
        let mut todo: VecDeque<Output> = out.into_iter().collect();
        while let Some(output) = todo.pop_front() {
            let input = match output {
                Output::Commit { id, file, .. } => {
                    let generation = self.files.entry(file).or_default();
                    *generation += 1;
                    Input::Committed { id, outcome: Outcome::Done { generation: *generation } }
                }
                Output::List => Input::Listed { names: Ok(Vec::new()) },
                Output::Answer { op, message: Message::OwnerAnswer(answer) } => {
                    match self.waiting.remove(&op).and_then(|owner| self.heard(owner, answer)) {
                        Some(input) => input,
                        None => continue,
                    }
                }
                Output::Fail { error, .. } if error.class != tidings_base::Class::Unreachable => {
                    self.refused = Some(error);
                    continue;
                }
                _ => continue,
            };
            let mut out = Outbox::new();
            self.manager.handle(self.at(), input, &mut out);
            todo.extend(out);
        }
    }

    /// What changed is claimed or released at once: the owner's next poll, if it has anything to say.
    fn heard(&mut self, owner: usize, answer: v1::OwnerAnswer) -> Option<Input> {
        let talker = &mut self.owners[owner];
        (talker.heard, talker.epoch) = (answer.seq, answer.epoch);
        let news = answer.hello || !answer.grants.is_empty() || answer.renewals != talker.claims;
        if !answer.hello {
            talker.claims = answer.renewals;
            talker.claims.extend(answer.grants.into_iter().filter_map(|grant| grant.range));
        }
        news.then(|| self.poll(owner))
    }

    fn poll(&mut self, owner: usize) -> Input {
        self.next_op += 2;
        let op = OpId(self.next_op);
        self.waiting.insert(op, owner);
        let talker = &mut self.owners[owner];
        talker.seq += 1;
        let poll = v1::OwnerPoll {
            namespace: NAMESPACE.into(),
            owner: format!("owner-{owner}"),
            address: format!("host-{owner}:1"),
            incarnation: 1,
            nonce: 1 + owner as u64,
            epoch: talker.epoch,
            seq: talker.seq,
            heard: talker.heard,
            claims: talker.claims.clone(),
            load: talker.load.take(),
            wait_ms: 60_000,
            ..Default::default()
        };
        Input::Owner { op, poll: Box::new(poll) }
    }

    fn say(&mut self, owner: usize) {
        let input = self.poll(owner);
        self.feed(input);
    }

    /// Every owner reports a load and renews; then so much time passes.
    pub fn report(&mut self, loads: Vec<v1::OwnerLoad>, time: Duration) {
        for (owner, load) in loads.into_iter().enumerate() {
            self.owners[owner].load = Some(load);
            self.say(owner);
        }
        self.pass(time);
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.manager.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let mut out = Outbox::new();
            self.manager.wake(self.at(), &mut out);
            self.perform(out);
        }
        self.now = end;
    }

    /// What each owner holds.
    pub fn claims(&self) -> impl Iterator<Item = &[v1::LeasedRange]> {
        self.owners.iter().map(|owner| owner.claims.as_slice())
    }
}
