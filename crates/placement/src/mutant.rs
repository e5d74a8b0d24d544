//! Deliberate faults in the product's place: they prove that the checks would notice. Never part of a normal run.

use std::fmt;

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// The manager honours a lease for as long as the owner uses it: no share for ρ.
    NoSkewMargin,
    /// F5: messages are taken whatever their sequence numbers.
    NoSequenceNumbers,
    /// F6: leases are dated from the answer's receipt.
    LeaseFromReceipt,
    /// F1: a leader sends leases without a valid cell session.
    NoLeaderCheck,
    /// F2: a new leader takes an absent range for released whatever epoch the owner spoke under.
    NoHello,
    /// F5: a racing message does not advance "latest heard".
    HeardNotAdvanced,
    /// F6: a renewal revives a lapsed lease.
    LapseRevived,
    /// F7: one flag instead of `lost_lsn`: a clean move hides an earlier crash.
    CleanFlag,
    /// F4: a leader that has not spoken with an owner takes whoever counts its incarnation for the recorded process.
    TwinTaken,
    /// F3: a commit of which nobody knows what became is taken for done.
    UnknownIsDone,
    /// F8: a new leader goes on with numbers of the block that the earlier one had set aside.
    NumbersReused,
    /// F9: a clean grant is taken though its state never came.
    MissingTaken,
    /// F9: a move is given up when its time is over, or a drain ends or is cancelled, without its holder's word.
    MovesCutShort,
    /// F9: a new leader knows nothing of moves that an earlier one began.
    MovesForgotten,
    /// F10: a namespace is let be whose leases do not outlast a fail-over.
    TimesUnchecked,
    /// The manager does not look whether leases have ended: what a dead owner held waits for it.
    ExpiryUnnoticed,
    /// An address that an owner changes is recorded without an LSN: no lookup that waits is told.
    AddressUntold,
    /// F11: clocks stand still while their host sleeps. (The driver's part: no machine reads a clock.)
    ClockStops,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 18] = [
        Mutant::NoSkewMargin,
        Mutant::NoSequenceNumbers,
        Mutant::LeaseFromReceipt,
        Mutant::NoLeaderCheck,
        Mutant::NoHello,
        Mutant::HeardNotAdvanced,
        Mutant::LapseRevived,
        Mutant::CleanFlag,
        Mutant::TwinTaken,
        Mutant::UnknownIsDone,
        Mutant::NumbersReused,
        Mutant::MissingTaken,
        Mutant::MovesCutShort,
        Mutant::MovesForgotten,
        Mutant::TimesUnchecked,
        Mutant::ExpiryUnnoticed,
        Mutant::AddressUntold,
        Mutant::ClockStops,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mutant::NoSkewMargin => "no-skew-margin",
            Mutant::NoSequenceNumbers => "no-sequence-numbers",
            Mutant::LeaseFromReceipt => "lease-from-receipt",
            Mutant::NoLeaderCheck => "no-leader-check",
            Mutant::NoHello => "no-hello",
            Mutant::HeardNotAdvanced => "heard-not-advanced",
            Mutant::LapseRevived => "lapse-revived",
            Mutant::CleanFlag => "clean-flag",
            Mutant::TwinTaken => "twin-taken",
            Mutant::UnknownIsDone => "unknown-is-done",
            Mutant::NumbersReused => "numbers-reused",
            Mutant::MissingTaken => "missing-taken",
            Mutant::MovesCutShort => "moves-cut-short",
            Mutant::MovesForgotten => "moves-forgotten",
            Mutant::TimesUnchecked => "times-unchecked",
            Mutant::ExpiryUnnoticed => "expiry-unnoticed",
            Mutant::AddressUntold => "address-untold",
            Mutant::ClockStops => "clock-stops",
        }
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
