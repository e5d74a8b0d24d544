//! Rules of a replica that are left out on purpose: they prove that the checks would notice. Never part of a normal run.

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// G: commands are taken, and voted for, whoever signed them.
    SignatureIgnored,
    /// G: one replica's word for a state is enough to take it over.
    OneWordEnough,
}
