//! Who is this: from what a connection shows to a [`Principal`].
//!
//! ```text
//!   Authorization: Bearer tid_<id>.<secret>   →  app, or operator
//!   Authorization: Bearer <JWT>               →  user
//!   client certificate of our CA              →  node
//!   nothing, and nothing is configured        →  operator, if the request can only come from this machine's user
//! ```
//! A credential that was shown and is wrong is refused; it never falls back to what a caller without one would be.
//! What is believed about a connection is the socket's own address and certificate. `Forwarded` and `X-Forwarded-*`
//! headers are never read.

mod jwt;

pub use jwt::MAX_TOKEN;
use jwt::Wrong;

use crate::clock::Clock;
use crate::config::Config;
use crate::keys::{KEY_PREFIX, Key, KeyStore, OPERATOR_ID, check_hash, random};
use crate::metrics;
use crate::principal::{AppName, Identity, OperatorBy, Peer, Principal};
use crate::rate::Rate;
use http::{HeaderMap, HeaderValue, Uri, header};
use parking_lot::Mutex;
use ring::hmac;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::bounded::BoundedMap;
use tidings_base::{Class, Error, Mono, NodeId};
use tidings_wire::{APP_HEADER, NODE_HEADER};
use tokio::sync::Semaphore;

/// Verified keys that are remembered. Each entry is some 200 bytes; a server has fewer active keys than this.
const MAX_REMEMBERED: usize = 4_096;

/// Argon2 computations at once: more would only fight for the cores that serve everybody else.
const MAX_HASHING: usize = 2;

/// Whom the configuration trusts, with the keys that its files hold.
pub struct Trust {
    trusts_everyone: bool,
    operator_hash: Option<String>,
    issuers: jwt::Issuers,
    key_check: Duration,
    failures_per_minute: u32,
    digest: [u8; 32],
}

impl Trust {
    /// Reads the keys that the configuration names.
    pub fn load(config: &Config) -> Result<Trust, Error> {
        if let Some(hash) = &config.auth.operator_key_hash {
            check_hash(hash)?;
        }
        Ok(Trust {
            trusts_everyone: config.trusts_everyone(),
            operator_hash: config.auth.operator_key_hash.clone(),
            issuers: jwt::Issuers::load(&config.auth.issuers, config.timings.token_leeway.into())?,
            key_check: config.timings.key_check.into(),
            failures_per_minute: config.limits.failures_per_minute,
            digest: random::<32>()?,
        })
    }
}

/// Authenticates connections and requests.
pub struct Authenticator {
    trust: Trust,
    keys: Arc<dyn KeyStore>,
    clock: Arc<dyn Clock>,
    failures: Rate<Guesser>,
    hashing: Semaphore,
    /// Under this process's own random key, so that the memory holds no secrets and no guessable hashes of them.
    digest: hmac::Key,
    remembered: Mutex<BoundedMap<[u8; 32], Remembered>>,
    /// Whether keys of open connections stand, and when that was last asked.
    standing: Mutex<BoundedMap<Arc<str>, (bool, Mono)>>,
}

/// Who may be guessing: at an address, at which key. Only keys that exist are told apart, so that nobody makes up
/// names to guess under; whatever else is wrong counts together and keeps no key and no token out.
type Guesser = (IpAddr, Option<Arc<str>>);

/// A key that was verified before.
#[derive(Clone)]
struct Remembered {
    /// The hash it was held against: if the stored one differs, it must be verified again.
    hash: Arc<str>,
    principal: Principal,
    /// When the store was last asked about it.
    checked: Mono,
}

impl Authenticator {
    /// Authenticates by what the configuration trusts and the keys of applications.
    pub fn new(trust: Trust, keys: Arc<dyn KeyStore>, clock: Arc<dyn Clock>) -> Authenticator {
        Authenticator {
            keys,
            clock,
            failures: Rate::new(trust.failures_per_minute, Duration::from_secs(60)),
            hashing: Semaphore::new(MAX_HASHING),
            digest: hmac::Key::new(hmac::HMAC_SHA256, &trust.digest),
            remembered: Mutex::new(BoundedMap::new(MAX_REMEMBERED)),
            standing: Mutex::new(BoundedMap::new(MAX_REMEMBERED)),
            trust,
        }
    }

    /// Who sends a request with these headers: `None` if it shows nothing at all, an error if what it shows is wrong.
    pub async fn identify(&self, peer: &Peer, uri: &Uri, headers: &HeaderMap) -> Result<Option<Identity>, Error> {
        let identity = match credential(headers)? {
            Some(credential) => Some(self.verify(peer, credential).await?),
            None => self.ambient(peer, uri, headers),
        };
        let app = named_app(headers)?;
        identity.map(|identity| identity.acting_in(app)).transpose()
    }

    /// Whoever shows nothing at all, in the application that the request names: for routes that are open to everybody, where
    /// the server would know callers. A wrong credential is never taken for none.
    pub fn nobody(&self, uri: &Uri, headers: &HeaderMap) -> Option<Identity> {
        if self.trust.trusts_everyone || credential(headers).ok()?.is_some() {
            return None;
        }
        let app = match named_app(headers).ok()? {
            Some(app) => app.to_owned(),
            None => app_in_path(uri.path())?,
        };
        Some(Identity { principal: Principal::Nobody { app: AppName::parse(&app).ok()? }, until: None })
    }

    /// Who shows this credential (from a header or a `Hello`).
    pub async fn verify(&self, peer: &Peer, credential: &str) -> Result<Identity, Error> {
        let address = peer.counted_as();
        if credential.starts_with(KEY_PREFIX) {
            let Some(key) = Key::parse(credential) else { return Err(self.failed((address, None), wrong_key())) };
            let digest = self.digest_of(credential);
            match self.recall(&key, &digest).await? {
                Some(identity) => Ok(identity),
                None => self.verify_slowly(address, key, digest).await,
            }
        } else {
            // A signature costs little to check: nobody has to wait for it because of what others at its address sent.
            self.trust.issuers.verify(credential, self.clock.now().wall).map_err(|wrong| match wrong {
                Wrong::Forged(error) => self.failed((address, None), error),
                // Nobody guesses with a token of a trusted issuer; one that has expired is sent until it is replaced.
                Wrong::Unfit(error) => {
                    metrics::auth_failed();
                    error
                }
            })
        }
    }

    /// Whether an identity still stands: tokens end, keys are revoked. Long-lived connections ask now and then.
    pub async fn recheck(&self, identity: &Identity) -> Result<(), Error> {
        if identity.until.is_some_and(|until| self.clock.now().wall >= until) {
            return Err(expired());
        }
        let Principal::App { key, .. } = &identity.principal else { return Ok(()) };
        let now = self.clock.now().mono;
        let known = self.standing.lock().get(key).copied();
        let stands = match known {
            // One look serves all connections of a key.
            Some((stands, at)) if now.since(at) < self.trust.key_check / 2 => stands,
            _ => {
                let stands = self.keys.find(key).await?.is_some_and(|record| !record.revoked);
                self.standing.lock().insert(key.clone(), (stands, now));
                stands
            }
        };
        if stands { Ok(()) } else { Err(wrong_key()) }
    }

    /// Who the connection itself says it is.
    ///
    /// A browser sends requests for any page that asks it to, so what is ambient counts only where no foreign page
    /// can be behind the request: it names this host by a loopback name (else a foreign name was pointed here), and
    /// if it has an `Origin`, that is this very server.
    fn ambient(&self, peer: &Peer, uri: &Uri, headers: &HeaderMap) -> Option<Identity> {
        if !same_origin(uri, headers) {
            return None;
        }
        if let Some(node) = peer.node {
            return Some(Identity { principal: Principal::Node(node), until: None });
        }
        let local = !peer.address.ip().to_canonical().is_loopback() || names_loopback(uri, headers);
        // Whoever is trusted with everything may also say that it is a node; without certificates nothing else can.
        let node = headers.get(NODE_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
        let principal = node.map_or(Principal::operator(OperatorBy::Unconfigured), |n| Principal::Node(NodeId(n)));
        (self.trust.trusts_everyone && local).then_some(Identity { principal, until: None })
    }

    fn digest_of(&self, credential: &str) -> [u8; 32] {
        let tag = hmac::sign(&self.digest, credential.as_bytes());
        let mut digest = [0; 32];
        digest.copy_from_slice(tag.as_ref());
        digest
    }

    /// The identity of a key that was verified before, if the store still has it so.
    async fn recall(&self, key: &Key, digest: &[u8; 32]) -> Result<Option<Identity>, Error> {
        let Some(known) = self.remembered.lock().get(digest).cloned() else { return Ok(None) };
        let identity = Identity { principal: known.principal.clone(), until: None };
        let now = self.clock.now().mono;
        if now.since(known.checked) < self.trust.key_check || key.id == OPERATOR_ID {
            return Ok(Some(identity));
        }
        let stands = self.keys.find(&key.id).await?.is_some_and(|r| !r.revoked && *r.hash == *known.hash);
        let mut remembered = self.remembered.lock();
        if stands {
            remembered.insert(*digest, Remembered { checked: now, ..known });
            return Ok(Some(identity));
        }
        remembered.remove(digest);
        Ok(None)
    }

    async fn verify_slowly(&self, address: IpAddr, key: Key, digest: [u8; 32]) -> Result<Identity, Error> {
        let Some((hash, principal)) = self.stored(&key).await? else {
            return Err(self.failed((address, None), wrong_key()));
        };
        let guesser = (address, Some(Arc::from(key.id.as_str())));
        self.within_rate(&guesser)?;
        let turn = self.hashing.acquire().await.map_err(|e| broken(e.to_string()))?;
        // Whoever waited for a turn may have used up the attempts meanwhile.
        self.within_rate(&guesser)?;
        let against = hash.clone();
        let matching = tokio::task::spawn_blocking(move || key.matches(&against)).await;
        drop(turn);
        if !matching.map_err(|e| broken(e.to_string()))? {
            return Err(self.failed(guesser, wrong_key()));
        }
        let checked = self.clock.now().mono;
        self.remembered.lock().insert(digest, Remembered { hash, principal: principal.clone(), checked });
        Ok(Identity { principal, until: None })
    }

    /// What a key is held against, and whose it is.
    async fn stored(&self, key: &Key) -> Result<Option<(Arc<str>, Principal)>, Error> {
        if key.id == OPERATOR_ID {
            let hash = self.trust.operator_hash.as_deref();
            return Ok(hash.map(|hash| (Arc::from(hash), Principal::operator(OperatorBy::Key))));
        }
        let Some(record) = self.keys.find(&key.id).await?.filter(|record| !record.revoked) else { return Ok(None) };
        let principal = Principal::App { app: AppName::parse(&record.app)?, key: Arc::from(record.id) };
        Ok(Some((Arc::from(record.hash), principal)))
    }

    fn within_rate(&self, guesser: &Guesser) -> Result<(), Error> {
        if self.failures.would_allow(guesser.clone(), self.clock.now().mono) {
            Ok(())
        } else {
            Err(too_many_failures())
        }
    }

    /// Counts a credential that is wrong; what to say of it.
    fn failed(&self, guesser: Guesser, error: Error) -> Error {
        metrics::auth_failed();
        let address = guesser.0;
        if !self.failures.allow(guesser, self.clock.now().mono) {
            return too_many_failures();
        }
        // As often as failures are allowed, so that nobody can flood the log.
        tracing::info!(%address, reason = error.message, "wrong credential");
        error
    }
}

fn too_many_failures() -> Error {
    Error::new("control.busy", Class::Refused, "too many failed attempts from this address")
        .hint("Wait a minute, then try again with the right credential.")
}

/// The credential that headers carry.
fn credential(headers: &HeaderMap) -> Result<Option<&str>, Error> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = all.next() else { return Ok(None) };
    if all.next().is_some() {
        return Err(unauthenticated("the request has two `Authorization` headers"));
    }
    let scheme_and_rest = value.to_str().ok().and_then(|text| text.split_once(' '));
    match scheme_and_rest {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(rest.trim())),
        _ => Err(unauthenticated("the `Authorization` header is not of the form `Bearer …`")),
    }
}

/// The application that headers name ([`APP_HEADER`]): one or none.
pub(crate) fn named_app(headers: &HeaderMap) -> Result<Option<&str>, Error> {
    let mut all = headers.get_all(APP_HEADER).iter();
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(app), None) if app.to_str().is_ok() => Ok(app.to_str().ok()),
        _ => Err(Error::new("control.bad_header", Class::Invalid, format!("`{APP_HEADER}` is not one application"))),
    }
}

/// The application of a table that a path names as `/v1/tables/APPLICATION%2FTABLE`.
fn app_in_path(path: &str) -> Option<String> {
    let table = path.strip_prefix("/v1/tables/")?.split('/').next()?;
    let at = table.to_ascii_lowercase().find("%2f")?;
    Some(table[..at].to_owned())
}

/// The host that a request is addressed to: HTTP/2's authority, else the `Host` header.
fn addressed_host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    uri.authority().map(|a| a.as_str()).or_else(|| headers.get(header::HOST)?.to_str().ok())
}

fn names_loopback(uri: &Uri, headers: &HeaderMap) -> bool {
    let Some(host) = addressed_host(uri, headers) else { return false };
    let Ok(authority) = host.parse::<http::uri::Authority>() else { return false };
    let host = authority.host();
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Whether no foreign web page can be behind a request: it has no `Origin`, or that of the server it is addressed to,
/// and the browser, if there is one, does not say otherwise.
fn same_origin(uri: &Uri, headers: &HeaderMap) -> bool {
    let from_elsewhere = |site: &HeaderValue| site != "same-origin" && site != "none";
    if headers.get("sec-fetch-site").is_some_and(from_elsewhere) {
        return false;
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let origin = origin.to_str().ok().and_then(|text| text.split_once("://")).map(|(_, host)| host);
    let host = addressed_host(uri, headers);
    origin.zip(host).is_some_and(|(origin, host)| origin.eq_ignore_ascii_case(host))
}

fn broken(what: String) -> Error {
    Error::new("control.auth_failed", Class::Failed, what)
}

/// An error that says: we do not know who you are.
pub fn unauthenticated(message: impl Into<String>) -> Error {
    Error::new("control.unauthenticated", Class::Refused, message)
}

/// The error for whoever's token has ended since it was shown.
pub fn expired() -> Error {
    unauthenticated("the token has expired").hint("Get a new token from its issuer.")
}

/// The error for requests that show nothing where something is needed.
pub fn no_credential() -> Error {
    unauthenticated("the request does not say who sends it").hint(
        "Pass a key as `Authorization: Bearer tid_…` (--key or TIDINGS_KEY on the command line). Without \
         authentication configured, only requests to a loopback name that no foreign web page made are accepted.",
    )
}

/// One sentence for every way a key can be wrong, so that an attacker does not learn which.
fn wrong_key() -> Error {
    unauthenticated("the key is unknown, revoked or wrong").hint("`tidings app keys` lists and makes keys.")
}

#[cfg(test)]
mod tests;
