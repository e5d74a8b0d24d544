//! An ordered map whose clone costs one counter a chunk: a snapshot is taken between two commands.
//!
//! Entries lie in sorted chunks behind `Arc`s. A change copies the one chunk that a snapshot still shares, and no other.

use std::cmp::Ordering;
use std::sync::Arc;

/// The most entries of a chunk: small enough to copy in passing, large enough that there are few of them.
const FULL: usize = 64;
/// Chunks that together have no more than this are joined.
const SPARSE: usize = 24;

#[derive(Clone, Debug)]
pub(super) struct ChunkMap<K, V> {
    chunks: Vec<Chunk<K, V>>,
    len: usize,
}

#[derive(Clone, Debug)]
struct Chunk<K, V> {
    /// Not above the first entry's key, and above everything in earlier chunks.
    from: K,
    entries: Arc<Vec<(K, V)>>,
}

impl<K, V> Default for ChunkMap<K, V> {
    fn default() -> ChunkMap<K, V> {
        ChunkMap { chunks: Vec::new(), len: 0 }
    }
}

/// Equal when their entries are, however those are cut into chunks.
impl<K: Ord + Clone, V: Clone + PartialEq> PartialEq for ChunkMap<K, V> {
    fn eq(&self, other: &ChunkMap<K, V>) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<K: Ord + Clone, V: Clone> ChunkMap<K, V> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Where the key stands that `order` calls equal; `order` says how a key compares with what is looked for.
    fn locate(&self, order: impl Fn(&K) -> Ordering) -> (usize, Result<usize, usize>) {
        match self.chunks.partition_point(|chunk| order(&chunk.from) != Ordering::Greater) {
            0 => (0, Err(0)),
            after => (after - 1, self.chunks[after - 1].entries.binary_search_by(|entry| order(&entry.0))),
        }
    }

    pub(super) fn get_by(&self, order: impl Fn(&K) -> Ordering) -> Option<(&K, &V)> {
        let (chunk, Ok(at)) = self.locate(order) else { return None };
        let entry = &self.chunks[chunk].entries[at];
        Some((&entry.0, &entry.1))
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.get_by(|k| k.cmp(key)).map(|entry| entry.1)
    }

    pub(super) fn get_mut_by(&mut self, order: impl Fn(&K) -> Ordering) -> Option<(&K, &mut V)> {
        let (chunk, Ok(at)) = self.locate(order) else { return None };
        let entry = &mut Arc::make_mut(&mut self.chunks[chunk].entries)[at];
        Some((&entry.0, &mut entry.1))
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.get_mut_by(|k| k.cmp(key)).map(|entry| entry.1)
    }

    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        if self.chunks.is_empty() {
            self.chunks.push(Chunk { from: key.clone(), entries: Arc::default() });
        }
        let (chunk, at) = self.locate(|k| k.cmp(&key));
        let at = match at {
            Ok(at) => {
                let entry = &mut Arc::make_mut(&mut self.chunks[chunk].entries)[at];
                return Some(std::mem::replace(&mut entry.1, value));
            }
            Err(at) => at,
        };
        self.len += 1;
        let target = &mut self.chunks[chunk];
        if key < target.from {
            target.from = key.clone();
        }
        if target.entries.len() < FULL {
            Arc::make_mut(&mut target.entries).insert(at, (key, value));
            return None;
        }
        self.insert_full(chunk, at, key, value);
        None
    }

    /// Makes room by a new chunk. Keys that come in order leave full chunks behind.
    fn insert_full(&mut self, chunk: usize, at: usize, key: K, value: V) {
        if at == FULL {
            let fresh = Chunk { from: key.clone(), entries: Arc::new(vec![(key, value)]) };
            self.chunks.insert(chunk + 1, fresh);
            return;
        }
        let entries = Arc::make_mut(&mut self.chunks[chunk].entries);
        let mut upper = entries.split_off(FULL / 2);
        match at.checked_sub(FULL / 2) {
            Some(at) if at > 0 => upper.insert(at, (key, value)),
            _ => entries.insert(at, (key, value)),
        }
        let from = upper[0].0.clone();
        self.chunks.insert(chunk + 1, Chunk { from, entries: Arc::new(upper) });
    }

    pub(super) fn remove_by(&mut self, order: impl Fn(&K) -> Ordering) -> Option<(K, V)> {
        let (chunk, Ok(at)) = self.locate(order) else { return None };
        let entries = Arc::make_mut(&mut self.chunks[chunk].entries);
        let removed = entries.remove(at);
        self.len -= 1;
        if entries.is_empty() {
            self.chunks.remove(chunk);
        } else if entries.len() < SPARSE {
            self.join(chunk);
            self.join(chunk.saturating_sub(1));
        }
        Some(removed)
    }

    /// Joins a chunk and the next one if both are sparse.
    fn join(&mut self, chunk: usize) {
        let Some([one, next]) = self.chunks.get(chunk..chunk + 2) else { return };
        if one.entries.len() + next.entries.len() <= SPARSE {
            let next = self.chunks.remove(chunk + 1);
            Arc::make_mut(&mut self.chunks[chunk].entries).extend(next.entries.iter().cloned());
        }
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        self.remove_by(|k| k.cmp(key)).map(|entry| entry.1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.chunks.iter().flat_map(|chunk| chunk.entries.iter()).map(|entry| (&entry.0, &entry.1))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let chunks = self.chunks.iter_mut().flat_map(|chunk| Arc::make_mut(&mut chunk.entries).iter_mut());
        chunks.map(|entry| (&entry.0, &mut entry.1))
    }

    /// Entries from the first key that `order` does not call less.
    pub(super) fn starting_by(&self, order: impl Fn(&K) -> Ordering) -> impl Iterator<Item = (&K, &V)> {
        let after = self.chunks.partition_point(|chunk| order(&chunk.from) != Ordering::Greater);
        let chunk = after.saturating_sub(1);
        let at = match self.chunks.get(chunk) {
            Some(chunk) => chunk.entries.partition_point(|entry| order(&entry.0) == Ordering::Less),
            None => 0,
        };
        let entries = self.chunks.get(chunk..).unwrap_or_default().iter().flat_map(|chunk| chunk.entries.iter());
        entries.skip(at).map(|entry| (&entry.0, &entry.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn it_is_an_ordered_map(changes in proptest::collection::vec((0u16..600, any::<bool>(), any::<u8>()), 0..2_000)) {
            let mut map = ChunkMap::default();
            let mut model = BTreeMap::new();
            let mut old = None;
            for (step, (key, put, value)) in changes.into_iter().enumerate() {
                if step % 500 == 100 {
                    old = Some((map.clone(), model.clone()));
                }
                if put {
                    prop_assert_eq!(map.insert(key, value), model.insert(key, value));
                } else {
                    prop_assert_eq!(map.remove(&key), model.remove(&key));
                }
                prop_assert_eq!(map.len(), model.len());
                prop_assert_eq!(map.get(&key), model.get(&key));
                if step % 97 == 0 {
                    prop_assert!(map.starting_by(|k| k.cmp(&key)).eq(model.range(key..)));
                }
            }
            prop_assert!(map.iter().eq(model.iter()));
            if let Some((map, model)) = old {
                prop_assert!(map.iter().eq(model.iter()), "a clone does not change");
            }
        }
    }

    #[test]
    fn keys_in_order_fill_their_chunks() {
        let mut map = ChunkMap::default();
        (0..6_400u32).for_each(|key| assert_eq!(map.insert(key, ()), None));
        assert_eq!(map.chunks.len(), 100);
        (0..6_400u32).filter(|key| key % 64 != 0).for_each(|key| assert_eq!(map.remove(&key), Some(())));
        assert!(map.chunks.len() < 20, "sparse chunks are joined, and there are {}", map.chunks.len());
    }
}
