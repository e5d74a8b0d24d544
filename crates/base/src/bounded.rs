//! Collections that cannot grow without bound: each names its bound and says no, or says what it let go.

use std::borrow::Borrow;
use std::collections::{BTreeMap, VecDeque};

/// A first-in, first-out queue with a bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundedQueue<T> {
    items: VecDeque<T>,
    bound: usize,
}

/// The item that did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full<T>(pub T);

impl<T> BoundedQueue<T> {
    /// An empty queue of at most `bound` items.
    pub fn new(bound: usize) -> Self {
        BoundedQueue { items: VecDeque::new(), bound }
    }

    /// Adds at the end, or gives the item back when the queue is full.
    pub fn push(&mut self, item: T) -> Result<(), Full<T>> {
        if self.items.len() >= self.bound {
            return Err(Full(item));
        }
        self.items.push_back(item);
        Ok(())
    }

    /// Takes from the front.
    pub fn pop(&mut self) -> Option<T> {
        self.items.pop_front()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// From the front to the end.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter()
    }
}

/// A map with a bound that lets the least recently used entry go.
#[derive(Clone, Debug)]
pub struct BoundedMap<K, V> {
    entries: BTreeMap<K, (u64, V)>,
    by_use: BTreeMap<u64, K>,
    clock: u64,
    bound: usize,
}

impl<K: Ord + Clone, V> BoundedMap<K, V> {
    /// An empty map of at most `bound` entries; `bound` is at least one.
    pub fn new(bound: usize) -> Self {
        BoundedMap { entries: BTreeMap::new(), by_use: BTreeMap::new(), clock: 0, bound: bound.max(1) }
    }

    /// Inserts or replaces, and returns the entry that had to go for it, if one had to.
    pub fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        self.remove(&key);
        let gone = if self.entries.len() >= self.bound { self.pop_oldest() } else { None };
        self.clock += 1;
        self.by_use.insert(self.clock, key.clone());
        self.entries.insert(key, (self.clock, value));
        gone
    }

    /// Looks up and marks as used.
    pub fn get<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let (used, value) = self.entries.get_mut(key)?;
        let owned = self.by_use.remove(used)?;
        self.clock += 1;
        *used = self.clock;
        self.by_use.insert(self.clock, owned);
        Some(value)
    }

    /// Removes an entry.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (used, value) = self.entries.remove(key)?;
        self.by_use.remove(&used);
        Some(value)
    }

    /// Removes the least recently used entry.
    pub fn pop_oldest(&mut self) -> Option<(K, V)> {
        let (_, key) = self.by_use.pop_first()?;
        let (_, value) = self.entries.remove(&key)?;
        Some((key, value))
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The keys from this one on, in their order.
    pub fn keys_from<'a>(&'a self, key: &K) -> impl Iterator<Item = &'a K> + use<'a, K, V> {
        self.entries.range(key..).map(|(key, _)| key)
    }

    /// All entries in the order of their keys, without marking them as used.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, (_, value))| (key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_queue_gives_the_item_back() {
        let mut queue = BoundedQueue::new(2);
        assert_eq!((queue.push(1), queue.push(2), queue.push(3)), (Ok(()), Ok(()), Err(Full(3))));
        assert_eq!((queue.pop(), queue.push(4)), (Some(1), Ok(())));
        assert_eq!(queue.iter().copied().collect::<Vec<_>>(), [2, 4]);
    }

    proptest! {
        /// The reference: a list in the order of use, newest last.
        #[test]
        fn the_map_agrees_with_a_list_in_order_of_use(
            bound in 1usize..5,
            steps in proptest::collection::vec((0u8..3, 0u8..8, any::<u16>()), 0..200),
        ) {
            let mut map = BoundedMap::new(bound);
            let mut list: Vec<(u8, u16)> = Vec::new();
            for (what, key, value) in steps {
                let at = list.iter().position(|(k, _)| *k == key);
                match what {
                    0 => {
                        at.map(|i| list.remove(i));
                        let gone = (list.len() == bound).then(|| list.remove(0));
                        list.push((key, value));
                        prop_assert_eq!(map.insert(key, value), gone);
                    }
                    1 => {
                        let expected = at.map(|i| list.remove(i));
                        list.extend(expected);
                        prop_assert_eq!(map.get(&key).copied(), expected.map(|(_, v)| v));
                    }
                    _ => {
                        let expected = at.map(|i| list.remove(i).1);
                        prop_assert_eq!(map.remove(&key), expected);
                    }
                }
                prop_assert_eq!(map.len(), list.len());
            }
        }
    }
}
