//! Clean moves of applications that speak HTTP (F9): they see them in their poll, copy, and say how it ended.

use crate::clock::Clock;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidings_base::{Class, Error, Mono};
use tidings_client::placement::{HandOver, Leased, Move};
use tokio::sync::{oneshot, watch};

/// A move as the application is told of it.
pub type Moving = Move;

/// Which way a move goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Away: stop serving the range, copy it to the other owner, and say so.
    Out,
    /// Here: the other owner will send it.
    In,
}

/// The most moves into one owner that are remembered; the oldest is forgotten first, and its state counts as missing.
const MOST_IN: usize = 1_024;

/// A move, and when it is given up.
struct Begun {
    moving: Move,
    end: Mono,
}

impl Begun {
    /// The move with what is left of its time.
    fn left(&self, now: Mono) -> Moving {
        Move { within: self.end.since(now), ..self.moving.clone() }
    }
}

/// Moves under way.
pub(super) struct Moves {
    out: Mutex<BTreeMap<u64, (Begun, oneshot::Sender<bool>)>>,
    into: Mutex<BTreeMap<u64, Begun>>,
    version: Arc<watch::Sender<u64>>,
    clock: Arc<dyn Clock>,
}

impl Moves {
    pub(super) fn new(version: Arc<watch::Sender<u64>>, clock: Arc<dyn Clock>) -> Moves {
        Moves { out: Mutex::default(), into: Mutex::default(), version, clock }
    }

    fn begun(&self, moving: Move) -> Begun {
        Begun { end: self.clock.now().mono + moving.within, moving }
    }

    pub(super) fn all(&self) -> Vec<(Direction, Moving)> {
        let now = self.clock.now().mono;
        let mut all: Vec<_> = self.out.lock().values().map(|(to, _)| (Direction::Out, to.left(now))).collect();
        all.extend(self.into.lock().values().map(|from| (Direction::In, from.left(now))));
        all
    }

    /// The application says how an export ended; `None` if it was given up before.
    pub(super) fn ended(&self, token: u64, done: bool) -> Option<Moving> {
        let (begun, waiter) = self.out.lock().remove(&token)?;
        self.bump();
        waiter.send(done).ok().map(|()| begun.moving)
    }

    /// A move into this owner needs nothing more of the application: its state has arrived, or it was given up.
    pub(super) fn no_more(&self, token: u64) {
        if self.into.lock().remove(&token).is_some() {
            self.bump();
        }
    }

    fn bump(&self) {
        self.version.send_modify(|version| *version += 1);
    }
}

/// Takes a move off the list when it is over, however it ends.
struct Listed<'a> {
    moves: &'a Moves,
    token: u64,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        if self.moves.out.lock().remove(&self.token).is_some() {
            self.moves.bump();
        }
    }
}

impl HandOver for Moves {
    fn export(&self, to: Move) -> BoxFuture<'_, Result<(), Error>> {
        let (waiter, ended) = oneshot::channel();
        let listed = Listed { moves: self, token: to.token };
        self.out.lock().insert(to.token, (self.begun(to), waiter));
        self.bump();
        Box::pin(async move {
            let done = ended.await;
            drop(listed);
            match done {
                Ok(true) => Ok(()),
                _ => {
                    Err(Error::new("placement.not_handed_over", Class::Failed, "the application did not hand it over"))
                }
            }
        })
    }

    fn expect(&self, from: Move) {
        let mut into = self.into.lock();
        if into.len() >= MOST_IN {
            into.pop_first();
        }
        into.insert(from.token, self.begun(from));
        drop(into);
        self.bump();
    }

    fn over(&self, token: u64) {
        self.no_more(token);
    }

    fn restamp(&self, _: Leased, _: u64) {
        // The application restamps when it sees the new number.
    }
}
