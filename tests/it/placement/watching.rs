//! What is printed as it happens: changes of ownership, and losses.

use super::Pool;
use crate::process::{turn, until};
use rustix::process::Signal;
use serde_json::Value;

fn lines(out: &str) -> Vec<Value> {
    out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn a_loss_is_printed_where_its_key_is_watched() {
    let _turn = turn();
    let pool = Pool::start();
    pool.create();
    let one = pool.join("one");
    pool.settled(&["one"]);
    let key = pool.server.start_command(&["place", "lookup", "n", "alice", "--watch", "--json"]);
    let table = pool.server.start_command(&["place", "watch", "n", "--json"]);
    let first: Value = serde_json::from_str(&key.line(1)).unwrap();
    assert_eq!((&first["event"], &first["owner"]), (&"owner".into(), &"one".into()));
    assert_eq!(serde_json::from_str::<Value>(&table.line(1)).unwrap()["event"], "present");
    let two = pool.join("two");
    pool.settled(&["one", "two"]);
    // Both leave without handing over: whoever had the key, its state is lost.
    drop((one, two));
    let _three = pool.join("three");
    pool.settled(&["three"]);
    until("the loss and the new owner are printed", || {
        let said = lines(&key.out());
        let lost = said.iter().any(|line| line["event"] == "loss" && line["key"] == "alice");
        (lost && said.iter().any(|line| line["owner"] == "three")).then_some(())
    });
    until("the table's loss is printed", || lines(&table.out()).iter().any(|l| l["event"] == "loss").then_some(()));
    key.signal(Signal::INT);
    assert_eq!(key.ended().code, 0);
    table.signal(Signal::TERM);
    assert_eq!(table.ended().code, 0);
    let counted = pool.server.run(&["place", "watch", "n", "--count", "1"]);
    assert_eq!(counted.code, 0);
    assert!(counted.out.starts_with("n present: ") && counted.out.contains("(three "), "{counted:?}");
    let present: Value = pool.server.run(&["place", "watch", "n", "--count", "1", "--json"]).json();
    assert_eq!((&present["owners"][0]["owner"], &present["unowned"]), (&"three".into(), &0.into()));
    // Whoever watches a namespace that is deleted is told.
    let watches = [&["place", "watch", "n"][..], &["place", "lookup", "n", "alice", "--watch"]];
    let watches = watches.map(|command| pool.server.start_command(command));
    watches.iter().for_each(|watch| drop(watch.line(1)));
    assert_eq!(pool.server.run(&["place", "delete", "n", "--yes"]).code, 0);
    for ended in watches.map(|watch| watch.ended()) {
        assert!(ended.code == 3 && ended.err.contains("`n` was deleted"), "{ended:?}");
        assert!(ended.err.contains("placement.no_namespace"), "{ended:?}");
    }
}
