//! T3, R3, R4, R8: once everything has healed, whoever folds what its live query told has what a fresh read says.

use super::{Invariant, Sight};
use crate::scenarios::tables::fact::{Fact, Rows};
use std::collections::BTreeMap;

/// The claim.
#[derive(Debug, Default)]
pub struct LiveQueriesEqualFreshReads {
    /// T1: who asks the same holds the same.
    by_query: BTreeMap<String, Rows>,
    checks: u64,
}

impl Invariant<Fact> for LiveQueriesEqualFreshReads {
    fn name(&self) -> &'static str {
        "live_queries_equal_fresh_reads"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        let Fact::Compared { client, query, told, fresh, settling } = fact else { return Ok(()) };
        self.checks += 1;
        if *settling {
            return Err(format!("client {client}: not all partitions have switched to its data"));
        }
        if told != fresh {
            return Err(format!("client {client}, {query}: it was told {told:?}, and there is {fresh:?}"));
        }
        match self.by_query.insert(query.clone(), told.clone()).filter(|other| other != told) {
            Some(other) => Err(format!("client {client}, {query}: it has {told:?}, and another {other:?}")),
            None => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
