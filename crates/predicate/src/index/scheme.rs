//! Ways to find subscriptions by a record's fields, shared by all predicates that ask for the same fields.
//!
//! A scheme takes *all* equalities of an alternative together, so that one value that everybody asks for does no harm,
//! and at most one further atom: a place, a member, an interval, a prefix, or a bound. Intervals and places are cut into cells
//! whose size follows theirs; a record then asks once for each size in use.

use super::postings::Postings;
use super::token::{ends, hash, hash_text, lane, members, mix, scale};
use crate::access::{Alternative, Test};
use crate::ast::Code;
use crate::eval::{Fault, STEPS, Scope, Stack};
use crate::packed::Val;
use crate::place::{self, Place};
use crate::template::{Path, Template};
use std::collections::BTreeSet;

/// Equalities of one scheme; further ones are left to the evaluation.
const MAX_EQUALS: usize = 4;
/// Tokens of one alternative of one subscription: beyond it a list is too long to be indexed.
pub(crate) const MAX_TOKENS: usize = 1_024;
/// Bytes of a prefix that are looked at.
const MAX_PREFIX: usize = 32;
/// Intervals of up to four times the size share one size of cells: fewer questions, a few more candidates.
const BITS_A_LEVEL: u32 = 2;
/// Metres from any place on Earth to the one that is farthest away, and less.
const HALF_ROUND: f64 = 20_000_000.0;
/// Sizes of cells: of places, intervals and prefixes.
const LEVELS: usize = (u128::BITS / BITS_A_LEVEL) as usize + 1;

/// What a scheme looks at besides equalities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Further {
    Near,
    Member,
    Between,
    Prefix,
    AtLeast,
    AtMost,
}

/// Which fields a scheme looks at; the same for all subscriptions of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    pub equals: Vec<Path>,
    pub further: Option<(Further, Path)>,
}

impl Shape {
    /// The field without which a record cannot be found by this scheme.
    pub(crate) fn leading(&self) -> &Path {
        self.equals.first().unwrap_or_else(|| match &self.further {
            Some((_, path)) => path,
            None => unreachable!("a scheme looks at something"),
        })
    }
}

/// What an alternative's atoms are held against, in the order of its scheme's fields.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    equals: Vec<Test>,
    further: Option<(Further, Code, Code)>,
}

impl Recipe {
    /// How many atoms of its alternative it looks at.
    pub(crate) fn atoms(&self) -> usize {
        self.equals.len()
            + match self.further {
                None => 0,
                Some((Further::Between, ..)) => 2,
                Some(_) => 1,
            }
    }

    /// Whether all that it asks for is a bound that leaves out nothing, such as `key >= ''`: what else its subscription asks for
    /// would be evaluated for every record that has the column.
    pub(crate) fn is_vacuous(&self, bound: &Bound<'_>) -> bool {
        let Some((further, first, second)) = self.further.filter(|_| self.equals.is_empty()) else { return false };
        let Ok(value) = bound.value(first) else { return false };
        let from = |value: &Val<'_>| lane(value).is_some_and(|(line, at)| at <= ends(line)[0]);
        let to = |value: &Val<'_>| lane(value).is_some_and(|(line, at)| at >= ends(line)[1]);
        match further {
            Further::Member => false,
            Further::AtLeast => from(&value),
            Further::AtMost => to(&value),
            Further::Between => from(&value) && bound.value(second).is_ok_and(|value| to(&value)),
            Further::Prefix => matches!(value, Val::Str(prefix) if prefix.is_empty()),
            Further::Near => metres(bound, second).is_some_and(|metres| metres >= HALF_ROUND),
        }
    }
}

/// The radius of a circle.
fn metres(bound: &Bound<'_>, radius: Code) -> Option<f64> {
    match bound.value(radius).ok()? {
        Val::Int(metres) => Some(metres as f64),
        Val::Float(metres) if !metres.is_nan() => Some(metres),
        _ => None,
    }
}

/// The most selective way to find an alternative's candidates, if there is one.
pub(crate) fn choose(alternative: &Alternative, template: &Template) -> Option<(Shape, Recipe)> {
    let mut equals: Vec<(u32, Test)> = Vec::new();
    for atom in &alternative.atoms {
        let asked = equals.iter().any(|(path, _)| *path == atom.path);
        if matches!(atom.test, Test::Equal(_) | Test::OneOf(_)) && !asked && equals.len() < MAX_EQUALS {
            equals.push((atom.path, atom.test));
        }
    }
    equals.sort_by_key(|(path, _)| &template.paths[*path as usize]);
    let further = alternative.atoms.iter().filter_map(|atom| further(atom.path, atom.test, alternative)).min();
    if equals.is_empty() && further.is_none() {
        return None;
    }
    let path = |path: u32| template.paths[path as usize].clone();
    let shape = Shape {
        equals: equals.iter().map(|(of, _)| path(*of)).collect(),
        further: further.map(|(further, of, _)| (further, path(of))),
    };
    let recipe = Recipe {
        equals: equals.into_iter().map(|(_, test)| test).collect(),
        further: further.map(|(further, _, (first, second))| (further, first, second)),
    };
    Some((shape, recipe))
}

fn further(path: u32, test: Test, alternative: &Alternative) -> Option<(Further, u32, (Code, Code))> {
    let upper = || {
        alternative.atoms.iter().find_map(|other| match other.test {
            Test::AtMost(code) if other.path == path => Some(code),
            _ => None,
        })
    };
    let (further, codes) = match test {
        Test::Equal(_) | Test::OneOf(_) => return None,
        Test::Near(centre, radius) => (Further::Near, (centre, radius)),
        Test::Member(code) => (Further::Member, (code, code)),
        Test::Prefix(code) => (Further::Prefix, (code, code)),
        Test::AtMost(code) => (Further::AtMost, (code, code)),
        Test::AtLeast(code) => match upper() {
            Some(upper) => (Further::Between, (code, upper)),
            None => (Further::AtLeast, (code, code)),
        },
    };
    Some((further, path, codes))
}

/// Where a subscription stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Post {
    /// Under a token of a scheme, with the size of its cell.
    Token { scheme: u32, level: u8, token: u64 },
    /// At a place on the line of a group.
    Bound { scheme: u32, group: u64, at: u64 },
    /// It holds for every record.
    Always,
    /// It must be evaluated for every record.
    Scan,
}

/// A scheme in use.
#[derive(Debug)]
pub(crate) struct Scheme {
    pub shape: Shape,
    /// How many templates use it.
    pub users: u32,
    /// How many of them have a subscription that is kept for somebody who is away.
    pub kept: u32,
    /// How many subscriptions stand in cells of each size.
    levels: [u32; LEVELS],
}

/// Subscriptions whose bound lies on the line of a group: (group, place, subscription).
pub(crate) type Bounds = BTreeSet<(u64, u64, u32)>;

/// Evaluates what a subscription holds fields against.
pub(crate) struct Bound<'a> {
    pub template: &'a Template,
    pub constants: &'a [u8],
    pub scope: Scope<'a>,
}

impl<'a> Bound<'a> {
    pub(crate) fn value(&self, code: Code) -> Result<Val<'a>, Fault> {
        self.template.value(code, self.constants, &self.scope, &mut STEPS.clone(), &mut Stack::default())
    }

    /// Whether all that the known side decides has come out as it must.
    pub(crate) fn allows(&self, fixed: &[(Code, bool)]) -> bool {
        fixed.iter().all(|(code, be)| matches!(self.value(*code), Ok(Val::Bool(is)) if is == *be))
    }
}

impl Scheme {
    pub(crate) fn new(shape: Shape) -> Scheme {
        Scheme { shape, users: 0, kept: 0, levels: [0; LEVELS] }
    }

    pub(crate) fn count(&mut self, level: u8, more: bool) {
        let count = &mut self.levels[level as usize];
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
    }

    fn levels(&self) -> impl Iterator<Item = u8> {
        (0..LEVELS as u8).filter(|level| self.levels[*level as usize] > 0)
    }

    /// Adds where a subscription stands. Nowhere, if what it asks for cannot be.
    pub(crate) fn posts(&self, number: u32, recipe: &Recipe, bound: &Bound<'_>, seed: u64, out: &mut BTreeSet<Post>) {
        let mut groups = vec![mix(seed, u64::from(number))];
        for test in &recipe.equals {
            let values = match *test {
                Test::OneOf(code) => bound.value(code).ok().and_then(|holder| members(&holder, seed)),
                Test::Equal(code) => bound.value(code).ok().and_then(|value| hash(&value, seed)).map(|hash| vec![hash]),
                _ => None,
            };
            let values = values.unwrap_or_default();
            if values.len() * groups.len() > MAX_TOKENS {
                out.insert(Post::Scan);
                return;
            }
            groups = groups.iter().flat_map(|group| values.iter().map(|value| mix(*group, *value))).collect();
        }
        for group in groups {
            match recipe.further {
                None => {
                    out.insert(Post::Token { scheme: number, level: 0, token: group });
                }
                Some((further, first, second)) => {
                    // What is not a value that the atom can be true with stands nowhere.
                    let _ = self.further_posts(number, group, further, (first, second), bound, seed, out);
                }
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one subscription's side of `collect`, called from one place")]
    fn further_posts(
        &self,
        scheme: u32,
        group: u64,
        further: Further,
        (first, second): (Code, Code),
        bound: &Bound<'_>,
        seed: u64,
        out: &mut BTreeSet<Post>,
    ) -> Option<()> {
        let value = bound.value(first).ok()?;
        let mut token = |level: u8, of: u64| {
            out.insert(Post::Token { scheme, level, token: cell_token(group, level, of) });
        };
        match further {
            Further::Near => {
                for cell in place::cover(Place::of(&value).ok()?, metres(bound, second)?) {
                    token(cell.level as u8, place_number(cell));
                }
            }
            Further::Member => token(0, hash(&value, seed)?),
            Further::Prefix => {
                let Val::Str(prefix) = value else { return None };
                let prefix = &prefix.as_bytes()[..prefix.len().min(MAX_PREFIX)];
                token(prefix.len() as u8, hash_text(prefix, seed));
            }
            Further::Between => {
                let (low, high) = (scale(&value)?, scale(&bound.value(second).ok()?)?);
                if low.0 != high.0 || low.1 > high.1 {
                    return None;
                }
                // Cells of half the width or more, so that it touches three at most.
                let width = u128::BITS - high.1.abs_diff(low.1).leading_zeros();
                let level = width.saturating_sub(1).div_ceil(BITS_A_LEVEL) as u8;
                for cell in cell_of(low.1, level)..=cell_of(high.1, level) {
                    token(level, interval_number(low.0, cell));
                }
            }
            Further::AtLeast | Further::AtMost => {
                let (line, at) = lane(&value)?;
                out.insert(Post::Bound { scheme, group: mix(group, u64::from(line)), at });
            }
        }
        Some(())
    }

    /// Appends all subscriptions that a record may be for; `None` if it lacks a field.
    pub(crate) fn collect(
        &self,
        number: u32,
        record: &Scope<'_>,
        seed: u64,
        postings: &Postings,
        bounds: &Bounds,
        out: &mut Vec<u32>,
    ) -> Option<()> {
        let mut group = mix(seed, u64::from(number));
        for path in &self.shape.equals {
            group = mix(group, hash(&record.load(path).ok()?, seed)?);
        }
        let Some((further, path)) = &self.shape.further else {
            postings.collect(group, out);
            return Some(());
        };
        let value = record.load(path).ok()?;
        let mut token = |level: u8, of: u64| postings.collect(cell_token(group, level, of), out);
        match further {
            Further::Near => {
                let place = Place::of(&value).ok()?;
                self.levels().for_each(|level| token(level, place_number(place.cell(u32::from(level)))));
            }
            Further::Member => members(&value, seed)?.into_iter().for_each(|member| token(0, member)),
            Further::Prefix => {
                let Val::Str(text) = value else { return None };
                for level in self.levels().take_while(|level| usize::from(*level) <= text.len()) {
                    token(level, hash_text(&text.as_bytes()[..usize::from(level)], seed));
                }
            }
            Further::Between => {
                let (line, at) = scale(&value)?;
                self.levels().for_each(|level| token(level, interval_number(line, cell_of(at, level))));
            }
            Further::AtLeast | Further::AtMost => {
                let (line, at) = lane(&value)?;
                let group = mix(group, u64::from(line));
                let range = match further {
                    Further::AtLeast => (group, 0, 0)..=(group, at, u32::MAX),
                    _ => (group, at, 0)..=(group, u64::MAX, u32::MAX),
                };
                out.extend(bounds.range(range).map(|(_, _, slot)| *slot));
            }
        }
        Some(())
    }
}

fn cell_token(group: u64, level: u8, of: u64) -> u64 {
    mix(mix(group, u64::from(level)), of)
}

fn place_number(cell: place::Cell) -> u64 {
    u64::from(cell.row) << 32 | u64::from(cell.column)
}

fn cell_of(at: i128, level: u8) -> i128 {
    at >> (u32::from(level) * BITS_A_LEVEL).min(i128::BITS - 1)
}

fn interval_number(line: u8, cell: i128) -> u64 {
    mix(mix(u64::from(line), cell as u64), (cell >> 64) as u64)
}
