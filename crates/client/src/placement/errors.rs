//! Refusals that the library itself makes; the manager's own come from `tidings_placement`.

use std::path::Path;
use tidings_base::{Class, Error};

/// The answer is of another kind than the question.
pub(crate) fn unexpected() -> Error {
    Error::new("placement.unexpected", Class::Failed, "the answer is of another kind than the question")
        .hint("The node may be of a later version than this library; upgrade the library.")
}

/// The system gave no random bytes.
pub(crate) fn no_randomness(why: getrandom::Error) -> Error {
    Error::new("client.no_randomness", Class::Failed, format!("no random bytes: {why}"))
}

/// No manager took the owner, or answered the lookup, in time.
pub(crate) fn no_manager() -> Error {
    Error::new("placement.no_manager", Class::Unreachable, "no manager answered in time")
        .hint("Check the servers' addresses, and that a majority of the cell is up.")
}

/// The owner has left.
pub(crate) fn left() -> Error {
    Error::new("placement.left", Class::Refused, "this owner has left the pool").hint("Join again.")
}

/// State came for another process of this owner, or for items that the owner does not know.
pub(crate) fn not_for_us(what: &str) -> Error {
    Error::new("placement.not_for_us", Class::Refused, format!("the state that was handed over is {what}"))
        .hint("The sender keeps it: the hand-over failed.")
}

/// Another process holds the lock on the owner's directory.
pub(crate) fn directory_in_use(dir: &Path) -> Error {
    let what = format!("another process owns `{}`", dir.display());
    Error::new("placement.directory_in_use", Class::Refused, what)
        .hint("Give each process a directory of its own, or stop the other one.")
}

/// The owner's directory cannot be used.
pub(crate) fn directory(dir: &Path, why: impl std::fmt::Display) -> Error {
    Error::new("placement.directory", Class::Failed, format!("cannot use `{}`: {why}", dir.display()))
        .hint("The owner keeps a lock and its number of starts there; make it writable.")
}
