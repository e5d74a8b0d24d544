//! Clients that misbehave: whoever does hears of it by name or is closed, and everybody else hears as before.

use super::strangers::{PRICES, Stranger};
use super::{hears, metric, publish, registered, start, start_with, watcher};
use crate::process::{http, turn, until};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// NATS #1520: one who takes nothing costs the node a bounded queue, and the others nothing.
#[test]
fn a_client_that_reads_nothing_is_closed_and_the_others_hear_everything() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    // Whoever is asked for a sign of life and reads nothing gives none.
    let server = start_with(dir.path(), "[timings]\nping_after = \"2s\"\ndead_after = \"8s\"\n");
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

/// Room for everything that a test is told.
fn credit() -> Value {
    json!({ "op": "1", "control": { "credit": { "frames": 4096 } } })
}

#[test]
fn who_never_acknowledges_is_told_again_and_holds_up_nobody() {
    const VERSIONS: u64 = 40;
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let watcher = watcher(&server);
    Runtime::new().unwrap().block_on(async {
        let mut mute = Stranger::connect(&server).await;
        let token = mute.begin(1).await;
        mute.register(&token).await;
        mute.say(credit()).await;
        for version in 1..=VERSIONS {
            publish(&server, "prices", version);
            hears(&watcher, "prices", version);
        }
        // Once when it was published, and once more since nobody said that it had come.
        mute.hears(VERSIONS).await;
        mute.hears(VERSIONS).await;
        // However much it has missed, that is one entry.
        until("the watcher has acknowledged all, and one is owed", || {
            let clients = server.run(&["notify", "clients", "shop", "--json"]).json();
            let owed = clients["clients"].as_array()?.iter().filter_map(|client| client["unacknowledged"].as_u64());
            (owed.sum::<u64>() == 1).then_some(())
        });
        drop(mute);
        let mut back = Stranger::connect(&server).await;
        let hello = json!({ "nonce": "2", "previous": token, "persistent": true });
        back.up(json!({ "hello": hello, "contact": "2" })).await;
        back.hears(VERSIONS).await;
    });
}

#[test]
fn who_breaks_a_limit_hears_so_by_name_and_the_others_hear_everything() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start_with(dir.path(), "registrations = 2\n");
    let watcher = watcher(&server);
    Runtime::new().unwrap().block_on(async {
        let mut greedy = Stranger::connect(&server).await;
        let token = greedy.begin(1).await;
        let change = |name: &str| json!({ "register": { "object": name } });
        // `a`, `b`, `c`
        let changes = ["YQ==", "Yg==", "Yw=="].map(change);
        let up = |first: u64, changes: Value| json!({ "token": token, "contact": "1", "latest": "3", "first": first.to_string(), "changes": changes });
        greedy.up(up(1, json!(changes))).await;
        let failed = greedy.hear(|frame| {
            let statuses = frame["notify"]["down"]["statuses"].as_array()?;
            statuses.iter().find(|status| !status["failure"].is_null()).cloned()
        });
        let failed = failed.await;
        assert_eq!((&failed["object"], &failed["failure"]), (&"Yw==".into(), &"REGISTRATION_FAILURE_PERMANENT".into()));
        let many: Vec<Value> = (0..513).map(|_| change("YQ==")).collect();
        greedy.up(up(4, json!(many))).await;
        let reason = |frame: &Value| frame["notify"]["down"]["refusal"]["reason"].as_str().map(str::to_owned);
        assert_eq!(greedy.hear(reason).await, "NOTIFY_REFUSED_INVALID");
        // What is no frame, and what is too long for one, ends the connection.
        for (nonsense, code) in [("{".to_owned(), "control.malformed"), ("x".repeat(3 << 20), "control.too_large")] {
            assert_eq!(Stranger::connect(&server).await.ended_by(nonsense).await, code);
        }
    });
    publish(&server, "prices", 7);
    hears(&watcher, "prices", 7);
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
    let watcher = watcher(&server);
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
    let watcher = watcher(&server);
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

/// The same client again and again, by its token: each time it is the same one, and what comes last counts.
#[test]
fn who_comes_back_a_thousand_times_is_one_client_and_is_reached_where_it_is() {
    const TIMES: u64 = 1_000;
    const AT_ONCE: u64 = 8;
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let watcher = watcher(&server);
    Runtime::new().unwrap().block_on(async {
        let mut restless = Stranger::connect(&server).await;
        let token = restless.begin(1).await;
        restless.register(&token).await;
        let up = |contact: u64| json!({ "token": token, "contact": contact.to_string(), "latest": "1", "first": "2" });
        let storm = |part: u64| {
            let server = &server;
            async move {
                for time in 0..TIMES / AT_ONCE {
                    let mut hasty = Stranger::connect(server).await;
                    hasty.up(up(2 + time * AT_ONCE + part)).await;
                    if time % 25 == 0 && part == 0 {
                        publish(server, "prices", time + 1);
                    }
                }
            }
        };
        futures::future::join_all((0..AT_ONCE).map(storm)).await;
        publish(&server, "prices", TIMES);
        hears(&watcher, "prices", TIMES);
        let mut last = Stranger::connect(&server).await;
        last.up(up(TIMES + 2)).await;
        last.hears(TIMES).await;
        publish(&server, "prices", TIMES + 1);
        last.hears(TIMES + 1).await;
    });
    let clients = server.run(&["notify", "clients", "shop", "--json"]).json();
    assert_eq!(clients["clients"].as_array().unwrap().len(), 2, "{clients}");
}
