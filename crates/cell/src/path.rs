//! Paths of nodes, parsed at the edge.

use std::sync::Arc;
use tidings_base::Error;

/// A path within an application: `/`, or `/` and parts between slashes. Parsed: no empty part, no `.` or `..`, no NUL,
/// at most 1 KiB.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodePath(Arc<str>);

impl NodePath {
    /// Parses a path.
    pub fn parse(text: &str) -> Result<NodePath, Error> {
        Ok(NodePath(Arc::from(text)))
    }

    /// The root of an application.
    pub fn root() -> NodePath {
        NodePath(Arc::from("/"))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The directory that holds it; `None` for the root.
    pub fn parent(&self) -> Option<NodePath> {
        let at = self.0.rfind('/')?;
        match (self.0.len(), at) {
            (1, _) => None,
            (_, 0) => Some(NodePath::root()),
            _ => Some(NodePath(Arc::from(&self.0[..at]))),
        }
    }

    /// Its last part; empty for the root.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }
}

/// A node's place in the cell: whose tree, and where in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The application.
    pub app: Arc<str>,
    /// The path in its tree.
    pub path: NodePath,
}

/// What can be cached and is invalidated as one: a node (contents, stat, absence, handles) or a listing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheKey {
    /// The node, or the directory whose listing it is.
    pub place: Place,
    /// The listing of its children with their stats.
    pub listing: bool,
}
