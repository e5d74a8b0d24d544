//! TLS on either side, by rustls.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidings_base::{Class, Error};

/// What a proxy shows to its clients.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The chain of certificates, in PEM, the proxy's own first.
    pub certificate: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
}

/// Where systems keep the authorities that they trust.
const SYSTEM: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

fn bad(what: impl Display) -> Error {
    Error::new("sketch.bad_tls", Class::Invalid, what.to_string())
}

/// The side of clients: HTTP/2 for whoever speaks it.
pub(crate) fn server(identity: &Identity) -> Result<Arc<ServerConfig>, Error> {
    let Identity { certificate, key } = identity;
    let chain = certificates(certificate)?;
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| bad(format!("{}: not a private key in PEM: {error}", key.display())))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| bad(format!("TLS cannot be set up: {error}")))?.with_no_client_auth();
    let mut server = builder.with_single_cert(chain, private).map_err(|error| {
        bad(format!("{} and {} do not fit together: {error}", certificate.display(), key.display()))
    })?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(server))
}

/// The side of origins: trusts the authorities of a file, or else those of the system, and nobody beside.
pub(crate) fn client(ca: Option<&Path>) -> Result<Arc<ClientConfig>, Error> {
    let system = || SYSTEM.iter().map(Path::new).find(|path| path.exists());
    let path = ca.or_else(system).ok_or_else(|| {
        bad("this system names no certificate authorities").hint("Name the origins' authority with --origin-ca FILE.")
    })?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| bad(format!("{}: {error}", path.display())))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| bad(format!("TLS cannot be set up: {error}")))?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// The name that an origin's certificate must carry.
pub(crate) fn name(host: &str) -> Result<ServerName<'static>, Error> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned()).map_err(|_| bad(format!("`{host}` is no name that a certificate can carry")))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let unreadable = |error| bad(format!("{}: not a certificate in PEM: {error}", path.display()));
    let all = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
    let all = all.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    if all.is_empty() { Err(bad(format!("{}: no certificate is in it", path.display()))) } else { Ok(all) }
}
