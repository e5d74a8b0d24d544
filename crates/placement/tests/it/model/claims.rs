//! What must hold in every state, and what must come of it without further faults.

use super::world::{Setup, Step, World};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::KeyRange;

impl World {
    /// Whether, without further faults, somebody would hold every key in the end; what is wrong if not.
    pub fn lost_for_ever(&self, setup: &Setup) -> Option<String> {
        let calm =
            Setup { slow: |_| false, loyal: false, tick: Duration::from_millis(500), calm_one_in: 0, ..setup.clone() };
        let mut world = self.clone();
        world.packets.iter_mut().for_each(|packet| packet.slow = false);
        Arc::make_mut(&mut world.asked).values_mut().for_each(|(_, _, slow, _)| *slow = false);
        if world.cell.cut[world.cell.leader] {
            world.elect(&calm, 1 - self.cell.leader);
        }
        world.cell.cut = [false; 2];
        let lease = setup.lease.max(Duration::from_secs(30)).as_millis() as u64;
        for _ in 0..(3 * lease + 2 * setup.renew.as_millis() as u64) / 500 {
            world.pass(&calm);
            if world.wrong.is_some() {
                return world.wrong;
            }
        }
        let held: u128 = (0..world.owners.len())
            .flat_map(|n| {
                world.owners[n]
                    .believes(world.owner_now(n))
                    .map(|holding| holding.leased.range.len())
                    .collect::<Vec<_>>()
            })
            .sum();
        (held != KeyRange::FULL.len()).then(|| "a range is lost for ever".to_string())
    }

    /// What must hold whenever an owner's belief changes.
    pub fn check(&mut self, n: usize) {
        let now = self.owner_now(n);
        if let Some(number) = self.owners[n].revived(now) {
            self.wrong.get_or_insert(format!("owner {n} holds {number:?} again"));
        }
        let Some(other) = (n < 2).then_some(1 - n).filter(|other| *other < self.owners.len()) else { return };
        let mut theirs = self.owners[other].believes(self.owner_now(other)).peekable();
        for ours in self.owners[n].believes(now) {
            while theirs.next_if(|b| b.leased.range.last < ours.leased.range.start).is_some() {}
            if let Some(both) = theirs.peek().filter(|b| b.leased.range.start <= ours.leased.range.last) {
                let what =
                    format!("both owners hold {}: {:?}, {:?}", both.leased.range, both.leased.lease, ours.leased.lease);
                self.wrong.get_or_insert(what);
                return;
            }
        }
    }
}

/// Two states are the same if everybody has heard the same at the same instants.
impl tidings_explore::World for World {
    type Setup = Setup;
    type Step = Step;

    fn steps(&self, steps: &mut Vec<Step>) {
        self.steps(steps);
    }

    fn step(&mut self, setup: &Setup, step: &Step) {
        self.step(setup, step);
    }

    fn print(&self) -> u64 {
        self.print()
    }

    fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }
}
