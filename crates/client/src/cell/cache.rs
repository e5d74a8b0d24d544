//! What a session may serve without asking: read by any thread, written by the session alone.
//!
//! A hit takes one hash, one shared lock of one of [`SHARDS`] shards and one look at the clock, and allocates nothing.

use super::clock::Clock;
use super::stat::{File, Listing};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use tidings_base::Mono;
use tidings_cell::NodePath;
use tidings_cell::session::CacheChange;
use tidings_wire::v1;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Enough that a dozen reading threads seldom meet; few enough that a session with an empty cache stays small.
const SHARDS: usize = 8;

/// What is cached under one key.
enum Value {
    /// A node; a stat alone may have been asked for.
    Node(File),
    /// There is no such node.
    Absent,
    /// The children of a directory.
    Listing(Listing),
}

struct Entry {
    path: NodePath,
    listing: bool,
    value: Value,
    /// Of the first answer that it was cached from: it has not changed since.
    stamp: v1::CacheStamp,
}

/// A line of its own for each: readers of one shard do not slow those of the next.
#[derive(Default)]
#[repr(align(64))]
struct Shard {
    entries: RwLock<HashMap<u64, Entry, BuildHasherDefault<Hashed>>>,
    hits: AtomicU64,
}

/// The entries and until when they may be used.
pub(crate) struct Cache {
    shards: Box<[Shard; SHARDS]>,
    /// In nanoseconds of the clock; 0 = not at all.
    until: AtomicU64,
    clock: Clock,
}

impl Cache {
    pub(crate) fn new(clock: Clock) -> Cache {
        Cache { shards: Box::default(), until: AtomicU64::new(0), clock }
    }

    /// A node with its contents, or that there is none; `None` = ask the cell.
    pub(crate) fn node(&self, path: &str) -> Option<Option<File>> {
        self.get(path, false, |entry| match &entry.value {
            Value::Node(file) => file.is_whole().then(|| Some(file.clone())),
            Value::Absent => Some(None),
            Value::Listing(_) => None,
        })
    }

    /// A node for its stat alone, or that there is none; `None` = ask the cell.
    pub(crate) fn stat(&self, path: &str) -> Option<Option<File>> {
        self.get(path, false, |entry| match &entry.value {
            Value::Node(file) => Some(Some(file.clone())),
            Value::Absent => Some(None),
            Value::Listing(_) => None,
        })
    }

    /// A directory's children; `None` = ask the cell.
    pub(crate) fn listing(&self, path: &str) -> Option<Listing> {
        self.get(path, true, |entry| match &entry.value {
            Value::Listing(listing) => Some(listing.clone()),
            _ => None,
        })
    }

    /// A node that is as it was when an answer with this stamp was given, with everybody's rights to it; `None` = ask the
    /// cell. Every change after either answer would have taken the entry away before it was made (R4, R5).
    pub(crate) fn unchanged(&self, path: &str, stamp: v1::CacheStamp) -> Option<File> {
        self.get(path, false, |entry| match &entry.value {
            Value::Node(file) if entry.stamp.epoch == stamp.epoch && entry.stamp.seq <= stamp.seq => Some(file.clone()),
            _ => None,
        })
    }

    /// R3: the clock is read after the entry, so that the entry was there while the lease held. The lease's end is read
    /// before it: else a session that lapsed, flushed and came back in between would vouch with its new lease for
    /// what was cached under the old one.
    fn get<T>(&self, path: &str, listing: bool, take: impl FnOnce(&Entry) -> Option<T>) -> Option<T> {
        let until = Mono(self.until.load(Ordering::Acquire));
        let hash = hash(path, listing);
        let shard = self.shard(hash);
        let found = match shard.entries.read().get(&hash) {
            Some(entry) if entry.listing == listing && entry.path.as_str() == path => take(entry)?,
            _ => return None,
        };
        if self.clock.mono() >= until {
            return None;
        }
        shard.hits.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// How often an answer was found here.
    pub(crate) fn hits(&self) -> u64 {
        self.shards.iter().map(|shard| shard.hits.load(Ordering::Relaxed)).sum()
    }

    /// Performs a change before anything that the session does after it.
    pub(crate) fn change(&self, change: CacheChange) {
        match change {
            CacheChange::Put { path, listing, read } => self.put(path, listing, read),
            CacheChange::Drop { path, listing } => self.drop(&path, listing),
            CacheChange::Flush => self.flush(),
            CacheChange::Until(until) => self.until.store(until.0, Ordering::Release),
        }
    }

    /// A path whose hash another one has takes its slot: it is only a cache.
    fn put(&self, path: NodePath, listing: bool, read: v1::NodeRead) {
        let stamp = read.stamp.unwrap_or_default();
        let value = match (read.stat, listing) {
            (None, _) => Value::Absent,
            (Some(_), true) => Value::Listing(Listing::new(read.children)),
            (Some(stat), false) => Value::Node(File::new(stat, read.contents)),
        };
        let hash = hash(path.as_str(), listing);
        let mut entries = self.shard(hash).entries.write();
        let same = entries.get(&hash).filter(|entry| entry.listing == listing && entry.path == path);
        let stamp = same.map_or(stamp, |entry| entry.stamp);
        entries.insert(hash, Entry { path, listing, value, stamp });
    }

    fn drop(&self, path: &NodePath, listing: bool) {
        let hash = hash(path.as_str(), listing);
        self.shard(hash).entries.write().remove(&hash);
    }

    /// Nothing is served any more.
    pub(crate) fn flush(&self) {
        for shard in self.shards.iter() {
            let old = std::mem::take(&mut *shard.entries.write());
            drop(old);
        }
    }

    fn shard(&self, hash: u64) -> &Shard {
        // From the middle: the map itself uses the lowest and the highest bits.
        &self.shards[(hash >> 32) as usize % SHARDS]
    }
}

fn hash(path: &str, listing: bool) -> u64 {
    xxh3_64_with_seed(path.as_bytes(), u64::from(listing))
}

/// Keys are hashes already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::{Instant, advance};

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).unwrap()
    }

    fn read(contents: &'static str) -> v1::NodeRead {
        let stat = v1::NodeStat { length: contents.len() as u32, instance: 1, ..Default::default() };
        v1::NodeRead { stat: Some(stat), contents: contents.into(), ..Default::default() }
    }

    fn put(cache: &Cache, at: &str, listing: bool, read: v1::NodeRead) {
        cache.change(CacheChange::Put { path: path(at), listing, read });
    }

    #[tokio::test(start_paused = true)]
    async fn entries_are_served_while_the_lease_holds() {
        let clock = Clock::Tokio(Instant::now());
        let cache = Cache::new(clock);
        put(&cache, "/a", false, read("x"));
        assert_eq!(cache.node("/a"), None, "no lease yet");
        cache.change(CacheChange::Until(clock.mono() + Duration::from_secs(1)));
        assert_eq!(cache.node("/a").unwrap().unwrap().text(), "x");
        assert_eq!(cache.node("/b"), None);
        advance(Duration::from_millis(999)).await;
        assert!(cache.node("/a").is_some());
        advance(Duration::from_millis(1)).await;
        assert_eq!(cache.node("/a"), None, "not at the very end");
        assert_eq!(cache.hits(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_absence_and_listings_are_kept_apart() {
        let cache = Cache::new(Clock::Tokio(Instant::now()));
        cache.change(CacheChange::Until(Mono::NEVER));
        put(&cache, "/a", false, read("x"));
        let child = v1::Child { name: "c".into(), ..Default::default() };
        put(&cache, "/a", true, v1::NodeRead { children: vec![child], ..read("") });
        put(&cache, "/gone", false, v1::NodeRead::default());
        let alone = v1::NodeRead { contents: Default::default(), ..read("contents") };
        put(&cache, "/stat", false, alone);
        assert_eq!(cache.listing("/a").unwrap()[0].name, "c");
        assert_eq!(cache.node("/gone"), Some(None));
        assert_eq!(cache.node("/stat"), None, "a stat alone has no contents");
        assert_eq!(cache.stat("/stat").unwrap().unwrap().stat().length, 8);
        cache.change(CacheChange::Drop { path: path("/a"), listing: true });
        assert!(cache.listing("/a").is_none() && cache.node("/a").is_some());
        cache.change(CacheChange::Flush);
        assert!(cache.node("/a").is_none() && cache.node("/gone").is_none());
    }
}
