//! `tidings cell member`: the replicas of the cell.

use crate::cli::Remote;
use crate::cli::cell::Member;
use crate::commands::remote::{Asked, Caller, with_client};
use crate::output;
use serde::Serialize;
use serde_json::json;
use tidings_base::{Class, Error, GroupId};
use tidings_wire::v1::admin_message::Message;
use tidings_wire::v1::member_change::Change;
use tidings_wire::v1::{self, GroupStatus, MemberChange, MemberStatus, StatusRequest};

/// Runs one of the sub-commands.
pub fn run(command: Member) -> Result<(), Error> {
    match command {
        Member::List { remote } => list(&remote),
        Member::Add { node, address, remote } => {
            with_client(&remote, async |caller| add(caller, node, &address).await)?;
            told(&remote, "added", node);
            Ok(())
        }
        Member::Remove { node, remote } => {
            with_client(&remote, async |caller| change(caller, Change::Remove(node)).await)?;
            told(&remote, "removed", node);
            Ok(())
        }
        Member::Replace { old, new, address, remote } => {
            // First the new one: the cell never has fewer replicas than before. A full cell has no room for it, though.
            with_client(&remote, async |caller| {
                let members = cell(caller).await?.members;
                require(&members, old)?;
                let dead_weight = members.iter().filter(|member| member.voter).count() >= MAX_MEMBERS;
                if dead_weight {
                    change(caller, Change::Remove(old)).await?;
                    add(caller, new, &address).await
                } else {
                    add(caller, new, &address).await?;
                    change(caller, Change::Remove(old)).await
                }
            })?;
            if remote.json {
                output::json(&json!({ "removed": old, "added": new }));
            } else {
                output::line(format_args!("node {new} is in the place of node {old}"));
            }
            Ok(())
        }
    }
}

/// The largest cell there is.
const MAX_MEMBERS: usize = 5;

#[derive(Serialize)]
struct Row {
    node: u64,
    address: String,
    role: &'static str,
    lag: u64,
}

fn list(remote: &Remote) -> Result<(), Error> {
    let group = with_client(remote, async |caller| cell(caller).await)?;
    let role = |member: &MemberStatus| match member.voter {
        _ if member.node == group.leader => "master",
        true => "replica",
        false => "learner",
    };
    let rows = group.members.iter();
    let rows: Vec<Row> =
        rows.map(|m| Row { node: m.node, address: m.address.clone(), role: role(m), lag: m.lag }).collect();
    if remote.json {
        output::json(&rows);
    } else {
        output::table(
            ["NODE", "ADDRESS", "ROLE", "BEHIND"],
            rows.into_iter().map(|row| [row.node.to_string(), row.address, row.role.to_owned(), row.lag.to_string()]),
        );
    }
    Ok(())
}

fn told(remote: &Remote, what: &str, node: u64) {
    if remote.json {
        output::json(&json!({ what: node }));
    } else {
        output::line(format_args!("node {node} is {what}"));
    }
}

async fn cell(caller: &Caller) -> Result<GroupStatus, Error> {
    let groups = caller.ask(Asked::Admin(Message::Status(StatusRequest::default())), |answer| match answer {
        Asked::Admin(Message::StatusReply(reply)) => Some(reply.groups),
        _ => None,
    });
    groups.await?.into_iter().find(|group| GroupId(group.group) == GroupId::CELL).ok_or_else(|| {
        Error::new("cell.no_replica", Class::NotFound, "the node that answered holds no replica of the cell")
            .hint("Name one that does with --server; `tidings status` shows what a node holds.")
    })
}

fn require(members: &[MemberStatus], node: u64) -> Result<(), Error> {
    if members.iter().any(|member| member.node == node) {
        return Ok(());
    }
    Err(Error::new("cell.no_member", Class::NotFound, format!("node {node} is no replica of the cell"))
        .hint("`tidings cell member list` lists them."))
}

async fn add(caller: &Caller, node: u64, address: &str) -> Result<(), Error> {
    change(caller, Change::Add(v1::Member { node, address: address.to_owned() })).await
}

async fn change(caller: &Caller, change: Change) -> Result<(), Error> {
    let message = MemberChange { group: GroupId::CELL.0, change: Some(change) };
    let done = caller.ask(Asked::Admin(Message::MemberChange(message)), |answer| match answer {
        Asked::Admin(Message::Done(_)) => Some(()),
        _ => None,
    });
    done.await
}
