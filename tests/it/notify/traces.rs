//! Where notifications were when, and what was ignored.

use super::{hears, metric, publish, start, told, watcher};
use crate::process::{http_get, turn, until};
use serde_json::Value;

#[test]
fn each_notification_is_remembered_and_one_that_goes_backwards_is_shown() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let watcher = watcher(&server);
    let traces = || -> Vec<Value> {
        let said = server.run(&["notify", "trace", "shop", "prices", "--log", "--json"]).json();
        said["traces"].as_array().unwrap().clone()
    };
    // The fast path does not wait for the feed, where it is the faster one.
    let mut latest = 6;
    let sent = until("one is told of before the feed has it", || {
        latest += 1;
        publish(&server, "prices", latest);
        hears(&watcher, "prices", latest);
        traces().into_iter().find(|trace| trace["version"] == latest && trace["feed_us"] == 0)
    });
    told(&server, "prices", latest);
    publish(&server, "prices", 2);
    let traces = until("both are remembered", || {
        Some(traces()).filter(|traces| traces.iter().any(|trace| trace["behind"] == latest))
    });
    assert!(sent["behind"].is_null() && sent["node"] == 1, "{sent}");
    let times: Vec<u64> =
        ["published_us", "matcher_us", "registrar_us", "sent_us"].map(|at| sent[at].as_u64().unwrap()).into();
    assert!(times.is_sorted() && times[0] > 0, "{sent}");
    assert!(traces.iter().any(|trace| trace["version"] == 2 && trace["behind"] == latest), "{traces:?}");
    until("it is noted in the object's row", || {
        let object = server.run(&["notify", "objects", "shop", "prices", "--json"]).json()["objects"][0].clone();
        (object["version"] == latest && object["behind"] == 2).then_some(())
    });
    let shown = server.run(&["notify", "trace", "shop", "prices", "--log"]).out;
    assert!(shown.contains(&format!("ignored: {latest} was known")), "{shown}");
    let (status, listed) = http_get(server.address, "/v1/notify-traces/shop/prices?limit=1").unwrap();
    assert_eq!(
        (status, serde_json::from_str::<Value>(&listed).unwrap()["traces"][0]["version"].as_u64()),
        (200, Some(2))
    );
    assert!(metric(&server, "tidings_notify_behind_total") >= 1);
}
