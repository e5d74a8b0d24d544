//! The shape of all protocol logic: a machine decides, a driver performs.

use crate::time::{Mono, Now};

/// Protocol logic as plain data: no sockets, files, clocks, ambient randomness, async or threads inside.
///
/// A driver (tokio in production, the simulator in tests) feeds inputs, performs what the machine put into the
/// outbox, and calls [`wake`](Machine::wake) at [`deadline`](Machine::deadline).
pub trait Machine {
    /// What the driver brings: messages, answers to earlier outputs, calls of the application.
    type Input;
    /// What the driver must perform, in order.
    type Output;

    /// Takes one input.
    fn handle(&mut self, now: Now, input: Self::Input, out: &mut Outbox<Self::Output>);

    /// Lets due timers act. A spurious wake is harmless.
    fn wake(&mut self, now: Now, out: &mut Outbox<Self::Output>);

    /// When the machine next wants to be woken: one number out of all its timers.
    fn deadline(&self) -> Option<Mono>;
}

/// What a machine wants done, in the order it was put in.
#[derive(Debug, PartialEq, Eq)]
pub struct Outbox<T> {
    items: Vec<T>,
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Outbox { items: Vec::new() }
    }
}

impl<T> Outbox<T> {
    /// An empty outbox.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one thing to do.
    pub fn put(&mut self, item: T) {
        self.items.push(item);
    }

    /// Takes everything out, keeping the allocation.
    pub fn drain(&mut self) -> std::vec::Drain<'_, T> {
        self.items.drain(..)
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl<T> IntoIterator for Outbox<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;
    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter()
    }
}
