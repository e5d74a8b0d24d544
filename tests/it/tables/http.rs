//! Tables by HTTP: what a person does with curl.

use super::{create, start};
use crate::process::{http, http_get, turn, until};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

#[test]
fn a_table_by_curl() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    create(&server, "waits", &[]);
    let ask = |method: &str, path: &str, body: Value| {
        let (status, text) = http(method, server.address, path, &body.to_string()).unwrap();
        (status, serde_json::from_str::<Value>(&text).unwrap_or_default())
    };
    let (status, made) = ask("PUT", "/v1/tables/prices", json!({ "level": "public" }));
    assert_eq!((status, &made["properties"]["level"]), (200, &json!("public")), "{made}");
    assert_eq!(ask("PUT", "/v1/tables/prices", json!({})).1["code"], "tables.exists");
    let (status, put) = ask("PUT", "/v1/tables/prices/records/apple", json!({ "price": 3 }));
    assert_eq!(status, 200, "{put}");
    let (status, found) = http_get(server.address, "/v1/tables/prices/records/apple").unwrap();
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!((status, &found["columns"], &found["version"]), (200, &json!({ "price": 3 }), &put["version"]));
    assert_eq!(http_get(server.address, "/v1/tables/prices/records/plum").unwrap().0, 404);

    // A predicate hides the record from whoever it does not hold for, in reads and in counts.
    let hidden = "/v1/tables/prices/records/secret?audience=reader.vip%20%3D%3D%20true";
    assert_eq!(ask("PUT", hidden, json!({ "price": 1 })).0, 200);
    let count = |reader: Value| {
        let aggregates = json!([{ "name": "n", "aggregate": "count" }]);
        let ask = ask("POST", "/v1/tables/prices/query", json!({ "aggregates": aggregates, "reader": reader })).1;
        ask["rows"][0]["columns"]["n"].clone()
    };
    assert_eq!(
        (count(json!({})), count(json!({ "vip": true })), count(json!({ "vip": false }))),
        (1.into(), 2.into(), 1.into())
    );
    assert_eq!(http_get(server.address, "/v1/tables/prices/records/secret").unwrap().0, 404);
    let vip = "/v1/tables/prices/records/secret?reader=%7B%22vip%22%3Atrue%7D";
    assert_eq!(http_get(server.address, vip).unwrap().0, 200);

    let page = ask("GET", "/v1/tables/prices/records?predicate=price%20%3E%202&limit=5", Value::Null).1;
    assert_eq!(page["rows"][0]["key"], "apple", "{page}");
    let (status, wrong) = ask("POST", "/v1/tables/prices/query", json!({ "predicate": "price >" }));
    assert_eq!((status, &wrong["code"]), (400, &json!("tables.predicate_syntax")));
    let import = "{\"key\":\"kiwi\",\"columns\":{\"price\":9}}\n";
    let (status, imported) = http("POST", server.address, "/v1/tables/prices/import", import).unwrap();
    assert_eq!((status, imported.as_str()), (200, "{\"written\":1}"));
    let refused = format!("{import}{{\"key\":\"fig\",\"columns\":{{}},\"audience\":\"(\"}}\n");
    let (status, refused) = http("POST", server.address, "/v1/tables/prices/import", &refused).unwrap();
    assert!(status == 400 && refused.contains("line 2, with 1 others written: "), "{status}: {refused}");
    let exported = http_get(server.address, "/v1/tables/prices/export?format=csv").unwrap().1;
    assert!(exported.contains("key,price\r\napple,3\r\nkiwi,9\r\n"), "{exported}");
    assert_eq!(ask("DELETE", "/v1/tables/prices/records/kiwi", Value::Null).0, 200);
    assert_eq!(http("DELETE", server.address, "/v1/tables/prices", "").unwrap().0, 204);
    assert_eq!(http_get(server.address, "/v1/tables/prices/records/apple").unwrap().0, 404);
}

/// What a stream of events has brought so far: names and data.
fn events(address: std::net::SocketAddr, path: &str) -> Arc<Mutex<Vec<(String, Value)>>> {
    let heard: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\naccept: text/event-stream\r\n\r\n").unwrap();
    let telling = heard.clone();
    std::thread::spawn(move || {
        let mut name = String::new();
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if let Some(event) = line.strip_prefix("event: ") {
                name = event.to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                let data = serde_json::from_str(data).unwrap_or_default();
                telling.lock().unwrap().push((name.clone(), data));
            }
        }
    });
    heard
}

#[test]
fn live_events_come_as_a_stream_and_hide_what_is_hidden() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    create(&server, "cars", &[]);
    let everybody = events(server.address, "/v1/tables/cars/watch?predicate=speed%20%3E%2050");
    let vip = events(server.address, "/v1/tables/cars/watch?reader=%7B%22vip%22%3Atrue%7D");
    let put = |key: &str, audience: &str, speed: i64| {
        let path = format!("/v1/tables/cars/records/{key}?audience={audience}");
        let (status, said) = http("PUT", server.address, &path, &json!({ "speed": speed }).to_string()).unwrap();
        assert_eq!(status, 200, "{said}");
    };
    let knows = |heard: &Arc<Mutex<Vec<(String, Value)>>>, key: &str| {
        let heard = heard.lock().unwrap();
        heard.iter().any(|(name, data)| match name.as_str() {
            "put" => data["key"] == key,
            "reset" => data["rows"].as_array().is_some_and(|rows| rows.iter().any(|row| row["key"] == key)),
            _ => false,
        })
    };
    put("hidden", "reader.vip%20%3D%3D%20true", 90);
    put("slow", "", 10);
    put("fast", "", 80);
    until("everybody hears of the fast one", || knows(&everybody, "fast").then_some(()));
    until("the important one hears of all", || {
        ["hidden", "slow", "fast"].iter().all(|key| knows(&vip, key)).then_some(())
    });
    put("fast", "", 20);
    until("it leaves", || {
        everybody.lock().unwrap().iter().any(|(name, data)| name == "leave" && data["key"] == "fast").then_some(())
    });
    http("DELETE", server.address, "/v1/tables/cars/records/hidden", "").unwrap();
    put("last", "", 99);
    until("everybody hears of the last one", || knows(&everybody, "last").then_some(()));
    let heard = format!("{:?}", everybody.lock().unwrap());
    assert!(!heard.contains("hidden") && !heard.contains("slow"), "{heard}");
}
