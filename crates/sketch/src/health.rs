//! Health checks: which replicas are known to be away before a request finds out.
//!
//! ```text
//!   not checked ─ first check ─▶ up ── `down` failures in a row ──▶ down
//!                     └────────▶ down ── `up` passes in a row ────▶ up
//! ```
//! A check says that a replica answers, not that it answers truly: votes are put to all the same, and whoever was wrong stays
//! left out for as long as his conduct says ([`sketcher`](crate::sketcher)), however healthy he claims to be.

use crate::ReplicaId;
use std::time::Duration;
use tidings_base::{Machine, Mono, Now, Outbox, Timers};

/// How replicas are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many there are.
    pub replicas: u16,
    /// From a check's end to the next one.
    pub interval: Duration,
    /// So many failures in a row, and a replica is down. One alone is often a restart.
    pub down: u32,
    /// So many passes in a row, and it is up again. One alone may be luck.
    pub up: u32,
}

/// What a driver brings: how a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked(pub ReplicaId, pub bool);

/// What a driver must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Check a replica, and say how it ended, whatever happens.
    Check(ReplicaId),
    /// A replica is up from now on, or down.
    Turned(ReplicaId, bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unchecked,
    Up { failed: u32 },
    Down { passed: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Checks {
    state: State,
    ended: u64,
    failed: u64,
}

/// What is known of a replica's health, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whether it is up, once it was checked.
    pub up: Option<bool>,
    /// Checks that have ended.
    pub checks: u64,
    /// Those that it failed.
    pub failed: u64,
}

/// The one kind of timer: a replica's next check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Next(ReplicaId);

/// The checks of a group.
#[derive(Debug)]
pub struct Health {
    options: Options,
    replicas: Vec<Checks>,
    timers: Timers<Next>,
}

impl Health {
    /// Nobody is checked yet; all are to be at once.
    pub fn new(options: Options) -> Health {
        let mut timers = Timers::new();
        (0..options.replicas).for_each(|replica| timers.set(Next(ReplicaId(replica)), Mono(0)));
        let unchecked = Checks { state: State::Unchecked, ended: 0, failed: 0 };
        Health { options, replicas: vec![unchecked; usize::from(options.replicas)], timers }
    }

    /// What is known of each.
    pub fn found(&self) -> Vec<Found> {
        let up = |state| match state {
            State::Unchecked => None,
            State::Up { .. } => Some(true),
            State::Down { .. } => Some(false),
        };
        let found = |of: &Checks| Found { up: up(of.state), checks: of.ended, failed: of.failed };
        self.replicas.iter().map(found).collect()
    }

    fn next(&self, state: State, passed: bool) -> State {
        match (state, passed) {
            // Nothing speaks for a replica that was never seen: its first check decides.
            (State::Unchecked | State::Up { .. }, true) => State::Up { failed: 0 },
            (State::Unchecked, false) => State::Down { passed: 0 },
            (State::Up { failed }, false) if failed + 1 >= self.options.down => State::Down { passed: 0 },
            (State::Up { failed }, false) => State::Up { failed: failed + 1 },
            (State::Down { .. }, false) => State::Down { passed: 0 },
            (State::Down { passed }, true) if passed + 1 >= self.options.up => State::Up { failed: 0 },
            (State::Down { passed }, true) => State::Down { passed: passed + 1 },
        }
    }
}

impl Machine for Health {
    type Input = Checked;
    type Output = Output;

    fn handle(&mut self, now: Now, Checked(replica, passed): Checked, out: &mut Outbox<Output>) {
        let Some(before) = self.replicas.get(usize::from(replica.0)).map(|of| of.state) else { return };
        let after = self.next(before, passed);
        let of = &mut self.replicas[usize::from(replica.0)];
        of.state = after;
        of.ended += 1;
        of.failed += u64::from(!passed);
        self.timers.set(Next(replica), now.mono + self.options.interval);
        if std::mem::discriminant(&before) != std::mem::discriminant(&after) {
            out.put(Output::Turned(replica, matches!(after, State::Up { .. })));
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output>) {
        while let Some(Next(replica)) = self.timers.pop_due(now.mono) {
            out.put(Output::Check(replica));
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.timers.deadline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_base::Wall;

    const INTERVAL: Duration = Duration::from_secs(2);

    fn health() -> Health {
        Health::new(Options { replicas: 2, interval: INTERVAL, down: 3, up: 2 })
    }

    fn now(mono: Mono) -> Now {
        Now { mono, wall: Wall(0) }
    }

    /// What comes of checks of the first replica that end so.
    fn turns(health: &mut Health, checks: &[bool]) -> Vec<bool> {
        let mut out = Outbox::new();
        checks.iter().for_each(|passed| health.handle(now(Mono(0)), Checked(ReplicaId(0), *passed), &mut out));
        out.into_iter()
            .map(|output| match output {
                Output::Turned(ReplicaId(0), up) => up,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn the_first_check_decides_and_then_rows_do() {
        assert_eq!(turns(&mut health(), &[false]), [false]);
        let mut health = health();
        assert_eq!(turns(&mut health, &[true]), [true]);
        assert_eq!(turns(&mut health, &[false, false, true, false, false]), []);
        assert_eq!(turns(&mut health, &[false]), [false]);
        assert_eq!(turns(&mut health, &[true, false, true]), []);
        assert_eq!(turns(&mut health, &[true]), [true]);
        assert_eq!(health.found()[0], Found { up: Some(true), checks: 11, failed: 6 });
        assert_eq!(health.found()[1], Found { up: None, checks: 0, failed: 0 });
    }

    #[test]
    fn each_replica_has_one_check_under_way() {
        let mut health = health();
        let checks = |health: &mut Health, at| {
            let mut out = Outbox::new();
            health.wake(now(at), &mut out);
            out.into_iter().collect::<Vec<_>>()
        };
        let [first, second] = [0, 1].map(|replica| Output::Check(ReplicaId(replica)));
        assert_eq!(checks(&mut health, Mono(0)), [first, second]);
        assert_eq!((checks(&mut health, Mono(0) + INTERVAL), health.deadline()), (vec![], None));
        let ended = Mono(5);
        health.handle(now(ended), Checked(ReplicaId(1), true), &mut Outbox::new());
        assert_eq!(checks(&mut health, Mono(0) + INTERVAL), []);
        assert_eq!(checks(&mut health, ended + INTERVAL), [second]);
        health.handle(now(ended), Checked(ReplicaId(9), true), &mut Outbox::new());
    }
}
