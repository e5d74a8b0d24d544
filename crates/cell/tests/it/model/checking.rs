//! The world as it is explored, and what is expected of it.

use super::world::{Setup, Step, World};
use std::fmt::{self, Write as _};
use tidings_explore::{Bounds, explore};
use xxhash_rust::xxh3::Xxh3;

/// Two states are the same if they print the same.
impl tidings_explore::World for World {
    type Setup = Setup;
    type Step = Step;

    fn steps(&self, steps: &mut Vec<Step>) {
        self.steps(steps);
    }

    fn step(&mut self, setup: &Setup, step: &Step) {
        self.step(setup, step);
    }

    fn print(&self) -> u64 {
        let mut printer = Printer(Xxh3::new());
        write!(printer, "{self:?}").expect("hashing does not fail");
        printer.0.digest()
    }

    fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }
}

struct Printer(Xxh3);

impl fmt::Write for Printer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

/// Expects that nothing goes wrong, and that enough was looked at for that to mean something.
pub fn holds(setup: &Setup, beginning: fn(&Setup) -> World, depth: usize, at_least: usize) {
    let seen = explore(setup, beginning, Bounds::depth(depth));
    assert_eq!(seen.wrong, None);
    assert!(seen.states >= at_least, "only {} states were seen", seen.states);
}

/// Expects that the mutant is noticed.
pub fn breaks(setup: &Setup, beginning: fn(&Setup) -> World, depth: usize) {
    let seen = explore(setup, beginning, Bounds::depth(depth));
    assert!(seen.wrong.is_some(), "{:?} went unnoticed in {} states", setup.mutant, seen.states);
}
