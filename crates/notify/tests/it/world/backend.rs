//! The backend, and the feed that takes its versions to the bridges.

use super::{APP, DEVICES, FIRST_GENERATION, Happening, Input, MS, NODES, OBJECTS, Role, World, object};
use crate::model::Made;
use prost::Message;
use tidings_notify::names::object_hash;
use tidings_notify::{bridge, matcher};
use tidings_wire::v1;

impl World {
    pub(super) fn publish(&mut self) {
        let object = object(self.rng.below(OBJECTS as u64));
        let base = if self.realm.generations.is_empty() { FIRST_GENERATION } else { 0 };
        let latest = self.latest.entry(object.clone()).or_insert(base);
        *latest += self.rng.between(1, 3);
        let version = *latest;
        let maker = self.rng.one_in(2).then(|| self.rng.below(DEVICES as u64) as usize);
        // Two that share a name cannot be told apart: they publish without it.
        let shared =
            |at: usize| self.devices.iter().filter(|other| other.source == self.devices[at].source).count() > 1;
        let maker = maker.filter(|at| !shared(*at));
        if let Some(at) = maker {
            self.devices[at].seen.entry(object.clone()).or_default().made.insert(version);
        }
        let publication = v1::Publication {
            app: APP.into(),
            object: object.clone(),
            version,
            source: maker.map(|at| self.devices[at].source.clone()).unwrap_or_default(),
            generation: self.realm.generation(APP),
            incarnation: self.realm.incarnation,
            ..Default::default()
        };
        self.called.insert((object.clone(), version));
        // Some are told of before they are in the feed, and of these some never get there.
        let owner = self.matchers.owner(object_hash(APP, &object));
        if let Some((node, lease)) = owner.filter(|_| self.rng.one_in(2)) {
            let hint = matcher::Input::Hint { lease, publication: Box::new(publication.clone()) };
            self.give(node, Input::Matcher(hint));
            if self.faulty() && self.rng.one_in(8) {
                return;
            }
        }
        self.made.entry(object).or_default().push(Made { version, at: self.now });
        self.next_entry += 1;
        self.feed.insert(self.next_entry, publication.encode_to_vec().into());
        self.counts.published += 1;
        let (number, delay) = (self.next_entry, self.delay());
        self.deliver(number, delay);
    }

    pub(super) fn deliver(&mut self, number: u64, delay: u64) {
        let Some(entry) = self.feed.get(&number).cloned() else { return };
        let node = self.rng.below(NODES as u64) as usize;
        let who = self.who(node, Role::Bridge);
        self.after(delay, Happening::Input(who, Input::Bridge(bridge::Input::Fed(vec![(number, entry)]))));
    }

    pub(super) fn deliver_feed(&mut self) {
        let left: Vec<u64> = self.feed.keys().copied().take(50).collect();
        for number in left {
            let delay = self.delay();
            self.deliver(number, delay);
        }
        self.after(700 * MS, Happening::Feed);
    }
}
