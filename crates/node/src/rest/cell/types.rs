//! The cell's answers in JSON.

use serde::{Deserialize, Serialize};
use tidings_client::cell::{self, Mode};
use tidings_wire::v1;
use utoipa::ToSchema;

/// A node's metadata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Stat {
    /// A directory rather than a file.
    pub directory: bool,
    /// Goes with the session that made it.
    pub ephemeral: bool,
    /// Larger than that of any earlier node of this path.
    pub instance: u64,
    /// Grows with every change of the contents.
    pub content_generation: u64,
    /// Grows whenever the lock goes from free to held.
    pub lock_generation: u64,
    /// Grows with every change of the ACL names.
    pub acl_generation: u64,
    /// 64 bits over the contents, in hexadecimal.
    #[schema(example = "ef46db3751d8e999")]
    pub checksum: String,
    /// Bytes of contents.
    pub length: u32,
    /// How many nodes a directory holds.
    pub children: u32,
    pub acl: Acl,
    /// `free`, `shared`, `exclusive`, or `delayed` after its holder was lost.
    pub lock: String,
    pub lock_holders: u32,
}

/// A node after a change, as a watch tells it.
#[derive(Debug, Serialize)]
pub(in crate::rest) struct Told<'a> {
    #[serde(flatten)]
    pub stat: &'a Stat,
    /// Nodes in the directory that were added, removed or changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// More of them than are named.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// Names of files under `/acl/`, each with a line for every principal that may; empty = everybody of the application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::rest) struct Acl {
    pub read: String,
    pub write: String,
    /// Who may change these names.
    pub change: String,
}

/// The nodes in a directory, in the order of their names.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Listing {
    pub children: Vec<Child>,
}

/// A node in a directory.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Child {
    pub name: String,
    pub stat: Stat,
}

/// All sessions.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Sessions {
    pub sessions: Vec<Session>,
    /// There are more: ask again with `?after=` the last of these.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// A session, as the master sees it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Session {
    pub session: u64,
    pub app: String,
    pub principal: String,
    pub lease_ms: u32,
    /// Until its lease ends.
    pub remaining_ms: u64,
    pub handles: u32,
    pub locks: u32,
    pub ephemerals: u32,
    pub watches: u32,
    /// Entries that it may have cached.
    pub cached: u32,
}

/// All locks that are held, waited for or held back.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Locks {
    pub locks: Vec<Lock>,
    /// There are more: ask again with `?after_app=` and `?after=` the application and path of the last of these.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// A lock.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Lock {
    pub app: String,
    pub path: String,
    /// `free`, `shared`, `exclusive`, or `delayed`.
    pub lock: String,
    pub generation: u64,
    /// Sessions that hold it.
    pub holders: Vec<u64>,
    pub waiters: u32,
}

/// Bounds of everything under a directory, and how much of them is used.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Quota {
    /// 0 = no bound of its own.
    pub max_nodes: u64,
    /// 0 = no bound of its own.
    pub max_bytes: u64,
    pub nodes: u64,
    pub bytes: u64,
}

/// New bounds; 0 = none.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::rest) struct NewQuota {
    pub max_nodes: u64,
    pub max_bytes: u64,
}

impl From<cell::Acl> for Acl {
    fn from(acl: cell::Acl) -> Acl {
        Acl { read: acl.read, write: acl.write, change: acl.change }
    }
}

impl From<Acl> for cell::Acl {
    fn from(acl: Acl) -> cell::Acl {
        cell::Acl { read: acl.read, write: acl.write, change: acl.change }
    }
}

fn lock(mode: Option<Mode>, delayed: bool) -> String {
    let name = match mode {
        None if delayed => "delayed",
        None => "free",
        Some(Mode::Shared) => "shared",
        Some(Mode::Exclusive) => "exclusive",
    };
    name.to_owned()
}

impl From<&cell::Stat> for Stat {
    fn from(stat: &cell::Stat) -> Stat {
        Stat {
            directory: stat.directory,
            ephemeral: stat.ephemeral,
            instance: stat.instance,
            content_generation: stat.content_generation,
            lock_generation: stat.lock_generation,
            acl_generation: stat.acl_generation,
            checksum: format!("{:016x}", stat.checksum),
            length: stat.length,
            children: stat.children,
            lock: lock(stat.lock, stat.lock_delayed),
            lock_holders: stat.lock_holders,
            acl: stat.acl.clone().into(),
        }
    }
}

impl From<v1::SessionInfo> for Session {
    fn from(info: v1::SessionInfo) -> Session {
        Session {
            session: info.session,
            app: info.app,
            principal: info.principal,
            lease_ms: info.lease_ms,
            remaining_ms: info.remaining_ms,
            handles: info.handles,
            locks: info.locks,
            ephemerals: info.ephemerals,
            watches: info.watches,
            cached: info.cached,
        }
    }
}

fn mode(mode: v1::LockMode) -> Option<Mode> {
    match mode {
        v1::LockMode::Unspecified => None,
        v1::LockMode::Shared => Some(Mode::Shared),
        v1::LockMode::Exclusive => Some(Mode::Exclusive),
    }
}

impl From<v1::LockInfo> for Lock {
    fn from(info: v1::LockInfo) -> Lock {
        Lock {
            lock: lock(mode(info.mode()), info.delayed),
            app: info.app,
            path: info.path,
            generation: info.generation,
            holders: info.holders,
            waiters: info.waiters,
        }
    }
}

impl From<v1::Quota> for Quota {
    fn from(quota: v1::Quota) -> Quota {
        Quota { max_nodes: quota.max_nodes, max_bytes: quota.max_bytes, nodes: quota.nodes, bytes: quota.bytes }
    }
}
