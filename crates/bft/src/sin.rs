//! Replicas that lie on purpose, for tests; named by their sin.

/// What a replica does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sin {
    /// Answers every command with a result of its own.
    Forger,
    /// Executes, and answers nobody.
    Mute,
}
