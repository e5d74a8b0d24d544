//! Stories of what comes too late, or whose only witness dies.

use super::{DONE, Director, LOOK_AGAIN, ONE_BY_ONE, SPREAD};
use crate::invariants::Violation;
use crate::scenarios::notify::Run;
use crate::scenarios::notify::fact::OBJECTS;
use crate::scenarios::notify::shared::APP;
use crate::scenarios::notify::town::Actor;
use bytes::Bytes;
use std::time::Duration;
use tidings_base::KeyHash;
use tidings_notify::mutant::Mutant;
use tidings_notify::names::object_hash;
use tidings_notify::rows::{GROUPS, MATCHER};
use tidings_store::sweep::Sweep;
use tidings_wire::v1::{self, store_command::Command};

/// A publication that takes so long to reach the feed arrives behind a wipe.
const STRAGGLES: Duration = Duration::from_secs(12);
/// How late the store's answers are: a write and a page before a bridge loses its patience (F11).
const LATE_ANSWER: Duration = Duration::from_millis(100);
/// How late a write is: nobody gives it up before.
const LATE_WRITE: Duration = Duration::from_secs(2);
/// What was sent and not lost has been acknowledged.
const SENT: Duration = Duration::from_secs(1);
/// Copies and registrations are the same by then.
const SETTLED: Duration = Duration::from_secs(10);
/// For how long tombstones live here: no write is so late.
pub(super) const KEEP: Duration = Duration::from_secs(60);

/// The step behind those of [`Run::copy_late`].
const AFTER_LATE_COPY: u32 = 5;

impl Run {
    pub(super) fn straggler(&mut self, director: &mut Director, step: u32) -> Duration {
        let (backend, server) = (self.stage.town.backend, self.stage.town.neighbours.servers[0]);
        match step {
            0 => {
                self.stage.world.network.hold_up(backend, server, STRAGGLES);
                self.with_backend(|backend, now, out| {
                    let publication = backend.version(director.object);
                    backend.announce_once(now, publication, out);
                });
                self.stage.world.network.hold_up(backend, server, Duration::ZERO);
                // A later one is acknowledged, and lost.
                self.announce(director.object);
                director.on(DONE)
            }
            1 => {
                self.wipe();
                director.on(STRAGGLES + DONE)
            }
            2 => {
                // Whoever was known before the loss is told that everything is unknown: this one begins with nothing.
                self.stage.town.shared.install(director.device);
                self.begin_anew(director.device);
                director.on(DONE)
            }
            _ => {
                self.intend(director.device, director.name(), true);
                director.end(DONE)
            }
        }
    }

    pub(super) fn late_page(&mut self, director: &mut Director, step: u32) -> Result<Duration, Violation> {
        let (device, server) = (director.device, self.stage.town.neighbours.servers[0]);
        Ok(match step {
            0 => {
                // One that no matcher remembers, since there has never been any such.
                director.object = OBJECTS + director.counts.values().sum::<u64>();
                let Some(owner) = self.owner_of(place(director)) else { return Ok(director.end(LOOK_AGAIN)) };
                director.node = owner;
                self.stage.world.network.hold_up(server, owner, LATE_ANSWER);
                self.announce(director.object);
                director.on(LOOK_AGAIN)
            }
            1 if !self.is_writing(director.node, MATCHER, place(director)) => director.wait(),
            1 => director.on(LOOK_AGAIN),
            2 if !self.is_paging(director) => director.wait(),
            // The page has left the store by then.
            2 => director.on(ONE_BY_ONE),
            3 => {
                self.stage.world.network.hold_up(server, director.node, Duration::ZERO);
                self.intend(device, director.name(), true);
                director.on(DONE)
            }
            4 => {
                self.announce(director.object);
                director.on(DONE)
            }
            _ => {
                self.claims.conclude()?;
                self.intend(device, director.name(), false);
                director.end(DONE)
            }
        })
    }

    pub(super) fn witness(&mut self, director: &mut Director, step: u32) -> Duration {
        match step {
            0 => {
                let nodes = self.stage.town.neighbours.nodes.iter();
                self.stage.world.network.cut(nodes.map(|node| (*node, director.device)).collect());
                self.announce(director.object);
                director.on(SENT)
            }
            _ => {
                if let Some(registrar) = self.owner_of(director.place()) {
                    self.stage.world.kill(registrar);
                }
                director.end(LOOK_AGAIN)
            }
        }
    }

    pub(super) fn late_copy(&mut self, director: &mut Director, step: u32) -> Result<Duration, Violation> {
        match step {
            0..AFTER_LATE_COPY => Ok(self.copy_late(director, step, KEEP)),
            _ => self.copies_settle(director),
        }
    }

    pub(super) fn clock_ahead(&mut self, director: &mut Director, step: u32) -> Result<Duration, Violation> {
        match step {
            0..AFTER_LATE_COPY => Ok(self.copy_late(director, step, Duration::ZERO)),
            AFTER_LATE_COPY => {
                // Whoever is told in vain says so.
                self.announce(director.object);
                Ok(director.on(DONE))
            }
            _ => self.copies_settle(director),
        }
    }

    /// A matcher's write of a registration comes behind the end of that registration and two looks for old tombstones, which
    /// live for so long.
    fn copy_late(&mut self, director: &mut Director, step: u32, keep: Duration) -> Duration {
        let (device, server) = (director.device, self.stage.town.neighbours.servers[0]);
        match step {
            0 => {
                let Some(owner) = self.owner_of(place(director)) else { return director.end(LOOK_AGAIN) };
                director.node = owner;
                self.stage.world.network.hold_up(owner, server, LATE_WRITE);
                self.intend(device, director.name(), true);
                director.on(LOOK_AGAIN)
            }
            1 if !self.is_writing(director.node, MATCHER, place(director)) => director.wait(),
            1 => {
                self.stage.world.network.hold_up(director.node, server, Duration::ZERO);
                self.intend(device, director.name(), false);
                director.on(SENT / 2)
            }
            2 | 3 => {
                self.sweep(keep);
                director.on(SENT / 10)
            }
            _ => director.on(LATE_WRITE + DONE),
        }
    }

    /// Matchers have copies of registrations and of nothing else, in a while.
    fn copies_settle(&mut self, director: &mut Director) -> Result<Duration, Violation> {
        match self.zombies() {
            Some(what) if director.waited > SETTLED => Err(Violation::new("copies_are_of_registrations", what)),
            Some(_) => Ok(director.wait()),
            None => Ok(director.end(LOOK_AGAIN)),
        }
    }

    pub(super) fn lost_end(&mut self, director: &mut Director, step: u32) -> Duration {
        let device = director.device;
        match step {
            0 => {
                if !self.fail_registrar(director) {
                    return director.end(LOOK_AGAIN);
                }
                self.intend(device, director.name(), false);
                director.on(SPREAD)
            }
            1 => {
                if let Some(registrar) = self.owner_of(director.place()) {
                    self.stage.world.kill(registrar);
                }
                // Whoever begins again says what it wants by its digest alone.
                self.intend(device, director.name(), true);
                self.stage.world.kill(device);
                director.on(LOOK_AGAIN)
            }
            2 => {
                self.stage.town.shared.fail_rows([]);
                self.start(device);
                director.on(LOOK_AGAIN)
            }
            3 if self.owner_of(director.place()).is_none() => director.wait(),
            3 => director.on(DONE * 3),
            _ => {
                self.announce(director.object);
                director.end(DONE)
            }
        }
    }

    pub(super) fn absent(&mut self, director: &mut Director, step: u32) -> Duration {
        let device = director.device;
        match step {
            0 => self.leave_before_news(director),
            1 => {
                self.wipe();
                director.on(LOOK_AGAIN)
            }
            2 if !self.have_returned(director) => director.wait(),
            2 => {
                if let Some(earlier) = director.held_back.take() {
                    self.with_backend(|backend, now, out| backend.announce(now, earlier, out));
                }
                director.on(DONE)
            }
            3 => {
                self.with_device(device, |device, _, _| device.come_back());
                director.on(DONE)
            }
            _ => director.end(DONE),
        }
    }

    /// Whether the matcher of the story's object reads who has registered it, and has nothing of it to write.
    fn is_paging(&self, director: &Director) -> bool {
        let (node, place) = (director.node, place(director));
        let scans =
            matches!(self.stage.world.process(node), Some(Actor::Node(node)) if node.is_scanning(MATCHER, place));
        scans && !self.is_writing(node, MATCHER, place)
    }

    /// F10: whoever leads the store looks for old tombstones.
    pub(super) fn sweep(&mut self, keep: Duration) {
        let server = self.stage.town.neighbours.servers[0];
        let forgotten = self.stage.town.nodes.mutant == Some(Mutant::TombstonesForgotten);
        let keep = if forgotten { Duration::ZERO } else { keep };
        self.stage.world.poke(server, |actor, now, out| {
            let Actor::Store(server) = actor else { return };
            let mut sweep = Sweep::new(now.wall, keep, GROUPS.map(Bytes::from_static));
            while let Some(step) = sweep.step() {
                server.operate(now, Command::StoreCollect(step), out);
                // So few cells are one step a group.
                sweep.done(v1::StoreCollected::default());
            }
        });
    }
}

/// Where the story's object stands on the ring.
fn place(director: &Director) -> KeyHash {
    object_hash(APP, &director.name())
}
