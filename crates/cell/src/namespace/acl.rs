//! Who may do what: names of access lists on nodes, lists in the files of `/acl`.

use super::tree::Node;
use super::{Namespace, Right};
use crate::SessionId;
use crate::error;
use crate::mutant::Mutant;
use crate::path::{ACL_DIRECTORY, NodePath, Place, parent_str};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidings_base::Error;
use tidings_wire::v1;

/// The three ACL names of a node. Children share their parent's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AclNames {
    pub read: Box<str>,
    pub write: Box<str>,
    pub change: Box<str>,
}

impl AclNames {
    pub(super) fn from_wire(acl: &v1::NodeAcl) -> AclNames {
        AclNames {
            read: acl.read.as_str().into(),
            write: acl.write.as_str().into(),
            change: acl.change.as_str().into(),
        }
    }

    pub(super) fn to_wire(&self) -> v1::NodeAcl {
        v1::NodeAcl { read: self.read.to_string(), write: self.write.to_string(), change: self.change.to_string() }
    }

    fn name(&self, right: Right) -> &str {
        match right {
            Right::Read => &self.read,
            Right::Write => &self.write,
            Right::ChangeAcl => &self.change,
        }
    }
}

/// The lines of one access list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AclList {
    everybody: bool,
    /// Sorted.
    lines: Vec<Box<str>>,
}

impl AclList {
    /// Reads a file: a principal a line, `#` begins a comment line. Bytes that are no text match nobody.
    pub(super) fn parse(contents: &[u8]) -> AclList {
        let mut list = AclList::default();
        for line in contents.split(|byte| *byte == b'\n') {
            match std::str::from_utf8(line).map(str::trim) {
                Ok("*") => list.everybody = true,
                Ok(line) if !line.is_empty() && !line.starts_with('#') => list.lines.push(line.into()),
                _ => {}
            }
        }
        list.lines.sort_unstable();
        list.lines.dedup();
        list
    }

    /// A line matches a principal that equals it, or begins with it and a slash.
    pub(super) fn has(&self, principal: &str) -> bool {
        let listed = |line: &str| self.lines.binary_search_by(|have| (**have).cmp(line)).is_ok();
        self.everybody || listed(principal) || principal.match_indices('/').any(|(at, _)| listed(&principal[..at]))
    }
}

/// The access lists of one application, by name.
type ListsOfApp = BTreeMap<Box<str>, Arc<AclList>>;

/// All access lists, parsed, by application.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lists(Arc<BTreeMap<Arc<str>, ListsOfApp>>);

impl Lists {
    fn get(&self, app: &str, name: &str) -> Option<&AclList> {
        self.0.get(app)?.get(name).map(|list| &**list)
    }

    /// Follows a change of a node below `/acl`; `None` = it is gone. Only files right in `/acl` are lists.
    pub(super) fn set(&mut self, place: &Place, contents: Option<&[u8]>) {
        if parent_str(place.path.as_str()) != Some(ACL_DIRECTORY) {
            return;
        }
        let apps = Arc::make_mut(&mut self.0);
        match contents {
            Some(contents) => {
                let lists = apps.entry(place.app.clone()).or_default();
                lists.insert(place.path.name().into(), Arc::new(AclList::parse(contents)));
            }
            None => {
                if let Some(lists) = apps.get_mut(&place.app) {
                    lists.remove(place.path.name());
                    if lists.is_empty() {
                        apps.remove(&place.app);
                    }
                }
            }
        }
    }
}

impl Namespace {
    /// Whether a caller has a right on a node (or, where there is none, on its nearest ancestor).
    pub fn may(&self, caller: &v1::CellCaller, place: &Place, right: Right) -> Result<(), Error> {
        self.may_at(caller, &place.app, place.path.as_str(), right)
    }

    /// The same for a place that is not taken apart.
    pub(super) fn may_at(&self, caller: &v1::CellCaller, app: &str, path: &str, right: Right) -> Result<(), Error> {
        match self.nearest(app, path) {
            Some(node) => self.allows(caller, app, path, &node.acl, right),
            None if caller.privileged || caller.app == app => Ok(()),
            None => Err(error::denied(format!("{} is not of the application {app}", caller.principal))),
        }
    }

    /// A node, or where there is none the nearest above it.
    pub(super) fn nearest(&self, app: &str, path: &str) -> Option<&Node> {
        std::iter::successors(Some(path), |at| parent_str(at)).find_map(|at| self.tree.get(app, at))
    }

    /// Whether a session's principal may read a node at present. Where no list is named, that costs one look at the node.
    pub fn may_watch(&self, session: SessionId, place: &Place) -> bool {
        let open = self.tree.at(place).is_some_and(|node| node.acl.read.is_empty());
        open || self.session(session).is_some_and(|record| self.may(&record.caller, place, Right::Read).is_ok())
    }

    /// Whether the names of a node give a caller a right on it.
    pub(super) fn allows(
        &self,
        caller: &v1::CellCaller,
        app: &str,
        path: &str,
        acl: &AclNames,
        right: Right,
    ) -> Result<(), Error> {
        if caller.privileged {
            return Ok(());
        }
        if caller.app != app {
            return Err(error::denied(format!("{} is not of the application {app}", caller.principal)));
        }
        let name = acl.name(right);
        if name.is_empty()
            || self.mutant == Some(Mutant::ListsIgnored)
            || self.lists.get(app, name).is_some_and(|list| list.has(&caller.principal))
        {
            return Ok(());
        }
        let what = match right {
            Right::Read => "read",
            Right::Write => "write or lock",
            Right::ChangeAcl => "change the access lists of",
        };
        let principal = &caller.principal;
        Err(error::denied(format!("{principal} may not {what} {path}; /acl/{name} does not list it")))
    }

    /// Names that may be set: each is empty or has a file.
    pub(super) fn checked_acl(&self, app: &str, acl: &v1::NodeAcl) -> Result<AclNames, Error> {
        for name in [&acl.read, &acl.write, &acl.change] {
            if !name.is_empty() && self.lists.get(app, name).is_none() {
                return Err(error::unknown_acl(name));
            }
        }
        Ok(AclNames::from_wire(acl))
    }

    /// The place of the list of a name, for messages and tools.
    pub fn acl_place(app: &str, name: &str) -> Result<Place, Error> {
        Ok(Place::new(app, NodePath::acl_directory().child(name)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_matches_itself_and_everything_below() {
        let list = AclList::parse(b"# people\n app:shop \r\n\nuser:web/ann\n\xff\xfe\n");
        assert!(list.has("app:shop/k1") && list.has("app:shop") && list.has("user:web/ann"));
        assert!(!list.has("app:shopping/k1") && !list.has("user:web/anna") && !list.has("user:web") && !list.has(""));
        assert!(list.has("user:web/ann/phone"));
        assert!(AclList::parse(b"x\n*\n").has("anybody"));
        assert!(!AclList::parse(b"").has("anybody") && !AclList::parse(b"#*").has("anybody"));
    }
}
