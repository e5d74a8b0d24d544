//! Who has the address that we want: another Tidings, in plain text or behind TLS, or somebody else.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// As much of an answer as is looked at: the header that tells is among the first.
const ANSWER_BYTES: u64 = 1_024;

/// The URL of the Tidings that answers at an address within `patience`, if one does.
///
/// It says of itself that it is one, and nothing more is made of it: its certificate is not checked.
pub async fn tidings_at(address: SocketAddr, patience: Duration) -> Option<String> {
    let (plain, tls) = tokio::join!(timeout(patience, plain(address)), timeout(patience, behind_tls(address)));
    match (plain, tls) {
        (Ok(Ok(true)), _) => Some(format!("http://{address}")),
        (_, Ok(Ok(true))) => Some(format!("https://{address}")),
        _ => None,
    }
}

async fn plain(address: SocketAddr) -> io::Result<bool> {
    answers(TcpStream::connect(address).await?).await
}

async fn behind_tls(address: SocketAddr) -> io::Result<bool> {
    let provider = Arc::new(ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth();
    let socket = TcpStream::connect(address).await?;
    answers(TlsConnector::from(Arc::new(client)).connect(ServerName::IpAddress(address.ip().into()), socket).await?)
        .await
}

/// Whether whoever is at the other end answers like one of us.
async fn answers(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<bool> {
    stream.write_all(b"GET /healthz HTTP/1.0\r\nhost: localhost\r\n\r\n").await?;
    let mut answer = Vec::new();
    // What came before a connection broke off may be all that is needed.
    let read = stream.take(ANSWER_BYTES).read_to_end(&mut answer).await;
    let found = String::from_utf8_lossy(&answer).to_lowercase().contains("\r\nserver: tidings/");
    if found { Ok(true) } else { read.map(|_| false) }
}

/// Takes any certificate. Nothing is sent that a stranger may not read, and the answer is only shown to a person.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
