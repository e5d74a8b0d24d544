//! One node: what it acknowledged is there after SIGKILL.

use crate::load::{Load, Promised, assert_kept};
use crate::process::{Deadline, Running, Server, run, tidings, turn};
use rustix::process::{Resource, Rlimit, prlimit};
use std::cell::Cell;
use std::process::Command;

/// How often the server is killed under load, in every run of the tests.
const KILLS: usize = 3;

/// Starts, checks, loads and kills while `go_on` says so; then checks once more.
fn kill_under_load(mut go_on: impl FnMut() -> bool) {
    let data = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let promised = Promised::default();
    while go_on() {
        let server = Server::embedded(data.path());
        runtime.block_on(async {
            if promised.count() > 0 {
                assert_kept(&[server.url()], &promised).await;
            }
            let load = Load::start(&[server.url()], &promised);
            load.until_promised(&promised, 200).await;
            // Killed while writers wait for answers.
            server.kill();
            load.stop().await;
        });
    }
    let server = Server::embedded(data.path());
    runtime.block_on(assert_kept(&[server.url()], &promised));
    assert_eq!(server.terminate(), 0);
}

#[test]
fn every_acknowledged_write_survives_sigkill() {
    let _turn = turn();
    let mut kills = 0..KILLS;
    kill_under_load(|| kills.next().is_some());
}

#[test]
#[ignore = "for as long as KILL_SECONDS says: scripts/kill.sh"]
fn kill_loop() {
    let _turn = turn();
    let deadline = Deadline::from_environment();
    while !deadline.has_passed() {
        // Each look at the topic takes a group of its own, and a topic has at most 64 of them.
        let kills = Cell::new(0);
        kill_under_load(|| {
            kills.set(kills.get() + 1);
            kills.get() <= 40 && !deadline.has_passed()
        });
    }
}

/// A disk that takes nothing more, as the limit on the size of files makes one: the node cannot serve, and whoever started it
/// hears that from its end.
#[test]
fn a_node_whose_disk_fails_ends_with_a_reason_and_comes_back() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let serve = ["serve", "--data", data.path().to_str().unwrap(), "--listen", "127.0.0.1:0"];
    // The shell lets a write beyond the limit fail, rather than end the process.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(tidings().get_program()).args(serve);
    let server = Running::start(&mut command);
    let url = server.line(1).rsplit(' ').next().unwrap().to_owned();
    server.line(2);
    let put = |row: &str| run(&["store", "put", "g", row, "c", "v", "--server", &url, "--timeout", "5"]);
    assert_eq!(put("before").code, 0);
    let nothing = Rlimit { current: Some(0), maximum: None };
    prlimit(Some(server.pid()), Resource::Fsize, nothing).unwrap();
    assert_ne!(put("lost?").code, 0);
    let said = server.ended();
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.err.contains("stopped by itself") && said.err.contains("tidings doctor"), "{said:?}");

    let server = Server::embedded(data.path());
    assert_eq!(server.run(&["store", "get", "g", "before"]).code, 0);
}

#[test]
fn a_graceful_stop_keeps_everything_and_frees_the_directory() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let server = Server::embedded(data.path());
    assert_eq!(server.run(&["store", "put", "g", "r", "c", "v", "--timestamp", "7"]).code, 0);
    assert_eq!(server.terminate(), 0);

    let server = Server::embedded(data.path());
    let row = server.run(&["store", "get", "g", "r", "--json"]).json();
    assert_eq!(row, serde_json::json!({ "row": "r", "cells": { "c": { "value": "v", "timestamp": 7 } } }));
}
