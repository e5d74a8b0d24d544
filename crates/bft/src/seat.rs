//! One replica beside its order: it takes commands in, executes what was ordered, and answers (rules F and G).
//!
//! ```text
//!   client ─ Question ─▶ Seat ── verified ──▶ Pool ──▶ engine ── blocks, by height ──▶ Seat: execute
//!          ◀─ Answer ────┘ known already? from the cache of replies          └─▶ whoever waits is answered
//! ```

use crate::codec::{Malformed, Reader};
use crate::command::{Name, Signed};
use crate::frame::{Answer, Question, Reply, Status, framed};
use crate::keys::Purpose;
use crate::membership::{Membership, ReplicaSecrets};
use crate::pool::{Added, Pool};
use crate::sin::Sin;
use crate::snapshot::{Attestation, EVERY, Shelf, Snapshot};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use tidings_sketch::replica::{Block, Outcome, Replica, Service};
use tidings_sketch::sigma::Sigma;
use tokio::sync::mpsc;

/// What is replicated, and can be carried from one replica to another.
pub trait Durable: Service + Clone + Send + Sync + Sized + 'static {
    /// Whether an answer may take long: then reads are answered aside, by a copy of the service, which must cost nothing.
    const SLOW: bool = false;

    /// Answers a request that changes nothing, as things stand; `None` if it may change something.
    fn read(&self, request: &Bytes) -> Option<Bytes>;

    /// Writes the state: the same bytes wherever it is the same.
    fn save(&self, out: &mut BytesMut);

    /// This service, as it was before the first command, with a state that was written.
    fn load(&self, reader: &mut Reader) -> Result<Self, Malformed>;
}

/// Where answers for one connection go. If it is full, the client asks again.
pub type Sink = mpsc::Sender<Bytes>;

/// What a result says before the service's own bytes.
const DONE: u8 = 0;
const TOO_OLD: u8 = 1;

/// What the group says of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The service's result.
    Done(Bytes),
    /// The nonce is below the client's window: whether it was executed is not known any more.
    TooOld,
}

impl Verdict {
    fn encoded(&self) -> Bytes {
        match self {
            Verdict::Done(result) => Bytes::from([&[DONE], result.as_ref()].concat()),
            Verdict::TooOld => Bytes::from_static(&[TOO_OLD]),
        }
    }

    /// Reads what replicas agreed on.
    pub fn read(mut bytes: Bytes) -> Result<Verdict, Malformed> {
        match bytes.first() {
            Some(&DONE) => Ok(Verdict::Done(bytes.split_off(1))),
            Some(&TOO_OLD) => Ok(Verdict::TooOld),
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
    replica: Replica<S>,
    /// At most as many as the pool holds: one of each command.
    waiting: BTreeMap<Name, Waiter>,
    kept: Option<(Snapshot, Attestation)>,
}

/// One replica beside its order.
pub struct Seat<S> {
    /// The group it is of.
    pub membership: Arc<Membership>,
    /// Commands that wait for the order.
    pub pool: Arc<Pool>,
    secrets: ReplicaSecrets,
    votes: bool,
    shelf: Shelf,
    state: Mutex<State<S>>,
    sin: Option<Sin>,
    /// What it answered first, should that be its sin.
    first: Mutex<Option<Verdict>>,
}

impl<S: Durable> Seat<S> {
    /// A replica that goes on from its latest snapshot, or begins with an empty service.
    pub fn open(
        membership: Arc<Membership>,
        secrets: ReplicaSecrets,
        votes: bool,
        shelf: Shelf,
        empty: S,
        sin: Option<Sin>,
    ) -> io::Result<Seat<S>> {
        let kept = shelf.latest()?;
        let replica = match &kept {
            Some(snapshot) => snapshot.replica(membership.life(), &empty).map_err(io::Error::other)?,
            None => Replica::new(membership.life(), membership.clients(), empty),
        };
        let attest = |snapshot| (Attestation::new(&membership, &secrets.secret, &snapshot), snapshot);
        let kept = kept.map(attest).map(|(word, snapshot)| (snapshot, word));
        let pool = Arc::new(Pool::default());
        pool.executed(replica.height(), []);
        let state = Mutex::new(State { replica, waiting: BTreeMap::new(), kept });
        Ok(Seat { membership, pool, secrets, votes, shelf, state, sin, first: Mutex::default() })
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

    /// Takes what a client says. What is not signed by a registered client has no answer.
    pub fn ask(&self, question: Question, sink: &Sink) {
        match question {
            Question::Ask { purpose, whole, signed } if signed.verify(&self.membership, purpose) => match purpose {
                Purpose::Read => self.read(&signed, whole, sink),
                _ => self.order(signed, whole, sink),
            },
            Question::Ask { signed, .. } => {
                tracing::debug!(client = signed.command.client, "a command is not signed by a registered client");
            }
            Question::Status { client, nonce } => self.status(client, nonce, sink),
        }
    }

    /// A command that another replica passed on.
    pub fn passed_on(&self, signed: Signed) {
        if self.state.lock().replica.replied(signed.command.client, signed.command.nonce).is_none()
            && signed.verify(&self.membership, Purpose::Order)
        {
            self.pool.add(signed);
        }
    }

    /// Executes a block and answers who waits. Blocks that were executed before, or do not follow, are ignored.
    pub fn execute(&self, block: &Block) -> io::Result<()> {
        let mut state = self.state.lock();
        let outcomes = state.replica.execute(block);
        if state.replica.height() != block.height {
            return Ok(());
        }
        for (command, outcome) in &outcomes {
            let waiter = state.waiting.remove(&(command.client, command.nonce));
            // A command with a nonce that was used for another one has no answer of its own.
            if let Some(waiter) = waiter.filter(|waiter| waiter.signed.command == *command) {
                self.answer(&waiter.signed, waiter.whole, outcome.clone(), &waiter.sink);
            }
        }
        self.pool.executed(block.height, outcomes.iter().map(|(command, _)| (command.client, command.nonce)));
        if block.height.is_multiple_of(EVERY) {
            let snapshot = Snapshot::of(&state.replica);
            self.shelf.keep(&snapshot)?;
            let word = Attestation::new(&self.membership, &self.secrets.secret, &snapshot);
            state.kept = Some((snapshot, word));
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
        let whole = whole || state.waiting.get(&name).is_some_and(|waiter| waiter.whole);
        state.waiting.insert(name, Waiter { signed, whole, sink: sink.clone() });
    }

    fn read(&self, signed: &Signed, whole: bool, sink: &Sink) {
        let request = &signed.command.request;
        let result = match S::SLOW {
            true => self.service().read(request),
            false => self.state.lock().replica.service().read(request),
        };
        if let Some(result) = result {
            self.reply(signed, whole, None, Verdict::Done(result), sink);
        }
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
        let Some(mac) = self.secrets.macs.get(&signed.command.client) else { return };
        let result = match self.sin {
            Some(Sin::Mute) => return,
            Some(Sin::Forger) => Verdict::Done(Bytes::from_static(b"forged")).encoded(),
            Some(Sin::Stale) => self.first.lock().get_or_insert(verdict).encoded(),
            Some(Sin::Equivocator) => {
                let own = format!("for client {} and nonce {}", signed.command.client, signed.command.nonce);
                Verdict::Done(own.into()).encoded()
            }
            None => verdict.encoded(),
        };
        let reply = Reply {
            group: self.membership.number(),
            client: signed.command.client,
            nonce: signed.command.nonce,
            sigma,
            result: signed.sketch(&result),
            whole: whole.then_some(result),
        };
        let _ = sink.try_send(framed(&Answer::Reply(reply).encoded(mac)));
    }

    fn status(&self, client: u64, nonce: u64, sink: &Sink) {
        let Some(mac) = self.secrets.macs.get(&client) else { return };
        let state = self.state.lock();
        let status = Status {
            group: self.membership.number(),
            nonce,
            height: state.replica.height(),
            snapshot: state.kept.as_ref().map_or(0, |(snapshot, _)| snapshot.height),
            votes: self.votes,
            waiting: self.pool.len() as u64,
        };
        let _ = sink.try_send(framed(&Answer::Status(status).encoded(mac)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::MacKey;
    use crate::kv::{KeyValue, Request, Response};
    use crate::membership::tests::group;
    use tidings_sketch::replica::{Command, WINDOW};

    struct Desk {
        seat: Seat<KeyValue>,
        founded: crate::membership::Founded,
        answers: mpsc::Receiver<Bytes>,
        sink: Sink,
        _directory: tempfile::TempDir,
    }

    fn desk() -> Desk {
        let (founded, directory) = (group("one"), tempfile::tempdir().unwrap());
        let shelf = Shelf::open(directory.path()).unwrap();
        let (membership, secrets) = (Arc::new(founded.membership.clone()), founded.replicas[0].clone());
        let seat = Seat::open(membership, secrets, true, shelf, KeyValue::default(), None).unwrap();
        let (sink, answers) = mpsc::channel(100);
        Desk { seat, founded, answers, sink, _directory: directory }
    }

    impl Desk {
        fn signed(&self, purpose: Purpose, nonce: u64, request: &Request) -> Signed {
            let command = Command { client: 1, nonce, request: request.encoded() };
            Signed::new(&self.founded.membership, &self.founded.clients[0].secret, purpose, command)
        }

        fn ask(&self, signed: &Signed, purpose: Purpose) {
            self.seat.ask(Question::Ask { purpose, whole: true, signed: signed.clone() }, &self.sink);
        }

        fn execute(&self, height: u64, commands: &[&Signed]) {
            let commands = commands.iter().map(|signed| signed.command.clone()).collect();
            self.seat.execute(&Block { height, commands }).unwrap();
        }

        /// What was answered last, as the client of key one sees it.
        fn answer(&mut self) -> Option<Reply> {
            let frame = self.answers.try_recv().ok()?;
            let key: MacKey = self.founded.replicas[0].macs[&1];
            match Answer::read(frame.slice(4..), &key) {
                Ok(Some(Answer::Reply(reply))) => Some(reply),
                other => panic!("{other:?}"),
            }
        }
    }

    fn put(value: &'static str) -> Request {
        Request::Put(Bytes::from_static(b"key"), Bytes::from_static(value.as_bytes()))
    }

    fn result(reply: &Reply) -> Response {
        let Ok(Verdict::Done(result)) = Verdict::read(reply.whole.clone().unwrap()) else { panic!("{reply:?}") };
        Response::read(result).unwrap()
    }

    #[test]
    fn a_command_is_answered_once_it_is_executed_and_again_from_the_cache() {
        let mut desk = desk();
        let signed = desk.signed(Purpose::Order, 1, &put("a"));
        desk.ask(&signed, Purpose::Order);
        assert_eq!((desk.answer(), desk.seat.pool.len()), (None, 1));
        desk.execute(1, &[&signed]);
        let first = desk.answer().unwrap();
        assert_eq!((result(&first), desk.seat.pool.len()), (Response::Done(false), 0));
        assert_eq!(first.result, signed.sketch(first.whole.as_ref().unwrap()));
        desk.ask(&signed, Purpose::Order);
        assert_eq!((desk.answer(), desk.seat.pool.len()), (Some(first), 0));
    }

    #[test]
    fn what_is_not_signed_is_neither_ordered_nor_answered() {
        let mut desk = desk();
        let signed = desk.signed(Purpose::Read, 1, &put("a"));
        desk.ask(&signed, Purpose::Order);
        let forged = Signed { command: Command { nonce: 2, ..signed.command.clone() }, ..signed };
        desk.ask(&forged, Purpose::Read);
        desk.seat.passed_on(forged);
        assert_eq!((desk.answer(), desk.seat.pool.len()), (None, 0));
    }

    #[test]
    fn a_read_is_answered_as_things_stand_and_a_write_is_none() {
        let mut desk = desk();
        let write = desk.signed(Purpose::Order, 1, &put("a"));
        desk.execute(1, &[&write]);
        let read = desk.signed(Purpose::Read, 1, &Request::Get(Bytes::from_static(b"key")));
        desk.ask(&read, Purpose::Read);
        let reply = desk.answer().unwrap();
        assert_eq!((reply.sigma, result(&reply)), (None, Response::Value(Some(Bytes::from_static(b"a")))));
        desk.ask(&desk.signed(Purpose::Read, 2, &put("b")), Purpose::Read);
        assert_eq!(desk.answer(), None);
    }

    #[test]
    fn a_nonce_below_the_window_is_too_old_wherever_it_is_looked_up() {
        let mut desk = desk();
        let all: Vec<Signed> =
            (1..=WINDOW as u64 + 1).map(|nonce| desk.signed(Purpose::Order, nonce, &put("a"))).collect();
        desk.ask(&all[1], Purpose::Order);
        desk.execute(1, &all[1..].iter().collect::<Vec<_>>());
        desk.answer().unwrap();
        let last = desk.signed(Purpose::Order, WINDOW as u64 + 2, &put("a"));
        desk.ask(&all[0], Purpose::Order);
        desk.execute(2, &[&last, &all[0]]);
        let ordered = desk.answer().unwrap();
        assert_eq!(Verdict::read(ordered.whole.clone().unwrap()), Ok(Verdict::TooOld));
        desk.ask(&all[0], Purpose::Order);
        assert_eq!(desk.answer(), Some(ordered), "from the cache as from the order");
    }

    #[test]
    fn it_goes_on_from_its_snapshot() {
        let mut desk = desk();
        let signed = desk.signed(Purpose::Order, 1, &put("a"));
        desk.execute(1, &[&signed]);
        (2..=EVERY + 1).for_each(|height| desk.execute(height, &[]));
        let (snapshot, word) = desk.seat.snapshot().unwrap();
        assert!(snapshot.height == EVERY && word.verify(&desk.seat.membership, tidings_sketch::ReplicaId(0)));
        let (membership, secrets) = (desk.seat.membership.clone(), desk.founded.replicas[0].clone());
        let shelf = Shelf::open(desk._directory.path()).unwrap();
        desk.seat = Seat::open(membership, secrets, true, shelf, KeyValue::default(), None).unwrap();
        assert_eq!((desk.seat.height(), desk.seat.pool.height()), (EVERY, EVERY));
        desk.ask(&signed, Purpose::Order);
        assert_eq!(desk.answer().map(|reply| result(&reply)), Some(Response::Done(false)));
    }
}
