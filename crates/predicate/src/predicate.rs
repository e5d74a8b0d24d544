//! Texts that are compiled: predicates, and the expressions of a query.

use crate::ast::Node;
use crate::dialect::Dialect;
use crate::eval::{Fault, STEPS, Scope, Stack, TooSlow, truth};
use crate::kinds::{Kinds, check};
use crate::packed::Val;
use crate::parser::parse;
use crate::refusal::{Refusal, Wrong};
use crate::template::{Template, compile};
use crate::value::Value;
use std::sync::Arc;

/// A compiled text that has a value.
#[derive(Clone, Debug)]
pub struct Expression {
    pub(crate) template: Arc<Template>,
    pub(crate) constants: Box<[u8]>,
    kinds: Kinds,
    /// What of it cannot be watched (R9).
    not_live: Option<Refusal>,
    /// A function that it calls and that may give something else each time.
    impure: Option<Box<str>>,
}

impl Expression {
    /// Reads, checks and compiles a text.
    pub fn compile(text: &str, dialect: &Dialect) -> Result<Expression, Refusal> {
        let expr = parse(text, dialect)?;
        let kinds = check(&expr, text, dialect)?;
        let (mut changing, mut impure) = (None, None);
        expr.any(&mut |node| {
            let why = match node {
                Node::Now => "`now()`",
                Node::Path(crate::ast::Root::Joined, _) => "a record of another table",
                Node::Udf(udf, _) if !udf.pure => {
                    impure.get_or_insert_with(|| udf.name.as_str().into());
                    "a function whose result changes"
                }
                _ => return false,
            };
            changing.get_or_insert(why);
            impure.is_some()
        });
        let not_live = changing.map(|why| {
            Refusal::new(
                Wrong::NotLive,
                format!("a live query or an audience cannot depend on {why}: no write tells when it changes"),
            )
        });
        let (template, constants) = compile(expr, text)?;
        Ok(Expression { template: Arc::new(template), constants, kinds, not_live, impure })
    }

    /// The kinds that its value may have.
    pub fn kinds(&self) -> Kinds {
        self.kinds
    }

    pub(crate) fn check_live(&self) -> Result<(), Refusal> {
        self.not_live.clone().map_or(Ok(()), Err)
    }

    /// Its value, within `steps`, which are counted down.
    pub fn value(&self, scope: &Scope<'_>, steps: &mut u32) -> Result<Value, Fault> {
        self.val(scope, steps).map(|value| value.to_value())
    }

    pub(crate) fn val<'a>(&'a self, scope: &Scope<'a>, steps: &mut u32) -> Result<Val<'a>, Fault> {
        self.template.value(self.template.whole(), &self.constants, scope, steps, &mut Stack::default())
    }
}

/// A condition on a record and a reader: of readers on records, or of writers on readers. One language for both (R12).
#[derive(Clone, Debug)]
pub struct Predicate(pub(crate) Expression);

impl Predicate {
    /// Reads, checks and compiles a text that is true or false.
    pub fn compile(text: &str, dialect: &Dialect) -> Result<Predicate, Refusal> {
        let expression = Expression::compile(text, dialect)?;
        if !expression.kinds.meets(Kinds::BOOL) {
            let message = format!("a predicate is true or false, and this is {}", expression.kinds);
            return Err(Refusal::new(Wrong::Type, message).at(text, 0));
        }
        Ok(Predicate(expression))
    }

    /// The bytes that it holds in memory, about, with what others of its shape may have in common with it.
    pub fn weight(&self) -> usize {
        size_of::<Predicate>() + self.0.constants.len() + self.0.template.weight()
    }

    /// Whether both hold once what they have in common: see [`Index::intern`](crate::index::Index::intern).
    pub fn shares_with(&self, other: &Predicate) -> bool {
        Arc::ptr_eq(&self.0.template, &other.0.template)
    }

    /// Refuses what cannot be watched (R9): the time, look-ups, functions that are not pure.
    pub fn check_live(&self) -> Result<(), Refusal> {
        self.0.check_live()
    }

    /// Refuses functions that are not pure: what stands on such an answer could be decided otherwise by the next who looks.
    pub fn check_pure(&self) -> Result<(), Refusal> {
        let refused = |name| Refusal::new(Wrong::NotPure, format!("`{name}` may give something else each time"));
        self.0.impure.as_ref().map_or(Ok(()), |name| Err(refused(name)))
    }

    /// Whether it is true, within `steps`, which are counted down.
    pub fn evaluate(&self, scope: &Scope<'_>, steps: &mut u32) -> Result<bool, Fault> {
        truth(&self.0.val(scope, steps)?)
    }

    /// Whether it holds: R12, a fault does not match and shows nothing.
    pub fn holds(&self, scope: &Scope<'_>) -> bool {
        self.holds_in_time(scope) == Ok(true)
    }

    /// The same for whoever has written it, and is told if it took too long.
    pub fn holds_in_time(&self, scope: &Scope<'_>) -> Result<bool, TooSlow> {
        holds(&self.0.template, &self.0.constants, scope, &mut STEPS.clone(), &mut Stack::default())
    }
}

/// Whether a text of this template holds with these constants, within `steps`, which are counted down. What the index would leave
/// out is left out here as well: it is too slow for the same records wherever it is evaluated.
pub(crate) fn holds<'a>(
    template: &'a Template,
    constants: &'a [u8],
    scope: &Scope<'a>,
    steps: &mut u32,
    stack: &mut Stack<'a>,
) -> Result<bool, TooSlow> {
    if !template.may_hold(constants, scope, steps, stack) {
        return Ok(false);
    }
    match template.value(template.whole(), constants, scope, steps, stack) {
        Err(Fault::TooSlow) => Err(TooSlow),
        value => Ok(matches!(value, Ok(Val::Bool(true)))),
    }
}
