//! Deliberate faults in the product's place: they prove that the simulator would notice.

use crate::carrier::Mutant as CarrierMutant;
use std::fmt;
use std::str::FromStr;
use tidings_cell::mutant::Mutant as CellMutant;
use tidings_notify::mutant::Mutant as NotifyMutant;
use tidings_placement::mutant::Mutant as PlacementMutant;
use tidings_sketch::mutant::Mutant as SketchMutant;
use tidings_tables::mutant::Mutant as TablesMutant;

/// A known bug, switched on by a test. Never part of a normal run.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutant {
    /// The log is written and never synced.
    SkippedFsync,
    /// Entries count as durable before the disk has them.
    EarlyAcknowledgement,
    /// Now and then a committed entry is applied twice.
    DoubleApply,
    /// Term and vote are not kept across restarts.
    LostVote,
    /// Two entries that are applied together change places.
    ReorderedApply,
    /// A read barrier passes without asking anybody and without a lease.
    StaleRead,
    /// A replica whose disk was replaced votes and counts at once.
    HastyRejoin,
    /// A restarted replica votes without waiting for leases it may have granted.
    ForgottenLease,
    /// A rule of the cell is left out.
    Cell(CellMutant),
    /// A rule of placement is left out.
    Placement(PlacementMutant),
    /// A rule of Notify is left out.
    Notify(NotifyMutant),
    /// A rule of Tables is left out.
    Tables(TablesMutant),
    /// A rule of Sketch is left out.
    Sketch(SketchMutant),
    /// A carrier breaks its contract.
    Carrier(CarrierMutant),
}

impl Mutant {
    /// All of the agreed log's.
    pub const ALL: [Mutant; 8] = [
        Mutant::SkippedFsync,
        Mutant::EarlyAcknowledgement,
        Mutant::DoubleApply,
        Mutant::LostVote,
        Mutant::ReorderedApply,
        Mutant::StaleRead,
        Mutant::HastyRejoin,
        Mutant::ForgottenLease,
    ];

    /// The rule of the cell that is left out, if it is one.
    pub fn of_cell(self) -> Option<CellMutant> {
        match self {
            Mutant::Cell(mutant) => Some(mutant),
            _ => None,
        }
    }

    /// The rule of placement that is left out, if it is one.
    pub fn of_placement(self) -> Option<PlacementMutant> {
        match self {
            Mutant::Placement(mutant) => Some(mutant),
            _ => None,
        }
    }

    /// The rule of Notify that is left out, if it is one.
    pub fn of_notify(self) -> Option<NotifyMutant> {
        match self {
            Mutant::Notify(mutant) => Some(mutant),
            _ => None,
        }
    }

    /// The rule of Tables that is left out, if it is one.
    pub fn of_tables(self) -> Option<TablesMutant> {
        match self {
            Mutant::Tables(mutant) => Some(mutant),
            _ => None,
        }
    }

    /// The rule of Sketch that is left out, if it is one.
    pub fn of_sketch(self) -> Option<SketchMutant> {
        match self {
            Mutant::Sketch(mutant) => Some(mutant),
            _ => None,
        }
    }

    /// The contract of carriers that is broken, if it is one.
    pub fn of_carrier(self) -> Option<CarrierMutant> {
        match self {
            Mutant::Carrier(mutant) => Some(mutant),
            _ => None,
        }
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mutant::SkippedFsync => "skipped-fsync",
            Mutant::EarlyAcknowledgement => "early-acknowledgement",
            Mutant::DoubleApply => "double-apply",
            Mutant::LostVote => "lost-vote",
            Mutant::ReorderedApply => "reordered-apply",
            Mutant::StaleRead => "stale-read",
            Mutant::HastyRejoin => "hasty-rejoin",
            Mutant::ForgottenLease => "forgotten-lease",
            Mutant::Cell(mutant) => mutant.name(),
            Mutant::Placement(mutant) => mutant.name(),
            Mutant::Notify(mutant) => mutant.name(),
            Mutant::Tables(mutant) => mutant.name(),
            Mutant::Sketch(mutant) => mutant.name(),
            Mutant::Carrier(mutant) => mutant.name(),
        }
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mutant {
    type Err = String;
    fn from_str(name: &str) -> Result<Mutant, String> {
        let cell = CellMutant::ALL.into_iter().map(Mutant::Cell);
        let placement = PlacementMutant::ALL.into_iter().map(Mutant::Placement);
        let notify = NotifyMutant::ALL.into_iter().map(Mutant::Notify);
        let tables = TablesMutant::ALL.into_iter().map(Mutant::Tables);
        let sketch = SketchMutant::ALL.into_iter().map(Mutant::Sketch);
        let carrier = CarrierMutant::ALL.into_iter().map(Mutant::Carrier);
        let parts = cell.chain(placement).chain(notify).chain(tables).chain(sketch).chain(carrier);
        let all = || Mutant::ALL.into_iter().chain(parts.clone());
        let known = all().map(Mutant::name).collect::<Vec<_>>().join(", ");
        all()
            .find(|mutant| mutant.name() == name)
            .ok_or_else(|| format!("there is no mutant `{name}`; there are: {known}"))
    }
}
