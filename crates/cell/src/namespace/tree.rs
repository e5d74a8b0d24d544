//! The nodes of all trees, in one map that puts the children of a directory beside each other.

use super::LockState;
use super::acl::AclNames;
use super::chunks::ChunkMap;
use super::quota::{Bounds, Usage};
use crate::path::{Place, parent_str};
use crate::{HandleNumber, SessionId};
use bytes::Bytes;
use std::cmp::Ordering;
use std::sync::Arc;
use tidings_wire::v1;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// A file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub directory: bool,
    pub ephemeral: bool,
    pub instance: u64,
    pub content_generation: u64,
    pub acl_generation: u64,
    pub contents: Bytes,
    pub checksum: u64,
    pub acl: Arc<AclNames>,
    pub lock: LockState,
    /// R9: who has it open, in order; kept for ephemeral nodes only.
    pub openers: Vec<(SessionId, HandleNumber)>,
    /// How many nodes have this one as their parent.
    pub children: u32,
    /// What is below it.
    pub used: Usage,
    pub bounds: Bounds,
}

impl Node {
    pub(super) fn file(instance: u64, contents: Bytes, acl: Arc<AclNames>) -> Node {
        let checksum = xxh3_64(&contents);
        Node { content_generation: 1, contents, checksum, ..Node::directory(instance, acl).but_a_file() }
    }

    pub(super) fn directory(instance: u64, acl: Arc<AclNames>) -> Node {
        Node {
            directory: true,
            ephemeral: false,
            instance,
            content_generation: 0,
            acl_generation: 1,
            contents: Bytes::new(),
            checksum: 0,
            acl,
            lock: LockState::default(),
            openers: Vec::new(),
            children: 0,
            used: Usage::default(),
            bounds: Bounds::default(),
        }
    }

    fn but_a_file(self) -> Node {
        Node { directory: false, ..self }
    }

    pub(super) fn stat(&self) -> v1::NodeStat {
        v1::NodeStat {
            directory: self.directory,
            ephemeral: self.ephemeral,
            instance: self.instance,
            content_generation: self.content_generation,
            lock_generation: self.lock.generation,
            acl_generation: self.acl_generation,
            checksum: self.checksum,
            length: self.contents.len() as u32,
            children: self.children,
            acl: Some(self.acl.to_wire()),
            lock: self.lock.mode as i32,
            lock_holders: self.lock.holders.len() as u32,
            lock_delayed: self.lock.delay.is_some() && self.lock.mode == v1::LockMode::Unspecified,
        }
    }

    /// R9: an ephemeral directory that only `ReapEphemeral` still has to delete.
    pub(super) fn is_idle_directory(&self) -> bool {
        self.ephemeral && self.directory && self.children == 0 && self.openers.is_empty()
    }
}

/// Orders nodes by the hashes of their directory and of their path: siblings stand together, and a search compares
/// numbers that lie beside each other, not texts all over the memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeKey {
    directory: u64,
    hash: u64,
    pub place: Place,
}

impl NodeKey {
    pub(super) fn new(place: Place) -> NodeKey {
        let Probe { directory, hash, .. } = Probe::new(&place.app, place.path.as_str());
        NodeKey { directory, hash, place }
    }
}

/// One number for all children of a directory. Two directories may share it: who lists compares places too.
fn siblings(app: &str, directory: Option<&str>) -> u64 {
    xxh3_64_with_seed(directory.unwrap_or_default().as_bytes(), xxh3_64(app.as_bytes()))
}

/// Looks for a place without owning one.
#[derive(Clone, Copy)]
struct Probe<'a> {
    directory: u64,
    hash: u64,
    app: &'a str,
    path: &'a str,
}

impl<'a> Probe<'a> {
    fn new(app: &'a str, path: &'a str) -> Probe<'a> {
        let directory = siblings(app, parent_str(path));
        Probe { directory, hash: xxh3_64_with_seed(path.as_bytes(), directory), app, path }
    }

    fn order(&self, key: &NodeKey) -> Ordering {
        let hashes = (key.directory, key.hash).cmp(&(self.directory, self.hash));
        let app = || (*key.place.app).cmp(self.app);
        hashes.then_with(app).then_with(|| key.place.path.as_str().cmp(self.path))
    }
}

/// All nodes of all applications.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tree {
    nodes: ChunkMap<NodeKey, Arc<Node>>,
}

impl Tree {
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn entry(&self, app: &str, path: &str) -> Option<(&NodeKey, &Node)> {
        let probe = Probe::new(app, path);
        self.nodes.get_by(|key| probe.order(key)).map(|(key, node)| (key, &**node))
    }

    pub(super) fn get(&self, app: &str, path: &str) -> Option<&Node> {
        self.entry(app, path).map(|entry| entry.1)
    }

    pub(super) fn at(&self, place: &Place) -> Option<&Node> {
        self.get(&place.app, place.path.as_str())
    }

    pub(super) fn get_mut(&mut self, app: &str, path: &str) -> Option<(&NodeKey, &mut Node)> {
        let probe = Probe::new(app, path);
        self.nodes.get_mut_by(|key| probe.order(key)).map(|(key, node)| (key, Arc::make_mut(node)))
    }

    pub(super) fn at_mut(&mut self, place: &Place) -> Option<(&NodeKey, &mut Node)> {
        self.get_mut(&place.app, place.path.as_str())
    }

    /// Puts a node where none is; its ancestors count it.
    pub(super) fn insert(&mut self, key: NodeKey, node: Node) {
        let bytes = node.contents.len() as u64;
        let place = key.place.clone();
        let before = self.nodes.insert(key, Arc::new(node));
        assert!(before.is_none(), "a node is created only where none is");
        self.count(&place, 1, 1, bytes as i64);
    }

    /// Puts a node without counting it: [`Tree::count_all`] does so for all of them.
    pub(super) fn load(&mut self, key: NodeKey, node: Node) -> bool {
        self.nodes.insert(key, Arc::new(node)).is_none()
    }

    /// Takes a node away; its ancestors count it no more.
    pub(super) fn remove(&mut self, app: &str, path: &str) -> Option<(NodeKey, Arc<Node>)> {
        let probe = Probe::new(app, path);
        let (key, node) = self.nodes.remove_by(|key| probe.order(key))?;
        self.count(&key.place, -1, -1, -(node.contents.len() as i64));
        Some((key, node))
    }

    /// Adds to what the ancestors of a place hold, and to its parent's children.
    pub(super) fn count(&mut self, place: &Place, children: i32, nodes: i64, bytes: i64) {
        let mut children = children;
        let mut path = place.path.as_str();
        while let Some(parent) = parent_str(path) {
            if let Some((_, node)) = self.get_mut(&place.app, parent) {
                node.children = node.children.saturating_add_signed(children);
                node.used.add(nodes, bytes);
            }
            children = 0;
            path = parent;
        }
    }

    /// Counts everything anew, after nodes were loaded.
    pub(super) fn count_all(&mut self) {
        let all: Vec<(Place, i64)> =
            self.nodes.iter().map(|(key, node)| (key.place.clone(), node.contents.len() as i64)).collect();
        for (place, bytes) in all {
            self.count(&place, 1, 1, bytes);
        }
    }

    /// The children of a directory, in no order that means anything.
    pub(super) fn children<'a>(&'a self, app: &'a str, path: &'a str) -> impl Iterator<Item = (&'a NodeKey, &'a Node)> {
        let directory = siblings(app, Some(path));
        let all = self.nodes.starting_by(move |key| key.directory.cmp(&directory).then(Ordering::Greater));
        all.take_while(move |(key, _)| key.directory == directory)
            .filter(move |(key, _)| &*key.place.app == app && parent_str(key.place.path.as_str()) == Some(path))
            .map(|(key, node)| (key, &**node))
    }

    /// The first node after a key, or the very first.
    pub(super) fn after(&self, key: Option<&NodeKey>) -> Option<(&NodeKey, &Node)> {
        let next = match key {
            Some(key) => self.nodes.starting_by(|k| k.cmp(key).then(Ordering::Less)).next(),
            None => self.nodes.iter().next(),
        };
        next.map(|(key, node)| (key, &**node))
    }

    /// The applications that have a tree.
    pub(super) fn roots(&self) -> impl Iterator<Item = Arc<str>> {
        self.nodes.iter().filter(|(key, _)| key.place.path.is_root()).map(|(key, _)| key.place.app.clone())
    }

    /// Gives every node a new instance.
    pub(super) fn renumber(&mut self, last: &mut u64) {
        for (_, node) in self.nodes.iter_mut() {
            *last += 1;
            Arc::make_mut(node).instance = *last;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&NodeKey, &Node)> {
        self.nodes.iter().map(|(key, node)| (key, &**node))
    }
}
