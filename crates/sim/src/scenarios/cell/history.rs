//! The agreed order as witnesses need it: what every key showed after every entry, and which entry each call became.

use super::fact::{Applied, Key, Sighting, View};
use std::collections::BTreeMap;

/// What happened, by index of the log.
#[derive(Debug, Default)]
pub struct History {
    views: BTreeMap<Key, Vec<(u64, View)>>,
    calls: BTreeMap<(u64, u64), u64>,
    last: u64,
}

impl History {
    /// Adds the next entry.
    pub fn add(&mut self, applied: &Applied) {
        self.last = applied.index.0;
        for (key, view) in &applied.changed {
            self.views.entry(key.clone()).or_default().push((applied.index.0, view.clone()));
        }
        if let Some(call) = applied.call().filter(|_| applied.decides()) {
            self.calls.entry(call).or_insert(applied.index.0);
        }
    }

    /// What a key shows after the last entry; `None` = it never showed anything.
    pub fn present(&self, key: &Key) -> Option<&View> {
        self.views.get(key)?.last().map(|(_, view)| view)
    }

    /// What a key shows after this entry; `None` = it never showed anything before.
    pub fn at(&self, key: &Key, index: u64) -> Option<&View> {
        let views = self.views.get(key)?;
        let next = views.partition_point(|(at, _)| *at <= index);
        next.checked_sub(1).map(|at| &views[at].1)
    }

    /// The first entry after this one that changes what a key shows.
    pub fn next_change(&self, key: &Key, index: u64) -> Option<u64> {
        let views = self.views.get(key)?;
        views.get(views.partition_point(|(at, _)| *at <= index)).map(|(at, _)| *at)
    }

    /// The last entry so far.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The entry that a numbered call became, if it did.
    pub fn entry_of(&self, session: u64, number: u64) -> Option<u64> {
        self.calls.get(&(session, number)).copied()
    }

    /// The first index from `floor` on at which `holds` is true of what the key showed.
    pub fn first(&self, key: &Key, floor: u64, holds: impl Fn(&View) -> bool) -> Option<u64> {
        let nothing = View::default();
        let views = self.views.get(key).map_or(&[][..], Vec::as_slice);
        let next = views.partition_point(|(index, _)| *index <= floor);
        let present = next.checked_sub(1).map_or(&nothing, |at| &views[at].1);
        if holds(present) {
            return Some(floor);
        }
        views[next..].iter().find(|(_, view)| holds(view)).map(|(index, _)| *index)
    }

    /// The first index from `floor` on at which the key showed this.
    pub fn first_fit(&self, sighting: &Sighting, floor: u64) -> Option<u64> {
        self.first(&sighting.key, floor, |view| sighting.fits(view))
    }

    /// The last index up to which the key showed this, for messages.
    pub fn last_fit(&self, sighting: &Sighting) -> Option<(u64, u64)> {
        let views = self.views.get(&sighting.key)?;
        let at = views.iter().rposition(|(_, view)| sighting.fits(view))?;
        Some((views[at].0, views.get(at + 1).map_or(u64::MAX, |(index, _)| index - 1)))
    }
}
