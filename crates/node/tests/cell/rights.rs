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
