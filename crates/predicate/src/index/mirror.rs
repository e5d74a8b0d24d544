//! The mirror: readers found by their data and claims, for what writers ask of them.
//!
//! A field of readers is mirrored once a writer's predicate has asked for it and it is worth it: readers who ask for
//! nothing a writer's predicate looks at cost nothing.

use super::scheme::{Bound, MAX_TOKENS};
use super::token::{hash, lane, members, prefix_lane};
use crate::access::{Alternative, Test};
use crate::eval::Scope;
use crate::packed::Val;
use crate::place::{FINEST, Place, cover};
use crate::template::Path;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// How a field of readers is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Value,
    Member,
    Order,
    Place,
}

/// A line and a place on it.
type Spot = (u8, u64);

/// One field of all readers.
#[derive(Debug)]
pub(crate) struct Mirror {
    path: Path,
    by: By,
    /// (line, place, subscription)
    spots: BTreeSet<(u8, u64, u32)>,
}

/// Where an atom's readers stand in the mirror of its field.
pub(crate) struct Wanted {
    path: Path,
    by: By,
    ranges: Vec<RangeInclusive<Spot>>,
}

impl Mirror {
    fn spots(&self, reader: &Scope<'_>, seed: u64) -> Vec<Spot> {
        let Ok(value) = reader.load(&self.path) else { return Vec::new() };
        match self.by {
            By::Value => hash(&value, seed).map(|hash| (0, hash)).into_iter().collect(),
            By::Member => members(&value, seed).into_iter().flatten().map(|hash| (0, hash)).collect(),
            By::Order => lane(&value).into_iter().collect(),
            By::Place => {
                let place = Place::of(&value).ok();
                place.map(|place| (0, place.cell(FINEST).on_line().0)).into_iter().collect()
            }
        }
    }

    pub(crate) fn add(&mut self, slot: u32, reader: &Scope<'_>, seed: u64) {
        for (line, at) in self.spots(reader, seed) {
            self.spots.insert((line, at, slot));
        }
    }

    pub(crate) fn remove(&mut self, slot: u32, reader: &Scope<'_>, seed: u64) {
        for (line, at) in self.spots(reader, seed) {
            self.spots.remove(&(line, at, slot));
        }
    }

    pub(crate) fn of(wanted: &Wanted) -> Mirror {
        Mirror { path: wanted.path.clone(), by: wanted.by, spots: BTreeSet::new() }
    }

    pub(crate) fn is_for(&self, wanted: &Wanted) -> bool {
        self.path == wanted.path && self.by == wanted.by
    }

    /// The readers that stand where they are wanted.
    pub(crate) fn readers<'a>(&'a self, wanted: &'a Wanted) -> impl Iterator<Item = u32> + 'a {
        wanted.ranges.iter().flat_map(|range| {
            let (first, last) = (*range.start(), *range.end());
            self.spots.range((first.0, first.1, 0)..=(last.0, last.1, u32::MAX)).map(|(_, _, slot)| *slot)
        })
    }
}

/// What an alternative of a writer's predicate wants of readers, given the record; the likely most selective first.
pub(crate) fn wanted(alternative: &Alternative, record: &Bound<'_>, seed: u64) -> Vec<Wanted> {
    let mut all: Vec<Wanted> = alternative
        .atoms
        .iter()
        .filter_map(|atom| {
            // What no reader's field can satisfy has no ranges: nobody stands there.
            let (by, ranges) = ranges(atom.test, record, seed)?;
            Some(Wanted {
                path: record.template.paths[atom.path as usize].clone(),
                by,
                ranges: ranges.unwrap_or_default(),
            })
        })
        .collect();
    all.sort_by_key(|wanted| wanted.by == By::Order);
    all
}

/// How an atom's readers are looked up, and where they stand; `None` if there are too many places to look.
fn ranges(test: Test, record: &Bound<'_>, seed: u64) -> Option<(By, Option<Vec<RangeInclusive<Spot>>>)> {
    let at = |hash: u64| (0, hash)..=(0, hash);
    let value = |code| record.value(code).ok();
    Some(match test {
        Test::Equal(code) => (By::Value, value(code).and_then(|value| Some(vec![at(hash(&value, seed)?)]))),
        Test::Member(code) => (By::Member, value(code).and_then(|value| Some(vec![at(hash(&value, seed)?)]))),
        Test::OneOf(code) => {
            let members = value(code).and_then(|holder| members(&holder, seed)).unwrap_or_default();
            if members.len() > MAX_TOKENS {
                return None;
            }
            (By::Value, Some(members.into_iter().map(at).collect()))
        }
        Test::AtMost(code) => {
            (By::Order, value(code).and_then(|value| lane(&value)).map(|(line, spot)| vec![(line, 0)..=(line, spot)]))
        }
        Test::AtLeast(code) => (
            By::Order,
            value(code).and_then(|value| lane(&value)).map(|(line, spot)| vec![(line, spot)..=(line, u64::MAX)]),
        ),
        Test::Prefix(code) => (
            By::Order,
            value(code).and_then(|value| match value {
                Val::Str(prefix) => {
                    let [first, last] = prefix_lane(&prefix);
                    Some(vec![first..=last])
                }
                _ => None,
            }),
        ),
        Test::Near(centre, radius) => {
            let radius = match value(radius) {
                Some(Val::Int(metres)) => Some(metres as f64),
                Some(Val::Float(metres)) => Some(metres).filter(|metres| !metres.is_nan()),
                _ => None,
            };
            let centre = value(centre).and_then(|place| Place::of(&place).ok());
            let cells = centre.zip(radius).map(|(centre, radius)| cover(centre, radius));
            (
                By::Place,
                cells.map(|cells| cells.iter().map(|cell| (0, cell.on_line().0)..=(0, cell.on_line().1)).collect()),
            )
        }
    })
}
