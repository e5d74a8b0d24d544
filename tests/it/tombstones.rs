//! What was deleted is forgotten by the store once it is old, of Notify and of tables; those who are there notice nothing. One
//! node for both: a tombstone lives for twenty seconds at least.

use crate::notify::{hears, metric, publish, registered, start_with, watcher};
use crate::process::{Server, turn, until};
use crate::tables::{create, lines, table};
use serde_json::{Value, json};

fn start(dir: &std::path::Path) -> Server {
    start_with(dir, "keep_tombstones = \"20s\"\n")
}

/// The records of the table.
fn records(server: &Server) -> Vec<Value> {
    lines(&table(server, &["read", "t", "--json"]).out)
}

/// A write that names its operation, and acknowledges the one before it.
fn write(server: &Server, number: u32) -> crate::process::Said {
    let name = format!("{}/{number}/{}", "0f".repeat(16), number - 1);
    let (key, columns) = (format!("r{:02}", number % 10), json!({ "n": number }).to_string());
    server.run(&["table", "put", "t", &key, &columns, "--operation", &name, "--json", "--timeout", "5"])
}

/// F10: what clients leave behind is deleted. Every outcome that its client has acknowledged leaves a tombstone: all of those go.
/// Records, what became of a write that is not acknowledged, and what was acknowledged stay, and nothing that was deleted comes
/// back.
#[test]
fn what_was_deleted_is_swept_out_of_the_store() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let watcher = watcher(&server);
    create(&server, "t", &["--cut", "r5"]);
    let last = (1..=12).map(|number| write(&server, number).json()).fold(None, |_, told| Some(told));
    table(&server, &["put", "t", "r77", r#"{"n": 77}"#]);
    table(&server, &["put", "t", "gone", r#"{"n": 0}"#]);
    table(&server, &["rm", "t", "gone"]);
    let before = records(&server);
    assert_eq!(before.len(), 11);
    // What a dropped table leaves is looked after until it is gone, too.
    create(&server, "dropped", &[]);
    table(&server, &["put", "dropped", "r", r#"{"n": 0}"#]);
    table(&server, &["drop", "dropped", "--yes"]);
    let remain = |tables: u64| {
        until(&format!("{tables} dropped tables have tombstones left"), || {
            (metric(&server, "tidings_tables_remains") == tables).then_some(())
        });
    };
    remain(1);

    let mut version = 0;
    until("tombstones of clients are swept out", || {
        version += 1;
        publish(&server, "prices", version);
        // It hears one thing, says goodbye, and its id is given back.
        assert_eq!(server.run(&["notify", "watch", "shop", "prices", "--count", "1"]).code, 0);
        (metric(&server, "tidings_notify_tombstones_total") > 0).then_some(())
    });
    hears(&watcher, "prices", version);
    publish(&server, "prices", version + 1);
    hears(&watcher, "prices", version + 1);
    registered(&server, "prices", 1);

    // All but the last were acknowledged.
    until("tombstones of tables are swept out", || {
        (metric(&server, "tidings_tables_tombstones_total") >= 11).then_some(())
    });
    remain(0);
    let holds = |server: &Server| {
        assert_eq!(records(server), before);
        assert_eq!(Some(write(server, 12).json()), last, "what became of it is known");
        assert_ne!(write(server, 7).code, 0, "that it was acknowledged is known");
        assert_eq!(records(server), before, "no copy was written again");
    };
    holds(&server);
    server.kill();
    let server = start(dir.path());
    until("the records are there again", || (server.run(&["table", "read", "t"]).code == 0).then_some(()));
    holds(&server);
}
