//! Why a predicate is not taken: a stable code, a sentence, and a caret under the place.

use std::fmt;
use tidings_base::{Class, Error};

/// How much of a long line is shown around the place of an error.
const SHOWN: usize = 100;

/// What is wrong with a text, or with where it is to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It cannot be read.
    Syntax,
    /// It names a function, operator or root that does not exist here.
    Name,
    /// It could never be evaluated: the kinds of its values do not fit.
    Type,
    /// It is longer or deeper than allowed.
    TooLarge,
    /// R9: it cannot be watched.
    NotLive,
    /// It calls a function that is not pure, where an answer has to last.
    NotPure,
    /// The index has no room for another predicate of this kind.
    Full,
}

impl Wrong {
    /// The stable code of the error.
    pub fn code(self) -> &'static str {
        match self {
            Wrong::Syntax => "tables.predicate_syntax",
            Wrong::Name => "tables.predicate_name",
            Wrong::Type => "tables.predicate_type",
            Wrong::TooLarge => "tables.predicate_too_large",
            Wrong::NotLive => "tables.predicate_not_live",
            Wrong::NotPure => "tables.predicate_not_pure",
            Wrong::Full => "tables.predicate_full",
        }
    }

    /// What to do about it.
    fn hint(self) -> &'static str {
        match self {
            Wrong::Syntax => "Correct the text where the caret is; text stands in quotes, and `==` compares.",
            Wrong::Name => {
                "Columns stand by their names, a reader's data under `reader.`, claims under `user.`; see the page on predicates."
            }
            Wrong::Type => "Compare values of one kind; `has(column)` asks whether there is one.",
            Wrong::TooLarge => "Shorten it: a text has at most 64 KiB, and parts nested 64 deep.",
            Wrong::NotLive => {
                "Leave out `now()`, look-ups and functions that are not pure; a query can be read instead of watched."
            }
            Wrong::NotPure => "Leave the function out, or register it as pure if the same values always give the same.",
            Wrong::Full => {
                "Compare a column with a value (`==`, `<`, `startsWith`) so that the index can find it, or end other queries."
            }
        }
    }
}

/// A predicate that was refused, with all a person needs to correct it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What is wrong.
    pub wrong: Wrong,
    /// A sentence about it.
    pub message: String,
    /// Where it is, if it is somewhere in the text.
    pub place: Option<Place>,
}

/// A place in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line, from 1.
    pub line: usize,
    /// The character of that line, from 1.
    pub column: usize,
    /// The part of the line that is shown.
    excerpt: String,
    /// How many characters of the excerpt stand before the caret.
    indent: usize,
}

impl Place {
    /// The place of byte `at` of `text`; what lies beyond the end is the end.
    pub(crate) fn of(text: &str, at: usize) -> Place {
        let mut at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let before = text[start..at].chars().count();
        let line = text[..start].matches('\n').count() + 1;
        let skipped = before.saturating_sub(SHOWN / 2);
        let shown = text[start..].chars().take_while(|c| *c != '\n').skip(skipped).take(SHOWN);
        // Tabs and controls would move the caret away from what it points at.
        let excerpt = shown.map(|c| if c.is_control() { ' ' } else { c }).collect();
        Place { line, column: before + 1, excerpt, indent: before - skipped }
    }
}

impl Refusal {
    pub(crate) fn new(wrong: Wrong, message: impl Into<String>) -> Refusal {
        Refusal { wrong, message: message.into(), place: None }
    }

    pub(crate) fn at(mut self, text: &str, at: usize) -> Refusal {
        self.place = Some(Place::of(text, at));
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(place) = &self.place {
            write!(f, " (line {}, column {})", place.line, place.column)?;
            write!(f, "\n  {}\n  {:indent$}^", place.excerpt, "", indent = place.indent)?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        let class = match refusal.wrong {
            Wrong::Full => Class::Refused,
            _ => Class::Invalid,
        };
        Error::new(refusal.wrong.code(), class, refusal.to_string()).hint(refusal.wrong.hint())
    }
}
