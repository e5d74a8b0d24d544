//! `tidings status`: one screen that says who leads, who lags, and what is wrong.

use super::remote::{Asked, ask};
use crate::cli::Remote;
use crate::output;
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;
use tidings_base::Error;
use tidings_wire::v1::admin_message::Message;
use tidings_wire::v1::{GroupStatus, MemberStatus, StatusReply, StatusRequest};

#[derive(Serialize)]
struct Status {
    node: u64,
    cluster: Option<String>,
    version: String,
    address: String,
    uptime_ms: u64,
    connections: u32,
    groups: Vec<Group>,
    placement: Option<Placement>,
    /// Whom the node asks about the cluster, while it is no member.
    contacts: Vec<String>,
    problems: Vec<String>,
}

/// The placement manager, as the node sees it.
#[derive(Serialize)]
struct Placement {
    role: String,
    leader: Option<String>,
    epoch: Option<u64>,
}

#[derive(Serialize)]
struct Group {
    group: u32,
    name: String,
    role: String,
    leader: Option<u64>,
    epoch: u64,
    applied: u64,
    committed: u64,
    members: Vec<Member>,
}

#[derive(Serialize)]
struct Member {
    node: u64,
    address: String,
    voter: bool,
    lag: u64,
    silent: bool,
}

/// Something is wrong, as with `doctor`.
const PROBLEMS: u8 = 1;

/// Asks one node and prints what it says; the exit code tells whether something is wrong.
pub fn run(remote: Remote) -> Result<ExitCode, Error> {
    let reply = ask(&remote, Asked::Admin(Message::Status(StatusRequest::default())), |answer| match answer {
        Asked::Admin(Message::StatusReply(reply)) => Some(reply),
        _ => None,
    })?;
    let status = Status::from(reply);
    if remote.json {
        output::json(&status);
    } else {
        print(&status);
    }
    Ok(if status.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(PROBLEMS) })
}

impl From<StatusReply> for Status {
    fn from(reply: StatusReply) -> Status {
        Status {
            node: reply.node,
            cluster: Some(reply.cluster).filter(|cluster| !cluster.is_empty()),
            version: reply.version,
            address: reply.address,
            uptime_ms: reply.uptime_ms,
            connections: reply.connections,
            groups: reply.groups.into_iter().map(Group::from).collect(),
            placement: reply.placement.map(|placement| Placement {
                role: placement.role,
                leader: Some(placement.leader).filter(|leader| !leader.is_empty()),
                epoch: Some(placement.epoch).filter(|epoch| *epoch > 0),
            }),
            contacts: reply.contacts,
            problems: reply.problems,
        }
    }
}

impl From<GroupStatus> for Group {
    fn from(group: GroupStatus) -> Group {
        let members = group.members.into_iter();
        Group {
            group: group.group,
            name: group.name,
            role: group.role,
            leader: (group.leader != 0).then_some(group.leader),
            epoch: group.epoch,
            applied: group.applied,
            committed: group.committed,
            members: members.map(Member::from).collect(),
        }
    }
}

impl From<MemberStatus> for Member {
    fn from(m: MemberStatus) -> Member {
        Member { node: m.node, address: m.address, voter: m.voter, lag: m.lag, silent: m.silent }
    }
}

fn print(status: &Status) {
    output::line(format_args!(
        "node {} at {} · cluster {} · tidings {} · up {} · {} connections",
        status.node,
        status.address,
        status.cluster.as_deref().unwrap_or("not known yet"),
        status.version,
        uptime(Duration::from_millis(status.uptime_ms)),
        status.connections
    ));
    output::table(
        ["GROUP", "ROLE", "LEADER", "EPOCH", "APPLIED", "MEMBERS"],
        status.groups.iter().map(|group| {
            let member = |m: &Member| match (m.silent, m.voter, m.lag) {
                (true, _, _) => format!("{} (silent)", m.node),
                (false, true, 0) => m.node.to_string(),
                (false, true, lag) => format!("{} ({lag} behind)", m.node),
                (false, false, lag) => format!("{} (learner, {lag} behind)", m.node),
            };
            [
                format!("{} {}", group.group, group.name),
                group.role.clone(),
                group.leader.map_or("none".to_owned(), |leader| leader.to_string()),
                group.epoch.to_string(),
                group.applied.to_string(),
                group.members.iter().map(member).collect::<Vec<_>>().join(", "),
            ]
        }),
    );
    if let Some(Placement { role, leader, epoch }) = &status.placement {
        let epoch = epoch.map_or(String::new(), |epoch| format!(" (epoch {epoch})"));
        let leader = leader.as_deref().unwrap_or("not known");
        output::line(format_args!("placement: {role}{epoch} · leader {leader}"));
    }
    if !status.contacts.is_empty() {
        output::line(format_args!("no member · asks {}", status.contacts.join(", ")));
    }
    if status.problems.is_empty() {
        output::line("no problems");
    }
    for problem in &status.problems {
        output::line(format_args!("problem: {problem}"));
    }
}

fn uptime(up: Duration) -> String {
    match up.as_secs() {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3_600 => format!("{} min", s / 60),
        s @ 3_600..86_400 => format!("{} h {} min", s / 3_600, s / 60 % 60),
        s => format!("{} d {} h", s / 86_400, s / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uptime_has_the_units_of_its_size() {
        let shown: Vec<String> = [59, 60, 7_260, 180_000].map(|s| uptime(Duration::from_secs(s))).into();
        assert_eq!(shown, ["59 s", "1 min", "2 h 1 min", "2 d 2 h"]);
    }
}
