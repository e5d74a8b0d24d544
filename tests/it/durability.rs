//! One node: what it acknowledged is there after SIGKILL.

use crate::load::{Load, Promised, assert_kept};
use crate::process::{Deadline, Server, turn};

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
    kill_under_load(|| !deadline.has_passed());
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
