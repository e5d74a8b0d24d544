//! A device that is away hears through Notify that there is something new, and goes on from its cursor.

use super::{create, lines, start, table};
use crate::process::{Running, Server, http_get, turn, until};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

const DEVICE: &str = "00112233445566778899aabbccddeeff";

/// A stream of events that ends when it is dropped.
struct Watching {
    stream: TcpStream,
    heard: Arc<Mutex<Heard>>,
}

/// What it has brought so far.
#[derive(Default)]
struct Heard {
    /// Names and data.
    events: Vec<(String, Value)>,
    cursor: Option<String>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        // Whoever reads has ended, or ends now.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Watching {
    fn start(server: &Server, cursor: Option<&str>) -> Watching {
        let last = cursor.map(|cursor| format!("last-event-id: {cursor}\r\n")).unwrap_or_default();
        let path = format!("/v1/tables/t/watch?predicate=n%20%3E%201&netid={DEVICE}");
        let mut stream = TcpStream::connect(server.address).unwrap();
        let host = server.address;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {host}\r\naccept: text/event-stream\r\n{last}\r\n").unwrap();
        let heard: Arc<Mutex<Heard>> = Arc::default();
        let (telling, reading) = (heard.clone(), stream.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut name = String::new();
            for line in BufReader::new(reading).lines().map_while(Result::ok) {
                let mut heard = telling.lock().unwrap();
                if let Some(event) = line.strip_prefix("event: ") {
                    name = event.to_owned();
                } else if let Some(id) = line.strip_prefix("id: ") {
                    heard.cursor = Some(id.to_owned());
                } else if let Some(data) = line.strip_prefix("data: ") {
                    heard.events.push((name.clone(), serde_json::from_str(data).unwrap_or_default()));
                }
            }
        });
        Watching { stream, heard }
    }

    /// Waits until a record was told, alone or among all there are.
    fn brings(&self, key: &str) {
        until(&format!("{key} is told"), || {
            let heard = self.heard.lock().unwrap();
            let told = heard.events.iter().any(|(name, data)| match name.as_str() {
                "reset" => data["rows"].as_array().is_some_and(|rows| rows.iter().any(|row| row["key"] == key)),
                name => name == "put" && data["key"] == key,
            });
            told.then_some(())
        });
    }

    /// Waits for a cursor behind what there is, and goes away.
    fn leave(self) -> String {
        until("a cursor", || self.heard.lock().unwrap().cursor.clone())
    }
}

/// What Notify tells of objects, by one client that keeps what it has heard.
fn listen(server: &Server, dir: &Path, app: &str, objects: &[String]) -> Running {
    let state = dir.join("notify");
    let objects = objects.iter().map(String::as_str);
    let more = ["--json", "--state", state.to_str().unwrap()];
    server.start_command(&["notify", "watch", app].into_iter().chain(objects).chain(more).collect::<Vec<_>>())
}

/// Waits until one of the objects has a later version; what was told first, by its place among them.
fn wakes(listener: &Running, objects: &[String], after: u64) -> (usize, u64) {
    until("Notify tells that there is something new", || {
        lines(&listener.out()).iter().find_map(|line| {
            let at = objects.iter().position(|object| line["object"] == object.as_str())?;
            line["version"].as_u64().filter(|version| *version > after).map(|version| (at, version))
        })
    })
}

/// A table as it is.
fn stat(server: &Server) -> Value {
    let (status, info) = http_get(server.address, "/v1/tables/t").unwrap();
    assert_eq!(status, 200, "{info}");
    serde_json::from_str(&info).unwrap()
}

#[test]
fn a_device_that_is_away_hears_by_notify_and_misses_nothing() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    create(&server, "t", &[]);
    let put = |server: &Server, key: &str, n: u64| {
        let said = table(server, &["put", "t", key, &json!({ "n": n }).to_string(), "--json"]).json();
        said["version"].as_u64().unwrap_or_else(|| panic!("{said}"))
    };
    let zero = put(&server, "k0", 5);
    let watching = Watching::start(&server, None);
    watching.brings("k0");
    let cursor = watching.leave();

    let info = stat(&server);
    let app = info["app"].as_str().unwrap();
    let part = info["partitions"][0]["object"].as_str().unwrap().to_owned();
    let objects = [part.clone(), format!("{part}/{DEVICE}")];
    let listener = listen(&server, dir.path(), app, &objects);
    // At first nobody knows a version, or only that of an earlier owner.
    until("both are registered", || (lines(&listener.out()).len() >= 2).then_some(()));
    put(&server, "quiet", 0);
    let first = put(&server, "k1", 6);
    let woken = wakes(&listener, &objects, zero);
    let watching = Watching::start(&server, Some(&cursor));
    watching.brings("k1");
    // Unless the machine was so busy that the part has changed hands.
    if stat(&server)["partitions"][0]["term"] == info["partitions"][0]["term"] {
        assert_eq!(woken, (1, first), "what does not concern it is not told");
        let heard = format!("{:?}", watching.heard.lock().unwrap().events);
        assert!(!heard.contains("reset") && !heard.contains("quiet"), "{heard}");
    }
    let cursor = watching.leave();

    // Its owner dies, and with it what it knew of the device: nobody writes, and the device is told.
    drop(listener);
    server.kill();
    let server = start(dir.path());
    let listener = listen(&server, dir.path(), app, &objects);
    let (at, opened) = wakes(&listener, &objects[..1], first);
    assert_eq!(at, 0);
    until("the table is served again", || (server.run(&["table", "get", "t", "k1"]).code == 0).then_some(()));
    put(&server, "k2", 7);
    let watching = Watching::start(&server, Some(&cursor));
    watching.brings("k2");
    watching.leave();
    // It is known again.
    let third = put(&server, "k3", 8);
    assert!(third > opened);
    wakes(&listener, &objects, third - 1);
}

#[test]
fn a_netid_that_is_none_is_refused() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    create(&server, "t", &[]);
    let (status, said) = http_get(server.address, "/v1/tables/t/watch?netid=abc").unwrap();
    assert_eq!((status, said.contains("tables.invalid")), (400, true), "{said}");
}
