//! TLS and client certificates with real handshakes.

use crate::support::{Answer, Server, request, send_http1, send_http2};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use tidings_base::{NodeId, Wall};
use tidings_node::config::Member;
use tidings_node::{Clock, Config, SystemClock, pki};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A cluster's files in a temporary directory, and a server that is its node 1.
struct Cluster {
    dir: tempfile::TempDir,
    server: Server,
    operator: String,
}

fn members() -> [Member; 3] {
    [1, 2, 3].map(|node| Member { node, address: format!("127.0.0.1:740{node}") })
}

impl Cluster {
    async fn start() -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let made = pki::init(dir.path(), &members(), SystemClock.now().wall).unwrap();
        let mut config = Config::load(dir.path().join("node-1/node.toml")).unwrap();
        config.validate().unwrap();
        config.listen.set_port(0);
        let server = Server::start(config).await;
        Cluster { dir, server, operator: made.operator_key }
    }

    async fn connect(&self, client: ClientConfig, name: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let socket = TcpStream::connect(self.server.address()).await?;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        TlsConnector::from(Arc::new(client)).connect(name, socket).await
    }

    async fn get(&self, client: ClientConfig, credential: Option<&str>, path: &str) -> Answer {
        let stream = self.connect(client, "localhost").await.unwrap();
        send_http1(stream, request(Method::GET, path, credential, None)).await
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A client that trusts `ca`, with the certificate in `identity` if one is given.
fn client(ca: &Path, identity: Option<&Path>, alpn: &[u8]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(dir) => {
            let chain = vec![CertificateDer::from_pem_file(dir.join("node.pem")).unwrap()];
            let key = PrivateKeyDer::from_pem_file(dir.join("node.key")).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    config
}

#[tokio::test]
async fn http_1_and_2_are_negotiated_over_tls() {
    let cluster = Cluster::start().await;
    let ca = cluster.dir.path().join("ca.pem");
    let answer = cluster.get(client(&ca, None, b"http/1.1"), None, "/healthz").await;
    assert_eq!((answer.status.as_u16(), answer.text().as_str()), (200, "ok\n"));
    let stream = cluster.connect(client(&ca, None, b"h2"), "127.0.0.1").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let request: Request<Full<Bytes>> =
        Request::builder().uri("https://127.0.0.1/v1/admin/status").body(Full::default()).unwrap();
    let answer = send_http2(stream, request).await;
    assert_eq!(answer.error(), (401, "control.unauthenticated".into()));
}

#[tokio::test]
async fn the_operator_key_opens_administration_over_tls() {
    let cluster = Cluster::start().await;
    let client = client(&cluster.dir.path().join("ca.pem"), None, b"http/1.1");
    let status = cluster.get(client.clone(), Some(&cluster.operator), "/v1/admin/status").await;
    assert_eq!(status.status, 200);
    assert_eq!((status.json()["node"].as_u64(), status.json()["address"].as_str()), (Some(1), Some("127.0.0.1:7401")));
    let other = tidings_node::keys::Key::operator().unwrap().reveal();
    let refused = cluster.get(client, Some(&other), "/v1/admin/status").await;
    assert_eq!(refused.error(), (401, "control.unauthenticated".into()));
}

#[tokio::test]
async fn a_certificate_of_the_cluster_makes_its_holder_a_node_and_no_more() {
    let cluster = Cluster::start().await;
    let ca = cluster.dir.path().join("ca.pem");
    let node_2 = client(&ca, Some(&cluster.dir.path().join("node-2")), b"http/1.1");
    assert_eq!(cluster.get(node_2.clone(), None, "/v1/admin/status").await.status, 200);
    let denied = cluster.get(node_2, None, "/v1/admin/apps").await;
    assert_eq!(denied.status, 200, "nodes may read what operators may");
    let node_2 = client(&ca, Some(&cluster.dir.path().join("node-2")), b"http/1.1");
    let stream = cluster.connect(node_2, "localhost").await.unwrap();
    let create = request(Method::POST, "/v1/admin/apps", None, Some(serde_json::json!({"app": "x"})));
    let denied = send_http1(stream, create).await;
    assert_eq!(denied.error(), (403, "control.forbidden".into()));
    assert!(denied.json()["message"].as_str().unwrap().contains("node:2"));
}

#[tokio::test]
async fn a_certificate_of_another_cluster_is_turned_away() {
    let cluster = Cluster::start().await;
    let other = tempfile::tempdir().unwrap();
    pki::init(other.path(), &members(), SystemClock.now().wall).unwrap();
    let ca = cluster.dir.path().join("ca.pem");
    let foreign = client(&ca, Some(&other.path().join("node-2")), b"http/1.1");
    // In TLS 1.3 the client learns of the refusal with the first read.
    if let Ok(mut stream) = cluster.connect(foreign, "localhost").await {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let _ = stream.write_all(b"GET /v1/admin/status HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert!(stream.read_u8().await.is_err());
    }
    // And a client that does not trust our CA turns us away.
    let distrustful = client(&other.path().join("ca.pem"), None, b"http/1.1");
    assert!(cluster.connect(distrustful, "localhost").await.is_err());
    assert_eq!(cluster.get(client(&ca, None, b"http/1.1"), None, "/healthz").await.status, 200);
}

#[tokio::test]
async fn a_node_is_reached_by_its_own_name_and_by_no_other_nodes() {
    let cluster = Cluster::start().await;
    let ca = cluster.dir.path().join("ca.pem");
    let name = |node| pki::node_name(NodeId(node));
    assert!(cluster.connect(client(&ca, None, b"h2"), &name(1)).await.is_ok());
    assert!(cluster.connect(client(&ca, None, b"h2"), &name(2)).await.is_err());
}

#[tokio::test]
async fn plain_text_on_an_encrypted_port_is_turned_away() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let cluster = Cluster::start().await;
    let mut socket = TcpStream::connect(cluster.server.address()).await.unwrap();
    socket.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 200"));
}

#[test]
fn init_makes_private_files_and_never_overwrites() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cluster");
    let now = SystemClock.now().wall;
    let made = pki::init(&path, &members(), now).unwrap();
    assert_eq!(made.files.len(), 3 + 3 * 4);
    for file in &made.files {
        let mode = fs::metadata(file).unwrap().permissions().mode() & 0o777;
        let is_secret = !file.ends_with("ca.pem") && !file.ends_with("node.pem");
        assert_eq!(mode, if is_secret { 0o600 } else { 0o644 }, "{}", file.display());
    }
    assert_eq!(fs::read_to_string(path.join("operator.key")).unwrap().trim(), made.operator_key);
    let before = fs::read(path.join("ca.key")).unwrap();
    assert_eq!(pki::init(&path, &members(), now).unwrap_err().code, "node.init_exists");
    assert_eq!(fs::read(path.join("ca.key")).unwrap(), before);
    assert_eq!(pki::init(&dir.path().join("x"), &members()[..2], now).unwrap_err().code, "node.bad_config");
    let odd = Member { node: 1, address: "a\"\nnode = 7:1".into() };
    assert_eq!(pki::init(&dir.path().join("y"), &[odd], now).unwrap_err().code, "node.bad_config");
}

#[test]
fn a_node_can_be_added_with_the_same_ca() {
    let dir = tempfile::tempdir().unwrap();
    let now = SystemClock.now().wall;
    pki::init(dir.path(), &members()[..1], now).unwrap();
    let files = pki::add_node(dir.path(), &members()[1], &members(), now).unwrap();
    assert_eq!(files.len(), 4);
    let config = Config::load(dir.path().join("node-2/node.toml")).unwrap();
    config.validate().unwrap();
    assert_eq!((config.node, config.members.len()), (2, 3));
    assert_eq!(pki::add_node(dir.path(), &members()[1], &members(), now).unwrap_err().code, "node.init_exists");
}

#[test]
fn certificates_are_checked_for_the_doctor() {
    let dir = tempfile::tempdir().unwrap();
    let now = SystemClock.now().wall;
    pki::init(dir.path(), &members(), now).unwrap();
    let path = dir.path().join("node-2/node.pem");
    let day = 86_400 * 1_000_000;
    let at = |days: u64| pki::check_certificate(&path, Wall(now.0 + days * day)).unwrap();
    let fresh = at(0);
    assert_eq!((fresh.node, fresh.problems.len(), fresh.is_ca), (Some(NodeId(2)), 0, false));
    assert!(fresh.names.contains(&"127.0.0.1".to_owned()), "{:?}", fresh.names);
    assert!(at(710).problems[0].contains("expires at"), "{:?}", at(710).problems);
    assert!(at(800).problems[0].contains("expired at"), "{:?}", at(800).problems);
    let ca = pki::check_certificate(&dir.path().join("ca.pem"), now).unwrap();
    assert_eq!((ca.is_ca, ca.node, ca.problems.len()), (true, None, 0));
    assert_eq!(pki::check_certificate(&dir.path().join("ca.key"), now).unwrap_err().code, "node.bad_config");
}
