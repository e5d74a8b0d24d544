//! Aimed faults: each strikes at the moment at which a rule of placement is needed.
//!
//! Random faults meet such moments rarely: a repeated message is mostly harmless, and what an owner out of reach holds
//! mostly waits for that owner. The director tells one story after the other in an otherwise quiet world, in which
//! managers' clocks are fast and owners' clocks slow; which story, and about whom, is drawn from the seed.

use super::Run;
use super::fact::KEYS;
use super::gaps::unclaimed_for;
use super::operator;
use super::town::Actor;
use crate::invariants::Violation;
use crate::kernel::HostId;
use crate::network::CutId;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::Seeded;
use tidings_placement::mutant::Mutant;
use tidings_placement::owner::Input;

/// The claim about addresses that owners change.
pub const ADDRESSES: &str = "addresses_are_told";

/// How often a story that waits for something looks whether it has come.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// A story that waits for longer than this in vain is over.
const PATIENCE: Duration = Duration::from_secs(40);
/// What was asked of a leader is in the cell by then.
const COMMITTED: Duration = Duration::from_millis(400);
/// A whole table has moved by then, eight ranges at a time.
const MOVED: Duration = Duration::from_secs(10);
/// A lookup whose answer was lost asks again by then.
const ASKED_AGAIN: Duration = Duration::from_secs(36);
/// Every lookup knows an owner's new address by then: a round trip, a commit and a push, and far less than a held poll.
const TOLD: Duration = Duration::from_secs(5);

/// What is told. The first four begin with an owner that has just been given everything it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Story {
    /// ρ: it is out of reach and is to leave. Its clock is slow, the manager's fast.
    SlowClock,
    /// F5: the same, and what it said before it held anything arrives again.
    OldWords,
    /// F2: the same, at the next leader.
    OldWordsToTheNext,
    /// F7: a lookup was away while the owner's earlier process died, and while everything then moves cleanly.
    LookupAway,
    /// F1: the leader is cut off together with one owner, to which it is the leader still.
    AloneTogether,
    /// F4: the next leader hears an owner's twin first.
    Twin,
    /// P2: an owner dies and stays away until all that it held must be another's.
    Dead,
    /// F11: a host sleeps, an owner's or the leader's. Its process does not run, its timers stand, and time passes.
    Suspend,
    /// An owner is to be found elsewhere from now on, and keeps all that it holds.
    NewAddress,
}

const STORIES: [Story; 9] = [
    Story::SlowClock,
    Story::OldWords,
    Story::OldWordsToTheNext,
    Story::LookupAway,
    Story::AloneTogether,
    Story::Twin,
    Story::Dead,
    Story::Suspend,
    Story::NewAddress,
];

impl Story {
    fn name(self) -> &'static str {
        match self {
            Story::SlowClock => "slow_clock",
            Story::OldWords => "old_words",
            Story::OldWordsToTheNext => "old_words_to_the_next",
            Story::LookupAway => "lookup_away",
            Story::AloneTogether => "alone_together",
            Story::Twin => "twin",
            Story::Dead => "dead",
            Story::Suspend => "suspend",
            Story::NewAddress => "new_address",
        }
    }
}

/// All names of stories.
pub fn stories() -> impl Iterator<Item = &'static str> {
    STORIES.into_iter().map(Story::name)
}

/// How far a story has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// Nothing is wrong.
    Rest,
    /// The owner's process has ended; it is started.
    Starting(Story, HostId),
    /// It is given what it holds.
    Beginning(Story, HostId),
    /// It is to leave, and that is being committed.
    Leaving(Story, HostId),
    /// It holds everything for good, and is to leave.
    Settled(HostId),
    /// This leader has lost the cell; another one is to lead.
    Deposing(Story, HostId, HostId),
    /// It is dead, and comes back at the next cue.
    Dead(HostId),
    /// It has another address, which lookups are to learn.
    Readdressed(HostId),
    /// The next cue ends it.
    Over,
}

/// Whose faults strike in `placement-directed`.
pub struct Director {
    rng: Seeded,
    scene: Scene,
    cuts: Vec<CutId>,
    waited: Duration,
    /// Who is to leave.
    leaves: Option<String>,
    /// The faults are over.
    over: bool,
    counts: BTreeMap<&'static str, u64>,
    /// How many addresses were changed, and how many hints were then right in time.
    addresses: u64,
    told: u64,
}

impl Director {
    /// A director whose choices the generator decides.
    pub fn new(rng: &Seeded) -> Director {
        Director {
            rng: rng.fork("director"),
            scene: Scene::Rest,
            cuts: Vec::new(),
            waited: Duration::ZERO,
            leaves: None,
            over: false,
            counts: BTreeMap::new(),
            addresses: 0,
            told: 0,
        }
    }

    /// How many hints named an owner's new address in time.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// How often each story was told.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    fn now(&mut self, scene: Scene) {
        (self.scene, self.waited) = (scene, Duration::ZERO);
    }

    /// Waits a little longer, unless it is in vain.
    fn wait(&mut self) -> Duration {
        self.waited += LOOK_AGAIN;
        if self.waited > PATIENCE {
            self.now(Scene::Over);
        }
        LOOK_AGAIN
    }
}

impl Run {
    /// It is the director's turn; says when it is next, if it is again.
    pub(super) fn cue(&mut self) -> Result<Option<Duration>, Violation> {
        let Some(mut director) = self.director.take() else { return Ok(None) };
        let wait = (!director.over).then(|| self.go_on(&mut director)).transpose();
        self.director = Some(director);
        wait
    }

    /// The faults are over, and whoever was to leave stays.
    pub(super) fn curtain(&mut self) {
        if let Some(mut director) = self.director.take() {
            director.over = true;
            self.end_story(&mut director);
            self.director = Some(director);
        }
    }

    fn go_on(&mut self, director: &mut Director) -> Result<Duration, Violation> {
        Ok(match director.scene {
            Scene::Rest => self.begin_story(director),
            Scene::Starting(story, owner) => {
                director.now(Scene::Beginning(story, owner));
                // Nothing here can fail to start; if it did, nothing would be held, and the end would notice.
                drop(self.stage.world.start(owner, &mut self.stage.town));
                LOOK_AGAIN
            }
            Scene::Beginning(story, owner) if self.holds(owner) => self.given(director, story, owner),
            Scene::Beginning(..) => director.wait(),
            Scene::Leaving(Story::OldWordsToTheNext, owner) => self.depose(director, Story::OldWordsToTheNext, owner),
            Scene::Leaving(story, owner) => {
                if let Some(leader) = self.leader().filter(|_| story == Story::OldWords) {
                    self.repeat(owner, leader);
                }
                self.end_after(director, self.stage.town.times.honoured() + Duration::from_secs(3))
            }
            Scene::Settled(owner) => {
                self.leave(director, owner);
                self.end_after(director, MOVED)
            }
            Scene::Deposing(story, owner, old) => match self.leader_but(Some(old)) {
                Some(leader) => {
                    if story == Story::OldWordsToTheNext {
                        self.repeat(owner, leader);
                    }
                    self.end_after(director, self.stage.town.times.lease)
                }
                None => director.wait(),
            },
            Scene::Dead(owner) => {
                drop(self.stage.world.start(owner, &mut self.stage.town));
                self.end_after(director, COMMITTED)
            }
            Scene::Readdressed(owner) => self.learn(director, owner)?,
            Scene::Over => self.end_story(director),
        })
    }

    fn begin_story(&mut self, director: &mut Director) -> Duration {
        let Some(leader) = self.leader() else { return LOOK_AGAIN };
        let Some(story) = director.rng.pick(&STORIES).copied() else { return LOOK_AGAIN };
        let hosts = self.stage.town.owners.keys().copied();
        let (twins, others): (Vec<HostId>, Vec<HostId>) = hosts.partition(|host| self.stage.town.owners[host].twin);
        let Some(owner) = director.rng.pick(&others).copied() else { return LOOK_AGAIN };
        *director.counts.entry(story.name()).or_default() += 1;
        self.stage.world.note_fault(owner, story.name());
        match story {
            Story::SlowClock | Story::OldWords | Story::OldWordsToTheNext | Story::LookupAway => {
                if story == Story::LookupAway {
                    let clients = self.stage.town.clients.clone();
                    self.cut_from_managers(director, &clients[..1]);
                }
                self.stage.world.kill(owner);
                director.now(Scene::Starting(story, owner));
                COMMITTED
            }
            Story::AloneTogether => {
                let everybody = self
                    .stage
                    .town
                    .managers
                    .iter()
                    .chain(self.stage.town.owners.keys())
                    .chain(&self.stage.town.clients);
                let everybody = everybody.chain([&self.stage.town.cell]).copied();
                let others: Vec<HostId> = everybody.filter(|host| *host != leader && *host != owner).collect();
                self.cut(director, &[leader, owner], &others);
                // The next leader leads after a session, and then waits for a lease.
                self.end_after(director, self.stage.town.times.honoured() + Duration::from_secs(12))
            }
            Story::Dead => {
                self.stage.world.kill(owner);
                director.now(Scene::Dead(owner));
                unclaimed_for(self.stage.town.times) + Duration::from_secs(4)
            }
            Story::Suspend => {
                let sleeper = if director.rng.one_in(3) { leader } else { owner };
                let lease = self.stage.town.times.lease.as_millis() as u64;
                let time = Duration::from_millis(director.rng.between(lease / 2, lease * 3));
                let clock_stops = self.stage.town.mutant == Some(Mutant::ClockStops);
                self.stage.world.suspend(sleeper, time, clock_stops);
                self.end_after(director, time + COMMITTED)
            }
            Story::NewAddress => {
                director.addresses += 1;
                self.tell_owner(owner, Input::Address(format!("{owner}:{}", 1 + director.addresses)));
                director.now(Scene::Readdressed(owner));
                LOOK_AGAIN
            }
            Story::Twin => match twins.into_iter().find(|twin| self.holds(*twin)) {
                Some(twin) => {
                    self.cut_from_managers(director, &[twin]);
                    self.depose(director, story, twin)
                }
                None => LOOK_AGAIN,
            },
        }
    }

    /// An owner has just been given what it holds.
    fn given(&mut self, director: &mut Director, story: Story, owner: HostId) -> Duration {
        if story == Story::LookupAway {
            director.now(Scene::Settled(owner));
            return Duration::from_secs(4);
        }
        // What it holds is claimed in its next words, which are under way.
        if director.waited < 3 * LOOK_AGAIN {
            return director.wait();
        }
        self.cut_from_managers(director, &[owner]);
        self.leave(director, owner);
        director.now(Scene::Leaving(story, owner));
        COMMITTED
    }

    /// Lookups learn where an owner is now.
    fn learn(&mut self, director: &mut Director, owner: HostId) -> Result<Duration, Violation> {
        let theirs = |key: &u64| self.believers(*key).iter().any(|(host, _)| *host == owner);
        let keys: Vec<u64> = (0..KEYS).filter(theirs).collect();
        let wrong = keys.iter().find_map(|key| self.wrong_hint(*key));
        match wrong {
            Some(what) if director.waited > TOLD => Err(Violation::new(ADDRESSES, what)),
            Some(_) => Ok(director.wait()),
            None => {
                director.told += (keys.len() * self.stage.town.clients.len()) as u64;
                Ok(self.end_after(director, COMMITTED))
            }
        }
    }

    /// The leader loses the cell, and so the lock.
    fn depose(&mut self, director: &mut Director, story: Story, owner: HostId) -> Duration {
        let Some(leader) = self.leader() else { return director.wait() };
        let cell = self.stage.town.cell;
        self.cut(director, &[leader], &[cell]);
        director.now(Scene::Deposing(story, owner, leader));
        LOOK_AGAIN
    }

    /// What an owner said when it held nothing arrives again.
    fn repeat(&mut self, owner: HostId, leader: HostId) {
        let managers = self.stage.town.managers.clone();
        let heard = managers.iter().find_map(|manager| match self.stage.world.process(*manager) {
            Some(Actor::Manager(manager)) => manager.claimless(owner),
            _ => None,
        });
        for letter in heard.unwrap_or_default() {
            self.stage.world.poke(leader, |actor, now, out| {
                if let Actor::Manager(manager) = actor {
                    manager.receive(now, owner, &letter, out);
                }
            });
        }
    }

    fn leave(&mut self, director: &mut Director, owner: HostId) {
        let name = self.stage.town.owners.get(&owner).map(|habits| habits.id.clone()).unwrap_or_default();
        self.drain(name.clone(), false);
        director.leaves = Some(name);
    }

    fn end_after(&mut self, director: &mut Director, time: Duration) -> Duration {
        director.now(Scene::Over);
        time
    }

    /// Everything heals, and whoever was to leave stays.
    fn end_story(&mut self, director: &mut Director) -> Duration {
        director.cuts.drain(..).for_each(|cut| self.stage.world.network.heal(cut));
        if self.leader().is_none() {
            return LOOK_AGAIN;
        }
        if let Some(owner) = director.leaves.take() {
            self.drain(owner, true);
        }
        director.now(Scene::Rest);
        ASKED_AGAIN
    }

    /// Who leads.
    fn leader(&self) -> Option<HostId> {
        self.leader_but(None)
    }

    /// Who leads but this one.
    fn leader_but(&self, not: Option<HostId>) -> Option<HostId> {
        operator::leader(&self.stage.world, &self.stage.town.managers, not)
    }

    fn holds(&self, owner: HostId) -> bool {
        self.owner(owner).is_some_and(|(owner, now)| !owner.checks().held(now).is_empty())
    }

    fn cut_from_managers(&mut self, director: &mut Director, hosts: &[HostId]) {
        let managers = self.stage.town.managers.clone();
        self.cut(director, hosts, &managers);
    }

    fn cut(&mut self, director: &mut Director, left: &[HostId], right: &[HostId]) {
        let pairs = left.iter().flat_map(|from| right.iter().flat_map(move |to| [(*from, *to), (*to, *from)]));
        director.cuts.push(self.stage.world.network.cut(pairs.collect()));
    }
}
