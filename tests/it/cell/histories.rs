//! What clients of three nodes saw, judged by a checker: processes of their own, each with a caching session, read and change
//! the same files while masters are killed (SIGKILL) or stopped (SIGSTOP) and clients are stopped. Whatever a cache answered is
//! part of the history as any other read: one that is stale has no place in any order.

use crate::cluster::{CELL, Cluster};
use crate::process::{Deadline, Running, Server, turn, until};
use crate::register::{Change, Deed, File, NEVER, by_name, judge, operation};
use porcupine_rs::{CheckResult, Operation};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tidings_base::{Error, Seeded};
use tidings_cell::NodePath;
use tidings_cell::mutant::Mutant;
use tidings_client::ClientConfig;
use tidings_client::cell::{Cell, SessionOptions, traced};
use tidings_wire::v1::{self, cell_message::Message, node_target::Target};

/// Processes that read and change.
const CLIENTS: u32 = 4;
/// Files that they share at a time; every round has its own.
const FILES: u64 = 3;
/// Of a hundred calls, so many change something.
const CHANGES: u64 = 20;
/// How often a client tries to begin a session.
const ATTEMPTS: usize = 300;
/// What shows that clients are served: so many calls of each, and so many changes altogether.
const CALLS: usize = 20;
const SOME: usize = 40;

/// What one client did, as it writes it down.
#[derive(Serialize, Deserialize)]
struct Line {
    path: String,
    begun: i64,
    /// `None` = its outcome is not known.
    ended: Option<i64>,
    deed: Deed,
    /// The cache answered.
    cached: bool,
}

/// What a client is told.
#[derive(Serialize, Deserialize)]
struct Orders {
    client: u32,
    servers: Vec<String>,
    dir: PathBuf,
    mutant: Option<String>,
}

impl Orders {
    /// The round, as the test says; `None` = it is over.
    fn round(&self) -> Option<u64> {
        std::fs::read_to_string(self.dir.join(ROUND)).expect("the test says so").parse().ok()
    }
}

/// Where the test says which round it is.
const ROUND: &str = "round";

fn history_of(dir: &Path, client: u32) -> PathBuf {
    dir.join(format!("history-{client}"))
}

/// Nanoseconds of the one clock that all processes of this machine have.
fn now() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

struct Client {
    orders: Orders,
    cell: Cell,
    history: std::fs::File,
    rng: Seeded,
    round: u64,
    /// At most one call of each round is given up: what is unknown makes the search long.
    gave_up: bool,
    /// The generations that this client last saw, of this round's files.
    seen: BTreeMap<String, u64>,
    written: u64,
}

#[test]
#[ignore = "a client of the tests below"]
fn client() {
    let Ok(orders) = std::env::var("HISTORY_ORDERS") else { return };
    let orders: Orders = serde_json::from_str(&orders).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { Client::new(orders).await.run().await });
}

async fn connect(orders: &Orders) -> Cell {
    // One of them is impatient: when it is stopped, its session ends.
    let (lease, grace) = match orders.client {
        0 => (Duration::from_secs(2), Duration::from_secs(1)),
        _ => (Duration::ZERO, Duration::from_secs(45)),
    };
    let mutant = orders.mutant.as_deref().map(|name| name.parse().expect("the test names one"));
    let options = SessionOptions { lease, grace, mutant, ..SessionOptions::default() };
    for _ in 0..ATTEMPTS {
        match Cell::connect_with(ClientConfig::new(&orders.servers), options.clone()).await {
            Ok(cell) => return cell,
            // Whoever is impatient gives up before the next master is there.
            Err(error) => eprintln!("client {}: {error}", orders.client),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("there is no cell");
}

impl Client {
    async fn new(orders: Orders) -> Client {
        Client {
            cell: connect(&orders).await,
            history: std::fs::File::create(history_of(&orders.dir, orders.client)).unwrap(),
            rng: Seeded::new(u64::from(orders.client) + 1),
            orders,
            round: 0,
            gave_up: false,
            seen: BTreeMap::new(),
            written: 0,
        }
    }

    async fn run(&mut self) {
        while let Some(round) = self.orders.round() {
            if round != self.round {
                (self.round, self.gave_up) = (round, false);
                self.seen.clear();
            }
            let path = format!("/shared/{round}-{}", self.rng.between(0, FILES - 1));
            match self.rng.between(0, 99) < CHANGES {
                true => self.change(path).await,
                false => self.look(path).await,
            }
            tokio::time::sleep(Duration::from_micros(self.rng.between(500, 5_000))).await;
        }
    }

    async fn look(&mut self, path: String) {
        let begun = now();
        match traced(self.cell.read(&path)).await {
            (Ok(file), trace) => {
                let ended = Some(now());
                let shown = file.map(|file| {
                    let generation = file.stat().content_generation;
                    (generation, Some(file.text().parse().expect("only numbers are written")))
                });
                match shown {
                    Some((generation, _)) => self.seen.insert(path.clone(), generation),
                    None => self.seen.remove(&path),
                };
                self.record(&Line { path, begun, ended, deed: Deed::Saw(shown), cached: trace.cached > 0 });
            }
            (Err(error), _) => self.begin_again(&error).await,
        }
    }

    async fn change(&mut self, path: String) {
        let change = self.next_change(&path);
        let patience = match !self.gave_up && self.rng.between(0, 9) == 0 {
            true => Duration::from_micros(self.rng.between(0, 3_000)),
            false => Duration::from_secs(600),
        };
        let begun = now();
        let done = tokio::time::timeout(patience, make(&self.cell, &path, &change)).await;
        let ended = Some(now());
        let (ended, deed) = match done {
            Ok(Ok(told)) => (ended, Deed::Did(change, told)),
            Ok(Err(error)) => match (error.code.as_ref(), &change) {
                ("cell.no_node", _) => (ended, Deed::Missing),
                ("cell.node_exists", _) => (ended, Deed::Present),
                ("cell.wrong_generation", Change::Write { if_generation: Some(wanted), .. }) => {
                    (ended, Deed::Differs(*wanted))
                }
                _ => {
                    self.begin_again(&error).await;
                    (None, Deed::MayHaveDone(change))
                }
            },
            Err(_) => {
                self.gave_up = true;
                (None, Deed::MayHaveDone(change))
            }
        };
        self.record(&Line { path, begun, ended, deed, cached: false });
    }

    /// A write, under a condition or not; now and then the end of the file; where none was seen, its beginning.
    fn next_change(&mut self, path: &str) -> Change {
        self.written += 1;
        let contents = self.written * u64::from(CLIENTS) + u64::from(self.orders.client);
        match (self.seen.get(path), self.rng.between(0, 19)) {
            (None, _) => Change::Create { contents, exclusive: true },
            (_, 0) => Change::Delete { if_generation: None },
            (_, 1..8) => Change::Write { contents, if_generation: None },
            (Some(generation), _) => Change::Write { contents, if_generation: Some(*generation) },
        }
    }

    /// The one error that a call may end with beside refusals is that the session is over.
    async fn begin_again(&mut self, error: &Error) {
        assert_eq!(error.code, "cell.expired", "{error}");
        self.cell = connect(&self.orders).await;
    }

    fn record(&mut self, line: &Line) {
        let mut text = serde_json::to_string(line).unwrap();
        text.push('\n');
        self.history.write_all(text.as_bytes()).unwrap();
    }
}

/// Makes a change, and says which generation the file has then, if it was told.
async fn make(cell: &Cell, path: &str, change: &Change) -> Result<Option<u64>, Error> {
    let path_of = || NodePath::parse(path).map(|path| Target::Path(path.as_str().to_owned()));
    let target = Some(v1::NodeTarget { target: Some(path_of()?) });
    let asked = match *change {
        Change::Create { contents, .. } => {
            let file = cell.open(path).write().create_file(contents.to_string()).exclusive().await?;
            return Ok(Some(file.opened_stat().content_generation));
        }
        Change::Write { contents, if_generation } => {
            let contents = contents.to_string().into();
            Message::SetContents(v1::SetContents { target, contents, if_generation, sequencers: vec![] })
        }
        Change::Delete { if_generation } => {
            Message::Delete(v1::DeleteNode { target, if_generation, sequencers: vec![] })
        }
    };
    match cell.request(asked).await? {
        Message::Done(done) => Ok(done.stat.map(|stat| stat.content_generation).filter(|generation| *generation > 0)),
        other => panic!("{other:?}"),
    }
}

/// The clients, and what they have written down so far.
struct Crowd {
    dir: PathBuf,
    clients: Vec<Running>,
    /// How far each one's history is read, and how many calls that were.
    progress: Vec<(u64, usize)>,
    history: Vec<Operation<File>>,
    changed: usize,
    cached: usize,
    unknown: usize,
}

impl Crowd {
    fn start(dir: &Path, servers: &[String], mutant: Option<Mutant>) -> Crowd {
        std::fs::write(dir.join(ROUND), "1").unwrap();
        let start = |client| {
            let mutant = mutant.map(|mutant| mutant.name().to_owned());
            let orders = Orders { client, servers: servers.to_vec(), dir: dir.to_owned(), mutant };
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .args(["--ignored", "--exact", "cell::histories::client", "--nocapture", "--test-threads", "1"])
                .env("HISTORY_ORDERS", serde_json::to_string(&orders).unwrap());
            Running::start(&mut command)
        };
        Crowd {
            dir: dir.to_owned(),
            clients: (0..CLIENTS).map(start).collect(),
            progress: vec![(0, 0); CLIENTS as usize],
            history: Vec::new(),
            changed: 0,
            cached: 0,
            unknown: 0,
        }
    }

    /// From now on other files.
    fn round(&self, round: u64) {
        // At once, so that nobody reads half of it.
        let next = self.dir.join("next");
        std::fs::write(&next, round.to_string()).unwrap();
        std::fs::rename(next, self.dir.join(ROUND)).unwrap();
    }

    /// Reads what the clients have written down since.
    fn read(&mut self) {
        for client in 0..CLIENTS {
            let Ok(mut file) = std::fs::File::open(history_of(&self.dir, client)) else { continue };
            let (from, calls) = &mut self.progress[client as usize];
            let mut text = String::new();
            file.seek(SeekFrom::Start(*from)).and_then(|_| file.read_to_string(&mut text)).unwrap();
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            *from += whole as u64;
            for line in text[..whole].lines() {
                let Line { path, begun, ended, deed, cached } = serde_json::from_str(line).unwrap();
                *calls += 1;
                self.changed += usize::from(matches!(deed, Deed::Did(..)));
                self.cached += usize::from(cached);
                self.unknown += usize::from(ended.is_none());
                self.history.push(operation(client, (begun, ended.unwrap_or(NEVER)), (path, deed)));
            }
        }
    }

    /// Waits until everybody but one who is stopped was served again, and some changes were made.
    fn go_on(&mut self, stopped: Option<usize>) {
        self.read();
        let (changed, calls) = (self.changed + SOME, self.progress.clone());
        until("the clients go on", || {
            self.read();
            for client in &mut self.clients {
                assert!(client.is_running(), "a client has ended: {}", client.err());
            }
            let served = |at: usize| stopped == Some(at) || self.progress[at].1 >= calls[at].1 + CALLS;
            (self.changed >= changed && (0..calls.len()).all(served)).then_some(())
        });
    }

    /// Waits until there is enough to judge, however slow the machine is.
    fn say_enough(&mut self) {
        until("enough was changed, served from caches, and left unknown", || {
            self.read();
            (self.changed > 200 && self.cached > 200 && self.unknown > 0).then_some(())
        });
    }

    /// Ends the clients, and reads the rest.
    fn end(mut self) -> Crowd {
        std::fs::write(self.dir.join("next"), "over").unwrap();
        std::fs::rename(self.dir.join("next"), self.dir.join(ROUND)).unwrap();
        for client in std::mem::take(&mut self.clients) {
            let said = client.ended();
            assert_eq!(said.code, 0, "{said:?}");
        }
        self.read();
        self
    }

    /// The first file with a history that no single copy could have.
    fn illegal(&self) -> Option<String> {
        by_name(&self.history).iter().find_map(|part| match judge(part) {
            CheckResult::Ok => None,
            CheckResult::Illegal => Some(told(part)),
            CheckResult::Unknown => panic!("the search took too long, in {} operations:{}", part.len(), told(part)),
        })
    }

    /// The same, after somebody read once more what was overwritten: such a read must be found.
    fn with_a_stale_read(mut self) -> Crowd {
        let stale = by_name(&self.history).iter().find_map(|part| {
            let (seen, read) = part.iter().find_map(|read| match read.op.1 {
                Deed::Saw(Some((generation, _))) => Some((generation, read)),
                _ => None,
            })?;
            let overwritten = |other: &&Operation<File>| {
                matches!(other.op.1, Deed::Did(Change::Write { .. }, Some(later)) if later > seen)
                    && other.call_time > read.return_time
            };
            let write = part.iter().find(overwritten)?;
            let after = write.return_time;
            Some(operation(CLIENTS, (after + 1, after + 2), read.op.clone()))
        });
        self.history.push(stale.expect("something was read and overwritten"));
        self
    }
}

/// One file's history, for people.
fn told(part: &[Operation<File>]) -> String {
    let mut lines: Vec<_> = part.iter().collect();
    lines.sort_by_key(|operation| operation.call_time);
    let line = |operation: &&Operation<File>| {
        let Operation { client_id, call_time, return_time, op: (path, deed), .. } = operation;
        format!("\n{call_time}..{return_time} client {client_id:?} {path}: {deed:?}")
    };
    lines.iter().map(line).collect()
}

#[derive(Clone, Copy)]
enum Blow {
    KillMaster,
    StopMaster,
    StopClient(usize),
}

fn strike_under_readers(blows: impl Iterator<Item = Blow>) {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(dir.path());
    assert_eq!(cluster.node(0).run(&["cell", "mkdir", "/shared"]).code, 0);
    let mut crowd = Crowd::start(dir.path(), &cluster.urls, None);
    for (round, blow) in (1..).zip(blows) {
        crowd.round(round);
        crowd.go_on(None);
        match blow {
            Blow::KillMaster => {
                let master = cluster.leader_of(CELL);
                cluster.kill(master);
                crowd.go_on(None);
                cluster.restart(master);
            }
            Blow::StopMaster => {
                let master = cluster.leader_of(CELL);
                cluster.node(master).stop();
                crowd.go_on(None);
                // It comes back and takes itself for the master until it hears otherwise.
                cluster.node(master).go_on();
            }
            Blow::StopClient(which) => {
                crowd.clients[which].signal(Signal::STOP);
                crowd.go_on(Some(which));
                // It comes back with all that it had cached.
                crowd.clients[which].signal(Signal::CONT);
            }
        }
        crowd.go_on(None);
    }
    crowd.say_enough();
    let crowd = crowd.end();
    assert_eq!(crowd.illegal(), None, "what clients saw is not linearizable");
    let Crowd { changed, cached, unknown, .. } = crowd;
    println!("{} calls, {changed} changes, {cached} from caches, {unknown} unknown", crowd.history.len());
    assert!(crowd.with_a_stale_read().illegal().is_some(), "a stale read was not found");
}

#[test]
fn what_caches_answer_is_linearizable_while_masters_and_clients_are_struck() {
    let _turn = turn();
    strike_under_readers([Blow::KillMaster, Blow::StopClient(1), Blow::StopMaster].into_iter());
}

#[test]
#[ignore = "for as long as KILL_SECONDS says: scripts/kill.sh"]
fn kill_loop() {
    let _turn = turn();
    let deadline = Deadline::from_environment();
    let blows = [Blow::KillMaster, Blow::StopClient(1), Blow::StopMaster, Blow::StopClient(0)].into_iter().cycle();
    strike_under_readers(blows.take_while(|_| !deadline.has_passed()));
}

/// Clients that say that they have forgotten what they still serve: real processes, the same calls, and the checker sees it.
#[test]
fn clients_that_acknowledge_before_they_forget_are_found() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = Server::embedded(&dir.path().join("data"));
    assert_eq!(server.run(&["cell", "mkdir", "/shared"]).code, 0);
    let mut crowd = Crowd::start(dir.path(), &[server.url()], Some(Mutant::ImplicitAck));
    for round in 1..=3 {
        crowd.round(round);
        crowd.go_on(None);
        crowd.go_on(None);
    }
    assert!(crowd.end().illegal().is_some(), "nobody was seen to read what was overwritten");
}
