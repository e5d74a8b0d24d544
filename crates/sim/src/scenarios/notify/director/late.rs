//! Stories of what comes too late, or whose only witness dies.

use super::{DONE, Director, LOOK_AGAIN, ONE_BY_ONE};
use crate::invariants::Violation;
use crate::scenarios::notify::Run;
use crate::scenarios::notify::fact::OBJECTS;
use crate::scenarios::notify::shared::APP;
use crate::scenarios::notify::town::Actor;
use std::time::Duration;
use tidings_base::KeyHash;
use tidings_notify::names::object_hash;
use tidings_notify::rows::MATCHER;
use tidings_notify::sweep::Sweep;
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
const KEEP: Duration = Duration::from_secs(60);

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
        let (device, server) = (director.device, self.stage.town.neighbours.servers[0]);
        Ok(match step {
            0 => {
                let Some(owner) = self.owner_of(place(director)) else { return Ok(director.end(LOOK_AGAIN)) };
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
                self.sweep();
                director.on(SENT / 10)
            }
            4 => director.on(LATE_WRITE + DONE),
            _ => match self.zombies() {
                Some(what) if director.waited > SETTLED => {
                    return Err(Violation::new("copies_are_of_registrations", what));
                }
                Some(_) => director.wait(),
                None => director.end(LOOK_AGAIN),
            },
        })
    }

    /// Whether the matcher of the story's object reads who has registered it, and has nothing of it to write.
    fn is_paging(&self, director: &Director) -> bool {
        let (node, place) = (director.node, place(director));
        let scans =
            matches!(self.stage.world.process(node), Some(Actor::Node(node)) if node.is_scanning(MATCHER, place));
        scans && !self.is_writing(node, MATCHER, place)
    }

    /// F10: whoever leads the store looks for old tombstones.
    pub(super) fn sweep(&mut self) {
        let (server, mutant) = (self.stage.town.neighbours.servers[0], self.stage.town.nodes.mutant);
        self.stage.world.poke(server, |actor, now, out| {
            let Actor::Store(server) = actor else { return };
            let mut sweep = Sweep::new(now.wall, KEEP, mutant);
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
