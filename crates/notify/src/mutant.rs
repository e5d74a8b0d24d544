//! Deliberate faults in the product's place: they prove that the checks would notice. Never part of a normal run.

use std::fmt;

/// A rule that is left out, by its number in the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// F1: answers leave whether or not the lease still holds.
    LeaseIgnored,
    /// F2: sequence numbers are a counter that begins again with every owner.
    SeqnoWithoutLease,
    /// F3: a raised incarnation is not heard.
    IncarnationIgnored,
    /// F3: whoever was known before a loss is told nothing but what was published since.
    LossUntold,
    /// F3: a publication that was called for before a loss is told after it.
    StragglerAccepted,
    /// F3: a client keeps what it knew under another generation.
    GenerationIgnored,
    /// F3: rows of earlier incarnations and generations stay.
    LeftoversKept,
    /// F4: the ack of a version clears an unknown as well.
    AckClearsUnknown,
    /// F5: a registration is written without its marker.
    NoMarker,
    /// F5: nobody looks for markers after a range was gained.
    NoRecovery,
    /// F5: a matcher hears of a registration, or of its end, before the registrar's row says so.
    SpreadUnstored,
    /// F6: the version is read before the registration is stored.
    ReadBeforeStore,
    /// F6: a registration is not followed by a notification.
    NoPostPropagation,
    /// F6: a matcher remembers a page that was read before a registration was answered.
    PageUnmarked,
    /// F6: a matcher ignores that a client is not registered.
    NotRegisteredIgnored,
    /// F7: digests are not compared.
    DigestIgnored,
    /// F8: a token's MAC is not verified.
    MacIgnored,
    /// F8: a superseded session goes on.
    SupersededAccepted,
    /// Notifications are sent once.
    NoRetransmission,
    /// F9: a notification to a client that is online is done when it is sent, acknowledged or not, and is not logged.
    SentIsDone,
    /// F9: an ack counts whatever its version.
    FutureAckAccepted,
    /// F10: going online does not read `created`.
    CreatedIgnored,
    /// F10: a tombstone that was seen once is forgotten with the next look.
    TombstonesForgotten,
    /// F11: the feed is acknowledged though nothing was stored.
    NoScratch,
    /// F11: a scratch row is deleted whatever has come to lie there meanwhile.
    ScratchDeletedWhole,
    /// F12: whoever made a version is never told, whatever came before it.
    AlwaysSuppress,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 26] = [
        Mutant::LeaseIgnored,
        Mutant::SeqnoWithoutLease,
        Mutant::IncarnationIgnored,
        Mutant::LossUntold,
        Mutant::StragglerAccepted,
        Mutant::GenerationIgnored,
        Mutant::LeftoversKept,
        Mutant::AckClearsUnknown,
        Mutant::NoMarker,
        Mutant::NoRecovery,
        Mutant::SpreadUnstored,
        Mutant::ReadBeforeStore,
        Mutant::NoPostPropagation,
        Mutant::PageUnmarked,
        Mutant::NotRegisteredIgnored,
        Mutant::DigestIgnored,
        Mutant::MacIgnored,
        Mutant::SupersededAccepted,
        Mutant::NoRetransmission,
        Mutant::SentIsDone,
        Mutant::FutureAckAccepted,
        Mutant::CreatedIgnored,
        Mutant::TombstonesForgotten,
        Mutant::NoScratch,
        Mutant::ScratchDeletedWhole,
        Mutant::AlwaysSuppress,
    ];

    /// Its name on the command line; no other part's has the same.
    pub fn name(self) -> &'static str {
        match self {
            Mutant::LeaseIgnored => "lease-ignored",
            Mutant::SeqnoWithoutLease => "seqno-without-lease",
            Mutant::IncarnationIgnored => "incarnation-ignored",
            Mutant::LossUntold => "loss-untold",
            Mutant::StragglerAccepted => "straggler-accepted",
            Mutant::GenerationIgnored => "generation-ignored",
            Mutant::LeftoversKept => "leftovers-kept",
            Mutant::AckClearsUnknown => "ack-clears-unknown",
            Mutant::NoMarker => "no-marker",
            Mutant::NoRecovery => "no-recovery",
            Mutant::SpreadUnstored => "spread-unstored",
            Mutant::ReadBeforeStore => "read-before-store",
            Mutant::NoPostPropagation => "no-post-propagation",
            Mutant::PageUnmarked => "page-unmarked",
            Mutant::NotRegisteredIgnored => "not-registered-ignored",
            Mutant::DigestIgnored => "digest-ignored",
            Mutant::MacIgnored => "token-mac-ignored",
            Mutant::SupersededAccepted => "superseded-accepted",
            Mutant::NoRetransmission => "no-retransmission",
            Mutant::SentIsDone => "sent-is-done",
            Mutant::FutureAckAccepted => "future-ack-accepted",
            Mutant::CreatedIgnored => "created-ignored",
            Mutant::TombstonesForgotten => "tombstones-forgotten",
            Mutant::NoScratch => "no-scratch",
            Mutant::ScratchDeletedWhole => "scratch-deleted-whole",
            Mutant::AlwaysSuppress => "always-suppress",
        }
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
