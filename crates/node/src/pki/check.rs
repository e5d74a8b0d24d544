//! Looking at certificates and keys before they are used.

use super::parse_node_name;
use crate::config::bad;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tidings_base::{Class, Error, NodeId, Wall};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// A certificate that ends within this time is a problem: time enough to make another during working hours.
const ENDS_SOON: Duration = Duration::from_secs(30 * 86_400);

/// What there is to know about a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Whom it names.
    pub subject: String,
    /// The names and addresses it is for.
    pub names: Vec<String>,
    /// The node it makes its holder, if one.
    pub node: Option<NodeId>,
    /// Whether it may sign others.
    pub is_ca: bool,
    /// When it begins.
    pub not_before: Wall,
    /// When it ends.
    pub not_after: Wall,
    /// Sentences about what is wrong with it, each with what to do.
    pub problems: Vec<String>,
}

/// Reads the first certificate of a PEM file and says what is wrong with it.
pub fn check_certificate(path: &Path, now: Wall) -> Result<Certificate, Error> {
    let shown = path.display();
    let der = CertificateDer::from_pem_file(path).map_err(|e| {
        bad(format!("{shown}: not a certificate in PEM: {e}")).hint("`tidings init DIR` makes certificates.")
    })?;
    let (_, certificate) =
        X509Certificate::from_der(&der).map_err(|e| bad(format!("{shown}: not a certificate: {e}")))?;
    let wall = |seconds: i64| Wall(u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000));
    let mut report = Certificate {
        subject: certificate.subject().to_string(),
        names: names(&certificate),
        node: node_of(&certificate),
        is_ca: certificate.is_ca(),
        not_before: wall(certificate.validity().not_before.timestamp()),
        not_after: wall(certificate.validity().not_after.timestamp()),
        problems: Vec::new(),
    };
    let problem = if now < report.not_before {
        Some(format!("{shown} is not valid before {}: check this machine's clock.", report.not_before))
    } else if now >= report.not_after {
        Some(format!("{shown} expired at {}: make a new one and restart the node.", report.not_after))
    } else if now + ENDS_SOON >= report.not_after {
        Some(format!("{shown} expires at {}: make a new one soon.", report.not_after))
    } else {
        None
    };
    report.problems.extend(problem);
    if !report.is_ca && report.names.is_empty() {
        report.problems.push(format!("{shown} names no host, so no client will accept it: make a new one."));
    }
    Ok(report)
}

/// Refuses a certificate that is not valid now.
pub fn check_usable(path: &Path, now: Wall) -> Result<(), Error> {
    let report = check_certificate(path, now)?;
    let (what, hint) = if now >= report.not_after {
        (format!("expired at {}", report.not_after), "Make a new certificate, then start the node again.")
    } else if now < report.not_before {
        (format!("is not valid before {}", report.not_before), "Check this machine's clock.")
    } else {
        return Ok(());
    };
    let message = format!("the certificate {} {what}; it is now {now}", path.display());
    Err(Error::new("node.bad_certificate", Class::Refused, message).hint(hint))
}

/// Refuses a private key that others than its owner can read.
pub fn check_private(path: &Path) -> Result<(), Error> {
    let shown = path.display();
    let mode = fs::metadata(path).map_err(|e| bad(format!("cannot read {shown}: {e}")))?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let message = format!("the private key {shown} can be read by others (mode {:03o})", mode & 0o777);
    Err(Error::new("node.exposed_key", Class::Refused, message).hint(format!("`chmod 600 {shown}`")))
}

/// The node that a certificate names. The caller has verified that our CA signed it.
pub fn node_in_certificate(der: &CertificateDer<'_>) -> Option<NodeId> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    node_of(&certificate)
}

/// Only subject alternative names count, and one that names several nodes names none.
fn node_of(certificate: &X509Certificate<'_>) -> Option<NodeId> {
    let all = names(certificate);
    let mut nodes = all.iter().filter_map(|name| parse_node_name(name));
    nodes.next().filter(|_| nodes.next().is_none())
}

fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else { return Vec::new() };
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|b| std::net::IpAddr::from(b).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|b| std::net::IpAddr::from(b).to_string()),
        },
        _ => None,
    };
    extension.value.general_names.iter().filter_map(text).collect()
}
