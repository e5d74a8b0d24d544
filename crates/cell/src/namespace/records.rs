//! The state as records, and back: what snapshots and backups are made of.

use super::acl::{AclNames, Lists};
use super::chunks::ChunkMap;
use super::quota::Bounds;
use super::sessions::{Session, SessionRecord, Window};
use super::tree::{Node, NodeKey, Tree};
use super::{Delay, LockState, Namespace};
use crate::path::{Place, parent_str};
use crate::{HandleNumber, SessionId};
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Epoch, Incarnation};
use tidings_wire::v1;
use tidings_wire::v1::cell_record::Record;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Where a walk over all records stands.
#[derive(Clone, Debug)]
pub(super) enum Cursor {
    Head,
    Key(usize),
    Node(Option<NodeKey>),
    Session(u64),
    Staged(usize),
    End,
}

impl Namespace {
    /// The next record; the same state gives the same records in the same order.
    pub(super) fn next_record(&self, cursor: &mut Cursor) -> Option<Record> {
        loop {
            let record = match cursor {
                Cursor::Head => {
                    *cursor = Cursor::Key(0);
                    return Some(Record::Head(self.head()));
                }
                Cursor::Key(at) => {
                    let record = self.keys.secrets().nth(*at).map(|(id, secret)| {
                        Record::Key(v1::CellKeySecret { id, secret: bytes::Bytes::copy_from_slice(secret) })
                    });
                    *cursor = if record.is_some() { Cursor::Key(*at + 1) } else { Cursor::Node(None) };
                    record
                }
                Cursor::Node(after) => {
                    let next = self.tree.after(after.as_ref());
                    let record = next.map(|(key, node)| Record::Node(node_record(&key.place, node)));
                    *cursor = next.map_or(Cursor::Session(0), |(key, _)| Cursor::Node(Some(key.clone())));
                    record
                }
                Cursor::Session(after) => {
                    let next = self.sessions.after(SessionId(*after));
                    *cursor = next.map_or(Cursor::Staged(0), |(id, _)| Cursor::Session(id.0));
                    next.map(|(id, session)| Record::Session(session_record(id, session)))
                }
                Cursor::Staged(at) => {
                    let record = self.staged.pieces.get(*at).cloned().map(Record::Staged);
                    *cursor = if record.is_some() { Cursor::Staged(*at + 1) } else { Cursor::End };
                    record
                }
                Cursor::End => return None,
            };
            if record.is_some() {
                return record;
            }
        }
    }

    /// One number for the whole state: replicas that applied the same commands have the same.
    pub fn digest(&self) -> u64 {
        let mut hash = Xxh3::new();
        let mut cursor = Cursor::Head;
        while let Some(record) = self.next_record(&mut cursor) {
            let record = v1::CellRecord { record: Some(record) };
            hash.update(&record.encode_length_delimited_to_vec());
        }
        hash.digest()
    }

    fn head(&self) -> v1::CellHead {
        v1::CellHead {
            epoch: self.epoch.0,
            incarnation: self.incarnation.0,
            ceiling_ms: self.ceiling.as_millis() as u64,
            instances: self.next_instance,
            sessions: self.next_session,
            delays: self.next_delay,
            cache_lease_ms: self.cache_lease_ms,
        }
    }

    /// Takes a record into a state that is being loaded; if it makes no sense, says why.
    pub(super) fn load(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Head(head) => {
                self.epoch = Epoch(head.epoch);
                self.incarnation = Incarnation(head.incarnation);
                self.ceiling = Duration::from_millis(head.ceiling_ms);
                self.cache_lease_ms = head.cache_lease_ms;
                (self.next_instance, self.next_session) = (head.instances, head.sessions);
                self.next_delay = head.delays;
            }
            Record::Key(key) => {
                let secret = key.secret[..].try_into().map_err(|_| format!("key {} has a wrong length", key.id))?;
                self.keys.push(key.id, secret);
            }
            Record::Node(record) => {
                let (place, node) = load_node(record)?;
                let shown = place.to_string();
                if !self.tree.load(NodeKey::new(place), node) {
                    return Err(format!("{shown} comes twice"));
                }
            }
            Record::Session(record) => {
                let (id, closed) = (record.session, record.closed.clone());
                let (record, window) = load_session(record);
                if !self.sessions.insert(SessionId(id), record, window) {
                    return Err(format!("session {id} comes twice"));
                }
                self.sessions.close(SessionId(id), &closed);
            }
            Record::Staged(piece) => self.staged.push(piece),
        }
        Ok(())
    }

    /// Makes everything that follows from the nodes and sessions that were loaded.
    pub(super) fn index(&mut self) -> Result<(), String> {
        check_shape(&self.tree)?;
        self.tree.count_all();
        self.lists = Lists::default();
        (self.held, self.idle) = (ChunkMap::default(), ChunkMap::default());
        for (key, node) in self.tree.iter() {
            let place = &key.place;
            if place.path.is_acl() && !node.directory {
                self.lists.set(place, Some(&node.contents));
            }
            if !node.lock.is_free() {
                self.held.insert(place.clone(), ());
            }
            if node.is_idle_directory() {
                self.idle.insert(key.clone(), ());
            }
            let holders = node.lock.holders.keys().map(|who| (who, true));
            for ((session, handle), lock) in holders.chain(node.openers.iter().map(|who| (who, false))) {
                if !self.sessions.load(*session, place, *handle, lock) {
                    return Err(format!("{place} is held by session {}, and there is none", session.0));
                }
            }
        }
        Ok(())
    }
}

/// Every node is in a directory.
pub(super) fn check_shape(tree: &Tree) -> Result<(), String> {
    for (key, node) in tree.iter() {
        let place = &key.place;
        match parent_str(place.path.as_str()).map(|parent| tree.get(&place.app, parent)) {
            None if node.directory => {}
            Some(Some(parent)) if parent.directory => {}
            _ => return Err(format!("{place} is in no directory")),
        }
    }
    Ok(())
}

fn holder(who: &(SessionId, HandleNumber), delay: Duration) -> v1::CellHolder {
    v1::CellHolder { session: who.0.0, handle: who.1.0, lock_delay_ms: delay.as_millis() as u32 }
}

pub(super) fn node_record(place: &Place, node: &Node) -> v1::CellNodeRecord {
    v1::CellNodeRecord {
        app: place.app.to_string(),
        path: place.path.to_string(),
        directory: node.directory,
        ephemeral: node.ephemeral,
        instance: node.instance,
        content_generation: node.content_generation,
        acl_generation: node.acl_generation,
        lock_generation: node.lock.generation,
        contents: node.contents.clone(),
        acl: Some(node.acl.to_wire()).filter(|acl| *acl != v1::NodeAcl::default()),
        max_nodes: node.bounds.nodes,
        max_bytes: node.bounds.bytes,
        lock: node.lock.mode as i32,
        holders: node.lock.holders.iter().map(|(who, delay)| holder(who, *delay)).collect(),
        delay: node.lock.delay.map(|delay| v1::CellDelay {
            length_ms: delay.length.as_millis() as u64,
            exclusive_only: delay.exclusive_only,
            number: delay.number,
        }),
        openers: node.openers.iter().map(|who| holder(who, Duration::ZERO)).collect(),
    }
}

pub(super) fn load_node(record: v1::CellNodeRecord) -> Result<(Place, Node), String> {
    let place = Place::parse(&record.app, &record.path).map_err(|error| error.message)?;
    let who = |holder: &v1::CellHolder| (SessionId(holder.session), HandleNumber(holder.handle));
    let lock = LockState {
        mode: record.lock(),
        holders: record
            .holders
            .iter()
            .map(|holder| (who(holder), Duration::from_millis(holder.lock_delay_ms.into())))
            .collect(),
        generation: record.lock_generation,
        delay: record.delay.map(|delay| Delay {
            length: Duration::from_millis(delay.length_ms),
            exclusive_only: delay.exclusive_only,
            number: delay.number,
        }),
    };
    if (lock.mode == v1::LockMode::Unspecified) != lock.holders.is_empty() {
        return Err(format!("the lock of {place} is half held"));
    }
    if record.directory && !record.contents.is_empty() {
        return Err(format!("the directory {place} has contents"));
    }
    let acl = Arc::new(record.acl.as_ref().map(AclNames::from_wire).unwrap_or_default());
    let mut openers: Vec<_> = record.openers.iter().map(who).collect();
    openers.sort_unstable();
    let node = Node {
        ephemeral: record.ephemeral,
        directory: record.directory,
        content_generation: record.content_generation,
        acl_generation: record.acl_generation,
        checksum: if record.directory { 0 } else { xxh3_64(&record.contents) },
        contents: record.contents,
        lock,
        openers,
        bounds: Bounds { nodes: record.max_nodes, bytes: record.max_bytes },
        ..Node::directory(record.instance, acl)
    };
    Ok((place, node))
}

fn session_record(id: SessionId, session: &Session) -> v1::CellSessionRecord {
    let results = session
        .window
        .results
        .iter()
        .map(|(number, result)| v1::CellKeptResult { number: *number, result: bytes::Bytes::copy_from_slice(result) });
    v1::CellSessionRecord {
        session: id.0,
        caller: Some((*session.record.caller).clone()),
        lease_ms: session.record.lease.as_millis() as u64,
        secret: session.record.secret,
        gains: session.record.gains,
        answered_below: session.window.floor,
        results: results.collect(),
        closed: session.closed.0.iter().map(|(first, last)| v1::HandleRange { first: *first, last: *last }).collect(),
        keeper: session.record.keeper,
        ordered: session.record.ordered,
    }
}

fn load_session(record: v1::CellSessionRecord) -> (SessionRecord, Window) {
    let session = SessionRecord {
        caller: Arc::new(record.caller.unwrap_or_default()),
        lease: Duration::from_millis(record.lease_ms),
        secret: record.secret,
        gains: record.gains,
        keeper: record.keeper,
        ordered: record.ordered,
    };
    let mut window = Window { floor: record.answered_below, results: Vec::new() };
    for kept in record.results {
        window.keep(kept.number, kept.result.to_vec().into_boxed_slice());
    }
    (session, window)
}
