//! What sessions do to files and directories, decided at apply.

use super::acl::AclNames;
use super::sessions::MAX_EPHEMERALS;
use super::tree::{Node, NodeKey};
use super::{Acting, Namespace, Right};
use crate::error::{self, MAX_CONTENTS};
use crate::path::{ACL_DIRECTORY, NodePath, Place, parent_str};
use crate::{HandleNumber, SessionId};
use std::sync::Arc;
use tidings_base::Error;
use tidings_wire::v1;
use xxhash_rust::xxh3::xxh3_64;

/// So many children a directory may have: its listing is one message.
const MAX_CHILDREN: u32 = 8_192;

impl Namespace {
    /// The node of a command: of that instance, or any if the call was by path.
    pub(super) fn node(&self, app: &str, path: &str, instance: u64) -> Result<&Node, Error> {
        match self.tree.get(app, path) {
            Some(node) if instance == 0 || node.instance == instance => Ok(node),
            None if instance == 0 => Err(error::no_node(path)),
            _ => Err(error::node_gone(path)),
        }
    }

    /// The node of a command that needs a right on it. Whoever has no right to it, or to what would hold it, does not learn
    /// whether it is there.
    pub(super) fn node_for(
        &self,
        acting: &Acting,
        (app, path, instance): (&str, &str, u64),
        right: Right,
    ) -> Result<&Node, Error> {
        let found = self.node(app, path, instance);
        match found {
            Ok(node) => self.allows(&acting.caller, app, path, &node.acl, right)?,
            // A handle's node is gone: who had it open knows that it was there.
            Err(_) if instance != 0 => {}
            Err(_) => self.may_at(&acting.caller, app, path, right)?,
        }
        found
    }

    /// The place of a node that exists, as its key has it: nothing is parsed or allocated.
    pub(super) fn place(&self, app: &str, path: &str) -> Option<Place> {
        self.tree.entry(app, path).map(|(key, _)| key.place.clone())
    }

    /// The root and `/acl` of an application are there from its first session on.
    pub(super) fn ensure_app(&mut self, app: &str) {
        let root = Place::new(app, NodePath::root());
        if self.tree.at(&root).is_none() {
            let mut node = Node::directory(self.new_instance(), Arc::default());
            node.bounds = super::quota::Bounds::ROOT;
            self.changed.existence(&root);
            self.tree.insert(NodeKey::new(root.clone()), node);
        }
        if self.tree.get(app, ACL_DIRECTORY).is_none() {
            let lists = Place { app: root.app, path: NodePath::acl_directory() };
            let node = Node::directory(self.new_instance(), Arc::default());
            self.changed.existence(&lists);
            self.tree.insert(NodeKey::new(lists), node);
        }
    }

    fn new_instance(&mut self) -> u64 {
        self.next_instance += 1;
        self.next_instance
    }

    pub(super) fn open(&mut self, acting: &Acting, command: &v1::CreateOrOpen) -> Result<v1::CellApplied, Error> {
        let (app, path) = (command.app.as_str(), command.path.as_str());
        let Some(node) = self.tree.get(app, path) else {
            return match &command.create {
                Some(create) => self.create(acting, command, create),
                None => {
                    self.nearest(app, path).map_or(Ok(()), |above| self.asked_rights(acting, command, &above.acl))?;
                    Err(error::no_node(path))
                }
            };
        };
        // Before anything is said about the node: whoever has no right to it does not learn that it is there.
        self.asked_rights(acting, command, &node.acl)?;
        if let Some(create) = &command.create {
            match (create.exclusive, create.directory, node.directory) {
                (true, _, _) => return Err(error::node_exists(path)),
                (false, true, false) => return Err(error::not_a_directory(path)),
                (false, false, true) => return Err(error::is_a_directory(path)),
                _ => {}
            }
        }
        let stat = Some(node.stat());
        if node.ephemeral {
            let opener = (acting.session, HandleNumber(command.handle));
            if !node.openers.contains(&opener) {
                self.room_for_ephemeral(acting.session)?;
                self.add_opener(app, path, opener);
            }
        }
        Ok(v1::CellApplied { stat, ..Default::default() })
    }

    fn asked_rights(&self, acting: &Acting, command: &v1::CreateOrOpen, acl: &AclNames) -> Result<(), Error> {
        let allows = |right| self.allows(&acting.caller, &command.app, &command.path, acl, right);
        // Whoever opens a node for nothing learns its stat all the same.
        if command.read || !(command.write || command.lock) {
            allows(Right::Read)?;
        }
        // Acquiring a lock in either mode needs the right to write: a reader must not keep a writer out.
        if command.write || command.lock {
            allows(Right::Write)?;
        }
        Ok(())
    }

    fn create(
        &mut self,
        acting: &Acting,
        command: &v1::CreateOrOpen,
        create: &v1::CreateNode,
    ) -> Result<v1::CellApplied, Error> {
        let (app, path) = (command.app.as_str(), NodePath::parse(&command.path)?);
        let size = create.contents.len();
        self.may_at(&acting.caller, app, path.as_str(), Right::Write)?;
        let parent = parent_str(path.as_str()).and_then(|parent| self.tree.entry(app, parent));
        let Some((parent_key, parent)) = parent else { return Err(error::no_parent(&path)) };
        if !parent.directory {
            return Err(error::not_a_directory(&parent_key.place.path));
        }
        let acl = match &create.acl {
            Some(acl) => Arc::new(self.checked_acl(app, acl)?),
            None => parent.acl.clone(),
        };
        self.asked_rights(acting, command, &acl)?;
        if parent.children >= MAX_CHILDREN {
            return Err(error::directory_full(&parent_key.place.path, MAX_CHILDREN));
        }
        if create.directory && size > 0 {
            return Err(error::is_a_directory(&path));
        }
        if size > MAX_CONTENTS {
            return Err(error::too_large(size));
        }
        self.tree.room(app, path.as_str(), 1, size as u64)?;
        if create.ephemeral {
            self.room_for_ephemeral(acting.session)?;
        }
        let (parent_key, app) = (parent_key.clone(), parent_key.place.app.clone());
        let place = Place { app, path };
        let instance = self.new_instance();
        let mut node = match create.directory {
            true => Node::directory(instance, acl),
            false => Node::file(instance, create.contents.clone(), acl),
        };
        node.ephemeral = create.ephemeral;
        let stat = Some(node.stat());
        if place.path.is_acl() && !node.directory {
            self.lists.set(&place, Some(&node.contents));
        }
        self.idle.remove(&parent_key);
        self.changed.existence(&place);
        self.changed.acl_file(&place);
        self.tree.insert(NodeKey::new(place.clone()), node);
        if create.ephemeral {
            let opener = (acting.session, HandleNumber(command.handle));
            self.add_opener(&place.app, place.path.as_str(), opener);
        }
        Ok(v1::CellApplied { stat, created: true, ..Default::default() })
    }

    fn room_for_ephemeral(&self, session: SessionId) -> Result<(), Error> {
        match self.sessions.get(session) {
            Some(session) if session.ephemerals.len() >= MAX_EPHEMERALS => {
                Err(error::too_many_ephemerals(MAX_EPHEMERALS))
            }
            _ => Ok(()),
        }
    }

    fn add_opener(&mut self, app: &str, path: &str, opener: (SessionId, HandleNumber)) {
        let Some((key, node)) = self.tree.get_mut(app, path) else { return };
        if let Err(at) = node.openers.binary_search(&opener) {
            node.openers.insert(at, opener);
            self.idle.remove(key);
            self.sessions.gained_ephemeral(opener.0, key.place.clone(), opener.1);
        }
    }

    /// R9: an ephemeral file goes with its last opener; a directory is left for the master to reap, since what else
    /// goes with it could not be invalidated beforehand.
    pub(super) fn remove_opener(&mut self, place: &Place, opener: (SessionId, HandleNumber), delete: bool) {
        let Some((key, node)) = self.tree.at_mut(place) else { return };
        let Ok(at) = node.openers.binary_search(&opener) else { return };
        node.openers.remove(at);
        self.sessions.gave_ephemeral(opener.0, place, opener.1);
        if node.is_idle_directory() {
            self.idle.insert(key.clone(), ());
        } else if !node.directory && node.openers.is_empty() && delete {
            self.delete(place);
        }
    }

    /// Closes a handle: its lock is released, its open of an ephemeral node ends. A node that is gone has nothing left
    /// to close.
    pub(super) fn close(&mut self, acting: &Acting, command: &v1::CloseOpen) -> Result<v1::CellApplied, Error> {
        let who = (acting.session, HandleNumber(command.handle));
        self.sessions.close(acting.session, &[v1::HandleRange { first: command.handle, last: command.handle }]);
        self.sessions.close(acting.session, &command.closed);
        if let Ok(node) = self.node(&command.app, &command.path, command.instance) {
            let (holds, opens) = (node.lock.holders.contains_key(&who), node.ephemeral);
            if let Some(place) = self.place(&command.app, &command.path).filter(|_| holds || opens) {
                self.unlock(&place, who, false);
                self.remove_opener(&place, who, true);
            }
        }
        let stat = self.node(&command.app, &command.path, command.instance).ok().map(|node| node.stat());
        Ok(v1::CellApplied { stat, ..Default::default() })
    }

    pub(super) fn write_contents(
        &mut self,
        acting: &Acting,
        command: &v1::WriteContents,
    ) -> Result<v1::CellApplied, Error> {
        let (app, path) = (command.app.as_str(), command.path.as_str());
        let node = self.node_for(acting, (app, path, command.instance), Right::Write)?;
        self.check_sequencers(&command.sequencers)?;
        if node.directory {
            return Err(error::is_a_directory(path));
        }
        if command.contents.len() > MAX_CONTENTS {
            return Err(error::too_large(command.contents.len()));
        }
        expect_generation(path, node.content_generation, command.if_generation)?;
        let (old, new) = (node.contents.len() as u64, command.contents.len() as u64);
        if new > old {
            self.tree.room(app, path, 0, new - old)?;
        }
        let Some((key, node)) = self.tree.get_mut(app, path) else { return Err(error::no_node(path)) };
        node.contents = command.contents.clone();
        node.checksum = xxh3_64(&node.contents);
        node.content_generation += 1;
        let (stat, place) = (Some(node.stat()), key.place.clone());
        if new != old {
            self.tree.count(&place, 0, 0, new as i64 - old as i64);
        }
        self.changed.stat(&place);
        if place.path.is_acl() {
            self.lists.set(&place, Some(&command.contents));
            self.changed.acl_file(&place);
        }
        Ok(v1::CellApplied { stat, ..Default::default() })
    }

    pub(super) fn write_acl(&mut self, acting: &Acting, command: &v1::WriteAcl) -> Result<v1::CellApplied, Error> {
        let (app, path) = (command.app.as_str(), command.path.as_str());
        let node = self.node_for(acting, (app, path, command.instance), Right::ChangeAcl)?;
        self.check_sequencers(&command.sequencers)?;
        expect_generation(path, node.acl_generation, command.if_generation)?;
        let acl = match &command.acl {
            Some(acl) => self.checked_acl(app, acl)?,
            None => AclNames::default(),
        };
        let Some((key, node)) = self.tree.get_mut(app, path) else { return Err(error::no_node(path)) };
        node.acl = Arc::new(acl);
        node.acl_generation += 1;
        self.changed.rights(&key.place);
        Ok(v1::CellApplied { stat: Some(node.stat()), ..Default::default() })
    }

    pub(super) fn remove_node(&mut self, acting: &Acting, command: &v1::RemoveNode) -> Result<v1::CellApplied, Error> {
        let (app, path) = (command.app.as_str(), command.path.as_str());
        let node = self.node_for(acting, (app, path, command.instance), Right::Write)?;
        self.check_sequencers(&command.sequencers)?;
        expect_generation(path, node.content_generation, command.if_generation)?;
        if path == "/" || path == ACL_DIRECTORY {
            return Err(error::denied(format!("{path} is part of every application and cannot be deleted")));
        }
        if node.children > 0 {
            return Err(error::not_empty(path));
        }
        self.place(app, path).iter().for_each(|place| self.delete(place));
        Ok(v1::CellApplied::default())
    }

    /// Deletes an ephemeral node that nobody has open. That it is in use again is no failure.
    pub(super) fn reap(&mut self, command: &v1::ReapEphemeral) -> Result<v1::CellApplied, Error> {
        let node = self.node(&command.app, &command.path, command.instance)?;
        if node.ephemeral && node.openers.is_empty() && node.children == 0 {
            self.place(&command.app, &command.path).iter().for_each(|place| self.delete(place));
            return Ok(v1::CellApplied::default());
        }
        Ok(v1::CellApplied { stat: Some(node.stat()), ..Default::default() })
    }

    /// Takes a node away, with its lock and everybody's hold on it.
    pub(super) fn delete(&mut self, place: &Place) {
        let Some((key, node)) = self.tree.remove(&place.app, place.path.as_str()) else { return };
        for (session, handle) in node.lock.holders.keys() {
            self.sessions.gave_lock(*session, place, *handle);
        }
        for (session, handle) in &node.openers {
            self.sessions.gave_ephemeral(*session, place, *handle);
        }
        if !node.lock.is_free() {
            self.held.remove(place);
        }
        self.idle.remove(&key);
        self.changed.existence(place);
        if place.path.is_acl() {
            self.lists.set(place, None);
            self.changed.acl_file(place);
        }
        if let Some((key, parent)) = parent_str(place.path.as_str()).and_then(|at| self.tree.entry(&place.app, at))
            && parent.is_idle_directory()
        {
            self.idle.insert(key.clone(), ());
        }
    }
}

fn expect_generation(path: &str, present: u64, expected: Option<u64>) -> Result<(), Error> {
    match expected {
        Some(expected) if expected != present => Err(error::wrong_generation(path, present, expected)),
        _ => Ok(()),
    }
}
