//! What a node is, as the library shows it.

use bytes::Bytes;
use std::ops::Deref;
use std::sync::Arc;
use tidings_wire::v1;

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// With others that hold it shared.
    Shared,
    /// Alone.
    Exclusive,
}

impl Mode {
    pub(crate) fn wire(self) -> i32 {
        match self {
            Mode::Shared => v1::LockMode::Shared as i32,
            Mode::Exclusive => v1::LockMode::Exclusive as i32,
        }
    }

    pub(crate) fn from_wire(mode: v1::LockMode) -> Option<Mode> {
        match mode {
            v1::LockMode::Unspecified => None,
            v1::LockMode::Shared => Some(Mode::Shared),
            v1::LockMode::Exclusive => Some(Mode::Exclusive),
        }
    }
}

/// Names of files under `/acl/` that say who may do what; an empty name = everybody of the application.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    /// Who may read contents, stat and children.
    pub read: String,
    /// Who may write, delete, create below, and take the lock.
    pub write: String,
    /// Who may change these names.
    pub change: String,
}

impl From<v1::NodeAcl> for Acl {
    fn from(acl: v1::NodeAcl) -> Acl {
        Acl { read: acl.read, write: acl.write, change: acl.change }
    }
}

impl From<Acl> for v1::NodeAcl {
    fn from(acl: Acl) -> v1::NodeAcl {
        v1::NodeAcl { read: acl.read, write: acl.write, change: acl.change }
    }
}

/// A node's metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// A directory rather than a file.
    pub directory: bool,
    /// Goes when nobody has it open any more.
    pub ephemeral: bool,
    /// Larger than that of any earlier node of this path.
    pub instance: u64,
    /// Grows with each change of the contents (files).
    pub content_generation: u64,
    /// Grows each time the lock goes from free to held.
    pub lock_generation: u64,
    /// Grows with each change of the ACL names.
    pub acl_generation: u64,
    /// Of the contents: the same bytes have the same.
    pub checksum: u64,
    /// Bytes of contents.
    pub length: u32,
    /// How many children a directory has.
    pub children: u32,
    /// Who may do what.
    pub acl: Acl,
    /// How the lock is held; `None` = it is free.
    pub lock: Option<Mode>,
    /// By how many.
    pub lock_holders: u32,
    /// The lock is free and held back, since its last holder was lost.
    pub lock_delayed: bool,
}

impl From<v1::NodeStat> for Stat {
    fn from(stat: v1::NodeStat) -> Stat {
        Stat {
            directory: stat.directory,
            ephemeral: stat.ephemeral,
            instance: stat.instance,
            content_generation: stat.content_generation,
            lock_generation: stat.lock_generation,
            acl_generation: stat.acl_generation,
            checksum: stat.checksum,
            length: stat.length,
            children: stat.children,
            lock: Mode::from_wire(stat.lock()),
            acl: stat.acl.unwrap_or_default().into(),
            lock_holders: stat.lock_holders,
            lock_delayed: stat.lock_delayed,
        }
    }
}

/// A node's contents and metadata, read together. Cheap to clone: all clones share one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File(Arc<Inner>);

#[derive(Debug, PartialEq, Eq)]
struct Inner {
    stat: Stat,
    contents: Bytes,
}

impl File {
    pub(crate) fn new(stat: v1::NodeStat, contents: Bytes) -> File {
        File(Arc::new(Inner { stat: stat.into(), contents }))
    }

    /// The contents; empty for a directory.
    pub fn contents(&self) -> &Bytes {
        &self.0.contents
    }

    /// The metadata.
    pub fn stat(&self) -> &Stat {
        &self.0.stat
    }

    /// The contents as text, with whatever is not UTF-8 replaced.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0.contents)
    }

    /// Whether the contents are there: an answer to a stat alone has none.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.stat.directory || self.0.contents.len() == self.0.stat.length as usize
    }
}

/// One of a directory's children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// Its name within the directory.
    pub name: String,
    /// Its metadata.
    pub stat: Stat,
}

/// The children of a directory, in the order of their names. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing(Arc<[Child]>);

impl Listing {
    pub(crate) fn new(children: Vec<v1::Child>) -> Listing {
        let child = |c: v1::Child| Child { name: c.name, stat: c.stat.unwrap_or_default().into() };
        Listing(children.into_iter().map(child).collect())
    }
}

impl Deref for Listing {
    type Target = [Child];
    fn deref(&self) -> &[Child] {
        &self.0
    }
}

impl<'a> IntoIterator for &'a Listing {
    type Item = &'a Child;
    type IntoIter = std::slice::Iter<'a, Child>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
