//! Processes that count in a file, one at a time by a lock, and that are stopped for longer than their leases: with
//! sequencers checked nobody interferes; without, somebody does. A lock alone cannot prevent it (etcd
//! #11788: an example of fencing that does not fence).

use crate::process::{Running, Server, turn, until};
use rustix::process::Signal;
use std::process::Command;
use std::time::Duration;
use tidings_client::ClientConfig;
use tidings_client::cell::{Cell, Mode, SessionOptions};

/// Processes that count.
const WORKERS: usize = 3;
/// How often each tries to.
const TRIES: usize = 8;
/// How often one that holds the lock is stopped.
const PAUSES: usize = 2;
/// The lease of the sessions that hold the lock.
const LEASE: Duration = Duration::from_secs(2);
/// Between reading the count and writing it: work that takes a while.
const WORK: Duration = Duration::from_millis(150);

fn counter(checked: bool) -> String {
    format!("/counter-{checked}")
}

fn lock(checked: bool) -> String {
    format!("/lock-{checked}")
}

/// What the workers were told, and what the file says in the end.
struct Outcome {
    acknowledged: usize,
    refused: usize,
    counted: usize,
}

fn count_with_pauses(server: &Server, checked: bool) -> Outcome {
    assert_eq!(server.run(&["cell", "put", &counter(checked), "0"]).code, 0);
    assert_eq!(server.run(&["cell", "put", &lock(checked), ""]).code, 0);
    let workers: Vec<Running> = (0..WORKERS).map(|_| start_worker(server, checked)).collect();
    for _ in 0..PAUSES {
        let said: Vec<usize> = workers.iter().map(|worker| tell(&worker.out(), "holds")).collect();
        // Whoever says so next has read the count and not written it yet.
        let victim =
            until("somebody takes the lock", || (0..WORKERS).find(|at| tell(&workers[*at].out(), "holds") > said[*at]));
        workers[victim].signal(Signal::STOP);
        let others =
            || (0..WORKERS).filter(|at| *at != victim).map(|at| tell(&workers[at].out(), "wrote")).sum::<usize>();
        let before = others();
        until("another one counts", || (others() > before + 1).then_some(()));
        workers[victim].signal(Signal::CONT);
    }
    let ended: Vec<String> = workers
        .into_iter()
        .map(|worker| {
            let said = worker.ended();
            assert_eq!(said.code, 0, "{said:?}");
            said.out
        })
        .collect();
    let sum = |word: &str| ended.iter().map(|out| tell(out, word)).sum();
    let counted = server.run(&["cell", "cat", &counter(checked)]).out.parse().unwrap();
    Outcome { acknowledged: sum("wrote"), refused: sum("refused"), counted }
}

/// How often a worker has said this.
fn tell(out: &str, word: &str) -> usize {
    out.lines().filter(|line| line.ends_with(word)).count()
}

/// This very program, told to run one "test": a process of its own that uses the library.
fn start_worker(server: &Server, checked: bool) -> Running {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "cell::lock_set::worker", "--nocapture", "--test-threads", "1"])
        .env("LOCK_SET_SERVER", server.url())
        .env("LOCK_SET_CHECKED", checked.to_string());
    Running::start(&mut command)
}

#[test]
#[ignore = "a worker of the tests below"]
fn worker() {
    let Ok(server) = std::env::var("LOCK_SET_SERVER") else { return };
    let checked = std::env::var("LOCK_SET_CHECKED").is_ok_and(|checked| checked == "true");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // What the lock protects is reached by a session of its own, which outlives the pauses: as a storage service
        // that knows nothing of the lock would.
        let patient = SessionOptions { lease: Duration::from_secs(60), ..SessionOptions::default() };
        let storage = Cell::connect_with(ClientConfig::new([&server]), patient).await.unwrap();
        for _ in 0..TRIES {
            turn_with_lock(&server, &storage, checked).await;
        }
    });
}

async fn turn_with_lock(server: &str, storage: &Cell, checked: bool) {
    let no_delay = Some(Duration::ZERO);
    let options = SessionOptions { lease: LEASE, lock_delay: no_delay, ..SessionOptions::default() };
    let cell = Cell::connect_with(ClientConfig::new([server]), options).await.unwrap();
    let handle = cell.open(&lock(checked)).lock().await.unwrap();
    let lock = handle.acquire(Mode::Exclusive).await.unwrap();
    let counter = storage.open(&counter(checked)).read().write().uncached().await.unwrap();
    let count: usize = counter.contents_and_stat().await.unwrap().text().parse().unwrap();
    println!("\nholds");
    tokio::time::sleep(WORK).await;
    if checked {
        counter.set_sequencer(lock.sequencer());
    }
    match counter.set_contents((count + 1).to_string(), None).await {
        Ok(_) => println!("\nwrote"),
        Err(error) if error.code == "cell.stale_sequencer" => println!("\nrefused"),
        Err(error) => panic!("{error}"),
    }
    // It may be lost, and its session with it.
    let _ = lock.release().await;
    let _ = cell.close().await;
}

#[test]
fn with_sequencers_checked_nobody_interferes_and_without_somebody_does() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let server = Server::embedded(data.path());
    let (checked, unchecked) = std::thread::scope(|scope| {
        let unchecked = scope.spawn(|| count_with_pauses(&server, false));
        (count_with_pauses(&server, true), unchecked.join().unwrap())
    });
    assert_eq!(checked.counted, checked.acknowledged, "an acknowledged count was overwritten");
    assert!(checked.refused > 0, "nobody was stopped for long enough, so nothing was tested");
    assert_eq!(checked.acknowledged + checked.refused, WORKERS * TRIES);
    assert_eq!(unchecked.acknowledged, WORKERS * TRIES);
    assert!(unchecked.counted < unchecked.acknowledged, "no interference: {} counted", unchecked.counted);
}
