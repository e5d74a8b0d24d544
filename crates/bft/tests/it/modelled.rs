//! Replicas with their doors and clients over TCP, on the model of the order: it loses commands, orders them twice and delivers
//! blocks again.

use crate::seats::{greeted, heard, say, start, stranger};
use crate::town::{client, group, put, read, until, written};
use bytes::Bytes;
use futures::FutureExt;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tidings_bft::command::Signed;
use tidings_bft::frame::{Answer, Question, Status};
use tidings_bft::greeting::{Challenge, Hello};
use tidings_bft::keys::Purpose;
use tidings_bft::kv::{Request, Response};
use tidings_bft::server::{Options, Server};
use tidings_bft::sin::Sin;
use tidings_sketch::ReplicaId;
use tidings_sketch::replica::Command;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

#[tokio::test]
async fn commands_are_executed_once_and_answered_by_the_group() {
    let town = start(1, [None; 4]).await;
    let client = client(&town.founded, 0, 4).await;
    let calls = (0..40).map(|number| client.call(put("many", &number.to_string())).boxed());
    let answered = futures::future::try_join_all(calls).await.unwrap();
    let places: BTreeSet<_> = answered.iter().map(|answered| answered.sigma).collect();
    assert_eq!(places.len(), 40, "each has a place of its own");
    written(&client, "a", "1").await;
    assert_eq!(read(&client, "a").await.0, Some(Bytes::from_static(b"1")));
    assert_eq!(read(&client, "b").await.0, None);
    assert_eq!(client.differed(), [0; 4]);
}

#[tokio::test]
async fn one_liar_is_borne_whatever_it_does() {
    for sin in [Sin::Forger, Sin::Mute, Sin::MuteSleeper, Sin::Boaster] {
        let town = start(2, [None, Some(sin), None, None]).await;
        let client = client(&town.founded, 0, 4).await;
        for number in 0..5 {
            written(&client, "a", &number.to_string()).await;
            assert_eq!(read(&client, "a").await.0, Some(Bytes::from(number.to_string())), "{sin:?}");
        }
        let differed = client.differed();
        assert!([0, 2, 3].into_iter().all(|at| differed[at] == 0), "{sin:?}: {differed:?}");
        assert_eq!(differed[1] > 0, sin == Sin::Forger, "{differed:?}");
    }
}

#[tokio::test]
async fn a_read_that_too_few_agree_on_is_ordered() {
    let mut town = start(3, [None; 4]).await;
    let client = client(&town.founded, 0, 4).await;
    written(&client, "a", "1").await;
    until("all have executed it", || town.is_level()).await;
    assert_eq!(read(&client, "a").await, (Some(Bytes::from_static(b"1")), true), "all say the same");
    // Two of four are gone: no 2f + 1 are left for anything.
    town.servers[3] = None;
    town.servers[2] = None;
    let (_, ended) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_millis(900)).await;
            let address = town.founded.membership.replicas()[2].clients;
            town.servers[2] = Some(Server::start(address, town.seat(2)).await.unwrap());
        },
        read(&client, "a")
    );
    assert_eq!(ended, (Some(Bytes::from_static(b"1")), false), "through the order, once three are there again");
}

#[tokio::test]
async fn two_clients_do_not_disturb_one_another() {
    let town = start(4, [None; 4]).await;
    let (one, two) = (client(&town.founded, 0, 4).await, client(&town.founded, 1, 4).await);
    // Both begin with the same nonces.
    for number in 0..10 {
        let value = number.to_string();
        tokio::join!(written(&one, "one", &value), written(&two, "two", &value));
    }
    assert_eq!(read(&one, "two").await.0, Some(Bytes::from_static(b"9")));
    let status = two.status(ReplicaId(1), Duration::from_secs(5)).await.unwrap();
    assert!(status.votes && status.height > 0 && status.group == town.founded.membership.number());
}

#[tokio::test]
async fn what_is_behind_is_not_waited_for() {
    let town = start(5, [None; 4]).await;
    let client = client(&town.founded, 0, 4).await;
    town.held.store(3, Relaxed);
    for number in 0..5 {
        written(&client, "a", &number.to_string()).await;
    }
    let behind = town.seat(3).height();
    assert!(behind < town.seat(0).height());
    town.held.store(4, Relaxed);
    until("the last has caught up", || town.seat(3).height() >= town.seat(0).height()).await;
    assert_eq!(town.seat(3).service(), town.seat(0).service());
}

#[tokio::test]
async fn nonsense_at_the_door_is_shown_out_and_disturbs_nobody() {
    let town = start(6, [None; 4]).await;
    let address = town.founded.membership.replicas()[0].clients;
    for nonsense in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0, 0, 0, 1, 99], &[255; 8]] {
        let (mut stream, _) = stranger(address).await;
        stream.write_all(nonsense).await.unwrap();
        let shown_out = tokio::time::timeout(Duration::from_secs(30), stream.read_u8()).await;
        assert!(shown_out.expect("the connection ends").is_err(), "without an answer");
    }
    written(&client(&town.founded, 0, 4).await, "a", "1").await;
}

/// Whoever is silent, or says half of something, keeps nobody out, however many it is; whoever takes no answers is let go.
#[tokio::test]
async fn who_is_silent_or_takes_nothing_keeps_nobody_out() {
    let mut town = start(8, [None; 4]).await;
    let address = town.founded.membership.replicas()[0].clients;
    town.servers[0] = None;
    let options = Options { strangers: 8, of_a_client: 2, takes: Duration::from_millis(200) };
    let server = loop {
        match Server::start_with(address, town.seat(0), options).await {
            Ok(server) => break server,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let mut silent = Vec::new();
    for number in 0..40 {
        let (mut stream, _) = stranger(server.address()).await;
        if number % 2 == 0 {
            stream.write_all(&[0, 0]).await.unwrap();
        }
        silent.push(stream);
    }
    let asking = client(&town.founded, 0, 4).await;
    written(&asking, "a", "1").await;
    let first = tokio::time::timeout(Duration::from_secs(30), silent[0].read_u8()).await;
    assert!(first.expect("it has made room").is_err());

    // One that asks and does not read: its line fills, and is let go of; the other replicas' is not needed for that.
    let long: String = "x".repeat(60_000);
    written(&asking, "long", &long).await;
    let read = Request::Get(Bytes::from_static(b"long")).encoded();
    let command = Command { client: 2, nonce: 1, request: read };
    let secret = &town.founded.clients[1].secret;
    let signed = Signed::new(&town.founded.membership, secret, Purpose::Read, command);
    let frame = Question::Ask { purpose: Purpose::Read, whole: true, signed }.encoded();
    let mut deaf = greeted(server.address(), &town.founded, 0, 2).await;
    let mut ended = false;
    for _ in 0..20_000 {
        ended = !matches!(tokio::time::timeout(Duration::from_secs(30), say(&mut deaf, &frame)).await, Ok(Ok(())));
        if ended {
            break;
        }
    }
    assert!(ended, "whoever takes no answers is asked no more");
    written(&asking, "a", "2").await;
}

/// Who has recorded what a client says has nothing of it: no answer, no work done, and the client stays where it is.
#[tokio::test]
async fn what_was_recorded_on_one_connection_opens_no_other() {
    let mut town = start(9, [None; 4]).await;
    let address = town.founded.membership.replicas()[0].clients;
    town.servers[0] = None;
    let options = Options { of_a_client: 2, ..Options::default() };
    let server = loop {
        match Server::start_with(address, town.seat(0), options).await {
            Ok(server) => break server,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let signed = |purpose, request| {
        let command = Command { client: 1, nonce: 1, request };
        Signed::new(&town.founded.membership, &town.founded.clients[0].secret, purpose, command)
    };
    let (write, read) =
        (signed(Purpose::Order, put("a", "1")), signed(Purpose::Read, Request::Get("a".into()).encoded()));
    let said = [
        Question::Ask { purpose: Purpose::Read, whole: true, signed: read },
        Question::Ask { purpose: Purpose::Order, whole: true, signed: write },
        Question::Status { client: 1, nonce: 1 },
    ];
    let mut own = greeted(server.address(), &town.founded, 0, 1).await;
    say(&mut own, &said[0].encoded()).await.unwrap();
    heard(&mut own).await.unwrap();
    let hello = {
        let (_, challenge) = stranger(server.address()).await;
        challenge.answered(&town.founded.membership, 1, &town.founded.replicas[0].macs[&1]).encoded()
    };
    for question in said.iter().map(Question::encoded) {
        // As somebody without a name, with a greeting from another connection, and as another client.
        let (mut nobody, _) = stranger(server.address()).await;
        let (mut repeats, _) = stranger(server.address()).await;
        let mut other = greeted(server.address(), &town.founded, 0, 2).await;
        let _ = say(&mut repeats, &hello).await;
        for stream in [&mut nobody, &mut repeats, &mut other] {
            let _ = say(stream, &question).await;
            let end = tokio::time::timeout(Duration::from_secs(30), heard(stream)).await;
            assert!(end.expect("the connection ends").is_err(), "without an answer");
        }
    }
    assert_eq!((town.seat(0).pool.len(), town.seat(0).height()), (0, town.seat(1).height()), "nothing was ordered");
    say(&mut own, &said[2].encoded()).await.unwrap();
    heard(&mut own).await.expect("the client has kept its place");
}

/// A client that is back takes the place of its older connection, and has its reply; nothing waits for that one any more.
#[tokio::test]
async fn a_connection_that_is_replaced_leaves_nothing_behind() {
    let mut town = start(10, [None; 4]).await;
    let address = town.founded.membership.replicas()[0].clients;
    town.servers[0] = None;
    town.held.store(0, Relaxed);
    let options = Options { of_a_client: 1, ..Options::default() };
    let server = loop {
        match Server::start_with(address, town.seat(0), options).await {
            Ok(server) => break server,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let ask = |nonce| {
        let command = Command { client: 1, nonce, request: put("a", "1") };
        let signed = Signed::new(&town.founded.membership, &town.founded.clients[0].secret, Purpose::Order, command);
        Question::Ask { purpose: Purpose::Order, whole: true, signed }.encoded()
    };
    let mut older = greeted(server.address(), &town.founded, 0, 1).await;
    say(&mut older, &ask(1)).await.unwrap();
    say(&mut older, &ask(2)).await.unwrap();
    until("both wait", || town.seat(0).waiting() == 2).await;
    let mut newer = greeted(server.address(), &town.founded, 0, 1).await;
    let shown_out = tokio::time::timeout(Duration::from_secs(30), heard(&mut older)).await;
    assert!(shown_out.expect("the older one makes room").is_err());
    until("nobody waits any more", || town.seat(0).waiting() == 0).await;
    assert_eq!(town.seat(0).pool.len(), 2, "what was asked is ordered all the same");
    say(&mut newer, &ask(2)).await.unwrap();
    until("one waits", || town.seat(0).waiting() == 1).await;
    town.held.store(4, Relaxed);
    let frame = tokio::time::timeout(Duration::from_secs(30), heard(&mut newer)).await.expect("it is answered");
    let answer = Answer::read(frame.unwrap(), &town.founded.replicas[0].macs[&1]);
    assert!(matches!(answer, Ok(Some(Answer::Reply(reply))) if reply.nonce == 2));
}

/// Who hears the answer to another question, or of another life of the group, goes on waiting.
#[tokio::test]
async fn how_a_replica_is_only_its_own_answer_says() {
    let founded = group();
    let listener = TcpListener::bind(founded.membership.replicas()[0].clients).await.unwrap();
    let (key, number) = (founded.replicas[0].macs[&1], founded.membership.number());
    let answers = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let challenge = Challenge([7; 32]);
        say(&mut stream, &challenge.encoded()).await.unwrap();
        let hello = Hello::read(heard(&mut stream).await.unwrap()).unwrap();
        assert!(hello.answers(&challenge, &founded.membership, &key));
        let mut asked = BTreeSet::new();
        while let Ok(frame) = heard(&mut stream).await {
            let Ok(Question::Status { nonce, .. }) = Question::read(frame) else { panic!("no status") };
            asked.insert(nonce);
            for (group, nonce, height) in [(number ^ 1, nonce, 1), (number, !nonce, 2), (number, nonce, 3)] {
                let (hash, closed) = ([0; 32], false);
                let status = Status { group, nonce, height, snapshot: 0, hash, closed, votes: true, waiting: 0 };
                say(&mut stream, &Answer::Status(status).encoded(&key)).await.unwrap();
            }
        }
        asked
    };
    let asks = async {
        let client = client(&founded, 0, 1).await;
        for _ in 0..3 {
            let status = client.status(ReplicaId(0), Duration::from_secs(5)).await;
            assert_eq!(status.map(|status| status.height), Some(3));
        }
    };
    let (asked, ()) = tokio::join!(answers, asks);
    assert_eq!(asked.len(), 3, "each question has a nonce of its own");
}

/// What one replica says is its own business: late, made up, or nothing.
#[tokio::test]
async fn one_replica_says_what_it_says() {
    let get = || Request::Get(Bytes::from_static(b"a")).encoded();
    let mut town = start(7, [None; 4]).await;
    let asking = client(&town.founded, 0, 4).await;
    let value = async |of: u16| Response::read(asking.one(ReplicaId(of), get()).await.unwrap()).unwrap();
    let held = |text: &'static str| Response::Value(Some(Bytes::from_static(text.as_bytes())));
    written(&asking, "a", "1").await;
    until("all have executed it", || town.is_level()).await;
    town.held.store(3, Relaxed);
    written(&asking, "a", "2").await;
    until("the first has executed it", || town.seat(0).height() > town.seat(3).height()).await;
    assert_eq!((value(0).await, value(3).await), (held("2"), held("1")), "one is behind, and nobody else is asked");
    assert_eq!(asking.one(ReplicaId(4), get()).await, None, "there is none with that number");
    town.servers[0] = None;
    // A question that is lost with its connection has no answer; later ones are not asked at all.
    let gone = async || tokio::time::timeout(Duration::from_millis(100), asking.one(ReplicaId(0), get())).await;
    for tries in 0.. {
        if gone().await == Ok(None) {
            break;
        }
        assert!(tries < 100, "its loss is never noticed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let liars = start(8, [None, Some(Sin::Forger), Some(Sin::Mute), None]).await;
    let asking = client(&liars.founded, 0, 4).await;
    assert_eq!(asking.one(ReplicaId(1), get()).await, Some(Bytes::from_static(b"forged")));
    let silence = tokio::time::timeout(Duration::from_millis(200), asking.one(ReplicaId(2), get())).await;
    assert!(silence.is_err(), "a mute one is waited for as long as somebody wants");
}
