//! Look-ups of a read: records of another table by their keys, some at a time, and each key once.

use super::convert;
use super::directories::TableName;
use super::hub::Hub;
use super::reading::Taken;
use futures::future::BoxFuture;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidings_base::Error;
use tidings_client::tables::form::key_to;
use tidings_predicate::{Key, Packed, STEPS};
use tidings_tables::calls::Visible;
use tidings_tables::gather::Gather;
use tidings_wire::v1;

/// Records that are looked up for together: with a limit as many are looked up in vain at most, and so many of the largest may be
/// in memory.
pub(super) const TOGETHER: usize = 32;
/// Look-ups of one read that are under way at a time: each asks one partition for one record.
const UNDER_WAY: usize = 16;
/// Bytes of what was found, and keys, that a read keeps for records to come: many orders are of few items.
const KEPT: usize = 8 << 20;
const KEYS: usize = 4_096;

/// What is evaluated over many records may take long: other tasks of a thread have their turn after so many steps.
#[derive(Debug, Default)]
pub(super) struct Turns(u64);

impl Turns {
    /// So many steps were taken from the beginning on.
    pub(super) async fn after(&mut self, steps: u64) {
        if steps >= self.0 + u64::from(STEPS) {
            self.0 = steps;
            tokio::task::yield_now().await;
        }
    }
}

/// A table and a key in it.
type At = (String, Key);

/// What look-ups of one read have found, as whoever reads may see it.
#[derive(Debug, Default)]
pub(super) struct Found {
    records: BTreeMap<At, Option<Packed>>,
    bytes: usize,
}

impl Found {
    /// What was found for a record.
    pub(super) fn at(&self, at: &Option<At>) -> Option<&Packed> {
        self.records.get(at.as_ref()?)?.as_ref()
    }

    fn insert(&mut self, at: At, record: Option<Packed>) {
        self.bytes += record.as_ref().map_or(0, |record| record.as_bytes().len());
        self.records.insert(at, record);
    }

    /// Makes room for what the next records need.
    fn make_room(&mut self) {
        if self.bytes > KEPT || self.records.len() > KEYS {
            *self = Found::default();
        }
    }
}

/// Whose eyes a look-up is made with: those of the read that it belongs to.
#[derive(Clone, Copy)]
pub(super) struct Eyes<'a> {
    pub(super) caller: &'a v1::TablesCaller,
    /// The table that is read: what is looked up is of its application, if nothing else is said.
    pub(super) name: &'a TableName,
    pub(super) read: &'a v1::RecordRead,
}

impl Hub {
    /// Looks up what these records name; where each of them finds it.
    pub(super) async fn look_up(
        self: &Arc<Self>,
        eyes: Eyes<'_>,
        (gather, turns): (&mut Gather, &mut Turns),
        records: &[Visible],
        found: &mut Found,
    ) -> Result<Vec<Option<At>>, Error> {
        let mut named = Vec::<Option<At>>::with_capacity(records.len());
        for record in records {
            named.push(gather.lookup(record)?);
            turns.after(gather.steps()).await;
        }
        found.make_room();
        let missing: BTreeSet<&At> = named.iter().flatten().filter(|at| !found.records.contains_key(*at)).collect();
        let asking: Vec<BoxFuture<'_, _>> = missing.into_iter().map(|at| self.look_up_one(eyes, at.clone())).collect();
        let answers: Vec<_> = stream::iter(asking).buffer_unordered(UNDER_WAY).try_collect().await?;
        answers.into_iter().for_each(|(at, record)| found.insert(at, record));
        Ok(named)
    }

    /// What a look-up finds, if its writer shows it to this reader: a read within a read.
    fn look_up_one<'a>(
        self: &'a Arc<Self>,
        Eyes { caller, name, read }: Eyes<'a>,
        at: At,
    ) -> BoxFuture<'a, Result<(At, Option<Packed>), Error>> {
        let (table, key) = &at;
        let table = match table.contains('/') || name.app == caller.app {
            true => table.clone(),
            false => format!("{}/{table}", name.app),
        };
        let (key, level, reader) = (Some(key_to(key.clone())), read.level, read.reader.clone());
        let read = v1::RecordRead { table, key, level, reader, ..Default::default() };
        Box::pin(async move {
            let rows = self.read(caller, read, Taken::Before).await?.rows;
            let record = rows.into_iter().next().and_then(convert::record_of).map(|record| record.columns);
            Ok((at, record))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use tidings_base::Wall;
    use tidings_predicate::query::Ask;
    use tidings_predicate::{Dialect, Value};
    use tidings_tables::gather::Reading;
    use tidings_tables::names::Position;

    fn at(n: i64) -> At {
        ("items".into(), format!("k{n}").as_str().into())
    }

    #[tokio::test(flavor = "current_thread")]
    async fn gathering_gives_others_their_turn_by_steps() {
        let text = ["text.contains('y')"; 4].join(" || ");
        let ask = Ask { project: vec![("p".to_owned(), text)], ..Ask::default() };
        let reading = Reading { data: Packed::empty(), claims: Packed::empty(), now: Wall(0) };
        let mut gather = Gather::new(&ask, &Dialect::default(), reading).unwrap();
        let columns = Packed::columns([("text", Value::from("x".repeat(400_000).as_str()))]).unwrap();
        let (writer, audience) = (String::new(), "".into());
        let record = Visible { key: "k".into(), version: Position::ZERO, time: Wall(0), writer, audience, columns };
        let others = Arc::new(AtomicU64::new(0));
        let other = tokio::spawn({
            let others = others.clone();
            async move {
                loop {
                    others.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            }
        });
        let mut turns = Turns::default();
        // Half of the steps that there are in one go each: every other time.
        for others_had in [0, 1, 1, 2, 2, 3] {
            gather.add(&record, None).unwrap();
            turns.after(gather.steps()).await;
            assert_eq!(others.load(Ordering::Relaxed), others_had);
        }
        other.abort();
    }

    #[test]
    fn what_was_found_is_kept_within_bounds() {
        let record = |bytes: usize| Packed::columns([("text", Value::from("x".repeat(bytes).as_str()))]).unwrap();
        let mut found = Found::default();
        found.insert(at(1), Some(record(1_000)));
        found.insert(at(2), None);
        found.make_room();
        assert_eq!(found.at(&Some(at(1))), Some(&record(1_000)));
        assert!(found.at(&Some(at(2))).is_none() && found.records.contains_key(&at(2)) && found.at(&None).is_none());
        (0..9).for_each(|n| found.insert(at(10 + n), Some(record(1 << 20))));
        found.make_room();
        assert!(found.records.is_empty() && found.bytes == 0);
        (0..=KEYS as i64).for_each(|n| found.insert(at(n), None));
        found.make_room();
        assert!(found.records.is_empty());
    }
}
