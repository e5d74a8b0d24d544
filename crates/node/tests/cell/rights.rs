//! Who may do what in the cell, whatever a message claims.

use super::{Nodes, Raw, ask, ask_bare};
use crate::support::request;
use http::Method;
use serde_json::json;
use tidings_client::{Client, ClientConfig};
use tidings_node::keys::Key;
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;

struct Keyed {
    nodes: Nodes,
    operator: String,
}

impl Keyed {
    async fn start() -> Keyed {
        let key = Key::operator().unwrap();
        let hash = key.hash().unwrap();
        let nodes = Nodes::found_with(1, |config| {
            config.auth.operator_key_hash = Some(hash.clone());
            config.cell.rest_sessions = 1;
        });
        Keyed { nodes: nodes.await, operator: key.reveal() }
    }

    async fn app(&self, name: &str) -> Client {
        self.client(&self.key(name).await)
    }

    /// A new application's key.
    async fn key(&self, name: &str) -> String {
        let create = request(Method::POST, "/v1/admin/apps", Some(&self.operator), Some(json!({"app": name})));
        self.nodes.http(0, create).await.json()["key"].as_str().unwrap().to_owned()
    }

    fn client(&self, key: &str) -> Client {
        let config = ClientConfig { credential: Some(key.to_owned()), ..ClientConfig::new([self.nodes.url(0)]) };
        Client::new(config).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn applications_do_not_see_each_other_and_sessions_are_nobody_elses() {
    let keyed = Keyed::start().await;
    let (shop, blog) = (keyed.app("shop").await, keyed.app("blog").await);
    let (a, b) = (Raw::start(shop.clone()).await, Raw::start(blog.clone()).await);
    a.put("/config", "of the shop").await.unwrap();
    assert!(b.read("/config").await.unwrap().stat.is_none());
    b.put("/config", "of the blog").await.unwrap();
    assert_eq!(a.read("/config").await.unwrap().contents, "of the shop");
    // With another's session, number, secret and all.
    let stolen = Raw { client: blog.clone(), session: a.session, secret: a.secret, ..Raw::start(blog.clone()).await };
    assert_eq!(stolen.set("/config", "x", None).await.unwrap_err().code, "cell.not_your_session");
    let guessed = Raw { session: a.session, ..Raw::start(shop.clone()).await };
    assert_eq!(guessed.set("/config", "x", None).await.unwrap_err().code, "cell.not_your_session");
    // A caller that a client puts into its message is not believed.
    let read = v1::ReadNode { target: super::path("/config"), contents: true, ..Default::default() };
    let mut forged = b.message(0, Message::Read(read));
    forged.caller = Some(v1::CellCaller { app: "shop".into(), principal: "operator".into(), privileged: true });
    match ask(&blog, forged).await.unwrap() {
        Message::NodeRead(read) => assert_eq!(read.contents, "of the blog"),
        other => panic!("not read: {other:?}"),
    }
    assert_eq!(a.read("/config").await.unwrap().contents, "of the shop");
}

/// What a node has applied is told to whom the access lists there let read it, and to nobody without a right to the cell.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_applied_is_told_to_those_who_may_read_it() {
    let keyed = Keyed::start().await;
    let (shop, blog) = (keyed.key("shop").await, keyed.key("blog").await);
    let ask = async |key: Option<&str>, method: Method, path: &str, body| {
        let answer = keyed.nodes.http(0, request(method, &format!("/v1/cell/files{path}"), key, body)).await;
        (answer.status.as_u16(), answer.headers.contains_key("tidings-place"))
    };
    assert_eq!(ask(Some(&shop), Method::PUT, "/config", Some(json!("x"))).await.0, 201);
    assert_eq!(ask(Some(&shop), Method::PUT, "/acl/nobody", Some(json!({}))).await.0, 400, "an access list is lines");
    for how in ["applied", "newest"] {
        let path = format!("/config?place={how}");
        assert_eq!(ask(Some(&shop), Method::GET, &path, None).await, (200, true));
        assert_eq!(ask(Some(&blog), Method::GET, &path, None).await, (404, true), "another application's tree");
        assert_eq!(ask(None, Method::GET, &path, None).await, (401, false));
    }
    let acl = Some(json!({"read": "nobody"}));
    let session = Raw::start(keyed.client(&shop)).await;
    session.put("/acl/nobody", "operator").await.unwrap();
    assert_eq!(ask(Some(&shop), Method::PUT, "/config?acl", acl).await.0, 204);
    for how in ["applied", "newest"] {
        let path = format!("/config?place={how}");
        assert_eq!(ask(Some(&shop), Method::GET, &path, None).await, (403, true), "a refusal has its place, too");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_everything_and_applications_no_lists() {
    let keyed = Keyed::start().await;
    let (shop, operator) = (keyed.app("shop").await, keyed.client(&keyed.operator));
    let session = Raw::start(shop.clone()).await;
    for only in [
        Message::ListSessions(v1::ListSessions::default()),
        Message::ListLocks(v1::ListLocks::default()),
        Message::SetQuota(v1::SetQuota { path: "/".into(), max_nodes: 1, max_bytes: 1 }),
        Message::EndSession(v1::EndSession { session: session.session }),
        Message::Backup(v1::BackupCell {}),
        Message::Restore(v1::RestoreCell::default()),
    ] {
        assert_eq!(session.call(only.clone()).await.unwrap_err().code, "cell.operators_only", "{only:?}");
        let mut forged = session.message(0, only);
        forged.caller = Some(v1::CellCaller { privileged: true, ..Default::default() });
        assert_eq!(ask(&shop, forged).await.unwrap_err().code, "cell.operators_only");
    }
    match ask_bare(&operator, Message::ListSessions(v1::ListSessions::default())).await.unwrap() {
        Message::SessionList(list) => {
            let found = list.sessions.iter().find(|info| info.session == session.session).unwrap();
            assert_eq!(found.app, "shop");
            assert!(found.principal.starts_with("app:shop/"), "{}", found.principal);
        }
        other => panic!("not a list: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_name_the_application_and_others_only_their_own() {
    let keyed = Keyed::start().await;
    let (shop, blog) = (keyed.key("shop").await, keyed.key("blog").await);
    let inside = |key: &str, app: &str| {
        let (credential, app) = (Some(key.to_owned()), Some(app.to_owned()));
        Client::new(ClientConfig { credential, app, ..ClientConfig::new([keyed.nodes.url(0)]) }).unwrap()
    };
    let session = Raw::start(inside(&shop, "shop")).await;
    session.put("/config", "1").await.unwrap();
    // By frames: with a session, and without.
    let operator = inside(&keyed.operator, "shop");
    let by_operator = Raw::start(operator.clone()).await;
    assert_eq!(by_operator.read("/config").await.unwrap().contents, "1");
    by_operator.set("/config", "2", None).await.unwrap();
    assert_eq!(session.read("/config").await.unwrap().contents, "2");
    let quota = v1::SetQuota { path: "/".into(), max_nodes: 3, max_bytes: 0 };
    ask_bare(&operator, Message::SetQuota(quota)).await.unwrap();
    match session.call(Message::GetQuota(v1::GetQuota { path: "/".into() })).await.unwrap() {
        Message::Quota(quota) => assert_eq!(quota.max_nodes, 3),
        other => panic!("not a quota: {other:?}"),
    }
    let plain = Raw::start(keyed.client(&keyed.operator)).await;
    assert!(plain.read("/config").await.unwrap().stat.is_none());
    let read = || Message::Keys(v1::CellKeys {});
    assert_eq!(ask_bare(&inside(&blog, "shop"), read()).await.unwrap_err().code, "control.forbidden");
    assert_eq!(ask_bare(&inside(&keyed.operator, "no/app"), read()).await.unwrap_err().code, "admin.bad_app_name");
    // By REST.
    for (key, app, expected) in
        [(&keyed.operator, "shop", 200), (&keyed.operator, "blog", 404), (&shop, "shop", 200), (&blog, "shop", 403)]
    {
        let mut get = request(Method::GET, "/v1/cell/files/config", Some(key), None);
        get.headers_mut().insert("x-tidings-app", app.parse().unwrap());
        let answer = keyed.nodes.http(0, get).await;
        assert_eq!(answer.status, expected, "{app}: {}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_by_rest_needs_the_right_it_uses_and_no_other() {
    let keyed = Keyed::start().await;
    let reader = keyed.key("shop").await;
    let mut others = Vec::new();
    for _ in 0..2 {
        let create = request(Method::POST, "/v1/admin/apps/shop/keys", Some(&keyed.operator), None);
        let created = keyed.nodes.http(0, create).await.json();
        let text = |field: &str| created[field].as_str().unwrap().to_owned();
        others.push((format!("app:shop/{}", text("id")), text("key")));
    }
    let [(writes, writer), (changes, changer)] = &others[..] else { unreachable!() };
    let put = async |key: &str, path: &str, tag: Option<&str>, body: String| {
        let mut put = request(Method::PUT, &format!("/v1/cell/files{path}"), Some(key), None);
        *put.body_mut() = body.into();
        if let Some(tag) = tag {
            put.headers_mut().insert("if-match", tag.parse().unwrap());
        }
        keyed.nodes.http(0, put).await
    };
    let reads = reader.split(['_', '.']).nth(1).map(|id| format!("app:shop/{id}")).unwrap();
    for (name, principal) in [("readers", &reads), ("writers", writes), ("changers", changes)] {
        assert_eq!(put(&reader, &format!("/acl/{name}"), None, principal.clone()).await.status, 201);
    }
    put(&reader, "/f", None, "x".into()).await;
    put(&reader, "/d?directory", None, String::new()).await;
    let acl = json!({"read": "readers", "write": "writers", "change": "changers"}).to_string();
    for path in ["/f?acl", "/d?acl"] {
        assert_eq!(put(&reader, path, None, acl.clone()).await.status, 204);
    }
    let written = put(writer, "/f", None, "y".into()).await;
    assert_eq!(written.status, 204, "{}", written.text());
    let tag = written.headers["etag"].to_str().unwrap().to_owned();
    assert_eq!(put(writer, "/f", Some(&tag), "z".into()).await.status, 204);
    assert_eq!(put(writer, "/d/new", None, "n".into()).await.status, 201);
    assert_eq!(put(writer, "/d/sub?directory", None, String::new()).await.status, 201);
    assert_eq!(put(writer, "/d/sub?directory", None, String::new()).await.status, 204);
    assert_eq!(put(writer, "/f?acl", None, acl.clone()).await.error(), (403, "cell.denied".into()));
    assert_eq!(put(changer, "/f?acl", None, acl.clone()).await.status, 204);
    assert_eq!(put(changer, "/f", None, "c".into()).await.error(), (403, "cell.denied".into()));
    let get = async |key: &str| keyed.nodes.http(0, request(Method::GET, "/v1/cell/files/f", Some(key), None)).await;
    assert_eq!(get(&reader).await.text(), "z");
    for key in [writer, changer] {
        assert_eq!(get(key).await.error(), (403, "cell.denied".into()));
    }
    // Everybody of the application writes access lists until `/acl` and the lists in it are closed.
    let closed = json!({"write": "changers", "change": "changers"}).to_string();
    for path in ["/acl?acl", "/acl/changers?acl"] {
        assert_eq!(put(&reader, path, None, closed.clone()).await.status, 204);
    }
    for (path, body) in [("/acl/mine", changes), ("/acl/changers", changes), ("/acl?acl", &closed)] {
        assert_eq!(put(writer, path, None, body.clone()).await.error(), (403, "cell.denied".into()), "{path}");
    }
    let nobody = put(changer, "/acl/mine", None, format!("{changes}\nwhoever")).await;
    assert_eq!(nobody.error(), (400, "cell.bad_acl_line".into()), "{}", nobody.text());
    assert_eq!(put(changer, "/acl/mine", None, changes.clone()).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn rest_keeps_applications_apart_with_room_for_one_session() {
    let keyed = Keyed::start().await;
    let keys = [keyed.key("shop").await, keyed.key("blog").await];
    for (key, contents) in keys.iter().zip(["1", "2"]) {
        let put = request(Method::PUT, "/v1/cell/files/f", Some(key), Some(contents.parse().unwrap()));
        assert_eq!(keyed.nodes.http(0, put).await.status, 201);
    }
    for (key, contents) in keys.iter().zip(["1", "2"]) {
        let get = request(Method::GET, "/v1/cell/files/f", Some(key), None);
        assert_eq!(keyed.nodes.http(0, get).await.text(), contents);
        let list = keyed.nodes.http(0, request(Method::GET, "/v1/cell/sessions", Some(key), None)).await;
        assert_eq!(list.error(), (403, "cell.operators_only".into()));
    }
    let nobody = keyed.nodes.http(0, request(Method::GET, "/v1/cell/files/f", None, None)).await;
    assert_eq!(nobody.status, 401);
}
