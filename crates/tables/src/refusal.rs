//! Why something is not done, each with a stable code and what to do.

use tidings_base::{Class, Error};
use tidings_predicate::query::Trouble;
use tidings_predicate::{Fault, TooSlow};

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No table has this name.
    UnknownTable,
    /// A table of this name is there already.
    Exists,
    /// The caller is not authorised at the table's level.
    Access,
    /// The table's list of access does not allow it.
    NotAllowed,
    /// The table is another application's, which has not said that the caller may write.
    Foreign,
    /// Only the application that made the table may do this.
    NotYours,
    /// The table is not as it was expected to be.
    Changed,
    /// The partition is, or may be, somebody else's: look again, with the same operation id.
    Moved,
    /// Too much is waiting.
    Busy,
    /// A key is empty or longer than 1 KiB.
    BadKey,
    /// A record is larger than 1 MiB.
    TooLarge,
    /// Columns are not a map, or one has a reserved name.
    BadColumns(String),
    /// The record does not fit the table's schema.
    Schema(String),
    /// The column that the table is partitioned by is missing, of another kind, or not what the record is stored under.
    PartitionColumn(String),
    /// `may_write`, or the rule that only a record's writer may replace it, denies it.
    MayNotWrite,
    /// `may_write` took more steps than it may.
    RuleTooSlow,
    /// A query took more steps for a record than it may.
    TooSlow,
    /// The table may not grow.
    Quota,
    /// What is known of the table would not fit its file.
    DirectoryTooLarge,
    /// R6: another operation had this id.
    Forked,
    /// R6: the outcome was acknowledged and forgotten.
    OutcomeUnknown,
    /// R6: the client has too many operations without acknowledged outcome.
    Outstanding,
    /// Operations that this one follows did not come in time.
    Waited,
    /// R5: this copy is older than what the client has seen.
    Behind,
    /// The store did not do it.
    Store(String),
    /// A cursor that nobody made, or of another query.
    BadCursor,
    /// A live query fell too far behind and has ended.
    Ended,
    /// A request contradicts itself.
    Invalid(String),
    /// A predicate or query is wrong; the predicate's own error.
    Query(Error),
}

impl Refusal {
    /// Whether whoever says it to a live query does not own the partition, or could not look: it says nothing of the query, which
    /// is asked for again.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Refusal::Moved | Refusal::Behind | Refusal::Store(_) | Refusal::Busy)
    }
}

impl From<tidings_predicate::Refusal> for Refusal {
    fn from(refusal: tidings_predicate::Refusal) -> Refusal {
        Refusal::Query(refusal.into())
    }
}

impl From<TooSlow> for Refusal {
    fn from(_: TooSlow) -> Refusal {
        Refusal::TooSlow
    }
}

impl From<Trouble> for Refusal {
    fn from(trouble: Trouble) -> Refusal {
        if trouble == Trouble::Fault(Fault::TooSlow) {
            return Refusal::TooSlow;
        }
        Refusal::Query(Error::new("tables.query_failed", Class::Invalid, format!("{trouble}.")))
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        let (code, class, message, hint): (_, _, &str, _) = match &refusal {
            Refusal::UnknownTable => (
                "tables.unknown_table",
                Class::NotFound,
                "There is no table of this name.",
                "Make it: tidings table create.",
            ),
            Refusal::Exists => (
                "tables.exists",
                Class::Refused,
                "A table of this name is there already.",
                "Drop it first, or alter it.",
            ),
            Refusal::Access => (
                "tables.access",
                Class::Refused,
                "This table asks for more than is known of the caller.",
                "Authenticate as an application or a user, as the table's access level says.",
            ),
            Refusal::NotAllowed => (
                "tables.denied",
                Class::Refused,
                "The table's list of access does not allow this to the caller.",
                "Ask whoever administers the table: tidings table acl.",
            ),
            Refusal::Foreign => (
                "tables.foreign",
                Class::Refused,
                "Callers of other applications write a table only if its list of access says so.",
                "Ask whoever administers the table: tidings table acl TABLE --allow NAME=write.",
            ),
            Refusal::NotYours => (
                "tables.not_yours",
                Class::Refused,
                "Only the application that made a table may alter or drop it.",
                "Ask with that application's key.",
            ),
            Refusal::Changed => (
                "tables.wrong_generation",
                Class::Refused,
                "The table was changed meanwhile.",
                "Look at it again and decide anew.",
            ),
            Refusal::Moved => (
                "tables.moved",
                Class::Unreachable,
                "This part of the table is served elsewhere now.",
                "Repeat the request with the same operation id.",
            ),
            Refusal::Busy => {
                ("tables.busy", Class::Refused, "Too many requests are waiting.", "Repeat it after a pause.")
            }
            Refusal::BadKey => {
                ("tables.bad_key", Class::Invalid, "A key is a text or bytes, 1 to 1,024 of them.", "Shorten the key.")
            }
            Refusal::TooLarge => (
                "tables.record_too_large",
                Class::Invalid,
                "A record is larger than 1 MiB.",
                "Keep large data elsewhere.",
            ),
            Refusal::BadColumns(what) => ("tables.bad_columns", Class::Invalid, what.as_str(), "Correct the columns."),
            Refusal::Schema(what) => {
                ("tables.schema", Class::Invalid, what.as_str(), "Correct the record, or alter the table's schema.")
            }
            Refusal::PartitionColumn(what) => (
                "tables.partition_column",
                Class::Invalid,
                what.as_str(),
                "A record of this table is named by the value of that column and a key; `tidings table stat` says which column.",
            ),
            Refusal::MayNotWrite => (
                "tables.may_not_write",
                Class::Refused,
                "The table's rule for writers denies this change.",
                "Ask the table's application what may_write says.",
            ),
            Refusal::RuleTooSlow => (
                "tables.too_slow",
                Class::Refused,
                "The table's rule for writers takes too many steps for this change.",
                "Write a smaller record, or shorten may_write: what a step is stands with predicates.",
            ),
            Refusal::TooSlow => (
                "tables.too_slow",
                Class::Invalid,
                "The query takes too many steps for one of the records.",
                "Shorten its expressions, or compare a column that tells small records from large ones: what a step is stands with predicates.",
            ),
            Refusal::Quota => (
                "tables.quota",
                Class::Refused,
                "The table has no room for more.",
                "Delete records, or raise its quota.",
            ),
            Refusal::DirectoryTooLarge => (
                "tables.directory_too_large",
                Class::Refused,
                "Where a table is cut, its columns, rules and list of access take 224 KiB at most.",
                "Cut it at shorter keys or at fewer, or declare less.",
            ),
            Refusal::Forked => (
                "tables.forked",
                Class::Refused,
                "Another operation had this id.",
                "The device's state was copied or set back: take a new netid and issue the operation again.",
            ),
            Refusal::OutcomeUnknown => (
                "tables.outcome_unknown",
                Class::OutcomeUnknown,
                "The outcome of this operation was acknowledged and forgotten.",
                "Read the record to see what it is.",
            ),
            Refusal::Outstanding => (
                "tables.too_many_outstanding",
                Class::Refused,
                "The client has 1,024 operations without acknowledged outcome.",
                "Wait for outcomes before issuing more.",
            ),
            Refusal::Waited => (
                "tables.waited",
                Class::Unreachable,
                "Operations that this one follows did not come in time.",
                "Repeat those first, then this one with the same operation id.",
            ),
            Refusal::Behind => (
                "tables.behind",
                Class::Unreachable,
                "This copy is older than what the client has seen.",
                "Ask the owner of the partition.",
            ),
            Refusal::Store(what) => ("tables.store_failed", Class::Failed, what.as_str(), "Look at the node's log."),
            Refusal::BadCursor => (
                "tables.bad_cursor",
                Class::Invalid,
                "This cursor was not made here, or for another query.",
                "Begin without a cursor.",
            ),
            Refusal::Ended => (
                "tables.query_ended",
                Class::Refused,
                "The live query fell too far behind and has ended.",
                "Register it again with the last cursor.",
            ),
            Refusal::Invalid(what) => ("tables.invalid", Class::Invalid, what.as_str(), "Correct the request."),
            Refusal::Query(error) => return error.clone(),
        };
        Error::new(code, class, message).hint(hint)
    }
}
