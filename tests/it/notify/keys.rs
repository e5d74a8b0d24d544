//! F8: keys of tokens are rotated under clients.

use super::{hears, lines, publish, registered, start};
use crate::process::{turn, until};

#[test]
fn a_client_outlives_a_rotation_and_starts_anew_when_its_key_is_retired() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let state = dir.path().join("state");
    let watch = ["notify", "watch", "shop", "prices", "--json", "--state", state.to_str().unwrap()];
    let watcher = server.start_command(&watch);
    registered(&server, "prices", 1);
    publish(&server, "prices", 1);
    hears(&watcher, "prices", 1);
    drop(watcher);
    let rotate = || server.run(&["notify", "rotate-keys", "--json"]).json();
    assert_eq!(rotate(), serde_json::json!({ "key": 2, "accepted": [1, 2] }));
    // Its token is still good: it is the same client.
    let watcher = server.start_command(&watch);
    publish(&server, "prices", 2);
    hears(&watcher, "prices", 2);
    let clients = || server.run(&["notify", "clients", "shop", "--json"]).json()["clients"].as_array().unwrap().len();
    assert_eq!(clients(), 1);
    rotate();
    assert_eq!(rotate()["accepted"], serde_json::json!([2, 3, 4]));
    // Its key is gone: it starts anew and misses nothing.
    publish(&server, "prices", 3);
    hears(&watcher, "prices", 3);
    until("there is a new client", || (clients() == 2).then_some(()));
    publish(&server, "prices", 4);
    hears(&watcher, "prices", 4);
    let versions: Vec<u64> = lines(&watcher).iter().filter_map(|line| line["version"].as_u64()).collect();
    assert!(versions.is_sorted(), "{versions:?}");
}
