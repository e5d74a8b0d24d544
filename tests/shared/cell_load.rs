//! Sessions that write, read and take turns with a lock while something is done to their cell, and what was promised to them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidings_base::Error;
use tidings_client::cell::{Cell, Link, Mode, SessionOptions, State};
use tidings_client::{Client, ClientConfig};
use tokio::task::JoinSet;

/// Sessions that write, each a file of its own.
const WRITERS: usize = 8;
/// Sessions that take the same lock in turn.
const LOCKERS: usize = 4;
/// Connections that these share.
const CONNECTIONS: usize = 3;
/// Writes and turns that show that the cell serves again.
const SOME: u64 = 100;
/// Between two writes or turns of a session: what is done to the cell needs the processors, too.
const PAUSE: Duration = Duration::from_millis(5);
/// Where those who hold the lock count.
const COUNTER: &str = "/load/counter";

/// What the load has seen.
#[derive(Default)]
struct Seen {
    /// The last number that each writer's file was acknowledged to hold.
    written: Mutex<[u64; WRITERS]>,
    /// Turns with the lock whose count was acknowledged.
    turns: AtomicU64,
    done: AtomicU64,
    holding: AtomicBool,
    last_generation: AtomicU64,
    stopped: AtomicBool,
    wrong: Mutex<Vec<String>>,
}

impl Seen {
    fn wrong(&self, what: String) {
        self.wrong.lock().unwrap().push(what);
    }

    fn goes_on(&self) -> bool {
        !self.stopped.load(SeqCst)
    }
}

/// The sessions and what they do.
pub struct Load {
    seen: Arc<Seen>,
    sessions: Vec<(Cell, u64)>,
    tasks: JoinSet<Result<(), Error>>,
}

impl Load {
    /// Begins on a cell that serves at these addresses.
    pub async fn start(urls: &[String]) -> Load {
        let seen = Arc::new(Seen::default());
        let mut links = Vec::new();
        for _ in 0..CONNECTIONS {
            links.push(Link::new(Client::connect(ClientConfig::new(urls)).await.unwrap()).unwrap());
        }
        let mut sessions = Vec::new();
        for number in 0..WRITERS + LOCKERS {
            let cell = links[number % CONNECTIONS].session(SessionOptions::default()).await.unwrap();
            sessions.push((cell.clone(), cell.session()));
        }
        sessions[0].0.create_directories("/load").await.unwrap();
        sessions[0].0.write(COUNTER, "0").await.unwrap();
        let mut tasks = JoinSet::new();
        for (number, (cell, _)) in sessions.iter().enumerate() {
            let (cell, seen) = (cell.clone(), seen.clone());
            match number < WRITERS {
                true => tasks.spawn(write(cell, seen, number)),
                false => tasks.spawn(take_turns(cell, seen)),
            };
        }
        Load { seen, sessions, tasks }
    }

    /// Waits until the cell has acknowledged some more.
    pub async fn goes_on(&self) {
        let goal = self.seen.done.load(SeqCst) + SOME;
        for _ in 0..9_000 {
            if self.seen.done.load(SeqCst) >= goal {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the cell does not serve any more: {:?}", self.states());
    }

    /// How many writes and turns were acknowledged.
    pub fn done(&self) -> u64 {
        self.seen.done.load(SeqCst)
    }

    fn states(&self) -> Vec<(u64, State)> {
        self.sessions.iter().map(|(cell, id)| (*id, cell.state())).collect()
    }

    /// Ends the load and says what was promised.
    pub async fn stop(mut self) -> Promised {
        self.seen.stopped.store(true, SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no task panics").expect("calls wait out every fail-over");
        }
        assert_eq!(*self.seen.wrong.lock().unwrap(), Vec::<String>::new());
        for (cell, id) in &self.sessions {
            assert_eq!((cell.session(), cell.state()), (*id, State::Active), "a session did not survive");
        }
        let written = *self.seen.written.lock().unwrap();
        Promised { written, turns: self.seen.turns.load(SeqCst) }
    }
}

/// Writes growing numbers, and reads them back now and then.
async fn write(cell: Cell, seen: Arc<Seen>, number: usize) -> Result<(), Error> {
    let path = format!("/load/{number}");
    let mut next = 1;
    while seen.goes_on() {
        cell.write(&path, next.to_string()).await?;
        seen.written.lock().unwrap()[number] = next;
        seen.done.fetch_add(1, SeqCst);
        if next % 8 == 0 {
            let read = cell.read(&path).await?;
            let read = read.map(|file| file.text().into_owned());
            if read != Some(next.to_string()) {
                seen.wrong(format!("{path} was acknowledged to hold {next}, and {read:?} was read"));
            }
        }
        next += 1;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Takes the lock, counts under its sequencer, and gives it up.
async fn take_turns(cell: Cell, seen: Arc<Seen>) -> Result<(), Error> {
    let handle = cell.open("/load/lock").lock().create_file("").await?;
    while seen.goes_on() {
        let lock = handle.acquire(Mode::Exclusive).await?;
        if seen.holding.swap(true, SeqCst) {
            seen.wrong("two sessions hold the lock at once".to_owned());
        }
        let before = seen.last_generation.swap(lock.generation(), SeqCst);
        if before >= lock.generation() {
            seen.wrong(format!("generation {} came after {before}", lock.generation()));
        }
        let counter = cell.open(COUNTER).read().write().await?;
        let count: u64 = counter.contents_and_stat().await?.text().parse().expect("we count");
        counter.set_sequencer(lock.sequencer());
        counter.set_contents((count + 1).to_string(), None).await?;
        seen.turns.fetch_add(1, SeqCst);
        seen.done.fetch_add(1, SeqCst);
        seen.holding.store(false, SeqCst);
        lock.release().await?;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// What was acknowledged.
pub struct Promised {
    written: [u64; WRITERS],
    turns: u64,
}

impl Promised {
    /// Asserts that all of it is there.
    pub async fn assert_kept(&self, urls: &[String]) {
        let cell = Cell::connect(ClientConfig::new(urls)).await.expect("a cell is there");
        let paths: Vec<String> = (0..WRITERS).map(|number| format!("/load/{number}")).collect();
        let files = cell.read_many(&paths).await.expect("it answers");
        let found: Vec<u64> = files.iter().map(|file| file.as_ref().unwrap().text().parse().unwrap()).collect();
        assert_eq!(found, self.written, "acknowledged writes were lost");
        let counter = cell.read(COUNTER).await.unwrap().unwrap();
        assert_eq!(counter.text(), self.turns.to_string(), "counts under the lock were lost");
        assert!(self.turns > 0 && self.written.iter().all(|last| *last > 0), "nothing was tested");
        cell.close().await.unwrap();
    }
}
