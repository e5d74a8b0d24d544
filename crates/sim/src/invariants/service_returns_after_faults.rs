//! Once faults are over, everybody is served again within a bounded time.

use super::Violation;
use crate::kernel::HostId;
use std::collections::BTreeMap;
use std::time::Duration;

/// The claim's name.
pub const NAME: &str = "service_returns_after_faults";

/// So many operations of a client must be answered in the span after the faults.
const EACH: u64 = 3;

/// The claim, for worlds whose hosts are one client each.
#[derive(Debug, Default)]
pub struct ServiceReturnsAfterFaults {
    answered: BTreeMap<HostId, u64>,
}

impl ServiceReturnsAfterFaults {
    /// The span begins.
    pub fn begin(&mut self) {
        self.answered.clear();
    }

    /// An operation of this client was answered.
    pub fn answered(&mut self, host: HostId) {
        *self.answered.entry(host).or_default() += 1;
    }

    /// The span is over: each client was served.
    pub fn judge(&self, clients: &[HostId], span: Duration) -> Result<(), Violation> {
        clients.iter().try_for_each(|host| {
            let answered = self.answered.get(host).copied().unwrap_or(0);
            served(*host, answered, span, "an answer")
        })
    }

    /// The span is over: they were served on the whole. For clients that think so long that one of them may ask but once.
    pub fn judge_together(&self, clients: &[HostId], span: Duration) -> Result<(), Violation> {
        match self.checks() < clients.len() as u64 * EACH {
            true => {
                let what = format!("{} operations were answered in {span:?} without faults", self.checks());
                Err(Violation::new(NAME, what))
            }
            false => Ok(()),
        }
    }

    /// How many answers there were.
    pub fn checks(&self) -> u64 {
        self.answered.values().sum()
    }
}

/// Whether a client was served in a span without faults.
pub fn served(host: HostId, answered: u64, span: Duration, waits_for: &str) -> Result<(), Violation> {
    if answered < EACH {
        let what = format!("{host} was answered {answered} times in {span:?} without faults and waits for {waits_for}");
        return Err(Violation::new(NAME, what));
    }
    Ok(())
}
