mod load;
mod moves;
mod parts;
mod records;
mod restored;
mod rules;
mod scale;

use super::*;
use crate::check::Checks;
use crate::{Ticket, lookup, owner};
use std::collections::VecDeque;
use std::time::Duration;
use tidings_base::{KeyHash, KeyRange, Wall};

const MS: Duration = Duration::from_millis(1);

/// A cell's files, owners, lookups and managers on one clock; messages arrive at once, in order.
struct World {
    now: Mono,
    files: BTreeMap<File, (u64, Bytes)>,
    /// Commits are applied, and their outcome is not told.
    mute: bool,
    managers: Vec<Manager>,
    leader: usize,
    epoch: u64,
    owners: Vec<Server>,
    lookups: Vec<(lookup::Lookup, Vec<KeyRange>)>,
    next_op: u64,
    waiting: BTreeMap<OpId, Asker>,
    answers: Vec<(OpId, Result<Message, Error>)>,
    /// What is to be done next, in order; and whether somebody is at it.
    todo: VecDeque<Todo>,
    busy: bool,
    /// Messages that went to several lookups.
    pushes: usize,
}

struct Server {
    machine: owner::Owner,
    checks: Checks,
    up: bool,
    drained: bool,
    refused: Option<Error>,
    /// Whether hand-overs succeed; `None` = they hang.
    hand_over: Option<bool>,
    /// How many moves it began.
    exports: usize,
    /// Those that hang.
    hanging: Vec<owner::Move>,
}

#[derive(Clone, Copy)]
enum Asker {
    Owner(usize, Ticket),
    Lookup(usize, Ticket),
    Operator,
}

#[allow(clippy::large_enum_variant)] // A queue of a test.
enum Todo {
    Manager(usize, Output),
    Owner(usize, owner::Output),
    Lookup(usize, lookup::Output),
}

fn owner_options(id: &str, incarnation: u64) -> owner::Options {
    owner::Options {
        namespace: "n".into(),
        owner: id.into(),
        address: format!("{id}:{incarnation}"),
        incarnation,
        seed: KeyHash::of(id.as_bytes()).0 ^ incarnation,
        proof: None,
        hands_over: false,
        renew: Duration::from_millis(2_500),
        mutant: None,
    }
}

impl World {
    fn new() -> World {
        let managers = (0..2).map(|seed| Manager::new(Options { seed, ..Default::default() })).collect();
        let mut world = World {
            now: Mono(1_000_000_000),
            files: BTreeMap::new(),
            mute: false,
            managers,
            leader: 0,
            epoch: 0,
            owners: Vec::new(),
            lookups: Vec::new(),
            next_op: 1,
            waiting: BTreeMap::new(),
            answers: Vec::new(),
            todo: VecDeque::new(),
            busy: false,
            pushes: 0,
        };
        world.elect(0);
        let config = v1::NamespaceConfig { lease_ms: 12_000, renew_ms: 2_500, ..Default::default() };
        let create = v1::NamespaceCreate { namespace: "n".into(), config: Some(config) };
        world.operate(Message::NamespaceCreate(create)).unwrap();
        world
    }

    fn now(&self) -> Now {
        Now { mono: self.now, wall: Wall(0) }
    }

    fn elect(&mut self, manager: usize) {
        self.epoch += 1;
        self.leader = manager;
        let until = self.now + Duration::from_secs(3_600);
        self.feed(manager, Input::SessionUntil(until));
        self.feed(manager, Input::Elected { epoch: self.epoch });
    }

    fn depose(&mut self) {
        let leader = self.leader;
        self.feed(leader, Input::Deposed);
    }

    fn operate(&mut self, request: Message) -> Result<Message, Error> {
        let op = self.op(Asker::Operator);
        let leader = self.leader;
        self.feed(leader, Input::Operate { op, request });
        let at = self.answers.iter().position(|(answered, _)| *answered == op).expect("answered at once");
        self.answers.remove(at).1
    }

    fn op(&mut self, asker: Asker) -> OpId {
        self.next_op += 2;
        self.waiting.insert(OpId(self.next_op), asker);
        OpId(self.next_op)
    }

    fn add_owner(&mut self, options: owner::Options, hand_over: Option<bool>) -> usize {
        let machine = owner::Owner::new(options);
        let (checks, index) = (Checks::new(), self.owners.len());
        let (up, drained, refused) = (true, false, None);
        let (exports, hanging) = (0, Vec::new());
        self.owners.push(Server { machine, checks, up, drained, refused, hand_over, exports, hanging });
        self.tell_owner(index, owner::Input::Start);
        index
    }

    fn add_lookup(&mut self) -> usize {
        let machine = lookup::Lookup::new(lookup::Options { namespace: "n".into(), seed: 3 });
        self.lookups.push((machine, Vec::new()));
        let index = self.lookups.len() - 1;
        self.tell_lookup(index, lookup::Input::Start);
        index
    }

    fn feed(&mut self, manager: usize, input: Input) {
        let (now, mut out) = (self.now(), Outbox::new());
        self.managers[manager].handle(now, input, &mut out);
        self.perform(out.into_iter().map(|output| Todo::Manager(manager, output)).collect());
    }

    fn tell_owner(&mut self, index: usize, input: owner::Input) {
        let (now, mut out) = (self.now(), Outbox::new());
        self.owners[index].machine.handle(now, input, &mut out);
        self.perform(out.into_iter().map(|output| Todo::Owner(index, output)).collect());
    }

    fn tell_lookup(&mut self, index: usize, input: lookup::Input) {
        let (now, mut out) = (self.now(), Outbox::new());
        self.lookups[index].0.handle(now, input, &mut out);
        self.perform(out.into_iter().map(|output| Todo::Lookup(index, output)).collect());
    }

    /// Does what was asked for in the order in which it was asked: a machine's outputs before those that they cause.
    fn perform(&mut self, todo: VecDeque<Todo>) {
        self.todo.extend(todo);
        if std::mem::replace(&mut self.busy, true) {
            return;
        }
        while let Some(next) = self.todo.pop_front() {
            match next {
                Todo::Manager(manager, output) => self.perform_manager(manager, output),
                Todo::Owner(index, output) => self.perform_owner(index, output),
                Todo::Lookup(index, output) => self.perform_lookup(index, output),
            }
        }
        self.busy = false;
    }

    fn perform_manager(&mut self, manager: usize, output: Output) {
        match output {
            Output::Commit { id, file, expected, bytes } => {
                let there = self.files.get(&file).map(|(generation, _)| *generation);
                let outcome = if there != expected || manager != self.leader {
                    Outcome::Conflict
                } else {
                    let generation = there.unwrap_or_default() + 1;
                    self.files.insert(file, (generation, bytes));
                    if self.mute { Outcome::Unknown } else { Outcome::Done { generation } }
                };
                self.feed(manager, Input::Committed { id, outcome });
            }
            Output::Read { id, file } => {
                let contents = if self.mute {
                    Err(Error::new("cell.busy", Class::Unreachable, "later"))
                } else {
                    Ok(self.files.get(&file).cloned())
                };
                self.feed(manager, Input::FileRead { id, contents });
            }
            Output::List => {
                let metas = self.files.keys().filter(|file| file.kind == Kind::Meta);
                let names = metas.map(|file| file.namespace.clone()).collect();
                self.feed(manager, Input::Listed { names: Ok(names) });
            }
            Output::Answer { op, message } => self.answered(op, Ok(message)),
            Output::Push { ops, message } => {
                self.pushes += usize::from(ops.len() > 1);
                ops.into_iter().for_each(|op| self.answered(op, Ok(message.clone())));
            }
            Output::Fail { op, error } => self.answered(op, Err(error)),
            Output::StepDown => {}
        }
    }

    fn answered(&mut self, op: OpId, result: Result<Message, Error>) {
        match self.waiting.remove(&op) {
            Some(Asker::Owner(index, ticket)) if self.owners[index].up => {
                let result = result.map(|message| match message {
                    Message::OwnerAnswer(answer) => answer,
                    other => panic!("not an answer to an owner: {other:?}"),
                });
                self.tell_owner(index, owner::Input::Answered { ticket, result });
            }
            Some(Asker::Lookup(index, ticket)) => {
                let result = result.map(|message| match message {
                    Message::LookupAnswer(answer) => answer,
                    other => panic!("not an answer to a lookup: {other:?}"),
                });
                self.tell_lookup(index, lookup::Input::Answered { ticket, result });
            }
            Some(Asker::Operator) => self.answers.push((op, result)),
            Some(Asker::Owner(..)) | None => {}
        }
    }

    fn perform_owner(&mut self, index: usize, output: owner::Output) {
        match output {
            owner::Output::Send { ticket, poll, .. } => {
                let op = self.op(Asker::Owner(index, ticket));
                let leader = self.leader;
                self.feed(leader, Input::Owner { op, poll });
            }
            owner::Output::Holdings(holdings) => self.owners[index].checks.publish(&holdings),
            owner::Output::Drained => self.owners[index].drained = true,
            owner::Output::Refused(error) => self.owners[index].refused = Some(error),
            owner::Output::Export(to) => {
                self.owners[index].exports += 1;
                if let Some(done) = self.owners[index].hand_over {
                    let there = self.owners.iter().position(|o| o.machine.id() == to.owner && o.up);
                    if let Some(there) = there.filter(|_| done) {
                        self.tell_owner(there, owner::Input::Imported { token: to.token, done: true });
                    }
                    self.tell_owner(index, owner::Input::Exported { token: to.token, done: done && there.is_some() });
                } else {
                    self.owners[index].hanging.push(to);
                }
            }
            owner::Output::Left => self.owners[index].up = false,
            owner::Output::Import(_) | owner::Output::ImportOver(_) | owner::Output::Changed(_) => {}
        }
        self.at_most_one_owner();
    }

    fn perform_lookup(&mut self, index: usize, output: lookup::Output) {
        match output {
            lookup::Output::Send { ticket, poll, .. } => {
                let op = self.op(Asker::Lookup(index, ticket));
                let leader = self.leader;
                self.feed(leader, Input::Lookup { op, poll });
            }
            lookup::Output::Lost(ranges) => self.lookups[index].1.extend(ranges),
            lookup::Output::Changed | lookup::Output::Refused(_) => {}
        }
    }

    /// Lets time pass, step by step.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..200_000 {
            let owners = self.owners.iter().filter(|server| server.up).filter_map(|server| server.machine.deadline());
            let lookups = self.lookups.iter().filter_map(|(machine, _)| machine.deadline());
            let managers = self.managers.iter().filter_map(Machine::deadline);
            let Some(at) = owners.chain(lookups).chain(managers).min().filter(|at| *at <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(at);
            let now = self.now();
            for manager in 0..self.managers.len() {
                let mut out = Outbox::new();
                self.managers[manager].wake(now, &mut out);
                self.perform(out.into_iter().map(|output| Todo::Manager(manager, output)).collect());
            }
            for index in 0..self.owners.len() {
                let mut out = Outbox::new();
                if self.owners[index].up {
                    self.owners[index].machine.wake(now, &mut out);
                }
                self.perform(out.into_iter().map(|output| Todo::Owner(index, output)).collect());
            }
            for index in 0..self.lookups.len() {
                let mut out = Outbox::new();
                self.lookups[index].0.wake(now, &mut out);
                self.perform(out.into_iter().map(|output| Todo::Lookup(index, output)).collect());
            }
        }
        panic!("time does not pass: something is always due");
    }

    /// P1, at this instant: nobody's checks overlap anybody else's, crashed owners' included (they may be paused).
    fn at_most_one_owner(&self) {
        let mut held: Vec<(KeyRange, usize)> = Vec::new();
        for (index, server) in self.owners.iter().enumerate() {
            held.extend(server.checks.held(self.now).into_iter().map(|leased| (leased.range, index)));
        }
        held.sort();
        for pair in held.windows(2) {
            assert!(pair[0].0.last < pair[1].0.start, "two owners of {} and {}: {held:?}", pair[0].0, pair[1].0);
        }
    }

    fn share(&self, index: usize) -> f64 {
        let held = self.owners[index].checks.held(self.now);
        held.iter().map(|leased| leased.range.len()).sum::<u128>() as f64 / KeyRange::FULL.len() as f64
    }

    fn covered(&self) -> f64 {
        (0..self.owners.len()).map(|index| self.share(index)).sum()
    }
}

#[test]
fn the_first_owner_gets_everything_and_a_second_its_part_within_round_trips() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.pass(200 * MS);
    assert_eq!(world.share(0), 1.0);
    world.add_owner(owner_options("b", 1), None);
    world.pass(200 * MS);
    assert!((0.3..0.7).contains(&world.share(1)), "b has {}", world.share(1));
    assert_eq!(world.covered(), 1.0);
    world.pass(Duration::from_secs(60));
    assert_eq!(world.covered(), 1.0, "leases are renewed");
}

#[test]
fn what_a_dead_owner_held_is_given_away_after_its_lease_and_every_lookup_hears_of_the_loss() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.add_owner(owner_options("b", 1), None);
    world.pass(Duration::from_secs(1));
    let watching = world.add_lookup();
    world.pass(Duration::from_secs(1));
    assert_eq!(world.lookups[watching].1, [], "a first snapshot is no loss");
    let lost = world.owners[1].checks.held(world.now);
    world.owners[1].up = false;
    world.pass(Duration::from_secs(10));
    assert!(world.share(0) < 1.0, "not before the manager's lease has run out");
    world.pass(Duration::from_secs(10));
    assert_eq!(world.share(0), 1.0);
    for leased in lost {
        let told = &world.lookups[watching].1;
        assert!(told.iter().any(|range| range.covers(leased.range)), "{} was lost and not told", leased.range);
    }
    let (found, _) = world.lookups[watching].0.table().find(KeyHash(7)).unwrap();
    assert_eq!(found.id, "a");
}

#[test]
fn a_clean_move_loses_nothing_and_a_failed_one_leaves_the_range_where_it_is() {
    for (works, moved) in [(Some(true), true), (Some(false), false), (None, false)] {
        let mut world = World::new();
        world.add_owner(owner::Options { hands_over: true, ..owner_options("a", 1) }, works);
        let watching = world.add_lookup();
        world.pass(Duration::from_secs(1));
        world.add_owner(owner::Options { hands_over: true, ..owner_options("b", 1) }, works);
        world.pass(Duration::from_secs(5));
        assert_eq!(world.share(1) > 0.2, moved, "{works:?}: {}", world.share(1));
        assert_eq!(world.lookups[watching].1, [], "{works:?}: nothing was lost");
        world.pass(Duration::from_secs(60));
        assert_eq!(world.covered(), 1.0, "{works:?}");
    }
}

#[test]
fn a_draining_owner_hands_everything_over_and_may_go() {
    for (works, loses) in [(Some(true), false), (None, true)] {
        let mut world = World::new();
        world.add_owner(owner::Options { hands_over: true, ..owner_options("a", 1) }, works);
        world.add_owner(owner::Options { hands_over: true, ..owner_options("b", 1) }, works);
        let watching = world.add_lookup();
        world.pass(Duration::from_secs(120));
        world.lookups[watching].1.clear();
        world.tell_owner(0, owner::Input::Drain);
        world.pass(Duration::from_secs(90));
        assert!(world.owners[0].drained, "{works:?}");
        assert_eq!((world.share(0), world.share(1)), (0.0, 1.0), "{works:?}");
        assert_eq!(!world.lookups[watching].1.is_empty(), loses, "{works:?}");
    }
}

#[test]
fn a_new_leader_keeps_what_is_held_and_never_gives_it_twice() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.add_owner(owner_options("b", 1), None);
    world.pass(Duration::from_secs(2));
    let watching = world.add_lookup();
    world.pass(Duration::from_secs(2));
    let before: Vec<_> = (0..2).map(|i| world.owners[i].checks.held(world.now)).collect();
    world.depose();
    world.elect(1);
    world.pass(Duration::from_secs(20));
    let after: Vec<_> = (0..2).map(|i| world.owners[i].checks.held(world.now)).collect();
    let leases = |held: &Vec<crate::Leased>| held.iter().map(|l| l.lease).collect::<std::collections::BTreeSet<_>>();
    for i in 0..2 {
        assert_eq!(leases(&before[i]), leases(&after[i]), "the same leases under the new leader");
    }
    assert_eq!(world.lookups[watching].1, []);
    // One of them dies together with the leader: what it held comes free after a full lease.
    world.owners[0].up = false;
    world.depose();
    world.elect(0);
    world.pass(Duration::from_secs(10));
    assert!(world.share(1) < 1.0);
    world.pass(Duration::from_secs(10));
    assert_eq!(world.share(1), 1.0);
}

#[test]
fn a_second_process_of_a_name_waits_for_the_first_ones_leases() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.pass(Duration::from_secs(1));
    let watching = world.add_lookup();
    world.add_owner(owner_options("a", 2), None);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.owners[1].refused.as_ref().unwrap().code, "placement.owner_id_in_use");
    world.owners[0].up = false;
    world.pass(Duration::from_secs(20));
    assert_eq!(world.share(1), 1.0);
    assert!(!world.lookups[watching].1.is_empty(), "another process: its state is new");
    // The first one is resumed: its leases have lapsed, and it is told that it was replaced.
    world.owners[0].up = true;
    world.pass(Duration::from_secs(5));
    assert_eq!(world.share(0), 0.0);
    assert_eq!(world.owners[0].refused.as_ref().unwrap().code, "placement.stale_incarnation");
}

#[test]
fn a_process_whose_clock_was_set_back_waits_for_the_first_ones_leases_and_no_longer() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1_000), None);
    world.pass(Duration::from_secs(1));
    world.add_owner(owner_options("a", 5), None);
    world.pass(Duration::from_secs(20));
    assert_eq!(world.owners[1].refused.as_ref().unwrap().code, "placement.owner_id_in_use");
    assert_eq!((world.share(0), world.share(1)), (1.0, 0.0), "the first one lives");
    world.owners[0].up = false;
    world.pass(Duration::from_secs(20));
    assert_eq!(world.share(1), 1.0);
    // The first one is resumed, and counts more: it was not there first for all that, and both cannot have the name.
    world.owners[0].up = true;
    world.pass(Duration::from_secs(5));
    assert_eq!((world.share(0), world.share(1)), (0.0, 1.0));
}

/// A process and its twin, which counts the same incarnation; the twin is the first to speak to the next leader, while the
/// other one is paused and holds everything.
fn a_twin_speaks_first(mutant: Option<Mutant>) -> World {
    let mut world = World::new();
    world.managers[1].options.mutant = mutant;
    world.add_owner(owner_options("a", 1), None);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.share(0), 1.0);
    world.owners[0].up = false;
    world.depose();
    world.elect(1);
    world.add_owner(owner::Options { seed: 99, ..owner_options("a", 1) }, None);
    world.pass(Duration::from_secs(3));
    world
}

#[test]
fn a_later_leader_knows_a_process_from_its_twin() {
    let mut world = a_twin_speaks_first(None);
    assert_eq!(world.owners[1].refused.as_ref().unwrap().code, "placement.owner_id_in_use");
    world.owners[0].up = true;
    world.pass(Duration::from_secs(20));
    assert_eq!((world.share(0), world.share(1)), (1.0, 0.0), "it is known by its nonce, and keeps what it holds");
    // Even when neither holds anything, the name does not go back and forth between the two.
    world.tell_owner(0, owner::Input::Healthy(false));
    world.pass(Duration::from_secs(5));
    world.tell_owner(0, owner::Input::Healthy(true));
    world.pass(Duration::from_secs(5));
    assert_eq!((world.share(0), world.share(1)), (1.0, 0.0));
    world.owners[0].up = false;
    world.pass(Duration::from_secs(20));
    assert_eq!((world.share(0), world.share(1)), (0.0, 1.0), "it is silent");
}

#[test]
#[should_panic(expected = "two owners")]
fn without_its_nonce_the_twin_would_be_taken_for_it() {
    a_twin_speaks_first(Some(Mutant::TwinTaken));
}

#[test]
fn proof_of_exclusivity_frees_at_once_with_a_loss() {
    let mut world = World::new();
    let proof = Some(v1::ExclusivityProof { boot_id: "boot".into(), lock_id: "dir".into() });
    world.add_owner(owner::Options { proof: proof.clone(), ..owner_options("a", 1) }, None);
    world.pass(Duration::from_secs(1));
    let watching = world.add_lookup();
    world.pass(Duration::from_secs(1));
    // Its process has died; nothing checks against its leases any more.
    world.owners[0].up = false;
    world.owners[0].checks.publish(&[]);
    world.add_owner(owner::Options { proof, ..owner_options("a", 2) }, None);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.share(1), 1.0);
    assert!(!world.lookups[watching].1.is_empty());
}

#[test]
fn nothing_is_told_of_a_commit_whose_outcome_is_unknown() {
    let mut world = World::new();
    world.mute = true;
    world.add_owner(owner_options("a", 1), None);
    world.pass(Duration::from_secs(5));
    assert_eq!(world.share(0), 0.0);
    world.mute = false;
    world.pass(Duration::from_secs(5));
    assert_eq!(world.share(0), 1.0);
}

#[test]
fn a_leader_without_a_valid_session_sends_no_leases() {
    for (mutant, held) in [(None, 0.0), (Some(Mutant::NoLeaderCheck), 1.0)] {
        let mut world = World::new();
        world.managers[0].options.mutant = mutant;
        world.add_owner(owner_options("a", 1), None);
        world.pass(Duration::from_secs(1));
        let now = world.now;
        world.feed(0, Input::SessionUntil(now));
        world.pass(Duration::from_secs(20));
        assert_eq!(world.share(0), held, "{mutant:?}");
    }
}

#[test]
fn a_deleted_namespace_serves_nobody_and_its_numbers_go_on_when_it_is_made_again() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.pass(Duration::from_secs(1));
    let last = world.owners[0].checks.held(world.now).iter().map(|leased| leased.lease).max().unwrap();
    world.operate(Message::NamespaceDelete(v1::NamespaceDelete { namespace: "n".into() })).unwrap();
    world.pass(Duration::from_secs(20));
    assert_eq!(world.share(0), 0.0);
    let config = v1::NamespaceConfig { lease_ms: 12_000, renew_ms: 2_500, ..Default::default() };
    let create = v1::NamespaceCreate { namespace: "n".into(), config: Some(config) };
    world.operate(Message::NamespaceCreate(create.clone())).unwrap();
    world.pass(Duration::from_secs(5));
    assert_eq!(world.share(0), 1.0);
    assert!(world.owners[0].checks.held(world.now).iter().all(|leased| leased.lease > last));
    assert_eq!(world.operate(Message::NamespaceCreate(create)).unwrap_err().code, "placement.namespace_exists");
    let list = world.operate(Message::OwnerList(v1::OwnerList { namespace: "n".into(), from: 0 })).unwrap();
    let Message::OwnerListReply(list) = list else { panic!("not a list") };
    assert_eq!((list.owners.len(), list.owners[0].share_ppm), (1, 1_000_000));
}
