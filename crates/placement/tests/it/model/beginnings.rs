//! Where explorations and stories begin.

use super::cell::Cell;
use super::seats::{KEY, LookupSeat, seat};
use super::world::{Budget, Setup, Step, Who, World};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidings_placement::manager::{self, Manager};
use tidings_placement::{Ticket, lookup, owner};
use tidings_wire::v1;
use tidings_wire::v1::placement_message::Message;

/// What a story may cost.
const PLENTY: Budget = Budget { ticks: 400, losses: 400, repeats: 2, fail_overs: 1, restarts: 1, drains: 1 };

impl World {
    /// The first manager leads a namespace without owners.
    fn empty(setup: &Setup) -> World {
        let manager = |seed| Arc::new(Manager::new(manager::Options { seed, mutant: setup.mutant }));
        let mut world = World {
            time: 0,
            free_at: 0,
            rates: [setup.owner_rates[0], setup.owner_rates[1], setup.manager_rate],
            cell: Cell::new(),
            managers: [manager(1), manager(2)],
            heard: [1, 2],
            owners: Vec::new(),
            lookup: None,
            packets: Vec::new(),
            asked: Arc::default(),
            last_op: [0, 0],
            states: BTreeMap::new(),
            last_state: 0,
            left: setup.budget.clone(),
            wrong: None,
        };
        world.reign(setup, 0);
        let config = v1::NamespaceConfig {
            lease_ms: setup.lease.as_millis() as u32,
            renew_ms: setup.renew.as_millis() as u32,
            virtual_nodes: 1,
            drain_ms: 10_000,
            ..Default::default()
        };
        let create = v1::NamespaceCreate { namespace: "n".into(), config: Some(config) };
        let op = world.op(0, Who::Operator, Ticket(0), false, 0);
        world.feed(setup, 0, 0, manager::Input::Operate { op, request: Message::NamespaceCreate(create) });
        world
    }

    /// Both owners hold their part, the lookup knows it, and nothing is on its way but held polls.
    pub fn begun(setup: &Setup) -> World {
        let fast = Setup { slow: |_| false, ..setup.clone() };
        let mut world = World::empty(&fast);
        world.join(&fast, 0);
        world.join(&fast, 1);
        world.look(&fast);
        world.come_to_rest(&fast, 2);
        world.slowed(setup)
    }

    /// The second owner holds everything, and the first has sent its first poll.
    pub fn joining(setup: &Setup) -> World {
        let fast = Setup { slow: |_| false, ..setup.clone() };
        let mut world = World::empty(&fast);
        // The first is made first, so that it has the first place, and starts last.
        world.owners.push(seat(setup, 0, 1));
        world.owners.push(seat(setup, 1, 1));
        world.tell_owner(&fast, 1, 0, owner::Input::Start);
        world.look(&fast);
        world.come_to_rest(&fast, 1);
        let mut world = world.slowed(setup);
        world.tell_owner(setup, 0, 0, owner::Input::Start);
        world.run(setup);
        world
    }

    /// The first owner holds everything, and its next poll is on its way; the second has joined, and its part is recalled.
    pub fn recalling(setup: &Setup) -> World {
        let fast = Setup { slow: |_| false, ..setup.clone() };
        let mut world = World::empty(&fast);
        world.owners.push(seat(setup, 0, 1));
        world.owners.push(seat(setup, 1, 1));
        world.tell_owner(setup, 0, 0, owner::Input::Start);
        world.run(setup);
        while world.holders() < 1 {
            world.step(setup, &Step::Deliver(0));
        }
        world.tell_owner(setup, 1, 0, owner::Input::Start);
        world.run(setup);
        assert_eq!((world.holders(), &world.wrong), (1, &None));
        world.slowed(setup)
    }

    /// The first owner holds its part and wants to leave: the leader knows it, and the owner does not know that yet. A
    /// repetition of the owner's first poll is still on its way.
    pub fn leaving(setup: &Setup) -> World {
        let mut world = World::joining(setup);
        world.left = Budget { repeats: 1, drains: 1, ..Budget::default() };
        world.step(setup, &Step::Repeat(0));
        while world.holders() < 2 {
            world.step(setup, &Step::Deliver(1));
        }
        world.step(setup, &Step::Drain(0));
        world.step(setup, &Step::Deliver(world.packets.len() - 1));
        assert_eq!((world.holders(), &world.wrong), (2, &None));
        world.slowed(setup)
    }

    /// The first owner was granted everything and hears nothing more; a part of it is recalled for the second. Its lease is
    /// nearly over.
    pub fn nearly_over(setup: &Setup) -> World {
        World::recalling(setup).after(setup, |world| (0..3).for_each(|_| world.step(setup, &Step::Tick)))
    }

    /// The first owner is to leave and still holds its part. Its leader is elected anew, and nothing is on the way but a
    /// repetition of the owner's very first poll, in which it held nothing.
    pub fn elected_anew(setup: &Setup) -> World {
        World::leaving(setup).after(setup, |world| {
            while world.packets.len() > 1 {
                world.step(setup, &Step::Lose(1));
            }
            world.step(setup, &Step::Cut);
            (0..4).for_each(|_| world.step(setup, &Step::Tick));
            world.step(setup, &Step::Elect(0));
        })
    }

    /// A lookup is away while the state of a key is lost with its owner's process, and while the key then moves cleanly.
    pub fn away(setup: &Setup) -> World {
        // Few ranges move at a time, and each time takes a tick.
        let quick = Setup { tick: Duration::from_millis(100), ..setup.clone() };
        let absent = |world: &mut World, setup: &Setup, ticks: u32| {
            for _ in 0..ticks {
                world.step(setup, &Step::Tick);
                while let Some(at) = world.packet(Who::Lookup) {
                    world.step(setup, &Step::Lose(at));
                }
            }
        };
        World::begun(setup).after(setup, |world| {
            let holder = world.holder(KEY).unwrap_or_default();
            world.step(setup, &Step::Restart(holder));
            absent(world, setup, 8);
            absent(world, &quick, 60);
            assert_eq!(world.holder(KEY), Some(holder), "it has its own part again, without state");
            world.step(setup, &Step::Drain(holder));
            absent(world, &quick, 60);
            assert_eq!(world.holder(KEY), Some(1 - holder), "it moved");
        })
    }

    /// The same after a story that went well.
    fn after(mut self, setup: &Setup, story: impl FnOnce(&mut World)) -> World {
        self.left = PLENTY;
        story(&mut self);
        assert_eq!(self.wrong, None);
        self.left = setup.budget.clone();
        self
    }

    fn come_to_rest(&mut self, fast: &Setup, holders: usize) {
        let lookups = |world: &World| world.lookup.as_ref().is_none_or(|seat| seat.machine.table().find(KEY).is_some());
        self.run(fast);
        while self.holders() < holders || !lookups(self) {
            self.pass(fast);
            assert!(self.time < 1_000_000_000_000, "nobody holds anything");
        }
        self.pass(fast);
        assert_eq!(self.wrong, None);
    }

    /// From here on what is held is as slow as the setup says, and nothing has happened yet.
    fn slowed(mut self, setup: &Setup) -> World {
        for (who, _, slow, _) in Arc::make_mut(&mut self.asked).values_mut() {
            *slow = (setup.slow)(*who);
        }
        self.left = setup.budget.clone();
        self
    }

    fn join(&mut self, setup: &Setup, n: usize) {
        self.owners.push(seat(setup, n, 1));
        self.tell_owner(setup, n, 0, owner::Input::Start);
        self.run(setup);
    }

    fn look(&mut self, setup: &Setup) {
        if setup.with_lookup {
            self.lookup =
                Some(LookupSeat::new(lookup::Lookup::new(lookup::Options { namespace: "n".into(), seed: 3 })));
            self.tell_lookup(setup, 0, lookup::Input::Start);
        }
    }
}
