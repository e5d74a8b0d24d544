//! The engine under its deterministic runtime: it passes the suite that the model passes.

use commonware_runtime::deterministic::{Context, Runner};
use commonware_runtime::{Clock, Handle, Runner as _, Spawner, Supervisor};
use commonware_utils::Acknowledgement;
use commonware_utils::acknowledgement::Exact;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tidings_bft::command::{Name, Signed};
use tidings_bft::engine::chain::{self, Beginning, PATIENCE};
use tidings_bft::engine::delivery::{Delivered, Outlet};
use tidings_bft::engine::proposer::Proposer;
use tidings_bft::engine::steady::Time;
use tidings_bft::engine::{Identity, wires};
use tidings_bft::keys::Purpose;
use tidings_bft::membership::{Founded, Membership, found};
use tidings_bft::pool::Pool;
use tidings_sketch::ReplicaId;
use tidings_sketch::replica::{Block, Command, Ordering, suite};
use tokio::sync::mpsc::UnboundedReceiver;

/// How long the engine is let work at a time.
const WHILE: Duration = Duration::from_millis(50);

fn address(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn group(replicas: u16) -> Founded {
    let addresses: Vec<_> = (0..replicas).map(|number| (address(7_000 + number), address(7_100 + number))).collect();
    let mut last = 0;
    let count = || {
        last += 1;
        Ok([last; 32])
    };
    found("suite", &addresses, 1, count).unwrap()
}

/// A replica's order, and what has come of it.
struct Post {
    pool: Arc<Pool>,
    batches: UnboundedReceiver<Delivered>,
    /// By height: what to acknowledge, and what is in it.
    unexecuted: BTreeMap<u64, (Exact, Vec<Name>)>,
    executed: u64,
    starts: u16,
    task: Handle<()>,
}

struct Group {
    context: Context,
    founded: Founded,
    membership: Arc<Membership>,
    posts: Vec<Post>,
}

impl Group {
    fn start(context: Context, replicas: u16) -> Group {
        let founded = group(replicas);
        let membership = Arc::new(founded.membership.clone());
        let mut group = Group { context, founded, membership, posts: Vec::new() };
        for number in 0..replicas {
            let post = group.post(number, 0, 0);
            group.posts.push(post);
        }
        group
    }

    fn post(&self, number: u16, starts: u16, executed: u64) -> Post {
        let pool = Arc::new(Pool::default());
        pool.executed(executed, []);
        let (outlet, batches) = Outlet::new();
        let secret = &self.founded.replicas[usize::from(number)].secret;
        let identity = Identity::new(self.membership.clone(), secret, true).unwrap();
        let proposer = Proposer::new(self.membership.clone(), pool.clone(), PATIENCE);
        // The runtime's addresses are never free again; who is back is found by connecting itself.
        let listen = address(7_000 + number + 200 * starts);
        let context = self.context.child("replica").with_attribute("number", number);
        let task = context.spawn(move |context| async move {
            let day = Time::of({
                let context = context.child("day");
                move || context.current()
            });
            let wires = wires::open(&context, &identity, listen, day).unwrap();
            let order = chain::start(&context, &identity, Beginning::Genesis, wires.order, proposer, outlet);
            let chain = order.await.unwrap();
            let _kept = (wires.commands, wires.snapshots);
            let ended = tokio::select! {
                ended = chain.simplex => ended,
                ended = chain.marshal => ended,
                ended = wires.ended => ended,
            };
            panic!("replica {number} ends by itself: {ended:?}");
        });
        Post { pool, batches, unexecuted: BTreeMap::new(), executed, starts, task }
    }

    async fn answer(&mut self, ask: Ask) -> Option<Block> {
        match ask {
            Ask::Submit(at, command) => {
                let client = &self.founded.clients[0].secret;
                let signed = Signed::new(&self.membership, client, Purpose::Order, command);
                self.posts[usize::from(at.0)].pool.add(signed);
            }
            Ask::Next(at) => return self.posts[usize::from(at.0)].next(),
            Ask::Executed(at, height) => self.posts[usize::from(at.0)].executed(height),
            Ask::Restarted(at) => {
                let post = &mut self.posts[usize::from(at.0)];
                post.task.abort();
                let _ = (&mut post.task).await;
                let (starts, executed) = (post.starts + 1, post.executed);
                self.posts[usize::from(at.0)] = self.post(at.0, starts, executed);
            }
            Ask::Work => self.context.sleep(WHILE).await,
        }
        None
    }
}

impl Post {
    fn next(&mut self) -> Option<Block> {
        let (batch, acknowledgement) = self.batches.try_recv().ok()?;
        let names = batch.inner().commands().iter().map(Signed::name).collect();
        let block = batch.inner().ordered();
        self.unexecuted.insert(block.height, (acknowledgement, names));
        if block.height > 0 {
            return Some(block);
        }
        self.executed(0);
        self.next()
    }

    fn executed(&mut self, height: u64) {
        self.executed = self.executed.max(height);
        let later = self.unexecuted.split_off(&(height + 1));
        for (height, (acknowledgement, names)) in std::mem::replace(&mut self.unexecuted, later) {
            self.pool.executed(height, names);
            acknowledgement.acknowledge();
        }
    }
}

enum Ask {
    Submit(ReplicaId, Command),
    Next(ReplicaId),
    Executed(ReplicaId, u64),
    Restarted(ReplicaId),
    Work,
}

/// The group as the suite drives it, from a thread of its own: time stands still while the suite thinks.
struct Driven(mpsc::Sender<(Ask, mpsc::Sender<Option<Block>>)>);

impl Driven {
    fn ask(&self, ask: Ask) -> Option<Block> {
        let (answer, answered) = mpsc::channel();
        self.0.send((ask, answer)).expect("the group runs");
        answered.recv().expect("the group answers")
    }
}

impl Ordering for Driven {
    fn submit(&mut self, at: ReplicaId, command: Command) {
        self.ask(Ask::Submit(at, command));
    }

    fn next(&mut self, at: ReplicaId) -> Option<Block> {
        self.ask(Ask::Next(at))
    }

    fn executed(&mut self, at: ReplicaId, height: u64) {
        self.ask(Ask::Executed(at, height));
    }

    fn restarted(&mut self, at: ReplicaId) {
        self.ask(Ask::Restarted(at));
    }

    fn work(&mut self) {
        self.ask(Ask::Work);
    }
}

fn check(seed: u64, replicas: u16) {
    Runner::seeded(seed).start(|context| async move {
        let mut group = Group::start(context, replicas);
        let (asks, asked) = mpsc::channel();
        let suite = std::thread::spawn(move || suite::check(&mut Driven(asks), replicas));
        while let Ok((ask, answer)) = asked.recv() {
            let _ = answer.send(group.answer(ask).await);
        }
        let ended = suite.join().expect("the suite ends");
        assert_eq!(ended, Ok(()), "seed {seed}, {replicas} replicas");
    });
}

/// The seeds that are asked for, as `FIRST..LAST`, both included; otherwise these.
fn seeds(otherwise: RangeInclusive<u64>) -> RangeInclusive<u64> {
    let Ok(asked) = std::env::var("TIDINGS_ORDER_SEEDS") else { return otherwise };
    let (first, last) = asked.split_once("..").expect("TIDINGS_ORDER_SEEDS is FIRST..LAST");
    let number = |text: &str| text.parse().expect("TIDINGS_ORDER_SEEDS holds two numbers");
    number(first)..=number(last)
}

fn check_all(seeds: RangeInclusive<u64>, replicas: u16) {
    for seed in seeds {
        // Of a suite that hangs, the last line says where.
        println!("seed {seed}, {replicas} replicas: TIDINGS_ORDER_SEEDS={seed}..{seed}");
        check(seed, replicas);
    }
}

#[test]
fn four_replicas_pass_the_suite() {
    check_all(seeds(1..=3), 4);
}

#[test]
fn seven_replicas_pass_the_suite() {
    check_all(seeds(4..=4), 7);
}
