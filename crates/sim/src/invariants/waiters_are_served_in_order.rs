//! Who waits for a lock gets it in the order in which they came to the master, without overtaking, within an epoch. Shared
//! requests keep nobody waiting who asks for the same: their grants may pass each other on the way to the log.

use super::{Invariant, Sight};
use crate::kernel::HostId;
use crate::scenarios::cell::fact::Fact;
use std::collections::{BTreeMap, BTreeSet};
use tidings_base::Mono;
use tidings_wire::v1::cell_command::Command;

/// The claim.
#[derive(Debug, Default)]
pub struct WaitersAreServedInOrder {
    /// Which lock each acquire is for, and whether it is exclusive.
    locks: BTreeMap<(u64, u64), (String, bool)>,
    /// At each master, in the order in which they came.
    queues: BTreeMap<HostId, Vec<(u64, u64)>>,
    /// Under which number a wait goes on. Its turn may have come under the first one already.
    later: BTreeMap<(u64, u64), u64>,
    /// Asked for again only because the answer was lost.
    granted: BTreeSet<(u64, u64)>,
    /// Each session's lease as its client may believe in it: one that is over waits for nothing any more.
    leases: BTreeMap<u64, (HostId, Mono)>,
    checks: u64,
}

impl WaitersAreServedInOrder {
    /// A waiter by the last of its numbers.
    fn present(&self, (session, mut number): (u64, u64)) -> (u64, u64) {
        while let Some(later) = self.later.get(&(session, number)) {
            number = *later;
        }
        (session, number)
    }

    fn remove(&mut self, gone: impl Fn(&(u64, u64)) -> bool) {
        self.queues.values_mut().for_each(|queue| queue.retain(|waiter| !gone(waiter)));
    }
}

impl Invariant<Fact> for WaitersAreServedInOrder {
    fn name(&self) -> &'static str {
        "waiters_are_served_in_order"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Numbered { session, number, path, exclusive } => {
                self.locks.insert((*session, *number), (path.clone(), *exclusive));
            }
            Fact::Queued { session, number } if !self.granted.contains(&(*session, *number)) => {
                self.queues.entry(sight.host).or_default().push((*session, *number));
            }
            // It keeps its place.
            Fact::Requeued { session, first, number } => {
                let places = self.queues.values_mut().flatten().filter(|waiter| **waiter == (*session, *first));
                places.for_each(|waiter| waiter.1 = *number);
                self.later.insert((*session, *first), *number);
            }
            Fact::Unqueued { session, numbers } => {
                self.remove(|(of, number)| of == session && (numbers.is_empty() || numbers.contains(number)));
            }
            Fact::Lease { session, until } => {
                self.leases.insert(*session, (sight.host, *until));
            }
            Fact::ClientStarted => self.leases.retain(|_, (host, _)| *host != sight.host),
            Fact::Reigns => {
                self.queues.remove(&sight.host);
            }
            Fact::Granting { session, number, path } => {
                let Some(queue) = self.queues.get(&sight.host) else { return Ok(()) };
                let granted = self.present((*session, *number));
                let Some(at) = queue.iter().position(|waiter| *waiter == granted) else { return Ok(()) };
                self.checks += 1;
                let alive = |session: &u64| {
                    let lease = self.leases.get(session);
                    lease.is_some_and(|(host, until)| (sight.clock)(*host).is_some_and(|now| now < *until))
                };
                let alone = self.locks.get(&(*session, *number)).is_some_and(|(_, exclusive)| *exclusive);
                let same = |waiter: &&(u64, u64)| {
                    let known = self.locks.get(waiter);
                    known.is_some_and(|(of, exclusive)| of == path && (alone || *exclusive)) && alive(&waiter.0)
                };
                if let Some(before) = queue[..at].iter().find(same) {
                    return Err(format!(
                        "{} grants {path} to session {session}, call {number}, before {before:?}, which came earlier",
                        sight.host
                    ));
                }
                self.remove(|waiter| *waiter == granted);
            }
            Fact::Applied(applied) => {
                match (&applied.command.command, applied.call()) {
                    (Some(Command::StopSession(stop)), _) => self.remove(|(session, _)| *session == stop.session),
                    // It was granted while its client asked again.
                    (Some(Command::TakeLock(_)), Some(call)) if applied.succeeded() => {
                        let present = self.present(call);
                        self.granted.extend([call, present]);
                        self.remove(|waiter| *waiter == present);
                    }
                    _ => {}
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
