//! A master, its clients, and the packets between them, one step at a time.

use super::client::{Client, Effect, Part, at};
use prost::Message as _;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::agreed::{Ask, Heard, Role};
use tidings_base::{Class, Epoch, Error, LogIndex, Mono, NodeId, OpId, Outbox};
use tidings_cell::link::{self, Ticket};
use tidings_cell::master::{self, Master};
use tidings_cell::mutant::Mutant;
use tidings_cell::namespace::Namespace;
use tidings_cell::session::{self, Event};
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;

/// The file that everything is about.
pub const FILE: &str = "/f";

/// What is chosen before the first step.
#[derive(Clone)]
pub struct Setup {
    pub mutant: Option<Mutant>,
    pub clients: usize,
    /// How much real time one tick is.
    pub tick: Duration,
    /// How fast the clocks run, in percent of real time.
    pub master_rate: u64,
    pub client_rate: u64,
    pub lease: Duration,
    pub cache_lease: Duration,
    /// Whether the links renew their cache leases; sessions alone are simpler.
    pub links: bool,
    /// Which requests, with their answers, wait on the way until a step delivers or loses them; others arrive at once.
    pub slow: fn(Sender, &Message) -> bool,
    pub budget: Budget,
}

/// How often each kind of step may be taken.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    pub ticks: u32,
    pub reads: u32,
    pub writes: u32,
    pub losses: u32,
    pub fail_overs: u32,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Tick,
    /// The packet at this place arrives.
    Deliver(usize),
    /// The packet at this place does not; its sender hears that nothing is known.
    Lose(usize),
    /// The last client reads: from its cache if it may, otherwise it asks.
    Read,
    /// The first client writes the next version.
    Write,
    /// The master is gone, with everything that it held, and another one takes over.
    FailOver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sender {
    pub client: usize,
    pub part: Part,
}

#[derive(Clone, Debug)]
struct Packet {
    sender: Sender,
    ticket: Ticket,
    slow: bool,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Request(v1::CellMessage),
    Reply(Result<v1::CellMessage, Error>),
}

/// Everything there is.
#[derive(Clone, Debug)]
pub struct World {
    ticks: u64,
    master: Master,
    state: Namespace,
    /// How many masters there were.
    reigns: u64,
    log: u64,
    pub clients: Vec<Client>,
    packets: Vec<Packet>,
    /// Requests that the master has, by its operation.
    asked: BTreeMap<OpId, (Sender, Ticket, bool)>,
    last_op: u64,
    last_call: u64,
    /// Reads under way: the version that had been written, and answered, when each was asked.
    reads: BTreeMap<OpId, u64>,
    write_under_way: Option<OpId>,
    written: u64,
    /// The latest version whose write was answered.
    answered: u64,
    pub left: Budget,
    /// The first thing that must never be.
    pub wrong: Option<String>,
}

impl World {
    /// A world in which a master leads and nobody has begun.
    pub fn new(setup: &Setup) -> World {
        let mut world = World {
            ticks: 0,
            master: Master::new(master_options(setup, 1)),
            state: Namespace::with_mutant(setup.mutant),
            reigns: 1,
            log: 0,
            clients: (0..setup.clients).map(|n| Client::new(n as u64 + 1, setup)).collect(),
            packets: Vec::new(),
            asked: BTreeMap::new(),
            last_op: 1,
            last_call: 0,
            reads: BTreeMap::new(),
            write_under_way: None,
            written: 0,
            answered: 0,
            left: setup.budget.clone(),
            wrong: None,
        };
        world.master_hears(setup, master::Input::Heard(Heard::Role(Role::Leader { epoch: Epoch(1) })));
        world
    }

    /// All clients have sessions and leases, the file exists, nothing is on its way but held KeepAlives.
    pub fn begun(setup: &Setup) -> World {
        let instant = Setup { slow: |_, _| false, ..setup.clone() };
        let mut world = World::new(&instant);
        for client in 0..world.clients.len() {
            world.begin(&instant, client);
        }
        let create = v1::CreateNode { contents: "0".into(), ..Default::default() };
        let open = v1::OpenNode { path: FILE.into(), create: Some(create), write: true, ..Default::default() };
        world.call(&instant, 0, Message::Open(open));
        world.arrive(&instant);
        // A link's lease counts for sessions that were there before it was asked for: the next one does.
        while setup.links && world.clients.iter().any(|client| client.until == Mono(0)) {
            world.ticks += 1;
            world.wake(&instant);
            world.arrive(&instant);
            assert!(world.ticks < 10, "nothing may be cached");
        }
        assert_eq!(world.wrong, None);
        assert!(world.packets.is_empty() && world.clients.iter().all(|client| client.session.id().is_some()));
        // From here on what was held is as slow as the setup says.
        for (sender, _, slow) in world.asked.values_mut() {
            *slow = (setup.slow)(*sender, &Message::KeepAlive(v1::KeepAlive::default()));
        }
        world
    }

    pub fn begin(&mut self, setup: &Setup, client: usize) {
        let now = self.client_now(client);
        let effects = self.clients[client].tell(now, session::Input::Begin);
        self.perform(setup, client, effects);
        self.arrive(setup);
    }

    /// The steps that may be taken.
    pub fn steps(&self, steps: &mut Vec<Step>) {
        if self.wrong.is_some() {
            return;
        }
        for at in 0..self.packets.len() {
            steps.push(Step::Deliver(at));
            if self.left.losses > 0 {
                steps.push(Step::Lose(at));
            }
        }
        let kinds = [
            (self.left.ticks > 0, Step::Tick),
            (self.left.reads > 0, Step::Read),
            (self.left.writes > 0 && self.write_under_way.is_none(), Step::Write),
            (self.left.fail_overs > 0, Step::FailOver),
        ];
        steps.extend(kinds.into_iter().filter(|(may, _)| *may).map(|(_, step)| step));
    }

    pub fn step(&mut self, setup: &Setup, step: &Step) {
        match step {
            Step::Tick => {
                self.left.ticks -= 1;
                self.ticks += 1;
                self.wake(setup);
            }
            Step::Deliver(at) => {
                let packet = self.packets.remove(*at);
                self.deliver(setup, packet);
            }
            Step::Lose(at) => {
                self.left.losses -= 1;
                let packet = self.packets.remove(*at);
                self.deliver(setup, Packet { body: Body::Reply(Err(nothing_known())), ..packet });
            }
            Step::Read => {
                self.left.reads -= 1;
                self.read(setup);
            }
            Step::Write => {
                self.left.writes -= 1;
                self.written += 1;
                let contents = self.written.to_string().into();
                let target = Some(v1::NodeTarget { target: Some(v1::node_target::Target::Path(FILE.into())) });
                let set = v1::SetContents { target, contents, ..Default::default() };
                self.write_under_way = Some(OpId(self.last_call + 1));
                self.call(setup, 0, Message::SetContents(set));
            }
            Step::FailOver => {
                self.left.fail_overs -= 1;
                self.fail_over(setup);
            }
        }
        self.arrive(setup);
        self.check();
    }

    fn read(&mut self, setup: &Setup) {
        if self.serves() {
            return;
        }
        let reader = self.clients.len() - 1;
        self.reads.insert(OpId(self.last_call + 1), self.answered);
        let target = Some(v1::NodeTarget { target: Some(v1::node_target::Target::Path(FILE.into())) });
        self.call(setup, reader, Message::Read(v1::ReadNode { target, contents: true, ..Default::default() }));
    }

    /// Whether the reader would be served from its cache now.
    pub fn serves(&self) -> bool {
        let reader = self.clients.len() - 1;
        self.clients[reader].served(FILE, self.client_now(reader)).is_some()
    }

    fn call(&mut self, setup: &Setup, client: usize, message: Message) {
        self.last_call += 1;
        let now = self.client_now(client);
        let effects = self.clients[client].tell(now, session::Input::Call { op: OpId(self.last_call), message });
        self.perform(setup, client, effects);
    }

    /// What must hold after every step.
    fn check(&mut self) {
        for client in 0..self.clients.len() {
            let now = self.client_now(client);
            let session = &self.clients[client].session;
            let believes = session.lease_until().is_some_and(|until| now < until);
            if believes && session.id().is_some_and(|id| self.state.session(id).is_none()) {
                self.fail(format!("client {client} counts on a session that has ended"));
            }
            if let Some(version) = self.clients[client].served(FILE, now).map(str::to_owned)
                && version.parse::<u64>().is_ok_and(|version| version < self.answered)
            {
                self.fail(format!("client {client} is served version {version} after {} was written", self.answered));
            }
        }
    }

    fn fail(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    // ---- time -----------------------------------------------------------------------------------------------------

    fn now(&self, setup: &Setup) -> Mono {
        local(self.ticks, setup.tick, setup.master_rate)
    }

    fn client_now(&self, client: usize) -> Mono {
        self.clients[client].clock(self.ticks)
    }

    fn wake(&mut self, setup: &Setup) {
        let now = self.now(setup);
        if self.master.deadline().is_some_and(|deadline| deadline <= now) {
            let mut out = Outbox::new();
            self.master.wake(at(now), &self.state, &mut out);
            self.perform_master(setup, out);
        }
        for client in 0..self.clients.len() {
            let now = self.client_now(client);
            let effects = self.clients[client].wake(now);
            self.perform(setup, client, effects);
        }
    }

    // ---- packets --------------------------------------------------------------------------------------------------

    /// Delivers everything that is not slow.
    fn arrive(&mut self, setup: &Setup) {
        while let Some(at) = self.packets.iter().position(|packet| !packet.slow) {
            let packet = self.packets.remove(at);
            self.deliver(setup, packet);
        }
    }

    fn deliver(&mut self, setup: &Setup, packet: Packet) {
        match packet.body {
            Body::Request(mut request) => {
                self.last_op += 2;
                let op = OpId(self.last_op);
                self.asked.insert(op, (packet.sender, packet.ticket, packet.slow));
                let principal = format!("app:shop/{}", packet.sender.client);
                request.caller = Some(v1::CellCaller { app: "shop".into(), principal, privileged: false });
                self.master_hears(setup, master::Input::Request { op, request, deadline: None });
            }
            Body::Reply(result) => {
                let Sender { client, part } = packet.sender;
                let (now, ticket) = (self.client_now(client), packet.ticket);
                let effects = match part {
                    Part::Session => self.clients[client].tell(now, session::Input::Answered { ticket, result }),
                    Part::Link => self.clients[client].tell_link(now, link::Input::Answered { ticket, result }),
                };
                self.perform(setup, client, effects);
            }
        }
    }

    fn perform(&mut self, setup: &Setup, client: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send(part, ticket, message) => {
                    let sender = Sender { client, part };
                    let slow = message.message.as_ref().is_some_and(|message| (setup.slow)(sender, message));
                    self.packets.push(Packet { sender, ticket, slow, body: Body::Request(message) });
                }
                Effect::Answer(op, result) => self.answered(op, result),
                Effect::Tell(Event::Safe { .. }) => {
                    let session = self.clients[client].session.id();
                    if self.clients[client].expired || session.is_none_or(|id| self.state.session(id).is_none()) {
                        self.fail(format!("client {client} hears that it is safe, and its session has ended"));
                    }
                }
                Effect::Tell(_) => {}
            }
        }
    }

    fn answered(&mut self, op: OpId, result: Result<Message, Error>) {
        if self.write_under_way == Some(op) {
            self.write_under_way = None;
            if result.is_ok() {
                self.answered = self.written;
            }
        }
        if let (Some(floor), Ok(Message::NodeRead(read))) = (self.reads.remove(&op), result) {
            let version = String::from_utf8_lossy(&read.contents).parse::<u64>();
            if version.is_ok_and(|version| version < floor) {
                self.fail(format!("a read that began after version {floor} was written found an older one"));
            }
        }
    }

    // ---- the master and its log -------------------------------------------------------------------------------------

    fn master_hears(&mut self, setup: &Setup, input: master::Input) {
        let mut out = Outbox::new();
        self.master.handle(at(self.now(setup)), input, &self.state, &mut out);
        self.perform_master(setup, out);
    }

    fn perform_master(&mut self, setup: &Setup, out: Outbox<master::Output>) {
        for output in out {
            match output {
                master::Output::Reply { op, message } => {
                    self.reply(op, Ok(v1::CellMessage { message: Some(message), ..Default::default() }));
                }
                master::Output::Fail { op, error, .. } => self.reply(op, Err(error)),
                master::Output::Measured(_) => {}
                master::Output::Ask(ask) => {
                    let heard = self.agree(ask);
                    self.master_hears(setup, master::Input::Heard(heard));
                }
            }
        }
    }

    /// The log agrees at once.
    fn agree(&mut self, ask: Ask) -> Heard {
        match ask {
            Ask::Propose { op, command } => {
                self.log += 1;
                let command = v1::CellCommand::decode(command).expect("the master proposes commands");
                let result = self.state.apply(&command).encode_to_vec().into();
                Heard::Applied { op, index: LogIndex(self.log), result }
            }
            Ask::ReadBarrier { op } => Heard::Passed { op, index: LogIndex(self.log) },
        }
    }

    fn reply(&mut self, op: OpId, result: Result<v1::CellMessage, Error>) {
        if let Some((sender, ticket, slow)) = self.asked.remove(&op) {
            self.packets.push(Packet { sender, ticket, slow, body: Body::Reply(result) });
        }
    }

    fn fail_over(&mut self, setup: &Setup) {
        for op in self.asked.keys().copied().collect::<Vec<_>>() {
            self.reply(op, Err(nothing_known()));
        }
        self.reigns += 1;
        let epoch = Epoch(self.reigns);
        self.master = Master::new(master_options(setup, self.reigns));
        self.master_hears(setup, master::Input::Heard(Heard::Role(Role::Leader { epoch })));
    }
}

/// A clock that runs at so many percent of real time.
pub fn local(ticks: u64, tick: Duration, rate: u64) -> Mono {
    Mono(1_000_000_000_000 + ticks * (tick.as_nanos() as u64 / 100 * rate))
}

fn nothing_known() -> Error {
    Error::new("control.lost", Class::OutcomeUnknown, "nobody knows")
}

fn master_options(setup: &Setup, node: u64) -> master::Options {
    master::Options {
        node: NodeId(node),
        secret: [node as u8; 32],
        lease: setup.lease,
        cache_lease: setup.cache_lease,
        idle: Duration::from_secs(3_600),
        wait: Duration::from_secs(25),
        rotate: Duration::from_secs(24 * 3_600),
        alone: false,
        mutant: setup.mutant,
    }
}
