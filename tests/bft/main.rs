//! Replicas of a BFT group as processes of their own: killed, stopped, and lying. Run by `scripts/bft.sh`.

#[path = "../shared/ports.rs"]
mod ports;
#[allow(dead_code)]
#[path = "../it/process.rs"]
mod process;
#[allow(dead_code)]
#[path = "../shared/town.rs"]
mod town;

use bytes::Bytes;
use process::{Running, free_port, http, http_get, run, tidings, turn, until, until_within};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tidings_bft::client::Client;
use tidings_bft::kv::{Request, Response};
use tidings_bft::snapshot::EVERY;
use town::{Town, text};

const KEY: Bytes = Bytes::from_static(b"count");

async fn write(client: &Client, number: u64) {
    let request = Request::Put(KEY, number.to_string().into());
    let answered = client.call(request.encoded()).await.unwrap();
    assert!(matches!(Response::read(answered.result), Ok(Response::Done(_))));
}

async fn read(client: &Client) -> u64 {
    let answered = client.read(Request::Get(KEY).encoded()).await.unwrap();
    match Response::read(answered.result) {
        Ok(Response::Value(Some(value))) => std::str::from_utf8(&value).unwrap().parse().unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Each replica is killed, and stopped, while somebody writes and reads: nothing that was acknowledged is lost, no read goes
/// back, and whoever is back catches up. One at a time: f of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_are_killed_and_stopped_one_after_the_other() {
    const ROUNDS: usize = 12;
    const WRITES: u64 = 8;
    let _turn = turn();
    let mut town = Town::start(4, &[]);
    let client = town.client().await;
    let mut written = 0;
    let mut go_on = async |client: &Client| {
        for _ in 0..WRITES {
            written += 1;
            write(client, written).await;
            // The same client: it has heard of its write, and no later one is under way.
            assert_eq!(read(client).await, written);
        }
        written
    };
    go_on(&client).await;
    for round in 0..ROUNDS {
        let victim = round % 4;
        if round % 3 == 2 {
            let replica = town.replicas[victim].as_ref().unwrap();
            replica.signal(Signal::STOP);
            go_on(&client).await;
            replica.signal(Signal::CONT);
        } else {
            town.kill(victim);
            go_on(&client).await;
            town.begin(victim);
            town.replicas[victim].as_ref().unwrap().line(1);
        }
        // The next one may go once this one has caught up: two at a time would be too many.
        let reached = town.heights().into_iter().flatten().max().unwrap();
        until("it has caught up", || town.heights()[victim].filter(|height| *height >= reached));
    }
    let last = go_on(&client).await;
    let said = town.ask(&["get", "count", "--ordered", "--json"]).json();
    assert_eq!((&said["value"], &said["ordered"]), (&last.to_string().into(), &true.into()));
    // All of them at once, as when the power fails: what was acknowledged is there.
    (0..4).for_each(|number| town.kill(number));
    (0..4).for_each(|number| town.begin(number));
    town.replicas.iter().flatten().for_each(|replica| drop(replica.line(1)));
    assert_eq!(read(&client).await, last);
}

/// Batches far behind the snapshot are removed. Whoever was away for longer takes a state over, and votes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_was_away_for_longer_than_others_keep_batches_takes_a_state_over() {
    const KEPT: u64 = 768;
    let _turn = turn();
    let mut town = Town::beside(4, &[], Vec::new(), &["--keep-batches", "768"]);
    let client = town.client().await;
    write(&client, 1).await;
    town.kill(3);
    // The first file of batches goes with a snapshot that is so far behind its end.
    let (mut written, reach) = (1, 512 + KEPT + 10);
    // A batch for each write, since none begins before the last one has ended.
    while town.heights()[0].unwrap() < reach {
        for _ in 0..100 {
            written += 1;
            write(&client, written).await;
        }
    }
    let batches = town.at("replica-0").join("engine");
    let values = std::fs::read_dir(&batches).unwrap().map(|entry| entry.unwrap().path());
    let values = values.filter(|path| text(path).ends_with("-batches-values"));
    let files = values.flat_map(|path| std::fs::read_dir(path).unwrap().map(|file| file.unwrap().file_name()));
    let files: Vec<_> = files.collect();
    assert!(files.len() >= 2 && !files.iter().any(|name| name == "0000000000000000"), "{files:?}");

    town.begin(3);
    let away = town.replicas[3].as_ref().unwrap();
    assert!(away.line(2).contains("it takes a state over"), "{}", away.line(2));
    assert!(away.line(3).contains("serves clients"), "{}", away.line(3));
    let reached = town.heights()[0].unwrap();
    until("it has caught up", || town.heights()[3].filter(|height| *height >= reached));
    // Its vote is needed from now on.
    town.kill(2);
    written += 1;
    write(&client, written).await;
    assert_eq!(read(&client).await, written);
}

/// A replica loses its folder, and with it its vote. In the next life of the group it has another key, and votes; everything
/// that was written is there.
#[test]
fn who_lost_its_vote_has_one_again_in_the_next_life() {
    let _turn = turn();
    let mut town = Town::start(4, &[]);
    assert_eq!(town.ask(&["put", "colour", "red"]).code, 0);
    town.kill(3);
    let (folder, secret) = (town.at("replica-3"), town.at("replica-3/secret.toml"));
    let kept = std::fs::read(&secret).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(&secret, kept).unwrap();
    town.begin(3);
    town.replicas[3].as_ref().unwrap().line(1);
    assert_eq!(town.ask(&["put", "colour", "green"]).code, 0);

    let (next, from) = (town.at("next"), town.at("replica-0"));
    let rekey = ["rekey", text(&next), "--replica", "3", "--secret", text(&secret), "--from", text(&from)];
    town.ask(&rekey).failed(3, "holds no snapshot");
    town.args = &["--closing"];
    for number in 0..4 {
        town.kill(number);
        town.begin(number);
        town.replicas[number].as_ref().unwrap().line(1);
    }
    let rests = || {
        let heights = town.heights();
        (heights.iter().flatten().count() == 4 && heights.iter().all(|height| height.unwrap() == EVERY)).then_some(())
    };
    // The view of one that does not vote takes a second.
    until_within(Duration::from_secs(300), "all rest at the first snapshot", rests);
    let said = town.ask(&rekey);
    assert!(said.code == 0 && said.out.contains("life 2"), "{said:?}");
    town.ask(&rekey).failed(1, "cannot make");

    (0..4).for_each(|number| town.kill(number));
    town.args = &[];
    std::fs::copy(next.join("group.toml"), town.at("group.toml")).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::rename(next.join("replica-3"), &folder).unwrap();
    (0..4).for_each(|number| town.begin(number));
    town.replicas.iter().flatten().for_each(|replica| drop(replica.line(1)));
    assert_eq!(town.ask(&["get", "colour", "--ordered"]).out, "green\n");
    // Its vote is needed.
    town.kill(1);
    assert_eq!(town.ask(&["put", "colour", "white"]).code, 0);
    assert_eq!(town.ask(&["get", "colour"]).out, "white\n");
    // Killed before the first snapshot of this life, it begins with the last one's state again.
    town.kill(0);
    town.begin(0);
    town.replicas[0].as_ref().unwrap().line(1);
    assert_eq!(town.ask(&["get", "colour", "--ordered"]).out, "white\n");
}

#[test]
fn who_lies_changes_nothing() {
    let _turn = turn();
    for sin in ["forger", "stale", "equivocator", "mute", "sleeper", "mute-sleeper", "boaster"] {
        let town = Town::start(4, &[sin]);
        for value in ["red", "green", "blue"] {
            assert_eq!(town.ask(&["put", "colour", value]).code, 0, "{sin}");
            assert_eq!(town.ask(&["get", "colour"]).out, format!("{value}\n"), "{sin}");
            assert_eq!(town.ask(&["get", "colour", "--ordered"]).out, format!("{value}\n"), "{sin}");
            // What it remembers is what was read last in the order.
            assert_eq!(town.ask(&["get", "colour", "--remembered"]).out, format!("{value}\n"), "{sin}");
            let strict = town.ask(&["get", "colour", "--remembered", "--strict"]);
            assert_eq!(strict.out, format!("{value}\n"), "{sin}");
        }
        assert_eq!(town.ask(&["delete", "colour", "--json"]).json()["existed"], true, "{sin}");
        let gone = town.ask(&["get", "colour"]);
        gone.failed(3, "has no value");
    }
}

/// A web server that has one page, and answers anything else with 404.
fn origin(page: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut asked, mut line) = (String::new(), String::new());
            let _ = stream.read_line(&mut asked);
            while stream.read_line(&mut line).is_ok_and(|read| read > 2) {
                line.clear();
            }
            let found = asked.starts_with("GET /page ");
            let (status, body) = if found { ("200 OK", page) } else { ("404 Not Found", "nothing here") };
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.get_mut().write_all(format!("{head}{body}").as_bytes());
        }
    });
    address
}

/// Web servers beside replicas: one has another page, and then one more has none.
#[test]
fn pages_are_what_enough_of_the_servers_say() {
    let _turn = turn();
    let mut town = Town::beside(4, &[], ["right", "wrong", "right", "right"].map(origin).to_vec(), &[]);
    for ordered in [&[][..], &["--ordered"]] {
        let said = town.ask(&[&["fetch", "/page"], ordered].concat());
        assert_eq!((said.code, said.out.as_str()), (0, "right\n"), "{said:?}");
        let said = town.ask(&[&["fetch", "/elsewhere", "--json"], ordered].concat());
        assert_eq!(said.code, 1, "{said:?}");
        let told: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        assert_eq!((&told["status"], &told["body"]), (&404.into(), &"nothing here".into()));
    }
    town.ask(&["fetch", "no-path"]).failed(4, "none for a web server");
    town.ask(&["get", "colour"]).failed(1, "did not answer as a service of keys and values");
    // Another one cannot be reached by its replica: that is one too many.
    town.kill(2);
    town.origins[2] = ([127, 0, 0, 1], free_port()).into();
    town.begin(2);
    town.replicas[2].as_ref().unwrap().line(1);
    let said = town.ask(&["fetch", "/page"]);
    assert!(said.code != 0 && said.out.is_empty(), "{said:?}");
    let replica = town.at("replica-0");
    let said = run(&[
        "bft",
        "run",
        "--group",
        text(&town.at("group.toml")),
        "--data",
        text(&replica),
        "--origin",
        "10.0.0.1:80",
    ]);
    said.failed(2, "is not on this machine");
}

/// Larger groups, with as many that lie or are dead as they bear.
#[test]
fn groups_of_seven_ten_and_thirteen_bear_two_three_and_four() {
    let _turn = turn();
    for (size, sins) in [(7, &["forger"][..]), (10, &["forger", "stale"]), (13, &["forger", "stale", "equivocator"])] {
        let mut town = Town::start(size, sins);
        assert_eq!(town.ask(&["put", "colour", "red"]).code, 0, "{size}");
        town.kill(0);
        assert_eq!(town.ask(&["put", "colour", "blue"]).code, 0, "{size}");
        assert_eq!(town.ask(&["get", "colour"]).out, "blue\n", "{size}");
        assert_eq!(town.heights().into_iter().flatten().count(), size - 1);
    }
}

#[allow(clippy::disallowed_methods)] // between two writes of a real process
fn pause() {
    std::thread::sleep(Duration::from_millis(50));
}

/// Tells others that it is over, when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A sketcher before the group: somebody writes ever larger numbers, others read them, one replica lies, and another one is killed
/// and comes back meanwhile. No read is below one that ended before it began, and most of them cost one execution.
#[test]
fn reads_through_a_sketcher_never_go_back() {
    let _turn = turn();
    let mut town = Town::start(7, &["stale"]);
    let (group, client) = (town.at("group.toml"), town.at("client-3.toml"));
    let mut command = tidings();
    command.args(["sketch", "run", "--log", "warn", "--listen", "127.0.0.1:0", "--new-pages", "any"]);
    let sketcher = Running::start(command.args(["--group", text(&group), "--client", text(&client)]));
    let line = sketcher.line(1);
    assert!(line.contains("5 of 7 replicas must agree"), "{line}");
    let at: SocketAddr = line.split(['/', ';']).nth(2).unwrap().parse().unwrap();
    let (highest, over) = (AtomicU64::new(0), AtomicBool::new(false));
    assert_eq!(http("PUT", at, "/count", "0").map(|(status, _)| status), Some(201));
    let reads = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut reads = 0;
                    while !over.load(SeqCst) {
                        let floor = highest.load(SeqCst);
                        let (_, body) = http_get(at, "/count").unwrap();
                        let number: u64 = body.parse().unwrap_or_else(|_| panic!("{body}"));
                        assert!(number >= floor, "{number} after {floor}");
                        highest.fetch_max(number, SeqCst);
                        reads += 1;
                    }
                    reads
                })
            })
            .collect();
        // Whatever happens, the readers end.
        let over = Over(&over);
        for number in 1..=40 {
            let written = http("PUT", at, "/count", &number.to_string());
            assert!(matches!(written, Some((204, _))), "{written:?}");
            match number {
                10 => town.kill(0),
                25 => town.begin(0),
                _ => pause(),
            }
        }
        drop(over);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum::<u64>()
    });
    until("the last value is read", || http_get(at, "/count").filter(|(_, body)| body == "40"));
    sketcher.signal(Signal::TERM);
    let said = sketcher.ended();
    let fast: u64 = said.out.split(" requests: ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(fast > reads / 2, "{reads} reads: {said:?}");
}

/// D-Prophecy: what was read in the order is read fast from then on, and executed by one; after a restart, too, in time.
#[test]
fn what_replicas_remember_is_read_without_the_order() {
    let _turn = turn();
    let mut town = Town::start(4, &[]);
    assert_eq!(town.ask(&["put", "colour", "red"]).code, 0);
    let ordered = |town: &Town| {
        let said = town.ask(&["get", "colour", "--remembered", "--json"]).json();
        assert_eq!(said["value"], "red");
        said["ordered"].as_bool().unwrap()
    };
    until("replicas remember it", || (!ordered(&town)).then_some(()));
    // Who was killed remembers nothing yet, and the three others are enough.
    town.kill(1);
    town.begin(1);
    town.replicas[1].as_ref().unwrap().line(1);
    until("the others remember it", || (!ordered(&town)).then_some(()));
    assert_eq!(town.ask(&["put", "colour", "blue"]).code, 0);
    until("the change is read", || (town.ask(&["get", "colour", "--remembered"]).out == "blue\n").then_some(()));
}

/// Fewer than the quorum: nothing is guessed.
#[test]
fn two_liars_of_four_are_too_many_and_nobody_is_believed() {
    let _turn = turn();
    let town = Town::start(4, &["forger", "forger"]);
    let said = town.ask(&["get", "colour"]);
    assert!(said.code != 0 && said.out.is_empty() && said.err.contains("may have been executed"), "{said:?}");
}
