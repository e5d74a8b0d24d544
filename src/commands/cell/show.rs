//! Nodes as people and scripts read them.

use crate::output;
use serde::Serialize;
use serde_json::{Value, json};
use tidings_client::cell::{Acl, Mode, Stat as NodeStat};
use tidings_wire::v1::LockMode;

/// A node's metadata as scripts read it.
#[derive(Serialize)]
pub struct Stat<'a> {
    pub path: &'a str,
    pub kind: &'static str,
    pub ephemeral: bool,
    pub instance: u64,
    pub content_generation: u64,
    pub lock_generation: u64,
    pub acl_generation: u64,
    pub checksum: String,
    pub length: u32,
    pub children: u32,
    pub acl: Value,
    pub lock: &'static str,
    pub lock_holders: u32,
}

impl<'a> Stat<'a> {
    /// What the cell says of the node at this path.
    pub fn new(path: &'a str, stat: &NodeStat) -> Stat<'a> {
        Stat {
            path,
            kind: kind(stat),
            ephemeral: stat.ephemeral,
            instance: stat.instance,
            content_generation: stat.content_generation,
            lock_generation: stat.lock_generation,
            acl_generation: stat.acl_generation,
            checksum: format!("{:016x}", stat.checksum),
            length: stat.length,
            children: stat.children,
            acl: acl(&stat.acl),
            lock: lock(stat),
            lock_holders: stat.lock_holders,
        }
    }
}

/// The three names as scripts read them; the empty one is everybody.
pub fn acl(acl: &Acl) -> Value {
    json!({ "read": acl.read, "write": acl.write, "change": acl.change })
}

/// An ACL name for people.
pub fn acl_name(name: &str) -> String {
    if name.is_empty() { "everybody".to_owned() } else { name.to_owned() }
}

/// What a node is.
pub fn kind(stat: &NodeStat) -> &'static str {
    if stat.directory { "directory" } else { "file" }
}

/// What its lock is like.
pub fn lock(stat: &NodeStat) -> &'static str {
    match stat.lock {
        Some(Mode::Shared) => "shared",
        Some(Mode::Exclusive) => "exclusive",
        None if stat.lock_delayed => "held back",
        None => "free",
    }
}

/// A lock's mode for people and scripts.
pub fn mode(mode: LockMode) -> &'static str {
    match mode {
        LockMode::Shared => "shared",
        LockMode::Exclusive => "exclusive",
        LockMode::Unspecified => "free",
    }
}

/// What something is called and what it is, line by line.
pub fn pairs<'a>(pairs: impl IntoIterator<Item = [&'a str; 2]>) {
    for [name, value] in pairs {
        output::line(format_args!("{name:18}  {value}"));
    }
}
