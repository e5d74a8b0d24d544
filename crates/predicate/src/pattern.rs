//! Patterns of `matches`, and what it costs to look for them.

use crate::eval::BYTES_A_STEP;
use crate::refusal::{Refusal, Wrong};
use regex::{Regex, RegexBuilder};
use regex_automata::nfa::thompson::NFA;

/// The memory that one compiled pattern may take, in bytes.
const MAX_PATTERN: usize = 256 * 1024;
/// Bytes of a compiled pattern that are gone over in the time that a byte of text otherwise takes.
const BYTES_A_PART: usize = 256;

/// A compiled pattern.
#[derive(Debug)]
pub(crate) struct Pattern {
    regex: Regex,
    /// What one byte of text may cost: where no table of states fits, the engine holds it against all of the program.
    parts: usize,
}

impl Pattern {
    /// Compiles a pattern, if it is not too large.
    pub(crate) fn compile(text: &str) -> Result<Pattern, Refusal> {
        let refused = |wrong, why: &str| Refusal::new(wrong, format!("this pattern cannot be used: {why}"));
        let regex = RegexBuilder::new(text).size_limit(MAX_PATTERN).dfa_size_limit(MAX_PATTERN).build();
        let regex = regex.map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => refused(Wrong::TooLarge, "it is too large"),
            // The last line says what is wrong; those before it show the pattern, as the refusal does.
            other => refused(Wrong::Syntax, other.to_string().lines().last().unwrap_or_default()),
        })?;
        // The engine does not tell how large its program is: the same once more.
        let program = NFA::new(text).map_err(|_| refused(Wrong::TooLarge, "it is too large"))?;
        Ok(Pattern { regex, parts: (program.memory_usage() / BYTES_A_PART).max(1) })
    }

    pub(crate) fn as_str(&self) -> &str {
        self.regex.as_str()
    }

    /// The steps that it takes over a text of so many bytes.
    pub(crate) fn steps(&self, bytes: usize) -> usize {
        bytes.saturating_mul(self.parts) / BYTES_A_STEP
    }

    /// The bytes that it may hold in memory once it has been looked for: its program is the least of it.
    pub(crate) fn weight(&self) -> usize {
        2 * MAX_PATTERN
    }

    pub(crate) fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }
}
