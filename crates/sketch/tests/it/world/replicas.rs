//! Replicas: the production one behind, a liar's tongue in front.

use super::plan::Sin;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use tidings_base::{Incarnation, Seeded};
use tidings_sketch::replica::{Replica, Service};
use tidings_sketch::sigma::Sigma;

/// Pages with versions. Every few versions of a page are errors, which nobody may remember.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    versions: BTreeMap<u64, u64>,
    written: BTreeSet<Bytes>,
    /// A write that took effect twice, if one did.
    pub twice: Option<Bytes>,
}

/// What is asked: `r PAGE`, or `w PAGE NAME`.
pub fn page_of(request: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(request);
    text.split(' ').nth(1).and_then(|page| page.parse().ok()).expect("requests are made here")
}

/// What is answered: `PAGE VERSION`, and `error` behind it if it is one.
pub fn version_of(answer: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(answer);
    text.split(' ').nth(1).and_then(|version| version.parse().ok()).unwrap_or(u64::MAX)
}

pub fn is_error(answer: &[u8]) -> bool {
    answer.ends_with(b"error")
}

pub fn text(page: u64, version: u64) -> Bytes {
    Bytes::from(format!("{page} {version}{}", if version % 6 == 5 { " error" } else { "" }))
}

impl Pages {
    pub fn read(&self, page: u64) -> Bytes {
        text(page, self.versions.get(&page).copied().unwrap_or(0))
    }
}

impl Service for Pages {
    fn execute(&mut self, _: Sigma, request: &Bytes) -> Bytes {
        let page = page_of(request);
        if request.starts_with(b"w") {
            *self.versions.entry(page).or_default() += 1;
            if !self.written.insert(request.clone()) {
                self.twice = Some(request.clone());
            }
        }
        self.read(page)
    }
}

pub struct Seat {
    pub replica: Replica<Pages>,
    pub sin: Option<Sin>,
    /// How this replica was long ago.
    pub old: Pages,
    /// Until when it executes nothing.
    pub lags_until: u64,
    /// Who waits for a command: by client and nonce.
    pub waiting: BTreeMap<(u64, u64), (super::Where, tidings_sketch::CallId, bool)>,
    pub rng: Seeded,
}

/// What leaves a replica.
pub enum Tongue {
    Says(Bytes, Option<Sigma>),
    Nothing,
}

impl Seat {
    /// What it says of a page, instead of the truth if it is a liar.
    pub fn speak(&mut self, awake: bool, truth: Bytes, page: u64, sigma: Option<Sigma>) -> Tongue {
        let made_up = |rng: &mut Seeded| text(page, 1_000_000 + rng.below(3));
        let old = self.old.read(page);
        match self.sin {
            Some(Sin::Mute) => Tongue::Nothing,
            Some(Sin::Stale) => Tongue::Says(old, sigma),
            // Always the same one, so that two of them would agree.
            Some(Sin::Forger) => Tongue::Says(text(page, 1_000_000), sigma),
            Some(Sin::Sleeper) if awake => Tongue::Says(text(page, 1_000_000), sigma),
            Some(Sin::Equivocator) => match self.rng.below(3) {
                0 => Tongue::Says(made_up(&mut self.rng), sigma),
                1 => Tongue::Says(old, sigma),
                _ => Tongue::Says(truth, sigma),
            },
            Some(Sin::Inflater) => Tongue::Says(truth, sigma.and_then(inflated)),
            Some(Sin::Sleeper) | None => Tongue::Says(truth, sigma),
        }
    }
}

fn inflated(sigma: Sigma) -> Option<Sigma> {
    Sigma::new(sigma.incarnation(), sigma.height() + 1_000_000, sigma.index())
}

pub fn replica(clients: u64) -> Replica<Pages> {
    Replica::new(Incarnation(1), 0..clients, Pages::default())
}
