//! The mirror: readers found by their data and claims, for what writers ask of them.
//!
//! A field of readers is mirrored once going without has cost writers as much as mirroring it will: nothing is spent on
//! fields that nobody asks for, and who asks for ever new ones makes matching twice as slow at most.

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

/// Fields that are wished for at once; the one that was wished for least is forgotten.
const MAX_WISHES: usize = 64;

/// One field of all readers.
#[derive(Debug)]
struct Mirror {
    path: Path,
    by: By,
    /// (line, place, subscription)
    spots: BTreeSet<(u8, u64, u32)>,
    /// When it was last looked into, by the number of looks.
    looked: u64,
}

/// A field that was asked for without a mirror, and what that has cost so far.
#[derive(Debug)]
struct Wish {
    path: Path,
    by: By,
    cost: usize,
}

/// The fields of readers that are mirrored.
#[derive(Debug, Default)]
pub(crate) struct Mirrors {
    all: Vec<Mirror>,
    wishes: Vec<Wish>,
    looks: u64,
}

impl Mirrors {
    pub(crate) fn add(&mut self, slot: u32, reader: &Scope<'_>, seed: u64) {
        self.all.iter_mut().for_each(|mirror| mirror.add(slot, reader, seed));
    }

    pub(crate) fn remove(&mut self, slot: u32, reader: &Scope<'_>, seed: u64) {
        self.all.iter_mut().for_each(|mirror| mirror.remove(slot, reader, seed));
    }

    /// The readers that stand where they are wanted, if their field is mirrored and there are fewer than `bar`.
    pub(crate) fn fewer(&mut self, wanted: &Wanted, bar: usize) -> Option<Vec<u32>> {
        let mirror = self.all.iter_mut().find(|mirror| mirror.path == wanted.path && mirror.by == wanted.by)?;
        self.looks += 1;
        mirror.looked = self.looks;
        let readers: Vec<u32> = mirror.readers(wanted).take(bar).collect();
        (readers.len() < bar).then_some(readers)
    }

    /// Whether a field is not mirrored but should be: it has been asked for at a cost that makes up for it.
    pub(crate) fn is_worth(&mut self, wanted: &Wanted, cost: usize, price: usize) -> bool {
        if self.all.iter().any(|mirror| mirror.path == wanted.path && mirror.by == wanted.by) {
            return false;
        }
        let at = self.wishes.iter().position(|wish| wish.path == wanted.path && wish.by == wanted.by);
        let at = at.unwrap_or_else(|| {
            if self.wishes.len() == MAX_WISHES
                && let Some(least) = (0..MAX_WISHES).min_by_key(|wish| self.wishes[*wish].cost)
            {
                self.wishes.swap_remove(least);
            }
            self.wishes.push(Wish { path: wanted.path.clone(), by: wanted.by, cost: 0 });
            self.wishes.len() - 1
        });
        self.wishes[at].cost += cost;
        let worth = self.wishes[at].cost >= price;
        if worth {
            self.wishes.swap_remove(at);
        }
        worth
    }

    /// Mirrors a field; the one that was not looked into for longest goes if there are `most`.
    pub(crate) fn make<'a>(
        &mut self,
        wanted: &Wanted,
        most: usize,
        readers: impl Iterator<Item = (u32, Scope<'a>)>,
        seed: u64,
    ) {
        if self.all.len() >= most
            && let Some(oldest) = (0..self.all.len()).min_by_key(|mirror| self.all[*mirror].looked)
        {
            self.all.swap_remove(oldest);
        }
        let mut mirror =
            Mirror { path: wanted.path.clone(), by: wanted.by, spots: BTreeSet::new(), looked: self.looks };
        readers.for_each(|(slot, reader)| mirror.add(slot, &reader, seed));
        self.all.push(mirror);
    }
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

    fn add(&mut self, slot: u32, reader: &Scope<'_>, seed: u64) {
        for (line, at) in self.spots(reader, seed) {
            self.spots.insert((line, at, slot));
        }
    }

    fn remove(&mut self, slot: u32, reader: &Scope<'_>, seed: u64) {
        for (line, at) in self.spots(reader, seed) {
            self.spots.remove(&(line, at, slot));
        }
    }

    /// The readers that stand where they are wanted.
    fn readers<'a>(&'a self, wanted: &'a Wanted) -> impl Iterator<Item = u32> + 'a {
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
