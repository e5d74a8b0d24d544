//! The suite of store and feed against what nodes run: the front on tokio, the agreed log on a real disk, fjall.

use async_trait::async_trait;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tempfile::TempDir;
use tidings_base::{Error, GroupId, NodeId};
use tidings_consensus::{Group, GroupConfig, Member, Timings, Transport, TransportError};
use tidings_log::RealDisk;
use tidings_node::group::StoreGroup;
use tidings_node::{Clock, SystemClock};
use tidings_store::Calls;
use tidings_store::front::{Reply, Request};
use tidings_store::state::StoreState;
use tidings_store::suite::{self, Subject};
use tidings_store_local::FjallKv;
use tidings_wire::v1::RaftMessage;

/// Messages between members as function calls.
#[derive(Default)]
struct Direct {
    members: BTreeMap<NodeId, OnceLock<Group>>,
}

#[async_trait]
impl Transport for Direct {
    async fn call(&self, to: NodeId, _: &str, message: RaftMessage) -> Result<RaftMessage, TransportError> {
        match self.members.get(&to).and_then(OnceLock::get) {
            Some(group) => Ok(group.receive(message).await),
            None => Err(TransportError("not there".into())),
        }
    }
}

/// The members of a group in this process; requests go to whichever leads.
struct Members {
    groups: Vec<StoreGroup>,
    dir: TempDir,
}

#[async_trait]
impl Calls for Members {
    async fn call(&self, request: Request) -> Result<Vec<Reply>, Error> {
        let mut last = None;
        // An election takes a moment; five seconds are many of them. A machine that stood still for a lease has none.
        for _ in 0..500 {
            for group in &self.groups {
                match group.call(request.clone()).await {
                    Err(error) if [".not_leader", ".no_majority"].iter().any(|code| error.code.ends_with(code)) => {
                        last = Some(error);
                    }
                    answer => return answer,
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(last.expect("there is at least one member"))
    }
}

/// Groups of this many members.
struct Of(u64);

impl Of {
    async fn open(&self, dir: TempDir) -> Members {
        let members: Vec<Member> =
            (1..=self.0).map(|n| Member { node: NodeId(n), address: format!("member-{n}") }).collect();
        let direct = Arc::new(Direct { members: members.iter().map(|m| (m.node, OnceLock::new())).collect() });
        let mut groups = Vec::new();
        for member in &members {
            let path = dir.path().join(&member.address);
            let group = open_member(&path, member.node, members.clone(), direct.clone()).await;
            assert!(direct.members[&member.node].set(group.log().clone()).is_ok());
            groups.push(group);
        }
        Members { groups, dir }
    }
}

async fn open_member(path: &Path, node: NodeId, members: Vec<Member>, direct: Arc<Direct>) -> StoreGroup {
    std::fs::create_dir_all(path.join("log")).unwrap();
    std::fs::create_dir_all(path.join("state")).unwrap();
    let disk = Arc::new(RealDisk::open(path.join("log")).unwrap());
    let state = StoreState::open(FjallKv::open(&path.join("state"), Default::default()).unwrap()).unwrap();
    let timings = Timings { hand_over: Duration::from_millis(10), ..Timings::default() };
    let config = GroupConfig { timings, ..GroupConfig::new(GroupId::STORE, node, members, disk) };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    StoreGroup::start(config, state, direct, clock).await.unwrap()
}

#[async_trait]
impl Subject for Of {
    type Made = Members;

    async fn fresh(&self) -> Members {
        self.open(tempfile::tempdir().unwrap()).await
    }

    async fn reopen(&self, made: Members) -> Members {
        let Members { groups, dir } = made;
        futures::future::join_all(groups.iter().map(StoreGroup::shutdown)).await;
        drop(groups);
        self.open(dir).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_member_keeps_the_rules_of_store_and_feed() {
    suite::store(&Of(1)).await;
    suite::feed(&Of(1)).await;
    suite::store_and_feed(&Of(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_members_keep_the_rules_of_store_and_feed() {
    suite::store(&Of(3)).await;
    suite::feed(&Of(3)).await;
    suite::store_and_feed(&Of(3)).await;
}
