//! Aimed trouble: each story brings about the moment at which a rule of Notify is needed.
//!
//! Random trouble meets such moments rarely, and what came of them is mostly hidden by the next version of the object. The
//! director tells its stories one after the other in an otherwise quiet world: every object gets a version, the story
//! happens, everything heals, and then everybody must have learned everything before the next one begins. Their order,
//! and about whom they are, is drawn from the seed.

mod late;

use super::fact::{Fact, OBJECTS, Publication, object};
use super::shared::{APP, caller};
use super::town::Actor;
use super::{CONVERGENCE, Run};
use crate::disk::DiskPace;
use crate::invariants::Violation;
use crate::kernel::HostId;
use crate::network::Weather;
use crate::scenarios::stage::Play as _;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{KeyHash, Seeded};
use tidings_notify::names::{client_hash, object_hash};
use tidings_notify::rows::{MATCHER, REGISTRAR};

/// How often a story that waits for something looks whether it has come.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// A story that waits for longer than this in vain is over.
const PATIENCE: Duration = Duration::from_secs(30);
/// What was said has arrived, is stored and answered.
const DONE: Duration = Duration::from_secs(3);
/// How often the world is looked at until it is at rest, and for how long.
const REST: Duration = Duration::from_secs(1);
const REST_WITHIN: Duration = Duration::from_secs(120);
/// Lines and a disk so slow that what is on its way to be written is overtaken by what is read, and so quick that no
/// bridge loses its patience (F11).
const SLOW_LINES: Weather =
    Weather { delay: Duration::from_millis(2), jitter: Duration::from_millis(20), ..Weather::CALM };
const SLOWISH: DiskPace = DiskPace { least: Duration::from_millis(100), ..SLOW };
/// How long after each other devices register.
const ONE_BY_ONE: Duration = Duration::from_millis(12);
/// What is said to a device is lost for so long: its channel lives.
const DEAF: Duration = Duration::from_secs(3);
/// A disk so slow that a range moves while something is being written. Matchers ask again after 2 s.
const SLOW: DiskPace =
    DiskPace { least: Duration::from_millis(1_800), spread: Duration::ZERO, stalls: 0, stall: Duration::ZERO };
/// What a registrar does not have to wait for has reached matchers, and is stored.
const SPREAD: Duration = Duration::from_millis(200);
/// How late a busy process hears that its ranges are gone. What came of it is judged before they move again, within a
/// lease: whoever reads a row again finds what was missed.
const BUSY: Duration = Duration::from_secs(12);
/// How long a dawdling application takes to fetch.
const DAWDLES: Duration = Duration::from_secs(60);
/// How far ahead somebody boasts: further than versions get in a run.
const AHEAD: u64 = 1 << 20;

/// What is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Story {
    /// F6: an object is registered while its next version is being written, by a slow disk over slow lines.
    SlowLines,
    /// F1: a registrar's write is under way while its range moves, and its client comes back to the next owner before
    /// that is stable. The old owner hears late that it is one no more.
    LateWord,
    /// What is sent to a device is lost, and its channel does not break: it must be sent again.
    Deaf,
    /// F4: after a loss a version arrives that is older than one from before it, and is acknowledged; the application ends
    /// while it fetches what it was told is unknown.
    Unknown,
    /// F6: a matcher has heard of a registration that its registrar could not store, of a client that never returns.
    Zombie,
    /// F8: tokens that are not the presenter's.
    Forger,
    /// F8: a device begins with a copy of the storage of another, which is offline and then returns.
    Clone,
    /// F9: an application acknowledges what it was never told.
    Boaster,
    /// F3: a publication reaches the feed only after a loss; a later one was acknowledged before it, and is lost. Then
    /// somebody registers.
    Straggler,
    /// F6: somebody registers while a matcher waits for the page of those who have.
    LatePage,
    /// F9: what is sent to a device is lost, and its registrar, which knows that it was not acknowledged, dies.
    Witness,
    /// F10: a matcher's write of a registration is late, and comes when the end of that registration is stored and was seen
    /// by those who look for what may be forgotten.
    LateCopy,
    /// F6: the same, but the clock of whoever looks is so far ahead that the end is forgotten: a matcher has a copy of a
    /// registration that nobody has, until the next version is told in vain.
    ClockAhead,
    /// F5: a registrar cannot store the end of a registration, and dies. Its client comes back and wants the object after all,
    /// which is what the next registrar reads: nobody has anything to say.
    LostEnd,
    /// F3: somebody is away while a version that it has not heard of is lost with everything else. When it is back, an earlier
    /// one has been published since.
    Absent,
}

const STORIES: [Story; 15] = [
    Story::SlowLines,
    Story::LateWord,
    Story::Deaf,
    Story::Unknown,
    Story::Zombie,
    Story::Forger,
    Story::Clone,
    Story::Boaster,
    Story::Straggler,
    Story::LatePage,
    Story::Witness,
    Story::LateCopy,
    Story::ClockAhead,
    Story::LostEnd,
    Story::Absent,
];

impl Story {
    fn name(self) -> &'static str {
        match self {
            Story::SlowLines => "slow_lines",
            Story::LateWord => "late_word",
            Story::Deaf => "deaf",
            Story::Unknown => "unknown",
            Story::Zombie => "zombie",
            Story::Forger => "forger",
            Story::Clone => "clone",
            Story::Boaster => "boaster",
            Story::Straggler => "straggler",
            Story::LatePage => "late_page",
            Story::Witness => "witness",
            Story::LateCopy => "late_copy",
            Story::ClockAhead => "clock_ahead",
            Story::LostEnd => "lost_end",
            Story::Absent => "absent",
        }
    }
}

/// All names of stories.
pub fn stories() -> impl Iterator<Item = &'static str> {
    STORIES.into_iter().map(Story::name)
}

/// Where the director is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// The world comes to rest; then every object gets a version.
    Resting,
    /// Everybody has had time to learn everything, which is judged; then a story begins.
    Judging,
    /// A story, and how far it has come.
    Telling(Story, u32),
}

/// Whose trouble strikes in `notify-directed`.
pub struct Director {
    rng: Seeded,
    scene: Scene,
    /// Stories of this round that are still to be told.
    next: Vec<Story>,
    waited: Duration,
    /// The story's device, object, node, and a version that was made for it.
    device: HostId,
    object: u64,
    node: HostId,
    held_back: Option<Publication>,
    /// What was seen since the scene began.
    lately: Vec<Fact>,
    /// The trouble is over.
    over: bool,
    counts: BTreeMap<&'static str, u64>,
}

impl Director {
    /// A director whose choices the generator decides.
    pub fn new(rng: &Seeded) -> Director {
        Director {
            rng: rng.fork("director"),
            scene: Scene::Resting,
            next: Vec::new(),
            waited: Duration::ZERO,
            device: HostId::default(),
            object: 0,
            node: HostId::default(),
            held_back: None,
            lately: Vec::new(),
            over: false,
            counts: BTreeMap::new(),
        }
    }

    /// How often each story was told.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// Looks at what happens.
    pub fn observe(&mut self, fact: &Fact) {
        if matches!(self.scene, Scene::Telling(..)) {
            self.lately.push(fact.clone());
        }
    }

    fn now(&mut self, scene: Scene) {
        (self.scene, self.waited) = (scene, Duration::ZERO);
        self.lately.clear();
    }

    /// The story goes on after this time.
    fn on(&mut self, wait: Duration) -> Duration {
        if let Scene::Telling(story, step) = self.scene {
            self.now(Scene::Telling(story, step + 1));
        }
        wait
    }

    /// The story ends after this time.
    fn end(&mut self, wait: Duration) -> Duration {
        if let Scene::Telling(story, _) = self.scene {
            self.now(Scene::Telling(story, u32::MAX));
        }
        wait
    }

    /// Waits a little longer, unless it is in vain.
    fn wait(&mut self) -> Duration {
        self.waited += LOOK_AGAIN;
        if self.waited > PATIENCE { self.end(LOOK_AGAIN) } else { LOOK_AGAIN }
    }

    fn name(&self) -> Bytes {
        object(self.object)
    }

    /// Where the device's client stands on the ring.
    fn place(&self) -> KeyHash {
        let caller = caller(self.device);
        client_hash(&caller.app, &caller.principal)
    }

    fn draw_story(&mut self) -> Story {
        if self.next.is_empty() {
            self.next = STORIES.to_vec();
        }
        let at = self.rng.below(self.next.len() as u64) as usize;
        self.next.swap_remove(at)
    }
}

impl Run {
    /// It is the director's turn; says when it is next, if it is again.
    pub(super) fn cue(&mut self) -> Result<Option<Duration>, Violation> {
        let Some(mut director) = self.director.take() else { return Ok(None) };
        let wait = if director.over { Ok(None) } else { self.go_on(&mut director).map(Some) };
        self.director = Some(director);
        wait
    }

    /// The trouble is over; a story that is not is ended.
    pub(super) fn curtain(&mut self) {
        if let Some(mut director) = self.director.take() {
            director.over = true;
            if matches!(director.scene, Scene::Telling(Story::Unknown, _)) {
                // It may be fetching for longer than anybody waits.
                self.stage.world.kill(director.device);
            }
            self.end_story(&mut director);
            self.director = Some(director);
        }
    }

    fn go_on(&mut self, director: &mut Director) -> Result<Duration, Violation> {
        Ok(match director.scene {
            Scene::Resting => {
                let unsettled = self.unsettled().map(|what| ("registrations_follow_intent", what));
                let copies = || self.zombies().map(|what| ("copies_are_of_registrations", what));
                match unsettled.or_else(copies) {
                    Some((claim, what)) if director.waited > REST_WITHIN => return Err(Violation::new(claim, what)),
                    Some(_) => {
                        director.waited += REST;
                        REST
                    }
                    None => {
                        director.now(Scene::Judging);
                        CONVERGENCE
                    }
                }
            }
            Scene::Judging => {
                self.claims.conclude()?;
                self.begin_story(director);
                DONE
            }
            Scene::Telling(_, u32::MAX) => {
                self.end_story(director);
                director.now(Scene::Resting);
                REST
            }
            Scene::Telling(story, step) => match story {
                Story::SlowLines => self.slow_lines(director, step),
                Story::LateWord => self.late_word(director, step)?,
                Story::Deaf => self.deaf(director, step),
                Story::Unknown => self.unknown(director, step),
                Story::Zombie => self.zombie(director, step),
                Story::Forger => self.forger(director, step),
                Story::Clone => self.cloned_storage(director, step),
                Story::Boaster => self.boaster(director, step),
                Story::Straggler => self.straggler(director, step),
                Story::LatePage => self.late_page(director, step)?,
                Story::Witness => self.witness(director, step),
                Story::LateCopy => self.late_copy(director, step)?,
                Story::ClockAhead => self.clock_ahead(director, step)?,
                Story::LostEnd => self.lost_end(director, step),
                Story::Absent => self.absent(director, step),
            },
        })
    }

    /// Every object gets a version, and somebody is drawn.
    fn begin_story(&mut self, director: &mut Director) {
        let story = director.draw_story();
        director.now(Scene::Telling(story, 0));
        director.device = director.rng.pick(&self.stage.town.devices).copied().unwrap_or_default();
        director.object = director.rng.below(OBJECTS);
        let device = director.device;
        *director.counts.entry(story.name()).or_default() += 1;
        self.stage.world.note_fault(device, story.name());
        // Does the story need somebody who wants the object, or somebody who does not?
        let wants = matches!(
            story,
            Story::LateWord
                | Story::Deaf
                | Story::Unknown
                | Story::Forger
                | Story::Clone
                | Story::Boaster
                | Story::Witness
                | Story::LostEnd
                | Story::Absent
        );
        if self.stage.town.shared.intends(device, &director.name()) != wants {
            self.intend(device, director.name(), wants);
        }
        self.with_backend(|backend, now, out| backend.last_round(now, out));
        self.sweep(late::KEEP);
    }

    /// Everything heals, and everybody is there again.
    fn end_story(&mut self, director: &mut Director) {
        let town = &self.stage.town;
        let (nodes, devices) = (town.neighbours.nodes.clone(), town.devices.clone());
        town.shared.fail_rows([]);
        self.stage.world.set_pace(town.neighbours.servers[0], DiskPace::default());
        self.stage.world.network.set_weather(Weather::CALM);
        self.stage.world.network.heal_all();
        // The store comes back by itself.
        nodes.iter().chain(&devices).for_each(|host| self.start(*host));
        devices.into_iter().for_each(|host| self.with_device(host, |device, _, _| device.come_back()));
        nodes.into_iter().for_each(|host| self.with_node(host, |node, _, _| node.be_busy(None)));
        director.held_back = None;
    }

    // ---- the stories ------------------------------------------------------------------------------------------------

    fn slow_lines(&mut self, director: &mut Director, step: u32) -> Duration {
        let devices = self.stage.town.devices.clone();
        let place = object_hash(APP, &director.name());
        match step {
            0 => {
                devices.into_iter().for_each(|device| self.intend(device, director.name(), false));
                director.on(DONE)
            }
            1 => {
                self.stage.world.network.set_weather(SLOW_LINES);
                self.set_pace(SLOWISH);
                self.announce(director.object);
                director.on(LOOK_AGAIN)
            }
            2 if !self.owner_of(place).is_some_and(|owner| self.is_writing(owner, MATCHER, place)) => director.wait(),
            2 => director.on(ONE_BY_ONE),
            step => match devices.get(step as usize - 3).copied() {
                Some(device) => {
                    self.intend(device, director.name(), true);
                    director.on(ONE_BY_ONE)
                }
                None => director.end(DONE),
            },
        }
    }

    fn deaf(&mut self, director: &mut Director, step: u32) -> Duration {
        match step {
            0 => {
                let nodes = self.stage.town.neighbours.nodes.iter();
                self.stage.world.network.cut(nodes.map(|node| (*node, director.device)).collect());
                self.announce(director.object);
                director.on(DEAF)
            }
            _ => director.end(LOOK_AGAIN),
        }
    }

    fn late_word(&mut self, director: &mut Director, step: u32) -> Result<Duration, Violation> {
        let (device, place) = (director.device, director.place());
        let matched_at = object_hash(APP, &director.name());
        Ok(match step {
            0 => {
                // If the object's matcher moved, too, its marker would bring the version again.
                let elsewhere =
                    |number: &u64| self.owner_of(object_hash(APP, &object(*number))) != self.owner_of(place);
                let Some(number) = (0..OBJECTS).find(elsewhere) else { return Ok(director.end(LOOK_AGAIN)) };
                director.object = number;
                self.intend(device, director.name(), true);
                director.on(DONE)
            }
            1 => {
                self.with_device(device, |device, now, out| device.leave(now, out));
                director.on(DONE)
            }
            2 => {
                let Some(owner) = self.owner_of(place) else { return Ok(director.wait()) };
                director.node = owner;
                self.with_node(owner, |node, _, _| node.be_busy(Some(BUSY)));
                self.set_pace(SLOWISH);
                self.announce(director.object);
                director.on(LOOK_AGAIN)
            }
            3 if !self.owner_of(matched_at).is_some_and(|owner| self.is_writing(owner, MATCHER, matched_at)) => {
                director.wait()
            }
            3 => {
                // The sync that is under way ends as it began; the next one is the registrar's.
                self.set_pace(SLOW);
                director.on(LOOK_AGAIN)
            }
            4 if !self.is_writing(director.node, REGISTRAR, place) => director.wait(),
            4 => {
                self.with_node(director.node, |node, now, out| node.drain(now, out));
                director.on(LOOK_AGAIN)
            }
            5 if self.owner_of(place).is_none_or(|owner| owner == director.node) => director.wait(),
            5 => {
                self.with_device(device, |device, _, _| device.come_back());
                self.set_pace(DiskPace::default());
                director.on(DONE * 3)
            }
            _ => {
                self.claims.conclude()?;
                director.end(BUSY)
            }
        })
    }

    /// The story's device leaves. A version of its object is made and held back; a later one is published, which it misses.
    fn leave_before_news(&mut self, director: &mut Director) -> Duration {
        self.with_device(director.device, |device, now, out| device.leave(now, out));
        self.with_backend(|backend, _, _| director.held_back = Some(backend.version(director.object)));
        self.announce(director.object);
        director.on(DONE)
    }

    fn unknown(&mut self, director: &mut Director, step: u32) -> Duration {
        let (device, name) = (director.device, director.name());
        match step {
            0 => self.leave_before_news(director),
            1 => {
                self.wipe();
                director.on(LOOK_AGAIN)
            }
            // Who registered only after the version below, and knows a later one, would hear nothing.
            2 if !self.have_returned(director) => director.wait(),
            2 => director.on(DONE),
            3 => {
                self.with_device(device, |device, _, _| {
                    device.dawdle(DAWDLES);
                    device.come_back();
                });
                director.on(LOOK_AGAIN)
            }
            4 if !director.lately.iter().any(|fact| is_fetch(fact, device, &name)) => director.wait(),
            4 => {
                if let Some(late) = director.held_back.take() {
                    self.with_backend(|backend, now, out| backend.announce(now, late, out));
                }
                director.on(LOOK_AGAIN)
            }
            5 if !director.lately.iter().any(|fact| is_handled(fact, device, &name)) => director.wait(),
            5 => director.on(DONE),
            _ => {
                self.stage.world.kill(device);
                director.end(Duration::from_millis(300))
            }
        }
    }

    fn zombie(&mut self, director: &mut Director, step: u32) -> Duration {
        let device = director.device;
        match step {
            0 => {
                if !self.fail_registrar(director) {
                    return director.end(LOOK_AGAIN);
                }
                self.intend(device, director.name(), true);
                director.on(SPREAD)
            }
            1 => {
                self.stage.town.shared.install(device);
                self.begin_anew(device);
                director.on(DONE)
            }
            _ => {
                // Whoever is told in vain says so.
                self.stage.town.shared.fail_rows([]);
                self.announce(director.object);
                director.end(DONE)
            }
        }
    }

    fn forger(&mut self, director: &mut Director, step: u32) -> Duration {
        let device = self.stage.town.devices.get(step as usize).copied();
        match device {
            Some(device) => {
                self.forge(device);
                director.on(DONE)
            }
            None => director.end(LOOK_AGAIN),
        }
    }

    fn cloned_storage(&mut self, director: &mut Director, step: u32) -> Duration {
        let device = director.device;
        match step {
            0 => {
                self.with_device(device, |device, now, out| device.leave(now, out));
                director.on(DONE)
            }
            1 => match self.copy_storage(device) {
                true => director.on(DONE),
                false => director.end(LOOK_AGAIN),
            },
            _ => {
                self.with_device(device, |device, _, _| device.come_back());
                director.end(DONE)
            }
        }
    }

    fn boaster(&mut self, director: &mut Director, step: u32) -> Duration {
        let (device, name) = (director.device, director.name());
        match step {
            0 => {
                let version = self.stage.town.shared.latest(&name) + AHEAD;
                self.with_device(device, |device, now, out| device.boast(now, name, version, out));
                director.on(DONE)
            }
            _ => {
                self.announce(director.object);
                director.end(DONE)
            }
        }
    }

    // ---- what they are made of --------------------------------------------------------------------------------------

    /// A version of an object that no device made is published.
    fn announce(&mut self, number: u64) {
        self.with_backend(|backend, now, out| {
            let publication = backend.version(number);
            backend.announce(now, publication, out);
        });
    }

    /// Starts whoever does not run.
    fn start(&mut self, host: HostId) {
        if !self.stage.world.is_up(host) {
            // Nothing here can fail to start; if it did, the world would not come to rest.
            drop(self.stage.world.start(host, &mut self.stage.town));
        }
    }

    /// Rows of the device's registrar fail, those of the object's matcher do not; whether that can be.
    fn fail_registrar(&mut self, director: &Director) -> bool {
        let first = |key: KeyHash| key.0.to_be_bytes()[0];
        let row = first(director.place());
        let apart = row != first(object_hash(APP, &director.name()));
        if apart {
            self.stage.town.shared.fail_rows([row]);
        }
        apart
    }

    /// How slow the store's disk is from its next sync on.
    fn set_pace(&mut self, pace: DiskPace) {
        self.stage.world.set_pace(self.stage.town.neighbours.servers[0], pace);
    }

    fn owner_of(&self, place: KeyHash) -> Option<HostId> {
        let world = &self.stage.world;
        let holds = |host: &&HostId| match world.process(**host) {
            Some(Actor::Node(node)) => node.holds_key(world.clock(**host).now(world.now()), place),
            _ => false,
        };
        self.stage.town.neighbours.nodes.iter().find(holds).copied()
    }

    /// Whether everybody but the story's device was granted an id since the scene began.
    fn have_returned(&self, director: &Director) -> bool {
        let returned =
            |host: &HostId| director.lately.iter().any(|fact| matches!(fact, Fact::Granted(it) if it == host));
        self.stage.town.devices.iter().all(|host| *host == director.device || returned(host))
    }

    fn is_writing(&self, host: HostId, view: &[u8], place: KeyHash) -> bool {
        matches!(self.stage.world.process(host), Some(Actor::Node(node)) if node.is_writing(view, place))
    }
}

fn is_fetch(fact: &Fact, whose: HostId, of: &Bytes) -> bool {
    matches!(fact, Fact::Fetches { device, object, .. } if *device == whose && object == of)
}

fn is_handled(fact: &Fact, whose: HostId, of: &Bytes) -> bool {
    matches!(fact, Fact::Handled { device, object, .. } if *device == whose && object == of)
}
