//! Trouble of other kinds than broken networks and machines: partitions move, are cut and joined, nodes hear of it late, the
//! store is slow, away or does not reach some rows, tables are dropped, clients change their data, return with cursors, or use
//! an id twice.

use super::client::Client;
use super::fact::{Fact, KEYS, key};
use super::files::{LASTING, PASSING};
use super::node::Node;
use super::town::{Actor, NAMESPACE};
use super::{Out, Run};
use crate::disk::DiskPace;
use crate::faults::draw;
use crate::kernel::{HostId, Observed};
use crate::scenarios::placement::operator::{self, Operator};
use crate::scenarios::stage::PHASE;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Now, Seeded};
use tidings_tables::names::PartitionId;

/// How often the operator looks whether the namespace is there.
const OPERATE: Duration = Duration::from_secs(2);
/// Ranges of the namespace that an owner begins with.
const VIRTUAL_NODES: u32 = 4;
/// Partitions of the table beyond which none is cut.
const PARTITIONS: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Due {
    Strike,
    Operate,
    Start(HostId),
    RowsBack(u64),
    Brisk,
    Idle(HostId),
}

/// A kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    FailingRows,
    SlowStore,
    StoreOutage,
    NodeAway,
    Drain,
    Busy,
    Split,
    Merge,
    Drop,
    NewData,
    Reconnection,
    Fork,
}

impl Kind {
    const ALL: [Kind; 12] = [
        Kind::FailingRows,
        Kind::SlowStore,
        Kind::StoreOutage,
        Kind::NodeAway,
        Kind::Drain,
        Kind::Busy,
        Kind::Split,
        Kind::Merge,
        Kind::Drop,
        Kind::NewData,
        Kind::Reconnection,
        Kind::Fork,
    ];

    fn name(self) -> &'static str {
        match self {
            Kind::FailingRows => "failing_rows",
            Kind::SlowStore => "slow_store",
            Kind::StoreOutage => "store_outage",
            Kind::NodeAway => "node_away",
            Kind::Drain => "drain",
            Kind::Busy => "busy_node",
            Kind::Split => "split",
            Kind::Merge => "merge",
            Kind::Drop => "dropped_table",
            Kind::NewData => "new_data",
            Kind::Reconnection => "reconnection",
            Kind::Fork => "forked_id",
        }
    }
}

/// All names of these kinds.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    Kind::ALL.into_iter().map(Kind::name)
}

/// The schedule of one run.
pub struct Trouble {
    rng: Seeded,
    mean: u64,
    weights: Vec<(Kind, u64)>,
    due: BTreeMap<u64, Due>,
    last_id: u64,
    counts: BTreeMap<&'static str, u64>,
    operator: Operator,
    outages: u64,
    calm: bool,
}

impl Trouble {
    /// A schedule drawn from the generator.
    pub fn new(rng: &Seeded) -> Trouble {
        let mut rng = rng.fork("trouble");
        let weights = Kind::ALL.map(|kind| (kind, if rng.one_in(4) { 0 } else { rng.between(1, 5) }));
        let mean = [2, 4, 8, 16][rng.below(4) as usize];
        Trouble {
            rng,
            mean,
            weights: weights.to_vec(),
            due: BTreeMap::new(),
            last_id: PHASE,
            counts: BTreeMap::new(),
            operator: Operator::default(),
            outages: 0,
            calm: false,
        }
    }

    /// How many of each kind there were.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }
}

impl Run {
    pub(super) fn begin_trouble(&mut self) {
        self.later(Duration::ZERO, Due::Operate);
        let mean = self.trouble.mean;
        self.later(Duration::from_secs(10 + mean), Due::Strike);
    }

    /// Trouble is over: whatever fails is mended.
    pub(super) fn end_trouble(&mut self) {
        self.trouble.calm = true;
        self.stage.town.calm = true;
        self.stage.town.around.files.fail_rows(Vec::new());
        self.set_pace(DiskPace::default());
        for host in self.stage.town.everybody() {
            self.stage.world.poke(host, |actor, _, _| match actor {
                Actor::Node(node) => node.calm(),
                Actor::Client(client) => client.calm(),
                Actor::Cell(_) | Actor::Manager(_) | Actor::Store(_) => {}
            });
        }
    }

    fn later(&mut self, after: Duration, due: Due) {
        self.trouble.last_id += 1;
        self.trouble.due.insert(self.trouble.last_id, due);
        self.stage.world.remind(after, self.trouble.last_id);
    }

    pub(super) fn trouble_due(&mut self, id: u64) {
        match self.trouble.due.remove(&id) {
            Some(Due::Strike) if !self.trouble.calm => {
                let wait = self.trouble.rng.between(500, 2_000 * self.trouble.mean);
                self.later(Duration::from_millis(wait), Due::Strike);
                if let Some(kind) = draw(&mut self.trouble.rng, &self.trouble.weights) {
                    self.strike(kind);
                }
            }
            Some(Due::Operate) => {
                let (stage, trouble) = (&mut self.stage, &mut self.trouble);
                let config = operator::config(stage.town.times, VIRTUAL_NODES);
                trouble.operator.look(&mut stage.world, &stage.town.neighbours.managers, NAMESPACE, &config);
                self.later(OPERATE, Due::Operate);
            }
            Some(Due::Start(host)) => {
                if !self.stage.world.is_up(host) {
                    // Nothing here can fail to start; if it did, the end would notice.
                    drop(self.stage.world.start(host, &mut self.stage.town));
                }
            }
            Some(Due::RowsBack(outage)) if outage == self.trouble.outages => {
                self.stage.town.around.files.fail_rows(Vec::new());
            }
            Some(Due::Brisk) => self.set_pace(DiskPace::default()),
            Some(Due::Idle(host)) => {
                self.with_node(host, |node, _, _| node.be_busy(None));
            }
            Some(Due::Strike | Due::RowsBack(_)) | None => {}
        }
    }

    fn strike(&mut self, kind: Kind) {
        let town = &self.stage.town;
        let node = self.trouble.rng.pick(&town.neighbours.nodes).copied().unwrap_or_default();
        let clients: Vec<HostId> = town.clients.keys().copied().collect();
        let client = self.trouble.rng.pick(&clients).copied().unwrap_or_default();
        let a_while = Duration::from_millis(self.trouble.rng.between(500, 40_000));
        self.stage.world.note_fault(node, kind.name());
        let happened = match kind {
            Kind::FailingRows => {
                let bytes = (0..3).map(|_| b'0' + self.trouble.rng.below(KEYS) as u8).collect();
                self.stage.town.around.files.fail_rows(bytes);
                self.trouble.outages += 1;
                self.later(a_while / 4, Due::RowsBack(self.trouble.outages));
                true
            }
            Kind::SlowStore => {
                self.set_pace(DiskPace::slow());
                self.later(a_while, Due::Brisk);
                true
            }
            Kind::StoreOutage => {
                for server in self.stage.town.neighbours.servers.clone() {
                    self.stage.world.kill(server);
                    self.later(a_while / 8, Due::Start(server));
                }
                true
            }
            Kind::NodeAway => {
                self.stage.world.kill(node);
                self.later(a_while, Due::Start(node));
                true
            }
            Kind::Drain => self.with_node(node, |node, now, out| node.drain(now, out)),
            Kind::Busy => {
                let late = a_while / 2;
                self.later(a_while, Due::Idle(node));
                self.with_node(node, |node, _, _| node.be_busy(Some(late)))
            }
            Kind::Split => {
                let at = key(self.trouble.rng.between(1, KEYS - 1));
                let few = self
                    .stage
                    .town
                    .around
                    .files
                    .read(LASTING)
                    .is_some_and(|entry| entry.directory.partitions.len() < PARTITIONS);
                few && self.somewhere(|node, now, out| node.split(now, LASTING, &at, out))
            }
            Kind::Merge => self.merge(),
            Kind::Drop => self.drop_passing(),
            Kind::NewData => self.with_client(client, |client, now, out| client.change_team(now, out)),
            Kind::Reconnection => self.with_client(client, |client, now, out| client.reconnect(now, out)),
            Kind::Fork => self.with_client(client, |client, _, out| client.fork(out)),
        };
        *self.trouble.counts.entry(kind.name()).or_default() += u64::from(happened);
    }

    /// Whoever can does it.
    fn somewhere(&mut self, mut act: impl FnMut(&mut Node, Now, &mut Out) -> bool) -> bool {
        let nodes = self.stage.town.neighbours.nodes.clone();
        let mut done = false;
        for node in nodes {
            if !done {
                self.with_node(node, |node, now, out| done = act(node, now, out));
            }
        }
        done
    }

    /// Two neighbours are joined, whoever owns them: both give them up first.
    fn merge(&mut self) -> bool {
        let Some(entry) = self.stage.town.around.files.read(LASTING) else { return false };
        let directory = entry.directory;
        let parts: Vec<PartitionId> =
            directory.partitions.iter().map(|part| directory.partition_id(part.number)).collect();
        let owners: Vec<Option<HostId>> = parts.iter().map(|partition| self.opener(*partition)).collect();
        let both = parts
            .windows(2)
            .zip(owners.windows(2))
            .find_map(|(parts, owners)| Some([(parts[0], owners[0]?), (parts[1], owners[1]?)]));
        let Some(both) = both else { return false };
        let ceded = both.map(|(partition, owner)| {
            let mut ceded = None;
            self.with_node(owner, |node, now, out| ceded = node.cede(now, partition, out));
            ceded
        });
        let ([Some(left), Some(right)], table) = (ceded, directory.table()) else { return false };
        self.with_node(both[0].1, |node, now, _| node.merge(now, LASTING, table, [left, right]))
    }

    /// Who has opened a partition.
    fn opener(&mut self, partition: PartitionId) -> Option<HostId> {
        let mut opener = None;
        for host in self.stage.town.neighbours.nodes.clone() {
            self.with_node(host, |node, _, _| {
                if node.has_opened(partition) {
                    opener = Some(host);
                }
            });
        }
        opener
    }

    /// The table that passes is dropped, and made again under the same name.
    fn drop_passing(&mut self) -> bool {
        let Some(table) = self.stage.town.around.files.drop_table(PASSING) else { return false };
        let at = self.stage.world.now();
        self.stated.push(Observed { at, host: self.stage.town.cell, fact: Fact::Dropped(table).into() });
        self.stage.town.around.files.create(PASSING, Vec::new());
        true
    }

    fn set_pace(&mut self, pace: DiskPace) {
        for server in self.stage.town.neighbours.servers.clone() {
            self.stage.world.set_pace(server, pace);
        }
    }

    // ---- whom it strikes, if they run -------------------------------------------------------------------------------

    pub(super) fn with_node(&mut self, host: HostId, act: impl FnOnce(&mut Node, Now, &mut Out)) -> bool {
        self.stage.world.poke(host, |actor, now, out| {
            if let Actor::Node(node) = actor {
                act(node, now, out);
            }
        })
    }

    pub(super) fn with_client(&mut self, host: HostId, act: impl FnOnce(&mut Client, Now, &mut Out)) -> bool {
        self.stage.world.poke(host, |actor, now, out| {
            if let Actor::Client(client) = actor {
                act(client, now, out);
            }
        })
    }
}
