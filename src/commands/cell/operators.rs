//! `tidings cell sessions|locks|quota`: what operators look at and bound.

use super::show;
use crate::cli::Remote;
use crate::cli::cell::Quota;
use crate::commands::remote::{Asked, ask, with_client};
use crate::output;
use serde_json::{Value, json};
use tidings_base::Error;
use tidings_client::cell::{list_locks, list_sessions};
use tidings_wire::v1::cell_message::Message;
use tidings_wire::v1::{self, EndSession, GetQuota, ListLocks, LockInfo, SessionInfo, SetQuota};

/// Lists the sessions of the cell.
pub fn sessions(remote: &Remote) -> Result<(), Error> {
    let sessions = with_client(remote, async |caller| {
        list_sessions(0, usize::MAX, |message| caller.ask(Asked::Cell(message), any)).await
    })?
    .all;
    if remote.json {
        output::json(&sessions.iter().map(session).collect::<Vec<_>>());
    } else {
        output::table(
            [
                "SESSION",
                "PRINCIPAL",
                "APPLICATION",
                "LEASE",
                "LEFT",
                "HANDLES",
                "LOCKS",
                "EPHEMERALS",
                "WATCHES",
                "CACHED",
            ],
            sessions.into_iter().map(|s| {
                [
                    s.session.to_string(),
                    s.principal,
                    s.app,
                    seconds(s.lease_ms.into()),
                    if s.resumed { seconds(s.remaining_ms) } else { "not back yet".to_owned() },
                    s.handles.to_string(),
                    s.locks.to_string(),
                    s.ephemerals.to_string(),
                    s.watches.to_string(),
                    s.cached.to_string(),
                ]
            }),
        );
    }
    Ok(())
}

fn session(s: &SessionInfo) -> Value {
    json!({
        "session": s.session,
        "app": s.app,
        "principal": s.principal,
        "lease_ms": s.lease_ms,
        "remaining_ms": s.remaining_ms,
        "handles": s.handles,
        "locks": s.locks,
        "ephemerals": s.ephemerals,
        "watches": s.watches,
        "cached": s.cached,
        "resumed": s.resumed,
    })
}

fn seconds(milliseconds: u64) -> String {
    format!("{}.{} s", milliseconds / 1_000, milliseconds % 1_000 / 100)
}

/// Ends a session as if it had been lost.
pub fn end_session(remote: &Remote, session: u64) -> Result<(), Error> {
    let ended = ask(remote, Asked::Cell(Message::EndSession(EndSession { session })), done);
    ended.map_err(|error| match error.code.as_ref() {
        "cell.no_session" => {
            error.hint("It may have ended by itself; `tidings cell sessions` lists those that are there.")
        }
        _ => error,
    })?;
    if remote.json {
        output::json(&json!({ "session": session, "ended": true }));
    } else {
        output::line(format_args!("session {session} is ended; its locks are held back for their delays"));
    }
    Ok(())
}

/// Lists the locks that are not simply free.
pub fn locks(remote: &Remote) -> Result<(), Error> {
    let locks = with_client(remote, async |caller| {
        list_locks(ListLocks::default(), usize::MAX, |message| caller.ask(Asked::Cell(message), any)).await
    })?
    .all;
    if remote.json {
        output::json(&locks.iter().map(lock).collect::<Vec<_>>());
    } else {
        output::table(
            ["PATH", "APPLICATION", "STATE", "GENERATION", "SESSIONS", "WAITING"],
            locks.iter().map(|l| {
                let holders = l.holders.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
                let (path, app) = (l.path.clone(), l.app.clone());
                [path, app, state(l).to_owned(), l.generation.to_string(), holders, l.waiters.to_string()]
            }),
        );
    }
    Ok(())
}

fn lock(l: &LockInfo) -> Value {
    json!({
        "path": l.path,
        "app": l.app,
        "state": state(l),
        "generation": l.generation,
        "sessions": l.holders,
        "waiters": l.waiters,
    })
}

fn state(lock: &LockInfo) -> &'static str {
    if lock.delayed { "held back" } else { show::mode(lock.mode()) }
}

/// Shows or sets the bounds of a directory.
pub fn quota(command: Quota) -> Result<(), Error> {
    match command {
        Quota::Get { path, remote } => {
            let quota = ask(&remote, get(&path), got)?;
            print(&remote, &quota);
            Ok(())
        }
        Quota::Set { nodes: None, bytes: None, .. } => {
            Err(output::usage("there is nothing to set").hint("Give --nodes N, --bytes N, or both; 0 removes a bound."))
        }
        Quota::Set { path, nodes, bytes, remote } => {
            let quota = with_client(&remote, async |caller| {
                let now = caller.ask(get(&path), got).await?;
                let set = SetQuota {
                    path: path.clone(),
                    max_nodes: nodes.unwrap_or(now.max_nodes),
                    max_bytes: bytes.unwrap_or(now.max_bytes),
                };
                caller.ask(Asked::Cell(Message::SetQuota(set)), done).await?;
                caller.ask(get(&path), got).await
            })?;
            print(&remote, &quota);
            Ok(())
        }
    }
}

fn get(path: &str) -> Asked {
    Asked::Cell(Message::GetQuota(GetQuota { path: path.to_owned() }))
}

fn got(answer: Asked) -> Option<v1::Quota> {
    match answer {
        Asked::Cell(Message::Quota(quota)) => Some(quota),
        _ => None,
    }
}

/// Any answer of the cell.
fn any(answer: Asked) -> Option<Message> {
    match answer {
        Asked::Cell(message) => Some(message),
        _ => None,
    }
}

/// The answer to what changes something.
pub fn done(answer: Asked) -> Option<()> {
    match answer {
        Asked::Cell(Message::Done(_)) => Some(()),
        _ => None,
    }
}

fn print(remote: &Remote, quota: &v1::Quota) {
    let v1::Quota { path, max_nodes, max_bytes, nodes, bytes } = quota;
    if remote.json {
        let bound = |bound: u64| (bound != 0).then_some(bound);
        let (max_nodes, max_bytes) = (bound(*max_nodes), bound(*max_bytes));
        output::json(&json!({
            "path": path, "nodes": nodes, "max_nodes": max_nodes, "bytes": bytes, "max_bytes": max_bytes
        }));
    } else {
        let bound = |bound: u64| if bound == 0 { "none".to_owned() } else { bound.to_string() };
        output::table(
            ["OF", "HELD", "AT MOST"],
            [
                ["nodes".to_owned(), nodes.to_string(), bound(*max_nodes)],
                ["bytes".to_owned(), bytes.to_string(), bound(*max_bytes)],
            ],
        );
    }
}
