//! Tables through the real binary: what is written is read, watched and kept, whatever dies in between.

mod away;
mod clusters;
mod commands;
mod http;
mod restarts;

use crate::process::{Said, Server, until};
use serde_json::Value;
use std::path::Path;

/// Times that let a node's partitions move within seconds.
const FAST: &str = "[placement]\nsession = \"1s\"\nfail_over = \"500ms\"\nround_trip = \"100ms\"\n\
                    [notify]\nlease = \"2500ms\"\nrenew = \"400ms\"\n";

/// A node with fast times, in its directory.
fn start(dir: &Path) -> Server {
    start_with(dir, "")
}

/// The same, with more of `[notify]`.
fn start_with(dir: &Path, more: &str) -> Server {
    let config = dir.join("node.toml");
    std::fs::write(&config, format!("{FAST}{more}")).unwrap();
    let (config, data) = (config.to_str().unwrap().to_owned(), dir.join("data"));
    Server::start(&["--config", &config, "--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0"])
}

/// Runs a command on a table, which must succeed.
fn table(server: &Server, args: &[&str]) -> Said {
    let said = server.run(&[&["table"], args].concat());
    assert_eq!(said.code, 0, "{args:?}: {said:?}");
    said
}

/// Makes a table, as soon as the node can.
fn create(server: &Server, name: &str, more: &[&str]) {
    until("a table is made", || {
        let said = server.run(&[&["table", "create", name], more].concat());
        (said.code == 0 || said.err.contains("tables.exists")).then_some(())
    });
}

/// What a command printed, line by line.
fn lines(text: &str) -> Vec<Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The keys of rows.
fn keys(rows: &[Value]) -> Vec<&str> {
    rows.iter().filter_map(|row| row["key"].as_str()).collect()
}
