//! What can be set about placement.

use super::{Time, bad};
use serde::{Deserialize, Serialize};
use tidings_base::Error;
use tidings_placement::config::FailOver;

/// The shortest and longest session of a manager: the cell's own bounds on one side, and on the other what a fail-over
/// may take at all.
const SESSION: (Time, Time) = (Time::seconds(1), Time::seconds(12));

/// Placement: who owns which key. All members should be told the same, since any of them may lead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Placement {
    /// The manager's own session with the cell: so long a dead leader's lock outlives it. 3 s: several KeepAlives, and
    /// short enough that leases of 12 s outlast a fail-over.
    pub session: Time,
    /// How long a fail-over of the cell may take; namespaces whose leases do not outlast it and the session are
    /// refused. 5 s: three times what was measured.
    pub fail_over: Time,
    /// A round trip between an owner and the manager, for the same check. 1 s: a retry and a pause.
    pub round_trip: Time,
    /// How many owners this node holds leases for that speak HTTP. 256: each polls the manager on its own.
    pub http_owners: usize,
    /// Of how many namespaces this node keeps the table for lookups by REST; the one that was asked longest ago goes
    /// first. 64.
    pub tables: usize,
}

impl Default for Placement {
    fn default() -> Placement {
        Placement {
            session: Time::seconds(3),
            fail_over: Time::seconds(5),
            round_trip: Time::seconds(1),
            http_owners: 256,
            tables: 64,
        }
    }
}

impl Placement {
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.session < SESSION.0 || self.session > SESSION.1 {
            return Err(bad(format!("`placement.session` is {}", self.session))
                .hint(format!("Use {} to {}; the default is 3s.", SESSION.0, SESSION.1)));
        }
        for (name, time) in [("fail_over", self.fail_over), ("round_trip", self.round_trip)] {
            if time.0.is_zero() {
                return Err(bad(format!("`placement.{name}` is zero")));
            }
        }
        for (name, count) in [("http_owners", self.http_owners), ("tables", self.tables)] {
            if count == 0 {
                return Err(bad(format!("`placement.{name}` is 0, so nobody could use placement by REST")));
            }
        }
        Ok(())
    }

    /// F10: what leases must outlast.
    pub fn fail_over(&self) -> FailOver {
        FailOver { session: self.session.into(), cell: self.fail_over.into(), round_trip: self.round_trip.into() }
    }
}
