//! A client that knows nothing but `docs/protocol/notify.md`: JSON over WebSocket, without a line of the library.

use super::{publish, start};
use crate::process::{Server, turn, until};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

/// `prices`, in base64.
pub(super) const PRICES: &str = "cHJpY2Vz";

pub(super) struct Stranger {
    socket: WebSocketStream<TcpStream>,
}

impl Stranger {
    pub(super) async fn connect(server: &Server) -> Stranger {
        let mut request = format!("ws://{}/v1/frames", server.address).into_client_request().unwrap();
        let headers = request.headers_mut();
        headers.insert("sec-websocket-protocol", "tidings.v1.json".parse().unwrap());
        headers.insert("x-tidings-app", "shop".parse().unwrap());
        let socket = TcpStream::connect(server.address).await.unwrap();
        let (socket, _) = tokio_tungstenite::client_async(request, socket).await.unwrap();
        let mut stranger = Stranger { socket };
        stranger.say(json!({ "control": { "hello": { "min": 1, "max": 1, "agent": "stranger" } } })).await;
        stranger.hear(|frame| frame["control"]["welcome"].as_object().map(|_| ())).await;
        stranger
    }

    pub(super) async fn say(&mut self, frame: Value) {
        self.socket.send(Message::Text(frame.to_string().into())).await.unwrap();
    }

    /// Says something that is no frame; the name of the error that ends the connection.
    pub(super) async fn ended_by(mut self, nonsense: String) -> String {
        // The node need not read it to its end.
        let _ = self.socket.send(Message::Text(nonsense.into())).await;
        let error = async {
            loop {
                let Message::Text(text) = self.socket.next().await.expect("a name comes first").unwrap() else {
                    continue;
                };
                let frame: Value = serde_json::from_str(&text).unwrap();
                if let Some(code) = frame["control"]["error"]["code"].as_str() {
                    return code.to_owned();
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), error).await.expect("it is heard")
    }

    /// A message of the channel, which is operation 1 and goes on.
    pub(super) async fn up(&mut self, up: Value) {
        self.say(json!({ "op": "1", "more": true, "notify": { "up": up } })).await;
    }

    /// Waits for a frame in which `pick` finds something.
    pub(super) async fn hear<T>(&mut self, pick: impl Fn(&Value) -> Option<T>) -> T {
        let heard = async {
            loop {
                let Message::Text(text) = self.socket.next().await.expect("it is open").unwrap() else { continue };
                let frame: Value = serde_json::from_str(&text).unwrap();
                assert!(frame["control"]["error"].is_null(), "{frame}");
                if let Some(found) = pick(&frame) {
                    return found;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), heard).await.expect("it is heard")
    }

    /// Begins a session under this nonce; its token.
    pub(super) async fn begin(&mut self, nonce: u64) -> String {
        let nonce = nonce.to_string();
        self.up(json!({ "hello": { "nonce": nonce, "persistent": true }, "contact": "1" })).await;
        let grant = |frame: &Value| Some(frame["notify"]["down"]["grant"].clone()).filter(|g| g["nonce"] == nonce);
        self.hear(grant).await["token"].as_str().expect("a token").to_owned()
    }

    /// Registers `prices` as the first change, and waits until that is complete.
    pub(super) async fn register(&mut self, token: &str) {
        let register = json!([{ "register": { "object": PRICES } }]);
        self.up(json!({ "token": token, "contact": "1", "latest": "1", "first": "1", "changes": register })).await;
        self.hear(|frame| {
            let statuses = frame["notify"]["down"]["statuses"].as_array()?;
            statuses.iter().any(|status| status["object"] == PRICES && status["registered"] == true).then_some(())
        })
        .await;
    }

    /// Waits for this version.
    pub(super) async fn hears(&mut self, version: u64) {
        let version = version.to_string();
        self.hear(|frame| {
            let all = frame["notify"]["down"]["notifications"].as_array()?;
            all.iter().any(|news| news["object"] == PRICES && news["version"] == version).then_some(())
        })
        .await;
    }

    /// Waits for a notification of this field.
    pub(super) async fn notified(&mut self, field: &str) -> Value {
        self.hear(|frame| {
            let all = frame["notify"]["down"]["notifications"].as_array()?;
            all.iter()
                .find(|found| found["object"] == PRICES)
                .map(|found| found[field].clone())
                .filter(|v| !v.is_null())
        })
        .await
    }
}

#[test]
fn whoever_reads_the_protocol_can_listen() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    publish(&server, "other", 1);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut stranger = Stranger::connect(&server).await;
        let token = stranger.begin(4711).await;
        stranger.register(&token).await;
        publish(&server, "prices", 41);
        assert_eq!(stranger.notified("version").await, "41");
        let ack = |version: &str| json!([{ "object": PRICES, "version": version }]);
        let said = json!({ "token": token, "contact": "1", "latest": "1", "first": "2", "acks": ack("41") });
        stranger.up(said).await;
        until("it is acknowledged", || {
            let clients = server.run(&["notify", "clients", "shop", "--json"]).json();
            (clients["clients"][0]["unacknowledged"] == 0).then_some(())
        });

        // It comes back as itself, hears what it has missed, and somebody else's token buys nothing.
        drop(stranger);
        publish(&server, "prices", 42);
        let mut stranger = Stranger::connect(&server).await;
        let hello = json!({ "nonce": "4712", "previous": token, "persistent": true });
        stranger.up(json!({ "hello": hello, "contact": "2" })).await;
        stranger.hears(42).await;
        stranger.up(json!({ "token": "Zm9yZ2Vk", "contact": "2", "latest": "0", "first": "1" })).await;
        let refused = stranger.hear(|frame| frame["notify"]["down"]["refusal"]["reason"].as_str().map(str::to_owned));
        assert_eq!(refused.await, "NOTIFY_REFUSED_BAD_TOKEN");
    });
}
