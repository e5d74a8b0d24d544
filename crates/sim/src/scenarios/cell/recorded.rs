//! What the entries of the log do to the cell's state, on record.

use super::fact::{Applied, CellFact, Fact, Key, View};
use super::{CLOSED, ROOM};
use crate::kernel::Effect;
use crate::scenarios::member::{Witness, digest};
use bytes::Bytes;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use tidings_base::Outbox;
use tidings_base::agreed::{AgreedState, Entry, StateFailure};
use tidings_cell::namespace::{CellState, Namespace, SharedNamespace, Touched};
use tidings_cell::{NodePath, Place};
use tidings_wire::v1;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// The one application of the scenario.
pub const APP: &str = "sim";

/// A digest of bytes that were shown; 0 for none.
pub fn shown(bytes: &[u8]) -> u64 {
    if bytes.is_empty() { 0 } else { xxh3_64(bytes).max(1) }
}

/// The path of an entry of the root's listing, if it is a node that not everybody may read.
pub fn closed_path(child: &v1::Child) -> Option<&'static str> {
    [CLOSED, ROOM].into_iter().find(|path| path.strip_prefix('/') == Some(&child.name))
}

/// A digest of a listing; 0 for an empty or missing one. Of what not everybody may read, what everybody is shown.
pub fn listed(children: &[v1::Child]) -> u64 {
    let mut hash = Xxh3::new();
    for child in children {
        match closed_path(child) {
            Some(_) => hash.update(child.name.as_bytes()),
            None => hash.update(&child.encode_length_delimited_to_vec()),
        }
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
        Touched::Keys { keys, .. } => Some(
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

/// The eyes of the observer at one replica.
pub struct Eyes {
    shared: SharedNamespace,
    sights: SharedSightseer,
    /// What is to be told about the cell.
    seen: Vec<Fact>,
}

impl Eyes {
    /// At a replica with this state.
    pub fn new(shared: SharedNamespace, sights: SharedSightseer) -> Eyes {
        Eyes { shared, sights, seen: Vec::new() }
    }

    /// Applies one entry under the eyes of the observer.
    fn apply_watched(
        &mut self,
        state: &mut CellState,
        entry: &Entry<'_>,
        note: Bytes,
    ) -> Result<Vec<Bytes>, StateFailure> {
        let sights = self.sights.clone();
        let mut sights = sights.lock().unwrap_or_else(PoisonError::into_inner);
        let command = v1::CellCommand::decode(entry.command).ok().filter(|_| !entry.command.is_empty());
        let touched = command.as_ref().and_then(|command| keys_of(&self.shared.read().touches(command)));
        let results = state.apply(std::slice::from_ref(entry), note)?;
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
        self.seen.push(Fact::Applied(Box::new(applied)));
        Ok(results)
    }
}

impl Witness<CellState> for Eyes {
    type Fact = CellFact;

    fn apply(&mut self, state: &mut CellState, entries: &[Entry<'_>], note: Bytes) -> Result<Vec<Bytes>, StateFailure> {
        let mut results = Vec::with_capacity(entries.len());
        for entry in entries {
            let seen = entry.index.0 <= self.sights.lock().unwrap_or_else(PoisonError::into_inner).last;
            let mut one = if seen {
                state.apply(std::slice::from_ref(entry), note.clone())?
            } else {
                self.apply_watched(state, entry, note.clone())?
            };
            results.append(&mut one);
        }
        Ok(results)
    }

    fn tell(&mut self, out: &mut Outbox<Effect<CellFact>>) {
        self.seen.drain(..).for_each(|fact| out.put(Effect::Fact(CellFact::Cell(fact))));
    }
}
