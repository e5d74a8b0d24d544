//! R9: an ephemeral file is gone with the entry that takes its last opener away.

use super::{Invariant, Sight};
use crate::scenarios::cell::fact::{Applied, Fact};
use std::collections::{BTreeMap, BTreeSet};
use tidings_wire::v1::cell_command::Command;

/// The claim.
#[derive(Debug, Default)]
pub struct EphemeralsEndWithTheirSessions {
    /// Ephemeral files that exist: their instance, and who has them open.
    files: BTreeMap<String, (u64, BTreeSet<(u64, u64)>)>,
    checks: u64,
}

impl EphemeralsEndWithTheirSessions {
    fn applied(&mut self, applied: &Applied) {
        for (key, view) in applied.changed.iter().filter(|(key, _)| !key.listing) {
            match view.stat.as_ref().filter(|stat| stat.ephemeral && !stat.directory) {
                Some(stat) => {
                    let file = self.files.entry(key.path.clone()).or_default();
                    if file.0 != stat.instance {
                        *file = (stat.instance, BTreeSet::new());
                    }
                }
                None => {
                    self.files.remove(&key.path);
                }
            }
        }
        let session = applied.command.actor.as_ref().map_or(0, |actor| actor.session);
        match &applied.command.command {
            Some(Command::Open(open)) => {
                if let Some((_, openers)) = self.files.get_mut(&open.path) {
                    openers.insert((session, open.handle));
                }
            }
            Some(Command::Close(close)) => {
                if let Some((_, openers)) = self.files.get_mut(&close.path) {
                    openers.remove(&(session, close.handle));
                }
            }
            Some(Command::StopSession(stop)) => {
                self.files.values_mut().for_each(|(_, openers)| openers.retain(|(of, _)| *of != stop.session));
            }
            _ => {}
        }
    }
}

impl Invariant<Fact> for EphemeralsEndWithTheirSessions {
    fn name(&self) -> &'static str {
        "ephemerals_end_with_their_sessions"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        let Fact::Applied(applied) = fact else { return Ok(()) };
        if !applied.took_effect() {
            return Ok(());
        }
        self.applied(applied);
        self.checks += self.files.len() as u64;
        match self.files.iter().find(|(_, (_, openers))| openers.is_empty()) {
            Some((path, (instance, _))) => Err(format!(
                "after entry {} nobody has {path} (instance {instance}) open, and it is there",
                applied.index
            )),
            None => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
