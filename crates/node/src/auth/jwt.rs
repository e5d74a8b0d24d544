//! Tokens of users: everything about them is pinned by configuration.
//!
//! A token decides one thing before its signature is checked: which configured issuer it claims to be from. The
//! algorithm, the keys and the audience are that issuer's; keys are found by issuer *and* key id, so that issuers
//! cannot answer for each other; no address that a token names is ever fetched.

use crate::config::{Issuer, bad};
use crate::principal::{AppName, Claims, Identity, Principal, clip};
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Validation};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error, Wall};
use tidings_predicate::{Packed, json};

/// The longest token worth looking at.
pub const MAX_TOKEN: usize = 8 << 10;

/// The most keys one issuer may have.
const MAX_ISSUER_KEYS: usize = 64;

/// Why a token speaks for nobody.
#[derive(Debug)]
pub enum Wrong {
    /// It was not made by an issuer that is trusted here, as far as can be told.
    Forged(Error),
    /// It was, but not for now, or not for this server.
    Unfit(Error),
}

/// All configured issuers, by name.
pub struct Issuers {
    by_name: BTreeMap<String, Pinned>,
    leeway: Duration,
}

/// One issuer with its keys.
struct Pinned {
    principal_app: AppName,
    name: Arc<str>,
    audience: String,
    validation: Validation,
    keys: Keys,
    grants: Arc<[crate::config::Grant]>,
}

/// The keys of one issuer. A `BTreeMap` inside each issuer, not one for all: that is the (issuer, kid) rule.
enum Keys {
    /// One key, whatever the token's `kid` says.
    One(DecodingKey),
    /// By `kid`.
    Set(BTreeMap<String, DecodingKey>),
}

impl Issuers {
    /// Reads the keys of all issuers.
    pub fn load(issuers: &[Issuer], leeway: Duration) -> Result<Issuers, Error> {
        let mut by_name = BTreeMap::new();
        for issuer in issuers {
            by_name.insert(issuer.issuer.clone(), Pinned::load(issuer)?);
        }
        Ok(Issuers { by_name, leeway })
    }

    /// The user that a token speaks for.
    pub fn verify(&self, token: &str, now: Wall) -> Result<Identity, Wrong> {
        let (pinned, claims) = self.signed(token).map_err(Wrong::Forged)?;
        pinned.identify(&claims, now, self.leeway).map_err(Wrong::Unfit)
    }

    /// What a token claims, and the issuer who signed that.
    fn signed(&self, token: &str) -> Result<(&Pinned, Map<String, Value>), Error> {
        if token.len() > MAX_TOKEN {
            return Err(refused("the token is too long"));
        }
        let header = jsonwebtoken::decode_header(token).map_err(|_| refused("the token cannot be read"))?;
        let claimed = jsonwebtoken::dangerous::insecure_decode::<Map<String, Value>>(token)
            .map_err(|_| refused("the token cannot be read"))?;
        let issuer = text(&claimed.claims, "iss")?;
        let Some(pinned) = self.by_name.get(issuer) else {
            return Err(refused("the token's issuer is not one of this server's"));
        };
        let key = pinned.key(header.kid.as_deref())?;
        // Signature and algorithm; the claims are checked below, strictly, against the time we were given.
        let token = jsonwebtoken::decode::<Map<String, Value>>(token, key, &pinned.validation)
            .map_err(|e| refused(format!("the token's signature is not its issuer's: {e}")))?;
        Ok((pinned, token.claims))
    }
}

impl Pinned {
    fn load(issuer: &Issuer) -> Result<Pinned, Error> {
        let mut validation = Validation::new(issuer.algorithm);
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        validation.required_spec_claims.clear();
        let keys = match (&issuer.jwks, &issuer.public_key) {
            (Some(path), _) => Keys::Set(load_set(path, issuer.algorithm)?),
            (None, Some(path)) => Keys::One(load_pem(path, issuer.algorithm)?),
            (None, None) => return Err(bad(format!("issuer `{}` has no keys", clip(&issuer.issuer)))),
        };
        Ok(Pinned {
            principal_app: AppName::parse(&issuer.app)?,
            name: Arc::from(issuer.issuer.as_str()),
            audience: issuer.audience.clone(),
            validation,
            keys,
            grants: Arc::from(issuer.grants.as_slice()),
        })
    }

    fn key(&self, kid: Option<&str>) -> Result<&DecodingKey, Error> {
        match (&self.keys, kid) {
            (Keys::One(key), _) => Ok(key),
            (Keys::Set(keys), Some(kid)) => {
                keys.get(kid).ok_or_else(|| refused("the token's key is not one of its issuer's"))
            }
            (Keys::Set(_), None) => Err(refused("the token does not say which of its issuer's keys signed it")),
        }
    }

    fn identify(&self, claims: &Map<String, Value>, now: Wall, leeway: Duration) -> Result<Identity, Error> {
        if text(claims, "iss")? != &*self.name {
            return Err(refused("the token's issuer is not one of this server's"));
        }
        let for_us = match claims.get("aud") {
            Some(Value::String(audience)) => *audience == self.audience,
            Some(Value::Array(all)) => all.iter().any(|audience| audience.as_str() == Some(&self.audience)),
            _ => false,
        };
        if !for_us {
            return Err(refused("the token is for another audience"));
        }
        let until = time(claims, "exp")?.ok_or_else(|| refused("the token has no end (`exp`)"))? + leeway;
        if now >= until {
            return Err(refused("the token has expired").hint("Get a new token from its issuer."));
        }
        if time(claims, "nbf")?.is_some_and(|from| now + leeway < from) {
            return Err(refused("the token is not valid yet").hint("Check the clocks of issuer and server."));
        }
        let subject = text(claims, "sub")?;
        if subject.is_empty() {
            return Err(refused("the token's `sub` is empty"));
        }
        let principal = Principal::User {
            app: self.principal_app.clone(),
            issuer: self.name.clone(),
            subject: Arc::from(subject),
            grants: self.grants.clone(),
            objects: objects(claims),
            claims: Claims { columns: columns(claims), until },
        };
        Ok(Identity { principal, until: Some(until) })
    }
}

/// The claim `notify`: a list of patterns. Whatever else it is allows nothing.
fn objects(claims: &Map<String, Value>) -> Arc<[String]> {
    let listed = claims.get("notify").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let patterns: Option<Vec<String>> = listed.iter().map(|pattern| pattern.as_str().map(str::to_owned)).collect();
    patterns.unwrap_or_default().into()
}

/// All claims, as predicates see them; a token's size bounds them. One that is no value of theirs is as good as absent.
fn columns(claims: &Map<String, Value>) -> Arc<Packed> {
    let read = claims.iter().filter_map(|(name, claim)| Some((name.clone(), json::read(claim).ok()?)));
    Arc::new(Packed::columns(read).unwrap_or_else(|_| Packed::empty()))
}

fn text<'a>(claims: &'a Map<String, Value>, name: &str) -> Result<&'a str, Error> {
    claims.get(name).and_then(Value::as_str).ok_or_else(|| refused(format!("the token has no `{name}`")))
}

/// A time claim. One that is there but not a number is a bad token, never an absent claim (CVE-2026-25537).
fn time(claims: &Map<String, Value>, name: &str) -> Result<Option<Wall>, Error> {
    match claims.get(name) {
        None => Ok(None),
        Some(value) => {
            let seconds = value.as_f64().filter(|s| s.is_finite() && (0.0..=1e12).contains(s));
            let seconds = seconds.ok_or_else(|| refused(format!("the token's `{name}` is not a number of seconds")))?;
            Ok(Some(Wall((seconds * 1e6) as u64)))
        }
    }
}

fn refused(message: impl Into<String>) -> Error {
    Error::new("control.unauthenticated", Class::Refused, message)
        .hint("Get a token from one of the issuers that the server's configuration names, made for its audience.")
}

fn load_set(path: &Path, algorithm: Algorithm) -> Result<BTreeMap<String, DecodingKey>, Error> {
    let shown = path.display();
    let set: JwkSet = serde_json::from_str(&read(path)?)
        .map_err(|e| bad(format!("{shown}:{}:{}: not a JSON Web Key Set: {e}", e.line(), e.column())))?;
    if set.keys.is_empty() || set.keys.len() > MAX_ISSUER_KEYS {
        return Err(bad(format!("{shown} has {} keys; 1 to {MAX_ISSUER_KEYS} are possible", set.keys.len())));
    }
    let mut keys = BTreeMap::new();
    for jwk in &set.keys {
        let kid = jwk.common.key_id.clone().ok_or_else(|| bad(format!("{shown}: a key has no `kid`")))?;
        let key = DecodingKey::from_jwk(jwk).map_err(|e| bad(format!("{shown}: key `{}`: {e}", clip(&kid))))?;
        // A key of another kind than the pinned algorithm's could never verify; better to say so now.
        if key.family() != algorithm.family() {
            continue;
        }
        if keys.insert(kid.clone(), key).is_some() {
            return Err(bad(format!("{shown}: two keys are called `{}`", clip(&kid))));
        }
    }
    if keys.is_empty() {
        return Err(bad(format!("{shown} has no key for {algorithm:?}")));
    }
    Ok(keys)
}

fn load_pem(path: &Path, algorithm: Algorithm) -> Result<DecodingKey, Error> {
    let pem = read(path)?;
    let key = match algorithm.family() {
        AlgorithmFamily::Rsa => DecodingKey::from_rsa_pem(pem.as_bytes()),
        AlgorithmFamily::Ec => DecodingKey::from_ec_pem(pem.as_bytes()),
        AlgorithmFamily::Ed => DecodingKey::from_ed_pem(pem.as_bytes()),
        _ => return Err(bad(format!("{algorithm:?} cannot be checked with a public key"))),
    };
    key.map_err(|e| bad(format!("{}: not a public key for {algorithm:?} in PEM: {e}", path.display())))
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|e| {
        bad(format!("cannot read {}: {e}", path.display())).hint(
            "Put the issuer's public keys there, readable for the server, or name the right file in `auth.issuers`.",
        )
    })
}
