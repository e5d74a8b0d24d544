//! A node on loopback and a plain HTTP client.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use tidings_node::config::{Grant, Issuer};
use tidings_node::keys::{Key, KeyRecord, KeyStore};
use tidings_node::memory::MemoryServices;
use tidings_node::{AppName, Clock, Config, Node, SystemClock};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A configuration for a loopback port of the kernel's choice.
pub fn loopback() -> Config {
    Config::embedded("unused", SocketAddr::from(([127, 0, 0, 1], 0)))
}

/// A running node with what stands behind it.
pub struct Server {
    pub node: Node,
    pub services: Arc<MemoryServices>,
    pub keys: Arc<dyn KeyStore>,
}

impl Server {
    pub async fn start(config: Config) -> Server {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (services, keys) = MemoryServices::new(clock.clone());
        let node = Node::start_with(config, services.clone(), keys.clone(), clock).await.expect("the node starts");
        Server { node, services, keys }
    }

    pub fn address(&self) -> SocketAddr {
        self.node.address()
    }

    /// A new application's key.
    pub async fn app(&self, name: &str) -> String {
        let key = Key::random().unwrap();
        let record = KeyRecord::new(&AppName::parse(name).unwrap(), &key, SystemClock.now().wall).unwrap();
        self.keys.create_app(record).await.unwrap();
        key.reveal()
    }

    /// Sends a request on a connection of its own, over HTTP/1.1.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        send_http1(TcpStream::connect(self.address()).await.unwrap(), request).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(request(Method::GET, path, None, None)).await
    }

    pub async fn get_as(&self, credential: &str, path: &str) -> Answer {
        self.send(request(Method::GET, path, Some(credential), None)).await
    }

    pub async fn json(&self, method: Method, path: &str, body: Value) -> Answer {
        self.send(request(method, path, None, Some(body))).await
    }

    pub async fn json_as(&self, credential: &str, method: Method, path: &str, body: Value) -> Answer {
        self.send(request(method, path, Some(credential), Some(body))).await
    }
}

/// An HTTP answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }

    /// The status and the error's code.
    pub fn error(&self) -> (u16, String) {
        (self.status.as_u16(), self.json()["code"].as_str().expect("an error has a code").to_owned())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }
}

pub fn request(method: Method, path: &str, credential: Option<&str>, body: Option<Value>) -> Request<Full<Bytes>> {
    let mut builder = Request::builder().method(method).uri(path).header("host", "localhost");
    if let Some(credential) = credential {
        builder = builder.header("authorization", format!("Bearer {credential}"));
    }
    let body = body.map_or(Bytes::new(), |body| Bytes::from(body.to_string()));
    builder.body(Full::new(body)).unwrap()
}

pub async fn send_http1<S>(stream: S, request: Request<Full<Bytes>>) -> Answer
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let answer = read(sender.send_request(request).await.unwrap()).await;
    drop(sender);
    connection.abort();
    answer
}

pub async fn send_http2<S>(stream: S, request: Request<Full<Bytes>>) -> Answer
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.unwrap();
    let connection = tokio::spawn(connection);
    let answer = read(sender.send_request(request).await.unwrap()).await;
    connection.abort();
    answer
}

async fn read(response: http::Response<hyper::body::Incoming>) -> Answer {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer { status: parts.status, headers: parts.headers, body }
}

/// An issuer of tokens with a shared secret, its key set in a file.
pub struct TestIssuer {
    pub name: String,
    pub secret: [u8; 32],
    pub kid: String,
    jwks: PathBuf,
}

impl TestIssuer {
    pub fn new(dir: &Path, name: &str, kid: &str, secret: u8) -> TestIssuer {
        let secret = [secret; 32];
        let key = json!({"kty": "oct", "kid": kid, "alg": "HS256", "k": URL_SAFE_NO_PAD.encode(secret)});
        let jwks = dir.join(format!("{}.json", name.replace(['/', ':'], "_")));
        std::fs::write(&jwks, json!({ "keys": [key] }).to_string()).unwrap();
        TestIssuer { name: name.to_owned(), secret, kid: kid.to_owned(), jwks }
    }

    pub fn config(&self, app: &str, grants: &[Grant]) -> Issuer {
        Issuer {
            issuer: self.name.clone(),
            audience: "tidings".into(),
            algorithm: jsonwebtoken::Algorithm::HS256,
            jwks: Some(self.jwks.clone()),
            public_key: None,
            app: app.into(),
            grants: grants.to_vec(),
        }
    }

    /// Claims that are all right.
    pub fn claims(&self) -> Value {
        json!({"iss": self.name, "aud": "tidings", "sub": "ann", "exp": now_seconds() + 600})
    }

    /// A token with these claims, signed as it should be.
    pub fn sign(&self, claims: &Value) -> String {
        let header = jsonwebtoken::Header { kid: Some(self.kid.clone()), ..Default::default() };
        jsonwebtoken::encode(&header, claims, &jsonwebtoken::EncodingKey::from_secret(&self.secret)).unwrap()
    }
}

pub fn now_seconds() -> u64 {
    SystemClock.now().wall.0 / 1_000_000
}

/// A configuration whose operator has this key.
pub fn with_operator() -> (Config, String) {
    let key = Key::operator().unwrap();
    let mut config = loopback();
    config.auth.operator_key_hash = Some(key.hash().unwrap());
    (config, key.reveal())
}

/// How often the program's own code, or that of others below it, panicked so far; counted from the first call on.
/// A panic in a task ends that task only, so nothing else tells of it.
pub fn panics() -> usize {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    static COUNTING: Once = Once::new();
    COUNTING.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let in_tests = info.location().is_some_and(|location| location.file().contains("tests/"));
            PANICS.fetch_add(usize::from(!in_tests), Ordering::Relaxed);
            before(info);
        }));
    });
    PANICS.load(Ordering::Relaxed)
}
