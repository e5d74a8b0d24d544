//! N1: for every object that a client wants to hear of and every publication that was acknowledged, it has heard of that version
//! or a later one, or made it, or heard that the version is unknown and fetched, beginning after the publication was called.

use super::{Invariant, Sight};
use crate::clock::SimTime;
use crate::kernel::HostId;
use crate::scenarios::notify::fact::{FIRST_GENERATION, Fact, Publication, object};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
struct Seen {
    /// The latest version that was dealt with, by generation.
    handled: BTreeMap<u32, u64>,
    made: BTreeSet<Publication>,
    fetched: Option<SimTime>,
    fetches: BTreeMap<u64, SimTime>,
}

/// The claim.
#[derive(Debug, Default)]
pub struct EveryClientLearnsTheLatestVersion {
    generation: u32,
    called: BTreeMap<Publication, SimTime>,
    published: BTreeSet<Publication>,
    intended: BTreeSet<(HostId, Bytes)>,
    seen: BTreeMap<(HostId, Bytes), Seen>,
    checks: u64,
}

impl EveryClientLearnsTheLatestVersion {
    fn seen(&mut self, device: HostId, object: &Bytes) -> &mut Seen {
        self.seen.entry((device, object.clone())).or_default()
    }

    fn missed(&self, device: HostId, name: &Bytes) -> Option<String> {
        let nothing = Seen::default();
        let seen = self.seen.get(&(device, name.clone())).unwrap_or(&nothing);
        let handled = seen.handled.get(&self.generation).copied().unwrap_or(0);
        let ours = self.published.iter().filter(|it| it.generation == self.generation && object(it.object) == name);
        for missed in ours.filter(|it| handled < it.version && !seen.made.contains(it)) {
            let called = self.called.get(missed).copied().unwrap_or_default();
            if seen.fetched.is_none_or(|began| began < called) {
                let fetched = seen.fetched;
                return Some(format!(
                    "{device} missed version {} of {name:?}, published at {called}: it has {handled} and fetched at {fetched:?}",
                    missed.version
                ));
            }
        }
        None
    }
}

impl Invariant<Fact> for EveryClientLearnsTheLatestVersion {
    fn name(&self) -> &'static str {
        "every_client_learns_the_latest_version"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Calls(publication) => drop(self.called.entry(*publication).or_insert(sight.at)),
            Fact::Published(publication) => drop(self.published.insert(*publication)),
            Fact::Made(device, publication) => {
                self.seen(*device, &object(publication.object)).made.insert(*publication);
            }
            Fact::Handled { device, object, version } => {
                let generation = u32::from(*version < FIRST_GENERATION);
                let handled = self.seen(*device, object).handled.entry(generation).or_insert(0);
                *handled = (*handled).max(*version);
            }
            Fact::Fetches { device, object, fetch } => {
                self.seen(*device, object).fetches.insert(*fetch, sight.at);
            }
            Fact::Fetched { device, object, fetch } => {
                let seen = self.seen(*device, object);
                seen.fetched = seen.fetched.max(seen.fetches.remove(fetch));
            }
            Fact::Intends { device, object, intends: true } => {
                self.intended.insert((*device, object.clone()));
            }
            Fact::Intends { device, object, intends: false } => {
                self.intended.remove(&(*device, object.clone()));
            }
            Fact::Installed(device) => self.seen.retain(|(other, _), _| other != device),
            Fact::Reset(generation) => self.generation = *generation,
            Fact::Notified { .. } | Fact::Granted(_) | Fact::Wiped | Fact::Forged { .. } | Fact::Agrees(..) => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        self.checks += self.intended.len() as u64;
        self.intended.iter().find_map(|(device, name)| self.missed(*device, name)).map_or(Ok(()), Err)
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
