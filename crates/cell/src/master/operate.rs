//! What operators ask, and what needs no session: lists, quotas, ends, keys, sequencers, restore.
//!
//! A backup is read from the state by the node, in pieces; it does not pass through here.

use super::mutations::{Purpose, Work};
use super::reign::{Asker, Flow, Reign, Timer, Turn, Waiting, bad_call};
use super::sessions::{End, Standing};
use crate::SessionId;
use crate::error;
use crate::namespace::Right;
use crate::path::{NodePath, Place};
use std::time::Duration;
use tidings_base::Error;
use tidings_wire::v1;
use tidings_wire::v1::cell_command::Command;
use tidings_wire::v1::cell_message::Message;

/// Sessions and locks in one answer, and holders of one lock: what fits a client's frame with room to spare, whatever the
/// names.
const SESSIONS_A_PAGE: usize = 2_000;
const LOCKS_A_PAGE: usize = 500;
const HOLDERS_SHOWN: usize = 64;
/// Pieces of a backup are dropped if no further one comes for so long: who restores sends them one after the other.
const STAGED: Duration = Duration::from_secs(60);
/// An operator who ends a session is answered after so long at the latest: before whoever asked gives up.
const END_ANSWERED: Duration = Duration::from_secs(5);

impl Reign {
    /// Requests that belong to no session, or do not care for theirs.
    pub(super) fn sessionless(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        caller: &v1::CellCaller,
        message: Message,
    ) -> Result<Flow, Error> {
        let operator = |what: &str| if caller.privileged { Ok(()) } else { Err(error::operators_only(what)) };
        match message {
            Message::SetQuota(set) => {
                operator("set quotas")?;
                return self.set_quota(t, asker, caller, set);
            }
            Message::EndSession(end) => {
                operator("end sessions")?;
                return self.operator_ends(t, asker, end.session);
            }
            Message::Restore(piece) => {
                operator("restore a cell")?;
                return self.restore(t, asker, piece);
            }
            _ => {}
        }
        if t.fresh.is_none() {
            return Ok(Flow::Fresh);
        }
        let reply = match message {
            Message::Read(read) => return self.read(t, asker, None, caller, read),
            Message::ReadMany(read) => return self.read_many(t, asker, None, caller, read),
            Message::CheckSequencer(check) => Message::SequencerChecked(self.check_sequencer(t, &check)?),
            Message::GetQuota(get) => {
                let place = Place { app: caller.app.as_str().into(), path: NodePath::parse(&get.path)? };
                t.state.may(caller, &place, Right::Read)?;
                Message::Quota(t.state.quota(&place).ok_or_else(|| match t.state.stat(&place) {
                    Some(_) => error::not_a_directory(&place.path),
                    None => error::no_node(&place.path),
                })?)
            }
            Message::Keys(_) => Message::KeysReply(v1::CellKeysReply {
                keys: t.state.keys().public().to_wire(),
                incarnation: t.state.incarnation().0,
            }),
            Message::ListSessions(list) => {
                operator("list sessions")?;
                Message::SessionList(self.list_sessions(t, list.after))
            }
            Message::ListLocks(list) => {
                operator("list locks")?;
                Message::LockList(self.list_locks(t, &list))
            }
            Message::Backup(_) => return Err(bad_call("a backup is read from the node, not from its master")),
            _ => return Err(bad_call("it needs a session, or is no request")),
        };
        self.reply(t, asker.op, reply);
        Ok(Flow::Taken)
    }

    /// R11: false once the lock is freed, its delay included.
    fn check_sequencer(&self, t: &Turn<'_>, check: &v1::CheckSequencer) -> Result<v1::SequencerChecked, Error> {
        let body = t.state.keys().verify_sequencer(&check.token)?;
        Ok(match t.state.check_sequencer(&body) {
            Ok(()) => v1::SequencerChecked { valid: true, why: String::new() },
            Err(why) => v1::SequencerChecked { valid: false, why: why.to_owned() },
        })
    }

    fn set_quota(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        caller: &v1::CellCaller,
        set: v1::SetQuota,
    ) -> Result<Flow, Error> {
        NodePath::parse(&set.path)?;
        let v1::SetQuota { path, max_nodes, max_bytes } = set;
        let command = Command::WriteQuota(v1::WriteQuota { app: caller.app.clone(), path, max_nodes, max_bytes });
        self.start(t, Work::own(command, Purpose::Operate).asked(asker));
        Ok(Flow::Taken)
    }

    /// An operator ends a session: from now on it is refused everything and never extended, and when its lease is over
    /// its locks are held back as after a loss.
    fn operator_ends(&mut self, t: &mut Turn<'_>, asker: Asker, session: u64) -> Result<Flow, Error> {
        self.sessions.find(SessionId(session)).ok_or_else(|| error::no_session(session))?;
        let asker = Asker { deadline: asker.deadline.min(t.mono() + END_ANSWERED), ..asker };
        let command = Command::OrderEnd(v1::OrderEnd { session });
        self.start(t, Work::own(command, Purpose::Order(SessionId(session))).asked(asker));
        Ok(Flow::Taken)
    }

    /// The order is agreed on: whoever is master until the lease is over knows of it.
    pub(super) fn end_ordered(&mut self, t: &mut Turn<'_>, asker: Option<Asker>, id: SessionId) {
        let op = asker.map(|asker| asker.op);
        match (self.sessions.find(id), asker) {
            (Some(slot), asker) => {
                asker.iter().for_each(|asker| self.keep_open(t, *asker, Waiting::End(slot)));
                self.end_session(t, slot, End::Ordered, op);
            }
            (None, Some(asker)) => self.reply(t, asker.op, Message::Done(v1::CellDone::default())),
            (None, None) => {}
        }
    }

    /// A piece of a backup goes into the log. The last one replaces everything, under a new incarnation and new keys.
    fn restore(&mut self, t: &mut Turn<'_>, asker: Asker, piece: v1::RestoreCell) -> Result<Flow, Error> {
        let last = piece.total > 0;
        let raised = t.state.incarnation().raised(t.now.wall).0;
        let secret = if last { self.fresh_secret("restore").into() } else { bytes::Bytes::new() };
        let command = Command::RestorePiece(v1::RestorePiece {
            offset: piece.offset,
            bytes: piece.bytes,
            total: piece.total,
            replace: piece.replace,
            incarnation: if last { raised } else { 0 },
            secret,
        });
        let purpose = if last { Purpose::Restore } else { Purpose::Operate };
        self.start(t, Work::own(command, purpose).asked(asker));
        self.timers.set(Timer::Unstage, t.mono() + STAGED);
        Ok(Flow::Taken)
    }

    /// A restore was interrupted: its pieces are not kept in the agreed state. Tried until they are gone.
    pub(super) fn unstage(&mut self, t: &mut Turn<'_>) {
        if t.state.has_staged() {
            let command = Command::RestorePiece(v1::RestorePiece { replace: true, ..Default::default() });
            self.start(t, Work::own(command, Purpose::Operate));
            self.timers.set(Timer::Unstage, t.mono() + STAGED);
        }
    }

    fn list_sessions(&self, t: &Turn<'_>, after: u64) -> v1::SessionList {
        let later = self.sessions.iter().filter(|(_, session)| session.id.0 > after);
        let mut sessions = later.filter_map(|(_, session)| {
            let record = t.state.session(session.id)?;
            Some(v1::SessionInfo {
                session: session.id.0,
                app: record.caller.app.clone(),
                principal: record.caller.principal.clone(),
                lease_ms: session.lease_ms,
                handles: session.handles.len() as u32,
                locks: t.state.locks_of(session.id).len() as u32,
                ephemerals: t.state.ephemerals_of(session.id).len() as u32,
                watches: session.watches,
                cached: session.interest,
                remaining_ms: session.lease_end.since(t.mono()).as_millis() as u64,
                resumed: session.standing == Standing::Present,
            })
        });
        let page: Vec<v1::SessionInfo> = sessions.by_ref().take(SESSIONS_A_PAGE).collect();
        v1::SessionList { sessions: page, more: sessions.next().is_some() }
    }

    fn list_locks(&self, t: &Turn<'_>, list: &v1::ListLocks) -> v1::LockList {
        let mut locks = t.state.locks_after(&list.after_app, &list.after_path);
        let page = locks.by_ref().take(LOCKS_A_PAGE).map(|(place, lock)| v1::LockInfo {
            app: place.app.to_string(),
            path: place.path.as_str().to_owned(),
            mode: lock.mode as i32,
            generation: lock.generation,
            holders: lock.holders.keys().take(HOLDERS_SHOWN).map(|(session, _)| session.0).collect(),
            waiters: self.places.find(place).map_or(0, |id| self.locks.waiters_of(id)),
            delayed: lock.delay.is_some(),
        });
        let page = page.collect();
        v1::LockList { locks: page, more: locks.next().is_some() }
    }
}
