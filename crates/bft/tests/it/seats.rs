//! Groups of four on the model of the order.

use crate::ports::free_address;
use std::ops::{Deref, DerefMut};
use tempfile::TempDir;
use tidings_bft::kv::KeyValue;
use tidings_bft::seat::Durable;
use tidings_bft::sin::Sin;
use tidings_bft::testing::{self, Part};

/// A group, and the directory in which it lives.
pub struct Modelled<S> {
    group: testing::Modelled<S>,
    _directory: TempDir,
}

impl<S> Deref for Modelled<S> {
    type Target = testing::Modelled<S>;
    fn deref(&self) -> &testing::Modelled<S> {
        &self.group
    }
}

impl<S> DerefMut for Modelled<S> {
    fn deref_mut(&mut self) -> &mut testing::Modelled<S> {
        &mut self.group
    }
}

/// A group of key-value services.
pub async fn start(seed: u64, sins: [Option<Sin>; 4]) -> Modelled<KeyValue> {
    start_with(seed, sins, KeyValue::default()).await
}

/// A group of some service.
pub async fn start_with<S: Durable>(seed: u64, sins: [Option<Sin>; 4], empty: S) -> Modelled<S> {
    let directory = tempfile::tempdir().unwrap();
    let part = |sin| Part { addresses: (free_address(), free_address()), service: empty.clone(), sin };
    let group = testing::Modelled::start(directory.path(), seed, 3, sins.map(part).into()).await.unwrap();
    Modelled { group, _directory: directory }
}
