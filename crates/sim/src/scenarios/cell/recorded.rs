//! The cell's state under the log, with everything that is done to it on record.

use super::fact::{Applied, Fact, Key, View};
use crate::invariants::LogFact;
use bytes::Bytes;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use tidings_base::LogIndex;
use tidings_base::agreed::{AgreedState, Entry, Position, SnapshotChunks, StateFailure};
use tidings_cell::namespace::{CellState, Namespace, SharedNamespace, Touched};
use tidings_cell::{NodePath, Place};
use tidings_wire::v1;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// The one application of the scenario.
pub const APP: &str = "sim";

/// The digest of a command; the log's own entries have none.
pub fn digest(command: &[u8]) -> u64 {
    if command.is_empty() { 0 } else { xxh3_64(command).max(1) }
}

/// A digest of bytes that were shown; 0 for none.
pub fn shown(bytes: &[u8]) -> u64 {
    if bytes.is_empty() { 0 } else { xxh3_64(bytes).max(1) }
}

/// A digest of a listing; 0 for an empty or missing one.
pub fn listed(children: &[v1::Child]) -> u64 {
    let mut hash = Xxh3::new();
    for child in children {
        hash.update(&child.encode_length_delimited_to_vec());
    }
    if children.is_empty() { 0 } else { hash.digest().max(1) }
}

/// What all replicas of a run show to the witness: the views after the last entry that any of them applied.
#[derive(Debug, Default)]
pub struct Sightseer {
    last: u64,
    views: BTreeMap<Key, View>,
    /// Keys that are looked at after every entry, whatever it says that it touches.
    always: BTreeSet<Key>,
    /// What each command said that it touches when it was proposed, by its digest; `None` = everything.
    promised: BTreeMap<u64, Option<BTreeSet<Key>>>,
    /// Calls that are decided.
    decided: BTreeSet<(u64, u64)>,
}

/// Shared by the replicas of a run: an observer, not a part of the world.
pub type SharedSightseer = Arc<Mutex<Sightseer>>;

impl Sightseer {
    /// An observer that always looks at these nodes and their listings.
    pub fn new(paths: impl IntoIterator<Item = String>) -> Sightseer {
        let always = paths.into_iter().flat_map(|path| [Key::node(&path), Key::listing(&path)]).collect();
        Sightseer { always, ..Sightseer::default() }
    }

    /// A command is proposed that says it touches this.
    pub fn proposed(&mut self, command: u64, touched: &Touched) {
        self.promised.insert(command, keys_of(touched));
    }
}

fn keys_of(touched: &Touched) -> Option<BTreeSet<Key>> {
    match touched {
        Touched::Keys(keys) => Some(
            keys.iter()
                .filter(|key| &*key.place.app == APP)
                .map(|key| Key { path: key.place.path.as_str().to_string(), listing: key.listing })
                .collect(),
        ),
        Touched::App(_) | Touched::All => None,
    }
}

/// A path of the scenario's application as the state names it.
pub fn place(path: &str) -> Option<Place> {
    Some(Place { app: Arc::from(APP), path: NodePath::parse(path).ok()? })
}

fn look(state: &Namespace, key: &Key) -> View {
    let Some(place) = place(&key.path) else { return View::default() };
    if key.listing {
        return View { stat: None, digest: state.children(&place).map_or(0, |children| listed(&children)) };
    }
    View { stat: state.stat(&place), digest: state.contents(&place).map_or(0, |contents| shown(&contents)) }
}

/// The state of one replica.
pub struct Recorded {
    state: CellState,
    shared: SharedNamespace,
    sights: SharedSightseer,
    /// What is to be told to the claims about the log and about the cell.
    pub log: Vec<LogFact>,
    /// What is to be told about the cell.
    pub cell: Vec<Fact>,
}

impl Recorded {
    /// An empty state that this observer watches.
    pub fn new(state: CellState, sights: SharedSightseer) -> Recorded {
        let shared = state.shared();
        Recorded { state, shared, sights, log: Vec::new(), cell: Vec::new() }
    }

    /// The state, to read.
    pub fn shared(&self) -> &SharedNamespace {
        &self.shared
    }

    /// How far the state is, and a digest of all of it.
    pub fn digest(&mut self) -> Result<(LogIndex, u64), StateFailure> {
        let mut hash = Xxh3::new();
        let mut chunks = self.state.snapshot()?;
        while let Some(chunk) = chunks.next_chunk()? {
            hash.update(&chunk);
        }
        Ok((self.state.position().index, hash.digest()))
    }

    /// Applies one entry under the eyes of the observer.
    fn apply_watched(&mut self, entry: &Entry<'_>, note: Bytes) -> Result<Vec<Bytes>, StateFailure> {
        let sights = self.sights.clone();
        let mut sights = sights.lock().unwrap_or_else(PoisonError::into_inner);
        let command = v1::CellCommand::decode(entry.command).ok().filter(|_| !entry.command.is_empty());
        let touched = command.as_ref().and_then(|command| keys_of(&self.shared.read().touches(command)));
        let results = self.state.apply(std::slice::from_ref(entry), note)?;
        sights.last = entry.index.0;
        let (Some(command), Some(result)) = (command, results.first()) else { return Ok(results) };
        let result = v1::CellResult::decode(result.clone()).unwrap_or_default();
        let promised = sights.promised.remove(&digest(entry.command)).unwrap_or_else(|| touched.clone());
        let mut keys = sights.always.clone();
        match (&touched, &promised) {
            (Some(touched), Some(promised)) => keys.extend(touched.union(promised).cloned()),
            _ => keys.extend(sights.views.keys().cloned()),
        }
        let mut changed = Vec::new();
        let mut unannounced = Vec::new();
        let state = self.shared.read();
        for key in keys {
            let view = look(&state, &key);
            if sights.views.get(&key).map_or(view == View::default(), |known| *known == view) {
                continue;
            }
            let announced = |named: &Option<BTreeSet<Key>>| named.as_ref().is_none_or(|named| named.contains(&key));
            if !announced(&touched) || !announced(&promised) {
                unannounced.push(key.clone());
            }
            sights.views.insert(key.clone(), view.clone());
            changed.push((key, view));
        }
        drop(state);
        let mut applied = Applied { index: entry.index, command, result, changed, unannounced, repeat: false };
        if let Some(call) = applied.call().filter(|_| applied.decides()) {
            applied.repeat = !sights.decided.insert(call);
        }
        self.cell.push(Fact::Applied(Box::new(applied)));
        Ok(results)
    }
}

impl AgreedState for Recorded {
    fn position(&self) -> Position {
        self.state.position()
    }

    fn apply(&mut self, entries: &[Entry<'_>], note: Bytes) -> Result<Vec<Bytes>, StateFailure> {
        let mut results = Vec::with_capacity(entries.len());
        for entry in entries {
            let seen = entry.index.0 <= self.sights.lock().unwrap_or_else(PoisonError::into_inner).last;
            let mut one = if seen {
                self.state.apply(std::slice::from_ref(entry), note.clone())?
            } else {
                self.apply_watched(entry, note.clone())?
            };
            results.append(&mut one);
        }
        for (entry, result) in entries.iter().zip(&results) {
            let (command, result) = (digest(entry.command), xxh3_64(result));
            self.log.push(LogFact::Applied { index: entry.index, command, result });
        }
        Ok(results)
    }

    fn is_durable(&self) -> bool {
        self.state.is_durable()
    }

    fn flush(&mut self) -> Result<(), StateFailure> {
        self.state.flush()
    }

    fn snapshot(&mut self) -> Result<Box<dyn SnapshotChunks>, StateFailure> {
        self.state.snapshot()
    }

    fn restore(&mut self, position: Position, chunks: &mut dyn SnapshotChunks) -> Result<(), StateFailure> {
        self.log.push(LogFact::Restored { index: position.index });
        self.state.restore(position, chunks)
    }
}
