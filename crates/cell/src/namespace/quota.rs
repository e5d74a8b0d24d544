//! Bounds of what is below a directory, kept exact at every change: O(depth).

use super::Namespace;
use super::tree::Tree;
use crate::error;
use crate::path::{Place, parent_str};
use tidings_base::Error;
use tidings_wire::v1;

/// How many nodes an application may have unless an operator says otherwise.
pub const DEFAULT_NODES: u64 = 200_000;
/// How many bytes its files may have together unless an operator says otherwise.
pub const DEFAULT_BYTES: u64 = 256 << 20;

/// What is below a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub nodes: u64,
    pub bytes: u64,
}

impl Usage {
    pub(super) fn add(&mut self, nodes: i64, bytes: i64) {
        self.nodes = self.nodes.saturating_add_signed(nodes);
        self.bytes = self.bytes.saturating_add_signed(bytes);
    }
}

/// The most that may be below a directory; 0 = no bound of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    pub nodes: u64,
    pub bytes: u64,
}

impl Bounds {
    /// Of an application's root.
    pub(super) const ROOT: Bounds = Bounds { nodes: DEFAULT_NODES, bytes: DEFAULT_BYTES };
}

impl Tree {
    /// Whether all directories above a path can take so much more.
    pub(super) fn room(&self, app: &str, path: &str, nodes: u64, bytes: u64) -> Result<(), Error> {
        let mut path = path;
        while let Some(parent) = parent_str(path) {
            if let Some(node) = self.get(app, parent) {
                let Bounds { nodes: most_nodes, bytes: most_bytes } = node.bounds;
                if nodes > 0 && most_nodes > 0 && node.used.nodes + nodes > most_nodes {
                    return Err(error::quota_nodes(parent, most_nodes));
                }
                if bytes > 0 && most_bytes > 0 && node.used.bytes + bytes > most_bytes {
                    return Err(error::quota_bytes(parent, most_bytes));
                }
            }
            path = parent;
        }
        Ok(())
    }
}

impl Namespace {
    /// Bounds and use of a directory.
    pub fn quota(&self, place: &Place) -> Option<v1::Quota> {
        let node = self.tree.at(place).filter(|node| node.directory)?;
        Some(v1::Quota {
            path: place.path.to_string(),
            max_nodes: node.bounds.nodes,
            max_bytes: node.bounds.bytes,
            nodes: node.used.nodes,
            bytes: node.used.bytes,
        })
    }

    /// Bounds below what is used already only keep more from coming.
    pub(super) fn write_quota(&mut self, command: &v1::WriteQuota) -> Result<v1::CellApplied, Error> {
        let Some((_, node)) = self.tree.get_mut(&command.app, &command.path) else {
            return Err(error::no_node(&command.path));
        };
        if !node.directory {
            return Err(error::not_a_directory(&command.path));
        }
        node.bounds = Bounds { nodes: command.max_nodes, bytes: command.max_bytes };
        Ok(v1::CellApplied { stat: Some(node.stat()), ..Default::default() })
    }
}
