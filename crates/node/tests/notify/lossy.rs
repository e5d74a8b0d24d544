//! A channel within the process that loses, repeats, reorders and breaks, by a seed, and clients that have nothing better: they
//! learn every latest version all the same.

use super::{fast, publishing};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidings_base::{Error, Machine as _, Outbox, Seeded};
use tidings_client::notify::{Publication, publish};
use tidings_node::notify::Adapter;
use tidings_node::principal::OperatorBy;
use tidings_node::{Clock, Node, Principal, SystemClock};
use tidings_notify::client::{Client as Machine, Event, Input, Options, Output};
use tidings_wire::{error, v1};
use tokio::sync::mpsc;

/// Messages are late by so much, more or less: they overtake each other.
const LATE_MS: u64 = 40;
/// A channel breaks after about so many messages of its client.
const BREAKS: u64 = 30;

/// One direction of a bad channel.
struct Bad<T> {
    rng: Seeded,
    way: mpsc::UnboundedSender<T>,
}

impl<T: Clone + Send + 'static> Bad<T> {
    /// One in four is lost, one in eight comes twice, and each when it likes.
    fn carry(&mut self, message: T) {
        if self.rng.one_in(4) {
            return;
        }
        for _ in 0..=u64::from(self.rng.one_in(8)) {
            let (way, message, late) = (self.way.clone(), message.clone(), self.rng.below(LATE_MS));
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(late)).await;
                let _ = way.send(message);
            });
        }
    }
}

/// The node's end.
struct Lossy {
    ups: mpsc::UnboundedReceiver<v1::NotifyUp>,
    downs: Bad<v1::NotifyDown>,
    left: u64,
}

impl Adapter for Lossy {
    async fn receive(&mut self) -> Result<v1::NotifyUp, Error> {
        let up = self.ups.recv().await.ok_or_else(error::closed)?;
        self.left = self.left.checked_sub(1).ok_or_else(error::closed)?;
        Ok(up)
    }

    async fn send(&mut self, message: Box<v1::NotifyDown>) -> Result<(), Error> {
        self.downs.carry(*message);
        Ok(())
    }

    fn close(self, _: Error) {}
}

/// What versions `publish` was called for.
#[derive(Default)]
struct Backend {
    called: BTreeMap<Bytes, AtomicU64>,
}

/// A client with the machine of the library and channels of the worst kind.
struct Device {
    machine: Machine,
    outbox: Outbox<Output>,
    rng: Seeded,
    node: Arc<Node>,
    backend: Arc<Backend>,
    known: Arc<Mutex<BTreeMap<Bytes, u64>>>,
    channel: Option<(Bad<v1::NotifyUp>, mpsc::UnboundedReceiver<v1::NotifyDown>)>,
}

impl Device {
    async fn run(mut self) {
        self.take(Input::Start { state: None }).await;
        loop {
            let pause = self.machine.deadline().map_or(Duration::MAX, |at| at.since(SystemClock.now().mono));
            let heard = async {
                match &mut self.channel {
                    Some((_, downs)) => downs.recv().await,
                    None => std::future::pending().await,
                }
            };
            let input = tokio::select! {
                heard = heard => Some(heard.map_or(Input::Closed, |down| Input::Received(Box::new(down)))),
                () = tokio::time::sleep(pause.min(Duration::from_secs(1))) => None,
            };
            match input {
                Some(input) => {
                    if matches!(input, Input::Closed) {
                        self.channel = None;
                    }
                    self.take(input).await;
                }
                None => {
                    self.machine.wake(SystemClock.now(), &mut self.outbox);
                    self.perform().await;
                }
            }
        }
    }

    async fn take(&mut self, input: Input) {
        self.machine.handle(SystemClock.now(), input, &mut self.outbox);
        self.perform().await;
    }

    async fn perform(&mut self) {
        let mut outputs: Vec<Output> = self.outbox.drain().collect();
        while !outputs.is_empty() {
            let mut said = Vec::new();
            for output in outputs {
                match output {
                    Output::Connect => said.push(self.connect().await),
                    Output::Send(up) => {
                        if let Some((ups, _)) = &mut self.channel {
                            ups.carry(*up);
                        }
                    }
                    Output::Event(event) => said.extend(self.told(event)),
                    Output::WriteState(_) | Output::Left => {}
                }
            }
            for input in said {
                self.machine.handle(SystemClock.now(), input, &mut self.outbox);
            }
            outputs = self.outbox.drain().collect();
        }
    }

    async fn connect(&mut self) -> Input {
        let principal = Principal::operator(OperatorBy::Unconfigured).acting_in("shop").unwrap();
        let Ok(seat) = self.node.channel(&principal).await else { return Input::Closed };
        let ((ups, said), (downs, heard)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let mut bad = || Seeded::new(self.rng.next_u64());
        let adapter = Lossy { ups: said, downs: Bad { rng: bad(), way: downs }, left: 1 + bad().below(2 * BREAKS) };
        self.channel = Some((Bad { rng: bad(), way: ups }, heard));
        tokio::spawn(seat.serve(adapter));
        Input::Opened
    }

    /// An application that deals with everything at once.
    fn told(&mut self, event: Event) -> Vec<Input> {
        let called = |object: &Bytes| self.backend.called[object].load(Ordering::SeqCst);
        let learn = |object: &Bytes, version: u64| {
            let mut known = self.known.lock();
            let known = known.entry(object.clone()).or_default();
            *known = version.max(*known);
        };
        match event {
            Event::Reissue => {
                let register = |object: &Bytes| Input::Register { object: object.clone(), known: 0 };
                self.backend.called.keys().map(register).chain([Input::Reissued]).collect()
            }
            Event::Notify { object, version, .. } => {
                assert!(version <= called(&object), "N2: nobody published version {version}");
                learn(&object, version);
                vec![Input::Acked { object, version }]
            }
            Event::NotifyUnknown { object, number } => {
                learn(&object, called(&object));
                vec![Input::AckedUnknown { object, number }]
            }
            _ => Vec::new(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_channel_loses_repeats_or_reorders_everybody_learns_the_latest_version() {
    const DEVICES: u64 = 8;
    const VERSIONS: u64 = 20;
    let dir = tempfile::tempdir().unwrap();
    let node = Arc::new(Node::start(fast(dir.path())).await.expect("the node starts"));
    let objects: Vec<Bytes> = ["one", "two", "three"].map(Bytes::from).into();
    let called = objects.iter().map(|object| (object.clone(), AtomicU64::new(0))).collect();
    let backend = Arc::new(Backend { called });
    let publisher = publishing(&node).await;
    let mut devices = tokio::task::JoinSet::new();
    let mut knowing = Vec::new();
    for seed in 1..=DEVICES {
        let millis = Duration::from_millis;
        let options = Options {
            seed,
            heartbeat: None,
            retry_first: millis(100),
            retry_longest: millis(400),
            reconnect_first: millis(50),
            reconnect_longest: millis(200),
            ..Options::default()
        };
        let known = Arc::new(Mutex::default());
        knowing.push(known.clone());
        let device = Device {
            machine: Machine::new(options),
            outbox: Outbox::new(),
            rng: Seeded::new(seed).fork("device"),
            node: node.clone(),
            backend: backend.clone(),
            known,
            channel: None,
        };
        devices.spawn(device.run());
    }
    for version in 1..=VERSIONS {
        for object in &objects {
            backend.called[object].store(version, Ordering::SeqCst);
            publish(&publisher, [Publication::new(object.clone(), version)]).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let fresh = async {
        while !knowing.iter().all(|known| objects.iter().all(|o| known.lock().get(o) == Some(&VERSIONS))) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if let Some(ended) = devices.try_join_next() {
                ended.expect("no device breaks");
            }
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(120), fresh).await;
    assert!(in_time.is_ok(), "N1: some stay stale: {knowing:?}");
    devices.shutdown().await;
}
