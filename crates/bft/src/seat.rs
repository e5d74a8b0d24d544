//! One replica beside its order: it takes commands in, executes what was ordered, and answers (rules F and G).
//!
//! ```text
//!   client ─ Question ─▶ Seat ── verified ──▶ Pool ──▶ engine ── blocks, by height ──▶ Seat: execute
//!          ◀─ Answer ────┘ known already? from the cache of replies          ├─▶ ReplicaSketcher: what was read
//!                                                                            └─▶ whoever waits is answered
//! ```
//! A fast read of D-Prophecy is answered with what the [`ReplicaSketcher`] remembers. It is told of a block before anybody is
//! answered, and within the lock under which the block was executed; so no reply of this replica is ahead of its table.

use crate::codec::{Malformed, Reader};
use crate::command::{Name, Signed};
use crate::frame::{Answer, Question, Reply, Status, Word, framed};
use crate::greeting::{Challenge, Hello};
use crate::keys::Purpose;
use crate::mark::Start;
use crate::membership::{Membership, ReplicaSecrets};
use crate::mutant::Mutant;
use crate::pool::{Added, Pool};
use crate::sin::{Past, Sin};
use crate::sink::Sink;
use crate::snapshot::{Attestation, EVERY, Kept, Shelf, Snapshot};
use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidings_sketch::direct::{self, Reads, ReplicaSketcher};
use tidings_sketch::replica::{Block, Command, Outcome, Replica};
use tidings_sketch::sigma::Sigma;

/// What is replicated, and can be carried from one replica to another.
pub trait Durable: Reads + Clone + Send + Sync + Sized + 'static {
    /// Whether an answer may take long: then reads are answered and commands executed aside, by a copy of the service, which must
    /// cost nothing.
    const SLOW: bool = false;

    /// Whether the order alone decides what it answers. If not, honest replicas may answer differently: then a snapshot holds that a
    /// command was answered, and no answer, and who asks again after it is told that its nonce is too old.
    const ORDERED: bool = true;

    /// What these give, of a service whose commands change nothing, and which takes long for each of them: had at once. None of
    /// any other service, whose commands are executed one after the other.
    fn together(&self, _: &[Bytes]) -> Vec<Bytes> {
        Vec::new()
    }

    /// Writes the state: the same bytes wherever it is the same.
    fn save(&self, out: &mut BytesMut);

    /// This service, as it was before the first command, with a state that was written.
    fn load(&self, reader: &mut Reader) -> Result<Self, Malformed>;
}

/// The most requests that are remembered for fast reads: some 13 MB.
const MOST_REMEMBERED: usize = 1 << 16;

/// What a replica lacks whose life begins with a state.
const NO_BEGINNING: &str = "the state with which this life of the group begins is not here: put the file `snapshot` of another replica into the folder";

/// What a result says before the service's own bytes.
const DONE: u8 = 0;
const TOO_OLD: u8 = 1;
const BEHIND: u8 = 2;

/// What the group says of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The service's result.
    Done(Bytes),
    /// The nonce is below the client's window, or was answered before a snapshot that holds no answers, or with so much that it was
    /// forgotten for later ones: what came of it is not known any more.
    TooOld,
    /// The replica has begun again, and is not where it was: the read must be ordered.
    Behind,
}

impl Verdict {
    fn encoded(&self) -> Bytes {
        match self {
            Verdict::Done(result) => Bytes::from([&[DONE], result.as_ref()].concat()),
            Verdict::TooOld => Bytes::from_static(&[TOO_OLD]),
            Verdict::Behind => Bytes::from_static(&[BEHIND]),
        }
    }

    /// Reads what replicas agreed on.
    pub fn read(mut bytes: Bytes) -> Result<Verdict, Malformed> {
        match bytes.first() {
            Some(&DONE) => Ok(Verdict::Done(bytes.split_off(1))),
            Some(&TOO_OLD) => Ok(Verdict::TooOld),
            Some(&BEHIND) => Ok(Verdict::Behind),
            _ => Err(Malformed::Unknown),
        }
    }
}

struct Waiter {
    signed: Signed,
    whole: bool,
    sink: Sink,
}

struct State<S> {
    /// Shared with whoever writes a snapshot of it; nothing is executed meanwhile.
    replica: Arc<Replica<S>>,
    /// What it says to fast reads.
    sketcher: ReplicaSketcher,
    /// At most as many as the pool holds: one of each command.
    waiting: BTreeMap<Name, Waiter>,
    kept: Option<(Snapshot, Attestation)>,
}

impl<S: Durable> State<S> {
    /// Whether the snapshot that was due last is kept.
    fn is_kept(&self) -> bool {
        let kept = self.kept.as_ref().map_or(0, |(snapshot, _)| snapshot.height);
        let height = self.replica.height();
        height - height % EVERY <= kept
    }
}

/// The height up to which nothing is remembered for fast reads (decision 013): the highest that a replica which starts may have
/// executed, and spoken of, before it stopped. What it executes again up to there would be news to its table, and is none.
///
/// Of its execution the disk holds only snapshots. One is due after each block whose height is a multiple of [`EVERY`], and
/// without it nothing further is executed; so the replica cannot have gone beyond the next block at which one is due. The same
/// holds for a state that was taken over, from where execution begins: who lost what it had counts towards f besides (rule G).
/// Only who starts for the first time, as its mark says, has said nothing at all.
fn floor(start: Start, snapshot: Option<u64>) -> u64 {
    match (start, snapshot) {
        (Start::Born, None) => 0,
        (_, snapshot) => snapshot.unwrap_or(0).saturating_add(EVERY),
    }
}

/// What the new commands of a block give, by their numbers, as far as they may be executed together.
fn had<S: Durable>(replica: &Replica<S>, block: &Block) -> BTreeMap<u32, Bytes> {
    let new = |command: &Command| replica.replied(command.client, command.nonce).is_none();
    let new = (0..).zip(&block.commands).filter(|(_, command)| new(command));
    let (numbers, requests): (Vec<u32>, Vec<Bytes>) =
        new.map(|(number, command)| (number, command.request.clone())).unzip();
    numbers.into_iter().zip(replica.service().together(&requests)).collect()
}

/// One replica beside its order.
pub struct Seat<S> {
    /// The group it is of.
    pub membership: Arc<Membership>,
    /// Commands that wait for the order.
    pub pool: Arc<Pool>,
    secrets: ReplicaSecrets,
    votes: bool,
    /// Up to here it may have executed before, and does not say yet what it holds.
    floor: u64,
    shelf: Shelf,
    /// Held by whoever executes.
    turn: Mutex<()>,
    state: Mutex<State<S>>,
    sin: Option<Sin>,
    mutant: Option<Mutant>,
    /// What it might have said, should that be its sin.
    past: Mutex<Past>,
    /// How many commands it has executed since it started: a sleeper counts them.
    done: AtomicU64,
}

impl<S: Durable> Seat<S> {
    /// A replica that goes on from its latest snapshot, or begins with an empty service. How it starts is what its
    /// [mark](crate::mark) says: whether it votes, and from where on it remembers what is read.
    pub fn open(
        membership: Arc<Membership>,
        secrets: ReplicaSecrets,
        start: Start,
        shelf: Shelf,
        empty: S,
        sin: Option<Sin>,
    ) -> io::Result<Seat<S>> {
        let Kept { first, latest: kept } = shelf.kept(&membership)?;
        let replica = match (&kept, &first) {
            (Some(snapshot), _) => snapshot.replica(membership.life(), &empty).map_err(io::Error::other)?,
            (None, Some(first)) => first.reborn(membership.life(), &empty).map_err(io::Error::other)?,
            (None, None) if membership.begins().is_some() => return Err(io::Error::other(NO_BEGINNING)),
            (None, None) => Replica::new(membership.life(), membership.clients(), empty),
        };
        let me = membership.replica(&secrets.secret.public());
        let options = direct::replica::Options {
            group: membership.number(),
            id: me.ok_or_else(|| io::Error::other("the secret is of no replica of this group"))?,
            entries: MOST_REMEMBERED,
            mutant: None,
        };
        let floor = floor(start, kept.as_ref().map(|snapshot| snapshot.height));
        let sketcher = ReplicaSketcher::new(options, membership.life(), floor);
        let attest = |snapshot| (Attestation::new(&membership, &secrets.secret, &snapshot), snapshot);
        let kept = kept.map(attest).map(|(word, snapshot)| (snapshot, word));
        let pool = Arc::new(Pool::default());
        pool.executed(replica.height(), []);
        let (turn, replica) = (Mutex::default(), Arc::new(replica));
        let state = Mutex::new(State { replica, sketcher, waiting: BTreeMap::new(), kept });
        let (votes, past, done) = (start.votes(), Mutex::default(), AtomicU64::new(0));
        Ok(Seat { membership, pool, secrets, votes, floor, shelf, turn, state, sin, mutant: None, past, done })
    }

    /// The same without a rule, for tests.
    #[doc(hidden)]
    pub fn without(self, mutant: Option<Mutant>) -> Seat<S> {
        Seat { mutant, ..self }
    }

    /// The height up to which it has executed.
    pub fn height(&self) -> u64 {
        self.state.lock().replica.height()
    }

    /// The service, as it stands.
    pub fn service(&self) -> S {
        self.state.lock().replica.service().clone()
    }

    /// Its latest snapshot, and its word for it.
    pub fn snapshot(&self) -> Option<(Snapshot, Attestation)> {
        self.state.lock().kept.clone()
    }

    /// Whether a connection is the client's that it says.
    pub fn knows(&self, hello: &Hello, challenge: &Challenge) -> bool {
        let key = self.secrets.macs.get(&hello.client).filter(|_| self.membership.client(hello.client).is_some());
        key.is_some_and(|key| hello.answers(challenge, &self.membership, key))
    }

    /// A connection of a client has ended: nobody waits there any more. What it asked for is ordered all the same.
    pub fn left(&self, client: u64, sink: &Sink) {
        let mut state = self.state.lock();
        // At most as many as the pool takes of one client.
        let theirs = state.waiting.range((client, 0)..=(client, u64::MAX));
        let gone: Vec<Name> =
            theirs.filter(|(_, waiter)| waiter.sink.number() == sink.number()).map(|(name, _)| *name).collect();
        gone.iter().for_each(|name| drop(state.waiting.remove(name)));
    }

    /// How many commands somebody waits for.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Takes what a client says. What is not signed by a registered client has no answer.
    pub fn ask(&self, question: Question, sink: &Sink) {
        match question {
            Question::Ask { purpose, whole, signed } if self.is_signed(&signed, purpose) => match purpose {
                Purpose::Read => self.read(&signed, whole, sink),
                Purpose::Order => self.order(signed, whole, sink),
                Purpose::Snapshot | Purpose::Fast => {}
            },
            Question::Fast { execute, signed } if signed.verify(&self.membership, Purpose::Fast) => {
                self.fast(&signed, execute, sink);
            }
            Question::Ask { signed, .. } | Question::Fast { signed, .. } => {
                tracing::debug!(client = signed.command.client, "a command is not signed by a registered client");
            }
            Question::Status { client, nonce } => self.status(client, nonce, sink),
        }
    }

    /// A command that another replica passed on. Whether its client may have signed it: of one that was executed nobody looks.
    pub fn passed_on(&self, signed: Signed) -> bool {
        if self.state.lock().replica.replied(signed.command.client, signed.command.nonce).is_some() {
            return true;
        }
        let is_signed = self.is_signed(&signed, Purpose::Order);
        if is_signed {
            self.pool.add(signed);
        }
        is_signed
    }

    /// Whether its client signed it. What the pool knows was verified when it came there: whoever is busy hears of a command from its
    /// client, once more when that has waited, in a batch, and from all who pass it on.
    fn is_signed(&self, signed: &Signed, purpose: Purpose) -> bool {
        let known = purpose == Purpose::Order && self.pool.knows(signed);
        known || signed.verify(&self.membership, purpose) || self.mutant == Some(Mutant::SignatureIgnored)
    }

    /// Executes a block and answers who waits. One at a time. Blocks that were executed before, or do not follow, are ignored. Nothing is
    /// executed after a snapshot that could not be kept, nor before it is; whoever asks meanwhile is answered.
    pub fn execute(&self, block: &Block) -> io::Result<()> {
        let _turn = self.turn.lock();
        let mut guard = self.state.lock();
        if !guard.is_kept() {
            return Err(io::Error::other("the snapshot that was due is not kept"));
        }
        if block.height != guard.replica.height() + 1 {
            return Ok(());
        }
        let outcomes = match S::SLOW && !block.commands.is_empty() {
            true => {
                // By a copy, so that nobody waits for it. Nothing else changes what is executed, and nothing else executes.
                let mut copy = Replica::clone(&guard.replica);
                let outcomes = MutexGuard::unlocked(&mut guard, || {
                    let had = had(&copy, block);
                    copy.execute_with(block, had)
                });
                guard.replica = Arc::new(copy);
                outcomes
            }
            false => Arc::make_mut(&mut guard.replica).execute(block),
        };
        self.done.fetch_add(outcomes.len() as u64, Relaxed);
        let state = &mut *guard;
        state.sketcher.executed(state.replica.service(), block.height, &outcomes);
        for (command, outcome) in &outcomes {
            let waiter = state.waiting.remove(&(command.client, command.nonce));
            // A command with a nonce that was used for another one has no answer of its own.
            if let Some(waiter) = waiter.filter(|waiter| waiter.signed.command == *command) {
                self.answer(&waiter.signed, waiter.whole, outcome.clone(), &waiter.sink);
            }
        }
        self.pool.executed(block.height, outcomes.iter().map(|(command, _)| (command.client, command.nonce)));
        if block.height.is_multiple_of(EVERY) {
            let replica = Arc::clone(&state.replica);
            drop(guard);
            let snapshot = Snapshot::of(&replica);
            self.shelf.keep(&snapshot)?;
            let word = Attestation::new(&self.membership, &self.secrets.secret, &snapshot);
            // Before the next block: what is not shared is not copied.
            drop(replica);
            self.state.lock().kept = Some((snapshot, word));
        }
        Ok(())
    }

    fn order(&self, signed: Signed, whole: bool, sink: &Sink) {
        let mut state = self.state.lock();
        let name = signed.name();
        if let Some(outcome) = state.replica.replied(name.0, name.1) {
            drop(state);
            return self.answer(&signed, whole, outcome, sink);
        }
        // Under the lock of the state: a block that holds it is executed before or after both.
        if self.pool.add(signed.clone()) == Added::Full {
            return;
        }
        let before = state.waiting.remove(&name);
        let whole = whole || before.as_ref().is_some_and(|waiter| waiter.whole);
        // What an older connection still held does not take the reply from a newer one.
        let sinks = before.map(|waiter| waiter.sink).into_iter().chain([sink.clone()]);
        if let Some(sink) = sinks.filter(|sink| !sink.is_gone()).max_by_key(Sink::number) {
            state.waiting.insert(name, Waiter { signed, whole, sink });
        }
    }

    /// What it holds. A vote on that is older than writes that have ended, if it counts replicas that began again and are not
    /// where they were; whoever asks one alone knows what the answer must be.
    fn read(&self, signed: &Signed, whole: bool, sink: &Sink) {
        let request = &signed.command.request;
        if !signed.is_alone() && self.height() < self.floor {
            return self.reply(signed, whole, None, Verdict::Behind, sink);
        }
        let answer = |service: &S| service.is_read(request).then(|| service.read(request));
        let result = match S::SLOW {
            true => answer(&self.service()),
            false => answer(self.state.lock().replica.service()),
        };
        if let Some(result) = result {
            self.reply(signed, whole, None, Verdict::Done(result), sink);
        }
    }

    /// What is remembered of a read, and if it is asked to execute, the answer as things stand (rule H).
    fn fast(&self, signed: &Signed, execute: bool, sink: &Sink) {
        let Some(mac) = self.secrets.macs.get(&signed.command.client) else { return };
        let sin = self.sin();
        let executes = execute || sin == Some(Sin::Stale);
        let question = direct::Question {
            client: signed.command.client,
            nonce: signed.command.nonce,
            execute: executes && !S::SLOW,
            request: signed.command.request.clone(),
        };
        let said = {
            let state = &mut *self.state.lock();
            state.sketcher.word(state.replica.service(), &question)
        };
        let Some(direct::Word { group, client, nonce, remembered, mut response, .. }) = said else { return };
        if executes && S::SLOW {
            response = Some(self.service().read(&question.request));
        }
        let word = Word { group, client, nonce, remembered, response };
        let word = match sin {
            Some(sin) => sin.word(self.membership.life(), &question.request, execute, word, &mut self.past.lock()),
            None => Some(word),
        };
        if let Some(word) = word {
            sink.put(framed(&Answer::Word(word).encoded(mac)));
        }
    }

    /// What it does wrong now.
    fn sin(&self) -> Option<Sin> {
        self.sin.and_then(|sin| sin.after(self.done.load(Relaxed)))
    }

    fn answer(&self, signed: &Signed, whole: bool, outcome: Outcome, sink: &Sink) {
        // Where a command was refused is no part of its answer: replicas that look it up do not know it.
        let nowhere = Sigma::new(self.membership.life(), 0, 0);
        match outcome {
            Outcome::Done { sigma, result } => self.reply(signed, whole, Some(sigma), Verdict::Done(result), sink),
            Outcome::TooOld => self.reply(signed, whole, nowhere, Verdict::TooOld, sink),
            Outcome::Unregistered => {}
        }
    }

    fn reply(&self, signed: &Signed, whole: bool, sigma: Option<Sigma>, verdict: Verdict, sink: &Sink) {
        if sink.is_gone() {
            return;
        }
        let Some(mac) = self.secrets.macs.get(&signed.command.client) else { return };
        let result = match self.sin() {
            Some(Sin::Mute) => return,
            Some(Sin::Forger) => Verdict::Done(Bytes::from_static(b"forged")).encoded(),
            Some(Sin::Stale) => self.past.lock().before(&signed.command.request, verdict).encoded(),
            Some(Sin::Equivocator) => {
                let own = format!("for client {} and nonce {}", signed.command.client, signed.command.nonce);
                Verdict::Done(own.into()).encoded()
            }
            Some(Sin::Boaster | Sin::Sleeper | Sin::MuteSleeper) | None => verdict.encoded(),
        };
        let reply = Reply {
            group: self.membership.number(),
            client: signed.command.client,
            nonce: signed.command.nonce,
            sigma,
            result: signed.sketch(&result),
            whole: whole.then_some(result),
        };
        sink.put(framed(&Answer::Reply(reply).encoded(mac)));
    }

    fn status(&self, client: u64, nonce: u64, sink: &Sink) {
        let Some(mac) = self.secrets.macs.get(&client) else { return };
        let state = self.state.lock();
        let more = if self.sin == Some(Sin::Boaster) { EVERY } else { 0 };
        let status = Status {
            group: self.membership.number(),
            nonce,
            height: state.replica.height() + more,
            snapshot: state.kept.as_ref().map_or(0, |(snapshot, _)| snapshot.height),
            hash: state.kept.as_ref().map_or([0; 32], |(snapshot, _)| snapshot.hash),
            closed: self.pool.is_closed(),
            votes: self.votes,
            waiting: self.pool.len() as u64,
        };
        sink.put(framed(&Answer::Status(status).encoded(mac)));
    }
}

#[cfg(test)]
mod tests;
