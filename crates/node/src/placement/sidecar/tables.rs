//! Tables that the node keeps for lookups by REST: one for each namespace in use, bounded.

use super::Sidecar;
use super::beliefs::Beliefs;
use super::through::Through;
use crate::clock::Clock;
use crate::principal::Principal;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidings_base::{Error, Mono};
use tidings_client::placement::{Lookup, LookupOptions};

/// The tables in use.
pub(super) struct Tables {
    /// As whom the node asks: itself, with full names.
    node: Principal,
    most: usize,
    clock: Arc<dyn Clock>,
    kept: Mutex<BTreeMap<String, (Lookup, Mono)>>,
}

impl Tables {
    pub(super) fn new(node: Principal, most: usize, clock: Arc<dyn Clock>) -> Tables {
        Tables { node, most, clock, kept: Mutex::default() }
    }

    /// The table of a namespace under its full name, asked for if it is not there.
    pub(super) async fn lookup(&self, sidecar: Weak<Sidecar>, full: &str, within: Duration) -> Result<Lookup, Error> {
        if let Some(lookup) = self.find(full)? {
            return Ok(lookup);
        }
        let through = Through::new(sidecar, self.node.clone(), Arc::new(Beliefs::default()), self.clock.clone());
        let mut options = LookupOptions::new(full);
        options.connect_within = within;
        let lookup = Lookup::connect(through, options).await?;
        let mut kept = self.kept.lock();
        if kept.len() >= self.most {
            let oldest = kept.iter().min_by_key(|(_, (_, last))| *last).map(|(name, _)| name.clone());
            oldest.and_then(|oldest| kept.remove(&oldest));
        }
        kept.insert(full.to_owned(), (lookup.clone(), self.clock.now().mono));
        Ok(lookup)
    }

    /// One that is there; refused, and forgotten, once its namespace is gone.
    fn find(&self, full: &str) -> Result<Option<Lookup>, Error> {
        let mut kept = self.kept.lock();
        let Some((lookup, last)) = kept.get_mut(full) else { return Ok(None) };
        *last = self.clock.now().mono;
        match lookup.refusal().filter(|refusal| refusal.code == "placement.no_namespace") {
            Some(refusal) => {
                kept.remove(full);
                Err(refusal)
            }
            None => Ok(Some(lookup.clone())),
        }
    }

    pub(super) fn close(&self) {
        self.kept.lock().clear();
    }
}
