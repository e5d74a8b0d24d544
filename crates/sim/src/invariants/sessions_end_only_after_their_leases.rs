//! R3, R6: no session is ended as lost while its client may still believe in its lease, nor while it serves from its cache.

use super::{Invariant, Sight};
use crate::kernel::HostId;
use crate::scenarios::cell::fact::{Condition, Fact};
use std::collections::BTreeMap;
use tidings_base::Mono;
use tidings_wire::v1::cell_command::Command;

#[derive(Debug)]
struct Belief {
    host: HostId,
    lease: Mono,
    serves: Mono,
}

/// The claim.
#[derive(Debug, Default)]
pub struct SessionsEndOnlyAfterTheirLeases {
    beliefs: BTreeMap<u64, Belief>,
    checks: u64,
}

impl SessionsEndOnlyAfterTheirLeases {
    fn belief(&mut self, host: HostId, session: u64) -> &mut Belief {
        self.beliefs.entry(session).or_insert(Belief { host, lease: Mono::default(), serves: Mono::default() })
    }
}

impl Invariant<Fact> for SessionsEndOnlyAfterTheirLeases {
    fn name(&self) -> &'static str {
        "sessions_end_only_after_their_leases"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Lease { session, until } => {
                let belief = self.belief(sight.host, *session);
                belief.lease = belief.lease.max(*until);
            }
            Fact::Serves { session, until } => self.belief(sight.host, *session).serves = *until,
            Fact::ClientStarted => self.beliefs.retain(|_, belief| belief.host != sight.host),
            Fact::Session { session, condition: Condition::Expired | Condition::Closed } => {
                self.beliefs.remove(session);
            }
            Fact::Applied(applied) if applied.took_effect() => {
                let Some(Command::StopSession(stop)) = &applied.command.command else { return Ok(()) };
                let Some(belief) = self.beliefs.get(&stop.session).filter(|_| stop.lost) else { return Ok(()) };
                let Some(now) = (sight.clock)(belief.host) else { return Ok(()) };
                self.checks += 1;
                if now < belief.lease || now < belief.serves {
                    return Err(format!(
                        "session {} is ended as lost at {}, while the clock of {} shows {now:?} and {belief:?}",
                        stop.session, applied.index, belief.host
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
