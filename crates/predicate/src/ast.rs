//! What a text means, before it is compiled.

use crate::udf::Udf;
use crate::value::Value;
use std::sync::Arc;

/// Whose field a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Root {
    /// The record's columns.
    This,
    /// The reader's data: a filter, not authenticated.
    Reader,
    /// The reader's verified claims.
    User,
    /// The record that a query looked up in another table.
    Joined,
}

/// Operators that compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Compare {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Compare {
    /// The operator that says the same with its sides exchanged.
    pub(crate) fn flipped(self) -> Compare {
        match self {
            Compare::Equal | Compare::Unequal => self,
            Compare::Less => Compare::Greater,
            Compare::LessOrEqual => Compare::GreaterOrEqual,
            Compare::Greater => Compare::Less,
            Compare::GreaterOrEqual => Compare::LessOrEqual,
        }
    }
}

/// Operators that compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Arith {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// Functions of the language, apart from `has`, `matches` and `now`, which are nodes of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Builtin {
    Size,
    StartsWith,
    EndsWith,
    Contains,
    Timestamp,
    Duration,
    Distance,
}

/// A part of a text.
#[derive(Clone, Debug)]
pub(crate) struct Expr {
    /// Where it begins, as a byte of the text.
    pub at: usize,
    /// How many parts stand in one another here; bounded, so that walks may recurse.
    pub depth: u16,
    /// Its operations, once it is compiled.
    pub code: Code,
    pub node: Node,
}

/// The operations of one part, from the first to before the second.
pub(crate) type Code = (u32, u32);

#[derive(Clone, Debug)]
pub(crate) enum Node {
    Literal(Value),
    Key,
    /// `this.a.b`; without fields the whole of it.
    Path(Root, Vec<String>),
    /// A field of something that was computed.
    Select(Box<Expr>, String),
    Has(Box<Expr>),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    /// Condition, then, else.
    Choose(Box<[Expr; 3]>),
    Compare(Compare, Box<[Expr; 2]>),
    In(Box<[Expr; 2]>),
    Arith(Arith, Box<[Expr; 2]>),
    List(Vec<Expr>),
    Call(Builtin, Vec<Expr>),
    /// The pattern is always a literal: it is compiled once.
    Matches(Box<Expr>, String),
    Udf(Arc<Udf>, Vec<Expr>),
    Now,
}

impl Expr {
    pub(crate) fn new(at: usize, node: Node) -> Expr {
        let mut depth = 0;
        node.children(&mut |child| depth = depth.max(child.depth));
        Expr { at, depth: depth + 1, code: (0, 0), node }
    }

    /// Whether any part of it is one that `wanted` says.
    pub(crate) fn any(&self, wanted: &mut dyn FnMut(&Node) -> bool) -> bool {
        let mut found = wanted(&self.node);
        self.node.children(&mut |child| found = found || child.any(wanted));
        found
    }
}

impl Node {
    /// Calls `visit` with each part that stands directly in this one.
    pub(crate) fn children<'a>(&'a self, visit: &mut dyn FnMut(&'a Expr)) {
        match self {
            Node::Literal(_) | Node::Key | Node::Path(..) | Node::Now => {}
            Node::Select(inner, _)
            | Node::Has(inner)
            | Node::Not(inner)
            | Node::Negate(inner)
            | Node::Matches(inner, _) => visit(inner),
            Node::And(parts) | Node::Or(parts) | Node::List(parts) | Node::Call(_, parts) | Node::Udf(_, parts) => {
                parts.iter().for_each(visit);
            }
            Node::Choose(parts) => parts.iter().for_each(visit),
            Node::Compare(_, sides) | Node::In(sides) | Node::Arith(_, sides) => sides.iter().for_each(visit),
        }
    }
}
