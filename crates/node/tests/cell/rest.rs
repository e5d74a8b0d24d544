//! The cell by curl.

use super::{Nodes, STUCK};
use crate::support::{Answer, request};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::time::Duration;
use tidings_client::cell::{Cell, Mode};
use tidings_node::config::Time;
use tokio::net::TcpStream;

const FILES: &str = "/v1/cell/files";

fn raw(method: Method, path: &str, headers: &[(&str, &str)], body: &'static str) -> Request<Full<Bytes>> {
    let mut builder = Request::builder().method(method).uri(path).header("host", "localhost");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Full::new(Bytes::from_static(body.as_bytes()))).unwrap()
}

impl Nodes {
    async fn put(&self, path: &str, headers: &[(&str, &str)], body: &'static str) -> Answer {
        self.http(0, raw(Method::PUT, &format!("{FILES}{path}"), headers, body)).await
    }

    async fn delete(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.http(0, raw(Method::DELETE, &format!("{FILES}{path}"), headers, "")).await
    }

    async fn cat(&self, path: &str) -> Answer {
        self.get(&format!("{FILES}{path}")).await
    }
}

fn tag(answer: &Answer) -> String {
    answer.headers["etag"].to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_written_read_listed_and_deleted() {
    let nodes = Nodes::found(1).await;
    assert_eq!(nodes.put("/app?directory", &[], "").await.status, 201);
    assert_eq!(nodes.put("/app?directory", &[], "").await.status, 204);
    let created = nodes.put("/app/config", &[], "one").await;
    assert_eq!(created.status, 201, "{}", created.text());
    assert_eq!(nodes.put("/app/config", &[], "two").await.status, 204);
    let read = nodes.cat("/app/config").await;
    assert_eq!((read.status.as_u16(), read.text().as_str()), (200, "two"));
    assert_ne!(tag(&created), tag(&read));
    let known = raw(Method::GET, &format!("{FILES}/app/config"), &[("if-none-match", &tag(&read))], "");
    assert_eq!(nodes.http(0, known).await.status, 304);
    let stat = nodes.cat("/app/config?stat").await.json();
    assert_eq!((&stat["length"], &stat["directory"], &stat["lock"]), (&json!(3), &json!(false), &json!("free")));
    let list = nodes.cat("/app?list").await.json();
    assert_eq!(list["children"][0]["name"], "config");
    let root = nodes.get("/v1/cell/files?list").await.json();
    let names: Vec<&str> = root["children"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["acl", "app"]);
    assert_eq!(nodes.cat("/app").await.error(), (409, "cell.is_a_directory".into()));
    assert_eq!(nodes.delete("/app", &[]).await.error(), (409, "cell.not_empty".into()));
    assert_eq!(nodes.delete("/app/config", &[]).await.status, 204);
    assert_eq!(nodes.cat("/app/config").await.error(), (404, "cell.no_node".into()));
    assert_eq!(nodes.delete("/app", &[]).await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_are_compared_before_anything_is_written() {
    let nodes = Nodes::found(1).await;
    let none = [("if-none-match", "*")];
    let first = tag(&nodes.put("/c", &none, "one").await);
    assert_eq!(nodes.put("/c", &none, "again").await.status, 412);
    let second = nodes.put("/c", &[("if-match", &first)], "two").await;
    assert_eq!(second.status, 204, "{}", second.text());
    assert_eq!(nodes.put("/c", &[("if-match", &first)], "late").await.error(), (412, "cell.wrong_generation".into()));
    let generation = second.headers["tidings-generation"].to_str().unwrap();
    let third = nodes.put("/c", &[("if-match", generation)], "three").await;
    assert_eq!(third.status, 204);
    assert_eq!(nodes.delete("/c", &[("if-match", &first)]).await.status, 412);
    assert_eq!(nodes.delete("/c", &[("if-match", &tag(&third))]).await.status, 204);
    // A new file of that name is another one, whatever its generation.
    nodes.put("/c", &[], "new").await;
    assert_eq!(nodes.put("/c", &[("if-match", &first)], "old").await.status, 412);
    assert_eq!(nodes.put("/missing", &[("if-match", &first)], "x").await.status, 412);
    assert_eq!(nodes.cat("/c").await.text(), "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_have_names_and_change_nothing() {
    let nodes = Nodes::found(1).await;
    for (answer, expected) in [
        (nodes.put("/e?ephemeral", &[], "x").await, (400, "cell.needs_session")),
        (nodes.put("/a//b", &[], "x").await, (400, "cell.bad_path")),
        (nodes.put("/a/../b", &[], "x").await, (400, "cell.bad_path")),
        (nodes.put("/a%2Fb", &[], "x").await, (400, "control.bad_path")),
        (nodes.put("/no/parent", &[], "x").await, (404, "cell.no_parent")),
        (nodes.put("/d?directory", &[], "contents").await, (400, "control.bad_body")),
        (nodes.put("/d?derictory", &[], "").await, (400, "control.bad_path")),
        (nodes.put("/d", &[("if-match", "soon")], "").await, (400, "control.bad_header")),
        (nodes.cat("/d?stat&list").await, (400, "control.bad_path")),
        (nodes.put("/d?acl", &[], "{\"reed\": \"x\"}").await, (400, "control.bad_body")),
    ] {
        let (status, code) = expected;
        assert_eq!(answer.error(), (status, code.to_owned()));
    }
    let large = Request::builder().method(Method::PUT).uri(format!("{FILES}/large")).header("host", "localhost");
    let large = large.body(Full::new(Bytes::from(vec![0; (256 << 10) + 1]))).unwrap();
    assert_eq!(nodes.http(0, large).await.error(), (413, "cell.too_large".into()));
    assert_eq!(nodes.get("/v1/cell/files?list").await.json()["children"].as_array().unwrap().len(), 1);
}

/// The sessions of applications: the platform has some of its own.
fn applications(list: &serde_json::Value) -> Vec<serde_json::Value> {
    let all = list["sessions"].as_array().unwrap().iter();
    all.filter(|session| !session["app"].as_str().unwrap().starts_with('.')).cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn access_lists_quotas_sessions_and_locks() {
    let nodes = Nodes::found(1).await;
    nodes.put("/f", &[], "x").await;
    assert_eq!(nodes.put("/f?acl", &[], "{\"write\": \"owners\"}").await.error(), (409, "cell.unknown_acl".into()));
    nodes.put("/acl/owners", &[], "operator\n").await;
    assert_eq!(nodes.put("/f?acl", &[], "{\"write\": \"owners\"}").await.status, 204);
    assert_eq!(nodes.cat("/f?acl").await.json(), json!({"read": "", "write": "owners", "change": ""}));
    nodes.put("/q?directory", &[], "").await;
    let quota = json!({"max_nodes": 2, "max_bytes": 1000});
    let set = nodes.http(0, request(Method::PUT, "/v1/cell/quotas/q", None, Some(quota))).await;
    assert_eq!(set.status, 204, "{}", set.text());
    let shown = nodes.get("/v1/cell/quotas/q").await.json();
    assert_eq!((&shown["max_nodes"], &shown["max_bytes"]), (&json!(2), &json!(1000)));
    // The root's bounds are those of the whole application.
    let whole = json!({"max_nodes": 4, "max_bytes": 0});
    let set = nodes.http(0, request(Method::PUT, "/v1/cell/quotas", None, Some(whole))).await;
    assert_eq!(set.status, 204, "{}", set.text());
    let shown = nodes.get("/v1/cell/quotas").await.json();
    assert_eq!((&shown["max_nodes"], &shown["nodes"]), (&json!(4), &json!(4)));
    assert_eq!(nodes.put("/one-more", &[], "x").await.error().1, "cell.quota_nodes");
    let sessions = nodes.get("/v1/cell/sessions").await.json();
    let mine = &applications(&sessions)[0];
    assert_eq!((mine["principal"].as_str(), mine["app"].as_str()), (Some("operator"), Some("default")));
    assert_eq!(nodes.get("/v1/cell/locks?after_app=default").await.json(), json!({"locks": []}));
    // An operator may end it; the next request gets another.
    let end = format!("/v1/cell/sessions/{}", mine["session"]);
    let ended = nodes.http(0, request(Method::DELETE, &end, None, None)).await;
    assert_eq!(ended.status, 204, "{}", ended.text());
    super::until("requests are served by another session", async || {
        (nodes.cat("/f").await.status == 200).then_some(())
    })
    .await;
}

/// A stream of server-sent events.
struct Sse {
    body: hyper::body::Incoming,
    read: BytesMut,
    _connection: tokio::task::JoinHandle<()>,
}

impl Sse {
    async fn open(nodes: &Nodes, path: &str) -> Sse {
        let socket = TcpStream::connect(nodes.configs[0].listen).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
        let connection = tokio::spawn(async move { drop(connection.await) });
        let answer = sender.send_request(raw(Method::GET, path, &[], "")).await.unwrap();
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Sse { body: answer.into_body(), read: BytesMut::new(), _connection: connection }
    }

    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some(end) = self.read.windows(2).position(|two| two == b"\n\n") {
                let event = self.read.split_to(end + 2);
                let text = String::from_utf8(event.to_vec()).unwrap();
                let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                match (field("event:"), field("data:")) {
                    (Some(event), Some(data)) => return Some((event.to_owned(), serde_json::from_str(data).unwrap())),
                    _ => continue,
                }
            }
            let frame = tokio::time::timeout(STUCK, self.body.frame()).await.expect("something comes")?;
            if let Ok(data) = frame.ok()?.into_data() {
                self.read.extend_from_slice(&data);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_tells_the_state_and_every_change() {
    let mut nodes = Nodes::found(1).await;
    assert_eq!(nodes.cat("/w?watch").await.error(), (404, "cell.no_node".into()));
    nodes.put("/w", &[], "one").await;
    let mut events = Sse::open(&nodes, &format!("{FILES}/w?watch")).await;
    let (kind, first) = events.next().await.unwrap();
    assert_eq!((kind.as_str(), &first["length"]), ("changed", &json!(3)));
    nodes.put("/w", &[], "two!").await;
    let (_, second) = events.next().await.unwrap();
    assert_eq!(second["length"], json!(4));
    nodes.delete("/w", &[]).await;
    let (kind, _) = events.next().await.unwrap();
    assert_eq!(kind, "gone");
    assert_eq!(events.next().await, None);
    // A stream does not hold up a shutdown.
    nodes.put("/w", &[], "again").await;
    let mut events = Sse::open(&nodes, &format!("{FILES}/w?watch")).await;
    events.next().await.unwrap();
    let stopping = tokio::spawn(nodes.nodes[0].take().unwrap().shutdown());
    assert_eq!(events.next().await, None);
    stopping.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_of_a_directory_tells_what_changes_in_it() {
    let nodes = Nodes::found(1).await;
    nodes.put("/d?directory", &[], "").await;
    nodes.put("/d/a", &[], "one").await;
    let mut events = Sse::open(&nodes, &format!("{FILES}/d?watch")).await;
    let (_, first) = events.next().await.unwrap();
    assert_eq!((&first["children"], first.get("changed")), (&json!(1), None));
    // The directory's own metadata stays the same.
    nodes.put("/d/a", &[], "two").await;
    let (kind, changed) = events.next().await.unwrap();
    assert_eq!((kind.as_str(), &changed["changed"], changed.get("more")), ("changed", &json!(["a"]), None));
    nodes.put("/d/b", &[], "").await;
    let (_, added) = events.next().await.unwrap();
    assert_eq!((&added["children"], &added["changed"]), (&json!(2), &json!(["b"])));
    nodes.delete("/d/a", &[]).await;
    let (_, removed) = events.next().await.unwrap();
    assert_eq!((&removed["children"], &removed["changed"]), (&json!(1), &json!(["a"])));
    // Another session tells nothing of what was between, and so this is told.
    let sessions = nodes.get("/v1/cell/sessions").await.json();
    let end = format!("/v1/cell/sessions/{}", applications(&sessions)[0]["session"]);
    assert_eq!(nodes.http(0, request(Method::DELETE, &end, None, None)).await.status, 204);
    let (_, again) = events.next().await.unwrap();
    assert_eq!((again.get("changed"), &again["more"]), (None, &json!(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_gathered_page_by_page() {
    const LOCKS: usize = 510;
    let nodes = Nodes::found(1).await;
    let cell = Cell::with(nodes.client(0)).await.unwrap();
    let held = futures::stream::iter(0..LOCKS).map(|n| {
        let cell = cell.clone();
        async move {
            let handle = cell.open(&format!("/lock-{n:03}")).lock().create_file("").await.unwrap();
            let lock = handle.try_acquire(Mode::Exclusive).await.unwrap().unwrap();
            (handle, lock)
        }
    });
    let held: Vec<_> = held.buffer_unordered(64).collect().await;
    let locks = nodes.get("/v1/cell/locks?after_app=default").await.json();
    let paths: Vec<&str> =
        locks["locks"].as_array().unwrap().iter().map(|lock| lock["path"].as_str().unwrap()).collect();
    assert_eq!((paths.len(), paths.is_sorted(), locks.get("more")), (LOCKS, true, None));
    let rest = nodes.get("/v1/cell/locks?after_app=default&after=/lock-507").await.json();
    assert_eq!(rest["locks"].as_array().unwrap().len(), 2);
    let session = cell.session();
    let sessions = nodes.get(&format!("/v1/cell/sessions?after={}", session - 1)).await.json();
    assert_eq!(sessions["sessions"][0]["session"], json!(session));
    let none = nodes.get(&format!("/v1/cell/sessions?after={session}")).await.json();
    assert!(applications(&none).is_empty(), "{none}");
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_find_the_master_from_any_node_and_idle_sessions_end() {
    let nodes = Nodes::found_with(3, |config| config.cell.rest_idle = Time::millis(300)).await;
    for at in 0..3 {
        let put = raw(Method::PUT, &format!("{FILES}/n{at}"), &[], "x");
        assert_eq!(nodes.http(at, put).await.status, 201);
        let get = raw(Method::GET, &format!("{FILES}/n0"), &[], "");
        assert_eq!(nodes.http((at + 1) % 3, get).await.text(), "x");
    }
    super::until("no session is left", async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let sessions = nodes.get("/v1/cell/sessions").await.json();
        applications(&sessions).is_empty().then_some(())
    })
    .await;
}
