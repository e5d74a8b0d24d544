//! The library against a node: acknowledgements are the application's, and a cached value is always fresh.

use super::{publish, start};
use crate::process::{Server, turn, until};
use bytes::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidings_client::notify::{Cached, CachedOptions, Event, Events, Listener, ListenerOptions, Notification, State};
use tidings_client::{Client, ClientConfig};
use tokio::runtime::Runtime;

type Kept = Arc<Mutex<Option<Bytes>>>;

/// A listener for `prices` in `shop` that keeps its state in memory.
fn listen(runtime: &Runtime, server: &Server, kept: &Kept) -> (Listener, Events) {
    let _in = runtime.enter();
    let config = ClientConfig { app: Some("shop".into()), ..ClientConfig::new([server.url()]) };
    let (state, writes) = (kept.lock().unwrap().clone(), kept.clone());
    let state = State::callback(state, move |bytes| *writes.lock().unwrap() = Some(bytes));
    let options = ListenerOptions { state, ..ListenerOptions::default() };
    Listener::start(Client::new(config).unwrap(), options).unwrap()
}

/// The next version; unknowns are acknowledged.
fn next_version(runtime: &Runtime, listener: &Listener, events: &mut Events) -> Notification {
    let heard = async {
        loop {
            match events.next().await.expect("the listener lives") {
                Event::Notify(news) => return news,
                Event::Unknown(unknown) => unknown.ack(),
                Event::Reissue => {
                    listener.register("prices", 0);
                    listener.reissued();
                }
                _ => {}
            }
        }
    };
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), heard).await }).expect("a version is heard")
}

#[test]
fn what_was_not_acknowledged_comes_again_after_a_restart() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let runtime = Runtime::new().unwrap();
    let kept = Kept::default();
    publish(&server, "prices", 1);
    let (listener, mut events) = listen(&runtime, &server, &kept);
    assert_eq!(next_version(&runtime, &listener, &mut events).version, 1);
    // It dies before it has dealt with it.
    drop((listener, events));
    let (listener, mut events) = listen(&runtime, &server, &kept);
    let again = next_version(&runtime, &listener, &mut events);
    assert_eq!(again.version, 1);
    again.ack();
    until("it is acknowledged", || {
        let clients = server.run(&["notify", "clients", "shop", "--json"]).json();
        assert_eq!(clients["clients"].as_array().unwrap().len(), 1, "the state was kept: {clients}");
        (clients["clients"][0]["unacknowledged"] == 0).then_some(())
    });
    drop((listener, events));
    let (listener, mut events) = listen(&runtime, &server, &kept);
    publish(&server, "prices", 2);
    assert_eq!(next_version(&runtime, &listener, &mut events).version, 2);
}

#[test]
fn a_cached_value_is_fetched_again_when_it_changes() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let runtime = Runtime::new().unwrap();
    let backend = Arc::new(AtomicU64::new(10));
    let fetched = backend.clone();
    let _in = runtime.enter();
    let config = ClientConfig { app: Some("shop".into()), ..ClientConfig::new([server.url()]) };
    let options = CachedOptions { jitter: Duration::from_millis(10), ..CachedOptions::default() };
    let client = Client::new(config).unwrap();
    let cached = Cached::start(client, "prices", options, move || {
        let value = fetched.load(Ordering::SeqCst);
        async move { Ok(value) }
    });
    let cached = cached.unwrap();
    let shows = |value: u64| {
        until("the value is fresh", || (cached.get().as_deref() == Some(&value)).then_some(()));
    };
    shows(10);
    for version in 11..14 {
        backend.store(version, Ordering::SeqCst);
        publish(&server, "prices", version);
        shows(version);
    }
}
