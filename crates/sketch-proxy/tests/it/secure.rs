//! TLS on either side.

use crate::origins::{Origin, Sin};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidings_sketch_proxy::{Config, Identity, Proxy};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A certificate for this machine, its key, and its file.
struct Made {
    _place: tempfile::TempDir,
    certificate: PathBuf,
    key: PathBuf,
}

fn made(name: &str) -> Made {
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    let place = tempfile::tempdir().unwrap();
    let (certificate, key) = (place.path().join("cert.pem"), place.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    Made { _place: place, certificate, key }
}

impl Made {
    fn acceptor(&self) -> TlsAcceptor {
        let chain = vec![CertificateDer::from_pem_file(&self.certificate).unwrap()];
        let key = PrivateKeyDer::from_pem_file(&self.key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        TlsAcceptor::from(Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).unwrap()))
    }

    /// Connects to somebody who must show this certificate.
    async fn connect(&self, to: SocketAddr, alpn: &[u8]) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.certificate).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![alpn.to_vec()];
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, TcpStream::connect(to).await?).await
    }
}

async fn origins(certificates: &[&Made]) -> Vec<Arc<Origin>> {
    let mut origins = Vec::new();
    for certificate in certificates {
        let origin = Origin::start_with(Sin::None, Some(certificate.acceptor())).await;
        origin.put("/", "hello");
        origins.push(origin);
    }
    origins
}

async fn proxy(origins: &[Arc<Origin>], change: impl FnOnce(&mut Config)) -> Proxy {
    let urls: Vec<String> = origins.iter().map(|origin| format!("https://{}", origin.address)).collect();
    let mut config = Config::of(SocketAddr::from(([127, 0, 0, 1], 0)), &urls).unwrap();
    config.sites[0].give_up = Duration::from_secs(5);
    change(&mut config);
    Proxy::start(config).await.unwrap()
}

#[tokio::test]
async fn clients_and_origins_come_by_tls() {
    let (shown, theirs) = (made("127.0.0.1"), made("127.0.0.1"));
    let origins = origins(&[&theirs, &theirs, &theirs]).await;
    let proxy = proxy(&origins, |config| {
        config.sites[0].origin_ca = Some(theirs.certificate.clone());
        config.tls = Some(Identity { certificate: shown.certificate.clone(), key: shown.key.clone() });
    })
    .await;
    let stream = shown.connect(proxy.address(), b"h2").await.expect("it shows the certificate that it was given");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let task = tokio::spawn(connection);
    for verified in ["agreed", "fast", "fast"] {
        let request = Request::get(format!("https://{}/", proxy.address())).body(Empty::<Bytes>::new()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["tidings-verified"], verified);
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "hello");
    }
    task.abort();
    let other = made("127.0.0.1");
    assert!(other.connect(proxy.address(), b"h2").await.is_err(), "another certificate is not the proxy's");
}

#[tokio::test]
async fn an_origin_that_nobody_vouches_for_is_not_asked() {
    let (theirs, strange) = (made("127.0.0.1"), made("127.0.0.1"));
    let elsewhere = made("elsewhere.example");
    for wrong in [&strange, &elsewhere] {
        let origins = origins(&[&theirs, wrong, wrong]).await;
        let proxy = proxy(&origins, |config| config.sites[0].origin_ca = Some(theirs.certificate.clone())).await;
        let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
        let uri = format!("http://{}/", proxy.address()).parse().unwrap();
        assert_eq!(client.get(uri).await.unwrap().status(), 502, "one of three is no quorum");
    }
}

#[tokio::test]
async fn certificates_that_are_none_are_refused_at_the_start() {
    let shown = made("127.0.0.1");
    let refused = async |change: &dyn Fn(&mut Config)| {
        let urls = ["https://a".to_owned()];
        let mut config = Config::of(SocketAddr::from(([127, 0, 0, 1], 0)), &urls).unwrap();
        config.sites[0].origin_ca = Some(shown.certificate.clone());
        change(&mut config);
        Proxy::start(config).await.err().map(|error| error.code.to_string())
    };
    assert_eq!(refused(&|_| {}).await, None);
    let bad = Some("sketch.bad_tls".to_owned());
    assert_eq!(refused(&|config| config.sites[0].origin_ca = Some(shown.key.clone())).await, bad);
    let swapped = Identity { certificate: shown.key.clone(), key: shown.certificate.clone() };
    assert_eq!(refused(&|config| config.tls = Some(swapped.clone())).await, bad);
}
