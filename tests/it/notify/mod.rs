//! Notify through the real binary: what is published is heard, whatever dies in between.

mod bad_clients;
mod clusters;
mod commands;
mod console;
mod formats;
mod hooks;
mod http;
mod keys;
mod library;
mod restarts;
mod strangers;
mod traces;

use crate::process::{Running, Server, http_get, until};
use serde_json::Value;
use std::path::Path;

/// Times that let a node's ranges and partitions move within seconds.
pub const FAST: &str = "[placement]\nsession = \"1s\"\nfail_over = \"500ms\"\nround_trip = \"100ms\"\n\
                    [notify]\nlease = \"2500ms\"\nrenew = \"400ms\"\n";

/// A node with fast times and the applications `shop` and `blog`, in its directory.
pub fn start(dir: &Path) -> Server {
    start_with(dir, "")
}

/// The same with more about Notify.
pub fn start_with(dir: &Path, notify: &str) -> Server {
    let config = dir.join("node.toml");
    std::fs::write(&config, format!("{FAST}{notify}")).unwrap();
    let (config, data) = (config.to_str().unwrap().to_owned(), dir.join("data"));
    let server = Server::start(&["--config", &config, "--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    ["shop", "blog"].iter().for_each(|app| server.make_app(app));
    server
}

/// Publishes, as soon as the node can.
pub fn publish(server: &Server, object: &str, version: u64) {
    let version = version.to_string();
    until("a version is published", || {
        (server.run(&["notify", "publish", "shop", object, &version]).code == 0).then_some(())
    });
}

/// The lines that a watcher has printed so far.
pub fn lines(watcher: &Running) -> Vec<Value> {
    watcher.out().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Waits until a watcher has printed this version of an object.
pub fn hears(watcher: &Running, object: &str, version: u64) {
    until(&format!("version {version} of {object} is heard"), || {
        lines(watcher).iter().any(|line| line["object"] == object && line["version"] == version).then_some(())
    });
}

/// Somebody who watches `prices`, and has registered.
pub fn watcher(server: &Server) -> Running {
    let watcher = server.start_command(&["notify", "watch", "shop", "prices", "--json"]);
    registered(server, "prices", 1);
    watcher
}

/// Waits until so many clients have registered an object.
pub fn registered(server: &Server, object: &str, clients: u64) {
    until(&format!("{clients} have registered {object}"), || {
        let said = server.run(&["notify", "objects", "shop", object, "--json"]);
        let list: Value = serde_json::from_str(&said.out).ok()?;
        (list["objects"][0]["registrations"] == clients).then_some(())
    });
}

/// Waits until everybody was told this version of an object, or has it in their rows: a publication is durable before that.
pub fn told(server: &Server, object: &str, version: u64) {
    until(&format!("version {version} of {object} is told"), || {
        let said = server.run(&["notify", "objects", "shop", object, "--json"]);
        let list: Value = serde_json::from_str(&said.out).ok()?;
        let object = &list["objects"][0];
        (object["version"] == version && object["pending"] == false).then_some(())
    });
}

/// A number of `/metrics`.
pub fn metric(server: &Server, name: &str) -> u64 {
    let said = http_get(server.address, "/metrics").expect("the server answers").1;
    let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok());
    line.unwrap_or_default() as u64
}
