//! Deliberate faults in the product's place: they prove that the checks would notice. Never part of a normal run.

use std::fmt;

/// A rule that is left out, by its number in the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// R1: positions begin again with every owner, in the term of the first.
    TermIgnored,
    /// R1: whoever gave a partition up to be joined goes on answering for it.
    CededServing,
    /// R2: writes carry no fence.
    NoFence,
    /// R2: an answer leaves whether or not the lease still holds.
    LeaseIgnored,
    /// R3: `previous` is not compared with the cursor.
    GapIgnored,
    /// R3: progress does not say what was sent.
    TailIgnored,
    /// R3: a last piece that was lost is not missed.
    PieceIgnored,
    /// R3: what was named before an installation was answered is not missed.
    EarlyIgnored,
    /// R3: a new lease does not reinstall queries.
    NoReinstall,
    /// R3: a query goes with its client's connection, though Notify is to tell the client.
    AwayForgotten,
    /// R3: that a device has left before its query came is said once, whether or not it is heard.
    LeftOnce,
    /// R3: a device is given a cursor before all owners know of it.
    GivenEarly,
    /// R3: a new owner, who knows of nobody that is away, does not say so.
    OpenedSilently,
    /// R3: what Notify did not take is not published again.
    PublishedOnce,
    /// R4: a snapshot holds what is newer than its position.
    SnapshotTorn,
    /// R4: a record that leaves the result is not told.
    NoLeave,
    /// R4: a deletion is told whoever could see the record.
    LeaveToAll,
    /// R4: a cursor that the log does not reach is taken as if it did.
    NoReset,
    /// R4: new data of a reader hold for later changes alone.
    NoDifference,
    /// R4: a cursor stays good while rows of other data take their places.
    CursorKept,
    /// R5: a floor is not looked at.
    FloorIgnored,
    /// R1: a copy takes what does not follow.
    CopyGapIgnored,
    /// R1: a copy answers what only an owner knows.
    CopyOwns,
    /// R1: a copy answers however long it has heard nothing.
    CopyOutdated,
    /// R1: a copy shows records to whoever reads.
    CopyShowsAll,
    /// R6: outcomes are not remembered.
    OutcomeForgotten,
    /// R6: an outcome is written after the record, not with it.
    OutcomeApart,
    /// R6: what was acknowledged is taken for new.
    WatermarkIgnored,
    /// R6: what a client has acknowledged is written again only when it rises, and where it was written before.
    WatermarkAged,
    /// R6: an id used for something else is answered all the same.
    ForkIgnored,
    /// R6: operations take effect as they come, whatever they follow.
    OrderIgnored,
    /// R7: a conflict shows the record to whoever asks.
    ConflictShown,
    /// R7: whoever watches is told where the table is cut.
    BoundsTold,
    /// A list of access is not looked at by live queries.
    ListIgnored,
    /// R8: claims never expire.
    ExpiryIgnored,
    /// R8: cursors are handed out as they are.
    CursorOpen,
    /// R9: whatever can be read can be watched.
    LiveUnchecked,
    /// Visibility is not looked at again when a change is sent.
    SentUnchecked,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 38] = [
        Mutant::TermIgnored,
        Mutant::CededServing,
        Mutant::NoFence,
        Mutant::LeaseIgnored,
        Mutant::GapIgnored,
        Mutant::TailIgnored,
        Mutant::PieceIgnored,
        Mutant::EarlyIgnored,
        Mutant::NoReinstall,
        Mutant::AwayForgotten,
        Mutant::LeftOnce,
        Mutant::GivenEarly,
        Mutant::OpenedSilently,
        Mutant::PublishedOnce,
        Mutant::SnapshotTorn,
        Mutant::NoLeave,
        Mutant::LeaveToAll,
        Mutant::NoReset,
        Mutant::NoDifference,
        Mutant::CursorKept,
        Mutant::FloorIgnored,
        Mutant::CopyGapIgnored,
        Mutant::CopyOwns,
        Mutant::CopyOutdated,
        Mutant::CopyShowsAll,
        Mutant::OutcomeForgotten,
        Mutant::OutcomeApart,
        Mutant::WatermarkIgnored,
        Mutant::WatermarkAged,
        Mutant::ForkIgnored,
        Mutant::OrderIgnored,
        Mutant::ConflictShown,
        Mutant::BoundsTold,
        Mutant::ListIgnored,
        Mutant::ExpiryIgnored,
        Mutant::CursorOpen,
        Mutant::LiveUnchecked,
        Mutant::SentUnchecked,
    ];

    /// Its name on the command line; no other part's has the same.
    pub fn name(self) -> &'static str {
        match self {
            Mutant::TermIgnored => "term-ignored",
            Mutant::CededServing => "ceded-serving",
            Mutant::NoFence => "no-fence",
            Mutant::LeaseIgnored => "table-lease-ignored",
            Mutant::GapIgnored => "gap-ignored",
            Mutant::TailIgnored => "tail-ignored",
            Mutant::PieceIgnored => "piece-ignored",
            Mutant::EarlyIgnored => "early-ignored",
            Mutant::NoReinstall => "no-reinstall",
            Mutant::AwayForgotten => "away-forgotten",
            Mutant::LeftOnce => "left-once",
            Mutant::GivenEarly => "given-early",
            Mutant::OpenedSilently => "opened-silently",
            Mutant::PublishedOnce => "published-once",
            Mutant::SnapshotTorn => "snapshot-torn",
            Mutant::NoLeave => "no-leave",
            Mutant::LeaveToAll => "leave-to-all",
            Mutant::NoReset => "no-reset",
            Mutant::NoDifference => "no-difference",
            Mutant::CursorKept => "cursor-kept",
            Mutant::FloorIgnored => "floor-ignored",
            Mutant::CopyGapIgnored => "copy-gap-ignored",
            Mutant::CopyOwns => "copy-owns",
            Mutant::CopyOutdated => "copy-outdated",
            Mutant::CopyShowsAll => "copy-shows-all",
            Mutant::OutcomeForgotten => "outcome-forgotten",
            Mutant::OutcomeApart => "outcome-apart",
            Mutant::WatermarkIgnored => "watermark-ignored",
            Mutant::WatermarkAged => "watermark-aged",
            Mutant::ForkIgnored => "fork-ignored",
            Mutant::OrderIgnored => "order-ignored",
            Mutant::ConflictShown => "conflict-shown",
            Mutant::BoundsTold => "bounds-told",
            Mutant::ListIgnored => "list-ignored",
            Mutant::ExpiryIgnored => "expiry-ignored",
            Mutant::CursorOpen => "cursor-open",
            Mutant::LiveUnchecked => "live-unchecked",
            Mutant::SentUnchecked => "sent-unchecked",
        }
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether this mutant is the one that runs.
pub(crate) fn is(running: Option<Mutant>, mutant: Mutant) -> bool {
    running == Some(mutant)
}
