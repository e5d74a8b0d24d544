//! Groups: one tally for each aggregate of each.

use super::{Aggregate, MAX_HELD, MAX_HELD_BYTES, Query, Row, Trouble, by_place, placed};
use crate::compare::{as_int, sortable, sorted};
use crate::eval::{Fault, STEPS, Scope};
use crate::packed::{self, Packed, Val};
use crate::value::Value;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// What makes a group, in the order of values: 1 and 1.0 are one group.
#[derive(Clone, Debug)]
struct Name(Vec<Box<[u8]>>);

impl Ord for Name {
    fn cmp(&self, other: &Name) -> Ordering {
        self.0
            .iter()
            .zip(&other.0)
            .fold(Ordering::Equal, |order, (left, right)| order.then_with(|| by_place(left, right)))
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Name) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Name {}

impl Name {
    fn weight(&self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }
}

#[derive(Debug)]
pub(super) struct Groups {
    groups: BTreeMap<Name, Vec<Tally>>,
    /// What their names weigh.
    bytes: usize,
}

impl Groups {
    pub(super) fn new(query: &Query) -> Groups {
        let mut groups = BTreeMap::new();
        // Without a group by, nothing still has a count.
        if query.group_by.is_empty() {
            groups.insert(Name(Vec::new()), tallies(query));
        }
        Groups { groups, bytes: 0 }
    }

    pub(super) fn add(&mut self, query: &Query, scope: &Scope<'_>) -> Result<(), Trouble> {
        let mut steps = STEPS;
        let parts = query.group_by.iter().map(|(_, part)| normal(placed(part, scope, &mut steps)?));
        let name = Name(parts.collect::<Result<_, Trouble>>()?);
        let weight = name.weight();
        let group = self.groups.entry(name).or_insert_with(|| {
            self.bytes += weight;
            tallies(query)
        });
        for (tally, (_, _, part)) in group.iter_mut().zip(&query.aggregates) {
            let value = match part.as_ref().map(|part| part.val(scope, &mut steps)) {
                None => Val::Bool(true),
                Some(Err(Fault::Missing)) => continue,
                Some(value) => value?,
            };
            tally.add(&value)?;
        }
        self.bound()
    }

    pub(super) fn absorb(&mut self, other: Groups) -> Result<(), Trouble> {
        for (name, theirs) in other.groups {
            match self.groups.entry(name) {
                std::collections::btree_map::Entry::Vacant(vacant) => {
                    self.bytes += vacant.key().weight();
                    vacant.insert(theirs);
                }
                std::collections::btree_map::Entry::Occupied(mut ours) => {
                    ours.get_mut().iter_mut().zip(theirs).for_each(|(ours, theirs)| ours.absorb(theirs));
                }
            }
        }
        self.bound()
    }

    fn bound(&self) -> Result<(), Trouble> {
        if self.groups.len() > MAX_HELD || self.bytes > MAX_HELD_BYTES { Err(Trouble::TooMany) } else { Ok(()) }
    }

    pub(super) fn finish(self, query: &Query) -> Result<Vec<Row>, Trouble> {
        let rows = self.groups.into_iter().map(|(name, tallies)| {
            let mut columns = BTreeMap::new();
            for ((column, _), value) in query.group_by.iter().zip(name.0) {
                let value = packed::read(&value).map_or(Value::Null, |(value, _)| value.to_value());
                columns.insert(column.clone(), value);
            }
            for ((column, ..), tally) in query.aggregates.iter().zip(tallies) {
                columns.insert(column.clone(), tally.value()?);
            }
            let columns = Packed::pack(&Value::Map(columns)).map_err(|_| Fault::Overflow)?;
            Ok(Row { key: None, columns })
        });
        rows.collect()
    }
}

/// The same bytes for equal numbers, whichever came first.
fn normal(value: Box<[u8]>) -> Result<Box<[u8]>, Trouble> {
    match packed::read(&value) {
        Some((Val::Float(float), _)) => {
            let Some(int) = as_int(float) else { return Ok(value) };
            let mut bytes = Vec::new();
            Val::Int(int).put(&mut bytes);
            Ok(bytes.into())
        }
        _ => Ok(value),
    }
}

fn tallies(query: &Query) -> Vec<Tally> {
    query.aggregates.iter().map(|(_, aggregate, _)| Tally::new(*aggregate)).collect()
}

/// An aggregate as far as its values have come. Nulls are not counted.
#[derive(Debug)]
enum Tally {
    Count(i64),
    /// Whole numbers exactly, and floats apart; whether the mean is wanted.
    Sum {
        ints: i128,
        floats: f64,
        any_float: bool,
        count: i64,
        mean: bool,
    },
    /// The packed value that comes first, in this order.
    First {
        value: Option<Box<[u8]>>,
        order: Ordering,
    },
}

impl Tally {
    fn new(aggregate: Aggregate) -> Tally {
        let sum = |mean| Tally::Sum { ints: 0, floats: 0.0, any_float: false, count: 0, mean };
        match aggregate {
            Aggregate::Count => Tally::Count(0),
            Aggregate::Sum => sum(false),
            Aggregate::Avg => sum(true),
            Aggregate::Min => Tally::First { value: None, order: Ordering::Less },
            Aggregate::Max => Tally::First { value: None, order: Ordering::Greater },
        }
    }

    fn add(&mut self, value: &Val<'_>) -> Result<(), Fault> {
        if matches!(value, Val::Null) {
            return Ok(());
        }
        match self {
            Tally::Count(count) => *count += 1,
            Tally::Sum { ints, floats, any_float, count, .. } => {
                match value {
                    // 2⁶³ records of i64::MAX would fit.
                    Val::Int(int) => *ints += i128::from(*int),
                    Val::Float(float) => (*floats, *any_float) = (*floats + float, true),
                    _ => return Err(Fault::WrongKind),
                }
                *count += 1;
            }
            Tally::First { value: first, order } => {
                sortable(value)?;
                let before = first.as_ref().and_then(|first| packed::read(first));
                if before.is_none_or(|(before, _)| sorted(value, &before) == *order) {
                    let mut bytes = Vec::new();
                    value.put(&mut bytes);
                    *first = Some(bytes.into());
                }
            }
        }
        Ok(())
    }

    fn absorb(&mut self, other: Tally) {
        match (self, other) {
            (Tally::Count(count), Tally::Count(more)) => *count += more,
            (
                Tally::Sum { ints, floats, any_float, count, .. },
                Tally::Sum { ints: more, floats: more_floats, any_float: more_float, count: more_count, .. },
            ) => {
                *ints += more;
                *floats += more_floats;
                *any_float |= more_float;
                *count += more_count;
            }
            (first @ Tally::First { .. }, Tally::First { value: Some(value), .. }) => {
                if let Some((value, _)) = packed::read(&value) {
                    // It was sortable when it came.
                    let _ = first.add(&value);
                }
            }
            _ => {}
        }
    }

    fn value(self) -> Result<Value, Fault> {
        Ok(match self {
            Tally::Count(count) => Value::Int(count),
            Tally::Sum { count: 0, mean: true, .. } => Value::Null,
            Tally::Sum { ints, floats, count, mean: true, .. } => Value::Float((ints as f64 + floats) / count as f64),
            Tally::Sum { ints, floats, any_float: true, .. } => Value::Float(ints as f64 + floats),
            Tally::Sum { ints, .. } => Value::Int(i64::try_from(ints).map_err(|_| Fault::Overflow)?),
            Tally::First { value, .. } => {
                value.and_then(|value| packed::read(&value).map(|(value, _)| value.to_value())).unwrap_or(Value::Null)
            }
        })
    }
}
