//! What a join, a leave, an expiry and a renewal cost: they must not grow with the square of the pool.

use super::*;
use std::time::Instant;

/// Speaks to a manager for many owners, and grants every commit at once.
struct Crowd {
    manager: Manager,
    now: Mono,
    files: BTreeMap<File, u64>,
    talks: Vec<Talker>,
    next_op: u64,
    waiting: BTreeMap<OpId, usize>,
}

#[derive(Clone, Default)]
struct Talker {
    seq: u64,
    heard: u64,
    epoch: u64,
    claims: Vec<v1::LeasedRange>,
    dead: bool,
    incarnation: u64,
}

impl Crowd {
    fn new(owners: usize) -> Crowd {
        let manager = Manager::new(Options { seed: 1, ..Default::default() });
        let talks = vec![Talker { incarnation: 1, ..Default::default() }; owners];
        let now = Mono(1_000_000_000);
        let mut crowd = Crowd { manager, now, files: BTreeMap::new(), talks, next_op: 1, waiting: BTreeMap::new() };
        crowd.feed(Input::SessionUntil(Mono(u64::MAX)));
        crowd.feed(Input::Elected { epoch: 1 });
        let create = v1::NamespaceCreate { namespace: "n".into(), config: None };
        crowd.feed(Input::Operate { op: OpId(1), request: Message::NamespaceCreate(create) });
        crowd
    }

    fn feed(&mut self, input: Input) {
        let mut out = Outbox::new();
        self.manager.handle(Now { mono: self.now, wall: Wall(0) }, input, &mut out);
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
                    let Some(owner) = self.waiting.remove(&op) else { continue };
                    self.heard(owner, answer);
                    continue;
                }
                _ => continue,
            };
            let mut out = Outbox::new();
            self.manager.handle(Now { mono: self.now, wall: Wall(0) }, input, &mut out);
            todo.extend(out);
        }
    }

    fn heard(&mut self, owner: usize, answer: v1::OwnerAnswer) {
        let talk = &mut self.talks[owner];
        (talk.heard, talk.epoch) = (answer.seq, answer.epoch);
        let news = answer.hello || !answer.grants.is_empty() || answer.renewals != talk.claims;
        talk.claims = answer.renewals;
        talk.claims.extend(answer.grants.into_iter().filter_map(|grant| grant.range));
        // What is new is claimed, and what is gone is released, at once.
        if news {
            self.say(owner);
        }
    }

    fn say(&mut self, owner: usize) {
        self.next_op += 2;
        let op = OpId(self.next_op);
        self.waiting.insert(op, owner);
        let talk = &mut self.talks[owner];
        if talk.dead {
            return;
        }
        talk.seq += 1;
        let poll = v1::OwnerPoll {
            namespace: "n".into(),
            owner: format!("owner-{owner}"),
            address: format!("host{owner}:1"),
            incarnation: talk.incarnation,
            nonce: talk.incarnation,
            epoch: talk.epoch,
            seq: talk.seq,
            heard: talk.heard,
            claims: talk.claims.clone(),
            wait_ms: 5_000,
            ..Default::default()
        };
        self.feed(Input::Owner { op, poll: Box::new(poll) });
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.manager.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let mut out = Outbox::new();
            self.manager.wake(Now { mono: self.now, wall: Wall(0) }, &mut out);
            self.perform(out);
        }
        self.now = end;
    }

    fn held(&self) -> usize {
        self.talks.iter().map(|talk| talk.claims.len()).sum()
    }
}

/// What each thing costs in a pool of so many owners: ranges, join, renewal, leave, all in microseconds.
#[allow(clippy::disallowed_methods)] // It measures.
fn costs(owners: usize) -> (usize, f64, f64, f64) {
    let mut crowd = Crowd::new(owners + 10);
    for owner in 0..owners {
        crowd.say(owner);
        crowd.pass(20 * MS);
    }
    crowd.pass(Duration::from_secs(1));
    let ranges = crowd.held();
    let us = |since: Instant, n: usize| since.elapsed().as_secs_f64() * 1e6 / n as f64;
    let begun = Instant::now();
    for owner in owners..owners + 10 {
        crowd.say(owner);
        crowd.pass(20 * MS);
    }
    let join = us(begun, 10);
    let begun = Instant::now();
    for _ in 0..2 {
        for owner in 0..owners {
            crowd.say(owner);
        }
    }
    let renewal = us(begun, 2 * owners);
    for owner in 0..10 {
        crowd.talks[owner].dead = true;
    }
    let begun = Instant::now();
    for _ in 0..8 {
        crowd.pass(Duration::from_secs(10));
        for owner in 10..owners {
            crowd.say(owner);
        }
    }
    let leave = us(begun, 10);
    (ranges, join, renewal, leave)
}

#[test]
fn every_range_of_a_crowd_is_held_and_found_again_after_owners_die() {
    let mut crowd = Crowd::new(40);
    for owner in 0..40 {
        crowd.say(owner);
        crowd.pass(20 * MS);
    }
    let points = |crowd: &Crowd| -> u128 {
        let claims = crowd.talks.iter().filter(|talk| !talk.dead).flat_map(|talk| &talk.claims);
        claims.map(|claim| u128::from(claim.last - claim.start) + 1).sum()
    };
    assert_eq!(points(&crowd), KeyRange::FULL.len());
    (0..10).for_each(|owner| crowd.talks[owner].dead = true);
    for _ in 0..9 {
        crowd.pass(Duration::from_secs(10));
        (10..40).for_each(|owner| crowd.say(owner));
    }
    assert_eq!(points(&crowd), KeyRange::FULL.len());
}

/// `cargo test -p tidings-placement --lib -- --ignored --nocapture cost_of`.
#[test]
#[ignore = "measures; prints what a join, a renewal and a death cost at 200 and 2,000 owners"]
fn cost_of_joins_renewals_and_deaths() {
    for owners in [200, 2_000] {
        let (ranges, join, renewal, leave) = costs(owners);
        println!("{owners} owners, {ranges} ranges: join {join:.0} µs, renewal {renewal:.0} µs, death {leave:.0} µs");
    }
}
