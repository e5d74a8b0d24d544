//! What a replica does with an agreed order (rule G), whatever engine makes it.
//!
//! ```text
//!   commands ─▶ Ordering ─ blocks, at least once, by height ─▶ Replica { window of each client } ─▶ Service
//!                                                                 └─▶ replies with σ = (life, height, index)
//! ```
//! De-duplication is part of the replicated state: every replica decides alike which command is new. A command may be ordered
//! twice (its client sent it to two proposers); it is executed once, and its second reply is the first one again.

pub mod liar;
pub mod model;
pub mod pages;
pub mod suite;

use crate::ReplicaId;
use crate::mutant::Mutant;
use crate::sigma::Sigma;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidings_base::Incarnation;

/// How many of a client's latest commands are known with their replies. More than a client has under way.
pub const WINDOW: usize = 1_024;
/// The most bytes of a client's replies that are known: 16 of the longest ones. Of older commands it is known that they were answered.
pub const MOST_BYTES_OF_A_CLIENT: usize = 16 << 20;
/// The same of all clients together: a snapshot holds them. Whoever has most gives up first.
pub const MOST_BYTES: usize = 256 << 20;

/// What a client asks of all replicas. Its signature was verified where it came in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Command {
    /// Who asks: a registered client.
    pub client: u64,
    /// What names the command among those of its client.
    pub nonce: u64,
    /// What is asked.
    pub request: Bytes,
}

/// Commands that were agreed on together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its number, from one, without gaps.
    pub height: u64,
    /// In the order of execution.
    pub commands: Vec<Command>,
}

/// Why a replica does not vote for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBlock {
    /// A command is not signed by its client.
    #[error("a command of the block is not signed by its client")]
    Unsigned,
    /// A command is in it twice.
    #[error("a command is in the block twice")]
    Repeated,
    /// It is longer than blocks may be.
    #[error("the block or one of its commands is too long")]
    Oversized,
}

impl Block {
    /// Whether a replica may vote for it: signed commands, each once, none too long (rule G).
    pub fn check(&self, longest: usize, signed: impl Fn(&Command) -> bool) -> Result<(), BadBlock> {
        let mut names = BTreeSet::new();
        if self.commands.iter().map(|command| command.request.len()).sum::<usize>() > longest {
            return Err(BadBlock::Oversized);
        }
        if !self.commands.iter().all(|command| names.insert((command.client, command.nonce))) {
            return Err(BadBlock::Repeated);
        }
        if self.commands.iter().all(signed) { Ok(()) } else { Err(BadBlock::Unsigned) }
    }
}

/// Whatever makes one order of commands for all replicas: an engine, or a model of one.
pub trait Ordering {
    /// Hands a command in at one replica. It may be lost, and it may be ordered more than once: clients ask again.
    fn submit(&mut self, at: ReplicaId, command: Command);

    /// The next block for a replica, if there is one yet: by height, from the one after what it has executed. A block may
    /// come again until [`executed`](Ordering::executed) is told of it, and sometimes after.
    fn next(&mut self, at: ReplicaId) -> Option<Block>;

    /// The replica has executed a block and will find it executed after a crash.
    fn executed(&mut self, at: ReplicaId, height: u64);

    /// The replica begins again from what it has executed.
    fn restarted(&mut self, at: ReplicaId);

    /// Lets the engine work for a while.
    fn work(&mut self);
}

/// What is replicated: deterministic, and nothing but its state and the request decide a result.
pub trait Service {
    /// Executes a request. No result is empty: an empty one stands for a reply that is known no more.
    fn execute(&mut self, sigma: Sigma, request: &Bytes) -> Bytes;
}

/// What a command came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Executed, now or before.
    Done {
        /// Where it stands in the order: where it was executed first.
        sigma: Sigma,
        /// Its result.
        result: Bytes,
    },
    /// Its nonce is below the client's window, or its reply was too long to be known for ever: it may have been executed, and nobody
    /// knows what came of it.
    TooOld,
    /// Nobody knows the client.
    Unregistered,
}

/// What is known of one client's latest commands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// By nonce: where the command was executed, and its result; an empty one was forgotten.
    pub replies: BTreeMap<u64, (Sigma, Bytes)>,
    /// Nonces at or below are too old.
    pub floor: u64,
    /// Of all results.
    bytes: usize,
}

impl Window {
    /// One that holds this.
    pub fn new(floor: u64, replies: BTreeMap<u64, (Sigma, Bytes)>) -> Window {
        let bytes = replies.values().map(|(_, result)| result.len()).sum();
        Window { replies, floor, bytes }
    }

    fn replied(&mut self, nonce: u64, sigma: Sigma, result: Bytes) {
        self.bytes += result.len();
        self.replies.insert(nonce, (sigma, result));
        if self.replies.len() > WINDOW
            && let Some((oldest, (_, result))) = self.replies.pop_first()
        {
            self.floor = oldest;
            self.bytes -= result.len();
        }
        while self.bytes > MOST_BYTES_OF_A_CLIENT {
            self.forget_one();
        }
    }

    /// Keeps of its oldest result only that there was one.
    fn forget_one(&mut self) {
        if let Some((_, result)) = self.replies.values_mut().find(|(_, result)| !result.is_empty()) {
            self.bytes -= std::mem::take(result).len();
        }
    }
}

/// The replicated state of one replica: the service, and what each client was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica<S> {
    incarnation: Incarnation,
    height: u64,
    /// Shared with copies, which change a few of them.
    clients: BTreeMap<u64, Arc<Window>>,
    /// Of all their results.
    bytes: usize,
    service: S,
    mutant: Option<Mutant>,
}

impl<S: Service> Replica<S> {
    /// A replica that has executed nothing, with the clients that are registered.
    pub fn new(incarnation: Incarnation, clients: impl IntoIterator<Item = u64>, service: S) -> Replica<S> {
        let clients = clients.into_iter().map(|client| (client, Arc::default())).collect();
        Replica { incarnation, height: 0, clients, bytes: 0, service, mutant: None }
    }

    /// A replica as a snapshot says: its state at a height, replies to clients included (rule F).
    pub fn restored(incarnation: Incarnation, height: u64, clients: BTreeMap<u64, Window>, service: S) -> Replica<S> {
        let bytes = clients.values().map(|window| window.bytes).sum();
        let clients = clients.into_iter().map(|(client, window)| (client, Arc::new(window))).collect();
        Replica { incarnation, height, clients, bytes, service, mutant: None }
    }

    /// The same without a rule, for tests.
    #[doc(hidden)]
    pub fn without(self, mutant: Option<Mutant>) -> Replica<S> {
        Replica { mutant, ..self }
    }

    /// The same state in a new life of the group: its order begins anew.
    pub fn reborn(self, incarnation: Incarnation) -> Replica<S> {
        Replica { incarnation, height: 0, ..self }
    }

    /// The height up to which blocks are executed.
    pub fn height(&self) -> u64 {
        self.height
    }

    /// The life of the group that it executes for.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// What each client was answered: part of what a snapshot must hold.
    pub fn windows(&self) -> impl ExactSizeIterator<Item = (u64, &Window)> {
        self.clients.iter().map(|(client, window)| (*client, window.as_ref()))
    }

    /// What is replicated.
    pub fn service(&self) -> &S {
        &self.service
    }

    /// Executes a block, and says what each of its commands came to. One that was executed before is ignored, and so is
    /// one that does not follow the last: engines deliver at least once, not exactly once.
    pub fn execute(&mut self, block: &Block) -> Vec<(Command, Outcome)> {
        self.execute_with(block, BTreeMap::new())
    }

    /// The same with results that were had before, by the numbers of their commands: where commands change nothing.
    pub fn execute_with(&mut self, block: &Block, mut had: BTreeMap<u32, Bytes>) -> Vec<(Command, Outcome)> {
        if block.height != self.height + 1 {
            return Vec::new();
        }
        self.height = block.height;
        let numbered = block.commands.iter().zip(0u32..);
        numbered.map(|(command, index)| (command.clone(), self.command(command, index, had.remove(&index)))).collect()
    }

    /// What a command came to, if it is known: retransmissions are answered from here, also by a replica that caught up by
    /// state transfer (rule F).
    pub fn replied(&self, client: u64, nonce: u64) -> Option<Outcome> {
        let Some(window) = self.clients.get(&client) else { return Some(Outcome::Unregistered) };
        match window.replies.get(&nonce) {
            Some((_, forgotten)) if forgotten.is_empty() => Some(Outcome::TooOld),
            Some((sigma, result)) => Some(Outcome::Done { sigma: *sigma, result: result.clone() }),
            None => (nonce <= window.floor).then_some(Outcome::TooOld),
        }
    }

    fn command(&mut self, command: &Command, index: u32, had: Option<Bytes>) -> Outcome {
        let known = self.replied(command.client, command.nonce);
        if let Some(known) = known.filter(|_| self.mutant != Some(Mutant::ExecutedAgain)) {
            return known;
        }
        let Some(sigma) = Sigma::new(self.incarnation, self.height, index) else { return Outcome::TooOld };
        let result = had.unwrap_or_else(|| self.service.execute(sigma, &command.request));
        let Some(window) = self.clients.get_mut(&command.client) else { return Outcome::Unregistered };
        let window = Arc::make_mut(window);
        let before = window.bytes;
        window.replied(command.nonce, sigma, result.clone());
        self.bytes = self.bytes - before + window.bytes;
        while self.bytes > MOST_BYTES {
            self.forget_one();
        }
        Outcome::Done { sigma, result }
    }

    /// The client with most bytes of replies knows one less. Every replica decides alike which one.
    fn forget_one(&mut self) {
        let Some(most) = self.clients.values_mut().max_by_key(|window| window.bytes) else { return };
        let before = most.bytes;
        let most = Arc::make_mut(most);
        most.forget_one();
        self.bytes -= before - most.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says how often it was asked.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    struct Counter(u64);

    impl Service for Counter {
        fn execute(&mut self, _: Sigma, _: &Bytes) -> Bytes {
            self.0 += 1;
            Bytes::from(self.0.to_string())
        }
    }

    fn command(client: u64, nonce: u64) -> Command {
        Command { client, nonce, request: Bytes::from_static(b"count") }
    }

    fn block(height: u64, nonces: impl IntoIterator<Item = u64>) -> Block {
        Block { height, commands: nonces.into_iter().map(|nonce| command(1, nonce)).collect() }
    }

    #[test]
    fn a_command_is_executed_once_and_answered_alike() {
        let mut replica = Replica::new(Incarnation(1), [1], Counter::default());
        let first = replica.execute(&block(1, [5, 6]));
        let again = replica.execute(&block(2, [6, 5, 7]));
        assert_eq!((&again[0].1, &again[1].1), (&first[1].1, &first[0].1), "with the σ of its execution");
        assert_eq!(replica.service(), &Counter(3));
        assert_eq!(replica.replied(1, 6), Some(first[1].1.clone()));
        assert_eq!(replica.execute(&Block { height: 3, commands: vec![command(2, 1)] })[0].1, Outcome::Unregistered);
        assert_eq!(replica.service(), &Counter(3));
    }

    #[test]
    fn blocks_that_come_again_or_too_early_change_nothing() {
        let mut replica = Replica::new(Incarnation(1), [1], Counter::default());
        replica.execute(&block(1, [1]));
        let state = replica.clone();
        assert!(replica.execute(&block(1, [2])).is_empty() && replica.execute(&block(3, [3])).is_empty());
        assert_eq!(replica, state);
    }

    #[test]
    fn a_nonce_below_the_window_is_too_old() {
        let mut replica = Replica::new(Incarnation(1), [1], Counter::default());
        replica.execute(&block(1, 1..=WINDOW as u64 + 2));
        let state = replica.service().clone();
        assert_eq!(replica.execute(&block(2, [2]))[0].1, Outcome::TooOld);
        assert!(matches!(replica.execute(&block(3, [3]))[0].1, Outcome::Done { .. }));
        assert_eq!(replica.service(), &state);
    }

    /// Answers with as many bytes as it is asked for.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    struct Long;

    impl Service for Long {
        fn execute(&mut self, _: Sigma, request: &Bytes) -> Bytes {
            request.clone()
        }
    }

    fn known(replica: &Replica<Long>, client: u64) -> Vec<u64> {
        let (_, window) = replica.windows().nth(client as usize).unwrap();
        let nonces = window.replies.keys().copied();
        nonces.filter(|nonce| matches!(replica.replied(client, *nonce), Some(Outcome::Done { .. }))).collect()
    }

    #[test]
    fn of_replies_so_many_bytes_are_known_and_of_older_ones_that_they_were_given() {
        let request = Bytes::from(vec![1; 1 << 20]);
        let asked = |client, nonce| Command { client, nonce, request: request.clone() };
        let commands = |client| (1..=20).map(move |nonce| (client, nonce));
        let mut replica = Replica::new(Incarnation(1), 0..40, Long);
        for (height, client) in (1..).zip(0..15) {
            let commands = commands(client).map(|(client, nonce)| asked(client, nonce)).collect();
            assert!(
                replica.execute(&Block { height, commands }).iter().all(|(_, o)| matches!(o, Outcome::Done { .. }))
            );
            assert_eq!(known(&replica, client), (5..=20).collect::<Vec<_>>(), "16 MiB");
        }
        let again = replica.execute(&Block { height: 16, commands: vec![asked(3, 4), asked(3, 5)] });
        assert!(
            again[0].1 == Outcome::TooOld && matches!(again[1].1, Outcome::Done { .. }),
            "neither is executed again"
        );
        // What one asks for that has little is at the cost of those who have most.
        let few = (30..40).flat_map(|client| (1..=4).map(move |nonce| asked(client, nonce))).collect();
        replica.execute(&Block { height: 17, commands: few });
        assert!((30..40).all(|client| known(&replica, client) == [1, 2, 3, 4]));
        let all: Vec<usize> = (0..40).map(|client| known(&replica, client).len()).collect();
        assert_eq!((all.iter().sum::<usize>(), all.iter().take(15).min()), (256, Some(&14)));
        // A state that was taken over goes on alike.
        let windows = |replica: &Replica<Long>| replica.windows().map(|(id, window)| (id, window.clone())).collect();
        let taken = |of: &BTreeMap<u64, Window>| {
            let window = |(id, window): (&u64, &Window)| (*id, Window::new(window.floor, window.replies.clone()));
            of.iter().map(window).collect::<BTreeMap<u64, Window>>()
        };
        let mut other = Replica::restored(Incarnation(1), 17, taken(&windows(&replica)), Long);
        assert_eq!(other, replica);
        let last = Block { height: 18, commands: vec![asked(20, 1), asked(3, 21)] };
        assert_eq!((other.execute(&last), &other), (replica.execute(&last), &replica));
    }

    #[test]
    fn bad_blocks_are_not_voted_for() {
        let signed = |command: &Command| command.nonce != 9;
        assert_eq!(block(1, [1, 2]).check(100, signed), Ok(()));
        assert_eq!(block(1, [1, 1]).check(100, signed), Err(BadBlock::Repeated));
        assert_eq!(block(1, [1, 9]).check(100, signed), Err(BadBlock::Unsigned));
        assert_eq!(block(1, [1, 2]).check(9, signed), Err(BadBlock::Oversized));
    }
}
