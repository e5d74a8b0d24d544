//! The namespace once more, as simply as it can be said: everything is found by looking at everything.

use std::collections::{BTreeMap, BTreeSet};
use tidings_wire::v1;
use tidings_wire::v1::LockMode;
use tidings_wire::v1::cell_command::Command;
use xxhash_rust::xxh3::xxh3_64;

type Who = (u64, u64);
/// The answer to a command: what `CellApplied` says, or the code of the refusal.
pub type Answer = Result<(Option<v1::NodeStat>, bool, u64), String>;

#[derive(Clone, Debug, Default)]
pub struct Node {
    directory: bool,
    ephemeral: bool,
    instance: u64,
    content_generation: u64,
    acl_generation: u64,
    pub contents: Vec<u8>,
    acl: [String; 3],
    mode: i32,
    holders: BTreeMap<Who, u32>,
    lock_generation: u64,
    delay: Option<(u32, bool, u64)>,
    pub openers: BTreeSet<Who>,
    max_nodes: u64,
    max_bytes: u64,
}

#[derive(Clone, Debug, Default)]
struct Session {
    principal: String,
    floor: u64,
    results: BTreeMap<u64, Answer>,
    closed: BTreeSet<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub nodes: BTreeMap<String, Node>,
    sessions: BTreeMap<u64, Session>,
    epoch: u64,
    instances: u64,
    starts: u64,
    delays: u64,
}

fn parent(path: &str) -> Option<String> {
    let at = path.rfind('/')?;
    (path != "/").then(|| if at == 0 { "/".into() } else { path[..at].into() })
}

fn below(path: &str, directory: &str) -> bool {
    path != directory && (directory == "/" || path.starts_with(&format!("{directory}/")))
}

fn refuse<T>(code: &str) -> Result<T, String> {
    Err(format!("cell.{code}"))
}

impl Model {
    pub fn children(&self, path: &str) -> Vec<&str> {
        self.nodes.keys().filter(|at| parent(at).as_deref() == Some(path)).map(|at| at.as_str()).collect()
    }

    pub fn stat(&self, path: &str) -> Option<v1::NodeStat> {
        let node = self.nodes.get(path)?;
        let [read, write, change] = node.acl.clone();
        Some(v1::NodeStat {
            directory: node.directory,
            ephemeral: node.ephemeral,
            instance: node.instance,
            content_generation: node.content_generation,
            lock_generation: node.lock_generation,
            acl_generation: node.acl_generation,
            checksum: if node.directory { 0 } else { xxh3_64(&node.contents) },
            length: node.contents.len() as u32,
            children: self.children(path).len() as u32,
            acl: Some(v1::NodeAcl { read, write, change }),
            lock: node.mode,
            lock_holders: node.holders.len() as u32,
            lock_delayed: node.mode == 0 && node.delay.is_some(),
        })
    }

    /// Nodes and bytes below a directory.
    pub fn used(&self, path: &str) -> (u64, u64) {
        let inside = self.nodes.iter().filter(|(at, _)| below(at, path));
        inside.fold((0, 0), |(nodes, bytes), (_, node)| (nodes + 1, bytes + node.contents.len() as u64))
    }

    pub fn session_ids(&self) -> Vec<u64> {
        self.sessions.keys().copied().collect()
    }

    pub fn locks_of(&self, session: u64) -> Vec<(String, u64)> {
        let of = |(at, node): (&String, &Node)| -> Vec<(String, u64)> {
            let mine = node.holders.keys().filter(|who| who.0 == session);
            mine.map(|who| (at.clone(), who.1)).collect()
        };
        self.nodes.iter().flat_map(of).collect()
    }

    pub fn ephemerals_of(&self, session: u64) -> Vec<(String, u64)> {
        let of = |(at, node): (&String, &Node)| -> Vec<(String, u64)> {
            let mine = node.openers.iter().filter(|who| who.0 == session);
            mine.map(|who| (at.clone(), who.1)).collect()
        };
        self.nodes.iter().flat_map(of).collect()
    }

    pub fn held(&self) -> BTreeSet<&str> {
        let held = self.nodes.iter().filter(|(_, node)| node.mode != 0 || node.delay.is_some());
        held.map(|(at, _)| at.as_str()).collect()
    }

    pub fn reapable(&self) -> BTreeSet<(&str, u64)> {
        let idle = self
            .nodes
            .iter()
            .filter(|(at, node)| node.ephemeral && node.openers.is_empty() && self.children(at).is_empty());
        idle.map(|(at, node)| (at.as_str(), node.instance)).collect()
    }

    pub fn apply(&mut self, command: &v1::CellCommand) -> Answer {
        let body = command.command.as_ref().expect("the generator makes whole commands");
        match body {
            Command::NewMaster(_) => {
                self.epoch += 1;
                return Ok((None, false, self.epoch));
            }
            Command::Nothing(_) => return Ok((None, false, 0)),
            _ if command.epoch != self.epoch => return refuse("stale_epoch"),
            _ => {}
        }
        let Some(actor) = &command.actor else { return self.master(body) };
        let Some(session) = self.sessions.get_mut(&actor.session) else { return refuse("no_session") };
        session.floor = session.floor.max(actor.answered_below);
        let floor = session.floor;
        session.results.retain(|number, _| *number >= floor);
        if let Some(kept) = session.results.get(&actor.number) {
            return kept.clone();
        }
        if actor.number < floor {
            return refuse("answered_already");
        }
        if actor.number >= floor + 1_024 {
            return refuse("too_many_outstanding");
        }
        let answer = self.session(actor.session, body);
        if answer != refuse("lock_held")
            && let Some(session) = self.sessions.get_mut(&actor.session)
        {
            session.results.insert(actor.number, answer.clone());
        }
        answer
    }

    fn master(&mut self, body: &Command) -> Answer {
        match body {
            Command::StartSession(c) => {
                self.starts += 1;
                let principal = c.caller.as_ref().unwrap().principal.clone();
                self.sessions.insert(self.starts, Session { principal, ..Default::default() });
                if !self.nodes.contains_key("/") {
                    let (max_nodes, max_bytes) = (200_000, 256 << 20);
                    self.put("/", Node { directory: true, max_nodes, max_bytes, ..Default::default() });
                    self.put("/acl", Node { directory: true, ..Default::default() });
                }
                return Ok((None, false, self.starts));
            }
            Command::StopSession(c) => {
                if !self.sessions.contains_key(&c.session) {
                    return refuse("no_session");
                }
                for (path, handle) in self.locks_of(c.session) {
                    self.unlock(&path, (c.session, handle), c.lost);
                }
                for (path, handle) in self.ephemerals_of(c.session) {
                    self.unopen(&path, (c.session, handle));
                }
                self.sessions.remove(&c.session);
            }
            Command::EndDelay(c) => {
                let node = self.node_mut(&c.path, c.instance)?;
                if node.delay.is_some_and(|delay| delay.2 == c.delay) {
                    node.delay = None;
                }
                return Ok((self.stat(&c.path), false, 0));
            }
            Command::ReapEphemeral(c) => {
                self.node_mut(&c.path, c.instance)?;
                if self.reapable().iter().any(|(at, _)| *at == c.path) {
                    self.nodes.remove(&c.path);
                }
                return Ok((self.stat(&c.path), false, 0));
            }
            Command::WriteQuota(c) => {
                let node = self.node_mut(&c.path, 0)?;
                if !node.directory {
                    return refuse("not_a_directory");
                }
                (node.max_nodes, node.max_bytes) = (c.max_nodes, c.max_bytes);
                return Ok((self.stat(&c.path), false, 0));
            }
            other => panic!("the generator makes no {other:?}"),
        }
        Ok((None, false, 0))
    }

    fn session(&mut self, session: u64, body: &Command) -> Answer {
        match body {
            Command::Open(c) => self.open(session, c),
            Command::Close(c) => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.closed.insert(c.handle);
                }
                if self.node_mut(&c.path, c.instance).is_ok() {
                    self.unlock(&c.path, (session, c.handle), false);
                    self.unopen(&c.path, (session, c.handle));
                }
                let there = self.node_mut(&c.path, c.instance).is_ok();
                Ok((self.stat(&c.path).filter(|_| there), false, 0))
            }
            Command::WriteContents(c) => {
                let node = self.node_for(session, &c.path, c.instance, 1)?;
                self.sequencers(&c.sequencers)?;
                if node.directory {
                    return refuse("is_a_directory");
                }
                if c.if_generation.is_some_and(|expected| expected != node.content_generation) {
                    return refuse("wrong_generation");
                }
                self.room(&c.path, 0, c.contents.len().saturating_sub(node.contents.len()) as u64)?;
                let node = self.node_mut(&c.path, c.instance)?;
                node.contents = c.contents.to_vec();
                node.content_generation += 1;
                Ok((self.stat(&c.path), false, 0))
            }
            Command::WriteAcl(c) => {
                let node = self.node_for(session, &c.path, c.instance, 2)?;
                self.sequencers(&c.sequencers)?;
                if c.if_generation.is_some_and(|expected| expected != node.acl_generation) {
                    return refuse("wrong_generation");
                }
                let acl = self.known(c.acl.as_ref())?;
                let node = self.node_mut(&c.path, c.instance)?;
                (node.acl, node.acl_generation) = (acl, node.acl_generation + 1);
                Ok((self.stat(&c.path), false, 0))
            }
            Command::RemoveNode(c) => {
                let node = self.node_for(session, &c.path, c.instance, 1)?;
                self.sequencers(&c.sequencers)?;
                if c.if_generation.is_some_and(|expected| expected != node.content_generation) {
                    return refuse("wrong_generation");
                }
                match c.path.as_str() {
                    "/" | "/acl" => return refuse("denied"),
                    path if !self.children(path).is_empty() => return refuse("not_empty"),
                    path => self.nodes.remove(path),
                };
                Ok((None, false, 0))
            }
            Command::TakeLock(c) => self.take(session, c),
            Command::FreeLock(c) => {
                let node = self.node_mut(&c.path, c.instance)?;
                let generation = node.lock_generation;
                if !node.holders.contains_key(&(session, c.handle)) {
                    return refuse("not_held");
                }
                self.unlock(&c.path, (session, c.handle), false);
                Ok((self.stat(&c.path), false, generation))
            }
            other => panic!("the generator makes no {other:?}"),
        }
    }

    fn open(&mut self, session: u64, c: &v1::CreateOrOpen) -> Answer {
        let rights = |model: &Model, acl: &[String; 3]| -> Result<(), String> {
            if c.read || !(c.write || c.lock) {
                model.may(session, acl, 0)?;
            }
            if c.write || c.lock { model.may(session, acl, 1) } else { Ok(()) }
        };
        let who = (session, c.handle);
        if let Some(node) = self.nodes.get(&c.path) {
            rights(self, &node.acl)?;
            match &c.create {
                Some(create) if create.exclusive => return refuse("node_exists"),
                Some(create) if create.directory && !node.directory => return refuse("not_a_directory"),
                Some(create) if !create.directory && node.directory => return refuse("is_a_directory"),
                _ => {}
            }
            if node.ephemeral {
                self.nodes.get_mut(&c.path).unwrap().openers.insert(who);
            }
            return Ok((self.stat(&c.path), false, 0));
        }
        let Some(create) = &c.create else {
            rights(self, &self.nearest(&c.path).acl)?;
            return refuse("no_node");
        };
        self.may(session, &self.nearest(&c.path).acl, 1)?;
        let Some(above) = self.nodes.get(&parent(&c.path).unwrap()) else { return refuse("no_parent") };
        if !above.directory {
            return refuse("not_a_directory");
        }
        let acl = match &create.acl {
            Some(acl) => self.known(Some(acl))?,
            None => above.acl.clone(),
        };
        rights(self, &acl)?;
        self.room(&c.path, 1, create.contents.len() as u64)?;
        let openers = create.ephemeral.then_some(who).into_iter().collect();
        let contents = create.contents.to_vec();
        let content_generation = u64::from(!create.directory);
        let (directory, ephemeral) = (create.directory, create.ephemeral);
        let node = Node { directory, ephemeral, content_generation, contents, acl, openers, ..Default::default() };
        self.put(&c.path, node);
        Ok((self.stat(&c.path), true, 0))
    }

    fn take(&mut self, session: u64, c: &v1::TakeLock) -> Answer {
        let node = self.node_for(session, &c.path, c.instance, 1)?;
        if self.sessions.get(&session).is_some_and(|session| session.closed.contains(&c.handle)) {
            return refuse("bad_handle");
        }
        if node.holders.contains_key(&(session, c.handle)) {
            return refuse("already_held");
        }
        let shared = c.mode() == LockMode::Shared;
        let held_back = node.delay.is_some_and(|(_, exclusive_only, _)| !(exclusive_only && shared));
        let free = node.mode == 0 || (shared && node.mode == LockMode::Shared as i32);
        if held_back || !free {
            return refuse("lock_held");
        }
        let node = self.node_mut(&c.path, c.instance)?;
        node.lock_generation += u64::from(node.mode == 0);
        node.mode = c.mode;
        node.holders.insert((session, c.handle), c.lock_delay_ms);
        let generation = node.lock_generation;
        Ok((self.stat(&c.path), false, generation))
    }

    fn put(&mut self, path: &str, node: Node) {
        self.instances += 1;
        self.nodes.insert(path.into(), Node { instance: self.instances, acl_generation: 1, ..node });
    }

    fn node_mut(&mut self, path: &str, instance: u64) -> Result<&mut Node, String> {
        match self.nodes.get_mut(path) {
            Some(node) if instance == 0 || node.instance == instance => Ok(node),
            None if instance == 0 => refuse("no_node"),
            _ => refuse("node_gone"),
        }
    }

    /// The node, or the nearest above it.
    fn nearest(&self, path: &str) -> &Node {
        self.nodes.get(path).unwrap_or_else(|| self.nearest(&parent(path).expect("there is a root")))
    }

    /// A node for who has a right on it; others do not learn that there is none.
    fn node_for(&mut self, session: u64, path: &str, instance: u64, right: usize) -> Result<Node, String> {
        let found = self.node_mut(path, instance).map(|node| node.clone());
        if instance == 0 || found.is_ok() {
            self.may(session, &self.nearest(path).acl, right)?;
        }
        found
    }

    fn unlock(&mut self, path: &str, who: Who, lost: bool) {
        let Some(node) = self.nodes.get_mut(path) else { return };
        let Some(length) = node.holders.remove(&who) else { return };
        let shared = node.mode == LockMode::Shared as i32;
        if node.holders.is_empty() {
            node.mode = 0;
        }
        if lost {
            self.delays += 1;
            if length > 0 {
                node.delay = Some(match node.delay {
                    None => (length, shared, self.delays),
                    Some((before, only, _)) => (length.max(before), shared && only, self.delays),
                });
            }
        }
    }

    fn unopen(&mut self, path: &str, who: Who) {
        let Some(node) = self.nodes.get_mut(path) else { return };
        if node.openers.remove(&who) && node.openers.is_empty() && !node.directory {
            self.nodes.remove(path);
        }
    }

    fn may(&self, session: u64, acl: &[String; 3], right: usize) -> Result<(), String> {
        let principal = &self.sessions[&session].principal;
        let list = self.nodes.get(&format!("/acl/{}", acl[right])).filter(|list| !list.directory);
        let lines = list.map(|list| String::from_utf8_lossy(&list.contents).into_owned()).unwrap_or_default();
        if acl[right].is_empty() || lines.lines().any(|line| line == principal) {
            return Ok(());
        }
        refuse("denied")
    }

    fn known(&self, acl: Option<&v1::NodeAcl>) -> Result<[String; 3], String> {
        let acl = acl.cloned().unwrap_or_default();
        let names = [acl.read, acl.write, acl.change];
        for name in names.iter().filter(|name| !name.is_empty()) {
            if self.nodes.get(&format!("/acl/{name}")).is_none_or(|node| node.directory) {
                return refuse("unknown_acl");
            }
        }
        Ok(names)
    }

    fn sequencers(&self, sequencers: &[v1::SequencerBody]) -> Result<(), String> {
        for each in sequencers {
            let holds = self.nodes.get(&each.path).is_some_and(|node| {
                (node.instance, node.lock_generation, node.mode) == (each.instance, each.generation, each.mode)
            });
            if !holds || each.mode == 0 {
                return refuse("stale_sequencer");
            }
        }
        Ok(())
    }

    fn room(&self, path: &str, nodes: u64, bytes: u64) -> Result<(), String> {
        let mut at = parent(path);
        while let Some(directory) = at {
            let (used, node) = (self.used(&directory), &self.nodes[&directory]);
            if nodes > 0 && node.max_nodes > 0 && used.0 + nodes > node.max_nodes {
                return refuse("quota_nodes");
            }
            if bytes > 0 && node.max_bytes > 0 && used.1 + bytes > node.max_bytes {
                return refuse("quota_bytes");
            }
            at = parent(&directory);
        }
        Ok(())
    }
}
