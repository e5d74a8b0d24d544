//! Compiles a text: operations of a stack machine with constants apart, so that texts of one shape share them.

use crate::access::{self, Plan, Side};
use crate::ast::{Arith, Builtin, Code, Compare, Expr, Node, Root};
use crate::eval::{self, Fault, STEPS, Scope, Stack};
use crate::packed::{self, Packed, Val};
use crate::pattern::Pattern;
use crate::refusal::{Refusal, Wrong};
use crate::udf::Udf;
use crate::value::Value;
use std::sync::Arc;

/// Different patterns of one predicate: each may take that memory.
const MAX_PATTERNS: usize = 16;
/// Different paths, fields and functions of one predicate: they are looked for one after the other.
const MAX_NAMES: usize = 1_024;

/// One part in so many of an evaluation's steps may go to what is asked first.
const FIRST: u32 = 8;

/// An operation; targets are numbers of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Constant(u32),
    Load(u32),
    Has(u32),
    Select(u32),
    HasField(u32),
    Not,
    Negate,
    Compare(Compare),
    In,
    Arith(Arith),
    List(u32),
    Call(Builtin),
    Matches(u32),
    Udf(u32),
    Now,
    /// Goes to the end of the chain if what is on the stack decides it.
    And(u32),
    Or(u32),
    /// Makes one of the two on the stack.
    AndJoin,
    OrJoin,
    /// Goes on if true, to the first if false, to the second if neither.
    Choose(u32, u32),
    Jump(u32),
}

/// What a text names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Path {
    Key,
    Field(Root, Box<[Box<str>]>),
}

/// Constants by number: where each begins (u32, little-endian), and their packed values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Constants<'a> {
    starts: &'a [u8],
    values: &'a [u8],
}

impl<'a> Constants<'a> {
    pub(crate) fn get(self, slot: u32) -> Option<Val<'a>> {
        let (starts, _) = self.starts.as_chunks::<4>();
        let start = u32::from_le_bytes(*starts.get(slot as usize)?);
        packed::read(self.values.get(start as usize..)?).map(|(value, _)| value)
    }
}

/// All that an evaluation follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program<'a> {
    pub ops: &'a [Op],
    pub paths: &'a [Path],
    pub names: &'a [Box<str>],
    pub patterns: &'a [Pattern],
    pub udfs: &'a [Arc<Udf>],
    pub constants: Constants<'a>,
}

/// What texts of one shape have in common: all but the constants.
#[derive(Debug)]
pub(crate) struct Template {
    pub ops: Box<[Op]>,
    pub paths: Box<[Path]>,
    pub names: Box<[Box<str>]>,
    pub patterns: Box<[Pattern]>,
    pub udfs: Box<[Arc<Udf>]>,
    /// How many constants each text of this shape has.
    slots: usize,
    /// Tells shapes apart: equal bytes, same template.
    pub shape: Box<[u8]>,
    /// How records are found that it may hold for, given a reader.
    pub by_record: Plan,
    /// How readers are found that it may hold for, given a record.
    pub by_reader: Plan,
    /// Whether the plan for records is asked before the whole is evaluated.
    asks_first: bool,
    /// Whether it looks at the reader's data or claims.
    pub asks_reader: bool,
}

impl Template {
    /// The bytes that it holds in memory, about.
    pub(crate) fn weight(&self) -> usize {
        let text = |text: &str| size_of::<Box<str>>() + text.len();
        let path = |path: &Path| match path {
            Path::Key => 0,
            Path::Field(_, fields) => fields.iter().map(|field| text(field)).sum(),
        };
        let names = self.names.iter().map(|name| text(name)).chain(self.paths.iter().map(path)).sum::<usize>();
        let listed = size_of_val(&*self.ops) + size_of_val(&*self.paths) + size_of_val(&*self.udfs) + self.shape.len();
        let patterns = self.patterns.iter().map(Pattern::weight).sum::<usize>();
        size_of::<Template>() + names + listed + patterns + self.by_record.weight() + self.by_reader.weight()
    }

    pub(crate) fn whole(&self) -> Code {
        (0, self.ops.len() as u32)
    }

    /// Whether it may hold with the constants of one text, as far as equalities and bounds say that must be true of the record: what
    /// they leave out is not asked for the rest, however that is written. Atoms that take long may hold.
    pub(crate) fn may_hold<'a>(
        &'a self,
        constants: &'a [u8],
        scope: &Scope<'a>,
        steps: &mut u32,
        stack: &mut Stack<'a>,
    ) -> bool {
        if !self.asks_first {
            return true;
        }
        let given = *steps / FIRST;
        let mut left = given;
        let mut is = |(code, be): &(Code, bool)| match self.value(*code, constants, scope, &mut left, stack) {
            Ok(Val::Bool(is)) => is == *be,
            Err(Fault::TooSlow) => true,
            _ => false,
        };
        let may = self.by_record.alternatives.iter().any(|of| of.fixed.iter().chain(&of.held).all(&mut is));
        *steps -= given - left;
        may
    }

    /// Evaluates a part of it with the constants of one text.
    pub(crate) fn value<'a>(
        &'a self,
        code: Code,
        constants: &'a [u8],
        scope: &Scope<'a>,
        steps: &mut u32,
        stack: &mut Stack<'a>,
    ) -> Result<Val<'a>, Fault> {
        let (starts, values) = constants.split_at_checked(self.slots * 4).ok_or(Fault::Missing)?;
        let program = Program {
            ops: &self.ops,
            paths: &self.paths,
            names: &self.names,
            patterns: &self.patterns,
            udfs: &self.udfs,
            constants: Constants { starts, values },
        };
        eval::run(program, code, scope, steps, stack)
    }
}

/// A text's template and its constants.
pub(crate) fn compile(mut expr: Expr, text: &str) -> Result<(Template, Box<[u8]>), Refusal> {
    let mut compiler = Compiler { text, draft: Draft::default(), steps: STEPS };
    compiler.emit(&mut expr)?;
    let draft = compiler.draft;
    let by_record = access::plan(&expr, &draft.paths, Side::Record);
    let by_reader = access::plan(&expr, &draft.paths, Side::Reader);
    let asks_reader = expr.any(&mut |node| matches!(node, Node::Path(Root::Reader | Root::User, _)));
    let constants = [draft.starts.as_slice(), &draft.values].concat().into();
    let asks_first = by_record.spares();
    Ok((Template { by_record, by_reader, asks_first, asks_reader, ..draft.finish() }, constants))
}

/// A template under construction.
#[derive(Default)]
struct Draft {
    ops: Vec<Op>,
    paths: Vec<Path>,
    names: Vec<Box<str>>,
    patterns: Vec<Pattern>,
    udfs: Vec<Arc<Udf>>,
    starts: Vec<u8>,
    values: Vec<u8>,
}

impl Draft {
    fn slots(&self) -> usize {
        self.starts.len() / 4
    }

    fn program(&self) -> Program<'_> {
        Program {
            ops: &self.ops,
            paths: &self.paths,
            names: &self.names,
            patterns: &self.patterns,
            udfs: &self.udfs,
            constants: Constants { starts: &self.starts, values: &self.values },
        }
    }

    fn finish(self) -> Template {
        let mut shape = Vec::new();
        for op in &self.ops {
            shape.extend_from_slice(format!("{op:?};").as_bytes());
        }
        for path in &self.paths {
            shape.extend_from_slice(format!("{path:?};").as_bytes());
        }
        for name in self.names.iter().map(|name| &**name).chain(self.udfs.iter().map(|udf| udf.name.as_str())) {
            packed::put_name(name, &mut shape);
        }
        for pattern in &self.patterns {
            packed::put_name(pattern.as_str(), &mut shape);
        }
        Template {
            slots: self.slots(),
            ops: self.ops.into(),
            paths: self.paths.into(),
            names: self.names.into(),
            patterns: self.patterns.into(),
            udfs: self.udfs.into(),
            shape: shape.into(),
            by_record: Plan::default(),
            by_reader: Plan::default(),
            asks_first: false,
            asks_reader: false,
        }
    }
}

struct Compiler<'a> {
    text: &'a str,
    draft: Draft,
    /// What computing constants ahead of time may still cost.
    steps: u32,
}

/// The number of something that the text names, among those that it named before.
fn number<T>(
    among: &mut Vec<T>,
    most: usize,
    same: impl Fn(&T) -> bool,
    of: impl FnOnce() -> Result<T, Refusal>,
) -> Result<u32, Refusal> {
    let found = among.iter().position(same);
    if found.is_none() {
        if among.len() == most {
            return Err(Refusal::new(
                Wrong::TooLarge,
                format!("a predicate has at most {MAX_NAMES} different names and {MAX_PATTERNS} different patterns"),
            ));
        }
        among.push(of()?);
    }
    Ok(found.unwrap_or(among.len() - 1) as u32)
}

impl Compiler<'_> {
    fn here(&self) -> u32 {
        self.draft.ops.len() as u32
    }

    fn push(&mut self, op: Op) {
        self.draft.ops.push(op);
    }

    fn constant(&mut self, value: &Value) -> Result<(), Refusal> {
        let packed = Packed::pack(value).map_err(|error| Refusal::new(Wrong::TooLarge, error.to_string()))?;
        self.push(Op::Constant(self.draft.slots() as u32));
        self.draft.starts.extend_from_slice(&(self.draft.values.len() as u32).to_le_bytes());
        self.draft.values.extend_from_slice(packed.as_bytes());
        Ok(())
    }

    /// Emits a part and what stands in it; a part without names becomes one constant, unless it faults.
    fn emit(&mut self, expr: &mut Expr) -> Result<(), Refusal> {
        let (first, starts, values) = (self.here(), self.draft.starts.len(), self.draft.values.len());
        self.emit_node(expr)?;
        let fixed = |node: &Node| match node {
            Node::Key | Node::Path(..) | Node::Now => false,
            Node::Udf(udf, _) => udf.pure,
            _ => true,
        };
        let whole = !expr.any(&mut |node| !fixed(node));
        if whole && !matches!(expr.node, Node::Literal(_)) {
            let value = eval::run(
                self.draft.program(),
                (first, self.here()),
                &Scope::default(),
                &mut self.steps,
                &mut Stack::default(),
            );
            if let Ok(value) = value.map(|value| value.to_value()) {
                self.draft.ops.truncate(first as usize);
                self.draft.starts.truncate(starts);
                self.draft.values.truncate(values);
                self.constant(&value)?;
                expr.node = Node::Literal(value);
            }
        }
        expr.code = (first, self.here());
        Ok(())
    }

    fn path(&mut self, path: Path) -> Result<u32, Refusal> {
        number(&mut self.draft.paths, MAX_NAMES, |other| *other == path, || Ok(path.clone()))
    }

    fn name(&mut self, name: &str) -> Result<u32, Refusal> {
        number(&mut self.draft.names, MAX_NAMES, |other| **other == *name, || Ok(name.into()))
    }

    fn emit_node(&mut self, expr: &mut Expr) -> Result<(), Refusal> {
        let at = expr.at;
        match &mut expr.node {
            Node::Literal(value) => self.constant(value)?,
            Node::Key => {
                let path = self.path(Path::Key)?;
                self.push(Op::Load(path));
            }
            Node::Path(root, fields) => {
                let path = self.path(field_path(*root, fields))?;
                self.push(Op::Load(path));
            }
            Node::Select(inner, name) => {
                self.emit(inner)?;
                let name = self.name(name)?;
                self.push(Op::Select(name));
            }
            Node::Has(inner) => match &mut inner.node {
                Node::Path(root, fields) => {
                    let path = self.path(field_path(*root, fields))?;
                    self.push(Op::Has(path));
                }
                Node::Select(holder, name) => {
                    self.emit(holder)?;
                    let name = self.name(name)?;
                    self.push(Op::HasField(name));
                }
                _ => self.emit(inner)?,
            },
            Node::Not(inner) => {
                self.emit(inner)?;
                self.push(Op::Not);
            }
            Node::Negate(inner) => {
                self.emit(inner)?;
                self.push(Op::Negate);
            }
            Node::And(parts) => self.chain(parts, Op::And, Op::AndJoin)?,
            Node::Or(parts) => self.chain(parts, Op::Or, Op::OrJoin)?,
            Node::Choose(parts) => self.choose(parts)?,
            Node::Compare(compare, sides) => {
                let op = Op::Compare(*compare);
                self.emit_all(sides.as_mut_slice(), op)?;
            }
            Node::In(sides) => self.emit_all(sides.as_mut_slice(), Op::In)?,
            Node::Arith(operator, sides) => {
                let op = Op::Arith(*operator);
                self.emit_all(sides.as_mut_slice(), op)?;
            }
            Node::List(items) => {
                let length = items.len() as u32;
                self.emit_all(items, Op::List(length))?;
            }
            Node::Call(builtin, arguments) => {
                let op = Op::Call(*builtin);
                self.emit_all(arguments, op)?;
            }
            Node::Matches(inner, pattern) => {
                let regex = self.pattern(pattern, at)?;
                self.emit(inner)?;
                self.push(Op::Matches(regex));
            }
            Node::Udf(udf, arguments) => {
                let same = |other: &Arc<Udf>| other.name == udf.name;
                let function = number(&mut self.draft.udfs, MAX_NAMES, same, || Ok(udf.clone()))?;
                self.emit_all(arguments, Op::Udf(function))?;
            }
            Node::Now => self.push(Op::Now),
        }
        Ok(())
    }

    fn emit_all(&mut self, parts: &mut [Expr], then: Op) -> Result<(), Refusal> {
        for part in parts {
            self.emit(part)?;
        }
        self.push(then);
        Ok(())
    }

    fn chain(&mut self, parts: &mut [Expr], decide: fn(u32) -> Op, join: Op) -> Result<(), Refusal> {
        let mut exits = Vec::new();
        for (index, part) in parts.iter_mut().enumerate() {
            if index > 0 {
                exits.push(self.draft.ops.len());
                self.push(decide(0));
            }
            self.emit(part)?;
            if index > 0 {
                self.push(join);
            }
        }
        let end = self.here();
        for exit in exits {
            self.draft.ops[exit] = decide(end);
        }
        Ok(())
    }

    fn choose(&mut self, parts: &mut [Expr; 3]) -> Result<(), Refusal> {
        let [condition, then, otherwise] = parts;
        self.emit(condition)?;
        let choose = self.draft.ops.len();
        self.push(Op::Choose(0, 0));
        self.emit(then)?;
        let jump = self.draft.ops.len();
        self.push(Op::Jump(0));
        let second = self.here();
        self.emit(otherwise)?;
        let end = self.here();
        self.draft.ops[choose] = Op::Choose(second, end);
        self.draft.ops[jump] = Op::Jump(end);
        Ok(())
    }

    fn pattern(&mut self, text: &str, at: usize) -> Result<u32, Refusal> {
        let make = || Pattern::compile(text).map_err(|refusal| refusal.at(self.text, at));
        number(&mut self.draft.patterns, MAX_PATTERNS, |other| other.as_str() == text, make)
    }
}

fn field_path(root: Root, fields: &[String]) -> Path {
    Path::Field(root, fields.iter().map(|field| field.as_str().into()).collect())
}
