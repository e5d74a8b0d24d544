//! A directory that not everybody may look into: who may changes, it comes and goes, and mostly there is nothing in it.

use super::super::doing::{Doing, Purpose, Slot};
use super::super::fact::{Call, Change};
use super::super::seat::Cache;
use super::super::{ROOM, ROOM_FILES};
use super::{Script, list_name, target};
use tidings_base::Now;
use tidings_wire::v1::{self, cell_message::Message};

impl Script {
    pub(super) fn visit(&mut self, now: Now, cache: &Cache) {
        match self.rng.below(12) {
            0..=5 => {
                let path = self.pick(ROOM_FILES);
                self.read_path(now, cache, path, false);
            }
            _ if !self.free(Slot::Change) => {}
            6..=7 => self.set_room_acl(),
            8 => {
                let acl = self.rng.one_in(2).then(|| self.some_acl());
                self.make(ROOM.to_string(), v1::CreateNode { directory: true, acl, ..Default::default() });
            }
            9 => {
                let (path, contents) = (self.pick(ROOM_FILES), self.contents());
                self.make(path, v1::CreateNode { contents, ..Default::default() });
            }
            10 => self.remove(ROOM.to_string()),
            _ => {
                let path = self.pick(ROOM_FILES);
                self.remove(path);
            }
        }
    }

    /// Open to all, or to those on the list.
    fn some_acl(&mut self) -> v1::NodeAcl {
        let read = if self.rng.one_in(2) { list_name() } else { String::new() };
        v1::NodeAcl { read, ..Default::default() }
    }

    fn set_room_acl(&mut self) {
        let acl = Some(self.some_acl());
        let set = v1::SetAcl { target: Some(target(ROOM)), acl, ..Default::default() };
        self.call(Doing::Write, Call::Change(Change::Other), Message::SetAcl(set));
    }

    fn make(&mut self, path: String, create: v1::CreateNode) {
        let open = v1::OpenNode { path, read: true, create: Some(create), ..Default::default() };
        self.open_node(open, Purpose::Passing);
    }

    fn remove(&mut self, path: String) {
        let delete = v1::DeleteNode { target: Some(target(&path)), ..Default::default() };
        self.call(Doing::Delete, Call::Change(Change::Delete { path, if_generation: None }), Message::Delete(delete));
    }
}
