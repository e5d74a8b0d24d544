//! Checkers of whole histories: simple, and apart from what made the history.

pub mod history;
