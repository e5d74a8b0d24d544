//! Seeded worlds of devices that come and go: whoever is away and was told nothing has missed nothing (R3).

use crate::client::{Folded, everything, fresh, put, shown_to};
use crate::holding::public;
use crate::world::{Plan, World, data, user};
use std::collections::{BTreeMap, BTreeSet};
use tidings_predicate::Packed;
use tidings_predicate::query::Ask;
use tidings_tables::calls::{Call, Condition, Update, Write};
use tidings_tables::gateway::{self, Event, Start, Watch};
use tidings_tables::mutant::Mutant;
use tidings_tables::names::{Endpoint, NetId, Object, Position};
use tidings_tables::processor::Input;

/// A device as the documents tell it to be.
struct Device {
    netid: NetId,
    team: &'static str,
    known: Folded,
    /// Its live query while it is there, and how many events of all it has looked at.
    watch: Option<u64>,
    heard: usize,
    /// Whether this watch has given it a cursor: otherwise it has not begun.
    begun: bool,
    /// The partitions whose objects it has registered, and the versions that it knows.
    listens: BTreeSet<u32>,
    versions: BTreeMap<Object, Position>,
    /// It was told that there may be something new, and has not begun a watch since; or it knows that it has not begun.
    stale: bool,
    /// It was told so while it was there.
    anew: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts {
    came: usize,
    left: usize,
    /// Among them: before a cursor.
    early: usize,
    told: usize,
    deaths: usize,
    moves: usize,
    cuts: usize,
}

struct Run {
    world: World,
    devices: Vec<Device>,
    /// What Notify has, and how much of what was published it has looked at.
    notify: BTreeMap<Object, Position>,
    taken: usize,
    watches: u64,
    values: i64,
    counts: Counts,
}

const KEYS: u64 = 6;

impl Run {
    fn new(seed: u64, mutant: Option<Mutant>) -> Run {
        let plan = Plan { lost: 4, twice: 12, unknown: 30, slow: 12 };
        let mut world = World::new(seed, plan, mutant, public());
        world.options.log_changes = 8;
        for _ in 0..3 {
            world.node();
        }
        world.directory_changed();
        world.lease(0, 0);
        world.run(5);
        let device = |n: u8| Device {
            netid: NetId([n; 16]),
            team: if n.is_multiple_of(2) { "a" } else { "b" },
            known: Folded::default(),
            watch: None,
            heard: 0,
            begun: false,
            listens: BTreeSet::new(),
            versions: BTreeMap::new(),
            stale: true,
            anew: false,
        };
        let devices = (1..=4).map(device).collect();
        let (notify, counts) = (BTreeMap::new(), Counts::default());
        Run { world, devices, notify, taken: 0, watches: 0, values: 0, counts }
    }

    fn run(mut self) -> Result<Counts, String> {
        for _ in 0..800 {
            self.disturb();
            for device in 0..self.devices.len() {
                self.act(device, 40);
            }
            if self.world.rng.one_in(12) {
                self.write();
            }
            self.world.run(25);
        }
        self.heal();
        (0..self.devices.len()).for_each(|device| self.leave(device));
        self.world.run(10_000);
        for _ in 0..6 {
            self.write();
            self.world.run(50);
        }
        self.everybody_comes_and_knows()?;
        // New owners, who know nobody. Whoever hears of them comes and is gone again, while little arrives.
        let numbers: Vec<u32> = self.world.directory.partitions.iter().map(|entry| entry.number).collect();
        for number in numbers {
            self.world.lease(number, 0);
        }
        self.world.run(5_000);
        self.world.plan.lost = 2;
        for device in 0..self.devices.len() {
            self.look(device);
            self.come(device);
            self.world.run(10);
            self.leave(device);
        }
        self.world.run(1_000);
        self.heal();
        self.world.run(10_000);
        self.tells_everybody()?;
        self.everybody_comes_and_knows()?;
        Ok(self.counts)
    }

    fn heal(&mut self) {
        self.world.plan = Plan { slow: 2, ..Plan::default() };
        self.world.notify = true;
        self.world.directory_changed();
        let numbers: Vec<u32> = self.world.directory.partitions.iter().map(|entry| entry.number).collect();
        for number in numbers {
            if !self.world.owners.contains_key(&number) {
                self.world.lease(number, 0);
            }
        }
    }

    fn everybody_comes_and_knows(&mut self) -> Result<(), String> {
        for _ in 0..400 {
            (0..self.devices.len()).for_each(|device| self.act(device, 0));
            self.world.run(50);
        }
        self.check()
    }

    /// A change that concerns everybody: everybody is told, though nobody has begun.
    fn tells_everybody(&mut self) -> Result<(), String> {
        for key in 0..KEYS {
            let before = (0..self.devices.len()).map(|device| self.told(device)).collect::<Vec<_>>();
            self.values += 1;
            let write = put(&format!("k{key}"), "a", self.values);
            let number = self.world.directory.find(&write.key).unwrap().number;
            self.world.ask(0, number, user("ann"), Call::Write(Box::new(write)));
            self.world.run(2_500);
            for (device, before) in before.into_iter().enumerate() {
                let told = self.told(device);
                let first = (0..key).all(|key| {
                    let key = format!("k{key}").as_str().into();
                    self.world.directory.find(&key).unwrap().number != number
                });
                if told == before && first {
                    return Err(format!("device {device} was not told of a change of partition {number}"));
                }
            }
        }
        Ok(())
    }

    /// How much a device was told.
    fn told(&mut self, device: usize) -> Vec<Position> {
        self.look(device);
        self.devices[device].versions.values().copied().collect()
    }

    fn disturb(&mut self) {
        let numbers: Vec<u32> = self.world.directory.partitions.iter().map(|entry| entry.number).collect();
        let rng = &mut self.world.rng;
        let number = numbers[rng.below(numbers.len() as u64) as usize];
        let node = rng.below(3) as usize;
        match rng.below(300) {
            0..=2 => {
                let old = self.world.owners.get(&number).copied();
                self.world.lease(number, node);
                self.counts.moves += 1;
                if let Some((old, _)) = old.filter(|(old, _)| *old != node) {
                    let partition = self.world.id(number);
                    self.world.tell_processor(old, Input::Lost { partition });
                }
            }
            3..=5 => {
                self.world.crash_gateway();
                self.counts.deaths += 1;
                (0..self.devices.len()).for_each(|device| self.cut_off(device));
            }
            6 if numbers.len() < 3 => {
                let at = format!("k{}", 1 + rng.below(KEYS - 1));
                if let Some(children) = self.world.split(number, &at.as_str().into()) {
                    self.counts.cuts += 1;
                    for child in children {
                        self.world.lease(child, node);
                    }
                }
            }
            7..=9 => self.world.notify = !self.world.notify,
            _ => {}
        }
    }

    fn write(&mut self) {
        self.values += 1;
        let rng = &mut self.world.rng;
        let (key, team) = (format!("k{}", rng.below(KEYS)), ["a", "b"][rng.below(2) as usize]);
        let change = match rng.below(6) {
            0 => Update::Delete,
            _ => put(&key, team, self.values).change,
        };
        let write = Write { change, condition: Condition::Blind, ..put(&key, team, 0) };
        let shown = if rng.one_in(3) { shown_to(write, "reader.team == 'a'") } else { write };
        let number = self.world.directory.find(&shown.key).unwrap().number;
        if let Some((node, _)) = self.world.owners.get(&number).copied() {
            self.world.ask(node, number, user("ann"), Call::Write(Box::new(shown)));
        }
    }

    // ---- devices ----------------------------------------------------------------------------------------------------

    fn act(&mut self, device: usize, leaves: u64) {
        self.hear(device);
        self.look(device);
        let (stale, there) = (self.devices[device].stale, self.devices[device].watch.is_some());
        match there {
            true if self.devices[device].begun && (leaves == 0 || self.world.rng.one_in(leaves)) => self.leave(device),
            // Some do not wait to be told anything.
            true if leaves > 0 && self.world.rng.one_in(2 * leaves) => self.leave(device),
            false if stale && (leaves == 0 || self.world.rng.one_in(leaves)) => self.come(device),
            _ => {}
        }
    }

    fn come(&mut self, at: usize) {
        self.watches += 1;
        self.counts.came += 1;
        let device = &mut self.devices[at];
        device.listens.extend(self.world.directory.partitions.iter().map(|entry| entry.number));
        (device.anew, device.begun, device.watch) = (false, false, Some(self.watches));
        device.heard = self.world.events.len();
        let start = device.known.cursor.clone().map_or(Start::Everything, Start::Cursor);
        let endpoint = Some(Endpoint { netid: device.netid, app: "shop".to_owned() });
        let reader = data(&[("team", device.team.into())]);
        let watch = Watch { start, endpoint, ..everything(&user("ann"), &reader, asks(device.team)) };
        self.world.watch(self.watches, watch);
    }

    /// Events of its watch.
    fn hear(&mut self, at: usize) {
        let device = &mut self.devices[at];
        let from = std::mem::replace(&mut device.heard, self.world.events.len());
        for (number, event) in &self.world.events[from..] {
            if device.watch == Some(*number) {
                if matches!(event, Ok(Event::Progress { .. })) && !device.begun {
                    (device.begun, device.stale) = (true, device.anew);
                }
                device.known.hear(event.clone());
            }
        }
        if device.known.ended.take().is_some() {
            (device.watch, device.stale) = (None, true);
            device.known.cut_off();
        }
    }

    /// What Notify tells it: the latest version of whatever it has registered.
    fn look(&mut self, at: usize) {
        for (taken, all) in &self.world.publications[self.taken..] {
            for (object, position) in all.iter().filter(|_| *taken) {
                let latest = self.notify.entry(*object).or_default();
                *latest = (*latest).max(*position);
            }
        }
        self.taken = self.world.publications.len();
        let device = &mut self.devices[at];
        for (object, version) in &self.notify {
            let its = object.netid.is_none_or(|netid| netid == device.netid);
            if its && device.listens.contains(&object.partition.number) {
                let known = device.versions.insert(*object, *version);
                if known != Some(*version) {
                    (device.stale, device.anew) = (true, true);
                    self.counts.told += 1;
                }
            }
        }
    }

    fn leave(&mut self, at: usize) {
        self.hear(at);
        let Some(number) = self.devices[at].watch.take() else { return };
        self.counts.left += 1;
        self.counts.early += usize::from(!self.devices[at].begun);
        self.devices[at].known.cut_off();
        self.world.tell_gateway(gateway::Input::Unwatch { number });
    }

    /// Its gateway has died: without a cursor it has not begun, and knows that.
    fn cut_off(&mut self, at: usize) {
        self.hear(at);
        let device = &mut self.devices[at];
        if device.watch.take().is_some() {
            device.stale |= !device.begun;
            device.known.cut_off();
        }
    }

    fn check(&mut self) -> Result<(), String> {
        for at in 0..self.devices.len() {
            let Device { team, stale, watch, .. } = self.devices[at];
            if stale || watch.is_some() {
                return Err(format!("device {at} is still told something: {stale} {watch:?}"));
            }
            let reader: Packed = data(&[("team", team.into())]);
            let ask = Ask { predicate: asks(team).to_owned(), ..Ask::default() };
            let there = fresh(&mut self.world, &user("ann"), &reader, &ask);
            let known = &self.devices[at].known.rows;
            if *known != there {
                return Err(format!("device {at} was told nothing, knows {known:?}, there is {there:?}"));
            }
        }
        Ok(())
    }
}

fn asks(team: &str) -> &'static str {
    if team == "a" { "team == 'a'" } else { "" }
}

fn run(seed: u64, mutant: Option<Mutant>) -> Result<Counts, String> {
    Run::new(seed, mutant).run().map_err(|broken| format!("seed {seed}, {mutant:?}: {broken}"))
}

#[test]
fn r3_whoever_is_away_and_was_told_nothing_has_missed_nothing() {
    let first = std::env::var("TABLES_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut total = Counts::default();
    for seed in first.map_or_else(|| (0..24).collect(), |seed| vec![seed]) {
        let counts = run(seed, None).unwrap_or_else(|broken| panic!("{broken}"));
        total.came += counts.came;
        total.left += counts.left;
        total.early += counts.early;
        total.told += counts.told;
        total.deaths += counts.deaths;
        total.moves += counts.moves;
        total.cuts += counts.cuts;
    }
    println!("{total:?}");
    let Counts { came, left, early, told, deaths, moves, cuts } = total;
    assert!(first.is_some() || [came, left, early, told, deaths, moves, cuts].iter().all(|n| *n > 5), "{total:?}");
}

#[test]
fn worlds_of_devices_without_a_rule_break() {
    let noticed =
        [Mutant::AwayForgotten, Mutant::LeftOnce, Mutant::GivenEarly, Mutant::OpenedSilently, Mutant::PublishedOnce];
    let unnoticed = noticed.into_iter().filter(|mutant| (0..60).all(|seed| run(seed, Some(*mutant)).is_ok()));
    assert_eq!(unnoticed.collect::<Vec<_>>(), [], "nobody misses these");
}
