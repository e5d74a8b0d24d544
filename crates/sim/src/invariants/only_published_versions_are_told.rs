//! N2: nobody is told of a version for which `publish` was not called.

use super::{Invariant, Sight};
use crate::scenarios::notify::fact::{Fact, object};
use bytes::Bytes;
use std::collections::BTreeSet;

/// The claim.
#[derive(Debug, Default)]
pub struct OnlyPublishedVersionsAreTold {
    called: BTreeSet<(Bytes, u64)>,
    checks: u64,
}

impl Invariant<Fact> for OnlyPublishedVersionsAreTold {
    fn name(&self) -> &'static str {
        "only_published_versions_are_told"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Calls(publication) => {
                self.called.insert((object(publication.object), publication.version));
            }
            Fact::Notified { device, object, version } => {
                self.checks += 1;
                if !self.called.contains(&(object.clone(), *version)) {
                    return Err(format!(
                        "{device} was told of version {version} of {object:?}, which nobody published"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
