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
    /// J: of several sites that share a range one alone forgets what it held. (Drivers would do that; so does the scenario's one.)
    LostOfOneSite,
    /// K: fast reads do not look at the session.
    SessionIgnored,
    /// I: what is black-listed is fast all the same.
    BlackListIgnored,
    /// I: whoever was charged with too much is left out, however many that are.
    AllEjected,
    /// L: a client may cause as many replicated reads as it likes.
    AllowanceIgnored,
    /// D: what a client wants of the whole goes upstream.
    ConditionsForwarded,
    /// C: a header is forwarded that the sketch does not cover.
    InputUnsketched,
    /// G: a command that comes again is executed again.
    ExecutedAgain,
    /// F, H: an ordered command needs f + 1 equal replies although reads pass the order by.
    OrderedShort,
    /// H: f + 1 equal remembered sketches suffice for a fast read.
    FastQuorumShort,
    /// H: who executes a fast read counts by its answer, whatever it remembers.
    ExecutorTrusted,
    /// H: a replica that remembers nothing agrees with everything.
    NullCounts,
    /// H: the answer is not held against the sketch that is agreed on.
    BodyUnchecked,
    /// F, H: σ of what is remembered is not part of what must be equal.
    PlaceUnmatched,
    /// F, H: words on a fast read count whatever their nonce.
    FastNonceIgnored,
    /// H: a replica replies, and remembers with its next block.
    RepliedFirst,
    /// H: the old result of a command that is ordered again is remembered again.
    RepeatRemembered,
    /// H: what is executed again after a restart is remembered.
    ReplayRemembered,
    /// H: a replica that takes a state over keeps what it remembers.
    TransferKeepsTable,
    /// A: a member of a crash-tolerant group says for the newest what it has applied. (Members do that; so does the tests' one.)
    AppliedIsNewest,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 35] = [
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
        Mutant::LostOfOneSite,
        Mutant::SessionIgnored,
        Mutant::BlackListIgnored,
        Mutant::AllEjected,
        Mutant::AllowanceIgnored,
        Mutant::ConditionsForwarded,
        Mutant::InputUnsketched,
        Mutant::ExecutedAgain,
        Mutant::OrderedShort,
        Mutant::FastQuorumShort,
        Mutant::ExecutorTrusted,
        Mutant::NullCounts,
        Mutant::BodyUnchecked,
        Mutant::PlaceUnmatched,
        Mutant::FastNonceIgnored,
        Mutant::RepliedFirst,
        Mutant::RepeatRemembered,
        Mutant::ReplayRemembered,
        Mutant::TransferKeepsTable,
        Mutant::AppliedIsNewest,
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
            Mutant::LostOfOneSite => "lost-of-one-site",
            Mutant::SessionIgnored => "session-ignored",
            Mutant::BlackListIgnored => "black-list-ignored",
            Mutant::AllEjected => "all-ejected",
            Mutant::AllowanceIgnored => "allowance-ignored",
            Mutant::ConditionsForwarded => "conditions-forwarded",
            Mutant::InputUnsketched => "input-unsketched",
            Mutant::ExecutedAgain => "executed-again",
            Mutant::OrderedShort => "ordered-short",
            Mutant::FastQuorumShort => "fast-quorum-short",
            Mutant::ExecutorTrusted => "executor-trusted",
            Mutant::NullCounts => "null-counts",
            Mutant::BodyUnchecked => "body-unchecked",
            Mutant::PlaceUnmatched => "place-unmatched",
            Mutant::FastNonceIgnored => "fast-nonce-ignored",
            Mutant::RepliedFirst => "replied-first",
            Mutant::RepeatRemembered => "repeat-remembered",
            Mutant::ReplayRemembered => "replay-remembered",
            Mutant::TransferKeepsTable => "transfer-keeps-table",
            Mutant::AppliedIsNewest => "applied-is-newest",
        }
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
