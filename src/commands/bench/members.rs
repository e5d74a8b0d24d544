//! Members of one group in this process, each with its own directory; messages between them are function calls.

use crate::output::broken;
use async_trait::async_trait;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidings_base::agreed::Role;
use tidings_base::disk::Disk;
use tidings_base::{Class, Error, GroupId, NodeId};
use tidings_consensus::{GroupConfig, Member, Transport, TransportError};
use tidings_log::{RealDisk, SlowDisk};
use tidings_node::SystemClock;
use tidings_node::group::StoreGroup;
use tidings_store::StoreState;
use tidings_store_local::FjallKv;
use tidings_wire::v1::RaftMessage;

/// How fast the disk is.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// As it is.
    Disk,
    /// Each sync takes at least this long.
    EachSyncTakes(Duration),
}

/// Members that have found their leader.
pub struct Members {
    groups: Vec<StoreGroup>,
    leader: usize,
}

impl Members {
    /// Starts this many members and waits until one leads.
    pub async fn start(place: &Path, count: u64, pace: Pace) -> Result<Members, Error> {
        let wires = Arc::new(Wires((0..count).map(|_| OnceLock::new()).collect()));
        let named = (1..=count).map(|node| Member { node: NodeId(node), address: node.to_string() });
        let named: Vec<Member> = named.collect();
        let mut groups = Vec::new();
        for node in 1..=count {
            let group = open(&place.join(node.to_string()), NodeId(node), named.clone(), pace, wires.clone()).await?;
            // Nobody else sets it.
            let _ = wires.0[node as usize - 1].set(group.clone());
            groups.push(group);
        }
        let leader = match groups[0].log().ready().await {
            Role::Leader { .. } => 0,
            Role::Follower { leader: Some(NodeId(node)) } => node as usize - 1,
            Role::Follower { leader: None } => {
                return Err(Error::new("bench.no_leader", Class::Failed, "the members under test found no leader"));
            }
        };
        Ok(Members { groups, leader })
    }

    pub fn leader(&self) -> &StoreGroup {
        &self.groups[self.leader]
    }

    /// Stops all of them, without hand-overs.
    pub async fn stop(self) {
        for group in &self.groups {
            group.log().stop().await;
        }
    }
}

async fn open(
    dir: &Path,
    node: NodeId,
    members: Vec<Member>,
    pace: Pace,
    wires: Arc<Wires>,
) -> Result<StoreGroup, Error> {
    let (log, state) = (dir.join("log"), dir.join("state"));
    for made in [&log, &state] {
        std::fs::create_dir_all(made).map_err(|error| broken(format_args!("cannot make {}", made.display()), error))?;
    }
    let disk = RealDisk::open(&log).map_err(|error| broken(format_args!("cannot open {}", log.display()), error))?;
    let disk: Arc<dyn Disk> = match pace {
        Pace::Disk => Arc::new(disk),
        Pace::EachSyncTakes(delay) => Arc::new(SlowDisk::new(Arc::new(disk), delay)),
    };
    let kv = FjallKv::open(&state, tidings_store_local::Options::default())
        .map_err(|error| broken(format_args!("cannot open {}", state.display()), error))?;
    let state = StoreState::open(kv).map_err(|error| broken("cannot open the state", error))?;
    let config = GroupConfig::new(GroupId::STORE, node, members, disk);
    StoreGroup::start(config, state, wires, Arc::new(SystemClock)).await
}

/// Every member, once it has started.
struct Wires(Vec<OnceLock<StoreGroup>>);

#[async_trait]
impl Transport for Wires {
    async fn call(&self, to: NodeId, _: &str, message: RaftMessage) -> Result<RaftMessage, TransportError> {
        match self.0.get(to.0 as usize - 1).and_then(OnceLock::get) {
            Some(group) => Ok(group.log().receive(message).await),
            None => Err(TransportError("it has not started yet".to_owned())),
        }
    }
}
