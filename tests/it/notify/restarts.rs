//! Whoever is killed and comes back has missed nothing.

use super::{hears, lines, metric, publish, registered, start, start_with, told, watcher};
use crate::process::{Server, free_port, http, turn, until};

/// The node's port stays the same from start to start.
fn start_at(dir: &std::path::Path, port: u16) -> Server {
    let config = dir.join("node.toml");
    std::fs::write(&config, super::FAST).unwrap();
    let (config, data, listen) = (config.to_str().unwrap().to_owned(), dir.join("data"), format!("127.0.0.1:{port}"));
    let server = Server::start(&["--config", &config, "--data", data.to_str().unwrap(), "--listen", &listen]);
    server.make_app("shop");
    server
}

#[test]
fn a_node_is_killed_and_restarted_under_a_listener() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let port = free_port();
    let server = start_at(dir.path(), port);
    let watcher = watcher(&server);
    publish(&server, "prices", 1);
    hears(&watcher, "prices", 1);
    server.kill();
    // Whoever looks on learns why nothing comes.
    let told = |event: &str| {
        let events = watcher.err();
        let mut events = events.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        events.any(|line| line["event"] == event && line["message"].is_string()).then_some(())
    };
    until("the loss of the connection is told", || told("disconnected"));
    let server = start_at(dir.path(), port);
    publish(&server, "prices", 2);
    hears(&watcher, "prices", 2);
    until("the return of the connection is told", || told("connected"));
}

#[test]
fn a_client_with_its_state_goes_on_where_it_was() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let state = dir.path().join("state");
    let watch = ["notify", "watch", "shop", "prices", "--json", "--state", state.to_str().unwrap()];
    let watcher = server.start_command(&watch);
    registered(&server, "prices", 1);
    publish(&server, "prices", 1);
    hears(&watcher, "prices", 1);
    until("everything is acknowledged", || {
        let client = &server.run(&["notify", "clients", "shop", "--json"]).json()["clients"][0];
        (client["unacknowledged"] == 0 && client["unknown"] == 0).then_some(())
    });
    drop(watcher);
    // What was published while it was away is all that it hears.
    publish(&server, "prices", 2);
    publish(&server, "prices", 3);
    told(&server, "prices", 3);
    let again = server.start_command(&watch);
    hears(&again, "prices", 3);
    assert!(lines(&again).iter().all(|line| line["version"] == 3), "{:?}", lines(&again));
    // Nobody else can be it meanwhile, and a file that is none of its kind is neither used nor lost.
    assert_eq!(server.run(&watch).failed_json(4)["code"], "notify.state_in_use");
    let notes = dir.path().join("notes.txt");
    std::fs::write(&notes, "milk, eggs\n").unwrap();
    let instead = [&watch[..watch.len() - 1], &[notes.to_str().unwrap()]].concat();
    assert_eq!(server.run(&instead).failed_json(1)["code"], "notify.bad_state_file");
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "milk, eggs\n");
    // It is the same client.
    let clients = server.run(&["notify", "clients", "shop", "--json"]).json();
    assert_eq!(clients["clients"].as_array().unwrap().len(), 1, "{clients}");
    registered(&server, "prices", 1);
}

/// What was not acknowledged to the feed comes again, and what is published again is in it twice: that is heard as once.
#[test]
fn what_the_feed_brings_again_is_heard_as_once() {
    const VERSIONS: u64 = 30;
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let port = free_port();
    let server = start_at(dir.path(), port);
    let watcher = watcher(&server);
    let publish_all = |server: &Server| {
        for version in 1..=VERSIONS {
            let body = format!("{{\"version\": {version}}}");
            assert_eq!(http("POST", server.address, "/v1/notify/shop/prices", &body).unwrap().0, 204);
        }
    };
    publish_all(&server);
    server.kill();
    let server = start_at(dir.path(), port);
    hears(&watcher, "prices", VERSIONS);
    until("it publishes", || (server.run(&["notify", "publish", "shop", "prices", "1"]).code == 0).then_some(()));
    publish_all(&server);
    publish(&server, "prices", VERSIONS + 1);
    hears(&watcher, "prices", VERSIONS + 1);
    let told: Vec<u64> = lines(&watcher).iter().filter_map(|line| line["version"].as_u64()).collect();
    assert!(told.is_sorted() && told.windows(2).all(|pair| pair[0] < pair[1]), "{told:?}");
    registered(&server, "prices", 1);
}

/// F3: rows from before a reset or a wipe are nobody's, and go; those who are there notice nothing.
#[test]
fn what_is_left_of_a_reset_and_of_a_wipe_is_deleted() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    // Looked through every 2 s: a tenth of it.
    let server = start_with(dir.path(), "keep_tombstones = \"20s\"\n");
    let watcher = watcher(&server);
    let reset = &["notify", "reset", "shop", "--yes"][..];
    for (round, forget) in (1..).zip([reset, reset, &["notify", "wipe", "--yes"]]) {
        publish(&server, "prices", 10 * round);
        hears(&watcher, "prices", 10 * round);
        told(&server, "prices", 10 * round);
        let deleted = metric(&server, "tidings_notify_leftovers_total");
        until("all is forgotten", || (server.run(forget).code == 0).then_some(()));
        publish(&server, "prices", 10 * round + 1);
        hears(&watcher, "prices", 10 * round + 1);
        until("the client, the object and its registration are deleted", || {
            (metric(&server, "tidings_notify_leftovers_total") >= deleted + 3).then_some(())
        });
        registered(&server, "prices", 1);
    }
    publish(&server, "prices", 100);
    hears(&watcher, "prices", 100);
}

/// F3: a cell that was restored has the realm of then. Nobody misses a publication by it, whatever happened since the backup.
#[test]
fn a_cell_that_is_restored_takes_no_publication_away() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let watcher = watcher(&server);
    let version = std::cell::Cell::new(0);
    let next = |watchers: &[&crate::process::Running]| {
        version.set(version.get() + 1);
        publish(&server, "prices", version.get());
        watchers.iter().for_each(|watcher| hears(watcher, "prices", version.get()));
    };
    let wipe = &["notify", "wipe", "--yes"][..];
    for since in [wipe, &["notify", "reset", "shop", "--yes"], &["notify", "rotate-keys"]] {
        next(&[&watcher]);
        let backup = dir.path().join(format!("cell-{}", version.get()));
        let backup = backup.to_str().unwrap();
        assert_eq!(server.run(&["cell", "backup", backup]).code, 0);
        until("something happens since", || (server.run(since).code == 0).then_some(()));
        next(&[&watcher]);
        let restore = &["cell", "restore", backup, "--replace", "--yes"];
        until("the cell is restored", || (server.run(restore).code == 0).then_some(()));
        next(&[&watcher]);
        let newcomer = server.start_command(&["notify", "watch", "shop", "prices", "--json"]);
        registered(&server, "prices", 2);
        next(&[&watcher, &newcomer]);
        until("all is forgotten", || (server.run(wipe).code == 0).then_some(()));
        next(&[&watcher, &newcomer]);
        newcomer.signal(rustix::process::Signal::TERM);
        assert_eq!(newcomer.ended().code, 0);
    }
}
