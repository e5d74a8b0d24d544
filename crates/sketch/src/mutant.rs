//! Deliberate faults in the product's place: they prove that the checks would notice. Never part of a normal run.

use std::fmt;

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// S3: a fast answer is returned whatever is remembered.
    MismatchAccepted,
    /// B: an update is decided on the entry as it was when the request came.
    UpdateOfThen,
    /// B: a fast answer is compared with the entry as it was when the request came.
    ComparedWithThen,
    /// B: the answer leaves, and the table is updated some time later.
    AnsweredFirst,
    /// B: a read is joined to one of the same request that is under way. (Drivers would do that; so does the tests' one.)
    Joined,
    /// B: what was evicted or dropped leaves no floor.
    NoFloor,
    /// B: a new life of the group is not noticed.
    IncarnationIgnored,
    /// A, D: an answer that is not remembered leaves the older entry as it is.
    ErrorsKeepEntry,
    /// C: s(r) does not cover s(q).
    RequestUnbound,
    /// E: votes that overlap and differ replace one another.
    OverlapKept,
    /// E, F: f equal replies suffice.
    QuorumShort,
    /// F: replies count whatever their nonce.
    NonceIgnored,
    /// F: σ is not part of what must be equal.
    SigmaUnmatched,
    /// J: answers are accepted whoever owns the range now.
    LeaseIgnored,
    /// J: a range that was lost leaves its entries.
    EntriesOutliveRange,
    /// K: fast reads do not look at the session.
    SessionIgnored,
    /// G: a command that comes again is executed again.
    ExecutedAgain,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 17] = [
        Mutant::MismatchAccepted,
        Mutant::UpdateOfThen,
        Mutant::ComparedWithThen,
        Mutant::AnsweredFirst,
        Mutant::Joined,
        Mutant::NoFloor,
        Mutant::IncarnationIgnored,
        Mutant::ErrorsKeepEntry,
        Mutant::RequestUnbound,
        Mutant::OverlapKept,
        Mutant::QuorumShort,
        Mutant::NonceIgnored,
        Mutant::SigmaUnmatched,
        Mutant::LeaseIgnored,
        Mutant::EntriesOutliveRange,
        Mutant::SessionIgnored,
        Mutant::ExecutedAgain,
    ];

    /// Its name on the command line; no other part's has the same.
    pub fn name(self) -> &'static str {
        match self {
            Mutant::MismatchAccepted => "mismatch-accepted",
            Mutant::UpdateOfThen => "update-of-then",
            Mutant::ComparedWithThen => "compared-with-then",
            Mutant::AnsweredFirst => "answered-first",
            Mutant::Joined => "joined",
            Mutant::NoFloor => "no-floor",
            Mutant::IncarnationIgnored => "sketch-incarnation-ignored",
            Mutant::ErrorsKeepEntry => "errors-keep-entry",
            Mutant::RequestUnbound => "request-unbound",
            Mutant::OverlapKept => "overlap-kept",
            Mutant::QuorumShort => "quorum-short",
            Mutant::NonceIgnored => "nonce-ignored",
            Mutant::SigmaUnmatched => "sigma-unmatched",
            Mutant::LeaseIgnored => "sketch-lease-ignored",
            Mutant::EntriesOutliveRange => "entries-outlive-range",
            Mutant::SessionIgnored => "session-ignored",
            Mutant::ExecutedAgain => "executed-again",
        }
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
