//! What goes wrong: moves, crashes, rows that fail, restarts, wipes and resets.

use super::{APP, DEVICES, FAULTS_END, Happening, Input, MS, NODES, OBJECTS, Role, World, caller, object, source};
use tidings_notify::{client, matcher, registrar};

impl World {
    pub(super) fn tick(&mut self) {
        if self.now >= FAULTS_END {
            return self.heal();
        }
        self.after(100 * MS, Happening::Tick);
        for _ in 0..self.rng.below(3) {
            self.publish();
        }
        let at = self.rng.below(DEVICES as u64) as usize;
        match self.rng.below(60) {
            0..=7 => self.toggle(at),
            8..=10 if self.devices[at].online => {
                self.devices[at].online = false;
                self.channel_closes(at);
                let away = self.rng.between(200, 9_000) * MS;
                self.after(away, Happening::Online(at));
            }
            11..=13 => self.channel_closes(at),
            14 => self.restart(at, true),
            15 => self.restart(at, false),
            16 if self.plan.clones => self.clone_storage(at),
            17..=22 => {
                let (role, slot) = (*self.rng.pick(&[Role::Registrar, Role::Matcher]).unwrap(), self.rng.below(4));
                self.assign(role, slot as usize);
            }
            23 => self.crash(),
            24..=25 => {
                let first = self.rng.below(256) as u8;
                self.store.failing.extend((0..60).map(|more| first.wrapping_add(more)));
                let long = self.rng.between(300, 2_500) * MS;
                self.after(long, Happening::HealRows);
            }
            _ => {}
        }
        if self.plan.wipe_at.is_some_and(|at| at <= self.now) {
            self.plan.wipe_at = None;
            self.wipe();
        }
        if self.plan.reset_at.is_some_and(|at| at <= self.now) {
            self.plan.reset_at = None;
            self.reset();
        }
    }

    pub(super) fn heal(&mut self) {
        self.store.failing.clear();
        self.devices.iter_mut().for_each(|device| device.online = true);
    }

    pub(super) fn toggle(&mut self, at: usize) {
        let object = object(self.rng.below(OBJECTS as u64));
        let input = match self.devices[at].intended.remove(&object) {
            true => client::Input::Unregister { object },
            false => {
                self.devices[at].intended.insert(object.clone());
                let known = self.devices[at].seen.get(&object).map_or(0, |seen| seen.known);
                client::Input::Register { object, known: if self.rng.one_in(2) { known } else { 0 } }
            }
        };
        self.tell_client(at, input);
    }

    /// The application starts again, with what it had persisted, or with nothing at all.
    pub(super) fn restart(&mut self, at: usize, keeps: bool) {
        self.counts.restarts += 1;
        self.channel_closes(at);
        let (life, persistent) = (self.devices[at].life + 1, self.devices[at].persistent);
        let kept = self.devices[at].source.clone();
        let fresh = self.device(life, persistent, if keeps { kept } else { source(at, life) });
        let old = std::mem::replace(&mut self.devices[at], fresh);
        let device = &mut self.devices[at];
        (device.online, device.intended) = (old.online, old.intended);
        if keeps {
            (device.state, device.seen) = (old.state, old.seen);
        }
        self.begin_device(at);
    }

    /// Another installation begins with a copy of this one's storage, its data included; ours goes on.
    pub(super) fn clone_storage(&mut self, at: usize) {
        let other = (at + 3) % DEVICES;
        if other == at || caller(other) != caller(at) || self.devices[at].state.is_none() {
            return;
        }
        self.channel_closes(other);
        self.devices[other].life += 1;
        let (life, source) = (self.devices[other].life, self.devices[at].source.clone());
        let mut fresh = self.device(life, true, source);
        let original = &self.devices[at];
        (fresh.state, fresh.seen, fresh.copied) = (original.state.clone(), original.seen.clone(), true);
        (fresh.online, fresh.intended) = (self.devices[other].online, self.devices[other].intended.clone());
        self.devices[other] = fresh;
        self.begin_device(other);
    }

    /// Gives a range to some node under a new lease; both hear of it later.
    pub(super) fn assign(&mut self, role: Role, slot: usize) {
        let to = self.rng.below(NODES as u64) as usize;
        let table = if role == Role::Registrar { &mut self.registrars } else { &mut self.matchers };
        let lease = table.lease();
        let range = table.slots[slot].range;
        let from = table.slots[slot].owner.replace((to, lease));
        self.counts.moved += u64::from(from.is_some());
        if let Some((from, _)) = from {
            let input = match role {
                Role::Registrar => Input::Registrar(registrar::Input::Lost { range }),
                _ => Input::Matcher(matcher::Input::Lost { range }),
            };
            self.hears(from, role, input);
        }
        let input = match role {
            Role::Registrar => Input::Registrar(registrar::Input::Gained { range, lease }),
            _ => Input::Matcher(matcher::Input::Gained { range, lease }),
        };
        self.hears(to, role, input);
    }

    pub(super) fn hears(&mut self, node: usize, role: Role, input: Input) {
        let at = (self.now + self.rng.below(300) * MS).max(self.nodes[node].heard_until);
        self.nodes[node].heard_until = at;
        let who = self.who(node, role);
        self.after(at - self.now, Happening::Input(who, input));
    }

    pub(super) fn crash(&mut self) {
        self.counts.crashed += 1;
        let at = self.rng.below(NODES as u64) as usize;
        let life = self.nodes[at].life + 1;
        self.nodes[at] = self.node(life);
        self.begin_node(at);
        for role in [Role::Registrar, Role::Matcher] {
            let table = if role == Role::Registrar { &mut self.registrars } else { &mut self.matchers };
            let slots = table.slots.iter_mut().enumerate();
            let lost = slots.filter(|(_, slot)| slot.owner.is_some_and(|(owner, _)| owner == at));
            let lost: Vec<usize> = lost.map(|(slot, state)| (slot, state.owner = None).0).collect();
            for slot in lost {
                let delay = self.rng.between(100, 1_000) * MS;
                self.after(delay, Happening::Assign(role, slot));
            }
        }
        // Some connections went by this node.
        for device in 0..DEVICES {
            if self.rng.one_in(3) {
                self.channel_closes(device);
            }
        }
    }

    /// Every node hears of the realm, and closes its clients' connections.
    pub(super) fn enter_realm(&mut self) {
        (0..NODES).for_each(|node| self.tell_realm(node));
        (0..DEVICES).for_each(|at| self.channel_closes(at));
    }

    /// The store is lost, and it is noticed (F3).
    pub(super) fn wipe(&mut self) {
        self.counts.wiped += 1;
        self.store.wipe();
        self.realm.incarnation += 1;
        self.enter_realm();
    }

    /// The backend is restored from a backup: versions begin anew, and the operator resets the application (F3).
    pub(super) fn reset(&mut self) {
        self.counts.reset += 1;
        self.latest.clear();
        self.made.clear();
        self.devices.iter_mut().for_each(|device| device.seen.clear());
        self.realm.generations.insert(APP.into(), 1);
        self.enter_realm();
    }
}
