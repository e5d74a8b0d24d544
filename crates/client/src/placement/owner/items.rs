//! State by key, stamped with the lease under which it was made: what [`Owner::with`](super::Owner::with) works on.

use super::Interrupted;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tidings_base::{KeyHash, KeyRange, LeaseNumber};
use tidings_placement::Leased;

/// Shards, so that threads that work on different keys rarely meet. Keys are put there by their hash.
const SHARDS: usize = 64;

/// States that arrived and were not granted yet, at most; the oldest goes, and its grant will be refused.
const MOST_STAGED: usize = 1_024;

/// State by key. Cheap to clone; all clones share it.
///
/// Each item carries the number of the lease under which it was last touched. An item of an earlier lease is never seen: it
/// may lack what another owner did meanwhile.
pub struct Items<V> {
    inner: Arc<Inner<V>>,
}

impl<V> Clone for Items<V> {
    fn clone(&self) -> Self {
        Items { inner: self.inner.clone() }
    }
}

impl<V> Default for Items<V> {
    fn default() -> Self {
        Items::new()
    }
}

struct Inner<V> {
    shards: Vec<Shard<V>>,
    /// By token, and in the order of arrival by the number before it.
    staged: Mutex<Staged<V>>,
}

/// Items whose hashes end alike.
type Shard<V> = Mutex<HashMap<Box<[u8]>, Item<V>>>;

struct Item<V> {
    hash: KeyHash,
    lease: LeaseNumber,
    /// `None` only while an operation runs, or where one panicked.
    value: Option<V>,
}

struct Staged<V> {
    next: u64,
    arrived: BTreeMap<u64, (u64, Entries<V>)>,
}

/// Keys with their state.
type Entries<V> = Vec<(Vec<u8>, V)>;

impl<V> Items<V> {
    /// No items.
    pub fn new() -> Items<V> {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Items { inner: Arc::new(Inner { shards, staged: Mutex::new(Staged { next: 0, arrived: BTreeMap::new() }) }) }
    }

    /// How many items there are, stale ones included until they are noticed.
    pub fn len(&self) -> usize {
        self.inner.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Steps 2 and 3: state of an earlier lease is discarded, then the operation runs and what it leaves is stamped.
    pub(super) fn operate<R>(
        &self,
        key: &[u8],
        hash: KeyHash,
        lease: LeaseNumber,
        operate: impl FnOnce(&mut Option<V>) -> R,
    ) -> Result<R, Interrupted> {
        let mut shard = self.inner.shard(hash).lock();
        if !shard.contains_key(key) {
            shard.insert(key.into(), Item { hash, lease, value: None });
        }
        let Some(item) = shard.get_mut(key) else { return Err(Interrupted::Unknown) };
        if item.lease > lease {
            // Another thread has seen a later lease: the check that brought us here is of the past.
            return Err(Interrupted::Unknown);
        }
        if item.lease < lease {
            *item = Item { hash, lease, value: None };
        }
        let answer = operate(&mut item.value);
        if item.value.is_none() {
            shard.remove(key);
        }
        Ok(answer)
    }

    /// The state of a range under its lease, for a hand-over: copied while the range is frozen, so nothing changes it.
    pub fn export(&self, leased: Leased) -> Vec<(Vec<u8>, V)>
    where
        V: Clone,
    {
        let mut entries = Vec::new();
        for shard in &self.inner.shards {
            let shard = shard.lock();
            let ours = shard.iter().filter(|(_, item)| item.lease == leased.lease && leased.range.contains(item.hash));
            entries.extend(ours.filter_map(|(key, item)| Some((key.to_vec(), item.value.clone()?))));
        }
        entries
    }

    /// Puts arrived state aside until its lease is granted; the token that had to go for it, if one had to.
    pub(super) fn stage(&self, token: u64, entries: Entries<V>) -> Option<u64> {
        let mut staged = self.inner.staged.lock();
        staged.next += 1;
        let at = staged.next;
        staged.arrived.insert(token, (at, entries));
        if staged.arrived.len() <= MOST_STAGED {
            return None;
        }
        let oldest = staged.arrived.iter().min_by_key(|(_, (at, _))| *at).map(|(token, _)| *token)?;
        staged.arrived.remove(&oldest);
        Some(oldest)
    }

    pub(super) fn is(&self, stamped: &Arc<dyn Stamped>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.inner), Arc::as_ptr(stamped))
    }
}

impl<V: Send + 'static> Items<V> {
    pub(super) fn stamped(&self) -> Arc<dyn Stamped> {
        self.inner.clone()
    }
}

/// Items as their owner knows them, whatever they are.
pub(super) trait Stamped: Send + Sync {
    /// State that arrived under this token is of this lease from now on.
    fn restamp(&self, leased: Leased, token: u64);
    /// What arrived under this token is not wanted any more.
    fn unstage(&self, token: u64);
    /// These are held no more.
    fn revoke(&self, revoked: &[Leased]);
}

impl<V> Inner<V> {
    fn shard(&self, hash: KeyHash) -> &Shard<V> {
        // The low bits: the high ones are much alike within a range.
        &self.shards[hash.0 as usize % SHARDS]
    }

    fn put(&self, leased: Leased, entries: Entries<V>) -> Entries<V> {
        let mut rest = Vec::new();
        for (key, value) in entries {
            let hash = KeyHash::of(&key);
            if leased.range.contains(hash) {
                self.shard(hash).lock().insert(key.into(), Item { hash, lease: leased.lease, value: Some(value) });
            } else {
                rest.push((key, value));
            }
        }
        rest
    }
}

impl<V: Send> Stamped for Inner<V> {
    fn restamp(&self, leased: Leased, token: u64) {
        let mut staged = self.staged.lock();
        let Staged { arrived, .. } = &mut *staged;
        for (of, (_, entries)) in arrived.iter_mut() {
            if *of == token {
                // A move is of one range, but the manager may have cut it since.
                *entries = self.put(leased, std::mem::take(entries));
            } else {
                // Of a move that was given up after its state had arrived: others have changed it since.
                entries.retain(|(key, _)| !leased.range.contains(KeyHash::of(key)));
            }
        }
        arrived.retain(|_, (_, entries)| !entries.is_empty());
    }

    fn unstage(&self, token: u64) {
        self.staged.lock().arrived.remove(&token);
    }

    /// Nobody could see them any more; this only frees their memory.
    fn revoke(&self, revoked: &[Leased]) {
        let gone: HashMap<LeaseNumber, Vec<KeyRange>> = revoked.iter().fold(HashMap::new(), |mut gone, leased| {
            gone.entry(leased.lease).or_insert_with(Vec::new).push(leased.range);
            gone
        });
        for shard in &self.shards {
            shard.lock().retain(|_, item| {
                let ranges = gone.get(&item.lease);
                !ranges.is_some_and(|ranges| ranges.iter().any(|range| range.contains(item.hash)))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(n: u32) -> LeaseNumber {
        LeaseNumber::new(n).unwrap()
    }

    fn set(items: &Items<u64>, key: &str, number: u32, to: u64) -> Result<Option<u64>, Interrupted> {
        let hash = KeyHash::of(key.as_bytes());
        items.operate(key.as_bytes(), hash, lease(number), |state| state.replace(to))
    }

    #[test]
    fn state_of_an_earlier_lease_is_never_seen_and_that_of_a_later_one_never_touched() {
        let items = Items::new();
        assert_eq!(set(&items, "k", 3, 1), Ok(None));
        assert_eq!(set(&items, "k", 3, 2), Ok(Some(1)));
        assert_eq!(set(&items, "k", 4, 3), Ok(None), "state of lease 3 is stale");
        assert_eq!(set(&items, "k", 3, 9), Err(Interrupted::Unknown));
        assert_eq!(set(&items, "k", 4, 4), Ok(Some(3)));
    }

    #[test]
    fn what_arrives_is_served_under_the_new_lease_only() {
        let (from, to) = (Items::new(), Items::new());
        set(&from, "a", 1, 10).unwrap();
        set(&from, "b", 2, 20).unwrap();
        let range = KeyRange::point(KeyHash::of(b"a"));
        let moved = from.export(Leased { range, lease: lease(1) });
        assert_eq!(moved, [(b"a".to_vec(), 10)]);
        assert_eq!(to.stage(77, moved), None);
        assert!(to.is_empty());
        to.stamped().restamp(Leased { range, lease: lease(5) }, 77);
        assert_eq!(set(&to, "a", 5, 11), Ok(Some(10)));
        to.stamped().revoke(&[Leased { range, lease: lease(5) }]);
        assert!(to.is_empty());
    }

    #[test]
    fn what_an_earlier_move_left_behind_never_comes_back() {
        // The token of the later move may be the smaller or the larger one.
        for (given_up, done) in [(1, 2), (2, 1)] {
            let items = Items::new();
            let range = KeyRange::point(KeyHash::of(b"a"));
            items.stage(given_up, vec![(b"a".to_vec(), 10), (b"b".to_vec(), 20)]);
            items.stage(done, vec![(b"a".to_vec(), 11)]);
            items.stamped().restamp(Leased { range, lease: lease(5) }, done);
            assert_eq!(set(&items, "a", 5, 12), Ok(Some(11)), "{given_up} {done}");
            let other = KeyRange::point(KeyHash::of(b"b"));
            items.stamped().restamp(Leased { range: other, lease: lease(6) }, given_up);
            assert_eq!(set(&items, "b", 6, 21), Ok(Some(20)), "what lies elsewhere is left alone");
            items.stamped().restamp(Leased { range, lease: lease(7) }, given_up);
            assert_eq!(set(&items, "a", 7, 13), Ok(None), "the older state is gone");
        }
    }

    #[test]
    fn arrivals_that_are_never_granted_do_not_pile_up() {
        let items = Items::<u64>::new();
        for token in 1..=MOST_STAGED as u64 {
            assert_eq!(items.stage(token, vec![]), None);
        }
        assert_eq!(items.stage(9_999, vec![]), Some(1));
        items.stamped().unstage(2);
        assert_eq!(items.stage(10_000, vec![]), None);
    }
}
