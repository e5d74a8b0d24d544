//! Guards that can be left out, to prove that the tests would notice. Never part of a normal run.

/// A guard of the binding that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A leader takes itself to be in touch with whoever answered once.
    AlwaysInTouch,
    /// A promise that a voter did not give is answered as one.
    CountedPromise,
    /// A voter promises itself to a leader while it considers a vote for the next.
    PromiseBesideVote,
    /// A leader counts on its lease while it considers a vote for another.
    LeaseBesideVote,
    /// A replica whose log is gone begins a new one beside the vote it gave.
    LostLog,
}
