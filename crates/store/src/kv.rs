//! The small ordered key-value space beneath the state, and the one in memory.

use bytes::Bytes;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use tidings_base::agreed::StateFailure;

/// Pairs in ascending order of keys, `None` after the last: what [`Kv::replace`] is filled from.
pub type Pairs<'a> = dyn FnMut() -> Result<Option<(Bytes, Bytes)>, StateFailure> + 'a;

/// What a scan does with each pair it meets, and whether it goes on.
pub type Visit<'a> = dyn FnMut(Bytes, Bytes) -> ControlFlow<()> + 'a;

/// Reads of one consistent picture.
pub trait KvView {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateFailure>;

    /// Visits the pairs from `from` up to, but not including, `to` (empty = to the end), in order.
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StateFailure>;
}

/// A handle by which other threads read while the owner writes.
pub trait KvReader: Clone + Send + Sync + 'static {
    /// A frozen picture.
    type View: KvView + Send + 'static;

    /// Freezes the present picture. Cheap; a batch is in it whole or not at all.
    fn view(&self) -> Result<Self::View, StateFailure>;
}

/// The changes of one atomic write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// By key, ascending; `None` removes.
    pub changes: Vec<(Bytes, Option<Bytes>)>,
}

/// An ordered key-value space with one writer. Reads through [`KvView`] on `self` see the latest write.
pub trait Kv: KvView + Send + 'static {
    /// The handle for readers.
    type Reader: KvReader;

    /// A handle for readers.
    fn reader(&self) -> Self::Reader;

    /// Writes all changes or none, as far as readers and the next open can tell. Need not be durable before
    /// [`flush`](Kv::flush); what is lost without one is a suffix of whole batches.
    fn write(&mut self, batch: Batch) -> Result<(), StateFailure>;

    /// Replaces everything by these pairs. On failure the old content is whole.
    fn replace(&mut self, pairs: &mut Pairs<'_>) -> Result<(), StateFailure>;

    /// Whether the content survives a restart after a flush.
    fn is_durable(&self) -> bool;

    /// Makes everything written so far durable.
    fn flush(&mut self) -> Result<(), StateFailure>;
}

/// A key-value space in memory.
///
/// A view shares the map; the first write while views live copies it once. Views are short-lived except for
/// snapshots, so that is one copy a snapshot.
#[derive(Clone, Debug, Default)]
pub struct MemoryKv {
    shared: MemoryReader,
}

/// The reader's handle of a [`MemoryKv`].
#[derive(Clone, Debug, Default)]
pub struct MemoryReader {
    map: Arc<RwLock<MemoryView>>,
}

/// A frozen picture of a [`MemoryKv`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryView {
    pairs: Arc<BTreeMap<Bytes, Bytes>>,
}

impl MemoryKv {
    /// An empty space.
    pub fn new() -> MemoryKv {
        MemoryKv::default()
    }
}

impl KvView for MemoryView {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateFailure> {
        Ok(self.pairs.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StateFailure> {
        if !to.is_empty() && from >= to {
            return Ok(());
        }
        let end = if to.is_empty() { Bound::Unbounded } else { Bound::Excluded(to) };
        for (key, value) in self.pairs.range::<[u8], _>((Bound::Included(from), end)) {
            if visit(key.clone(), value.clone()).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl KvReader for MemoryReader {
    type View = MemoryView;

    fn view(&self) -> Result<MemoryView, StateFailure> {
        Ok(self.map.read().clone())
    }
}

impl KvView for MemoryKv {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateFailure> {
        self.shared.map.read().get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StateFailure> {
        self.shared.view()?.scan(from, to, visit)
    }
}

impl Kv for MemoryKv {
    type Reader = MemoryReader;

    fn reader(&self) -> MemoryReader {
        self.shared.clone()
    }

    fn write(&mut self, batch: Batch) -> Result<(), StateFailure> {
        let mut view = self.shared.map.write();
        let pairs = Arc::make_mut(&mut view.pairs);
        for (key, value) in batch.changes {
            match value {
                Some(value) => pairs.insert(key, value),
                None => pairs.remove(&key),
            };
        }
        Ok(())
    }

    fn replace(&mut self, pairs: &mut Pairs<'_>) -> Result<(), StateFailure> {
        let mut fresh = BTreeMap::new();
        while let Some((key, value)) = pairs()? {
            fresh.insert(key, value);
        }
        self.shared.map.write().pairs = Arc::new(fresh);
        Ok(())
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn flush(&mut self) -> Result<(), StateFailure> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(kv: &mut MemoryKv, key: &'static str, value: Option<&'static str>) {
        kv.write(Batch { changes: vec![(Bytes::from(key), value.map(Bytes::from))] }).unwrap();
    }

    #[test]
    fn a_view_stays_as_it_was() {
        let mut kv = MemoryKv::new();
        put(&mut kv, "a", Some("1"));
        let reader = kv.reader();
        let view = reader.view().unwrap();
        put(&mut kv, "a", Some("2"));
        put(&mut kv, "b", Some("3"));
        assert_eq!(view.get(b"a").unwrap().unwrap(), "1");
        assert_eq!(view.get(b"b").unwrap(), None);
        assert_eq!(reader.view().unwrap().get(b"a").unwrap().unwrap(), "2");
        put(&mut kv, "a", None);
        assert_eq!(kv.get(b"a").unwrap(), None);
    }

    #[test]
    fn a_scan_keeps_its_bounds_and_stops_when_told() {
        let mut kv = MemoryKv::new();
        for key in ["a", "b", "c", "d"] {
            put(&mut kv, key, Some(key));
        }
        let seen = |from: &[u8], to: &[u8], most: usize| {
            let mut seen = Vec::new();
            kv.scan(from, to, &mut |key, _| {
                seen.push(key);
                if seen.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
            seen
        };
        assert_eq!(seen(b"b", b"d", 9), ["b", "c"]);
        assert_eq!(seen(b"b", b"", 2), ["b", "c"]);
        assert_eq!(seen(b"d", b"b", 9), [""; 0]);
    }
}
