use super::*;
use crate::command::ALONE;
use crate::http::{self, tests::gathering};
use crate::keys::MacKey;
use crate::kv::{KeyValue, Request, Response};
use crate::membership::tests::group;
use crate::sin::AWAKE;
use crate::sink::{self, Answers, Room};
use crate::snapshot::tests::Page;
use tidings_sketch::direct::Digest;
use tidings_sketch::replica::WINDOW;

struct Desk {
    seat: Seat<KeyValue>,
    founded: crate::membership::Founded,
    answers: Answers,
    sink: Sink,
    directory: tempfile::TempDir,
}

fn desk() -> Desk {
    let (founded, directory) = (group("one"), tempfile::tempdir().unwrap());
    let seat = open(&founded, &directory, Start::Born);
    let (sink, answers) = sink::pair(1, Room::default());
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
        let (frame, _) = self.answers.try_next()?;
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
        let (frame, _) = self.answers.try_next()?;
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
fn the_newest_connection_that_asked_has_the_reply() {
    let mut desk = desk();
    let signed = desk.signed(Purpose::Order, 1, &put("a"));
    let ask = |sink: &Sink| {
        desk.seat.ask(Question::Ask { purpose: Purpose::Order, whole: true, signed: signed.clone() }, sink);
    };
    let (newer, mut newest) = sink::pair(2, Room::default());
    let (gone, _) = sink::pair(3, Room::default());
    // What is read late from an older connection, or from one that is gone, takes nothing away.
    [&desk.sink, &newer, &desk.sink, &gone, &desk.sink].into_iter().for_each(ask);
    assert_eq!(desk.seat.waiting(), 1);
    desk.execute(1, &[&signed]);
    assert_eq!((newest.try_next().is_some(), desk.answer(), desk.seat.waiting()), (true, None, 0));
}

#[test]
fn what_is_not_signed_is_neither_ordered_nor_answered() {
    let mut desk = desk();
    let signed = desk.signed(Purpose::Read, 1, &put("a"));
    desk.ask(&signed, Purpose::Order);
    let forged = Signed { command: Command { nonce: 2, ..signed.command.clone() }, ..signed };
    desk.ask(&forged, Purpose::Read);
    assert!(!desk.seat.passed_on(forged.clone()));
    assert_eq!((desk.answer(), desk.seat.pool.len()), (None, 0));
    // Without the rule it is: that is what keeps it out.
    desk.seat = desk.seat.without(Some(Mutant::SignatureIgnored));
    assert!(desk.seat.passed_on(forged));
    assert_eq!(desk.seat.pool.len(), 1);
}

/// Four replicas that pass on what waits would each have it verified by three others.
#[test]
fn what_the_pool_knows_is_not_verified_again() {
    let mut desk = desk();
    let signed = desk.signed(Purpose::Order, 1, &put("a"));
    let unverified = Signed { signature: crate::keys::Signature([7; 64]), ..signed.clone() };
    // Nobody puts such a one there: it shows that nobody looks.
    desk.seat.pool.add(unverified.clone());
    desk.ask(&unverified, Purpose::Order);
    assert_eq!(desk.seat.waiting(), 1);
    let other = Signed { command: Command { request: get().encoded(), ..signed.command }, ..unverified.clone() };
    desk.ask(&other, Purpose::Order);
    desk.ask(&unverified, Purpose::Read);
    assert_eq!((desk.seat.waiting(), desk.seat.pool.len()), (1, 1), "that very command, for that purpose");
    desk.execute(1, &[&unverified]);
    assert!(desk.answer().is_some());
    desk.ask(&other, Purpose::Order);
    assert_eq!(desk.answer(), None);
    desk.ask(&unverified, Purpose::Order);
    assert!(desk.answer().is_some(), "nor when it is asked for again");
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
    let all: Vec<Signed> = (1..=WINDOW as u64 + 1).map(|nonce| desk.signed(Purpose::Order, nonce, &put("a"))).collect();
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

/// Pages change outside the order: what was answered before the snapshot it does not know, and does not execute again.
#[test]
fn of_a_page_that_was_asked_for_before_the_snapshot_it_says_too_old() {
    let (mut desk, directory) = (desk(), tempfile::tempdir().unwrap());
    let open = |start| {
        let shelf = Shelf::open(directory.path()).unwrap();
        let (membership, secrets) = (Arc::new(desk.founded.membership.clone()), desk.founded.replicas[0].clone());
        Seat::open(membership, secrets, start, shelf, Page("page"), None).unwrap()
    };
    let (born, asked) = (open(Start::Born), desk.signed(Purpose::Order, 1, &get()));
    let ask = |seat: &Seat<Page>| {
        let question = Question::Ask { purpose: Purpose::Order, whole: true, signed: asked.clone() };
        seat.ask(question, &desk.sink);
    };
    ask(&born);
    for height in 1..=EVERY {
        let commands = if height == 1 { vec![asked.command.clone()] } else { Vec::new() };
        born.execute(&Block { height, commands }).unwrap();
    }
    let back = open(Start::Back);
    ask(&back);
    back.execute(&Block { height: EVERY + 1, commands: vec![asked.command.clone()] }).unwrap();
    let mut said = || desk.answer().map(|reply| Verdict::read(reply.whole.unwrap()).unwrap());
    assert_eq!(said(), Some(Verdict::Done(Bytes::from_static(b"page"))));
    assert_eq!((said(), said()), (Some(Verdict::TooOld), None));
}

#[test]
fn a_sleeper_is_honest_for_a_while_and_a_boaster_in_all_but_its_height() {
    for (sin, then) in [(Sin::Sleeper, Some(Sin::Stale)), (Sin::MuteSleeper, Some(Sin::Mute))] {
        assert_eq!([0, AWAKE - 1, AWAKE].map(|done| sin.after(done)), [None, None, then]);
    }
    let (desk, directory) = (desk(), tempfile::tempdir().unwrap());
    let (membership, secrets) = (Arc::new(desk.founded.membership.clone()), desk.founded.replicas[0].clone());
    let shelf = Shelf::open(directory.path()).unwrap();
    let seat = Seat::open(membership, secrets, Start::Born, shelf, KeyValue::default(), Some(Sin::Boaster)).unwrap();
    let mut desk = Desk { seat, ..desk };
    desk.seat.ask(Question::Status { client: 1, nonce: 1 }, &desk.sink);
    let (frame, _) = desk.answers.try_next().unwrap();
    let said = Answer::read(frame.slice(4..), &desk.founded.replicas[0].macs[&1]);
    assert!(matches!(said, Ok(Some(Answer::Status(Status { height: EVERY, snapshot: 0, .. })))), "{said:?}");
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
        assert!(desk.answers.try_next().is_none());
    }
    desk.ask(&signed, Purpose::Order);
    desk.ask(&signed, Purpose::Read);
    assert!(desk.answers.try_next().is_none() && desk.seat.pool.is_empty());
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

/// One value; its state is written as long as somebody wants.
#[derive(Clone, Debug)]
struct Gated {
    saves: std::sync::mpsc::SyncSender<()>,
    gate: Arc<Mutex<std::sync::mpsc::Receiver<()>>>,
}

impl tidings_sketch::replica::Service for Gated {
    fn execute(&mut self, _: Sigma, _: &Bytes) -> Bytes {
        Bytes::from_static(b"value")
    }
}

impl Reads for Gated {
    fn is_read(&self, _: &Bytes) -> bool {
        true
    }

    fn read(&self, _: &Bytes) -> Bytes {
        Bytes::from_static(b"value")
    }
}

impl Durable for Gated {
    fn save(&self, _: &mut BytesMut) {
        self.saves.send(()).unwrap();
        // Not for ever, should nobody be answered meanwhile.
        let _ = self.gate.lock().recv_timeout(std::time::Duration::from_secs(10));
    }

    fn load(&self, _: &mut Reader) -> Result<Gated, Malformed> {
        Ok(self.clone())
    }
}

#[test]
fn who_asks_while_a_snapshot_is_taken_is_answered() {
    let (mut desk, directory) = (desk(), tempfile::tempdir().unwrap());
    let ((saves, saving), (opens, gate)) = (std::sync::mpsc::sync_channel(1), std::sync::mpsc::channel());
    let service = Gated { saves, gate: Arc::new(Mutex::new(gate)) };
    let (membership, secrets) = (Arc::new(desk.founded.membership.clone()), desk.founded.replicas[0].clone());
    let shelf = Shelf::open(directory.path()).unwrap();
    let seat = Seat::open(membership, secrets, Start::Born, shelf, service, None).unwrap();
    let signed = |purpose, nonce| desk.signed(purpose, nonce, &get());
    let (read, fast, order) = (signed(Purpose::Read, 1), signed(Purpose::Fast, 2), signed(Purpose::Order, 3));
    std::thread::scope(|scope| {
        let executes = || (1..=EVERY).try_for_each(|height| seat.execute(&Block { height, commands: Vec::new() }));
        let executing = scope.spawn(executes);
        saving.recv_timeout(std::time::Duration::from_secs(30)).unwrap();
        seat.ask(Question::Ask { purpose: Purpose::Read, whole: true, signed: read }, &desk.sink);
        seat.ask(Question::Fast { execute: true, signed: fast }, &desk.sink);
        seat.ask(Question::Ask { purpose: Purpose::Order, whole: true, signed: order }, &desk.sink);
        assert_eq!((seat.height(), seat.pool.len(), seat.waiting()), (EVERY, 1, 1));
        assert!(seat.snapshot().is_none(), "it is being taken");
        opens.send(()).unwrap();
        executing.join().unwrap().unwrap();
    });
    assert!(std::iter::from_fn(|| desk.answers.try_next()).count() == 2 && seat.snapshot().is_some());
    seat.execute(&Block { height: EVERY + 1, commands: Vec::new() }).unwrap();
}

/// One after the other, a server that says nothing would take its whole time for each.
#[test]
fn pages_of_a_block_are_fetched_at_once_and_those_that_are_known_not_again() {
    let (founded, directory) = (group("one"), tempfile::tempdir().unwrap());
    let (membership, secrets) = (Arc::new(founded.membership.clone()), founded.replicas[0].clone());
    let (origin, asked) = gathering();
    let shelf = Shelf::open(directory.path()).unwrap();
    let seat = Seat::open(membership, secrets, Start::Born, shelf, origin, None).unwrap();
    let most = http::AT_ONCE as u64;
    for (height, nonces) in [(1, 1..=most), (2, most..=3 * most)] {
        let command = |nonce| {
            let request = http::Request { path: format!("/{nonce}"), headers: Vec::new() };
            Command { client: 1, nonce, request: request.encoded() }
        };
        seat.execute(&Block { height, commands: nonces.clone().map(command).collect() }).unwrap();
        for nonce in nonces {
            let replied = seat.state.lock().replica.replied(1, nonce);
            let Some(Outcome::Done { result, .. }) = replied else { panic!("{replied:?}") };
            match http::Response::read(result) {
                Ok(http::Response::Page { body, .. }) => assert_eq!(body, format!("/{nonce}")),
                other => panic!("{other:?}"),
            }
        }
    }
    let asked = [&asked.all, &asked.most_at_once].map(|count| count.load(Relaxed));
    assert_eq!(asked, [3 * http::AT_ONCE, http::AT_ONCE]);
}
