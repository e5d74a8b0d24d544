//! Rows in order: only as many as the answer may have.

use super::{Direction, MAX_HELD, MAX_HELD_BYTES, Query, Row, Trouble, by_place, placed};
use crate::eval::{Fault, STEPS, Scope};
use crate::packed::Packed;
use crate::value::Value;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// What it is ordered by, and the row itself.
type Placed = (Vec<Box<[u8]>>, Row);

#[derive(Debug, Default)]
pub(super) struct Rows {
    rows: Vec<Placed>,
    bytes: usize,
}

/// What a row weighs.
fn weight((order, row): &Placed) -> usize {
    order.iter().map(|part| part.len()).sum::<usize>() + row.columns.as_bytes().len() + size_of::<Placed>()
}

impl Rows {
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn add(&mut self, query: &Query, scope: &Scope<'_>) -> Result<(), Trouble> {
        let mut steps = STEPS;
        let order = query.order.iter().map(|(part, _)| placed(part, scope, &mut steps));
        let order = order.collect::<Result<_, Trouble>>()?;
        let row = Row { key: scope.key.cloned(), columns: project(query, scope, &mut steps)? };
        self.rows.push((order, row));
        self.bytes += self.rows.last().map_or(0, weight);
        self.bound(query)
    }

    pub(super) fn absorb(&mut self, query: &Query, other: Rows) -> Result<(), Trouble> {
        self.rows.extend(other.rows);
        self.bytes += other.bytes;
        self.bound(query)
    }

    /// Drops what cannot be in the answer any more, now and then.
    fn bound(&mut self, query: &Query) -> Result<(), Trouble> {
        let limit = query.limit.unwrap_or(usize::MAX);
        if limit > MAX_HELD && self.rows.len() > MAX_HELD {
            return Err(Trouble::TooMany);
        }
        let limit = limit.min(MAX_HELD);
        if self.rows.len() > 2 * limit.max(16) || self.bytes > MAX_HELD_BYTES {
            self.rows.sort_by(|left, right| compare(query, left, right));
            self.rows.truncate(limit);
            self.bytes = self.rows.iter().map(weight).sum();
        }
        if self.bytes > MAX_HELD_BYTES { Err(Trouble::TooMany) } else { Ok(()) }
    }

    pub(super) fn finish(mut self, query: &Query) -> Vec<Row> {
        self.rows.sort_by(|left, right| compare(query, left, right));
        self.rows.into_iter().map(|(_, row)| row).collect()
    }
}

fn compare(query: &Query, left: &Placed, right: &Placed) -> Ordering {
    let by_order = query.order.iter().zip(left.0.iter().zip(&right.0)).map(|((_, direction), (left, right))| {
        let order = by_place(left, right);
        if *direction == Direction::Ascending { order } else { order.reverse() }
    });
    by_order.fold(Ordering::Equal, Ordering::then).then_with(|| left.1.key.cmp(&right.1.key))
}

/// The columns of a row. What a record does not have is left out, as in the record itself.
fn project(query: &Query, scope: &Scope<'_>, steps: &mut u32) -> Result<Packed, Trouble> {
    if query.project.is_empty() {
        return Ok(scope.this.and_then(|this| Packed::parse(this).ok()).unwrap_or_else(Packed::empty));
    }
    let mut columns = BTreeMap::new();
    for (name, part) in &query.project {
        match part.value(scope, steps) {
            Ok(value) => {
                columns.insert(name.clone(), value);
            }
            Err(Fault::Missing) => {}
            Err(fault) => return Err(fault.into()),
        }
    }
    Packed::pack(&Value::Map(columns)).map_err(|_| Trouble::Fault(Fault::Overflow))
}
