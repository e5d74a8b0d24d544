//! Requests and answers are understood by whoever receives them, whatever happened to them on the way.

use super::Violation;

/// The claim.
#[derive(Debug, Default)]
pub struct RequestsAreUnderstood {
    checks: u64,
}

impl RequestsAreUnderstood {
    /// The claim's name.
    pub const NAME: &'static str = "requests_are_understood";

    /// An answer came and was understood.
    pub fn understood(&mut self) {
        self.checks += 1;
    }

    /// One side could not make sense of what the other said.
    pub fn broken(&self, what: &str) -> Violation {
        Violation::new(RequestsAreUnderstood::NAME, what)
    }

    /// How many answers were understood.
    pub fn checks(&self) -> u64 {
        self.checks
    }
}
