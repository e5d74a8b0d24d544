//! D-Prophecy over TCP, on the model of the order: what is read twice is read fast, and reads never go back, whoever lies.

use crate::seats::{Modelled, greeted, heard, say, start, start_with};
use crate::town::{client, group, put, until, written};
use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;
use tidings_bft::client::Options;
use tidings_bft::codec::{Malformed, Reader};
use tidings_bft::command::Signed;
use tidings_bft::direct::{Answered, Client, Counts, How};
use tidings_bft::frame::{Answer, Question, Word};
use tidings_bft::keys::Purpose;
use tidings_bft::kv::{KeyValue, Request, Response};
use tidings_bft::membership::Founded;
use tidings_bft::seat::Durable;
use tidings_bft::sin::Sin;
use tidings_sketch::direct::Reads;
use tidings_sketch::replica::{Command, Service};
use tidings_sketch::sigma::Sigma;

async fn direct(founded: &Founded, which: usize, patience: Duration) -> Client {
    let options = Options { resend: Duration::from_millis(300), read_give_up: patience, ..Options::after(0) };
    let (membership, secrets) = (Arc::new(founded.membership.clone()), founded.clients[which].clone());
    let mut client = Client::start(membership, secrets, &options).unwrap();
    client.connected(4).await;
    client
}

/// The same in the strict mode.
async fn strict(founded: &Founded, which: usize, patience: Duration) -> Client {
    let options = Options { resend: Duration::from_millis(300), read_give_up: patience, ..Options::after(0) };
    let (membership, secrets) = (Arc::new(founded.membership.clone()), founded.clients[which].clone());
    let mut client = Client::start_strict(membership, secrets, &options).unwrap();
    client.connected(4).await;
    client
}

/// More than anything takes on a busy machine.
const PATIENT: Duration = Duration::from_secs(10);
/// What a mute replica costs in these tests.
const IMPATIENT: Duration = Duration::from_millis(100);

fn get(key: &'static str) -> Bytes {
    Request::Get(Bytes::from_static(key.as_bytes())).encoded()
}

/// The number that a key holds, zero if it holds none.
fn number(answered: &Answered) -> u64 {
    match Response::read(answered.result.clone()) {
        Ok(Response::Value(None)) => 0,
        Ok(Response::Value(Some(value))) => std::str::from_utf8(&value).unwrap().parse().unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn read(client: &Client, key: &'static str) -> (u64, How) {
    let answered = client.read(get(key)).await.unwrap();
    assert!(answered.sigma.is_some(), "it was read somewhere in the order");
    (number(&answered), answered.how)
}

async fn write<S: Durable>(town: &Modelled<S>, client: &Client, value: u64) {
    let answered = client.call(put("key", &value.to_string())).await.unwrap();
    assert!(answered.how == How::Agreed && matches!(Response::read(answered.result), Ok(Response::Done(_))));
    until("all have executed it", || town.is_level()).await;
}

#[tokio::test]
async fn what_is_read_twice_is_read_fast_until_it_changes() {
    let town = start(1, [None; 4]).await;
    let client = direct(&town.founded, 0, PATIENT).await;
    assert_eq!(read(&client, "key").await, (0, How::Agreed));
    assert_eq!(client.counts(), Counts { tried_fast: 1, fast: 0, ordered_reads: 1 });
    for value in 1..=5 {
        write(&town, &client, value).await;
        assert_eq!(read(&client, "key").await, (value, How::Agreed), "a transition");
        until("all have executed the read", || town.is_level()).await;
        assert_eq!(read(&client, "key").await, (value, How::Fast));
        assert_eq!(read(&client, "key").await, (value, How::Fast));
    }
    assert_eq!(client.counts(), Counts { tried_fast: 16, fast: 10, ordered_reads: 6 });
    // What one client has read others read fast, and with the same place.
    let other = direct(&town.founded, 1, PATIENT).await;
    let (mine, theirs) = (client.read(get("key")).await.unwrap(), other.read(get("key")).await.unwrap());
    assert_eq!((mine, other.counts().fast), (theirs, 1));
}

#[tokio::test]
async fn a_liar_is_borne_whatever_it_says() {
    for sin in [Sin::Forger, Sin::Mute, Sin::Equivocator, Sin::MuteSleeper] {
        let town = start(2, [None, Some(sin), None, None]).await;
        let client = direct(&town.founded, 0, IMPATIENT).await;
        for value in 1..=3 {
            write(&town, &client, value).await;
            for _ in 0..6 {
                assert_eq!(read(&client, "key").await.0, value, "{sin:?}");
            }
        }
        assert!(client.counts().fast > 0, "{sin:?}: {:?}", client.counts());
    }
}

/// Who executes and is stale may give what was read last once more, until somebody else is asked; and nothing older.
#[tokio::test]
async fn a_stale_liar_makes_no_read_go_back() {
    for sin in [Sin::Stale, Sin::Sleeper] {
        no_read_goes_back_for(sin).await;
    }
}

async fn no_read_goes_back_for(sin: Sin) {
    let town = start(3, [None, None, Some(sin), None]).await;
    let client = direct(&town.founded, 0, IMPATIENT).await;
    for value in 1..=8 {
        write(&town, &client, value).await;
        let mut last = value - 1;
        for _ in 0..40 {
            let (seen, _) = read(&client, "key").await;
            assert!(seen == value || seen == last, "{seen} after {last}");
            last = seen;
            if seen == value {
                break;
            }
        }
        assert_eq!(last, value, "another one executes at last");
    }
}

#[tokio::test]
async fn in_the_strict_mode_all_must_remember() {
    let mut town = start(10, [None; 4]).await;
    let (lax, strict) = tokio::join!(direct(&town.founded, 0, PATIENT), strict(&town.founded, 1, PATIENT));
    write(&town, &strict, 1).await;
    assert_eq!(read(&strict, "key").await, (1, How::Agreed));
    until("all remember it", || town.is_level()).await;
    assert_eq!((read(&strict, "key").await, read(&lax, "key").await), ((1, How::Fast), (1, How::Fast)));
    // One forgets: the three others are enough for who is not strict.
    town.begin_again(3, KeyValue::default()).await.unwrap();
    until("it has executed everything again", || town.is_level()).await;
    for _ in 0..8 {
        assert_eq!(read(&strict, "key").await, (1, How::Agreed));
    }
    until("all have executed it", || town.is_level()).await;
    let again = futures::stream::repeat(()).take(40).then(|()| read(&lax, "key"));
    assert!(again.any(|(value, how)| async move { value == 1 && how == How::Fast }).await);
    for sin in [Sin::Forger, Sin::Mute, Sin::Equivocator] {
        let town = start(11, [None, None, Some(sin), None]).await;
        let client = self::strict(&town.founded, 0, IMPATIENT).await;
        for value in 1..=2 {
            write(&town, &client, value).await;
            for _ in 0..4 {
                assert_eq!(read(&client, "key").await.0, value, "{sin:?}");
            }
        }
        assert_eq!(client.counts().fast, 0, "{sin:?}");
    }
}

/// The machine would be content with f + 1 replies there; others, who read past the order, would then find an older value.
#[tokio::test]
async fn in_the_strict_mode_what_is_ordered_needs_as_many_replies_as_otherwise() {
    let town = start(12, [None; 4]).await;
    let client = strict(&town.founded, 0, PATIENT).await;
    town.held.store(2, SeqCst);
    let mut write = std::pin::pin!(client.call(put("key", "1")));
    let early = tokio::time::timeout(Duration::from_secs(1), &mut write).await;
    assert!(early.is_err() && town.seat(1).height() > 0, "two have executed it: {early:?}");
    town.held.store(4, SeqCst);
    assert_eq!(write.await.unwrap().how, How::Agreed);
}

/// A replica's word to a fast read, over a connection of its own. `None` if it answers the next question and not this one.
async fn word(founded: &Founded, replica: usize, question: &Question) -> Option<Word> {
    let mut stream = greeted(founded.membership.replicas()[replica].clients, founded, replica, 3).await;
    for question in [question.encoded(), Question::Status { client: 3, nonce: 9 }.encoded()] {
        say(&mut stream, &question).await.unwrap();
    }
    // Who repeats what another client has asked is shown out.
    let frame = heard(&mut stream).await.ok()?;
    match Answer::read(frame, &founded.replicas[replica].macs[&3]) {
        Ok(Some(Answer::Word(word))) => Some(word),
        Ok(Some(Answer::Status(_))) => None,
        other => panic!("{other:?}"),
    }
}

/// A question of the third client, signed for a purpose.
fn question(founded: &Founded, purpose: Purpose, request: Bytes) -> Question {
    let command = Command { client: 3, nonce: 7, request };
    Question::Fast {
        execute: true,
        signed: Signed::new(&founded.membership, &founded.clients[2].secret, purpose, command),
    }
}

#[tokio::test]
async fn a_replica_that_begins_again_does_not_remember_what_it_may_have_said() {
    let mut town = start(4, [None; 4]).await;
    let client = direct(&town.founded, 0, PATIENT).await;
    write(&town, &client, 1).await;
    assert_eq!(read(&client, "key").await, (1, How::Agreed));
    until("all remember it", || town.is_level()).await;
    let asked = question(&town.founded, Purpose::Fast, get("key"));
    let before = word(&town.founded, 3, &asked).await.unwrap();
    assert!(before.remembered.is_some() && before.response.is_some());
    town.begin_again(3, KeyValue::default()).await.unwrap();
    until("it has executed everything again", || town.is_level()).await;
    let after = word(&town.founded, 3, &asked).await.unwrap();
    assert_eq!((after.remembered, after.response), (None, before.response.clone()), "executed and not remembered");
    write(&town, &client, 2).await;
    assert_eq!(read(&client, "key").await.0, 2);
    until("all have executed it", || town.is_level()).await;
    assert_eq!(word(&town.founded, 3, &asked).await.unwrap().remembered, None, "nor what is new so soon");
    let others: Vec<Word> = futures::future::join_all((0..3).map(|at| word(&town.founded, at, &asked)))
        .await
        .into_iter()
        .flatten()
        .collect();
    assert!(others.len() == 3 && others.iter().all(|other| *other == others[0] && other.remembered.is_some()));
    assert_ne!(others[0].remembered, before.remembered);
    // The others are enough, once it is connected again or another one executes.
    let again = futures::stream::repeat(()).take(40).then(|()| read(&client, "key"));
    assert!(again.any(|(value, how)| async move { value == 2 && how == How::Fast }).await);
}

const KEYS: [&str; 3] = ["a", "b", "c"];

/// Reads that begin later, of any client, are not older than what was read before they began.
async fn reads(client: &Client, ended: &[AtomicU64; 3], written: &[AtomicU64; 3], count: usize) {
    for key in (0..3).cycle().take(count) {
        let before = ended[key].load(SeqCst);
        let (value, how) = read(client, KEYS[key]).await;
        assert!(value >= before, "{} went from {before} back to {value}, {how:?}", KEYS[key]);
        assert!(value <= written[key].load(SeqCst), "{} was never {value}", KEYS[key]);
        ended[key].fetch_max(value, SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_never_go_back_while_others_read_and_write() {
    for sin in [None, Some(Sin::Stale)] {
        let town = start(5, [None, sin, None, None]).await;
        let (one, two) = tokio::join!(direct(&town.founded, 0, IMPATIENT), direct(&town.founded, 1, IMPATIENT));
        let writer = client(&town.founded, 2, 4).await;
        let (ended, begun, over) = <([AtomicU64; 3], [AtomicU64; 3], AtomicBool)>::default();
        let writing = async {
            for value in 1.. {
                for (key, begun) in KEYS.into_iter().zip(&begun) {
                    begun.store(value, SeqCst);
                    written(&writer, key, &value.to_string()).await;
                    tokio::time::sleep(Duration::from_millis(8)).await;
                }
                if over.load(SeqCst) {
                    return value;
                }
            }
            0
        };
        let reading = async {
            tokio::join!(reads(&one, &ended, &begun, 400), reads(&two, &ended, &begun, 400));
            over.store(true, SeqCst);
        };
        let (values, ()) = tokio::join!(writing, reading);
        let counts = [one.counts(), two.counts()];
        assert!(values > 3, "{values}");
        assert!(counts.iter().all(|counts| counts.fast > 20 && counts.ordered_reads > 3), "{sin:?}: {counts:?}");
    }
}

#[tokio::test]
async fn strangers_have_no_word() {
    let town = start(6, [None; 4]).await;
    let own = question(&town.founded, Purpose::Fast, get("key"));
    assert!(word(&town.founded, 0, &own).await.is_some());
    let Question::Fast { execute, signed } = own else { unreachable!() };
    let changed = |command| Question::Fast { execute, signed: Signed { command, ..signed.clone() } };
    for asked in [
        question(&town.founded, Purpose::Read, get("key")),
        question(&town.founded, Purpose::Order, get("key")),
        question(&town.founded, Purpose::Fast, put("key", "1")),
        changed(Command { client: 1, ..signed.command.clone() }),
        changed(Command { client: 99, ..signed.command.clone() }),
        changed(Command { nonce: 8, ..signed.command.clone() }),
        changed(Command { request: get("other"), ..signed.command.clone() }),
    ] {
        assert_eq!(word(&town.founded, 0, &asked).await, None, "{asked:?}");
    }
    // Nor does the signature of a fast read order anything.
    let elsewhere = Question::Ask { purpose: Purpose::Order, whole: true, signed };
    assert_eq!(word(&town.founded, 0, &elsewhere).await, None);
    assert_eq!(town.seat(0).pool.len(), 0);
}

#[tokio::test]
async fn more_than_may_wait_are_refused() {
    // Nobody is there: what comes first waits, and so do those behind it.
    let founded = group();
    let (membership, secrets) = (Arc::new(founded.membership.clone()), founded.clients[0].clone());
    let client = Client::start(membership, secrets, &Options::after(0)).unwrap();
    let mut asked: FuturesUnordered<_> = (0..1_026).map(|_| client.read(get("key"))).collect();
    let refused = asked.next().await.unwrap().unwrap_err();
    assert_eq!(refused.code, "bft.busy");
    let first = Counts { tried_fast: 1, fast: 0, ordered_reads: 1 };
    assert_eq!(client.counts(), first, "words of those that cannot be asked are not waited for");
    let long = client.read(Bytes::from(vec![0; 1 << 20])).await.unwrap_err();
    assert_eq!(long.code, "bft.too_large");
}

/// Key-values of which nothing is to be remembered, and whose reads, or commands, wait at a gate.
#[derive(Clone, Debug, Default)]
struct Odd {
    rows: KeyValue,
    keeps: bool,
    commands_wait: bool,
    gate: Arc<parking_lot::Mutex<()>>,
    waiting: Arc<AtomicBool>,
}

impl Odd {
    fn wait(&self) {
        self.waiting.store(true, SeqCst);
        drop(self.gate.lock());
    }
}

impl Service for Odd {
    fn execute(&mut self, sigma: Sigma, request: &Bytes) -> Bytes {
        if self.commands_wait {
            self.wait();
        }
        self.rows.execute(sigma, request)
    }
}

impl Reads for Odd {
    fn is_read(&self, request: &Bytes) -> bool {
        self.rows.is_read(request)
    }

    fn read(&self, request: &Bytes) -> Bytes {
        self.wait();
        self.rows.read(request)
    }

    fn keeps(&self, _: &Bytes, _: &Bytes) -> bool {
        self.keeps
    }
}

impl Durable for Odd {
    const SLOW: bool = true;

    fn save(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(self.keeps));
        self.rows.save(out);
    }

    fn load(&self, reader: &mut Reader) -> Result<Odd, Malformed> {
        Ok(Odd { keeps: reader.byte()? == 1, rows: self.rows.load(reader)?, ..self.clone() })
    }
}

#[tokio::test]
async fn what_is_not_kept_is_never_fast() {
    let town = start_with(7, [None; 4], Odd::default()).await;
    let client = direct(&town.founded, 0, PATIENT).await;
    write(&town, &client, 1).await;
    for _ in 0..5 {
        assert_eq!(read(&client, "key").await, (1, How::Agreed));
        until("all have executed it", || town.is_level()).await;
    }
    assert_eq!(client.counts(), Counts { tried_fast: 5, fast: 0, ordered_reads: 5 });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_read_does_not_hold_up_its_replica() {
    let odd = Odd { keeps: true, ..Odd::default() };
    let town = start_with(8, [None; 4], odd.clone()).await;
    let client = direct(&town.founded, 0, PATIENT).await;
    write(&town, &client, 1).await;
    assert_eq!(read(&client, "key").await, (1, How::Agreed));
    until("all have executed it", || town.is_level()).await;
    let seen = at_the_gate(&odd, &town, read(&client, "key")).await;
    assert_eq!(seen, (1, How::Fast));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_command_does_not_hold_up_its_replica() {
    let odd = Odd { commands_wait: true, ..Odd::default() };
    let town = start_with(9, [None; 4], odd.clone()).await;
    let client = direct(&town.founded, 0, PATIENT).await;
    write(&town, &client, 1).await;
    at_the_gate(&odd, &town, write(&town, &client, 2)).await;
    assert_eq!(read(&client, "key").await, (2, How::Agreed));
}

/// Does something that waits at the gate; all seats can be asked meanwhile.
async fn at_the_gate<T>(odd: &Odd, town: &Modelled<Odd>, does: impl Future<Output = T>) -> T {
    odd.waiting.store(false, SeqCst);
    let gate = odd.gate.clone();
    let (shut, open) = std::sync::mpsc::channel::<()>();
    let (is_shut, told) = tokio::sync::oneshot::channel();
    let keeper = std::thread::spawn(move || {
        let _shut = gate.lock();
        let _ = is_shut.send(());
        // A seat that is held up would never let it be opened.
        open.recv_timeout(Duration::from_secs(5)) == Err(RecvTimeoutError::Disconnected)
    });
    told.await.unwrap();
    let asks = async {
        until("somebody is at the gate", || odd.waiting.load(SeqCst)).await;
        let seats = [0, 1, 2, 3].map(|at| town.seat(at));
        tokio::task::spawn_blocking(move || seats.map(|seat| seat.height())).await.unwrap();
        drop(shut);
    };
    let (done, ()) = tokio::join!(does, asks);
    assert!(keeper.join().unwrap(), "no seat was held up at the gate");
    done
}
