//! What operators ask of a member: its status, changes of membership, and a new incarnation after a loss.

use crate::clock::Clock;
use crate::group::StoreGroup;
use tidings_base::agreed::Role;
use tidings_base::{Error, GroupId, Incarnation, NodeId};
use tidings_consensus::{ChangeError, Group, Status};
use tidings_store::Store;
use tidings_wire::v1::admin_message::Message;
use tidings_wire::v1::member_change::Change;
use tidings_wire::{error, v1};

/// Entries that a member may lack before the status speaks of it: some rounds of replication under full load.
const WORTH_MENTIONING: u64 = 10_000;

/// Answers a message about the cluster itself.
pub async fn call(store: &StoreGroup, clock: &dyn Clock, message: Message) -> Result<Message, Error> {
    match message {
        Message::Status(_) => Ok(Message::StatusReply(status(store.log()))),
        Message::MemberChange(change) => member_change(store.log(), change).await,
        Message::IncarnationRaise(_) => {
            // The state adds one to what it has; the wall clock is read here, where the call meets the log.
            let at_least = Incarnation(clock.now().wall.millis());
            let Incarnation(incarnation) = store.raise_incarnation(at_least).await?;
            tracing::warn!(incarnation, "an operator raised the store's incarnation");
            Ok(Message::IncarnationRaised(v1::IncarnationRaised { incarnation }))
        }
        _ => Err(error::unsupported()),
    }
}

async fn member_change(log: &Group, change: v1::MemberChange) -> Result<Message, Error> {
    if GroupId(change.group) != log.status().group {
        return Err(Error::new(
            "admin.no_group",
            tidings_base::Class::NotFound,
            format!("there is no group {}", change.group),
        )
        .hint("`tidings status` lists the groups."));
    }
    let changed = match change.change {
        Some(Change::Add(member)) => log.add_member(NodeId(member.node), &member.address).await,
        Some(Change::Remove(node)) => log.remove_member(NodeId(node)).await,
        None => return Err(error::unsupported()),
    };
    match changed {
        Ok(()) => Ok(Message::Done(v1::Done {})),
        Err(refused @ ChangeError::NotLeader { leader }) => {
            let redirect = leader.and_then(|leader| log.address(leader));
            Err(Error::from(refused).redirect(redirect))
        }
        Err(refused) => Err(refused.into()),
    }
}

fn status(log: &Group) -> v1::StatusReply {
    let status = log.status();
    let problems = problems(log, &status);
    let members = status.members.iter().map(|member| v1::MemberStatus {
        node: member.node.0,
        address: member.address.clone(),
        voter: member.voter,
        lag: member.lag.unwrap_or_default(),
    });
    let group = v1::GroupStatus {
        group: status.group.0,
        name: "store".to_owned(),
        role: status.standing.name().to_owned(),
        leader: status.leader.map_or(0, |leader| leader.0),
        epoch: status.epoch.map_or(status.term, |epoch| epoch.0),
        applied: status.applied.0,
        committed: status.committed.0,
        members: members.collect(),
    };
    v1::StatusReply { groups: vec![group], problems, ..Default::default() }
}

fn problems(log: &Group, status: &Status) -> Vec<String> {
    let mut problems = Vec::new();
    if matches!(*log.role().borrow(), Role::Follower { leader: None }) {
        problems
            .push("The store's group has no leader: a majority of its members must run and reach each other.".into());
    } else if !log.in_touch() {
        problems
            .push("This node is not in touch with a majority of the store's group: look at the other members.".into());
    }
    for member in &status.members {
        if let Some(lag) = member.lag.filter(|lag| *lag > WORTH_MENTIONING) {
            let node = member.node;
            problems.push(format!("Node {node} lacks {lag} entries: look whether it runs, and at its disk."));
        }
    }
    if status.members.iter().filter(|member| member.voter).count() == 2 {
        problems.push("The store's group has two voters: it stops when either fails; add a third.".into());
    }
    problems
}
