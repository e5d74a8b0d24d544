//! A pool of real processes whose managers and owners are killed (SIGKILL) and stopped (SIGSTOP): no key ever has two believers,
//! and none stays unserved.
//!
//! Owners are processes of this very program ([`an_owner`]): each asks again and again, by the library's checks, which of the
//! watched keys it holds, and says so with the boot time from before and after. One machine has one boot time, so what they
//! say can be put side by side ([`Ledger`]).

use crate::cluster::Cluster;
use crate::process::{Deadline, turn, until};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidings_base::Mono;
use tidings_client::placement::{Clock, Owner, OwnerOptions};
use tidings_client::{Client, ClientConfig};

/// Keys that are watched, named by their numbers.
const KEYS: usize = 24;
/// Leases of the pool, and how long a manager honours one.
const LEASE: Duration = Duration::from_secs(3);
const HONOURED: Duration = Duration::from_millis(3_300);
/// What the nodes demand that such leases outlast.
const CONFIG: &str = "[placement]\nsession = \"1500ms\"\nfail_over = \"500ms\"\nround_trip = \"100ms\"\n";
const NAMES: [&str; 3] = ["one", "two", "three"];

/// Under which numbers a key was held: whatever is older than so many interruptions cannot come back unnoticed.
const KEPT: usize = 16;

// ---- the owner's side -------------------------------------------------------------------------------------------------------

/// The variables that make an owner of a process of this program.
const SERVERS: &str = "KILLED_OWNER_SERVERS";
const NAME: &str = "KILLED_OWNER_NAME";
const DATA: &str = "KILLED_OWNER_DATA";
/// It believes what it last heard of a check for this many milliseconds, which nobody may.
const CARELESS: &str = "KILLED_OWNER_CARELESS";

/// Not a test: an owner's process, if the environment names it.
#[test]
#[ignore = "is started by the tests of this file"]
fn an_owner() {
    let Ok(servers) = std::env::var(SERVERS) else { return };
    let name = std::env::var(NAME).unwrap();
    let careless = std::env::var(CARELESS).ok().and_then(|ms| ms.parse().ok()).map_or(0, |ms: u64| ms * 1_000_000);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let servers: Vec<String> = servers.split(',').map(str::to_owned).collect();
        let client = Client::connect(ClientConfig::new(servers)).await.unwrap();
        let mut options = OwnerOptions::new("n", &name, format!("{name}:1"));
        if let Ok(dir) = std::env::var(DATA) {
            options = options.data_dir(dir);
        }
        let owner = Owner::start(client, options).unwrap();
        let clock = Clock::boot();
        let (mut believed, mut asked) = (Vec::new(), 0);
        loop {
            let before = clock.mono().0;
            if before >= asked + careless {
                let held = (0..KEYS).filter_map(|key| Some((key, owner.check_now(key.to_string())?.get())));
                (believed, asked) = (held.collect(), before);
            }
            let after = clock.mono().0;
            let held: String = believed.iter().map(|(key, lease)| format!(" {key}:{lease}")).collect();
            // Whoever started it has ended.
            if writeln!(std::io::stdout(), "held {before} {after}{held}").is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

// ---- what owners said -------------------------------------------------------------------------------------------------------

/// When a key was held under a number: for certain from `from` to `to`, if that is not before.
#[derive(Clone, Debug)]
struct Held {
    process: u32,
    /// After the first check that passed, and before the last.
    from: u64,
    to: u64,
}

/// What all owners said, side by side.
#[derive(Default)]
struct Ledger {
    keys: BTreeMap<usize, BTreeMap<u32, Held>>,
    /// When each key was last held for certain.
    served: BTreeMap<usize, u64>,
    checks: u64,
    wrong: Vec<String>,
}

impl Ledger {
    /// A check by a process passed for a key under a number, between two instants.
    fn passed(&mut self, process: u32, (before, after): (u64, u64), key: usize, lease: u32) {
        self.checks += 1;
        let served = self.served.entry(key).or_default();
        *served = before.max(*served);
        let numbers = self.keys.entry(key).or_default();
        let held = numbers.entry(lease).or_insert(Held { process, from: after, to: before });
        if held.process != process {
            self.wrong
                .push(format!("key {key}: processes {} and {process} hold it under number {lease}", held.process));
        }
        (held.from, held.to) = (held.from.min(after), held.to.max(before));
        let held = held.clone();
        // F8: whoever holds a smaller number held it before; if it did so for certain afterwards, both did at some instant.
        let smaller = numbers.range(..lease).map(|(number, earlier)| (*number, earlier.to > held.from));
        let greater = numbers.range(lease + 1..).map(|(number, later)| (*number, held.to > later.from));
        if let Some((other, _)) = smaller.chain(greater).find(|(_, both)| *both) {
            self.wrong.push(format!("key {key} is held under the numbers {lease} and {other} at once"));
        }
        if numbers.len() > KEPT {
            numbers.pop_first();
        }
    }

    /// Takes a line of an owner's.
    fn take(&mut self, process: u32, line: &str) -> Option<()> {
        let mut words = line.strip_prefix("held ")?.split(' ');
        let time = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        for word in words {
            let (key, lease) = word.split_once(':')?;
            self.passed(process, time, key.parse().ok()?, lease.parse().ok()?);
        }
        Some(())
    }

    /// Keys that nobody was seen to hold since then.
    fn unserved_since(&self, since: Mono) -> Vec<usize> {
        (0..KEYS).filter(|key| self.served.get(key).is_none_or(|at| *at < since.0)).collect()
    }
}

/// The ledger that all readers write into.
type Shared = Arc<Mutex<Ledger>>;

fn lock(ledger: &Shared) -> std::sync::MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An owner's process; dropped, it is killed.
struct OwnerProcess(Child);

impl OwnerProcess {
    fn start(
        cluster: &Cluster,
        name: &str,
        data: Option<&Path>,
        careless: Option<Duration>,
        to: &Shared,
    ) -> OwnerProcess {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["placement::killing::an_owner", "--exact", "--ignored", "--nocapture"]);
        command.env(SERVERS, cluster.urls.join(",")).env(NAME, name);
        if let Some(data) = data {
            command.env(DATA, data);
        }
        if let Some(careless) = careless {
            command.env(CARELESS, careless.as_millis().to_string());
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("this program runs");
        let (lines, process, to) = (child.stdout.take().expect("piped"), child.id(), to.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                // What the test's own frame prints is not of an owner.
                let _: Option<()> = lock(&to).take(process, &line);
            }
        });
        OwnerProcess(child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("our own child");
    }
}

impl Drop for OwnerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// ---- blows ------------------------------------------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug)]
enum Blow {
    KillManager,
    StopManager,
    KillOwner,
    StopOwner,
    /// Both at once.
    KillBoth,
}

struct Pool {
    cluster: Cluster,
    owners: Vec<OwnerProcess>,
    ledger: Shared,
    dir: tempfile::TempDir,
    struck: usize,
}

impl Pool {
    fn start() -> Pool {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::start_with(dir.path(), CONFIG);
        let lease = format!("{}s", LEASE.as_secs());
        let create = ["place", "create", "n", "--lease", &lease, "--renew", "500ms"];
        until("a manager makes the namespace", || (cluster.node(0).run(&create).code == 0).then_some(()));
        let mut pool = Pool { cluster, owners: Vec::new(), ledger: Shared::default(), dir, struck: 0 };
        pool.owners = (0..NAMES.len()).map(|place| pool.owner(place)).collect();
        pool.served();
        pool
    }

    /// Starts an owner. Every other one can prove that an earlier process of its name is dead; the others wait.
    fn owner(&self, place: usize) -> OwnerProcess {
        let data = self.dir.path().join(NAMES[place]);
        OwnerProcess::start(&self.cluster, NAMES[place], place.is_multiple_of(2).then_some(&data), None, &self.ledger)
    }

    /// Waits until every key was served after whatever was leased until now has ended.
    fn served(&self) {
        let since = Clock::boot().mono() + HONOURED;
        until("every key is served", || {
            let ledger = lock(&self.ledger);
            assert_eq!(ledger.wrong, [""; 0]);
            ledger.unserved_since(since).is_empty().then_some(())
        });
    }

    /// The place of the node that leads placement.
    fn leader(&self) -> usize {
        until("a node leads placement", || {
            (0..3).find_map(|place| {
                let said = self.cluster.node(place).run(&["status", "--json", "--timeout", "2"]);
                let status: serde_json::Value = serde_json::from_str(&said.out).ok()?;
                (status["placement"]["role"] == "leading").then_some(place)
            })
        })
    }

    /// Strikes, waits until everything is served without whoever was struck, and brings it back.
    fn strike(&mut self, blow: Blow) {
        self.struck += 1;
        let owner = self.struck % NAMES.len();
        match blow {
            Blow::KillManager => {
                let leader = self.leader();
                self.cluster.kill(leader);
                self.served();
                self.cluster.restart(leader);
            }
            Blow::StopManager => {
                let leader = self.leader();
                self.cluster.node(leader).stop();
                self.served();
                // It takes itself for the leader until it hears otherwise.
                self.cluster.node(leader).go_on();
            }
            Blow::KillOwner => {
                self.owners[owner].signal(Signal::KILL);
                self.served();
                self.owners[owner] = self.owner(owner);
            }
            Blow::StopOwner => {
                self.owners[owner].signal(Signal::STOP);
                self.served();
                // It takes itself for the owner of all that it held, and must not serve any of it.
                self.owners[owner].signal(Signal::CONT);
            }
            Blow::KillBoth => {
                let leader = self.leader();
                self.owners[owner].signal(Signal::KILL);
                self.cluster.kill(leader);
                self.served();
                self.owners[owner] = self.owner(owner);
                self.cluster.restart(leader);
            }
        }
    }

    fn end(self) {
        self.served();
        let ledger = lock(&self.ledger);
        let numbers = ledger.keys.values().map(BTreeMap::len).max().unwrap_or_default();
        assert!(ledger.checks > 0 && numbers > 1, "nothing was tested");
        println!("{} checks passed, after {} blows", ledger.checks, self.struck);
    }
}

#[test]
fn no_key_has_two_believers_and_none_stays_unserved_when_managers_and_owners_are_killed_and_stopped() {
    let _turn = turn();
    let mut pool = Pool::start();
    for blow in [Blow::StopOwner, Blow::KillManager, Blow::KillOwner] {
        pool.strike(blow);
    }
    pool.end();
}

#[test]
fn an_owner_that_believes_for_too_long_is_noticed() {
    let _turn = turn();
    let mut pool = Pool::start();
    pool.owners.clear();
    // Whatever it hears of a check it believes for as long as two leases.
    let careless = OwnerProcess::start(&pool.cluster, "careless", None, Some(2 * LEASE), &pool.ledger);
    pool.served();
    pool.owners.push(pool.owner(0));
    until("two believers are noticed", || (!lock(&pool.ledger).wrong.is_empty()).then_some(()));
    drop(careless);
}

#[test]
#[ignore = "for as long as KILL_SECONDS says: scripts/kill.sh"]
fn kill_loop_of_managers_and_owners() {
    let _turn = turn();
    let mut pool = Pool::start();
    let deadline = Deadline::from_environment();
    let blows = [Blow::KillManager, Blow::StopOwner, Blow::KillBoth, Blow::StopManager, Blow::KillOwner];
    for blow in blows.into_iter().cycle().take_while(|_| !deadline.has_passed()) {
        pool.strike(blow);
    }
    pool.end();
}

#[test]
fn what_contradicts_itself_is_noticed() {
    let told = |lines: &[(u32, &str)]| {
        let mut ledger = Ledger::default();
        lines.iter().for_each(|(process, line)| ledger.take(*process, line).unwrap());
        ledger.wrong.len()
    };
    assert_eq!(told(&[(1, "held 10 11 3:7"), (1, "held 20 21 3:7"), (2, "held 22 23 3:8")]), 0);
    // Another key, a number of which nothing is certain yet, a number that grows in one process.
    assert_eq!(told(&[(1, "held 10 11 3:7"), (2, "held 10 11 4:7"), (2, "held 10 30 3:8"), (2, "held 40 41 3:9")]), 0);
    assert_eq!(told(&[(1, "held 10 11 3:7"), (2, "held 20 21 3:7")]), 1, "one number, two processes");
    assert_eq!(told(&[(1, "held 10 11 3:7"), (2, "held 20 21 3:8"), (1, "held 22 23 3:7")]), 1, "it came back");
    assert_eq!(told(&[(2, "held 20 21 3:8"), (1, "held 10 11 3:7"), (1, "held 22 23 3:7")]), 1, "in whatever order");
}
