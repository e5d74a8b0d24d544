//! A simulated disk that forgets, tears, flips and fills up: [`SimDisk`].
//!
//! ```
//! use std::sync::Arc;
//! use tidings_base::{Seeded, disk::Disk};
//! use tidings_log::testing::SimDisk;
//!
//! let disk = SimDisk::new(7);                       // cheap to clone; clones are the same disk
//! let mut file = disk.create("a")?;
//! disk.sync_dir()?;                                 // now the name survives
//! file.write_at(0, b"kept")?;
//! file.sync()?;                                     // now the bytes survive
//! file.write_at(4, b" or not")?;
//! disk.crash(&mut Seeded::new(1));                  // power loss: each unsynced sector is old, new, or torn
//! assert!(file.sync().is_err());                    // handles of the dead process are dead
//! let mut start = [0; 4];
//! disk.open("a")?.read_at(0, &mut start)?;
//! assert_eq!(&start, b"kept");
//! # Ok::<(), std::io::Error>(())
//! ```
//! Faults: [`SimDisk::crash`] (power loss), [`SimDisk::kill`] (process death: nothing is lost, handles die),
//! [`SimDisk::stop_after`] (so that either strikes in the middle of a call), [`SimDisk::set_full_at`], [`SimDisk::fail_write_after`], [`SimDisk::fail_sync_after`],
//! [`SimDisk::fail_read_after`], [`SimDisk::flip_bit`], [`SimDisk::cut_file`], [`SimDisk::lose_file`],
//! [`SimDisk::lie_about_sync`]. Everything is decided by the seed and by the generator handed to `crash`.

mod file;

use file::{File, Mood};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use tidings_base::Seeded;
use tidings_base::disk::{Disk, DiskFile};

/// What the disk writes at once: a sector is old or new after a crash, or new up to some byte and old after it, as
/// when two writes to it were on their way.
pub const SECTOR: usize = 512;

/// A simulated disk with one directory; clones are the same disk.
#[derive(Clone)]
pub struct SimDisk {
    inner: Arc<Mutex<Inner>>,
}

/// How often a disk was asked for what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Writes to files.
    pub writes: u64,
    /// Bytes in them.
    pub bytes_written: u64,
    /// Syncs of files.
    pub syncs: u64,
    /// Syncs of the directory.
    pub dir_syncs: u64,
    /// Power losses and process deaths.
    pub crashes: u64,
}

struct Inner {
    rng: Seeded,
    /// Grows with every crash; handles of earlier processes are dead.
    process: u64,
    files: BTreeMap<u64, File>,
    next_file: u64,
    /// The directory as the running process sees it.
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    /// What was done to the directory since it was last synced.
    pending_names: Vec<NameChange>,
    counts: Counts,
    used: u64,
    full_at: Option<u64>,
    fail_write: Option<(u64, io::ErrorKind)>,
    fail_sync: Option<(u64, io::ErrorKind)>,
    fail_read: Option<(u64, io::ErrorKind)>,
    lying: bool,
    /// How many more changes are performed before nothing is any more.
    stop_after: Option<u64>,
}

#[derive(Clone)]
enum NameChange {
    Set(String, u64),
    Renamed(String, String, u64),
    Removed(String),
}

impl SimDisk {
    /// An empty disk; the seed decides how much of a failing write gets through.
    pub fn new(seed: u64) -> SimDisk {
        let inner = Inner {
            rng: Seeded::new(seed),
            process: 0,
            files: BTreeMap::new(),
            next_file: 0,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            counts: Counts::default(),
            used: 0,
            full_at: None,
            fail_write: None,
            fail_sync: None,
            fail_read: None,
            lying: false,
            stop_after: None,
        };
        SimDisk { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Power loss: what was not synced is kept, lost or torn, sector by sector and name by name; all open handles
    /// are dead; faults that were armed are gone, a full disk stays full.
    pub fn crash(&self, rng: &mut Seeded) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let mood = Mood::draw(rng);
        let mut names = std::mem::take(&mut inner.durable_names);
        for change in inner.pending_names.drain(..) {
            if mood.keeps(rng) {
                change.apply(&mut names);
            }
        }
        for file in inner.files.values_mut() {
            file.crash(rng);
        }
        inner.durable_names = names.clone();
        inner.names = names;
        inner.forget_unnamed();
        inner.die();
    }

    /// The process dies but the machine lives: nothing is lost, nothing becomes durable, all open handles are dead.
    pub fn kill(&self) {
        self.inner.lock().die();
    }

    /// Lets the disk hold at most this many bytes, `None` for no limit. Files count with their whole length.
    pub fn set_full_at(&self, bytes: Option<u64>) {
        self.inner.lock().full_at = bytes;
    }

    /// Lets one write (or change of length) fail after `more` that succeed; a part of it is written.
    pub fn fail_write_after(&self, more: u64, kind: io::ErrorKind) {
        self.inner.lock().fail_write = Some((more, kind));
    }

    /// Lets one sync (of a file or of the directory) fail after `more` that succeed. What it should have written may never be written,
    /// whatever later syncs say, unless it is written to the file again.
    pub fn fail_sync_after(&self, more: u64, kind: io::ErrorKind) {
        self.inner.lock().fail_sync = Some((more, kind));
    }

    /// Lets one read fail after `more` that succeed.
    pub fn fail_read_after(&self, more: u64, kind: io::ErrorKind) {
        self.inner.lock().fail_read = Some((more, kind));
    }

    /// Lets `more` changes (writes, syncs, creations, renames, removals) happen and fails everything after them, until
    /// [`crash`](SimDisk::crash) or [`kill`](SimDisk::kill): for the process it is as if it had died there.
    pub fn stop_after(&self, more: u64) {
        self.inner.lock().stop_after = Some(more);
    }

    /// Lets every sync, of files and of the directory, say that it succeeded without doing anything.
    pub fn lie_about_sync(&self, lie: bool) {
        self.inner.lock().lying = lie;
    }

    /// Flips one bit (counted from the start of the file), durably; says whether the file has that bit.
    pub fn flip_bit(&self, name: &str, bit: u64) -> bool {
        let mut inner = self.inner.lock();
        let Some(file) = inner.named(name) else { return false };
        let (at, mask) = ((bit / 8) as usize, 1 << (bit % 8));
        let Some(byte) = file.data.get_mut(at) else { return false };
        *byte ^= mask;
        let sector = (at / SECTOR) as u32;
        for old in [file.unsynced.get_mut(&sector), file.forsaken.get_mut(&sector)].into_iter().flatten() {
            old[at % SECTOR] ^= mask;
        }
        true
    }

    /// Flips a bit of some file, durably, and says which.
    pub fn flip_some_bit(&self, rng: &mut Seeded) -> Option<(String, u64)> {
        let files: Vec<(String, u64)> = self.files().into_iter().filter(|(_, len)| *len > 0).collect();
        let (name, len) = rng.pick(&files)?.clone();
        let bit = rng.below(len * 8);
        self.flip_bit(&name, bit).then_some((name, bit))
    }

    /// Cuts a file, durably; says whether it was that long.
    pub fn cut_file(&self, name: &str, len: u64) -> bool {
        let mut inner = self.inner.lock();
        let Some(file) = inner.named(name).filter(|file| file.data.len() as u64 >= len) else { return false };
        let before = file.data.len() as u64;
        file.set_len(len as usize);
        file.sync();
        inner.used -= before - len;
        true
    }

    /// Removes a file, durably; says whether it was there.
    pub fn lose_file(&self, name: &str) -> bool {
        let mut inner = self.inner.lock();
        let there = inner.names.remove(name).is_some();
        inner.durable_names.remove(name);
        inner.pending_names.push(NameChange::Removed(name.to_owned()));
        inner.forget_unnamed();
        there
    }

    /// All files with their lengths, in order.
    pub fn files(&self) -> Vec<(String, u64)> {
        let inner = self.inner.lock();
        inner.names.iter().map(|(name, id)| (name.clone(), inner.files[id].data.len() as u64)).collect()
    }

    /// The bytes of a file as the running process sees them.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        self.inner.lock().named(name).map(|file| file.data.clone())
    }

    /// A disk of its own with the same files as the running process sees them, all of it durable.
    pub fn duplicate(&self) -> SimDisk {
        let copy = SimDisk::new(0);
        let from = self.inner.lock();
        let mut to = copy.inner.lock();
        for (name, id) in &from.names {
            let data = from.files[id].data.clone();
            to.used += data.len() as u64;
            to.files.insert(*id, File { durable_len: data.len(), data, ..File::default() });
            to.names.insert(name.clone(), *id);
            to.durable_names.insert(name.clone(), *id);
        }
        to.next_file = from.next_file;
        drop(to);
        copy
    }

    /// How often it was asked for what.
    pub fn counts(&self) -> Counts {
        self.inner.lock().counts
    }

    /// How many bytes its files have.
    pub fn used(&self) -> u64 {
        self.inner.lock().used
    }

    fn handle(&self, id: u64, process: u64) -> Box<dyn DiskFile> {
        Box::new(SimFile { disk: self.clone(), id, process })
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            NameChange::Set(name, id) => {
                names.insert(name.clone(), *id);
            }
            NameChange::Renamed(from, to, id) => {
                if names.get(from) == Some(id) {
                    names.remove(from);
                }
                names.insert(to.clone(), *id);
            }
            NameChange::Removed(name) => {
                names.remove(name);
            }
        }
    }
}

impl Inner {
    fn named(&mut self, name: &str) -> Option<&mut File> {
        let id = self.names.get(name)?;
        self.files.get_mut(id)
    }

    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.pending_names.push(change);
    }

    fn die(&mut self) {
        self.process += 1;
        self.counts.crashes += 1;
        (self.fail_write, self.fail_sync, self.fail_read) = (None, None, None);
        self.stop_after = None;
    }

    /// Fails if everything has stopped, which a change may bring nearer.
    fn go_on(&mut self, changes: bool) -> io::Result<()> {
        match &mut self.stop_after {
            Some(0) => Err(io::Error::new(io::ErrorKind::BrokenPipe, "the simulated machine has stopped")),
            Some(more) => {
                *more -= u64::from(changes);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Frees files that no name leads to, now or after a crash. Handles that are still open on one fail.
    fn forget_unnamed(&mut self) {
        let (names, durable, pending) = (&self.names, &self.durable_names, &self.pending_names);
        let mut used = 0;
        self.files.retain(|id, file| {
            let named = names.values().chain(durable.values()).any(|other| other == id)
                || pending.iter().any(|change| match change {
                    NameChange::Set(_, other) | NameChange::Renamed(_, _, other) => other == id,
                    NameChange::Removed(_) => false,
                });
            used += if named { file.data.len() as u64 } else { 0 };
            named
        });
        self.used = used;
    }

    /// Makes room for `more` bytes or fails as a full disk does.
    fn take_room(&mut self, more: u64) -> io::Result<()> {
        if self.full_at.is_some_and(|full| more > 0 && self.used + more > full) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the simulated disk is full"));
        }
        self.used += more;
        Ok(())
    }
}

/// Counts down to an armed fault; answers it when it is due.
fn due(armed: &mut Option<(u64, io::ErrorKind)>) -> Option<io::Error> {
    let (more, kind) = armed.as_mut()?;
    if *more > 0 {
        *more -= 1;
        return None;
    }
    let kind = *kind;
    *armed = None;
    Some(io::Error::new(kind, "simulated failure of the disk"))
}

fn not_found(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{name}: no such file"))
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut inner = self.inner.lock();
        inner.go_on(false)?;
        Ok(inner.names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut inner = self.inner.lock();
        inner.go_on(false)?;
        let id = inner.names.get(name).copied().ok_or_else(|| not_found(name))?;
        Ok(self.handle(id, inner.process))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut inner = self.inner.lock();
        inner.go_on(true)?;
        if inner.names.contains_key(name) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{name}: exists already")));
        }
        inner.next_file += 1;
        let id = inner.next_file;
        inner.files.insert(id, File::default());
        inner.change(NameChange::Set(name.to_owned(), id));
        Ok(self.handle(id, inner.process))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.go_on(true)?;
        let id = inner.names.get(from).copied().ok_or_else(|| not_found(from))?;
        inner.change(NameChange::Renamed(from.to_owned(), to.to_owned(), id));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.go_on(true)?;
        if !inner.names.contains_key(name) {
            return Err(not_found(name));
        }
        inner.change(NameChange::Removed(name.to_owned()));
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.go_on(true)?;
        inner.counts.dir_syncs += 1;
        if inner.lying {
            return Ok(());
        }
        if let Some(error) = due(&mut inner.fail_sync) {
            return Err(error);
        }
        if !inner.pending_names.is_empty() {
            inner.pending_names.clear();
            inner.durable_names = inner.names.clone();
            inner.forget_unnamed();
        }
        Ok(())
    }
}

struct SimFile {
    disk: SimDisk,
    id: u64,
    process: u64,
}

impl SimFile {
    fn with<T>(&self, changes: bool, act: impl FnOnce(&mut Inner, u64) -> io::Result<T>) -> io::Result<T> {
        let mut inner = self.disk.inner.lock();
        if inner.process != self.process || !inner.files.contains_key(&self.id) {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the file's handle is dead"));
        }
        inner.go_on(changes)?;
        act(&mut inner, self.id)
    }
}

fn file(inner: &mut Inner, id: u64) -> io::Result<&mut File> {
    inner.files.get_mut(&id).ok_or_else(|| io::Error::other("the file is gone"))
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.with(false, |inner, id| Ok(file(inner, id)?.data.len() as u64))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.with(false, |inner, id| {
            if let Some(error) = due(&mut inner.fail_read) {
                return Err(error);
            }
            let data = &file(inner, id)?.data;
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            let bytes = start.checked_add(buf.len()).and_then(|end| data.get(start..end));
            let bytes = bytes.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
            buf.copy_from_slice(bytes);
            Ok(())
        })
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.with(true, |inner, id| {
            inner.counts.writes += 1;
            inner.counts.bytes_written += bytes.len() as u64;
            let start = offset as usize;
            let mut failure = due(&mut inner.fail_write);
            let mut len = bytes.len();
            let grows = (start + len).saturating_sub(file(inner, id)?.data.len()) as u64;
            if failure.is_none() {
                failure = inner.take_room(grows).err();
            }
            if failure.is_some() {
                // A part gets through, but only where the file has room already.
                let room = file(inner, id)?.data.len().saturating_sub(start).min(len);
                len = inner.rng.between(0, room as u64) as usize;
            }
            let file = file(inner, id)?;
            if failure.is_none() && grows > 0 {
                file.set_len(start + len);
            }
            if len > 0 {
                file.touch(start, start + len);
                file.data[start..start + len].copy_from_slice(&bytes[..len]);
            }
            failure.map_or(Ok(()), Err)
        })
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.with(true, |inner, id| {
            if let Some(error) = due(&mut inner.fail_write) {
                return Err(error);
            }
            let before = file(inner, id)?.data.len() as u64;
            inner.take_room(len.saturating_sub(before))?;
            inner.used -= before.saturating_sub(len);
            file(inner, id)?.set_len(len as usize);
            Ok(())
        })
    }

    fn sync(&mut self) -> io::Result<()> {
        self.with(true, |inner, id| {
            inner.counts.syncs += 1;
            if inner.lying {
                return Ok(());
            }
            let failure = due(&mut inner.fail_sync);
            let file = file(inner, id)?;
            if let Some(error) = failure {
                let unsynced = std::mem::take(&mut file.unsynced);
                file.forsaken.extend(unsynced);
                return Err(error);
            }
            file.sync();
            Ok(())
        })
    }
}
