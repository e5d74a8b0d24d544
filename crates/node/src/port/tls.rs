//! The port's certificate, and whose certificates make a caller a node.

use crate::config::{Tls, bad};
use crate::pki;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;
use tidings_base::{Error, NodeId, Wall};

/// The server's side of TLS as the files say; refused if the certificate is not valid now.
pub fn server(tls: &Tls, now: Wall) -> Result<Arc<ServerConfig>, Error> {
    pki::check_usable(&tls.certificate, now)?;
    pki::check_private(&tls.key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| bad(format!("TLS cannot be set up: {e}")))?;
    let builder = match &tls.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            pki::check_usable(path, now)?;
            let roots = roots(path)?;
            // Clients need no certificate, only nodes do; what a certificate is worth is decided by authorisation.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|e| bad(format!("{}: {e}", path.display())))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let key = PrivateKeyDer::from_pem_file(&tls.key)
        .map_err(|e| bad(format!("{}: not a private key in PEM: {e}", tls.key.display())))?;
    let mut server = builder.with_single_cert(certificates(&tls.certificate)?, key).map_err(|e| {
        bad(format!("{} and {} do not fit together: {e}", tls.certificate.display(), tls.key.display()))
    })?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(server))
}

/// A client's side of TLS that trusts the authority of a file and nobody else.
pub(crate) fn client(ca: &Path) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| bad(format!("TLS cannot be set up: {e}")))?;
    Ok(Arc::new(builder.with_root_certificates(roots(ca)?).with_no_client_auth()))
}

fn roots(path: &Path) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|e| bad(format!("{}: {e}", path.display())))?;
    }
    Ok(roots)
}

/// The node that a verified client certificate names.
pub fn node_of(chain: Option<&[CertificateDer<'_>]>) -> Option<NodeId> {
    pki::node_in_certificate(chain?.first()?)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let unreadable = |e| bad(format!("{}: not a certificate in PEM: {e}", path.display()));
    let all = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
    all.collect::<Result<Vec<_>, _>>().map_err(unreadable)
}
