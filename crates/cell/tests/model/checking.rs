//! The world as `stateright` explores it.

use crate::world::{Setup, Step, World};
use stateright::{Checker, Model, Property};
use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use xxhash_rust::xxh3::Xxh3;

/// A state: two are the same if they print the same.
#[derive(Clone)]
pub struct Explored {
    world: Box<World>,
    print: u64,
}

impl Explored {
    fn new(world: World) -> Explored {
        let mut printer = Printer(Xxh3::new());
        write!(printer, "{world:?}").expect("hashing does not fail");
        Explored { world: Box::new(world), print: printer.0.digest() }
    }
}

struct Printer(Xxh3);

impl fmt::Write for Printer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

impl Hash for Explored {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.print.hash(hasher);
    }
}

impl PartialEq for Explored {
    fn eq(&self, other: &Explored) -> bool {
        self.print == other.print
    }
}

impl fmt::Debug for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.world, f)
    }
}

/// Everything that can follow from a beginning.
struct Cell {
    setup: Setup,
    beginning: fn(&Setup) -> World,
}

const NOTHING_WRONG: &str = "nothing is wrong";

impl Model for Cell {
    type State = Explored;
    type Action = Step;

    fn init_states(&self) -> Vec<Explored> {
        vec![Explored::new((self.beginning)(&self.setup))]
    }

    fn actions(&self, state: &Explored, steps: &mut Vec<Step>) {
        state.world.steps(steps);
    }

    fn next_state(&self, state: &Explored, step: Step) -> Option<Explored> {
        let mut world = (*state.world).clone();
        world.step(&self.setup, &step);
        Some(Explored::new(world))
    }

    fn properties(&self) -> Vec<Property<Cell>> {
        vec![Property::always(NOTHING_WRONG, |_, state: &Explored| state.world.wrong.is_none())]
    }
}

/// Explores to a depth; what was found to be wrong, with the steps that lead there, and how many states were seen.
pub fn explore(setup: &Setup, beginning: fn(&Setup) -> World, depth: usize) -> (Option<String>, usize) {
    let model = Cell { setup: setup.clone(), beginning };
    let checker = model.checker().target_max_depth(depth).spawn_bfs().join();
    let states = checker.unique_state_count();
    let found = checker.discovery(NOTHING_WRONG).map(|path| {
        let wrong = path.last_state().world.wrong.clone().unwrap_or_default();
        format!("{wrong}: {:?}", path.into_actions())
    });
    (found, states)
}

/// Expects that nothing goes wrong, and that enough was looked at for that to mean something.
pub fn holds(setup: &Setup, beginning: fn(&Setup) -> World, depth: usize, at_least: usize) {
    let (found, states) = explore(setup, beginning, depth);
    assert_eq!(found, None);
    assert!(states >= at_least, "only {states} states were seen");
}

/// Expects that the mutant is noticed.
pub fn breaks(setup: &Setup, beginning: fn(&Setup) -> World, depth: usize) {
    let (found, states) = explore(setup, beginning, depth);
    assert!(found.is_some(), "{:?} went unnoticed in {states} states", setup.mutant);
}
