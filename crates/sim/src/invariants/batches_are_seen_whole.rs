//! Writes to one group in one batch are seen together or not at all.

use super::{Invariant, Sight};
use crate::scenarios::store::fact::{Action, CellName, ClientFact, Outcome};
use std::collections::{BTreeMap, BTreeSet};

/// The claim.
#[derive(Debug, Default)]
pub struct BatchesAreSeenWhole {
    batches: BTreeMap<u64, Vec<CellName>>,
    tombstones: BTreeSet<(CellName, u64)>,
    checks: u64,
}

impl Invariant<ClientFact> for BatchesAreSeenWhole {
    fn name(&self) -> &'static str {
        "batches_are_seen_whole"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &ClientFact) -> Result<(), String> {
        match fact {
            ClientFact::Asked { action: Action::Write { cells, timestamp, tombstone, .. }, .. } => {
                if *tombstone {
                    self.tombstones.extend(cells.iter().map(|cell| (*cell, *timestamp)));
                } else if cells.len() > 1 {
                    self.batches.insert(*timestamp, cells.clone());
                }
                Ok(())
            }
            ClientFact::Told { outcome: Outcome::Cells(seen), .. } if seen.len() > 1 => {
                let seen: BTreeMap<CellName, Option<u64>> = seen.iter().copied().collect();
                self.look(&seen).map_err(|what| format!("{}: {what}", sight.host))
            }
            _ => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}

impl BatchesAreSeenWhole {
    fn look(&mut self, seen: &BTreeMap<CellName, Option<u64>>) -> Result<(), String> {
        for timestamp in seen.values().flatten() {
            let Some(cells) = self.batches.get(timestamp) else { continue };
            for cell in cells {
                let Some(other) = seen.get(cell) else { continue };
                self.checks += 1;
                let whole = match other {
                    Some(other) => other >= timestamp,
                    None => self.tombstones.range((*cell, *timestamp)..=(*cell, u64::MAX)).next().is_some(),
                };
                if !whole {
                    return Err(format!("a read shows a part of the batch {timestamp}: {cell:?} is at {other:?}"));
                }
            }
        }
        Ok(())
    }
}
