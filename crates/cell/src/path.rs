//! Paths of nodes, parsed at the edge.

use crate::error;
use std::sync::Arc;
use tidings_base::Error;

/// The longest path in bytes.
pub const MAX_PATH: usize = 1 << 10;

/// The directory that holds the access lists of an application.
pub const ACL_DIRECTORY: &str = "/acl";

/// A path within an application: `/`, or `/` and parts between slashes. Parsed: no empty part, no `.` or `..`, no NUL,
/// at most 1 KiB.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodePath(Arc<str>);

impl NodePath {
    /// Parses a path.
    pub fn parse(text: &str) -> Result<NodePath, Error> {
        check(text)?;
        Ok(NodePath(Arc::from(text)))
    }

    /// The root of an application.
    pub fn root() -> NodePath {
        NodePath(Arc::from("/"))
    }

    /// The directory of access lists, `/acl`.
    pub fn acl_directory() -> NodePath {
        NodePath(Arc::from(ACL_DIRECTORY))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The directory that holds it; `None` for the root.
    pub fn parent(&self) -> Option<NodePath> {
        parent_str(&self.0).map(|parent| NodePath(Arc::from(parent)))
    }

    /// Its last part; empty for the root.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// Whether it is the root.
    pub fn is_root(&self) -> bool {
        self.0.len() == 1
    }

    /// How many parts it has; 0 for the root.
    pub fn depth(&self) -> usize {
        if self.is_root() { 0 } else { self.0.matches('/').count() }
    }

    /// Whether it is the other path or below it.
    pub fn is_within(&self, directory: &NodePath) -> bool {
        directory.is_root()
            || self.0.strip_prefix(&*directory.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Whether it is below the other path.
    pub fn is_below(&self, directory: &NodePath) -> bool {
        self != directory && self.is_within(directory)
    }

    /// In the order of paths, what is below this one follows this bound without a gap. It is no path itself.
    pub(crate) fn bound_below(&self) -> NodePath {
        if self.is_root() { self.clone() } else { NodePath(Arc::from(format!("{}/", self.0))) }
    }

    /// Whether it is a file's place in the directory of access lists, or below that.
    pub fn is_acl(&self) -> bool {
        self.0.strip_prefix(ACL_DIRECTORY).is_some_and(|rest| rest.starts_with('/'))
    }

    /// The child of this name.
    pub fn child(&self, name: &str) -> Result<NodePath, Error> {
        if name.contains('/') {
            return Err(error::bad_path(name, "a name has no slash"));
        }
        self.join(name)
    }

    /// What a relative path names from here; an absolute one is taken as it is.
    pub fn join(&self, relative: &str) -> Result<NodePath, Error> {
        if relative.starts_with('/') {
            return NodePath::parse(relative);
        }
        let here = if self.is_root() { "" } else { &self.0 };
        NodePath::parse(&format!("{here}/{relative}"))
    }
}

impl std::fmt::Display for NodePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The directory that holds a parsed path.
pub(crate) fn parent_str(path: &str) -> Option<&str> {
    match (path.len(), path.rfind('/')?) {
        (1, _) => None,
        (_, 0) => Some("/"),
        (_, at) => Some(&path[..at]),
    }
}

/// Whether a text is a path; if not, which rule it breaks.
fn check(text: &str) -> Result<(), Error> {
    if text.len() > MAX_PATH {
        let start: String = text.chars().take(32).collect();
        return Err(error::bad_path(&format!("{start}…"), "a path has at most 1,024 bytes"));
    }
    let Some(rest) = text.strip_prefix('/') else {
        return Err(error::bad_path(text, "a path begins with a slash"));
    };
    if text.contains('\0') {
        return Err(error::bad_path(&text.replace('\0', "\\0"), "a path has no NUL"));
    }
    if rest.is_empty() {
        return Ok(());
    }
    for part in rest.split('/') {
        match part {
            "" => return Err(error::bad_path(text, "no part of a path is empty, and it does not end with a slash")),
            "." | ".." => return Err(error::bad_path(text, "no part of a path is `.` or `..`")),
            _ => {}
        }
    }
    Ok(())
}

/// A node's place in the cell: whose tree, and where in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The application.
    pub app: Arc<str>,
    /// The path in its tree.
    pub path: NodePath,
}

impl Place {
    /// A place.
    pub fn new(app: impl Into<Arc<str>>, path: NodePath) -> Place {
        Place { app: app.into(), path }
    }

    /// Parses a place.
    pub fn parse(app: &str, path: &str) -> Result<Place, Error> {
        Ok(Place { app: Arc::from(app), path: NodePath::parse(path)? })
    }

    /// The directory that holds it; `None` for a root.
    pub fn parent(&self) -> Option<Place> {
        Some(Place { app: self.app.clone(), path: self.path.parent()? })
    }

    /// Whether it is below the other place.
    pub fn is_below(&self, directory: &Place) -> bool {
        self.app == directory.app && self.path.is_below(&directory.path)
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.app, self.path)
    }
}

/// What can be cached and is invalidated as one: a node (contents, stat, absence, handles) or a listing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheKey {
    /// The node, or the directory whose listing it is.
    pub place: Place,
    /// The listing of its children with their stats.
    pub listing: bool,
}

impl CacheKey {
    /// The node itself.
    pub fn node(place: Place) -> CacheKey {
        CacheKey { place, listing: false }
    }

    /// The listing of its children.
    pub fn listing(place: Place) -> CacheKey {
        CacheKey { place, listing: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_paths_are_refused_by_the_rule_they_break() {
        let long = format!("/{}", "a".repeat(MAX_PATH));
        let cases = [
            ("", "slash"),
            ("a", "slash"),
            ("//", "empty"),
            ("/a/", "empty"),
            ("/a//b", "empty"),
            ("/.", "`..`"),
            ("/a/../b", "`..`"),
            ("/a\0b", "NUL"),
            (long.as_str(), "1,024"),
        ];
        for (path, rule) in cases {
            let error = NodePath::parse(path).unwrap_err();
            assert_eq!(error.code, "cell.bad_path", "{path}");
            assert!(error.message.contains(rule), "{path}: {}", error.message);
            assert!(!error.hint.is_empty());
        }
    }

    #[test]
    fn good_paths_are_taken() {
        for path in ["/", "/a", "/a/b", "/…", "/a b/.c/d..", &format!("/{}", "a".repeat(MAX_PATH - 1))] {
            assert_eq!(NodePath::parse(path).unwrap().as_str(), path);
        }
    }

    #[test]
    fn parents_children_and_names_fit_together() {
        let path = NodePath::parse("/a/b").unwrap();
        assert_eq!(path.parent().unwrap().as_str(), "/a");
        assert_eq!(path.name(), "b");
        assert_eq!(path.depth(), 2);
        assert_eq!(NodePath::root().depth(), 0);
        assert_eq!(path.parent().unwrap().parent(), Some(NodePath::root()));
        assert_eq!(NodePath::root().parent(), None);
        assert_eq!(NodePath::root().name(), "");
        assert_eq!(NodePath::root().child("a").unwrap().child("b").unwrap(), path);
        assert_eq!(NodePath::parse("/a").unwrap().join("b/c").unwrap().as_str(), "/a/b/c");
        assert_eq!(path.join("/x").unwrap().as_str(), "/x");
        assert!(path.child("x/y").is_err() && path.child("").is_err() && path.child("..").is_err());
    }

    #[test]
    fn within_means_the_directory_and_what_is_below() {
        let within = |a: &str, b: &str| NodePath::parse(a).unwrap().is_within(&NodePath::parse(b).unwrap());
        assert!(within("/a/b", "/a") && within("/a", "/a") && within("/a", "/"));
        assert!(!within("/ab", "/a") && !within("/a", "/a/b"));
        let below = |a: &str, b: &str| NodePath::parse(a).unwrap().is_below(&NodePath::parse(b).unwrap());
        assert!(
            below("/a/b", "/a") && below("/a", "/") && !below("/a", "/a") && !below("/", "/") && !below("/a-b", "/a")
        );
        assert!(NodePath::parse("/acl/x").unwrap().is_acl());
        assert!(!NodePath::parse("/acl").unwrap().is_acl() && !NodePath::parse("/acl2/x").unwrap().is_acl());
    }
}
