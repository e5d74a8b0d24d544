//! Cuts a text into words, as CEL spells them.

use crate::refusal::{Refusal, Wrong};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Name(String),
    /// A whole number without its sign: the least i64 has no positive counterpart.
    Int(u64),
    Float(f64),
    String(String),
    Bytes(Vec<u8>),
    /// An operator or bracket.
    Mark(&'static str),
    End,
}

/// Longer marks stand before those that they begin with.
const MARKS: [&str; 24] = [
    "==", "!=", "<=", ">=", "&&", "||", "(", ")", "[", "]", "{", "}", ",", ".", "?", ":", "!", "-", "+", "*", "/", "%",
    "<", ">",
];

pub(crate) struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, at: 0 }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn wrong(&self, at: usize, message: impl Into<String>) -> Refusal {
        Refusal::new(Wrong::Syntax, message).at(self.text, at)
    }

    /// The next word and where it begins.
    pub(crate) fn next(&mut self) -> Result<(usize, Token), Refusal> {
        self.skip_blank();
        let at = self.at;
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok((at, Token::End)) };
        let second = rest[first.len_utf8()..].chars().next();
        if first.is_ascii_digit() || (first == '.' && second.is_some_and(|c| c.is_ascii_digit())) {
            return Ok((at, self.number()?));
        }
        if let Some(token) = self.quoted()? {
            return Ok((at, token));
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            self.at += length;
            return Ok((at, Token::Name(rest[..length].to_owned())));
        }
        if let Some(mark) = MARKS.iter().find(|mark| rest.starts_with(**mark)) {
            self.at += mark.len();
            return Ok((at, Token::Mark(mark)));
        }
        let message = match first {
            '=' => "a single `=` compares nothing: write `==`".to_owned(),
            '&' => "write `&&`".to_owned(),
            '|' => "write `||`".to_owned(),
            other => format!("{other:?} has no meaning here"),
        };
        Err(self.wrong(at, message))
    }

    fn skip_blank(&mut self) {
        loop {
            self.at = self.text.len() - self.rest().trim_start_matches([' ', '\t', '\r', '\n', '\x0c']).len();
            if !self.rest().starts_with("//") {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    fn number(&mut self) -> Result<Token, Refusal> {
        let at = self.at;
        let rest = self.rest();
        let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let token = if let Some(hex) = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X")) {
            let length = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
            self.at += 2 + length;
            u64::from_str_radix(&hex[..length], 16).ok().map(Token::Int)
        } else {
            let mut length = digits(rest);
            let mut whole = true;
            if rest[length..].strip_prefix('.').is_some_and(|fraction| digits(fraction) > 0) {
                whole = false;
                length += 1 + digits(&rest[length + 1..]);
            }
            if let Some(exponent) = rest[length..].strip_prefix(['e', 'E']) {
                let sign = usize::from(exponent.starts_with(['+', '-']));
                if digits(&exponent[sign..]) > 0 {
                    whole = false;
                    length += 1 + sign + digits(&exponent[sign..]);
                }
            }
            self.at += length;
            let written = &rest[..length];
            if whole {
                written.parse().ok().map(Token::Int)
            } else {
                written.parse().ok().filter(|number: &f64| number.is_finite()).map(Token::Float)
            }
        };
        if self.rest().starts_with(['u', 'U']) {
            return Err(self.wrong(self.at, "unsigned numbers are not part of the language: leave out the `u`"));
        }
        if self.rest().starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            return Err(self.wrong(self.at, "a number ends before this"));
        }
        token.ok_or_else(|| self.wrong(at, "this number is beyond 64 bits, or has no digits"))
    }

    /// A string or bytes, with the prefixes `r` (as it stands) and `b` (bytes) in any order.
    fn quoted(&mut self) -> Result<Option<Token>, Refusal> {
        let start = self.at;
        let prefix = self.rest().find(|c: char| !matches!(c, 'r' | 'R' | 'b' | 'B')).unwrap_or(0);
        let (prefix, body) = self.rest().split_at(prefix.min(2));
        let Some(quote) = body.chars().next().filter(|c| matches!(c, '"' | '\'')) else { return Ok(None) };
        let raw = prefix.contains(['r', 'R']);
        let bytes = prefix.contains(['b', 'B']);
        if prefix.len() == 2 && !(raw && bytes) {
            return Ok(None);
        }
        let triple: String = [quote; 3].iter().collect();
        let end = if body.starts_with(&triple) { triple } else { quote.to_string() };
        self.at += prefix.len() + end.len();
        let mut out = Vec::new();
        loop {
            let rest = self.rest();
            if rest.starts_with(&end) {
                self.at += end.len();
                break;
            }
            let Some(c) = rest.chars().next().filter(|c| end.len() == 3 || !matches!(c, '\n' | '\r')) else {
                return Err(self.wrong(start, "this string has no end"));
            };
            if c == '\\' && !raw {
                self.escape(bytes, &mut out)?;
            } else {
                self.at += c.len_utf8();
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        if bytes {
            return Ok(Some(Token::Bytes(out)));
        }
        match String::from_utf8(out) {
            Ok(text) => Ok(Some(Token::String(text))),
            Err(_) => Err(self.wrong(start, "this string is not UTF-8")),
        }
    }

    /// What follows a backslash.
    fn escape(&mut self, bytes: bool, out: &mut Vec<u8>) -> Result<(), Refusal> {
        let at = self.at;
        let Some(c) = self.rest().chars().nth(1) else { return Err(self.wrong(at, "this string has no end")) };
        self.at += 1 + c.len_utf8();
        let plain = match c {
            'a' => 7,
            'b' => 8,
            'f' => 12,
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'v' => 11,
            '\\' | '\'' | '"' | '`' | '?' => c as u8,
            'x' | 'X' => return self.code_point(at, 2, 16, bytes, out),
            'u' if !bytes => return self.code_point(at, 4, 16, bytes, out),
            'U' if !bytes => return self.code_point(at, 8, 16, bytes, out),
            '0'..='3' => {
                self.at -= 1;
                return self.code_point(at, 3, 8, bytes, out);
            }
            _ => return Err(self.wrong(at, "there is no such escape; a backslash itself is written twice")),
        };
        out.push(plain);
        Ok(())
    }

    fn code_point(
        &mut self,
        at: usize,
        length: usize,
        radix: u32,
        bytes: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let digits = self.rest().get(..length).filter(|digits| digits.chars().all(|c| c.is_digit(radix)));
        let number = digits.and_then(|digits| u32::from_str_radix(digits, radix).ok());
        let wrong = || self.wrong(at, format!("this escape takes {length} digits that name a character"));
        let number = number.ok_or_else(wrong)?;
        if bytes {
            out.push(u8::try_from(number).map_err(|_| wrong())?);
        } else {
            let c = char::from_u32(number).ok_or_else(wrong)?;
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
        self.at += length;
        Ok(())
    }
}
