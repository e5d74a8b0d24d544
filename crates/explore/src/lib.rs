//! Every order of steps that a small world can take, up to a bound: how the models of the cell and of placement are explored.
//!
//! A model's world holds production machines and what is between them; [`explore`] takes every step that it may take, from
//! state to state, until something is wrong or the bounds are reached. Only tests use this.

use stateright::{Checker, Model, Property};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

/// A small world that takes one step at a time.
pub trait World: Clone + Send + Sync + 'static {
    /// What is chosen before the first step.
    type Setup: Clone + Send + Sync + 'static;
    /// One step.
    type Step: Clone + fmt::Debug + PartialEq + Send + Sync + 'static;

    /// The steps that may be taken.
    fn steps(&self, steps: &mut Vec<Self::Step>);

    /// Takes a step.
    fn step(&mut self, setup: &Self::Setup, step: &Self::Step);

    /// Everything as one number: states with the same are taken for the same.
    fn print(&self) -> u64;

    /// The first thing that must never be, if it is.
    fn wrong(&self) -> Option<&str>;
}

/// How far to look.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Steps from the beginning.
    pub depth: usize,
    /// States, more or less; the search ends soon after.
    pub states: usize,
    /// Time; the search ends soon after.
    pub time: Duration,
}

impl Bounds {
    /// Everything within so many steps.
    pub const fn depth(depth: usize) -> Bounds {
        Bounds { depth, states: usize::MAX, time: Duration::from_secs(3_600) }
    }
}

#[derive(Clone)]
struct Explored<W> {
    world: Box<W>,
    print: u64,
}

impl<W: World> Explored<W> {
    fn new(world: W) -> Explored<W> {
        let print = world.print();
        Explored { world: Box::new(world), print }
    }
}

impl<W> Hash for Explored<W> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.print.hash(hasher);
    }
}

impl<W> PartialEq for Explored<W> {
    fn eq(&self, other: &Explored<W>) -> bool {
        self.print == other.print
    }
}

impl<W: World> fmt::Debug for Explored<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x} {:?}", self.print, self.world.wrong())
    }
}

/// Everything that can follow from a beginning.
struct Following<W: World> {
    setup: W::Setup,
    beginning: fn(&W::Setup) -> W,
}

const NOTHING_WRONG: &str = "nothing is wrong";

impl<W: World> Model for Following<W> {
    type State = Explored<W>;
    type Action = W::Step;

    fn init_states(&self) -> Vec<Explored<W>> {
        vec![Explored::new((self.beginning)(&self.setup))]
    }

    fn actions(&self, state: &Explored<W>, steps: &mut Vec<W::Step>) {
        state.world.steps(steps);
    }

    fn next_state(&self, state: &Explored<W>, step: W::Step) -> Option<Explored<W>> {
        let mut world = (*state.world).clone();
        world.step(&self.setup, &step);
        Some(Explored::new(world))
    }

    fn properties(&self) -> Vec<Property<Following<W>>> {
        vec![Property::always(NOTHING_WRONG, |_, state: &Explored<W>| state.world.wrong().is_none())]
    }
}

/// What an exploration has seen.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What was found to be wrong, with the steps that lead there.
    pub wrong: Option<String>,
    /// How many states there were.
    pub states: usize,
    /// Every order of steps up to the depth was taken: neither the number of states nor the time ended it.
    pub exhausted: bool,
}

/// Explores.
#[allow(clippy::disallowed_methods)] // How long a test took is no input of any machine.
pub fn explore<W: World>(setup: &W::Setup, beginning: fn(&W::Setup) -> W, bounds: Bounds) -> Seen {
    let began = Instant::now();
    let model = Following { setup: setup.clone(), beginning };
    let checker = model.checker().target_max_depth(bounds.depth).target_state_count(bounds.states).timeout(bounds.time);
    let checker = checker.spawn_bfs().join();
    let states = checker.unique_state_count();
    let wrong = checker.discovery(NOTHING_WRONG).map(|path| {
        let wrong = path.last_state().world.wrong().unwrap_or_default().to_owned();
        format!("{wrong}: {:?}", path.into_actions())
    });
    let cut = checker.state_count() >= bounds.states || began.elapsed() >= bounds.time;
    Seen { exhausted: wrong.is_none() && !cut, wrong, states }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that grows by one or doubles.
    #[derive(Clone)]
    struct Number(u64, Option<String>);

    impl World for Number {
        type Setup = u64;
        type Step = bool;

        fn steps(&self, steps: &mut Vec<bool>) {
            steps.extend([false, true]);
        }

        fn step(&mut self, never: &u64, doubles: &bool) {
            self.0 = if *doubles { 2 * self.0 } else { self.0 + 1 };
            self.1 = (self.0 == *never).then(|| format!("it is {never}"));
        }

        fn print(&self) -> u64 {
            self.0
        }

        fn wrong(&self) -> Option<&str> {
            self.1.as_deref()
        }
    }

    #[test]
    fn the_shortest_way_to_what_must_not_be_is_found_within_the_bounds() {
        let begin: fn(&u64) -> Number = |_| Number(1, None);
        let seen = explore(&12, begin, Bounds::depth(6));
        assert_eq!(seen.wrong.unwrap(), "it is 12: [false, false, true, true]");
        assert!(seen.states >= 5 && !seen.exhausted, "{}", seen.states);
        let near = explore(&12, begin, Bounds::depth(3));
        assert_eq!((near.wrong, near.exhausted), (None, true), "it is further away");
        let cut = explore(&0, begin, Bounds { states: 50, ..Bounds::depth(100) });
        assert_eq!((cut.wrong, cut.exhausted), (None, false));
    }
}
