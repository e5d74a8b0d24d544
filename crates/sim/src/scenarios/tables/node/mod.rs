//! A node: processor and gateway under one driver, with the partitions that placement gives it.
//!
//! ```text
//!   clients ⇄ routing ─▶ (own or other) Processor ⇄ Line ⇄ store
//!   clients ⇄ watching ⇄ Gateway ⇄ (own or other) Processor
//!                 owning: Ring ⇄ managers; directories ⇄ the cell's files
//! ```

mod copying;
mod owning;
mod publishing;
mod routing;
mod storing;
mod watching;

use super::fact::TablesFact;
use super::files::Files;
use super::letter::{Letter, Live, Post};
use super::notify::Notify;
use super::town::Around;
use crate::kernel::{Effect, HostId, Seat};
use crate::scenarios::placement::letter::Letter as PlacementLetter;
use crate::scenarios::placement::ring::{Hears, Ring};
use crate::scenarios::store::line::Line;
use bytes::Bytes;
use copying::Copying;
use owning::Owning;
use publishing::Publication;
use routing::{Relay, Waiter};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tidings_base::{KeyHash, Machine, Mono, Now, Outbox, Seeded};
use tidings_tables::gateway::{self, Gateway, Sealer};
use tidings_tables::mutant::Mutant;
use tidings_tables::names::{GatewayId, PartitionId, RequestId};
use tidings_tables::processor::{self, Guard, Processor, StoreId, StoreResult};
use tidings_tables::refusal::Refusal;
use watching::Channels;

/// Who a node talks to.
#[derive(Clone, Debug)]
pub struct Neighbours {
    /// The managers of placement.
    pub managers: Vec<HostId>,
    /// The store's servers.
    pub servers: Vec<HostId>,
    /// All nodes.
    pub nodes: Vec<HostId>,
}

/// How nodes behave.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Bytes of one piece of an answer or snapshot.
    pub piece: usize,
    /// Changes that a partition's log keeps.
    pub log: usize,
    /// Whether nodes copy what others own.
    pub copies: bool,
    /// Whether there are devices, which hear through Notify.
    pub devices: bool,
    /// A rule that is left out.
    pub mutant: Option<Mutant>,
}

/// The first byte of everything that is sealed here.
pub const SEAL: u8 = 0xff;

/// Not a cipher: enough to see who seals.
struct Marked;

impl Sealer for Marked {
    fn seal(&self, open: &[u8]) -> Vec<u8> {
        std::iter::once(SEAL).chain(open.iter().map(|byte| !byte)).collect()
    }

    fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (mark, turned) = sealed.split_first()?;
        (*mark == SEAL).then(|| turned.iter().map(|byte| !byte).collect())
    }
}

/// What happens later.
enum Later {
    /// The store's answer, where it was never asked.
    Stored(StoreId, StoreResult),
    /// A directory is replaced by now.
    Replaces(owning::Change),
    /// What became of that is heard.
    Replaced(owning::Change, bool),
    /// Notify is told by now.
    Publishes(publishing::Publication),
    /// What became of that is heard.
    Published(publishing::Publication, bool),
}

/// What one machine here has for another, in order; or that time has passed.
enum Said {
    Processor(processor::Input),
    Gateway(gateway::Input),
    Wake,
}

/// A node's process.
pub struct Node {
    host: HostId,
    neighbours: Neighbours,
    rng: Seeded,
    files: Files,
    notify: Notify,
    /// Whether anybody listens.
    devices: bool,
    post: Post,
    ring: Ring,
    line: Line<storing::Asks>,
    processor: Processor,
    gateway: Gateway,
    gateway_id: GatewayId,
    /// What the machines have not heard yet, and whether they are being told.
    said: VecDeque<Said>,
    saying: bool,
    owning: Owning,
    copying: Copying,
    channels: Channels,
    /// Where gateways are, as they have said with their queries.
    gateways: BTreeMap<GatewayId, HostId>,
    /// Who waits for the processor.
    waiters: BTreeMap<RequestId, Waiter>,
    last_request: u64,
    /// What clients have asked here.
    relays: BTreeMap<u64, Relay>,
    last_relay: u64,
    later: BTreeMap<(Mono, u64), Later>,
    last_later: u64,
    calm: bool,
}

type Out = Outbox<Effect<TablesFact>>;

/// Where a partition stands on the ring.
fn place(partition: PartitionId) -> KeyHash {
    KeyHash::of(partition.to_string().as_bytes())
}

impl Node {
    /// Starts: holds nothing, and asks for ranges.
    pub fn start(
        seat: Seat,
        neighbours: Neighbours,
        habits: Habits,
        ranges: tidings_placement::owner::Options,
        around: Around,
        out: &mut Out,
    ) -> Node {
        let Seat { host, now, mut rng, starts: start, .. } = seat;
        let Around { files, notify, post } = around;
        // A gateway that has lost its memory has another name.
        let gateway_id = GatewayId((u64::from(host.0) << 32) | start);
        let options = processor::Options {
            page: 3,
            page_bytes: habits.piece,
            log_changes: habits.log,
            // As long as marks of deletions are kept here: they go while others go on from before them.
            log_time: Duration::from_secs(60),
            seed: rng.next_u64(),
            collects: false,
            mutant: habits.mutant,
            ..processor::Options::default()
        };
        let of_gateway = gateway::Options { mutant: habits.mutant, ..gateway::Options::new(gateway_id) };
        let mut node = Node {
            ring: Ring::new(ranges, neighbours.managers.clone(), start),
            line: Line::new(neighbours.servers.clone(), rng.fork("calls"), start),
            processor: Processor::new(options),
            gateway: Gateway::new(of_gateway, Box::new(Marked)),
            gateway_id,
            said: VecDeque::new(),
            saying: false,
            owning: Owning::new(now.mono),
            copying: Copying::new(habits.copies.then(|| rng.fork("copies"))),
            channels: Channels::new(),
            gateways: BTreeMap::new(),
            waiters: BTreeMap::new(),
            last_request: 0,
            relays: BTreeMap::new(),
            last_relay: start << 32,
            later: BTreeMap::new(),
            last_later: 0,
            host,
            neighbours,
            rng,
            files,
            notify,
            devices: habits.devices,
            post,
            calm: false,
        };
        node.ring.start(now, Hears { rng: &mut node.rng, calm: false }, out);
        node
    }

    /// The faults are over, those in the driver too.
    pub fn calm(&mut self) {
        self.calm = true;
        self.ring.be_busy(None);
    }

    /// Takes a message.
    pub fn receive(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Out) {
        if self.neighbours.managers.contains(&from) {
            if let Some(said) = PlacementLetter::of(bytes) {
                let hears = Hears { rng: &mut self.rng, calm: self.calm };
                self.ring.manager_said(now, from, said, hears, out);
            }
            return;
        }
        if self.neighbours.servers.contains(&from) {
            if let Some(ended) = self.line.receive(now, from, bytes) {
                self.store_said(now, ended, out);
            }
            return;
        }
        let Some(letter) = self.post.open(bytes) else { return };
        match letter {
            Letter::Asks { id, table, caller, what } => self.client_asks(now, (from, id), table, caller, what, out),
            Letter::Calls { id, partition, caller, call } => self.serve(now, (from, id), partition, caller, call, out),
            Letter::Called { id, answer } => self.called(now, id, answer, out),
            Letter::Live(live) => {
                self.gateways.insert(live.query().gateway, from);
                self.feed_processor(now, live.input(), out);
            }
            Letter::Frame { query, frame } if query.gateway == self.gateway_id && query.is_copy() => {
                self.feed_processor(now, processor::Input::CopyHears { query, frame }, out);
            }
            Letter::Frame { query, frame } if query.gateway == self.gateway_id => {
                self.feed_gateway(now, gateway::Input::Frame { number: query.number, frame }, out);
            }
            Letter::Progress { gateway, progress } if gateway == self.gateway_id.0 => {
                self.feed_processor(now, processor::Input::CopyProgresses(progress.clone()), out);
                self.feed_gateway(now, gateway::Input::Progress(progress), out);
            }
            Letter::Watches { watch, table, asks } => self.client_watches(now, (from, watch), table, asks, out),
            Letter::Keeps { watch, seq, taken, data } => {
                self.client_keeps(now, (from, watch), (seq, taken), data, out);
            }
            Letter::Ends { watch } => self.client_ends(now, (from, watch), out),
            _ => {}
        }
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        let later = self.later.keys().next().map(|(at, _)| *at);
        let machines = [self.processor.deadline(), self.gateway.deadline(), self.ring.deadline(), self.line.deadline()];
        let relays = self.relays.values().map(Relay::deadline).min();
        let others = [later, relays, Some(self.owning.deadline()), self.channels.deadline()];
        machines.into_iter().chain(others).flatten().min()
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        self.wake_ring(now, out);
        for ended in self.line.wake(now, out) {
            self.store_said(now, ended, out);
        }
        while let Some(due) = self.later.first_entry().filter(|due| due.key().0 <= now.mono) {
            match due.remove() {
                Later::Stored(id, result) => self.feed_processor(now, processor::Input::Stored { id, result }, out),
                Later::Replaces(change) => self.replaces(now, change),
                Later::Replaced(change, done) => self.replaced(now, change, done, out),
                Later::Publishes(publication) => self.publishes(now, publication),
                Later::Published(publication, done) => self.published(now, &publication, done, out),
            }
        }
        self.look(now, out);
        self.wake_relays(now, out);
        self.sweep(now, out);
        self.said.push_back(Said::Wake);
        self.pass_on(now, out);
    }

    fn after(&mut self, now: Now, least: u64, most: u64, later: Later) {
        self.last_later += 1;
        let at = now.mono + Duration::from_millis(self.rng.between(least, most));
        self.later.insert((at, self.last_later), later);
    }

    fn feed_processor(&mut self, now: Now, input: processor::Input, out: &mut Out) {
        self.said.push_back(Said::Processor(input));
        self.pass_on(now, out);
    }

    fn feed_gateway(&mut self, now: Now, input: gateway::Input, out: &mut Out) {
        self.said.push_back(Said::Gateway(input));
        self.pass_on(now, out);
    }

    /// Tells the machines what there is for them: each hears everything in order, also what the other says.
    fn pass_on(&mut self, now: Now, out: &mut Out) {
        if std::mem::replace(&mut self.saying, true) {
            return;
        }
        while let Some(said) = self.said.pop_front() {
            let (mut from_processor, mut from_gateway) = (Outbox::new(), Outbox::new());
            match said {
                Said::Processor(input) => self.processor.handle(now, input, &mut from_processor),
                Said::Gateway(input) => self.gateway.handle(now, input, &mut from_gateway),
                Said::Wake => {
                    self.processor.wake(now, &mut from_processor);
                    self.gateway.wake(now, &mut from_gateway);
                }
            }
            self.perform_processor(now, from_processor, out);
            self.perform_gateway(now, from_gateway, out);
        }
        self.saying = false;
    }

    /// R2: whether what an answer stands on has held all the time.
    fn holds(&self, now: Now, guard: Option<Guard>) -> bool {
        guard.is_none_or(|guard| self.ring.holds(now, place(guard.partition), guard.lease))
    }

    fn perform_processor(&mut self, now: Now, outputs: Outbox<processor::Output>, out: &mut Out) {
        for output in outputs {
            match output {
                processor::Output::Store { id, request } => self.ask_store(now, id, request, out),
                processor::Output::Answer { request, guard, answer } => {
                    let answer = if self.holds(now, guard) { answer } else { Err(Refusal::Moved) };
                    self.answered(now, request, answer, out);
                }
                processor::Output::Frame { query, frame } => match query.gateway == self.gateway_id {
                    true => self.feed_gateway(now, gateway::Input::Frame { number: query.number, frame }, out),
                    false => self.tell(query.gateway, Letter::Frame { query, frame }, out),
                },
                processor::Output::Progress { gateway, progress } => match gateway == self.gateway_id {
                    true => self.feed_gateway(now, gateway::Input::Progress(progress), out),
                    false => self.tell(gateway, Letter::Progress { gateway: gateway.0, progress }, out),
                },
                processor::Output::Install(install) => {
                    self.bring(now, install.partition, Live::Install(install), out);
                }
                processor::Output::Taken { partition, query, frames } => {
                    self.bring(now, partition, Live::Taken(query, partition, frames), out);
                }
                processor::Output::Remove { partition, query } => {
                    self.bring(now, partition, Live::Remove(query, partition, true, None), out);
                }
                processor::Output::Unfollowed { partition } => self.copying.ended(partition),
                processor::Output::Deposed { partition } => self.deposed(now, partition),
                processor::Output::Publish { partition, number, publications } => {
                    self.publish(now, Publication { partition, number, publications }, out);
                }
                // Cuts are the trouble's.
                processor::Output::Grown { .. } | processor::Output::Busy { .. } | processor::Output::Quiet { .. } => {}
            }
        }
    }

    /// Takes something to a gateway elsewhere.
    fn tell(&mut self, gateway: GatewayId, letter: Letter, out: &mut Out) {
        if let Some(host) = self.gateways.get(&gateway) {
            self.post.send(out, *host, letter);
        }
    }

    fn perform_gateway(&mut self, now: Now, outputs: Outbox<gateway::Output>, out: &mut Out) {
        for output in outputs {
            let (partition, live) = match output {
                gateway::Output::Event { number, event } => {
                    self.happens(number, Ok(event), out);
                    continue;
                }
                gateway::Output::Ended { number, refusal } => {
                    self.happens(number, Err(refusal), out);
                    continue;
                }
                gateway::Output::Install(install) => (install.partition, Live::Install(install)),
                gateway::Output::Update { partition, query, reader } => {
                    (partition, Live::Update(query, partition, reader))
                }
                gateway::Output::Remove { partition, query, over, netid } => {
                    (partition, Live::Remove(query, partition, over, netid))
                }
                gateway::Output::Taken { partition, query, frames } => {
                    (partition, Live::Taken(query, partition, frames))
                }
            };
            self.bring(now, partition, live, out);
        }
    }

    /// Takes what a gateway or a copy asks to whoever owns the partition.
    fn bring(&mut self, now: Now, partition: PartitionId, live: Live, out: &mut Out) {
        match self.owner_of(now, partition) {
            Some(host) if host == self.host => self.feed_processor(now, live.input(), out),
            Some(host) => self.post.send(out, host, Letter::Live(live)),
            None => {}
        }
    }
}
