//! What a console draws: latencies by stage, ranges with their owners, counts, the latest notifications.

use super::{hears, publish, registered, start};
use crate::process::{http_get, turn};
use serde_json::Value;

#[test]
fn load_counts_and_recent_notifications_can_be_drawn() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let watcher = server.start_command(&["notify", "watch", "shop", "prices", "stock", "--json"]);
    for (object, version) in [("prices", 3), ("stock", 4), ("prices", 5)] {
        registered(&server, object, 1);
        publish(&server, object, version);
        hears(&watcher, object, version);
    }
    let get = |path: &str| -> Value {
        let (status, said) = http_get(server.address, path).expect("the server answers");
        assert_eq!(status, 200, "{path}: {said}");
        serde_json::from_str(&said).unwrap()
    };
    let load = get("/v1/notify-load");
    let node = &load["nodes"][0];
    assert_eq!((&node["node"], &node["channels"], &node["published"]), (&1.into(), &1.into(), &3.into()), "{load}");
    let bounds = node["bounds_us"].as_array().unwrap().len();
    let stages = node["stages"].as_array().unwrap();
    assert!(stages.iter().all(|stage| stage["counts"].as_array().unwrap().len() == bounds + 1), "{load}");
    let counted = |name: &str| {
        let stage = stages.iter().find(|stage| stage["stage"] == name).unwrap();
        stage["counts"].as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>()
    };
    assert!(counted("matcher") >= 3 && counted("registrar") >= 3, "{load}");
    // One node has all of the ring, and somebody asked for it.
    assert_eq!(load["ring"]["shares"][0]["owner"], "node-1", "{load}");
    assert!(load["ring"]["shares"][0]["share"].as_f64().unwrap() > 0.99, "{load}");
    let ranges = load["ranges"].as_array().unwrap();
    assert!(ranges.iter().all(|range| range["owner"] == "node-1"), "{load}");

    let counts = get("/v1/notify-counts/shop");
    assert_eq!((&counts["objects"], &counts["registrations"]), (&2.into(), &2.into()), "{counts}");
    assert_eq!((&counts["clients"], &counts["online"], &counts["more"]), (&1.into(), &1.into(), &false.into()));
    assert_eq!(get("/v1/notify-counts/blog")["clients"], 0);

    for limit in ["0", "100000", "x"] {
        let (status, said) = http_get(server.address, &format!("/v1/notify-traces/shop?limit={limit}")).unwrap();
        assert!(status == 400 && said.contains("`limit` is"), "{said}");
    }
    let traces = get("/v1/notify-traces/shop?limit=2");
    let recent: Vec<(&str, u64)> = traces["traces"]
        .as_array()
        .unwrap()
        .iter()
        .map(|trace| (trace["object"].as_str().unwrap(), trace["version"].as_u64().unwrap()))
        .collect();
    assert_eq!(recent, [("stock", 4), ("prices", 5)], "{traces}");
}
