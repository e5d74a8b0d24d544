//! Is the state here fresh enough to answer from (R2)? Under the leader lease, always; otherwise after a barrier, one
//! for everybody who came before it was asked.

use super::Output;
use super::reign::{Asker, Reign, Turn, Waiting, refusal_error};
use super::sessions::Slot;
use std::time::Duration;
use tidings_base::agreed::{Ask, Refusal};
use tidings_base::{Mono, OpId};
use tidings_wire::v1;

/// What waits for a barrier.
#[derive(Clone, Debug)]
pub(super) enum Gated {
    /// A request.
    Request(Asker, v1::CellMessage),
    /// The lease of a session that has a KeepAlive held.
    Lease(Slot),
    /// A session whose lease is over: only a master is to end it.
    Look(Slot),
}

/// The barrier under way, who waits for it, and who came too late for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate {
    asked: Option<(OpId, Mono)>,
    waiting: Vec<Gated>,
    next: Vec<Gated>,
}

/// A barrier that was asked longer ago than this is no date for a lease.
const TOO_OLD: Duration = Duration::from_secs(3);

impl Reign {
    /// Lets something wait for a barrier that is asked from now on.
    pub(super) fn await_barrier(&mut self, t: &mut Turn<'_>, gated: Gated) {
        if let Gated::Request(asker, _) = &gated {
            self.keep_open(t, *asker, Waiting::Parked);
        }
        self.gate.next.push(gated);
        self.ask_barrier(t);
    }

    fn ask_barrier(&mut self, t: &mut Turn<'_>) {
        if self.gate.asked.is_some() || self.gate.next.is_empty() {
            return;
        }
        let op = self.new_op();
        self.gate.asked = Some((op, t.mono()));
        self.gate.waiting = std::mem::take(&mut self.gate.next);
        self.ask(t, Ask::ReadBarrier { op });
    }

    /// The barrier passed: nobody else led when it was asked, and the state holds everything answered before that.
    /// Leases that are granted now are dated from then.
    pub(super) fn passed(&mut self, t: &mut Turn<'_>, op: OpId) {
        let Some((_, asked)) = self.gate.asked.take_if(|asked| asked.0 == op) else { return };
        let before = t.fresh;
        t.fresh = Some(before.unwrap_or(asked));
        for gated in std::mem::take(&mut self.gate.waiting) {
            match gated {
                Gated::Request(asker, request) => {
                    if self.ops.contains_key(&asker.op) {
                        self.serve(t, asker, request);
                    }
                }
                // Asked before the majority was lost: a lease of then is over. Another barrier passes at once now.
                _ if before.is_none() && t.mono().since(asked) > TOO_OLD => self.gate.next.push(gated),
                Gated::Lease(slot) => self.lease_barrier(t, slot, true),
                Gated::Look(slot) => self.look_again(t, slot),
            }
        }
        t.fresh = before;
        self.ask_barrier(t);
    }

    /// The barrier did not pass; whether it was one at all.
    pub(super) fn barrier_refused(&mut self, t: &mut Turn<'_>, op: OpId, refusal: Refusal) -> bool {
        if self.gate.asked.take_if(|asked| asked.0 == op).is_none() {
            return false;
        }
        for gated in std::mem::take(&mut self.gate.waiting) {
            match gated {
                Gated::Request(asker, _) => {
                    if self.ops.remove(&asker.op).is_some() {
                        let (error, leader) = refusal_error(refusal);
                        t.out.put(Output::Fail { op: asker.op, error, leader });
                    }
                }
                Gated::Lease(slot) => self.lease_barrier(t, slot, false),
                Gated::Look(slot) => self.retry_check(t, slot),
            }
        }
        self.ask_barrier(t);
        true
    }
}
