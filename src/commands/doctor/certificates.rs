//! Are the node's certificates there, in time, and its key a secret?

use super::Check;
use crate::stopwatch;
use std::path::Path;
use tidings_base::Wall;
use tidings_node::{Config, pki};

const NAME: &str = "certificates";

/// One check for each file, or one that says that TLS is off.
pub fn check(config: &Config) -> Vec<Check> {
    let Some(tls) = &config.tls else {
        return vec![Check::ok(NAME, "none configured: plain text, which only loopback may use")];
    };
    let now = Wall(stopwatch::wall_micros());
    let mut checks = vec![certificate(&tls.certificate, now), key(&tls.key)];
    checks.extend(tls.client_ca.as_deref().map(|path| certificate(path, now)));
    checks
}

/// A certificate that cannot be used now is a failure; any other problem a warning.
fn certificate(path: &Path, now: Wall) -> Check {
    if let Err(error) = pki::check_usable(path, now) {
        return Check::from_error(NAME, error);
    }
    match pki::check_certificate(path, now) {
        Err(error) => Check::from_error(NAME, error),
        Ok(found) if found.problems.is_empty() => {
            Check::ok(NAME, format!("{} ({}) is valid until {}", path.display(), found.subject, found.not_after))
        }
        Ok(found) => Check::warning(NAME, found.problems.join(" "), ""),
    }
}

fn key(path: &Path) -> Check {
    match pki::check_private(path) {
        Err(error) => Check::from_error(NAME, error),
        Ok(()) => Check::ok(NAME, format!("{} is readable by its owner only", path.display())),
    }
}
