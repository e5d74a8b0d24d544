//! Deliberate faults in the product's place: they prove that the checks would notice. Never part of a normal run.

use std::fmt;
use std::str::FromStr;

/// A rule that is left out, by its number in the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// R1: what a master does on its own account is applied whatever its epoch.
    StaleEpochAccepted,
    /// R2: the master reads and grants leases without a leader lease or barrier.
    ReadWithoutLease,
    /// R3: the client dates its lease from the reply's arrival, without (1−ρ).
    LeaseFromArrival,
    /// R4: a KeepAlive acknowledges whatever was sent.
    ImplicitAck,
    /// R4: a reply is cached however old its stamp.
    StampIgnored,
    /// R5: lock changes and child changes invalidate nothing.
    LocksInvalidateNothing,
    /// R6: leases are granted beyond the agreed ceiling; a new master waits for less than was granted.
    CeilingIgnored,
    /// R7: a session that was ended is safe again when its client comes back.
    Resurrection,
    /// R8: a repeat is applied again.
    RepeatApplied,
    /// R9: ephemerals outlive their sessions.
    EphemeralsStay,
    /// R9: an open is answered with a handle in use, even of an ephemeral node or for a lock.
    OpensShared,
    /// What R10 counts on: a lost lock is free at once, without its delay.
    NoLockDelay,
    /// R11: a sequencer is valid as long as its generation is the newest, held or not.
    SequencerOutlivesLock,
    /// R12: a handle's MAC is not verified.
    MacIgnored,
    /// R12: a closed handle is rebuilt from its token.
    ClosedHandlesRevived,
    /// ρ: nobody looks how fast a client's clock runs.
    ClocksUnchecked,
    /// R15: interest beyond the bound is forgotten, and replies stay cacheable.
    InterestForgotten,
    /// A new master opens at once.
    OpensAtOnce,
    /// A write is proposed without waiting for acknowledgements.
    NoInvalidationWait,
    /// Caching goes on while a write is under way.
    CachingDuringWrite,
    /// Waiters are granted in any order.
    QueueJumping,
    /// A change happens whatever became of the locks that its sequencers name.
    GuardIgnored,
    /// R12: access lists are not looked at.
    ListsIgnored,
    /// R5: a change of an access list leaves copies with those whom it shuts out.
    ListsInvalidateNothing,
    /// R5: a change of who may look into a directory leaves what was absent in it with those whom it shuts out.
    AbsencesStay,
    /// R10: a command runs until its session hears that the lock is lost.
    CommandsOutliveLeases,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 26] = [
        Mutant::StaleEpochAccepted,
        Mutant::ReadWithoutLease,
        Mutant::LeaseFromArrival,
        Mutant::ImplicitAck,
        Mutant::StampIgnored,
        Mutant::LocksInvalidateNothing,
        Mutant::CeilingIgnored,
        Mutant::Resurrection,
        Mutant::RepeatApplied,
        Mutant::EphemeralsStay,
        Mutant::OpensShared,
        Mutant::NoLockDelay,
        Mutant::SequencerOutlivesLock,
        Mutant::MacIgnored,
        Mutant::ClosedHandlesRevived,
        Mutant::ClocksUnchecked,
        Mutant::InterestForgotten,
        Mutant::OpensAtOnce,
        Mutant::NoInvalidationWait,
        Mutant::CachingDuringWrite,
        Mutant::QueueJumping,
        Mutant::GuardIgnored,
        Mutant::ListsIgnored,
        Mutant::ListsInvalidateNothing,
        Mutant::AbsencesStay,
        Mutant::CommandsOutliveLeases,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mutant::StaleEpochAccepted => "stale-epoch-accepted",
            Mutant::ReadWithoutLease => "read-without-lease",
            Mutant::LeaseFromArrival => "lease-from-arrival",
            Mutant::ImplicitAck => "implicit-ack",
            Mutant::StampIgnored => "stamp-ignored",
            Mutant::LocksInvalidateNothing => "locks-invalidate-nothing",
            Mutant::CeilingIgnored => "ceiling-ignored",
            Mutant::Resurrection => "resurrection",
            Mutant::RepeatApplied => "repeat-applied",
            Mutant::EphemeralsStay => "ephemerals-stay",
            Mutant::OpensShared => "opens-shared",
            Mutant::NoLockDelay => "no-lock-delay",
            Mutant::SequencerOutlivesLock => "sequencer-outlives-lock",
            Mutant::MacIgnored => "mac-ignored",
            Mutant::ClosedHandlesRevived => "closed-handles-revived",
            Mutant::ClocksUnchecked => "clocks-unchecked",
            Mutant::InterestForgotten => "interest-forgotten",
            Mutant::OpensAtOnce => "opens-at-once",
            Mutant::NoInvalidationWait => "no-invalidation-wait",
            Mutant::CachingDuringWrite => "caching-during-write",
            Mutant::QueueJumping => "queue-jumping",
            Mutant::GuardIgnored => "guard-ignored",
            Mutant::ListsIgnored => "lists-ignored",
            Mutant::ListsInvalidateNothing => "lists-invalidate-nothing",
            Mutant::AbsencesStay => "absences-stay",
            Mutant::CommandsOutliveLeases => "commands-outlive-leases",
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
        let known = Mutant::ALL.iter().map(|mutant| mutant.name()).collect::<Vec<_>>().join(", ");
        Mutant::ALL
            .into_iter()
            .find(|mutant| mutant.name() == name)
            .ok_or_else(|| format!("there is no mutant `{name}`; there are: {known}"))
    }
}
