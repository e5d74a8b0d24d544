//! T4, Table 3: what clients did with each record has a view of every level: sequential (Definition 1), in write-invocation
//! order (Definition 2), linearizable (`latest`).

use super::{Invariant, Sight};
use crate::checkers::history::{Done, History, Kind, Order, What};
use crate::scenarios::tables::fact::{Fact, Level, Shown, Told};
use std::collections::BTreeMap;
use tidings_predicate::Key;
use tidings_tables::names::OperationId;

/// A change that was begun.
#[derive(Debug)]
struct Begun {
    client: u32,
    key: Key,
    at: u64,
    /// Whether those who read are shown what it leaves.
    shown: bool,
    ended: bool,
}

/// The claim.
#[derive(Debug, Default)]
pub struct ReadsFitTheDefinitions {
    begun: BTreeMap<OperationId, Begun>,
    asked: BTreeMap<(u32, u64), u64>,
    history: History,
    checks: u64,
}

impl Invariant<Fact> for ReadsFitTheDefinitions {
    fn name(&self) -> &'static str {
        "reads_fit_the_definitions"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        let at = sight.at.0;
        match fact {
            Fact::Begins { op, client, key, value, shown, forked: false } => {
                let shown = value.is_some() && matches!(shown, Shown::Everybody | Shown::Team('a'));
                self.begun.insert(*op, Begun { client: *client, key: key.clone(), at, shown, ended: false });
            }
            Fact::Ends { op, told: Told::Done(version), forked: false } => {
                let Some(begun) = self.begun.get_mut(op).filter(|begun| !begun.ended) else { return Ok(()) };
                begun.ended = true;
                let what = What::Wrote { version: *version, shown: begun.shown };
                self.history.add(&begun.key, Done { client: begun.client as usize, from: begun.at, to: at, what });
            }
            Fact::Asks { client, id } => {
                self.asked.insert((*client, *id), at);
            }
            Fact::Read { client, key, level, found, id, .. } => {
                // A read of all records is told record by record.
                let Some(from) = self.asked.get(&(*client, *id)).copied() else { return Ok(()) };
                let level = match level {
                    Level::Committed => Kind::Committed,
                    Level::Wio => Kind::Wio,
                    Level::Latest => Kind::Latest,
                };
                let what = What::Saw { level, found: found.map(|(version, _)| version) };
                self.history.add(key, Done { client: *client as usize, from, to: at, what });
                self.checks += 1;
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        self.history.has_view(Order::Sequential, &[Kind::Committed, Kind::Wio, Kind::Latest])?;
        self.history.has_view(Order::Invoked, &[Kind::Wio])?;
        self.history.has_view(Order::RealTime, &[Kind::Latest])
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
