//! Refusals that the library itself makes; the cell's own are in `tidings_cell::error`.

use tidings_base::{Class, Error};

/// The application closed the session itself.
pub(crate) fn closed() -> Error {
    Error::new("cell.closed", Class::Refused, "the session was closed")
        .hint("Keep the `Cell` until the last call has been answered, or connect again.")
}

/// A call on a poisoned handle. One that was under way may have happened.
pub(crate) fn poisoned(under_way: bool) -> Error {
    let class = if under_way { Class::OutcomeUnknown } else { Class::Refused };
    Error::new("cell.poisoned", class, "the handle was poisoned: all calls on it fail")
        .hint("Open the file again if it is still wanted.")
}

/// The session did not begin in time.
pub(crate) fn not_begun(last: Option<Error>) -> Error {
    last.unwrap_or_else(|| {
        Error::new("cell.not_begun", Class::Unreachable, "no master of the cell answered in time")
            .hint("Check the servers' addresses, and that a majority of the cell is up.")
    })
}

/// The system gave no random bytes.
pub(crate) fn no_randomness(why: getrandom::Error) -> Error {
    Error::new("client.no_randomness", Class::Failed, format!("no random bytes: {why}"))
}

/// The lock is not held any more.
pub(crate) fn lock_lost(path: &str) -> Error {
    Error::new("cell.lock_lost", Class::Refused, format!("the lock of `{path}` is lost"))
        .hint("Stop what the lock protected, and acquire it anew.")
}

/// The lock was released by its holder.
pub(crate) fn released(path: &str) -> Error {
    Error::new("cell.not_held", Class::Refused, format!("the lock of `{path}` was released")).hint("Acquire it anew.")
}
