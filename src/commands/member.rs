//! `tidings member`: the members of the cluster, each in the group of the cell and in that of store and feed. And
//! `tidings cell member`: of the cell's group alone.

use crate::cli::Remote;
use crate::cli::member::Member;
use crate::commands::remote::{Asked, Caller, with_client};
use crate::output;
use serde::Serialize;
use serde_json::json;
use std::time::Duration;
use tidings_base::{Class, Error, GroupId};
use tidings_wire::v1::admin_message::Message;
use tidings_wire::v1::member_change::Change;
use tidings_wire::v1::{self, GroupStatus, MemberChange, MemberStatus, StatusRequest};

/// Every group that a member is in: what people call it, too.
pub const ALL: &[(GroupId, &str)] = &[(GroupId::CELL, "cell"), (GroupId::STORE, "store")];
/// The cell's alone.
pub const CELL: &[(GroupId, &str)] = &[(GroupId::CELL, "cell")];

/// A member to be.
struct New {
    node: u64,
    address: String,
    /// Whether it need not answer yet.
    force: bool,
}

type Groups = &'static [(GroupId, &'static str)];

/// Runs one of the sub-commands for these groups, one after the other. What is done already in one of several is left as it
/// is, so that a command that was broken off can be run again.
pub fn run(command: Member, groups: Groups) -> Result<(), Error> {
    match command {
        Member::List { remote } => list(&remote, groups),
        Member::Add { node, address, force, remote } => {
            let new = New { node, address, force };
            with_client(&remote, async |caller| each(groups, async |group| add(caller, group, &new).await).await)?;
            told(&remote, "added", node);
            Ok(())
        }
        Member::Remove { node, remote } => {
            with_client(&remote, async |caller| each(groups, async |group| remove(caller, group, node).await).await)?;
            told(&remote, "removed", node);
            Ok(())
        }
        Member::Replace { old, new, address, force, remote } => {
            let comes = New { node: new, address, force };
            with_client(&remote, async |caller| {
                each(groups, async |group| replace(caller, group, old, &comes).await).await
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

/// Does something in every group. Where there are several, one in which it is done already is no failure, unless it is so in
/// all of them.
async fn each(groups: Groups, work: impl AsyncFn(GroupId) -> Result<(), Error>) -> Result<(), Error> {
    let mut before = Vec::new();
    for (group, _) in groups {
        match work(*group).await {
            Err(error) if matches!(error.code.as_ref(), "raft.already_member" | "raft.no_member") => {
                before.push(error);
            }
            done => done?,
        }
    }
    match before.pop() {
        Some(error) if before.len() + 1 == groups.len() => Err(error),
        _ => Ok(()),
    }
}

/// Puts `new` in the place of `old`; where it is already, nothing is left to do.
async fn replace(caller: &Caller, group: GroupId, old: u64, new: &New) -> Result<(), Error> {
    let members = status(caller, group).await?.members;
    if !members.iter().any(|member| member.node == old) {
        let replaced = |member: &MemberStatus| member.node == new.node && member.voter && member.address == new.address;
        return if members.iter().any(replaced) { Ok(()) } else { Err(not_there(old, new)) };
    }
    // First the new one: a group never has fewer members than before. A full one has no room for it, though.
    if members.iter().filter(|member| member.voter).count() >= MAX_MEMBERS {
        remove(caller, group, old).await?;
        return add(caller, group, new).await;
    }
    match add(caller, group, new).await {
        // An earlier try came so far.
        Err(error) if error.code == "raft.already_member" => {}
        added => added?,
    }
    remove(caller, group, old).await
}

/// An earlier try may have come so far in a full group; or `old` was never a member. Adding `new` is for people to decide.
fn not_there(old: u64, New { node: new, address, .. }: &New) -> Error {
    let message = format!("node {old} is no member of the group, and node {new} is not in its place at {address}");
    Error::new("raft.not_replaced", Class::NotFound, message)
        .hint(format!("If an earlier try was broken off: `tidings member add {new} {address}`."))
}

/// The largest group there is.
const MAX_MEMBERS: usize = 5;

#[derive(Serialize)]
struct Row {
    group: &'static str,
    node: u64,
    address: String,
    role: &'static str,
    lag: u64,
    silent: bool,
}

fn list(remote: &Remote, groups: Groups) -> Result<(), Error> {
    let rows = with_client(remote, async |caller| {
        let mut rows = Vec::new();
        for (group, name) in groups {
            let GroupStatus { members, leader, .. } = status(caller, *group).await?;
            rows.extend(members.into_iter().map(|member| row(name, leader, member)));
        }
        Ok(rows)
    })?;
    if remote.json {
        output::json(&rows);
    } else {
        output::table(
            ["GROUP", "NODE", "ADDRESS", "ROLE", "BEHIND"],
            rows.into_iter().map(|row| {
                let behind = if row.silent { "does not answer".to_owned() } else { row.lag.to_string() };
                [row.group.to_owned(), row.node.to_string(), row.address, row.role.to_owned(), behind]
            }),
        );
    }
    Ok(())
}

fn row(group: &'static str, leader: u64, member: MemberStatus) -> Row {
    let MemberStatus { node, address, voter, lag, silent } = member;
    let role = match voter {
        // As the paper calls the cell's.
        _ if node == leader && group == "cell" => "master",
        _ if node == leader => "leader",
        true => "replica",
        false => "learner",
    };
    Row { group, node, address, role, lag, silent }
}

fn told(remote: &Remote, what: &str, node: u64) {
    if remote.json {
        output::json(&json!({ what: node }));
    } else {
        output::line(format_args!("node {node} is {what}"));
    }
}

async fn status(caller: &Caller, group: GroupId) -> Result<GroupStatus, Error> {
    let groups = caller.ask(Asked::Admin(Message::Status(StatusRequest::default())), |answer| match answer {
        Asked::Admin(Message::StatusReply(reply)) => Some(reply.groups),
        _ => None,
    });
    groups.await?.into_iter().find(|of| GroupId(of.group) == group).ok_or_else(|| {
        Error::new("admin.no_group", Class::NotFound, format!("the node that answered has no group {group}"))
            .hint("Name one that does with --server; `tidings status` shows what a node holds.")
    })
}

async fn add(caller: &Caller, group: GroupId, New { node, address, force }: &New) -> Result<(), Error> {
    change(caller, group, Change::Add(v1::Member { node: *node, address: address.clone() }), *force).await
}

async fn remove(caller: &Caller, group: GroupId, node: u64) -> Result<(), Error> {
    change(caller, group, Change::Remove(node), false).await
}

async fn change(caller: &Caller, group: GroupId, change: Change, force: bool) -> Result<(), Error> {
    let message = MemberChange { group: group.0, change: Some(change), force };
    let ask = async || {
        let asked = Asked::Admin(Message::MemberChange(message.clone()));
        let done = caller.ask(asked, |answer| match answer {
            Asked::Admin(Message::Done(_)) => Some(()),
            _ => None,
        });
        done.await
    };
    patiently(PAUSE, ask).await
}

/// How often a change is asked for again that found no majority in time, and how long after: members that are busy, or that
/// elect a leader just now, answer in a moment. Nothing was changed by then.
const AGAIN: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

async fn patiently(pause: Duration, ask: impl AsyncFn() -> Result<(), Error>) -> Result<(), Error> {
    for _ in 0..AGAIN {
        match ask().await {
            Err(error) if error.lacks_majority() => tokio::time::sleep(pause).await,
            done => return done,
        }
    }
    ask().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_change_that_finds_no_majority_is_asked_for_again_and_no_other() {
        let asked = |failures: u32, code: &'static str| {
            let count = Cell::new(0);
            let ask = async || {
                count.set(count.get() + 1);
                match count.get() > failures {
                    true => Ok(()),
                    false => Err(Error::new(code, Class::Unreachable, "")),
                }
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let done = runtime.block_on(patiently(Duration::ZERO, ask));
            (count.get(), done.is_ok())
        };
        assert_eq!(asked(0, ""), (1, true));
        assert_eq!(asked(AGAIN, "raft.no_majority"), (AGAIN + 1, true));
        assert_eq!(asked(AGAIN + 1, "raft.no_majority"), (AGAIN + 1, false));
        assert_eq!(asked(1, "raft.no_answer"), (1, false));
    }
}
