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
use crate::keys::Purpose;
use crate::mark::Start;
use crate::membership::{Membership, ReplicaSecrets};
use crate::pool::{Added, Pool};
use crate::sin::{Past, Sin};
use crate::snapshot::{Attestation, EVERY, Kept, Shelf, Snapshot};
use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use tidings_sketch::direct::{self, Reads, ReplicaSketcher};
use tidings_sketch::replica::{Block, Outcome, Replica};
use tidings_sketch::sigma::Sigma;
use tokio::sync::mpsc;

/// What is replicated, and can be carried from one replica to another.
pub trait Durable: Reads + Clone + Send + Sync + Sized + 'static {
    /// Whether an answer may take long: then reads are answered and commands executed aside, by a copy of the service, which must
    /// cost nothing.
    const SLOW: bool = false;

    /// Writes the state: the same bytes wherever it is the same.
    fn save(&self, out: &mut BytesMut);

    /// This service, as it was before the first command, with a state that was written.
    fn load(&self, reader: &mut Reader) -> Result<Self, Malformed>;
}

/// Where answers for one connection go. If it is full, the client asks again.
pub type Sink = mpsc::Sender<Bytes>;

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
    /// The nonce is below the client's window: whether it was executed is not known any more.
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
    replica: Replica<S>,
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
    state: Mutex<State<S>>,
    sin: Option<Sin>,
    /// What it might have said, should that be its sin.
    past: Mutex<Past>,
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
        let state = Mutex::new(State { replica, sketcher, waiting: BTreeMap::new(), kept });
        let (votes, past) = (start.votes(), Mutex::default());
        Ok(Seat { membership, pool, secrets, votes, floor, shelf, state, sin, past })
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

    /// A command that another replica passed on.
    pub fn passed_on(&self, signed: Signed) {
        if self.state.lock().replica.replied(signed.command.client, signed.command.nonce).is_none()
            && signed.verify(&self.membership, Purpose::Order)
        {
            self.pool.add(signed);
        }
    }

    /// Executes a block and answers who waits. One at a time. Blocks that were executed before, or do not follow, are ignored. Nothing is
    /// executed after a snapshot that could not be kept.
    pub fn execute(&self, block: &Block) -> io::Result<()> {
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
                let mut copy = guard.replica.clone();
                let outcomes = MutexGuard::unlocked(&mut guard, || copy.execute(block));
                guard.replica = copy;
                outcomes
            }
            false => guard.replica.execute(block),
        };
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
        let executes = execute || self.sin == Some(Sin::Stale);
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
        let word = match self.sin {
            Some(sin) => sin.word(self.membership.life(), &question.request, execute, word, &mut self.past.lock()),
            None => Some(word),
        };
        if let Some(word) = word {
            let _ = sink.try_send(framed(&Answer::Word(word).encoded(mac)));
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
            Some(Sin::Stale) => self.past.lock().before(&signed.command.request, verdict).encoded(),
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
            hash: state.kept.as_ref().map_or([0; 32], |(snapshot, _)| snapshot.hash),
            closed: self.pool.is_closed(),
            votes: self.votes,
            waiting: self.pool.len() as u64,
        };
        let _ = sink.try_send(framed(&Answer::Status(status).encoded(mac)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::ALONE;
    use crate::keys::MacKey;
    use crate::kv::{KeyValue, Request, Response};
    use crate::membership::tests::group;
    use tidings_sketch::direct::Digest;
    use tidings_sketch::replica::{Command, WINDOW};

    struct Desk {
        seat: Seat<KeyValue>,
        founded: crate::membership::Founded,
        answers: mpsc::Receiver<Bytes>,
        sink: Sink,
        directory: tempfile::TempDir,
    }

    fn desk() -> Desk {
        let (founded, directory) = (group("one"), tempfile::tempdir().unwrap());
        let seat = open(&founded, &directory, Start::Born);
        let (sink, answers) = mpsc::channel(100);
        Desk { seat, founded, answers, sink, directory }
    }

    fn open(founded: &crate::membership::Founded, directory: &tempfile::TempDir, start: Start) -> Seat<KeyValue> {
        let shelf = Shelf::open(directory.path()).unwrap();
        let (membership, secrets) = (Arc::new(founded.membership.clone()), founded.replicas[0].clone());
        Seat::open(membership, secrets, start, shelf, KeyValue::default(), None).unwrap()
    }

    impl Desk {
        fn begin_again(&mut self, start: Start) {
            self.seat = open(&self.founded, &self.directory, start);
        }

        /// What it says to a fast read of the key.
        fn word(&mut self, nonce: u64) -> Option<Word> {
            let signed = self.signed(Purpose::Fast, nonce, &get());
            self.seat.ask(Question::Fast { execute: true, signed }, &self.sink);
            let frame = self.answers.try_recv().ok()?;
            match Answer::read(frame.slice(4..), &self.founded.replicas[0].macs[&1]) {
                Ok(Some(Answer::Word(word))) => Some(word),
                other => panic!("{other:?}"),
            }
        }

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

    fn get() -> Request {
        Request::Get(Bytes::from_static(b"key"))
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
        desk.begin_again(Start::Back);
        assert_eq!((desk.seat.height(), desk.seat.pool.height()), (EVERY, EVERY));
        desk.ask(&signed, Purpose::Order);
        assert_eq!(desk.answer().map(|reply| result(&reply)), Some(Response::Done(false)));
    }

    /// Otherwise replicas that begin again from old snapshots would agree on what was true then.
    #[test]
    fn whoever_begins_again_votes_on_no_read_until_it_is_where_it_was() {
        let mut desk = desk();
        let write = desk.signed(Purpose::Order, 1, &put("a"));
        desk.execute(1, &[&write]);
        desk.begin_again(Start::Back);
        let said = |desk: &mut Desk, nonce: u64| {
            desk.ask(&desk.signed(Purpose::Read, nonce, &get()), Purpose::Read);
            Verdict::read(desk.answer().unwrap().whole.unwrap()).unwrap()
        };
        assert_eq!(said(&mut desk, 1), Verdict::Behind);
        assert!(matches!(said(&mut desk, 2 | ALONE), Verdict::Done(_)), "one alone may say what it holds");
        desk.execute(1, &[&write]);
        (2..EVERY).for_each(|height| desk.execute(height, &[]));
        assert_eq!(said(&mut desk, 3), Verdict::Behind, "it may have been one further");
        desk.execute(EVERY, &[]);
        assert!(matches!(said(&mut desk, 4), Verdict::Done(_)));
    }

    #[test]
    fn what_was_read_is_remembered_when_the_reply_leaves() {
        let mut desk = desk();
        assert_eq!(desk.word(1).map(|word| (word.nonce, word.remembered)), Some((1, None)));
        let read = desk.signed(Purpose::Order, 1, &get());
        desk.ask(&read, Purpose::Order);
        desk.execute(1, &[&read]);
        let reply = desk.answer().unwrap();
        let word = desk.word(2).unwrap();
        let response = word.response.unwrap();
        assert_eq!(Response::read(response.clone()), Ok(result(&reply)));
        let remembered = word.remembered.unwrap();
        assert_eq!(remembered.sketch, Digest::of_response(Digest::of_request(&get().encoded()), &response));
        assert_eq!(Some(remembered.sigma), reply.sigma);
        desk.execute(2, &[&desk.signed(Purpose::Order, 2, &put("a"))]);
        let word = desk.word(3).unwrap();
        assert_eq!(word.remembered, Some(remembered), "what was read, and not what was written");
        assert_eq!(Response::read(word.response.unwrap()), Ok(Response::Value(Some(Bytes::from_static(b"a")))));
    }

    #[test]
    fn what_is_not_signed_for_a_fast_read_has_no_word() {
        let mut desk = desk();
        let signed = desk.signed(Purpose::Fast, 1, &get());
        let other = |command: Command| Signed { command, ..signed.clone() };
        let stranger = other(Command { client: 9, ..signed.command.clone() });
        let client = other(Command { client: 2, ..signed.command.clone() });
        let nonce = other(Command { nonce: 2, ..signed.command.clone() });
        let purposes = [Purpose::Order, Purpose::Read].map(|purpose| desk.signed(purpose, 1, &get()));
        let write = desk.signed(Purpose::Fast, 1, &put("a"));
        for signed in [stranger, client, nonce, write].into_iter().chain(purposes) {
            desk.seat.ask(Question::Fast { execute: true, signed }, &desk.sink);
            assert!(desk.answers.try_recv().is_err());
        }
        desk.ask(&signed, Purpose::Order);
        desk.ask(&signed, Purpose::Read);
        assert!(desk.answers.try_recv().is_err() && desk.seat.pool.is_empty());
        assert!(desk.word(1).is_some());
    }

    #[test]
    fn what_may_have_been_said_before_is_not_remembered_again() {
        let mut desk = desk();
        desk.execute(1, &[&desk.signed(Purpose::Order, 1, &get())]);
        assert!(desk.word(1).unwrap().remembered.is_some(), "one that was born remembers from the first block");
        // Without a snapshot, and with the first: up to the next block at which one is due.
        for (start, from) in [(Start::Back, 1), (Start::Back, EVERY + 1), (Start::Lost, 2 * EVERY + 1)] {
            desk.begin_again(start);
            assert_eq!(desk.seat.height(), from - 1);
            for height in from..from + EVERY {
                desk.execute(height, &[&desk.signed(Purpose::Order, 10 + height, &get())]);
                assert_eq!(desk.word(height).unwrap().remembered, None, "{height} after {from}");
            }
            desk.execute(from + EVERY, &[&desk.signed(Purpose::Order, 10 + from + EVERY, &get())]);
            assert!(desk.word(9).unwrap().remembered.is_some());
        }
    }

    #[test]
    fn nothing_is_executed_after_a_snapshot_that_could_not_be_kept() {
        let desk = desk();
        (1..EVERY).for_each(|height| desk.execute(height, &[]));
        std::fs::remove_dir_all(desk.directory.path()).unwrap();
        let block = |height| Block { height, commands: Vec::new() };
        assert!(desk.seat.execute(&block(EVERY)).is_err() && desk.seat.execute(&block(EVERY + 1)).is_err());
        assert_eq!(desk.seat.height(), EVERY);
    }
}
