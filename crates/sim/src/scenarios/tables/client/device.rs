//! A client that is a device: it leaves, and comes back when Notify has something new of the partitions that it listens to (R3).
//!
//! It does what the documents tell a device to do. A watch has begun with its first cursor; a device that leaves before knows
//! that it has to come again. One that has begun, and was told nothing since, has missed nothing: that is the claim.

use super::{Client, Out};
use crate::kernel::Effect;
use crate::scenarios::tables::fact::{Fact, Rows};
use crate::scenarios::tables::files::LASTING;
use crate::scenarios::tables::letter::Letter;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{Mono, Now};
use tidings_tables::names::{Endpoint, Object, PartitionId, Position};

/// How often a device looks what Notify has for it, in milliseconds.
const LOOKS: (u64, u64) = (300, 3_000);
/// At one of so many looks it leaves, and at one of so many it comes back though it was told nothing.
const LEAVES: u64 = 6;
const RETURNS: u64 = 20;

/// What a device remembers.
#[derive(Clone, Debug, Default)]
pub(super) struct Device {
    pub away: bool,
    /// Whether this watch has given it a cursor.
    begun: bool,
    /// It was told something since it began this watch.
    told: bool,
    /// There may be something new: it was told so and has not begun a watch since, or its last watch never began.
    stale: bool,
    /// It does not come by itself.
    stays: bool,
    /// What it listens to, and the versions that it knows.
    listens: BTreeSet<PartitionId>,
    versions: BTreeMap<Object, Position>,
    pub look: Mono,
}

impl Client {
    /// Those of whom claims are taken some time are none: while they are away their tokens end, and nothing is told of that.
    pub(super) fn is_device(&self) -> bool {
        self.habits.devices && self.number.is_multiple_of(2)
    }

    /// Where it hears when it is away.
    pub(super) fn endpoint(&self) -> Option<Endpoint> {
        self.is_device().then(|| Endpoint { netid: self.op(0).netid, app: "app".to_owned() })
    }

    /// It begins a watch: it has looked up where, and listens there.
    pub(super) fn comes(&mut self) {
        let parts = self.around.files.read(LASTING).into_iter().flat_map(|entry| {
            let id = |number| PartitionId { table: entry.directory.table(), number };
            entry.directory.partitions.iter().map(|part| id(part.number)).collect::<Vec<_>>()
        });
        let device = &mut self.me.device;
        device.listens.extend(parts);
        // What is not begun is begun again.
        device.stale |= !device.away && !device.begun;
        (device.away, device.begun, device.told) = (false, false, false);
    }

    /// It was given a cursor.
    pub(super) fn begins_watch(&mut self) {
        let device = &mut self.me.device;
        if !device.begun {
            (device.begun, device.stale) = (true, device.told);
        }
    }

    /// Goes away, if it is a device.
    pub fn leave(&mut self, _now: Now, out: &mut Out) {
        if !self.is_device() || self.me.device.away {
            return;
        }
        let (node, watch, torn) = self.me.live.leave();
        self.post.send(out, node, Letter::Ends { watch });
        let device = &mut self.me.device;
        device.stale |= !device.begun || torn;
        device.away = true;
        self.keep();
    }

    /// The same, until it is called.
    pub fn stay_away(&mut self, now: Now, out: &mut Out) {
        if !self.is_device() {
            return;
        }
        self.leave(now, out);
        self.me.device.stays = true;
        self.hear_notify();
        self.me.device.told = false;
        self.keep();
    }

    /// Comes, if it is a device.
    pub fn visit(&mut self, now: Now, out: &mut Out) {
        if self.is_device() {
            self.reconnect(now, out);
        }
    }

    /// Says of which partitions of the table it was told nothing since it stayed away, and comes. One whose watch had not begun
    /// knows that it has to.
    pub fn come_back(&mut self, now: Now, out: &mut Out) {
        if !self.is_device() {
            return;
        }
        let parts = self.around.files.read(LASTING).map(|entry| entry.directory);
        let parts = parts
            .iter()
            .flat_map(|directory| directory.partitions.iter().map(move |part| directory.partition_id(part.number)));
        let news = self.hear_notify();
        let missed = parts.filter(|part| !news.contains(part)).collect();
        if self.me.device.begun {
            out.put(Effect::Fact(Fact::Stayed { client: self.number, missed }.into()));
        }
        self.me.device.stays = false;
        self.open_live(now, out);
        self.keep();
    }

    /// Takes what Notify has; the partitions of which something is new.
    fn hear_notify(&mut self) -> BTreeSet<PartitionId> {
        let netid = self.op(0).netid;
        let device = &mut self.me.device;
        let mut news = BTreeSet::new();
        for (object, position) in self.around.notify.told(netid, &device.listens) {
            if device.versions.insert(object, position) != Some(position) {
                news.insert(object.partition);
            }
        }
        if !news.is_empty() {
            (device.stale, device.told) = (true, true);
        }
        news
    }

    pub(super) fn wake_device(&mut self, now: Now, out: &mut Out) {
        if !self.is_device() || now.mono < self.me.device.look {
            return;
        }
        let wait = Duration::from_millis(self.rng.between(LOOKS.0, LOOKS.1));
        self.me.device.look = now.mono + wait;
        if self.me.device.stays {
            return;
        }
        self.hear_notify();
        let Device { away, stale, .. } = self.me.device;
        match away {
            false if !self.calm && self.rng.one_in(LEAVES) => self.leave(now, out),
            true if stale || !self.calm && self.rng.one_in(RETURNS) => self.open_live(now, out),
            _ => {}
        }
    }

    /// What it knows while it is away, and what there is: none if it was told that there may be more.
    pub(super) fn compared_away(&mut self, fresh: Rows) -> Option<Fact> {
        self.hear_notify();
        let (client, knows) = (self.number, self.me.live.rows.clone());
        (!self.me.device.stale).then_some(Fact::Away { client, knows, fresh })
    }
}
