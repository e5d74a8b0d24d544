//! Errors as users meet them: a stable code, a class, a sentence, and what to do.

use std::borrow::Cow;
use std::fmt;

/// What kind of failure it is. One table maps it to REST status, gRPC status and exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The request itself is wrong and will never succeed as it is.
    Invalid,
    /// What it names does not exist.
    NotFound,
    /// It was understood and not allowed, now or ever: permission, a fence, a condition, a limit.
    Refused,
    /// Nobody answered who could decide; nothing happened.
    Unreachable,
    /// It may or may not have happened.
    OutcomeUnknown,
    /// Something broke on the way; the message says what.
    Failed,
}

impl Class {
    /// All classes, in the order of their wire numbers (from 1).
    pub const ALL: [Class; 6] =
        [Class::Invalid, Class::NotFound, Class::Refused, Class::Unreachable, Class::OutcomeUnknown, Class::Failed];

    /// The HTTP status of an answer of this class.
    pub fn http_status(self) -> u16 {
        match self {
            Class::Invalid => 400,
            Class::NotFound => 404,
            Class::Refused => 409,
            Class::Unreachable => 503,
            Class::OutcomeUnknown => 504,
            Class::Failed => 500,
        }
    }

    /// The gRPC status code of an answer of this class.
    pub fn grpc_status(self) -> u8 {
        match self {
            Class::Invalid => 3,        // INVALID_ARGUMENT
            Class::NotFound => 5,       // NOT_FOUND
            Class::Refused => 9,        // FAILED_PRECONDITION
            Class::Unreachable => 14,   // UNAVAILABLE
            Class::OutcomeUnknown => 4, // DEADLINE_EXCEEDED
            Class::Failed => 13,        // INTERNAL
        }
    }

    /// The exit code of a command that ended with this class (spec 6: 2 usage, 3 not found, 4 refused, …).
    pub fn exit_code(self) -> u8 {
        match self {
            Class::Failed => 1,
            Class::Invalid => 2,
            Class::NotFound => 3,
            Class::Refused => 4,
            Class::Unreachable => 5,
            Class::OutcomeUnknown => 6,
        }
    }

    /// The class as it stands in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Class::Invalid => "invalid",
            Class::NotFound => "not_found",
            Class::Refused => "refused",
            Class::Unreachable => "unreachable",
            Class::OutcomeUnknown => "outcome_unknown",
            Class::Failed => "failed",
        }
    }
}

/// What follows the part in the code of an error that [`Error::lacks_majority`] knows.
const NO_MAJORITY: &str = ".no_majority";

/// An error that leaves a part: everything a user needs to act on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Stable and machine-readable: `part.reason`, such as `store.fenced`.
    pub code: Cow<'static, str>,
    /// What kind of failure it is.
    pub class: Class,
    /// One sentence that says what happened.
    pub message: String,
    /// One sentence that says what to do; may be empty.
    pub hint: String,
    /// The address of a node that can answer instead, if one is known.
    pub redirect: Option<String>,
}

impl Error {
    /// An error with a code and a sentence.
    pub fn new(code: &'static str, class: Class, message: impl Into<String>) -> Error {
        let code = Cow::Borrowed(code);
        Error { code, class, message: message.into(), hint: String::new(), redirect: None }
    }

    /// The same error with a sentence that says what to do.
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = hint.into();
        self
    }

    /// The same error with the address of a node that can answer instead.
    pub fn redirect(mut self, to: Option<String>) -> Error {
        self.redirect = to;
        self
    }

    /// Whether nobody can decide until members of a group come back, as far as whoever answered can see: to ask the same one
    /// again is in vain.
    pub fn lacks_majority(&self) -> bool {
        self.code.ends_with(NO_MAJORITY)
    }

    /// The same error, under a code that says that a group has no majority.
    pub fn without_majority(mut self) -> Error {
        let part = self.code.split('.').next().unwrap_or_default();
        self.code = Cow::Owned(format!("{part}{NO_MAJORITY}"));
        self
    }

    /// Whether it is for want of a right.
    fn is_denial(&self) -> bool {
        let code = self.code.as_ref();
        let reason = code.split_once('.').map_or(code, |(_, reason)| reason);
        matches!(reason, "forbidden" | "denied" | "operators_only" | "applications_only")
            || matches!(
                code,
                "cell.not_your_session"
                    | "tables.access"
                    | "tables.foreign"
                    | "tables.not_yours"
                    | "tables.may_not_write"
            )
    }

    /// The HTTP status: that of the class, save where a code has a better-known one of its own.
    pub fn http_status(&self) -> u16 {
        match self.code.as_ref() {
            "control.unauthenticated" => 401,
            _ if self.is_denial() => 403,
            "cell.wrong_generation" | "tables.wrong_generation" | "tables.conflict" => 412,
            "control.too_large" | "cell.too_large" | "tables.record_too_large" => 413,
            "control.busy" => 429,
            _ => self.class.http_status(),
        }
    }

    /// The gRPC status: that of the class, save where a code has a better-known one of its own.
    pub fn grpc_status(&self) -> u8 {
        match self.code.as_ref() {
            "control.unauthenticated" => 16,
            _ if self.is_denial() => 7,
            "control.busy" => 8,
            "control.unsupported" => 12,
            _ => self.class.grpc_status(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_lacks_a_right_is_told_so_in_every_protocol() {
        for code in ["control.forbidden", "cell.denied", "cell.operators_only", "placement.operators_only"] {
            let error = Error::new(code, Class::Refused, "no");
            assert_eq!((error.http_status(), error.grpc_status()), (403, 7), "{code}");
        }
        for code in ["notify.operators_only", "notify.applications_only", "cell.not_your_session", "tables.not_yours"] {
            let error = Error::new(code, Class::Refused, "no");
            assert_eq!((error.http_status(), error.grpc_status()), (403, 7), "{code}");
        }
        let error = Error::new("store.fenced", Class::Refused, "no");
        assert_eq!((error.http_status(), error.grpc_status()), (409, 9));
    }

    #[test]
    fn a_group_without_a_majority_is_told_by_the_code() {
        let error = Error::new("store.not_leader", Class::Unreachable, "no");
        assert!(!error.lacks_majority());
        let error = error.without_majority();
        assert!(error.lacks_majority() && error.code == "store.no_majority" && error.class == Class::Unreachable);
    }

    #[test]
    fn exit_codes_are_the_documented_ones() {
        let codes: Vec<u8> = Class::ALL.iter().map(|c| c.exit_code()).collect();
        assert_eq!(codes, [2, 3, 4, 5, 6, 1]);
    }
}
