//! What operators ask of a member: its status, changes of membership, and a new incarnation after a loss.

use crate::clock::Clock;
use crate::services::{Peers, Stored};
use std::time::Duration;
use tidings_base::agreed::Role;
use tidings_base::{Class, Error, GroupId, Incarnation, NodeId};
use tidings_consensus::{ChangeError, Group, Missed, Standing, Status};
use tidings_store::Store;
use tidings_wire::v1::admin_message::Message;
use tidings_wire::v1::member_change::Change;
use tidings_wire::{error, v1};

/// Entries that a member may lack before the status speaks of it: some rounds of replication under full load.
const WORTH_MENTIONING: u64 = 10_000;

/// How long a node that is to be a member may take to answer: longer than a connection over a bad line.
const ANSWERS: Duration = Duration::from_secs(3);

/// An error of a group that this node cannot send anybody elsewhere with: if the group has no leader or no majority, it says
/// so, names who is missed, and what to do. Its class stays; without a majority its code says that, too, so that nobody asks
/// again in vain. A node that is no member knows by hearsay where to send.
pub fn explain(log: &Group, mut error: Error) -> Error {
    let unanswered = matches!(error.class, Class::Unreachable | Class::OutcomeUnknown) && error.redirect.is_none();
    let Some(Missed { members, hopeless }) = log.missed().filter(|_| unanswered) else { return error };
    let name = name(log);
    if let Some(leader) = log.led_outside().filter(|_| error.class == Class::Unreachable) {
        error.message = format!("This node is no member of the {name}'s group.");
        error.hint = format!("Ask its leader, at {leader}.");
        return error.redirect(Some(leader));
    }
    if log.status().members.is_empty() {
        error.message = format!("This node is no member of the {name}'s group, and knows none.");
        error.hint =
            "Name some in its configuration (`contacts`), let an operator add it with `tidings member add`, or \
                      ask another node."
                .to_owned();
        // It may be founding its cluster at this moment.
        return error;
    }
    let shown: Vec<String> = members.iter().map(|m| format!("node {} ({})", m.node, m.address)).collect();
    let who = if shown.is_empty() { String::new() } else { format!(": no answer from {}", shown.join(" and ")) };
    let unknown = if error.class == Class::OutcomeUnknown { " Whether it happened is not known." } else { "" };
    let (what, hint) = match hopeless {
        true => (
            "no majority",
            "Start what is down, or mend the network between; then it goes on by itself. `tidings status` names all.",
        ),
        false => ("no leader at the moment", "Ask again in a moment; `tidings status` says who leads."),
    };
    error.message = format!("The {name}'s group has {what}{who}.{unknown}");
    error.hint = hint.to_owned();
    if hopeless { hopeless_of(error) } else { error }
}

/// What may have happened keeps its code: that nobody knows matters more.
fn hopeless_of(error: Error) -> Error {
    match error.class {
        Class::Unreachable => error.without_majority(),
        _ => error,
    }
}

/// Refuses a request at once while nobody could agree on anything.
pub fn refuse_hopeless(log: &Group, code: &'static str) -> Result<(), Error> {
    match log.missed() {
        Some(Missed { hopeless: true, .. }) => Err(explain(log, Error::new(code, Class::Unreachable, ""))),
        _ => Ok(()),
    }
}

/// Answers a message about the cluster itself.
pub async fn call(logs: &[&Group], stored: &Stored, clock: &dyn Clock, message: Message) -> Result<Message, Error> {
    match message {
        Message::Status(_) => Ok(Message::StatusReply(status(logs))),
        Message::MemberChange(change) => {
            let log = logs.iter().find(|log| log.status().group == GroupId(change.group));
            member_change(log.ok_or_else(|| no_group(change.group))?, stored, change).await
        }
        Message::IncarnationRaise(_) => {
            // The state adds one to what it has; the wall clock is read here, where the call meets the log.
            let at_least = Incarnation(clock.now().wall.millis());
            let Incarnation(incarnation) = stored.store.raise_incarnation(at_least).await?;
            tracing::warn!(incarnation, "an operator raised the store's incarnation");
            Ok(Message::IncarnationRaised(v1::IncarnationRaised { incarnation }))
        }
        _ => Err(error::unsupported()),
    }
}

/// What people call a group.
pub fn name(log: &Group) -> &'static str {
    match log.status().group {
        GroupId::CELL => "cell",
        _ => "store",
    }
}

/// What this node says when its replica of a group stopped by itself.
pub fn stopped(log: &Group) -> Error {
    let name = name(log);
    let message = format!("this node's replica of the {name}'s group stopped by itself: its disk or its state failed");
    Error::new("node.replica_stopped", Class::Failed, message)
        .hint("Its log says why; `tidings doctor` looks at the disk and the data. Then start it again.")
}

pub fn no_group(group: u32) -> Error {
    Error::new("admin.no_group", Class::NotFound, format!("there is no group {group}"))
        .hint("`tidings status` lists the groups.")
}

async fn member_change(log: &Group, stored: &Stored, change: v1::MemberChange) -> Result<Message, Error> {
    // Who does not lead sends elsewhere, whatever is asked.
    let leads = matches!(*log.role().borrow(), Role::Leader { .. });
    let changed = match change.change {
        Some(Change::Add(member)) => {
            let node = NodeId(member.node);
            if member.node == 0 {
                return Err(Error::new("raft.bad_number", Class::Invalid, "0 means nobody, and is no node's number")
                    .hint("Number nodes from 1."));
            }
            let votes = log.status().members.iter().any(|member| member.node == node && member.voter);
            if leads && !votes {
                stored.refuse_old_number(log, node).await?;
                if !change.force {
                    answers(&stored.peers, &member).await?;
                }
            }
            log.add_member(node, &member.address).await
        }
        Some(Change::Remove(node)) => {
            let (node, status) = (NodeId(node), log.status());
            if leads && status.members.iter().any(|member| member.node == node) {
                stored.removes(status.group, node).await?;
            }
            log.remove_member(node).await
        }
        None => return Err(error::unsupported()),
    };
    match changed {
        Ok(()) => Ok(Message::Done(v1::Done {})),
        Err(refused @ ChangeError::NotLeader { leader }) => {
            let redirect = log.leads_at(leader);
            Err(explain(log, Error::from(refused).redirect(redirect)))
        }
        Err(refused) => Err(explain(log, refused.into())),
    }
}

/// Refuses a new member that does not answer, or whose address is another's, before anything is changed: as a learner that
/// nobody hears from it would stay behind.
async fn answers(peers: &Peers, member: &v1::Member) -> Result<(), Error> {
    let v1::Member { node, address } = member;
    let (code, why) = match peers.status_at(address, ANSWERS).await {
        Ok(there) if there.node == *node => return Ok(()),
        Ok(there) => ("raft.other_node", format!("node {} answers at {address}, not node {node}", there.node)),
        Err(error) if error.class == Class::Invalid => return Err(error),
        Err(error) => ("raft.no_answer", format!("nobody answers at {address}: {}", error.message)),
    };
    Err(Error::new(code, Class::Refused, format!("{why}; nothing was changed"))
        .hint("Start it with `tidings serve --join`, or correct the address. --force adds it all the same."))
}

pub(super) fn status(logs: &[&Group]) -> v1::StatusReply {
    let cluster = logs.iter().find_map(|log| log.cluster()).map_or(String::new(), |cluster| cluster.to_string());
    let mut reply = v1::StatusReply { cluster, ..v1::StatusReply::default() };
    if let Some(log) = logs.first() {
        // All groups of a node share what it knows of strangers.
        reply.problems.extend(log.strangers().into_iter().map(|stranger| {
            format!(
                "A message of another cluster was refused: {stranger}. Remove that node if it was added here by mistake, \
                 and start it with an empty data directory and --join to add it."
            )
        }));
    }
    for log in logs {
        let status = log.status();
        problems(log, &status, &mut reply.problems);
        let leader = status.leader.filter(|_| log.in_touch());
        reply.groups.push(group(name(log), Status { leader, ..status }));
    }
    reply
}

fn group(name: &str, status: Status) -> v1::GroupStatus {
    let members = status.members.iter().map(|member| v1::MemberStatus {
        node: member.node.0,
        address: member.address.clone(),
        voter: member.voter,
        lag: member.lag.unwrap_or_default(),
        silent: false,
    });
    v1::GroupStatus {
        group: status.group.0,
        name: name.to_owned(),
        role: status.standing.name().to_owned(),
        leader: status.leader.map_or(0, |leader| leader.0),
        epoch: status.epoch.map_or(status.term, |epoch| epoch.0),
        applied: status.applied.0,
        committed: status.committed.0,
        members: members.collect(),
    }
}

fn problems(log: &Group, status: &Status, problems: &mut Vec<String>) {
    let name = name(log);
    for lost in log.lost_logs() {
        let node = lost.node;
        problems.push(format!(
            "Node {node} has lost its log of the {name}'s group and counts for nothing: remove it (`tidings member remove \
             {node}`), and add it under a new number, started with --join and an empty data directory."
        ));
    }
    if status.standing == Standing::Stopped {
        let Error { message, hint, .. } = stopped(log);
        problems.push(format!("{message}. {hint}"));
    } else if log.led_outside().is_some() {
        // It takes no part, and passes on what it is asked.
    } else if matches!(*log.role().borrow(), Role::Follower { leader: None }) {
        problems.push(match status.members.is_empty() {
            true => format!("This node is no member of the {name}'s group: ask its leader to add it."),
            false => {
                format!("The {name}'s group has no leader: a majority of its members must run and reach each other.")
            }
        });
    } else if !log.in_touch() {
        problems.push(format!(
            "This node is not in touch with a majority of the {name}'s group: look at the other members."
        ));
    }
    for member in &status.members {
        if let Some(lag) = member.lag.filter(|lag| *lag > WORTH_MENTIONING) {
            let node = member.node;
            problems.push(format!(
                "Node {node} lacks {lag} entries of the {name}'s group: look whether it runs, and at its disk."
            ));
        }
    }
    if status.members.iter().filter(|member| member.voter).count() == 2 {
        problems.push(format!("The {name}'s group has two voters: it stops when either fails; add a third."));
    }
}
