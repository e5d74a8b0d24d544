//! What an application does under a lock's sequencer, and behind an access list.

use super::super::doing::{Doing, Slot};
use super::super::fact::{Call, Change};
use super::super::recorded::shown;
use super::super::{CLOSED, DOORS, FILES};
use super::{Script, target};
use bytes::Bytes;
use tidings_wire::v1::{self, cell_message::Message};

impl Script {
    /// Writes a file that only the holder of a lock is to write; half the time, with a lock that was given back.
    pub(super) fn guarded_write(&mut self) {
        let held = self.held.as_ref().map(|held| held.sequencer.clone());
        let spent = self.spent.as_ref().map(|(_, _, _, sequencer)| sequencer.clone());
        let sequencer = match (held, spent) {
            (Some(_), Some(spent)) if self.rng.one_in(4) => spent,
            (Some(held), _) => held,
            (None, Some(spent)) => spent,
            (None, None) => return,
        };
        let path = self.pick(FILES);
        let if_generation = self.known.get(&path).copied().filter(|_| self.rng.one_in(4));
        self.set_contents(path, if_generation, vec![sequencer]);
    }

    /// Decides anew who may read and write what is closed: anybody, this application's own included, may be shut out.
    pub(super) fn shut_doors(&mut self) {
        let contents = self.doors();
        self.set_contents_to(DOORS.to_string(), contents, None, Vec::new());
    }

    /// Writes what is closed to some.
    pub(super) fn write_closed(&mut self) {
        self.set_contents(CLOSED.to_string(), None, Vec::new());
    }

    /// A list with about two thirds of all principals, no two alike.
    pub(super) fn doors(&mut self) -> Bytes {
        let mut lines = format!("# {}-{}\n", self.host, self.next_op);
        for principal in self.principals.clone().iter().filter(|_| !self.rng.one_in(3)) {
            lines.push_str(principal);
            lines.push('\n');
        }
        Bytes::from(lines)
    }

    fn set_contents(&mut self, path: String, if_generation: Option<u64>, sequencers: Vec<Bytes>) {
        let contents = self.contents();
        self.set_contents_to(path, contents, if_generation, sequencers);
    }

    fn set_contents_to(&mut self, path: String, contents: Bytes, if_generation: Option<u64>, sequencers: Vec<Bytes>) {
        debug_assert!(self.free(Slot::Change));
        let target = Some(target(&path));
        let change = Change::Write { path, contents: shown(&contents), if_generation };
        let message = Message::SetContents(v1::SetContents { target, contents, if_generation, sequencers });
        self.call(Doing::Write, Call::Change(change), message);
    }
}
