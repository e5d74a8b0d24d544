//! The group's order: the model of an engine, adverse and never wrong; and what is true, which is known here alone.
//!
//! What was ordered outlives the process, as an engine's log does on most of its replicas: a death here is a leader's.

use super::fact::Fact;
use super::letter::{Letter, Post};
use crate::kernel::{Effect, HostId};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidings_base::{Mono, Now, Outbox, Seeded};
use tidings_sketch::ReplicaId;
use tidings_sketch::replica::model::Model;
use tidings_sketch::replica::pages::Pages;
use tidings_sketch::replica::{Ordering, Outcome, Replica};

/// Between two blocks while there is something to order, in milliseconds.
const PACE: (u64, u64) = (2, 10);
/// When nothing is to be ordered, and a replica is behind.
const BEHIND: Duration = Duration::from_millis(40);
/// Blocks that a replica is sent at a time.
const AT_A_TIME: usize = 6;

/// What outlives the process.
pub struct Agreed {
    model: Model,
    /// Executes every block at once: what is true.
    reference: Replica<Pages>,
    /// How this life began.
    beginning: Arc<Replica<Pages>>,
}

/// The same, shared by all lives of the process.
#[derive(Clone)]
pub struct SharedAgreed(Arc<Mutex<Agreed>>);

impl SharedAgreed {
    /// Nothing is ordered yet.
    pub fn new(rng: Seeded, replicas: u16, state: Replica<Pages>) -> SharedAgreed {
        let beginning = Arc::new(state.clone());
        SharedAgreed(Arc::new(Mutex::new(Agreed { model: Model::new(rng, replicas), reference: state, beginning })))
    }

    fn lock(&self) -> MutexGuard<'_, Agreed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a replica has executed everything.
    pub fn is_done(&self, replica: usize, height: u64) -> bool {
        let agreed = self.lock();
        agreed.model.executed_by(ReplicaId(replica as u16)) == height && agreed.model.blocks().len() as u64 == height
    }
}

/// The process.
pub struct Order {
    agreed: SharedAgreed,
    replicas: Vec<HostId>,
    post: Post,
    rng: Seeded,
    next: Option<Mono>,
}

impl Order {
    /// Goes on with what was agreed.
    pub fn start(agreed: SharedAgreed, replicas: Vec<HostId>, post: Post, rng: Seeded, now: Now) -> Order {
        Order { agreed, replicas, post, rng, next: Some(now.mono) }
    }

    /// Takes a letter.
    pub fn receive(&mut self, now: Now, from: HostId, letter: Letter, out: &mut Outbox<Effect<Fact>>) {
        let Some(number) = self.replicas.iter().position(|replica| *replica == from) else { return };
        let mut agreed = self.agreed.lock();
        let id = ReplicaId(number as u16);
        match letter {
            Letter::Submits(command) => agreed.model.submit(id, command),
            Letter::Executed(life, height) if life == agreed.reference.incarnation() => {
                agreed.model.executed(id, height);
            }
            Letter::Misses(life) if life < agreed.reference.incarnation() => {
                self.post.send(out, from, Letter::Begins(Arc::clone(&agreed.beginning)));
            }
            _ => return,
        }
        let soon = now.mono + Duration::from_millis(self.rng.between(PACE.0, PACE.1));
        self.next = Some(self.next.map_or(soon, |next| next.min(soon)));
    }

    /// Orders, and sends blocks to whoever has not executed them.
    pub fn wake(&mut self, now: Now, out: &mut Outbox<Effect<Fact>>) {
        if self.next.is_none_or(|next| now.mono < next) {
            return;
        }
        let mut agreed = self.agreed.lock();
        agreed.model.work();
        agreed.catch_up(out);
        let life = agreed.reference.incarnation();
        for (number, host) in self.replicas.iter().enumerate() {
            for _ in 0..AT_A_TIME {
                let Some(block) = agreed.model.next(ReplicaId(number as u16)) else { break };
                self.post.send(out, *host, Letter::Agreed(life, block));
            }
        }
        let height = agreed.model.blocks().len() as u64;
        let behind = (0..self.replicas.len()).any(|number| agreed.model.executed_by(ReplicaId(number as u16)) < height);
        self.next = match (agreed.model.is_idle(), behind) {
            (false, _) => Some(now.mono + Duration::from_millis(self.rng.between(PACE.0, PACE.1))),
            (true, true) => Some(now.mono + BEHIND),
            (true, false) => None,
        };
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        self.next
    }

    /// The group is restored and begins a new life: all go on from the same state, and the order begins anew.
    pub fn begin_again(&mut self, now: Now, out: &mut Outbox<Effect<Fact>>) {
        let mut agreed = self.agreed.lock();
        agreed.catch_up(out);
        let life = agreed.reference.incarnation().next();
        agreed.reference = agreed.reference.clone().reborn(life);
        agreed.beginning = Arc::new(agreed.reference.clone());
        agreed.model.begin_again();
        for host in &self.replicas {
            self.post.send(out, *host, Letter::Begins(Arc::clone(&agreed.beginning)));
        }
        self.next = Some(now.mono);
    }
}

impl Agreed {
    fn catch_up(&mut self, out: &mut Outbox<Effect<Fact>>) {
        while let Some(block) = self.model.blocks().get(self.reference.height() as usize).cloned() {
            for (command, outcome) in self.reference.execute(&block) {
                if let Outcome::Done { result, .. } = outcome {
                    let name = (command.client, command.nonce);
                    out.put(Effect::Fact(Fact::Came { name, request: command.request, result }));
                }
            }
            let (life, digest) = (self.reference.incarnation().0, self.reference.service().digest());
            out.put(Effect::Fact(Fact::Executed { life, height: block.height, digest }));
        }
    }
}
