//! A small deterministic world: processors, a gateway, a store, a directory, and everything that may go wrong between them.

pub mod copies;
pub mod store;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use tidings_base::{Class, Error, LeaseNumber, Machine, Mono, Now, Outbox, Seeded, Wall};
use tidings_predicate::{Key, Packed, Value};
use tidings_tables::calls::{Access, Answer, Call, Caller};
use tidings_tables::directory::{Directory, Opened, Properties};
use tidings_tables::gateway::{self, Event, Gateway, Sealer, Watch};
use tidings_tables::live::Install;
use tidings_tables::mutant::Mutant;
use tidings_tables::names::{GatewayId, Object, PartitionId, Position, RequestId, TableId};
use tidings_tables::processor::{self, Options, Processor, StoreId, StoreRequest, StoreResult};
use tidings_tables::refusal::Refusal;

pub const TABLE: TableId = TableId(7);
const MS: u64 = 1_000_000;

/// What may go wrong, each one time in so many; 0 = never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// Messages between gateway and processors that are lost.
    pub lost: u64,
    /// Messages that come twice, the second late.
    pub twice: u64,
    /// Answers of the store that are lost, whether or not it did what it was asked.
    pub unknown: u64,
    /// Milliseconds that anything takes at most.
    pub slow: u64,
}

enum Happening {
    Store {
        node: usize,
        life: u64,
        id: StoreId,
        request: StoreRequest,
    },
    Stored {
        node: usize,
        life: u64,
        id: StoreId,
        result: StoreResult,
    },
    Processor {
        node: usize,
        life: Option<u64>,
        input: Box<processor::Input>,
    },
    /// For the gateway of this number: another one does not hear it.
    Gateway(u64, Box<gateway::Input>),
    Wake,
}

pub struct Node {
    pub life: u64,
    pub processor: Option<Processor>,
}

pub struct World {
    pub now: u64,
    pub rng: Seeded,
    pub plan: Plan,
    pub options: Options,
    pub store: Store,
    pub directory: Directory,
    /// Who really holds which lease.
    pub owners: BTreeMap<u32, (usize, LeaseNumber)>,
    next_lease: u32,
    pub nodes: Vec<Node>,
    pub gateway: Gateway,
    /// The number of the gateway that is there now.
    gateways: u64,
    agenda: BTreeMap<(u64, u64), Happening>,
    seq: u64,
    next_request: u64,
    pub answers: BTreeMap<RequestId, VecDeque<Result<Answer, Refusal>>>,
    pub events: Vec<(u64, Result<Event, Refusal>)>,
    /// Whether writes to the store are held back until they are let go, and whether scans are.
    pub hold: bool,
    pub hold_scans: bool,
    pub held: Vec<(usize, u64, StoreId, StoreRequest)>,
    /// Frames that are dropped by a test.
    pub deaf: bool,
    /// What was published, and whether Notify took it.
    pub publications: Vec<(bool, Vec<(Object, Position)>)>,
    /// Whether Notify takes anything.
    pub notify: bool,
    /// Whether clients take their events at once.
    pub taking: bool,
    /// What the gateway has asked owners for, in order.
    pub installs: Vec<Install>,
    /// How far the wall clocks of nodes are ahead of that of everybody else, in microseconds.
    pub clocks: BTreeMap<usize, i64>,
    /// Partitions that are said to have grown or to be busy, and where they could be cut.
    pub grown: Vec<(PartitionId, Key)>,
    /// Partitions that are said to be quiet.
    pub quiet: Vec<PartitionId>,
    pub copying: copies::Copying,
}

/// Not a cipher: enough to see who seals.
struct Turned;

impl Sealer for Turned {
    fn seal(&self, open: &[u8]) -> Vec<u8> {
        let sum = open.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        open.iter().map(|byte| !byte).chain([sum]).collect()
    }
    fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (sum, turned) = sealed.split_last()?;
        let open: Vec<u8> = turned.iter().map(|byte| !byte).collect();
        (open.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)) == *sum).then_some(open)
    }
}

pub fn data(columns: &[(&str, Value)]) -> Packed {
    Packed::columns(columns.iter().cloned()).unwrap()
}

pub fn user(name: &str) -> Caller {
    let claims = data(&[("sub", name.into())]);
    let (user, principal) = (name.to_owned(), format!("app:shop/{name}"));
    Caller { access: Access::User, app: "shop".to_owned(), user, principal, claims, expires: None }
}

impl World {
    pub fn new(seed: u64, plan: Plan, mutant: Option<Mutant>, properties: Properties) -> World {
        let directory = Directory::create(TABLE, &user("maker"), properties, Vec::new()).unwrap();
        let options = Options { mutant, page: 3, retry: Duration::from_millis(20), ..Options::default() };
        let gateway = gateway::Options { mutant, ..gateway::Options::new(GatewayId(1)) };
        World {
            now: 1_000 * MS,
            rng: Seeded::new(seed),
            plan,
            options,
            store: Store::default(),
            directory,
            owners: BTreeMap::new(),
            next_lease: 1,
            nodes: Vec::new(),
            gateway: Gateway::new(gateway, Box::new(Turned)),
            gateways: 1,
            agenda: BTreeMap::new(),
            seq: 0,
            next_request: 0,
            answers: BTreeMap::new(),
            events: Vec::new(),
            hold: false,
            hold_scans: false,
            held: Vec::new(),
            deaf: false,
            publications: Vec::new(),
            notify: true,
            taking: true,
            installs: Vec::new(),
            clocks: BTreeMap::new(),
            grown: Vec::new(),
            quiet: Vec::new(),
            copying: copies::Copying::default(),
        }
    }

    /// A world in which nothing goes wrong: one node owns everything.
    pub fn calm(mutant: Option<Mutant>, properties: Properties) -> World {
        World::tuned(mutant, properties, |_| {})
    }

    /// A calm world whose processors have other options.
    pub fn tuned(mutant: Option<Mutant>, properties: Properties, tune: impl FnOnce(&mut Options)) -> World {
        let mut world = World::new(1, Plan::default(), mutant, properties);
        tune(&mut world.options);
        world.node();
        world.directory_changed();
        world.lease(0, 0);
        world.run(50);
        world
    }

    pub fn now(&self) -> Now {
        Now { mono: Mono(self.now), wall: Wall(1_000_000_000 + self.now / 1_000) }
    }

    fn now_at(&self, node: usize) -> Now {
        let Now { mono, wall } = self.now();
        Now { mono, wall: Wall(wall.0.saturating_add_signed(self.clocks.get(&node).copied().unwrap_or_default())) }
    }

    pub fn node(&mut self) -> usize {
        self.nodes.push(Node { life: 0, processor: Some(Processor::new(self.options.clone())) });
        self.nodes.len() - 1
    }

    pub fn id(&self, number: u32) -> PartitionId {
        PartitionId { table: TABLE, number }
    }

    fn at(&mut self, at: u64, what: Happening) {
        self.seq += 1;
        self.agenda.insert((at, self.seq), what);
    }

    fn delay(&mut self) -> u64 {
        let slow = self.plan.slow;
        MS + if slow > 0 { self.rng.below(slow * MS) } else { 0 }
    }

    fn chance(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.rng.one_in(one_in)
    }

    /// Leases a partition to a node, whoever had it; the former owner is not told.
    pub fn lease(&mut self, number: u32, node: usize) -> LeaseNumber {
        let lease = LeaseNumber::new(self.next_lease).unwrap();
        self.next_lease += 1;
        self.owners.insert(number, (node, lease));
        if let Ok(acquired) = self.directory.acquire(number, lease) {
            self.tell_processor(node, processor::Input::Gained(Box::new(acquired)));
        }
        self.copies_hear_of(number);
        let owner = gateway::Input::Owner { partition: self.id(number), lease: Some(lease) };
        let at = self.now + self.delay_of_news();
        self.at(at, Happening::Gateway(self.gateways, Box::new(owner)));
        lease
    }

    fn delay_of_news(&mut self) -> u64 {
        3 * MS + if self.plan.slow > 0 { self.rng.below(200 * MS) } else { 0 }
    }

    pub fn directory_changed(&mut self) {
        let directory = gateway::Input::Directory(Arc::new(self.directory.clone()));
        self.at(self.now + MS / 2, Happening::Gateway(self.gateways, Box::new(directory)));
    }

    pub fn tell_processor(&mut self, node: usize, input: processor::Input) {
        let life = self.nodes[node].life;
        self.at(self.now + MS / 4, Happening::Processor { node, life: Some(life), input: Box::new(input) });
    }

    pub fn tell_gateway(&mut self, input: gateway::Input) {
        self.at(self.now + MS / 4, Happening::Gateway(self.gateways, Box::new(input)));
    }

    pub fn crash(&mut self, node: usize) {
        self.nodes[node].life += 1;
        self.nodes[node].processor = Some(Processor::new(self.options.clone()));
        self.copying.crashed(node);
    }

    /// The gateway dies with everything that it knew, and another one begins where it was.
    pub fn crash_gateway(&mut self) {
        self.gateways += 1;
        let options = gateway::Options { mutant: self.options.mutant, ..gateway::Options::new(self.gateway_id()) };
        self.gateway = Gateway::new(options, Box::new(Turned));
        self.directory_changed();
        for (number, (_, lease)) in self.owners.clone() {
            let owner = gateway::Input::Owner { partition: self.id(number), lease: Some(lease) };
            self.tell_gateway_later(owner);
        }
    }

    fn gateway_id(&self) -> GatewayId {
        GatewayId(self.gateways)
    }

    fn tell_gateway_later(&mut self, input: gateway::Input) {
        let at = self.now + 3 * MS;
        self.at(at, Happening::Gateway(self.gateways, Box::new(input)));
    }

    /// Sends a call to a node that may or may not own the partition.
    pub fn ask(&mut self, node: usize, number: u32, caller: Caller, call: Call) -> RequestId {
        self.ask_later(node, number, caller, call, 0)
    }

    pub fn ask_later(&mut self, node: usize, number: u32, caller: Caller, call: Call, later: u64) -> RequestId {
        self.next_request += 1;
        let request = RequestId(self.next_request);
        let partition = self.id(number);
        let input = processor::Input::Request { request, partition, caller: Box::new(caller), call };
        let at = self.now + self.delay() + later;
        self.at(at, Happening::Processor { node, life: None, input: Box::new(input) });
        request
    }

    pub fn answer(&mut self, request: RequestId) -> Option<Result<Answer, Refusal>> {
        self.answers.get_mut(&request)?.pop_front()
    }

    /// Lets a time in milliseconds pass.
    pub fn run(&mut self, ms: u64) {
        let until = self.now + ms * MS;
        while self.step(until) {}
        self.now = until;
    }

    /// The next thing that happens before `until`; whether there was one.
    pub fn step(&mut self, until: u64) -> bool {
        let wakes = self.nodes.iter().filter_map(|node| node.processor.as_ref()?.deadline());
        let wake = wakes.chain(self.gateway.deadline()).min().map_or(u64::MAX, |at| at.0.max(self.now));
        let next = self.agenda.first_key_value().map_or(u64::MAX, |((at, _), _)| *at);
        if wake.min(next) > until {
            return false;
        }
        if wake < next {
            self.now = wake;
            self.happen(Happening::Wake);
        } else if let Some(((at, _), what)) = self.agenda.pop_first() {
            self.now = at;
            self.happen(what);
        }
        true
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Store { node, life, id, request } => self.perform(node, life, id, &request),
            Happening::Stored { node, life, id, result } => {
                self.feed(node, Some(life), processor::Input::Stored { id, result });
            }
            Happening::Processor { node, life, input } => self.feed(node, life, *input),
            Happening::Gateway(life, _) if life != self.gateways => {}
            Happening::Gateway(_, input) => {
                let (now, mut out) = (self.now(), Outbox::new());
                self.gateway.handle(now, *input, &mut out);
                self.gateway_says(out);
            }
            Happening::Wake => {
                for node in 0..self.nodes.len() {
                    let (now, mut out) = (self.now_at(node), Outbox::new());
                    if let Some(processor) = &mut self.nodes[node].processor {
                        processor.wake(now, &mut out);
                    }
                    self.processor_says(node, out);
                }
                let (now, mut out) = (self.now(), Outbox::new());
                self.gateway.wake(now, &mut out);
                self.gateway_says(out);
            }
        }
    }

    pub fn perform(&mut self, node: usize, life: u64, id: StoreId, request: &StoreRequest) {
        let unknown = || Err(Error::new("store.timeout", Class::OutcomeUnknown, "Nobody answered."));
        let undone = self.chance(self.plan.unknown);
        let result = if undone { unknown() } else { self.store.perform(request) };
        let result = if self.chance(self.plan.unknown) { unknown() } else { result };
        let at = self.now + self.delay();
        self.at(at, Happening::Stored { node, life, id, result });
    }

    fn feed(&mut self, node: usize, life: Option<u64>, input: processor::Input) {
        if life.is_some_and(|life| life != self.nodes[node].life) {
            return;
        }
        let (now, mut out) = (self.now_at(node), Outbox::new());
        if let Some(processor) = &mut self.nodes[node].processor {
            processor.handle(now, input, &mut out);
        }
        self.processor_says(node, out);
    }

    fn holds(&self, request: &StoreRequest) -> bool {
        match request {
            StoreRequest::Apply(_) => self.hold,
            StoreRequest::Scan(_) => self.hold_scans,
            StoreRequest::Get(_) => false,
        }
    }

    /// Lets go of everything that is held back.
    pub fn let_go(&mut self) {
        for (node, life, id, request) in std::mem::take(&mut self.held) {
            self.perform(node, life, id, &request);
        }
    }

    fn processor_says(&mut self, node: usize, out: Outbox<processor::Output>) {
        let life = self.nodes[node].life;
        for output in out {
            match output {
                processor::Output::Store { id, request } if self.holds(&request) => {
                    self.held.push((node, life, id, request));
                }
                processor::Output::Store { id, request } => {
                    let at = self.now + self.delay();
                    self.at(at, Happening::Store { node, life, id, request });
                }
                processor::Output::Answer { request, guard, answer } => {
                    let held = guard
                        .is_none_or(|guard| self.owners.get(&guard.partition.number) == Some(&(node, guard.lease)));
                    let answer = if held { answer } else { Err(Refusal::Moved) };
                    self.answers.entry(request).or_default().push_back(answer);
                }
                processor::Output::Frame { query, frame } if query.is_copy() => {
                    let input = move || processor::Input::CopyHears { query, frame: frame.clone() };
                    self.carry_to_copy(query.gateway, input);
                }
                processor::Output::Progress { gateway, progress } if copies::node_of(gateway).is_some() => {
                    let input = move || processor::Input::CopyProgresses(progress.clone());
                    self.carry_to_copy(gateway, input);
                }
                processor::Output::Install(install) => {
                    let partition = install.partition;
                    self.copying.installs.push((node, install.from.clone()));
                    self.copy_asks(node, partition, move || processor::Input::Install(install.clone()));
                }
                processor::Output::Taken { partition, query, frames } => {
                    self.copy_asks(node, partition, move || processor::Input::Taken { query, partition, frames });
                }
                processor::Output::Remove { partition, query } => {
                    let (over, netid) = (true, None);
                    let input = move || processor::Input::Remove { query, partition, over, netid };
                    self.copy_asks(node, partition, input);
                }
                processor::Output::Unfollowed { partition } => self.copying.unfollowed(node, partition.number),
                processor::Output::Frame { query, frame } => {
                    let input = gateway::Input::Frame { number: query.number, frame };
                    let life = query.gateway.0;
                    self.carry(move || Happening::Gateway(life, Box::new(clone_gateway(&input))));
                }
                processor::Output::Progress { progress, gateway } => {
                    let input = gateway::Input::Progress(progress);
                    let life = gateway.0;
                    self.carry(move || Happening::Gateway(life, Box::new(clone_gateway(&input))));
                }
                processor::Output::Publish { partition, number, publications } => {
                    let done = self.notify;
                    self.publications.push((done, publications));
                    self.tell_processor(node, processor::Input::Published { partition, number, done });
                }
                processor::Output::Grown { partition, at } | processor::Output::Busy { partition, at } => {
                    self.grown.push((partition, at));
                }
                processor::Output::Quiet { partition } => self.quiet.push(partition),
                processor::Output::Deposed { .. } => {}
            }
        }
    }

    /// Brings a message over a link that loses and repeats.
    fn carry(&mut self, what: impl Fn() -> Happening) {
        self.carry_late(0, what);
    }

    fn carry_late(&mut self, late: u64, what: impl Fn() -> Happening) {
        if self.deaf || self.chance(self.plan.lost) {
            return;
        }
        // A link keeps its order.
        let at = self.now + (2 + late) * MS;
        self.at(at, what());
        if self.chance(self.plan.twice) {
            let later = at + self.rng.below(500 * MS);
            self.at(later, what());
        }
    }

    fn gateway_says(&mut self, out: Outbox<gateway::Output>) {
        for output in out {
            match output {
                gateway::Output::Install(install) => {
                    let partition = install.partition;
                    self.installs.push((*install).clone());
                    self.bring(partition, move || processor::Input::Install(install.clone()));
                }
                gateway::Output::Update { partition, query, reader } => {
                    let update = move || processor::Input::Update { query, partition, reader: reader.clone() };
                    self.bring(partition, update);
                }
                gateway::Output::Remove { partition, query, over, netid } => {
                    self.bring(partition, move || processor::Input::Remove { query, partition, over, netid });
                }
                gateway::Output::Taken { partition, query, frames } => {
                    self.bring(partition, move || processor::Input::Taken { query, partition, frames });
                }
                gateway::Output::Event { number, event } => {
                    let counts = matches!(event, Event::Reset { .. } | Event::Changes(_) | Event::Again);
                    self.events.push((number, Ok(event)));
                    if self.taking && counts {
                        self.tell_gateway(gateway::Input::Taken { number, events: 1 });
                    }
                }
                gateway::Output::Ended { number, refusal } => self.events.push((number, Err(refusal))),
            }
        }
    }

    fn bring(&mut self, partition: PartitionId, input: impl Fn() -> processor::Input) {
        let Some((node, _)) = self.owners.get(&partition.number).copied() else { return };
        self.carry(move || Happening::Processor { node, life: None, input: Box::new(input()) });
    }

    pub fn watch(&mut self, number: u64, watch: Watch) {
        self.tell_gateway(gateway::Input::Watch { number, watch: Box::new(watch) });
    }

    /// What the owner of a partition says of it, once it has opened it.
    pub fn opened(&self, number: u32) -> Option<Opened> {
        let (node, _) = *self.owners.get(&number)?;
        self.nodes[node].processor.as_ref()?.opened(self.id(number))
    }

    /// Joins two neighbours, whoever owns them: both are given up first. Their leases go on, since placement does not know what
    /// partitions there are.
    pub fn merge(&mut self, parents: [u32; 2]) -> Option<u32> {
        let [left, right] = parents.map(|number| self.opened(number));
        let (Some(_), Some(_)) = (left, right) else { return None };
        let [left, right] = parents.map(|number| {
            let (node, _) = *self.owners.get(&number)?;
            let (id, mut out) = (self.id(number), Outbox::new());
            let opened = self.nodes[node].processor.as_mut()?.cede(id, &mut out);
            self.processor_says(node, out);
            opened
        });
        let joined = self.directory.merge([left?, right?]).ok()?;
        parents.into_iter().for_each(|parent| self.copies_hear_of(parent));
        self.directory_changed();
        Some(joined)
    }

    /// Cuts a partition on behalf of its owner.
    pub fn split(&mut self, number: u32, at: &Key) -> Option<[u32; 2]> {
        let (node, _) = *self.owners.get(&number)?;
        let children = self.directory.split(self.opened(number)?, at).ok()?;
        self.tell_processor(node, processor::Input::Lost { partition: self.id(number) });
        self.owners.remove(&number);
        self.copies_hear_of(number);
        self.directory_changed();
        Some(children)
    }
}

fn clone_gateway(input: &gateway::Input) -> gateway::Input {
    match input {
        gateway::Input::Frame { number, frame } => gateway::Input::Frame { number: *number, frame: frame.clone() },
        gateway::Input::Progress(progress) => gateway::Input::Progress(progress.clone()),
        _ => unreachable!("only these are carried"),
    }
}
