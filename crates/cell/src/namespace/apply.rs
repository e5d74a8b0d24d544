//! The one way in: every command, refused or carried out.

use super::backup::Staged;
use super::sessions::{MAX_SESSIONS, SessionRecord, Window};
use super::{Acting, DEFAULT_LEASE, MAX_CEILING, Namespace};
use crate::SessionId;
use crate::error;
use crate::mutant::Mutant;
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;
use tidings_wire::v1;
use tidings_wire::v1::cell_command::Command;
use tidings_wire::v1::cell_result::Result as Outcome;

impl Namespace {
    /// Applies one command. Refusals are results; they change nothing but the result window.
    pub fn apply(&mut self, command: &v1::CellCommand) -> v1::CellResult {
        self.changed.clear();
        let result = match self.decide(command) {
            Ok(outcome) => outcome,
            Err(error) => Outcome::Error(error.into()),
        };
        v1::CellResult { result: Some(result) }
    }

    fn decide(&mut self, command: &v1::CellCommand) -> Result<Outcome, Error> {
        let Some(body) = &command.command else { return Err(error::bad_command("it is empty or of a later version")) };
        match body {
            Command::NewMaster(c) => return self.new_master(c),
            Command::Nothing(_) => return Ok(Outcome::Applied(v1::CellApplied::default())),
            _ => {}
        }
        // R1: a master that was deposed changes nothing any more, neither on its own account nor for its sessions.
        if command.epoch != self.epoch.0 && self.mutant != Some(Mutant::StaleEpochAccepted) {
            return Err(error::stale_epoch(command.epoch, self.epoch.0));
        }
        match &command.actor {
            Some(actor) if actor.session != 0 => self.apply_of_session(actor, body),
            _ => self.apply_of_master(body),
        }
    }

    /// R8: a repeat is answered as the first was, whatever happened since.
    fn apply_of_session(&mut self, actor: &v1::CellActor, body: &Command) -> Result<Outcome, Error> {
        let id = SessionId(actor.session);
        let repeats = self.mutant == Some(Mutant::RepeatApplied);
        let Some(session) = self.sessions.get_mut(id) else { return Err(error::no_session(id.0)) };
        session.window.raise(actor.answered_below);
        if actor.number > 0 && !repeats {
            if let Some(kept) = session.window.find(actor.number) {
                let kept = v1::CellResult::decode(kept).ok().and_then(|result| result.result);
                return kept.ok_or_else(|| error::bad_command("its first answer is unreadable"));
            }
            session.window.admit(actor.number)?;
        }
        let acting = Acting { session: id, caller: session.record.caller.clone() };
        let outcome = match self.session_command(&acting, body) {
            Ok(outcome) => outcome,
            // The lock may be free the next time that the master tries for the same acquire.
            Err(refusal) if refusal.code == "cell.lock_held" => return Err(refusal),
            Err(refusal) => Outcome::Error(refusal.into()),
        };
        let result = v1::CellResult { result: Some(outcome) };
        if actor.number > 0
            && let Some(session) = self.sessions.get_mut(id)
        {
            session.window.keep(actor.number, result.encode_to_vec().into_boxed_slice());
        }
        result.result.ok_or_else(|| error::bad_command("it has no answer"))
    }

    fn session_command(&mut self, acting: &Acting, body: &Command) -> Result<Outcome, Error> {
        let privileged = acting.caller.privileged;
        let applied = match body {
            Command::Open(c) => self.open(acting, c),
            Command::Close(c) => self.close(acting, c),
            Command::WriteContents(c) => self.write_contents(acting, c),
            Command::WriteAcl(c) => self.write_acl(acting, c),
            Command::RemoveNode(c) => self.remove_node(acting, c),
            Command::TakeLock(c) => self.take_lock(acting, c),
            Command::FreeLock(c) => self.free_lock(acting, c),
            Command::StopSession(c) if c.session == acting.session.0 || privileged => self.stop_session(c),
            Command::StopSession(_) => Err(error::operators_only("end sessions of others")),
            Command::WriteQuota(_) | Command::RestorePiece(_) | Command::RotateKeys(_) if !privileged => {
                Err(error::operators_only("do this"))
            }
            Command::WriteQuota(c) => self.write_quota(c),
            Command::RotateKeys(c) => self.rotate_keys(c),
            Command::RestorePiece(c) => self.restore_piece(c),
            _ => Err(error::bad_command("a session cannot do this")),
        };
        applied.map(Outcome::Applied)
    }

    fn apply_of_master(&mut self, body: &Command) -> Result<Outcome, Error> {
        let applied = match body {
            Command::StartSession(c) => return self.start_session(c),
            Command::StopSession(c) => self.stop_session(c),
            Command::OrderEnd(c) => self.order_end(c),
            Command::EndDelay(c) => self.end_delay(c),
            Command::ReapEphemeral(c) => self.reap(c),
            Command::SetCeiling(c) => Ok(self.set_ceiling(c)),
            Command::RotateKeys(c) => self.rotate_keys(c),
            Command::WriteQuota(c) => self.write_quota(c),
            Command::RestorePiece(c) => self.restore_piece(c),
            Command::CloseHandles(c) => {
                c.sessions.iter().for_each(|of| self.sessions.close(SessionId(of.session), &of.closed));
                Ok(v1::CellApplied::default())
            }
            _ => Err(error::bad_command("it needs a session")),
        };
        applied.map(Outcome::Applied)
    }

    /// R1: every activation raises the epoch, those of a restarted process and of a one-member cell included.
    fn new_master(&mut self, command: &v1::NewMaster) -> Result<Outcome, Error> {
        let secret = secret(&command.secret)?;
        if self.keys.is_empty() {
            self.keys.add(secret);
        }
        self.epoch = self.epoch.next();
        // A restore is one master's: what another one collected is not gone on with.
        self.staged = Staged::default();
        // R6: it does not fall here. A master that dies before it opens has not outwaited what the one before it granted.
        self.cache_lease_ms = self.cache_lease_ms.max(command.cache_lease_ms);
        let cache_lease_ms = self.cache_lease_ms;
        Ok(Outcome::NewMaster(v1::NewMasterDone { epoch: self.epoch.0, cache_lease_ms }))
    }

    fn rotate_keys(&mut self, command: &v1::RotateKeys) -> Result<v1::CellApplied, Error> {
        self.keys.add(secret(&command.secret)?);
        Ok(v1::CellApplied::default())
    }

    fn start_session(&mut self, command: &v1::StartSession) -> Result<Outcome, Error> {
        let Some(caller) = &command.caller else { return Err(error::bad_command("nobody starts the session")) };
        if self.sessions.len() >= MAX_SESSIONS {
            return Err(error::busy("it has as many sessions as it may have"));
        }
        let lease = match command.lease_ms {
            0 => DEFAULT_LEASE,
            asked => Duration::from_millis(asked.into()).min(MAX_CEILING),
        };
        // R6: agreed before anybody uses it, since the session itself is.
        self.ceiling = self.ceiling.max(lease);
        self.ensure_app(&caller.app);
        self.next_session += 1;
        let (caller, secret, keeper) = (Arc::new(caller.clone()), command.secret, command.keeper);
        let record = SessionRecord { caller, lease, secret, gains: 0, keeper, ordered: false };
        self.sessions.insert(SessionId(self.next_session), record, Window::default());
        Ok(Outcome::StartSession(v1::StartSessionDone { session: self.next_session }))
    }

    /// Ends a session with everything of it; `lost` holds its locks back (R10).
    fn stop_session(&mut self, command: &v1::StopSession) -> Result<v1::CellApplied, Error> {
        let id = SessionId(command.session);
        let Some(session) = self.sessions.get(id) else { return Err(error::no_session(id.0)) };
        if command.gains.is_some_and(|gains| gains != session.record.gains) {
            return Err(error::busy("the session has taken a lock or opened an ephemeral node since"));
        }
        let (locks, ephemerals) = (session.locks.clone(), session.ephemerals.clone());
        for (place, handle) in locks {
            self.unlock(&place, (id, handle), command.lost);
        }
        let delete = self.mutant != Some(Mutant::EphemeralsStay);
        for (place, handle) in ephemerals {
            self.remove_opener(&place, (id, handle), delete);
        }
        self.sessions.remove(id);
        Ok(v1::CellApplied::default())
    }

    /// R7: no later master extends it.
    fn order_end(&mut self, command: &v1::OrderEnd) -> Result<v1::CellApplied, Error> {
        let session = self.sessions.get_mut(SessionId(command.session));
        session.ok_or_else(|| error::no_session(command.session))?.record.ordered = true;
        Ok(v1::CellApplied::default())
    }

    /// R6: never below a lease that is agreed; that a lower one is safe to use is the master's to wait for.
    fn set_ceiling(&mut self, command: &v1::RaiseCeiling) -> v1::CellApplied {
        if let Some(cache_lease_ms) = command.cache_lease_ms {
            self.cache_lease_ms = cache_lease_ms;
            return v1::CellApplied::default();
        }
        let asked = Duration::from_millis(command.lease_ms.into()).min(MAX_CEILING);
        let longest = || self.sessions.iter().map(|(_, session)| session.record.lease).max().unwrap_or_default();
        self.ceiling = if asked >= self.ceiling { asked } else { asked.max(longest()) };
        v1::CellApplied::default()
    }
}

/// A secret for new keys.
pub(super) fn secret(bytes: &[u8]) -> Result<[u8; 32], Error> {
    bytes.try_into().map_err(|_| error::bad_command("its secret has not 32 bytes"))
}
