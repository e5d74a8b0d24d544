//! Clients that misbehave: whoever does hears of it by name or is closed, and everybody else hears as before.

use super::strangers::{PRICES, Stranger};
use super::{hears, publish, registered, start, start_with};
use crate::process::{Server, http, http_get, turn, until};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// A number of `/metrics`.
fn metric(server: &Server, name: &str) -> u64 {
    let said = http_get(server.address, "/metrics").expect("the server answers").1;
    let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok());
    line.unwrap_or_default() as u64
}

/// NATS #1520: one who takes nothing costs the node a bounded queue, and the others nothing.
#[test]
fn a_client_that_reads_nothing_is_closed_and_the_others_hear_everything() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    // Whoever is asked for a sign of life and reads nothing gives none.
    let server = start_with(dir.path(), "[timings]\nping_after = \"500ms\"\ndead_after = \"3s\"\n");
    let runtime = Runtime::new().unwrap();
    let mut deaf = runtime.block_on(async {
        let mut deaf = Stranger::connect(&server).await;
        let token = deaf.begin(1).await;
        deaf.register(&token).await;
        deaf
    });
    let watcher = server.start_command(&["notify", "watch", "shop", "prices", "--json"]);
    registered(&server, "prices", 2);
    let payload = "x".repeat(4 << 10);
    let mut version = 0;
    until("something is dropped for it", || {
        version += 1;
        let body = json!({ "version": version, "payload": payload }).to_string();
        assert_eq!(http("POST", server.address, "/v1/notify/shop/prices", &body).unwrap().0, 204);
        // One who reads nothing still may speak: so far it lives.
        runtime.block_on(deaf.say(json!({ "control": { "ping": { "nonce": "7" } } })));
        (metric(&server, "tidings_notify_dropped_total") > 0).then_some(())
    });
    hears(&watcher, "prices", version);
    until("it is closed", || (metric(&server, "tidings_notify_channels") == 1).then_some(()));
    publish(&server, "prices", version + 1);
    hears(&watcher, "prices", version + 1);
}

/// F9: an ack of what was never sent would hide what comes.
#[test]
fn an_ack_of_the_future_hides_nothing() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    publish(&server, "other", 1);
    Runtime::new().unwrap().block_on(async {
        let mut stranger = Stranger::connect(&server).await;
        let token = stranger.begin(1).await;
        stranger.register(&token).await;
        publish(&server, "prices", 5);
        assert_eq!(stranger.notified("version").await, "5");
        let acks = json!([{ "object": PRICES, "version": "1000" }]);
        stranger.up(json!({ "token": token, "contact": "1", "latest": "1", "first": "2", "acks": acks })).await;
        // Whether it was taken: its answer comes after it.
        stranger.hear(|frame| (frame["notify"]["down"]["echo"] == "1").then_some(())).await;
        publish(&server, "prices", 6);
        stranger.hears(6).await;
    });
}

#[test]
fn who_registers_and_unregisters_in_a_loop_ends_with_what_it_said_last() {
    const ROUNDS: u64 = 20;
    const CHANGES: u64 = 200;
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let watcher = server.start_command(&["notify", "watch", "shop", "prices", "--json"]);
    registered(&server, "prices", 1);
    Runtime::new().unwrap().block_on(async {
        let mut restless = Stranger::connect(&server).await;
        let token = restless.begin(1).await;
        for round in 0..ROUNDS {
            // In the end it is registered.
            let change = |at: u64| match (at + 1) % 2 {
                1 => json!({ "unregister": PRICES }),
                _ => json!({ "register": { "object": PRICES } }),
            };
            let changes: Vec<Value> = (0..CHANGES).map(change).collect();
            let (first, latest) = ((round * CHANGES + 1).to_string(), ((round + 1) * CHANGES).to_string());
            let up = json!({ "token": token, "contact": "1", "latest": latest, "first": first, "changes": changes });
            restless.up(up).await;
            restless.hear(|frame| (frame["notify"]["down"]["echo"] == latest).then_some(())).await;
            publish(&server, "prices", round + 1);
            restless.say(json!({ "op": "1", "control": { "credit": { "frames": 8 } } })).await;
        }
        hears(&watcher, "prices", ROUNDS);
        publish(&server, "prices", ROUNDS + 1);
        restless.hears(ROUNDS + 1).await;
    });
    registered(&server, "prices", 2);
}

#[test]
fn who_reconnects_as_fast_as_it_can_disturbs_nobody() {
    const TIMES: u64 = 400;
    const AT_ONCE: u64 = 8;
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let watcher = server.start_command(&["notify", "watch", "shop", "prices", "--json"]);
    registered(&server, "prices", 1);
    let runtime = Runtime::new().unwrap();
    let storm = |part: u64| {
        let server = &server;
        async move {
            for time in 0..TIMES / AT_ONCE {
                // A handshake whose answer it does not wait for.
                let mut hasty = Stranger::connect(server).await;
                let nonce = (1 + part * TIMES + time).to_string();
                hasty.up(json!({ "hello": { "nonce": nonce }, "contact": "1" })).await;
                if time % 10 == 0 && part == 0 {
                    publish(server, "prices", time + 1);
                }
            }
        }
    };
    runtime.block_on(futures::future::join_all((0..AT_ONCE).map(storm)));
    publish(&server, "prices", TIMES);
    hears(&watcher, "prices", TIMES);
    until("all of them are gone", || (metric(&server, "tidings_notify_channels") == 1).then_some(()));
}
