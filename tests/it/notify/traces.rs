//! Where notifications were when, and what was ignored.

use super::{hears, publish, start, watcher};
use crate::process::{http_get, turn, until};
use serde_json::Value;

#[test]
fn each_notification_is_remembered_and_one_that_goes_backwards_is_shown() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let watcher = watcher(&server);
    publish(&server, "prices", 7);
    hears(&watcher, "prices", 7);
    publish(&server, "prices", 2);
    let traces: Vec<Value> = until("both are remembered", || {
        let said = server.run(&["notify", "trace", "shop", "prices", "--log", "--json"]).json();
        let traces = said["traces"].as_array()?.clone();
        (traces.iter().any(|trace| trace["behind"] == 7)).then_some(traces)
    });
    let sent = traces.iter().find(|trace| trace["version"] == 7).expect("what was sent is remembered");
    assert!(sent["behind"].is_null() && sent["node"] == 1, "{sent}");
    let times: Vec<u64> =
        ["published_us", "matcher_us", "registrar_us", "sent_us"].map(|at| sent[at].as_u64().unwrap()).into();
    assert!(times.is_sorted() && times[0] > 0, "{sent}");
    assert_eq!(sent["feed_us"], 0, "the fast path does not wait for the feed: {sent}");
    assert!(traces.iter().any(|trace| trace["version"] == 2 && trace["behind"] == 7), "{traces:?}");
    let object = server.run(&["notify", "objects", "shop", "prices", "--json"]).json()["objects"][0].clone();
    assert_eq!((&object["version"], &object["behind"]), (&7.into(), &2.into()));
    let shown = server.run(&["notify", "trace", "shop", "prices", "--log"]).out;
    assert!(shown.contains("ignored: 7 was known"), "{shown}");
    let (status, listed) = http_get(server.address, "/v1/notify-traces/shop/prices?limit=1").unwrap();
    assert_eq!(
        (status, serde_json::from_str::<Value>(&listed).unwrap()["traces"][0]["version"].as_u64()),
        (200, Some(2))
    );
    let metrics = http_get(server.address, "/metrics").unwrap().1;
    assert!(metrics.contains("tidings_notify_behind_total 1"), "{metrics}");
}
