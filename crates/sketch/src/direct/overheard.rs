//! What liars know, for tests and simulations: everything that replicas remember, and everything that was ever answered.

use super::{Digest, Remembered, Word};
use crate::ReplicaId;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tidings_base::Seeded;

/// Words that are kept of one client and request, to be sent again.
const CAPTURED: usize = 12;

/// What each replica remembers, and words that were captured on their way.
#[derive(Clone, Debug, Default)]
pub struct Overheard {
    held: BTreeMap<Digest, BTreeMap<ReplicaId, Remembered>>,
    answers: BTreeMap<Digest, Bytes>,
    words: BTreeMap<(u64, Digest), VecDeque<Word>>,
}

impl Overheard {
    /// A replica remembers something else of a request now; and an answer to it.
    pub fn note(&mut self, from: ReplicaId, request: &[u8], remembered: Option<Remembered>, answer: &Bytes) {
        let key = Digest::of_request(request);
        self.answers.insert(Digest::of_response(key, answer), answer.clone());
        let held = self.held.entry(key).or_default();
        match remembered {
            Some(remembered) => held.insert(from, remembered),
            None => held.remove(&from),
        };
    }

    /// A replica has forgotten everything.
    pub fn forgot(&mut self, from: ReplicaId) {
        self.held.values_mut().for_each(|held| {
            held.remove(&from);
        });
    }

    /// Something that somebody remembers: the oldest in half of all cases, so that whoever is behind is agreed with.
    pub fn any(&self, request: &[u8], rng: &mut Seeded) -> Option<(Remembered, Bytes)> {
        let held = self.held.get(&Digest::of_request(request))?;
        let different: BTreeSet<_> = held.values().map(|remembered| (remembered.sigma, remembered.sketch)).collect();
        let at = if rng.one_in(2) { 0 } else { rng.below(different.len().max(1) as u64) };
        let (sigma, sketch) = *different.iter().nth(at as usize)?;
        Some((Remembered { sketch, sigma }, self.answers.get(&sketch)?.clone()))
    }

    /// A word is on its way.
    pub fn capture(&mut self, request: &[u8], word: &Word) {
        let kept = self.words.entry((word.client, Digest::of_request(request))).or_default();
        kept.push_back(word.clone());
        if kept.len() > CAPTURED {
            kept.pop_front();
        }
    }

    /// Words to a client on a request, which honest replicas have signed.
    pub fn captured(&self, client: u64, request: &[u8]) -> VecDeque<Word> {
        self.words.get(&(client, Digest::of_request(request))).cloned().unwrap_or_default()
    }
}
