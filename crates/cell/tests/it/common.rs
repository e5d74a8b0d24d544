//! A namespace with a master and sessions, and short ways to say commands.

use bytes::Bytes;
use tidings_cell::mutant::Mutant;
use tidings_cell::namespace::Namespace;
use tidings_cell::{Place, SessionId};
use tidings_wire::v1;
use tidings_wire::v1::cell_command::Command;
use tidings_wire::v1::cell_result::Result as Outcome;

pub const APP: &str = "shop";

/// A cell whose master has taken over.
pub struct Cell {
    pub state: Namespace,
    pub epoch: u64,
    number: u64,
}

impl Cell {
    pub fn new() -> Cell {
        Cell::with_mutant(None)
    }

    pub fn with_mutant(mutant: Option<Mutant>) -> Cell {
        let mut cell = Cell { state: Namespace::with_mutant(mutant), epoch: 0, number: 0 };
        cell.activate();
        cell
    }

    /// Another master takes over.
    pub fn activate(&mut self) {
        let secret = Bytes::from_static(&[7; 32]);
        match self.master(Command::NewMaster(v1::NewMaster { node: 1, secret, cache_lease_ms: 1_800 })) {
            Outcome::NewMaster(done) => self.epoch = done.epoch,
            other => panic!("{other:?}"),
        }
    }

    /// The master does something on its own account.
    pub fn master(&mut self, command: Command) -> Outcome {
        let command = v1::CellCommand { actor: None, epoch: self.epoch, command: Some(command) };
        self.state.apply(&command).result.unwrap()
    }

    pub fn start_as(&mut self, principal: &str, privileged: bool) -> SessionId {
        let caller = v1::CellCaller { app: APP.into(), principal: principal.into(), privileged };
        let start = v1::StartSession { caller: Some(caller), lease_ms: 0, secret: 5, keeper: 0 };
        match self.master(Command::StartSession(start)) {
            Outcome::StartSession(done) => SessionId(done.session),
            other => panic!("{other:?}"),
        }
    }

    pub fn start(&mut self) -> SessionId {
        self.start_as("app:shop/k1", false)
    }

    /// A session does something, under a number of its own.
    pub fn call(&mut self, session: SessionId, command: Command) -> Result<v1::CellApplied, v1::Error> {
        self.number += 1;
        let number = self.number;
        self.call_as(session, number, number, command)
    }

    pub fn call_as(
        &mut self,
        session: SessionId,
        number: u64,
        answered_below: u64,
        command: Command,
    ) -> Result<v1::CellApplied, v1::Error> {
        let actor = v1::CellActor { session: session.0, number, answered_below };
        let command = v1::CellCommand { actor: Some(actor), epoch: self.epoch, command: Some(command) };
        let touches = self.state.touches(&command);
        let result = self.state.apply(&command).result.unwrap();
        assert!(touches.covers_all(self.state.changed()), "{command:?} changed {:?}", self.state.changed());
        match result {
            Outcome::Applied(applied) => Ok(applied),
            Outcome::Error(error) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    /// The code of the refusal of a call.
    pub fn refused(&mut self, session: SessionId, command: Command) -> String {
        let before = self.state.node_count();
        let error = self.call(session, command).expect_err("this is refused");
        assert!(!error.message.is_empty() && !error.hint.is_empty(), "{error:?}");
        assert!(self.state.changed().is_empty(), "a refusal changes nothing");
        assert_eq!(self.state.node_count(), before);
        error.code
    }

    pub fn stat(&self, path: &str) -> Option<v1::NodeStat> {
        self.state.stat(&place(path))
    }
}

pub fn place(path: &str) -> Place {
    Place::parse(APP, path).unwrap()
}

pub fn create(path: &str, handle: u64, create: v1::CreateNode) -> Command {
    let rights = v1::CreateOrOpen { read: true, write: true, lock: true, ..Default::default() };
    Command::Open(v1::CreateOrOpen { app: APP.into(), path: path.into(), create: Some(create), handle, ..rights })
}

pub fn open(path: &str, handle: u64) -> Command {
    let rights = v1::CreateOrOpen { read: true, ..Default::default() };
    Command::Open(v1::CreateOrOpen { app: APP.into(), path: path.into(), handle, ..rights })
}

pub fn file(contents: &'static str) -> v1::CreateNode {
    v1::CreateNode { contents: Bytes::from_static(contents.as_bytes()), ..Default::default() }
}

pub fn directory() -> v1::CreateNode {
    v1::CreateNode { directory: true, ..Default::default() }
}

pub fn ephemeral(directory: bool) -> v1::CreateNode {
    v1::CreateNode { ephemeral: true, directory, ..Default::default() }
}

pub fn put(path: &str, contents: impl Into<Bytes>) -> v1::WriteContents {
    v1::WriteContents { app: APP.into(), path: path.into(), contents: contents.into(), ..Default::default() }
}

pub fn remove(path: &str) -> v1::RemoveNode {
    v1::RemoveNode { app: APP.into(), path: path.into(), ..Default::default() }
}

pub fn close(path: &str, handle: u64) -> Command {
    Command::Close(v1::CloseOpen { app: APP.into(), path: path.into(), instance: 0, handle, closed: Vec::new() })
}

pub fn take(path: &str, handle: u64, mode: v1::LockMode, lock_delay_ms: u32) -> Command {
    let (app, path, mode) = (APP.into(), path.into(), mode as i32);
    Command::TakeLock(v1::TakeLock { app, path, instance: 0, handle, mode, lock_delay_ms })
}

pub fn free(path: &str, handle: u64) -> Command {
    Command::FreeLock(v1::FreeLock { app: APP.into(), path: path.into(), instance: 0, handle })
}

pub fn stop(session: SessionId, lost: bool) -> Command {
    Command::StopSession(v1::StopSession { session: session.0, lost, gains: None })
}

pub fn acl(path: &str, read: &str, write: &str, change: &str) -> Command {
    let acl = Some(v1::NodeAcl { read: read.into(), write: write.into(), change: change.into() });
    Command::WriteAcl(v1::WriteAcl { app: APP.into(), path: path.into(), acl, ..Default::default() })
}
