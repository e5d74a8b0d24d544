//! N3: what servers lost is told as an unknown version, never met with silence: after a loss everybody is told of everything that
//! it wants to hear of, as unknown or as what was published since.

use super::{Invariant, Sight};
use crate::clock::SimTime;
use crate::kernel::HostId;
use crate::scenarios::notify::fact::{Fact, object};
use bytes::Bytes;
use std::collections::BTreeMap;

/// The claim.
#[derive(Debug, Default)]
pub struct LostStateBecomesUnknown {
    lost: Option<SimTime>,
    /// When each was last told of what it wants to hear of; `None` = not yet.
    told: BTreeMap<(HostId, Bytes), Option<SimTime>>,
    checks: u64,
}

impl LostStateBecomesUnknown {
    fn tell(&mut self, device: HostId, object: Bytes, at: SimTime) {
        if let Some(told) = self.told.get_mut(&(device, object)) {
            *told = Some(at);
        }
    }
}

impl Invariant<Fact> for LostStateBecomesUnknown {
    fn name(&self) -> &'static str {
        "lost_state_becomes_unknown"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Intends { device, object, intends: true } => {
                self.told.insert((*device, object.clone()), None);
            }
            Fact::Intends { device, object, intends: false } => {
                self.told.remove(&(*device, object.clone()));
            }
            Fact::Notified { device, object, .. } | Fact::Fetches { device, object, .. } => {
                self.tell(*device, object.clone(), sight.at);
            }
            Fact::Made(device, publication) => self.tell(*device, object(publication.object), sight.at),
            Fact::Wiped | Fact::Reset(_) => self.lost = Some(sight.at),
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        let Some(lost) = self.lost else { return Ok(()) };
        self.checks += self.told.len() as u64;
        // Whoever came to want it after the loss may know its version already.
        let silent = self.told.iter().find(|(_, told)| told.is_some_and(|at| at < lost));
        match silent {
            Some(((device, object), _)) => Err(format!("{device} was not told of {object:?} since the loss at {lost}")),
            None => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
