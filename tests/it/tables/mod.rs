//! Tables through the real binary: what is written is read, watched and kept, whatever dies in between.

mod away;
mod clusters;
mod commands;
mod copies;
mod http;
mod partitioned;
mod restarts;

use crate::notify::FAST;
use crate::process::{Running, Said, Server, until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// A node with fast times, in its directory.
fn start(dir: &Path) -> Server {
    let config = dir.join("node.toml");
    std::fs::write(&config, FAST).unwrap();
    let (config, data) = (config.to_str().unwrap().to_owned(), dir.join("data"));
    Server::start(&["--config", &config, "--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0"])
}

/// Runs a command on a table, which must succeed.
pub fn table(server: &Server, args: &[&str]) -> Said {
    let said = server.run(&[&["table"], args].concat());
    assert_eq!(said.code, 0, "{args:?}: {said:?}");
    said
}

/// Makes a table, as soon as the node can.
pub fn create(server: &Server, name: &str, more: &[&str]) {
    until("a table is made", || {
        let said = server.run(&[&["table", "create", name], more].concat());
        (said.code == 0 || said.err.contains("tables.exists")).then_some(())
    });
}

/// What a command printed, line by line.
pub fn lines(text: &str) -> Vec<Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The keys of rows.
fn keys(rows: &[Value]) -> Vec<&str> {
    rows.iter().filter_map(|row| row["key"].as_str()).collect()
}

/// What a record is called by, or where a part begins or ends: the partition column's value if there is one, and a key.
fn place(line: &Value) -> (String, String) {
    let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
    line.as_str().map_or_else(|| (text("in"), text("key")), |key| (String::new(), key.to_owned()))
}

/// The keys that a watcher has before it, by all that it was told. Each part is told whole when it is opened, in any order.
fn standing(watcher: &Running) -> Vec<String> {
    let mut standing = BTreeSet::new();
    for line in lines(&watcher.out()) {
        match line["event"].as_str() {
            Some("reset") => {
                if line["first"] == true {
                    let (start, end) = (place(&line["start"]), &line["end"]);
                    standing.retain(|record| *record < start || (!end.is_null() && *record >= place(end)));
                }
                standing.extend(line["rows"].as_array().into_iter().flatten().map(place));
            }
            Some("put") => drop(standing.insert(place(&line))),
            Some("leave") => drop(standing.remove(&place(&line))),
            _ => {}
        }
    }
    standing.into_iter().map(|(_, key)| key).collect()
}

/// Waits until a watcher has these keys before it, and no others.
fn until_standing(watcher: &Running, expected: &[&str]) {
    until(&format!("{expected:?} stand"), || standing(watcher).iter().eq(expected).then_some(()));
}
