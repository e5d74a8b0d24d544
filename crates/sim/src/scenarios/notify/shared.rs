//! What outlives processes: the storage of installations, the backend's data, and the realm as the cell keeps it.

use super::fact::{FIRST_GENERATION, object};
use crate::kernel::HostId;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use tidings_notify::names::Caller;
use tidings_notify::rows::Realm;

/// The one application.
pub const APP: &str = "app";

/// The storage of one installation.
#[derive(Debug, Default)]
pub struct Installation {
    /// How often it was installed.
    pub installed: u64,
    /// F12: names it; storage that is cloned brings its name along.
    pub source: Bytes,
    /// It began with a copy of another's storage, and has these still to fetch.
    pub copied: BTreeSet<Bytes>,
    /// Whether it can keep the client's state.
    pub persistent: bool,
    /// What the client wants kept.
    pub state: Option<Bytes>,
    /// What the application wants to hear of.
    pub intended: BTreeSet<Bytes>,
    /// What the application has.
    pub known: BTreeMap<Bytes, u64>,
}

#[derive(Debug, Default)]
struct Everything {
    objects: u64,
    installations: BTreeMap<HostId, Installation>,
    latest: BTreeMap<Bytes, u64>,
    realm: Realm,
    failing: BTreeSet<u8>,
}

/// Shared by the processes of a run; each host reads its own part, and what stands for consistent reads elsewhere.
#[derive(Clone, Debug)]
pub struct Shared(Arc<Mutex<Everything>>);

/// Whose device it is: some share a user.
pub fn caller(host: HostId) -> Caller {
    Caller { app: APP.into(), principal: format!("user-{}", host.0 % 3) }
}

impl Shared {
    /// Nothing is known yet of so many objects.
    pub fn of(objects: u64) -> Shared {
        Shared(Arc::new(Mutex::new(Everything { objects, ..Everything::default() })))
    }

    /// How many objects there are.
    pub fn objects(&self) -> u64 {
        self.with(|all| all.objects)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Everything) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A device's storage.
    pub fn installation<T>(&self, host: HostId, act: impl FnOnce(&mut Installation) -> T) -> T {
        self.with(|all| act(all.installations.entry(host).or_default()))
    }

    /// An application is installed anew, and nothing of its storage is left; it wants the same as before.
    pub fn install(&self, host: HostId) {
        self.installation(host, |it| {
            it.installed += 1;
            it.source = Bytes::from(format!("installation-{host}-{}", it.installed));
            it.state = None;
            it.copied.clear();
            it.known.clear();
        });
    }

    /// A device begins with a copy of another's storage. False if there is nothing to copy.
    pub fn copy(&self, from: HostId, to: HostId) -> bool {
        let (state, known, source, persistent) =
            self.installation(from, |it| (it.state.clone(), it.known.clone(), it.source.clone(), it.persistent));
        let objects = self.objects();
        self.installation(to, |it| {
            let fits = state.is_some() && persistent && it.persistent;
            if fits {
                (it.state, it.known, it.source) = (state, known, source);
                it.copied = (0..objects).map(object).collect();
            }
            fits
        })
    }

    /// The name of an installation, unless another has it, too: these cannot be told apart.
    pub fn source(&self, host: HostId) -> Option<Bytes> {
        let source = self.installation(host, |it| it.source.clone());
        let alone = self.with(|all| all.installations.values().filter(|it| it.source == source).count() == 1);
        alone.then_some(source)
    }

    /// Whether the application on a device wants to hear of an object.
    pub fn intends(&self, host: HostId, object: &Bytes) -> bool {
        self.installation(host, |it| it.intended.contains(object))
    }

    /// An application has this version. It knows which versions are of its backend's present life.
    pub fn learn(&self, host: HostId, object: &Bytes, version: u64) {
        if (self.generation() == 0) != (version >= FIRST_GENERATION) {
            return;
        }
        self.installation(host, |it| {
            let known = it.known.entry(object.clone()).or_insert(0);
            *known = (*known).max(version);
        });
    }

    /// The backend's version of an object; 0 = none.
    pub fn latest(&self, object: &Bytes) -> u64 {
        self.with(|all| all.latest.get(object).copied().unwrap_or(0))
    }

    /// The backend makes a new version, so much above the last.
    pub fn make(&self, object: &Bytes, more: u64) -> u64 {
        self.with(|all| {
            let base = if all.realm.generation(APP) == 0 { FIRST_GENERATION } else { 0 };
            let latest = all.latest.entry(object.clone()).or_insert(base);
            *latest += more;
            *latest
        })
    }

    /// The realm as the cell keeps it, read consistently.
    pub fn realm(&self) -> Realm {
        self.with(|all| all.realm.clone())
    }

    /// The application's generation.
    pub fn generation(&self) -> u32 {
        self.with(|all| all.realm.generation(APP))
    }

    /// F3: something stored was lost.
    pub fn raise_incarnation(&self) {
        self.with(|all| all.realm.incarnation += 1);
    }

    /// F3: the backend was restored from a backup, and the operator resets the application.
    pub fn reset(&self) -> u32 {
        self.with(|all| {
            all.latest.clear();
            all.installations.values_mut().for_each(|it| it.known.clear());
            let generation = all.realm.generation(APP) + 1;
            all.realm.generations.insert(APP.into(), generation);
            generation
        })
    }

    /// From now on rows whose hash begins with one of these bytes fail.
    pub fn fail_rows(&self, bytes: impl IntoIterator<Item = u8>) {
        self.with(|all| all.failing = bytes.into_iter().collect());
    }

    /// Whether one of the rows from the first key to the last fails: their hashes stand behind the incarnation.
    pub fn fails(&self, first: &[u8], last: &[u8]) -> bool {
        let from = first.get(8).copied().unwrap_or(0);
        // A scan may end at the next incarnation.
        let to = if first.get(..8) == last.get(..8) { last.get(8).copied().unwrap_or(u8::MAX) } else { u8::MAX };
        self.with(|all| all.failing.range(from..=to.max(from)).next().is_some())
    }
}
