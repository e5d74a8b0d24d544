//! Reads a text: CEL's grammar without macros, indexing, maps and messages.

use crate::ast::{Arith, Builtin, Compare, Expr, Node, Root};
use crate::dialect::Dialect;
use crate::lexer::{Lexer, Token};
use crate::refusal::{Refusal, Wrong};
use crate::udf::BUILTINS;
use crate::value::Value;

/// The longest text of a predicate, in bytes.
pub const MAX_TEXT: usize = 64 * 1024;
/// How deep parts of a predicate may stand in one another. Chains of `&&` and of `||` count once.
pub const MAX_DEPTH: u16 = 64;

/// Words that CEL keeps for itself.
const KEPT: [&str; 18] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

pub(crate) fn parse(text: &str, dialect: &Dialect) -> Result<Expr, Refusal> {
    if text.len() > MAX_TEXT {
        return Err(Refusal::new(Wrong::TooLarge, format!("the predicate is longer than {MAX_TEXT} bytes")));
    }
    let mut lexer = Lexer::new(text);
    let next = lexer.next()?;
    let mut parser = Parser { text, dialect, lexer, next, nesting: 0 };
    let expr = parser.expression()?;
    match &parser.next {
        (_, Token::End) => Ok(expr),
        _ => Err(parser.unexpected("an operator or the end")),
    }
}

struct Parser<'a> {
    text: &'a str,
    dialect: &'a Dialect,
    lexer: Lexer<'a>,
    next: (usize, Token),
    nesting: u16,
}

type Parsed = Result<Expr, Refusal>;

impl Parser<'_> {
    fn refuse(&self, wrong: Wrong, at: usize, message: impl Into<String>) -> Refusal {
        Refusal::new(wrong, message).at(self.text, at)
    }

    fn unexpected(&self, wanted: &str) -> Refusal {
        let (at, token) = &self.next;
        let found = match token {
            Token::Name(name) => format!("`{name}`"),
            Token::Int(_) | Token::Float(_) => "a number".to_owned(),
            Token::String(_) | Token::Bytes(_) => "a string".to_owned(),
            Token::Mark("[") => "`[` (indexing is not part of the language)".to_owned(),
            Token::Mark("{") => "`{` (maps are not part of the language)".to_owned(),
            Token::Mark(mark) => format!("`{mark}`"),
            Token::End => "the end".to_owned(),
        };
        self.refuse(Wrong::Syntax, *at, format!("expected {wanted}, found {found}"))
    }

    fn advance(&mut self) -> Result<(usize, Token), Refusal> {
        let next = self.lexer.next()?;
        Ok(std::mem::replace(&mut self.next, next))
    }

    /// Takes the mark if it comes next.
    fn take(&mut self, mark: &str) -> Result<bool, Refusal> {
        let here = matches!(self.next.1, Token::Mark(found) if found == mark);
        if here {
            self.advance()?;
        }
        Ok(here)
    }

    fn expect(&mut self, mark: &str) -> Result<(), Refusal> {
        if self.take(mark)? { Ok(()) } else { Err(self.unexpected(&format!("`{mark}`"))) }
    }

    fn node(&self, at: usize, node: Node) -> Parsed {
        let expr = Expr::new(at, node);
        if expr.depth > MAX_DEPTH { Err(self.too_deep(at)) } else { Ok(expr) }
    }

    fn too_deep(&self, at: usize) -> Refusal {
        self.refuse(Wrong::TooLarge, at, format!("the predicate is nested deeper than {MAX_DEPTH}"))
    }

    /// Reads one level further in, so that the text cannot make this recurse without end.
    fn nested(&mut self, read: impl FnOnce(&mut Self) -> Parsed) -> Parsed {
        if self.nesting == MAX_DEPTH {
            return Err(self.too_deep(self.next.0));
        }
        self.nesting += 1;
        let read = read(self);
        self.nesting -= 1;
        read
    }

    fn expression(&mut self) -> Parsed {
        let at = self.next.0;
        let condition = self.chain("||", Node::Or, |p| p.chain("&&", Node::And, Self::relation))?;
        if !self.take("?")? {
            return Ok(condition);
        }
        let then = self.nested(|p| p.chain("||", Node::Or, |p| p.chain("&&", Node::And, Self::relation)))?;
        self.expect(":")?;
        let otherwise = self.nested(Self::expression)?;
        self.node(at, Node::Choose(Box::new([condition, then, otherwise])))
    }

    /// A chain of one logical operator: one node, however long.
    fn chain(&mut self, mark: &str, make: fn(Vec<Expr>) -> Node, read: impl Fn(&mut Self) -> Parsed + Copy) -> Parsed {
        let at = self.next.0;
        let first = read(self)?;
        if !matches!(self.next.1, Token::Mark(found) if found == mark) {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.take(mark)? {
            parts.push(read(self)?);
        }
        self.node(at, make(parts))
    }

    fn relation(&mut self) -> Parsed {
        let at = self.next.0;
        let mut left = self.sum()?;
        loop {
            let compare = match &self.next.1 {
                Token::Mark("==") => Some(Compare::Equal),
                Token::Mark("!=") => Some(Compare::Unequal),
                Token::Mark("<") => Some(Compare::Less),
                Token::Mark("<=") => Some(Compare::LessOrEqual),
                Token::Mark(">") => Some(Compare::Greater),
                Token::Mark(">=") => Some(Compare::GreaterOrEqual),
                Token::Name(name) if name == "in" => None,
                _ => return Ok(left),
            };
            self.advance()?;
            let sides = Box::new([left, self.sum()?]);
            left = match compare {
                Some(compare) => self.node(at, Node::Compare(compare, sides))?,
                None => self.node(at, Node::In(sides))?,
            };
        }
    }

    fn sum(&mut self) -> Parsed {
        let at = self.next.0;
        let mut left = self.product()?;
        loop {
            let operator = match self.next.1 {
                Token::Mark("+") => Arith::Add,
                Token::Mark("-") => Arith::Subtract,
                _ => return Ok(left),
            };
            self.advance()?;
            let sides = Box::new([left, self.product()?]);
            left = self.node(at, Node::Arith(operator, sides))?;
        }
    }

    fn product(&mut self) -> Parsed {
        let at = self.next.0;
        let mut left = self.unary()?;
        loop {
            let operator = match self.next.1 {
                Token::Mark("*") => Arith::Multiply,
                Token::Mark("/") => Arith::Divide,
                Token::Mark("%") => Arith::Remainder,
                _ => return Ok(left),
            };
            self.advance()?;
            let sides = Box::new([left, self.unary()?]);
            left = self.node(at, Node::Arith(operator, sides))?;
        }
    }

    fn unary(&mut self) -> Parsed {
        let at = self.next.0;
        if self.take("!")? {
            let inner = self.nested(Self::unary)?;
            return self.node(at, Node::Not(Box::new(inner)));
        }
        if !self.take("-")? {
            return self.member();
        }
        match self.next.1 {
            Token::Int(number) => {
                self.advance()?;
                let least = 0i64.checked_sub_unsigned(number).ok_or_else(|| self.beyond(at))?;
                self.postfix(Expr::new(at, Node::Literal(Value::Int(least))))
            }
            Token::Float(number) => {
                self.advance()?;
                self.postfix(Expr::new(at, Node::Literal(Value::Float(-number))))
            }
            _ => {
                let inner = self.nested(Self::unary)?;
                self.node(at, Node::Negate(Box::new(inner)))
            }
        }
    }

    fn beyond(&self, at: usize) -> Refusal {
        self.refuse(Wrong::Syntax, at, "this number is beyond 64 bits")
    }

    fn member(&mut self) -> Parsed {
        let (at, token) = match &self.next.1 {
            Token::Mark("(") => {
                self.advance()?;
                let inner = self.nested(Self::expression)?;
                self.expect(")")?;
                return self.postfix(inner);
            }
            Token::Mark("[") => {
                let (at, _) = self.advance()?;
                let items = self.list("]")?;
                let list = self.node(at, Node::List(items))?;
                return self.postfix(list);
            }
            Token::Mark(_) | Token::End => return Err(self.unexpected("a value")),
            _ => self.advance()?,
        };
        let node = match token {
            Token::Int(number) => Node::Literal(Value::Int(i64::try_from(number).map_err(|_| self.beyond(at))?)),
            Token::Float(number) => Node::Literal(Value::Float(number)),
            Token::String(text) => Node::Literal(Value::String(text)),
            Token::Bytes(bytes) => Node::Literal(Value::Bytes(bytes)),
            Token::Name(name) if matches!(self.next.1, Token::Mark("(")) => {
                self.advance()?;
                let arguments = self.list(")")?;
                let call = self.call(at, &name, arguments)?;
                return self.postfix(call);
            }
            Token::Name(name) => self.name(at, name)?,
            Token::Mark(_) | Token::End => return Err(self.unexpected("a value")),
        };
        self.postfix(Expr::new(at, node))
    }

    fn name(&self, at: usize, name: String) -> Result<Node, Refusal> {
        Ok(match name.as_str() {
            "true" => Node::Literal(Value::Bool(true)),
            "false" => Node::Literal(Value::Bool(false)),
            "null" => Node::Literal(Value::Null),
            "this" => Node::Path(Root::This, Vec::new()),
            "reader" => Node::Path(Root::Reader, Vec::new()),
            "user" => Node::Path(Root::User, Vec::new()),
            "key" => Node::Key,
            kept if KEPT.contains(&kept) => {
                let message = format!("`{kept}` is a word of the language; a column of that name is `this.{kept}`");
                return Err(self.refuse(Wrong::Syntax, at, message));
            }
            joined if self.dialect.joined.as_deref() == Some(joined) => Node::Path(Root::Joined, Vec::new()),
            _ => Node::Path(Root::This, vec![name]),
        })
    }

    /// What is selected from, or called on, a value.
    fn postfix(&mut self, mut value: Expr) -> Parsed {
        while self.take(".")? {
            let Token::Name(name) = &self.next.1 else { return Err(self.unexpected("a field or function")) };
            let (name, start) = (name.clone(), value.at);
            let (at, _) = self.advance()?;
            if self.take("(")? {
                let mut arguments = vec![value];
                arguments.extend(self.list(")")?);
                value = self.method(at, &name, arguments)?;
                value.at = start;
                continue;
            }
            value = match value.node {
                Node::Path(Root::This, fields) if fields.is_empty() && name == "key" => Expr::new(start, Node::Key),
                Node::Path(root, mut fields) => {
                    fields.push(name);
                    Expr::new(start, Node::Path(root, fields))
                }
                _ => self.node(start, Node::Select(Box::new(value), name))?,
            };
        }
        if matches!(self.next.1, Token::Mark("[" | "{")) {
            return Err(self.unexpected("an operator"));
        }
        Ok(value)
    }

    /// Parts up to a closing mark, which is taken.
    fn list(&mut self, end: &str) -> Result<Vec<Expr>, Refusal> {
        let mut parts = Vec::new();
        while !self.take(end)? {
            parts.push(self.nested(Self::expression)?);
            if !self.take(",")? {
                self.expect(end)?;
                break;
            }
        }
        Ok(parts)
    }

    fn arity(&self, at: usize, name: &str, arguments: &[Expr], wanted: usize) -> Result<(), Refusal> {
        if arguments.len() == wanted {
            return Ok(());
        }
        let message = format!("`{name}` takes {wanted} values, here are {}", arguments.len());
        Err(self.refuse(Wrong::Type, at, message))
    }

    fn method(&self, at: usize, name: &str, arguments: Vec<Expr>) -> Parsed {
        let builtin = match name {
            "startsWith" => Builtin::StartsWith,
            "endsWith" => Builtin::EndsWith,
            "contains" => Builtin::Contains,
            "size" => Builtin::Size,
            "matches" => return self.matches(at, arguments),
            "all" | "exists" | "exists_one" | "map" | "filter" => {
                return Err(self.refuse(Wrong::Name, at, format!("`{name}` is a macro, and the language has none")));
            }
            _ => return Err(self.unknown(at, name)),
        };
        self.builtin(at, name, builtin, arguments)
    }

    fn call(&self, at: usize, name: &str, mut arguments: Vec<Expr>) -> Parsed {
        let builtin = match name {
            "size" => Builtin::Size,
            "timestamp" => Builtin::Timestamp,
            "duration" => Builtin::Duration,
            "distance" => Builtin::Distance,
            "matches" => return self.matches(at, arguments),
            "has" => {
                self.arity(at, name, &arguments, 1)?;
                let field = arguments.remove(0);
                return match &field.node {
                    Node::Path(_, fields) if !fields.is_empty() => self.node(at, Node::Has(Box::new(field))),
                    Node::Select(..) => self.node(at, Node::Has(Box::new(field))),
                    _ => Err(self.refuse(Wrong::Type, field.at, "`has` takes a field, such as `has(this.price)`")),
                };
            }
            "now" => {
                self.arity(at, name, &arguments, 0)?;
                return self.node(at, Node::Now);
            }
            _ => {
                let Some(udf) = self.dialect.functions.get(name) else { return Err(self.unknown(at, name)) };
                self.arity(at, name, &arguments, udf.takes.len())?;
                return self.node(at, Node::Udf(udf.clone(), arguments));
            }
        };
        self.builtin(at, name, builtin, arguments)
    }

    fn builtin(&self, at: usize, name: &str, builtin: Builtin, arguments: Vec<Expr>) -> Parsed {
        let wanted = match builtin {
            Builtin::Size | Builtin::Timestamp | Builtin::Duration => 1,
            Builtin::StartsWith | Builtin::EndsWith | Builtin::Contains | Builtin::Distance => 2,
        };
        self.arity(at, name, &arguments, wanted)?;
        self.node(at, Node::Call(builtin, arguments))
    }

    fn matches(&self, at: usize, mut arguments: Vec<Expr>) -> Parsed {
        self.arity(at, "matches", &arguments, 2)?;
        let pattern = arguments.remove(1);
        let Node::Literal(Value::String(text)) = pattern.node else {
            let message = "the pattern of `matches` is a literal string, because it is compiled once";
            return Err(self.refuse(Wrong::Type, pattern.at, message));
        };
        self.node(at, Node::Matches(Box::new(arguments.remove(0)), text))
    }

    fn unknown(&self, at: usize, name: &str) -> Refusal {
        let mut known: Vec<&str> = BUILTINS.to_vec();
        known.extend(self.dialect.functions.names());
        self.refuse(Wrong::Name, at, format!("there is no function `{name}` here; there are {}", known.join(", ")))
    }
}
