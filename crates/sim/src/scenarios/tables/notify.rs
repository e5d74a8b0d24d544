//! What stands for Notify: the latest version of each object that was published, for whoever listens. That it is told to everybody
//! in the end is what scenario `notify` shows; here a device looks now and then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use tidings_tables::names::{NetId, Object, PartitionId, Position};

/// What outlives processes.
#[derive(Clone, Debug, Default)]
pub struct Notify(Arc<Mutex<BTreeMap<Object, Position>>>);

impl Notify {
    /// Takes publications: a version never goes back.
    pub fn take(&self, publications: &[(Object, Position)]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (object, position) in publications {
            let latest = all.entry(*object).or_default();
            *latest = (*latest).max(*position);
        }
    }

    /// What a device is told that listens to these partitions.
    pub fn told(&self, netid: NetId, listens: &BTreeSet<PartitionId>) -> Vec<(Object, Position)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let objects = listens.iter().flat_map(|partition| {
            let object = |netid| Object { partition: *partition, netid };
            [object(None), object(Some(netid))]
        });
        objects.filter_map(|object| Some((object, *all.get(&object)?))).collect()
    }
}
