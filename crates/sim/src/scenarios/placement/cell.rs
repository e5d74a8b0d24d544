//! The cell as managers see it: files with generations, one lock with a sequencer, sessions that end.
//!
//! It stands for a whole replicated cell, so what it has agreed survives its crashes; while it is down nobody is answered. It
//! is adverse in what it may be: requests and answers are lost and late, so that nobody knows what became of a commit; a
//! session whose KeepAlives do not come through ends, and its lock is free at once.

use super::letter::{Body, CellAsk, CellSays, Contents, Letter, Request, send};
use crate::kernel::{Effect, HostId};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidings_base::{Mono, Now, Outbox};
use tidings_placement::manager::file;

/// The length of a manager's session (F10).
pub const SESSION: Duration = Duration::from_secs(3);

/// What the cell has agreed.
#[derive(Debug, Default)]
pub struct Agreed {
    files: BTreeMap<String, (u64, Bytes)>,
    sessions: Vec<u64>,
    last_session: u64,
    /// The lock's generation, and the session that holds it.
    lock: (u64, Option<u64>),
    commits: u64,
}

/// The agreed state, which outlives the cell's processes.
pub type SharedAgreed = Arc<Mutex<Agreed>>;

/// The cell's process.
#[derive(Debug)]
pub struct Cell {
    agreed: SharedAgreed,
    /// When each session ends, on this process's clock.
    ends: BTreeMap<u64, Mono>,
}

impl Cell {
    /// Starts. A new master knows every session and gives it a whole lease again.
    pub fn start(agreed: SharedAgreed, now: Now) -> Cell {
        let sessions = agreed.lock().unwrap_or_else(PoisonError::into_inner).sessions.clone();
        Cell { agreed, ends: sessions.into_iter().map(|session| (session, now.mono + SESSION)).collect() }
    }

    /// Takes a request.
    pub fn receive<F>(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Outbox<Effect<F>>) {
        let Some((id, Body::Cell(ask))) = Letter::of(bytes) else { return };
        self.wake(now);
        let says = self.answer(now, ask);
        send(out, from, id, Body::Says(says));
    }

    fn answer(&mut self, now: Now, ask: CellAsk) -> CellSays {
        let mut agreed = self.agreed.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.ends.contains_key(&ask.session);
        let mut says = CellSays { known, ..Default::default() };
        match ask.request {
            Some(Request::Open(_)) => {
                agreed.last_session += 1;
                let session = agreed.last_session;
                agreed.sessions.push(session);
                self.ends.insert(session, now.mono + SESSION);
                (says.known, says.number) = (true, session);
            }
            _ if !known => {}
            Some(Request::KeepAlive(_)) => drop(self.ends.insert(ask.session, now.mono + SESSION)),
            Some(Request::Acquire(_)) => {
                if agreed.lock.1.is_none() {
                    agreed.lock = (agreed.lock.0 + 1, Some(ask.session));
                }
                says.number = if agreed.lock.1 == Some(ask.session) { agreed.lock.0 } else { 0 };
            }
            Some(Request::Release(generation)) if agreed.lock == (generation, Some(ask.session)) => {
                agreed.lock.1 = None;
            }
            Some(Request::Commit(commit)) => {
                // The sequencer is checked at the moment of the change, not when it was asked for.
                let leads = agreed.lock == (commit.epoch, Some(ask.session));
                let there = agreed.files.get(&commit.path).map(|(generation, _)| *generation);
                if leads && there == commit.expected {
                    agreed.commits += 1;
                    let generation = agreed.commits;
                    agreed.files.insert(commit.path, (generation, commit.bytes));
                    says.number = generation;
                }
            }
            Some(Request::Read(paths)) => {
                let read = paths.paths.iter().map(|path| match agreed.files.get(path) {
                    Some((generation, bytes)) => Contents { generation: *generation, bytes: bytes.clone() },
                    None => Contents::default(),
                });
                says.files = read.collect();
            }
            Some(Request::List(_)) => {
                let metas = agreed.files.keys().filter_map(|path| path.strip_prefix(file::ROOT)?.strip_suffix("/meta"));
                says.names = metas.map(|name| file::unescape(name.trim_start_matches('/'))).collect();
            }
            Some(Request::Release(_)) | None => {}
        }
        says
    }

    /// Ends sessions that are over.
    pub fn wake(&mut self, now: Now) {
        let over: Vec<u64> =
            self.ends.iter().filter(|(_, end)| **end <= now.mono).map(|(session, _)| *session).collect();
        if over.is_empty() {
            return;
        }
        let mut agreed = self.agreed.lock().unwrap_or_else(PoisonError::into_inner);
        for session in over {
            self.ends.remove(&session);
            agreed.sessions.retain(|other| *other != session);
            if agreed.lock.1 == Some(session) {
                agreed.lock.1 = None; // Lock-delay 0: placement has leases of its own.
            }
        }
    }

    /// When the next session ends.
    pub fn deadline(&self) -> Option<Mono> {
        self.ends.values().min().copied()
    }
}
