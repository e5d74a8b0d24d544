//! What was acknowledged survives SIGKILL.

use super::{create, keys, lines, start, table};
use crate::process::{turn, until};
use serde_json::json;

#[test]
fn acknowledged_writes_survive_a_kill_and_watchers_go_on() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    create(&server, "t", &["--cut", "k05"]);
    for number in 0..10 {
        table(&server, &["put", "t", &format!("k{number:02}"), &json!({ "n": number }).to_string()]);
    }
    let version = table(&server, &["get", "t", "k03", "--json"]).json()["version"].clone();
    server.kill();

    let server = start(dir.path());
    let rows = until("the records are there again", || {
        let said = server.run(&["table", "read", "t", "n >= 2", "--json"]);
        (said.code == 0).then(|| lines(&said.out))
    });
    assert_eq!(keys(&rows), ["k02", "k03", "k04", "k05", "k06", "k07", "k08", "k09"]);
    assert_eq!(rows[1]["version"], version);
    // R1: versions go on above those of the earlier term.
    let later = table(&server, &["put", "t", "k03", r#"{"n": 30}"#, "--json"]).json()["version"].clone();
    assert!(later.as_u64() > version.as_u64(), "{later} {version}");
    let stale = version.to_string();
    server.run(&["table", "put", "t", "k03", "{}", "--if-version", &stale]).failed(4, "the record has version");
}
