//! Replicas of a BFT group as processes of their own: killed, stopped, and lying. Run by `scripts/bft.sh`.

#[path = "../shared/ports.rs"]
mod ports;
#[allow(dead_code)]
#[path = "../it/process.rs"]
mod process;

use bytes::Bytes;
use process::{Running, Said, free_port, run, tidings, turn, until};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tidings_bft::client::{Client, Options};
use tidings_bft::kv::{Request, Response};
use tidings_bft::membership::{ClientSecrets, Membership};

/// A group whose replicas are processes.
struct Town {
    dir: TempDir,
    replicas: Vec<Option<Running>>,
    sins: Vec<Option<&'static str>>,
    /// The web servers beside the replicas; where there are none, they have keys and values.
    origins: Vec<SocketAddr>,
}

impl Town {
    /// So many replicas, of which the last ones have these sins.
    fn start(size: usize, sins: &[&'static str]) -> Town {
        Town::beside(size, sins, Vec::new())
    }

    /// The same, each beside a web server.
    fn beside(size: usize, sins: &[&'static str], origins: Vec<SocketAddr>) -> Town {
        let dir = tempfile::tempdir().unwrap();
        let pairs: Vec<String> =
            (0..size).map(|_| format!("127.0.0.1:{},127.0.0.1:{}", free_port(), free_port())).collect();
        let town = dir.path().join("town").display().to_string();
        let mut args = vec!["bft", "keygen", &town, "--clients", "3"];
        pairs.iter().for_each(|pair| args.extend(["--replica", pair]));
        assert_eq!(run(&args).code, 0);
        let honest = std::iter::repeat_n(None, size - sins.len());
        let sins = honest.chain(sins.iter().map(|sin| Some(*sin))).collect();
        let mut town = Town { dir, replicas: (0..size).map(|_| None).collect(), sins, origins };
        (0..size).for_each(|number| town.begin(number));
        town.replicas.iter().flatten().for_each(|replica| drop(replica.line(1)));
        town
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join("town").join(name)
    }

    /// Starts a replica, and does not wait for it.
    fn begin(&mut self, number: usize) {
        let mut command = tidings();
        command.args(["bft", "run", "--log", "warn", "--group"]).arg(self.at("group.toml"));
        command.arg("--data").arg(self.at(&format!("replica-{number}")));
        if let Some(sin) = self.sins[number] {
            command.args(["--sin", sin]);
        }
        if let Some(origin) = self.origins.get(number) {
            command.args(["--origin", &origin.to_string()]);
        }
        self.replicas[number] = Some(Running::start(&mut command));
    }

    fn kill(&mut self, number: usize) {
        let replica = self.replicas[number].take().unwrap();
        replica.signal(Signal::KILL);
        replica.ended();
    }

    fn ask(&self, args: &[&str]) -> Said {
        let (group, client) = (self.at("group.toml"), self.at("client-1.toml"));
        let named = ["--group", text(&group), "--client", text(&client)];
        run(&[&["bft"], args, &named].concat())
    }

    /// The heights of those that answer.
    fn heights(&self) -> Vec<Option<u64>> {
        let said = self.ask(&["status", "--json"]);
        let rows: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"));
        rows.as_array().unwrap().iter().map(|row| row["height"].as_u64()).collect()
    }

    /// The second client, in this process.
    async fn client(&self) -> Client {
        let read = |name: &str| std::fs::read_to_string(self.at(name)).unwrap();
        let membership = Arc::new(Membership::parse(&read("group.toml")).unwrap());
        let secrets = ClientSecrets::parse(&read("client-2.toml")).unwrap();
        let options = Options { resend: Duration::from_millis(300), ..Options::after(0) };
        Client::start(membership, secrets, &options).unwrap()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

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

#[test]
fn who_lies_changes_nothing() {
    let _turn = turn();
    for sin in ["forger", "stale", "equivocator", "mute"] {
        let town = Town::start(4, &[sin]);
        for value in ["red", "green", "blue"] {
            assert_eq!(town.ask(&["put", "colour", value]).code, 0, "{sin}");
            assert_eq!(town.ask(&["get", "colour"]).out, format!("{value}\n"), "{sin}");
            assert_eq!(town.ask(&["get", "colour", "--ordered"]).out, format!("{value}\n"), "{sin}");
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
    let mut town = Town::beside(4, &[], ["right", "wrong", "right", "right"].map(origin).to_vec());
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

/// Fewer than the quorum: nothing is guessed.
#[test]
fn two_liars_of_four_are_too_many_and_nobody_is_believed() {
    let _turn = turn();
    let town = Town::start(4, &["forger", "forger"]);
    let said = town.ask(&["get", "colour"]);
    assert!(said.code != 0 && said.out.is_empty() && said.err.contains("may have been executed"), "{said:?}");
}
