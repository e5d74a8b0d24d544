//! Trouble of other kinds than broken networks and machines: ranges move, moves are called off, the group begins a new life,
//! sleepers wake.

use super::Run;
use super::ring::PARTS;
use super::town::Role;
use crate::scenarios::stage::PHASE;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::Seeded;

/// How often somebody looks whether each part of the ring has a node that runs.
const TEND: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug)]
enum Due {
    Move,
    Settle(usize),
    Tend,
    Rebirth,
}

/// All names of these kinds.
pub const KINDS: [&str; 5] = ["move", "move_called_off", "move_of_the_dead", "new_life", "replayed_reply"];

/// The schedule of one run.
pub struct Trouble {
    rng: Seeded,
    /// Between two moves, in milliseconds; none if ranges stay.
    moves: Option<u64>,
    /// Between two lives of the group, in seconds; none if it has one.
    lives: Option<u64>,
    due: BTreeMap<u64, Due>,
    last_id: u64,
    counts: BTreeMap<&'static str, u64>,
    calm: bool,
}

impl Trouble {
    /// A schedule drawn from the generator.
    pub fn new(rng: &Seeded) -> Trouble {
        let mut rng = rng.fork("trouble");
        let moves = (!rng.one_in(4)).then(|| [200, 1_000, 5_000][rng.below(3) as usize]);
        let lives = rng.one_in(2).then(|| [20, 100][rng.below(2) as usize]);
        Trouble { rng, moves, lives, due: BTreeMap::new(), last_id: PHASE, counts: BTreeMap::new(), calm: false }
    }

    /// How many of each kind there were.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// Counts so many of a kind.
    pub fn count(&mut self, kind: &'static str, times: u64) {
        *self.counts.entry(kind).or_default() += times;
    }
}

impl Run {
    pub(super) fn begin_trouble(&mut self) {
        if !self.stage.town.nodes.is_empty() {
            self.later(TEND, Due::Tend);
            self.move_later();
        }
        self.rebirth_later();
    }

    pub(super) fn end_trouble(&mut self) {
        self.trouble.calm = true;
    }

    fn later(&mut self, after: Duration, due: Due) {
        self.trouble.last_id += 1;
        self.trouble.due.insert(self.trouble.last_id, due);
        self.stage.world.remind(after, self.trouble.last_id);
    }

    fn move_later(&mut self) {
        if let Some(mean) = self.trouble.moves {
            let pause = self.trouble.rng.between(mean / 10, 2 * mean);
            self.later(Duration::from_millis(pause), Due::Move);
        }
    }

    fn rebirth_later(&mut self) {
        if let Some(mean) = self.trouble.lives {
            let pause = self.trouble.rng.between(mean / 4, 2 * mean);
            self.later(Duration::from_secs(pause), Due::Rebirth);
        }
    }

    pub(super) fn trouble_due(&mut self, id: u64) {
        match self.trouble.due.remove(&id) {
            Some(Due::Tend) => {
                self.tend();
                self.later(TEND, Due::Tend);
            }
            Some(Due::Settle(part)) => self.settle(part),
            Some(Due::Move) if !self.trouble.calm => {
                let part = self.trouble.rng.below(PARTS as u64) as usize;
                self.begin_move(part);
                self.move_later();
            }
            Some(Due::Rebirth) if !self.trouble.calm => {
                let order = self.stage.town.order;
                let mut begun = false;
                self.stage.world.poke(order, |actor, now, out| {
                    if let Role::Order(order) = &mut actor.role {
                        order.begin_again(now, out);
                        begun = true;
                    }
                });
                self.trouble.count("new_life", u64::from(begun));
                self.stage.world.note_fault(order, "new_life");
                self.rebirth_later();
            }
            Some(Due::Move | Due::Rebirth) | None => {}
        }
    }

    fn begin_move(&mut self, part: usize) -> bool {
        let taken = self.stage.town.ring.take(part);
        if taken {
            let pause = self.trouble.rng.between(1, 60);
            self.later(Duration::from_millis(pause), Due::Settle(part));
        }
        taken
    }

    /// Somebody who runs holds it under the next number: mostly another node, sometimes the same again (a move that was
    /// called off).
    fn settle(&mut self, part: usize) {
        let (town, world) = (&self.stage.town, &self.stage.world);
        let last = town.ring.owner(part);
        let up = |node: &usize| world.is_up(town.nodes[*node]);
        let others: Vec<usize> = (0..town.nodes.len()).filter(|node| *node != last && up(node)).collect();
        let called_off = up(&last) && self.trouble.rng.one_in(4);
        let next = if called_off { last } else { self.trouble.rng.pick(&others).copied().unwrap_or(last) };
        self.stage.town.ring.grant(part, next);
        self.trouble.count(if next == last { "move_called_off" } else { "move" }, 1);
        self.stage.world.note_fault(self.stage.town.nodes[next], &format!("holds {part}"));
    }

    /// What a node held that does not run is granted to another.
    fn tend(&mut self) {
        for part in 0..PARTS {
            let owner = self.stage.town.nodes[self.stage.town.ring.owner(part)];
            if !self.stage.world.is_up(owner) && self.begin_move(part) {
                self.trouble.count("move_of_the_dead", 1);
            }
        }
    }
}
