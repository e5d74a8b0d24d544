//! Clients that speak nothing but HTTP: long polls and server-sent events.

use super::{publish, start};
use crate::process::{Server, http, turn};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// `prices`, in base64.
const PRICES: &str = "cHJpY2Vz";

fn ask(server: &Server, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (status, said) = http(method, server.address, path, &body).expect("the server answers");
    (status, serde_json::from_str(&said).unwrap_or_default())
}

/// Opens a channel, begins a session and registers `prices`; the channel's path.
fn listen(server: &Server) -> String {
    let (status, opened) = ask(server, "POST", "/v1/notify-channels/shop", &Value::Null);
    assert_eq!(status, 201, "{opened}");
    let path = format!("/v1/notify-channels/shop/{}", opened["channel"].as_str().unwrap());
    let hello = json!({ "hello": { "nonce": "9" }, "contact": "1" });
    assert_eq!(ask(server, "POST", &path, &hello).0, 204);
    let grant = polled(server, &path, |down| Some(down["grant"]["token"].clone()).filter(Value::is_string));
    let register = json!([{ "register": { "object": PRICES } }]);
    let up = json!({ "token": grant, "contact": "1", "latest": "1", "first": "1", "changes": register });
    assert_eq!(ask(server, "POST", &path, &up).0, 204);
    polled(server, &path, |down| (down["statuses"][0]["registered"] == true).then_some(()));
    path
}

/// Polls until `pick` finds something in a message.
fn polled<T>(server: &Server, path: &str, pick: impl Fn(&Value) -> Option<T>) -> T {
    for _ in 0..30 {
        let (status, said) = ask(server, "GET", &format!("{path}?wait_ms=2000"), &Value::Null);
        assert_eq!(status, 200, "{said}");
        if let Some(found) = said["downs"].as_array().unwrap().iter().find_map(&pick) {
            return found;
        }
    }
    panic!("it was not told");
}

fn version(down: &Value) -> Option<String> {
    down["notifications"].as_array()?.iter().find_map(|news| news["version"].as_str().map(str::to_owned))
}

#[test]
fn polls_and_events_bring_what_is_published() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    publish(&server, "other", 1);
    let path = listen(&server);
    publish(&server, "prices", 5);
    assert_eq!(polled(&server, &path, version), "5");

    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET {path}/events HTTP/1.1\r\nhost: {}\r\n\r\n", server.address).unwrap();
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("the stream goes on"));
    assert!(lines.next().unwrap().contains("200"));
    publish(&server, "prices", 6);
    let heard = lines.filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    assert!(heard.filter_map(|down| version(&down)).any(|version| version == "6"));

    // Another principal's application, a guessed name, and a message that is none.
    let name = path.rsplit('/').next().unwrap();
    assert_eq!(ask(&server, "GET", &format!("/v1/notify-channels/blog/{name}"), &Value::Null).0, 404);
    assert_eq!(ask(&server, "POST", "/v1/notify-channels/shop/guess", &json!({})).0, 404);
    let (status, said) = ask(&server, "POST", &path, &json!([1]));
    assert_eq!((status, &said["code"]), (400, &"control.bad_body".into()), "{said}");
    assert!(said["message"].as_str().unwrap().contains("no message of a client"), "{said}");
    assert_eq!(ask(&server, "DELETE", &path, &Value::Null).0, 204);
    assert_eq!(ask(&server, "GET", &path, &Value::Null).0, 404);
}
