//! What must be true of a record, or of a reader, before a text can hold: alternatives of atoms that an index can look up.
//!
//! ```text
//!   topic == "arts" && (price < 10 || distance(loc, reader.loc) < 1000)
//!     = { topic equals, price below }  or  { topic equals, loc near }
//! ```
//! The alternatives are *necessary*, not sufficient: whoever finds candidates by them evaluates the whole text. So a part
//! that no atom stands for may simply be left out of its alternative. Constants are not looked at: texts of one shape share
//! one plan. What is true or false is R12's: a part is *true*
//! only without a fault. `!(a < 3)` is not `a >= 3`, because of NaN: it gives no atom.

use crate::ast::{Builtin, Code, Compare, Expr, Node, Root};
use crate::template::Path;

/// Alternatives of one text. Beyond it, those of a part are left out or the whole is not indexed.
const MAX_ALTERNATIVES: usize = 32;

/// Atoms, and parts that the known side decides, of one alternative; further ones are left to the evaluation.
const MAX_PARTS: usize = 64;

/// Whose fields are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The record's: the reader is known.
    Record,
    /// The reader's: the record is known.
    Reader,
}

/// One of these holds whenever the text does. None: it never holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub alternatives: Vec<Alternative>,
}

/// All of this holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alternative {
    /// Parts that the other side alone decides, and what they must come to.
    pub fixed: Vec<(Code, bool)>,
    pub atoms: Vec<Atom>,
    /// The same atoms as parts of the text, and what they must come to.
    pub held: Vec<(Code, bool)>,
    /// Whether something else must hold too.
    pub more: bool,
}

/// A field, by the number of its path, and what it is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Atom {
    pub path: u32,
    pub test: Test,
}

/// What a field is held against: parts that the other side alone decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    /// `field == value`
    Equal(Code),
    /// `field in values`
    OneOf(Code),
    /// `field <= value` or `field < value`
    AtMost(Code),
    /// `field >= value` or `field > value`
    AtLeast(Code),
    /// `field.startsWith(value)`
    Prefix(Code),
    /// `value in field`
    Member(Code),
    /// `distance(field, centre) < radius`
    Near(Code, Code),
}

impl Plan {
    /// The bytes that it holds in memory, about.
    pub(crate) fn weight(&self) -> usize {
        let parts = |of: &Alternative| {
            (of.fixed.len() + of.held.len()) * size_of::<(Code, bool)>() + of.atoms.len() * size_of::<Atom>()
        };
        self.alternatives.iter().map(|of| size_of::<Alternative>() + parts(of)).sum()
    }
}

impl Plan {
    /// Whether it can say that the text does not hold where evaluating all of the text is more.
    pub(crate) fn spares(&self) -> bool {
        let asks = |of: &Alternative| !(of.fixed.is_empty() && of.held.is_empty());
        self.alternatives.iter().all(asks) && self.alternatives.iter().any(|of| of.more)
    }
}

impl Alternative {
    fn unknown() -> Alternative {
        Alternative { more: true, ..Alternative::default() }
    }

    fn and(&self, other: &Alternative) -> Alternative {
        let mut both = Alternative {
            fixed: [self.fixed.as_slice(), &other.fixed].concat(),
            atoms: [self.atoms.as_slice(), &other.atoms].concat(),
            held: [self.held.as_slice(), &other.held].concat(),
            more: self.more || other.more,
        };
        both.more |= both.fixed.len() > MAX_PARTS || both.atoms.len() > MAX_PARTS;
        both.fixed.truncate(MAX_PARTS);
        both.atoms.truncate(MAX_PARTS);
        both.held.truncate(MAX_PARTS);
        both
    }
}

/// How a text's candidates are found on one side.
pub(crate) fn plan(expr: &Expr, paths: &[Path], side: Side) -> Plan {
    Plan { alternatives: Planner { paths, side }.must(expr, true) }
}

struct Planner<'a> {
    paths: &'a [Path],
    side: Side,
}

impl Planner<'_> {
    fn is_field_root(&self, root: Root) -> bool {
        match self.side {
            Side::Record => root == Root::This,
            Side::Reader => matches!(root, Root::Reader | Root::User),
        }
    }

    /// Whether a part is known as soon as the other side is.
    fn is_fixed(&self, expr: &Expr) -> bool {
        !expr.any(&mut |node| match node {
            Node::Key => self.side == Side::Record,
            Node::Path(root, _) => *root == Root::Joined || self.is_field_root(*root),
            Node::Udf(udf, _) => !udf.pure,
            Node::Now => true,
            _ => false,
        })
    }

    /// The path of a part that is a field of the side that is looked up.
    fn field(&self, expr: &Expr) -> Option<u32> {
        let path = match &expr.node {
            Node::Key if self.side == Side::Record => Path::Key,
            Node::Path(root, fields) if self.is_field_root(*root) && !fields.is_empty() => {
                Path::Field(*root, fields.iter().map(|field| field.as_str().into()).collect())
            }
            _ => return None,
        };
        self.paths.iter().position(|known| *known == path).map(|path| path as u32)
    }

    /// Alternatives for a part being true, or being false.
    fn must(&self, expr: &Expr, be: bool) -> Vec<Alternative> {
        if self.is_fixed(expr) {
            return vec![Alternative { fixed: vec![(expr.code, be)], ..Alternative::default() }];
        }
        match (&expr.node, be) {
            (Node::And(parts), true) | (Node::Or(parts), false) => {
                parts.iter().fold(vec![Alternative::default()], |all, part| both(all, self.must(part, be)))
            }
            (Node::And(parts), false) | (Node::Or(parts), true) => either(parts.iter().map(|part| self.must(part, be))),
            (Node::Not(inner), _) => self.must(inner, !be),
            (Node::Choose(parts), _) => {
                let [condition, then, otherwise] = parts.as_ref();
                either([
                    both(self.must(condition, true), self.must(then, be)),
                    both(self.must(condition, false), self.must(otherwise, be)),
                ])
            }
            _ => vec![match self.atom(expr, be) {
                Some(atom) => Alternative { atoms: vec![atom], held: vec![(expr.code, be)], ..Alternative::default() },
                None => Alternative::unknown(),
            }],
        }
    }

    fn atom(&self, expr: &Expr, be: bool) -> Option<Atom> {
        match (&expr.node, be) {
            (Node::Compare(Compare::Equal, sides), true) | (Node::Compare(Compare::Unequal, sides), false) => {
                self.either_way(sides, |field, value| self.held(field, value, Test::Equal))
            }
            (Node::Compare(compare, sides), true) if *compare != Compare::Unequal => {
                let [left, right] = sides.as_ref();
                self.ordered(left, *compare, right).or_else(|| self.ordered(right, compare.flipped(), left))
            }
            (Node::In(sides), true) => {
                let [item, holder] = sides.as_ref();
                self.held(item, holder, Test::OneOf).or_else(|| self.held(holder, item, Test::Member))
            }
            (Node::Call(Builtin::StartsWith, sides), true) => self.held(&sides[0], &sides[1], Test::Prefix),
            _ => None,
        }
    }

    fn either_way(&self, sides: &[Expr; 2], make: impl Fn(&Expr, &Expr) -> Option<Atom>) -> Option<Atom> {
        make(&sides[0], &sides[1]).or_else(|| make(&sides[1], &sides[0]))
    }

    /// A field held against something fixed.
    fn held(&self, field: &Expr, value: &Expr, test: fn(Code) -> Test) -> Option<Atom> {
        let path = self.field(field)?;
        self.is_fixed(value).then(|| Atom { path, test: test(value.code) })
    }

    fn ordered(&self, left: &Expr, compare: Compare, right: &Expr) -> Option<Atom> {
        let below = matches!(compare, Compare::Less | Compare::LessOrEqual);
        if let Node::Call(Builtin::Distance, places) = &left.node {
            let places: &[Expr; 2] = places.as_slice().try_into().ok()?;
            let near = |field: &Expr, centre: &Expr| {
                let path = self.field(field)?;
                self.is_fixed(centre).then_some(Atom { path, test: Test::Near(centre.code, right.code) })
            };
            return (below && self.is_fixed(right)).then(|| self.either_way(places, near))?;
        }
        self.held(left, right, if below { Test::AtMost } else { Test::AtLeast })
    }
}

/// Alternatives for both.
fn both(left: Vec<Alternative>, right: Vec<Alternative>) -> Vec<Alternative> {
    if left.len() * right.len() > MAX_ALTERNATIVES {
        // One of them is enough to find candidates by: the one whose alternatives all have atoms, or the fewer.
        let blind = |side: &[Alternative]| side.iter().any(|alternative| alternative.atoms.is_empty());
        let mut kept = if (blind(&left), left.len()) <= (blind(&right), right.len()) { left } else { right };
        kept.iter_mut().for_each(|alternative| alternative.more = true);
        return kept;
    }
    left.iter().flat_map(|one| right.iter().map(|other| one.and(other))).collect()
}

/// Alternatives for any of them.
fn either(parts: impl IntoIterator<Item = Vec<Alternative>>) -> Vec<Alternative> {
    let mut all: Vec<Alternative> = Vec::new();
    for part in parts {
        all.extend(part);
        if all.len() > MAX_ALTERNATIVES {
            return vec![Alternative::unknown()];
        }
    }
    all
}
