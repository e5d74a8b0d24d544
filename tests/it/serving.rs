//! `serve`: what it prints, and what it refuses, by name.

use crate::process::{Running, Server, free_port, http, http_get, run, tidings, turn, until};
use futures::{SinkExt, StreamExt};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use tidings_client::ws::{self, Form};
use tokio_tungstenite::tungstenite::Message;

#[test]
fn a_fresh_server_becomes_ready_and_says_what_to_try() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let server = Server::embedded(data.path());
    assert_eq!(http_get(server.address, "/healthz").unwrap().0, 200);
    let said = until("it says what to try", || Some(server.said()).filter(|said| said.contains("store get")));
    let tries: Vec<&str> = said.lines().filter(|line| line.starts_with("  tidings ")).collect();
    assert_eq!(tries.len(), 6, "{said}");

    let status = server.run(&["status", "--json"]).json();
    assert_eq!(status["node"], 1);
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["groups"][0]["role"], "leader");
    assert_eq!(status["problems"], serde_json::json!([]));
    assert!(server.run(&["status"]).out.contains("no problems"));
    assert_eq!(server.terminate(), 0);
}

#[test]
fn a_log_for_machines_is_json_on_every_line() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let data = data.path().to_str().unwrap();
    let server = Server::start(&["--data", data, "--listen", "127.0.0.1:0", "--log-format", "json"]);
    let logged = |said: &str| -> Vec<serde_json::Value> {
        let lines = said.lines().filter(|line| line.starts_with('{'));
        lines.map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    };
    until("it has logged that it serves", || {
        let found = logged(&server.said()).into_iter().find(|line| line["message"] == "serving")?;
        assert_eq!(found["level"], "INFO");
        assert!(found["timestamp"].is_string(), "{found}");
        Some(())
    });
    let said = server.said();
    assert!(!said.lines().any(|line| line.contains(" INFO ")), "{said}");
}

#[test]
fn a_port_in_use_is_named() {
    let _turn = turn();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let data = tempfile::tempdir().unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = run(&["serve", "--data", data.path().to_str().unwrap(), "--listen", &address]);
    said.failed(4, &address);
    assert!(said.err.contains("in use by another program") && said.err.contains("ss -ltnp"), "{said:?}");
}

#[test]
fn a_data_directory_belongs_to_one_process() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let first = Server::embedded(data.path());
    let said = run(&["serve", "--data", data.path().to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    said.failed(4, data.path().to_str().unwrap());
    // The first one is not disturbed.
    assert_eq!(first.run(&["store", "put", "g", "r", "c", "v"]).code, 0);
}

#[test]
fn a_data_directory_of_a_newer_version_is_refused_and_left_alone() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    assert_eq!(Server::embedded(data.path()).terminate(), 0);
    let format = data.path().join("FORMAT");
    let text = std::fs::read_to_string(&format).unwrap();
    let newer = text.replace(|c: char| c.is_ascii_digit(), "9");
    assert_ne!(text, newer);
    std::fs::write(&format, &newer).unwrap();
    let said = run(&["serve", "--data", data.path().to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    said.failed(4, "newer");
    assert_eq!(std::fs::read_to_string(&format).unwrap(), newer);
}

#[test]
fn a_bad_configuration_is_told_with_file_line_and_expectation() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("node.toml");
    let path = config.to_str().unwrap();
    for (text, place, expected) in [
        ("node = 1\nlisten = 7400\n", ":2:10", "socket address"),
        ("node = 1\nlisen = \"127.0.0.1:7400\"\n", ":2:1", "unknown field `lisen`"),
        ("node = \n", ":1:", "node.bad_config"),
        ("[timings]\ndrain = \"soon\"\n", ":2:9", "a duration such as"),
    ] {
        std::fs::write(&config, text).unwrap();
        let said = run(&["serve", "--config", path]);
        said.failed(2, &format!("{path}{place}"));
        assert!(said.err.contains(expected), "{said:?}");
    }
    run(&["serve", "--config", "/no/such/file.toml"]).failed(3, "/no/such/file.toml");
}

#[test]
fn listening_beyond_loopback_needs_tls_and_auth_or_the_flag() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let data = data.path().to_str().unwrap();
    let everywhere = format!("0.0.0.0:{}", free_port());
    run(&["serve", "--data", data, "--listen", &everywhere]).failed(4, "beyond loopback");
    let named = run(&["serve", "--data", data, "--listen", "localhost:7400"]);
    assert!(named.code == 2 && named.err.contains("an IP address and a port"), "{named:?}");
    let server = Server::spawn(&["--data", data, "--listen", &everywhere, "--insecure-listen"]);
    assert!(server.said().contains("insecure"), "{}", server.said());
}

#[test]
fn a_place_that_cannot_be_written_to_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a-file");
    std::fs::write(&file, "not a directory").unwrap();
    let said = run(&["serve", "--data", file.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    said.failed(2, "a-file is not a directory");
    run(&["serve", "--data", "/proc/nope", "--listen", "127.0.0.1:0"]).failed(1, "cannot create /proc/nope");
}

/// Whoever mistypes an address finds no directory that he would have to remove.
#[test]
fn a_start_that_is_refused_leaves_nothing_behind() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (taken, data) = (taken.local_addr().unwrap().to_string(), dir.path().join("new/data"));
    let data = data.to_str().unwrap();
    let config = dir.path().join("node.toml");
    let members = "[[members]]\nnode = 1\naddress = \"127.0.0.1:1\"\n[[members]]\nnode = 2\naddress = \"127.0.0.1:2\"\n\
                   [[members]]\nnode = 3\naddress = \"127.0.0.1:3\"\n";
    std::fs::write(&config, members).unwrap();
    let config = config.to_str().unwrap();
    for (args, code, sentence) in [
        (&["--data", data, "--listen", &taken][..], 4, "in use"),
        (&["--data", data, "--listen", "0.0.0.0:0"], 4, "beyond loopback"),
        // One of several members that does not say whether the cluster is new.
        (&["--config", config, "--data", data, "--listen", "127.0.0.1:0"], 4, "is empty"),
    ] {
        run(&[&["serve"], args].concat()).failed(code, sentence);
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["node.toml"], "{args:?}");
    }
}

/// So many WebSockets, each welcomed; one after the other, so that what a handshake takes is used by the next.
async fn welcomed(authority: &str, count: usize) -> Vec<impl Sized + use<>> {
    let mut sockets = Vec::new();
    for _ in 0..count {
        let mut socket = ws::socket(authority, "/v1/frames", Form::Json).await.unwrap();
        let hello = r#"{"control": {"hello": {"min": 1, "max": 1}}}"#;
        socket.send(Message::Text(hello.into())).await.unwrap();
        let heard = socket.next().await.unwrap().unwrap();
        assert!(heard.to_text().unwrap().contains("welcome"), "{heard}");
        sockets.push(socket);
    }
    sockets
}

/// Buffers of the usual 128 KiB are what servers with many idle WebSockets die of. A node with services in memory has nothing
/// else to do meanwhile that would take memory.
#[test]
fn an_idle_websocket_costs_little() {
    const IDLE: usize = 500;
    const MOST_EACH: u64 = 16 << 10;
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let serve = ["bench-server", "--data", data.path().to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let server = Running::start(tidings().args(serve));
    let authority = server.line(1).rsplit('/').next().unwrap().to_owned();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        // A first few warm the server, so that what it allocates once is not counted.
        drop(welcomed(&authority, 50).await);
        let before = server.resident();
        let idle = welcomed(&authority, IDLE).await;
        let each = server.resident().saturating_sub(before) / IDLE as u64;
        drop(idle);
        assert!(each <= MOST_EACH, "{each} bytes each");
    });
}

/// Nobody waits for what may never come: neither the consumer, nor the node for its consumer.
#[test]
fn a_consumer_that_waits_is_told_when_the_node_stops() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let server = Server::embedded(data.path());
    let (address, said) = (server.address, Arc::new(Mutex::new(None)));
    let heard = said.clone();
    let waiting = std::thread::spawn(move || {
        let answer = http("POST", address, "/v1/feed/t/groups/g/consume", r#"{"wait_ms": 30000}"#);
        *heard.lock().unwrap() = answer;
    });
    until("the consumer is connected", || {
        let (_, metrics) = http_get(address, "/metrics")?;
        // This request is one connection, the consumer's is another.
        metrics.lines().any(|line| line == "tidings_connections 2").then_some(())
    });
    // Whoever comes after it is served, so its request was read.
    assert_eq!(http_get(address, "/v1/store").unwrap().0, 200);
    assert_eq!(server.terminate(), 0);
    waiting.join().unwrap();
    let (status, body) = said.lock().unwrap().take().expect("an answer, not the end of the connection");
    assert!(status == 503 && body.contains("control.going_away"), "{status} {body}");
}

#[test]
fn a_node_that_is_still_starting_can_be_stopped() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    // A start that waits for ever: for the keys of an issuer, from somebody who never writes them.
    let keys = dir.path().join("keys.json");
    assert!(std::process::Command::new("mkfifo").arg(&keys).status().unwrap().success());
    let config = dir.path().join("node.toml");
    std::fs::write(
        &config,
        "listen = \"127.0.0.1:0\"\ndata = \"data\"\n[[auth.issuers]]\nissuer = \"i\"\naudience = \"a\"\napp = \"shop\"\n\
         algorithm = \"RS256\"\njwks = \"keys.json\"\n",
    )
    .unwrap();
    let node = Running::start(tidings().args(["serve", "--config", config.to_str().unwrap()]));
    // Opening it succeeds once the node has opened the other end.
    let _writer = std::fs::OpenOptions::new().write(true).open(&keys).unwrap();
    node.signal(rustix::process::Signal::TERM);
    let said = node.ended();
    assert_eq!(said.code, 0, "{said:?}");
}

#[test]
fn a_data_directory_that_others_can_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::set_permissions(&data, PermissionsExt::from_mode(0o777)).unwrap();
    let said = run(&["serve", "--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    said.failed(4, "others than its owner can write");
    assert!(said.err.contains("chmod go-w"), "{said:?}");
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0, "nothing was begun there");
}

#[test]
fn after_sigkill_every_part_answers_and_nothing_of_the_dead_process_is_waited_for() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let sessions = |server: &Server| -> Vec<u64> {
        let listed = server.run(&["cell", "sessions", "--json"]).json();
        listed.as_array().unwrap().iter().filter_map(|session| session["session"].as_u64()).collect()
    };
    let answers = |server: &Server| {
        for args in [
            &["store", "put", "g", "r", "c", "v"][..],
            &["cell", "put", "/f", "v"],
            &["place", "namespaces"],
            &["notify", "publish", "default", "prices", "1"],
        ] {
            let said = server.run(args);
            assert_eq!(said.code, 0, "{args:?}: {said:?}");
        }
        // By REST: a session that the node keeps for its caller.
        assert_eq!(http_get(server.address, "/v1/cell/files/f").unwrap().0, 200);
    };
    let server = Server::embedded(data.path());
    answers(&server);
    let before = sessions(&server);
    assert!(before.len() >= 2, "the manager's and the gateway's: {before:?}");
    server.kill();
    let server = Server::embedded(data.path());
    let left: Vec<u64> = sessions(&server).into_iter().filter(|session| before.contains(session)).collect();
    assert_eq!(left, [0; 0], "ended with the process that kept them");
    answers(&server);
}
