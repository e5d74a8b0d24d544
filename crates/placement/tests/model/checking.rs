//! The world as `stateright` explores it.

use crate::world::{Setup, Step, World};
use stateright::{Checker, Model, Property};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

/// A state: two are the same if everybody has heard the same at the same instants.
#[derive(Clone)]
pub struct Explored {
    world: Box<World>,
    print: u64,
}

impl Explored {
    fn new(world: World) -> Explored {
        let print = world.print();
        Explored { world: Box::new(world), print }
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
        write!(f, "{:016x} {:?}", self.print, self.world.wrong)
    }
}

/// Everything that can follow from a beginning.
struct Placement {
    setup: Setup,
    beginning: fn(&Setup) -> World,
}

const NOTHING_WRONG: &str = "nothing is wrong";

impl Model for Placement {
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

    fn properties(&self) -> Vec<Property<Placement>> {
        vec![Property::always(NOTHING_WRONG, |_, state: &Explored| state.world.wrong.is_none())]
    }
}

/// How far to look.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub depth: usize,
    pub states: usize,
    pub time: Duration,
}

/// Explores; what was found to be wrong, with the steps that lead there, and how many states were seen.
pub fn explore(setup: &Setup, beginning: fn(&Setup) -> World, bounds: Bounds) -> (Option<String>, usize) {
    let model = Placement { setup: setup.clone(), beginning };
    let checker = model.checker().target_max_depth(bounds.depth).target_state_count(bounds.states).timeout(bounds.time);
    let checker = checker.spawn_bfs().join();
    let states = checker.unique_state_count();
    let found = checker.discovery(NOTHING_WRONG).map(|path| {
        let wrong = path.last_state().world.wrong.clone().unwrap_or_default();
        format!("{wrong}: {:?}", path.into_actions())
    });
    (found, states)
}
