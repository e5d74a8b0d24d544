//! Keys of applications and of the operator: `tid_<id>.<secret>`, shown once, kept only as an Argon2 hash.

use crate::config::bad;
use crate::principal::{AppName, clip};
use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use tidings_base::{Class, Error, Wall};

/// What every key begins with, so that people and secret scanners recognise one.
pub const KEY_PREFIX: &str = "tid_";

/// The id of the operator's key; ids of application keys are hexadecimal and cannot be it.
pub const OPERATOR_ID: &str = "operator";

/// Random bytes of a secret: beyond guessing.
const SECRET_BYTES: usize = 32;

/// Random bytes of a key's id: enough that two never meet.
const ID_BYTES: usize = 8;

/// The most keys that open an application at a time, so that its record stays small.
pub const MAX_KEYS: usize = 64;

/// The most keys that a record holds, revoked ones included; the oldest of those make room.
const MAX_RECORDED: usize = 2 * MAX_KEYS;

/// Argon2id over 4 MiB in two passes. The secret has 256 random bits, so that no amount of hashing is what protects
/// it; this keeps a verification at a few milliseconds and a stolen table of hashes useless. The parameters are in
/// every hash and may be raised without breaking old ones.
fn argon2() -> Argon2<'static> {
    let params = Params::new(4 << 10, 2, 1, None).unwrap_or_default();
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

/// A key as its owner holds it. Its secret is not printed by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// Names the key; no secret.
    pub id: String,
    secret: String,
}

impl Key {
    /// A new key for an application.
    pub fn random() -> Result<Key, Error> {
        let mut id = String::with_capacity(2 * ID_BYTES);
        for byte in random::<ID_BYTES>()? {
            id.push_str(&format!("{byte:02x}"));
        }
        Ok(Key { id, secret: URL_SAFE_NO_PAD.encode(random::<SECRET_BYTES>()?) })
    }

    /// A new key for the operator.
    pub fn operator() -> Result<Key, Error> {
        Ok(Key { id: OPERATOR_ID.to_owned(), ..Key::random()? })
    }

    /// Reads a key as it was presented; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Key> {
        let (id, secret) = text.strip_prefix(KEY_PREFIX)?.split_once('.')?;
        let id_fits = id == OPERATOR_ID || (id.len() == 2 * ID_BYTES && id.bytes().all(|b| b.is_ascii_hexdigit()));
        let secret_fits = URL_SAFE_NO_PAD.decode(secret).is_ok_and(|bytes| bytes.len() == SECRET_BYTES);
        (id_fits && secret_fits).then(|| Key { id: id.to_owned(), secret: secret.to_owned() })
    }

    /// The whole key: to be shown to its owner, once.
    pub fn reveal(&self) -> String {
        format!("{KEY_PREFIX}{}.{}", self.id, self.secret)
    }

    /// The hash to keep of it. Takes milliseconds of computation.
    pub fn hash(&self) -> Result<String, Error> {
        let broken = |e: argon2::password_hash::Error| Error::new("admin.hash_failed", Class::Failed, e.to_string());
        let salt = SaltString::encode_b64(&random::<16>()?).map_err(broken)?;
        Ok(argon2().hash_password(self.secret.as_bytes(), &salt).map_err(broken)?.to_string())
    }

    /// Whether `hash` was made of this key. Takes milliseconds of computation.
    pub fn matches(&self, hash: &str) -> bool {
        PasswordHash::new(hash).is_ok_and(|hash| argon2().verify_password(self.secret.as_bytes(), &hash).is_ok())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{KEY_PREFIX}{}.…", self.id)
    }
}

/// Checks that a configured hash is one that a key can be held against.
pub(crate) fn check_hash(hash: &str) -> Result<(), Error> {
    PasswordHash::new(hash).map(|_| ()).map_err(|e| {
        bad(format!("`auth.operator_key_hash` is not a hash of a key: {e}"))
            .hint("`tidings init DIR` writes one; it begins with `$argon2id$`.")
    })
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::new("node.no_randomness", Class::Failed, format!("the system gives no randomness: {e}")))?;
    Ok(bytes)
}

/// What is kept of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// Names the key.
    pub id: String,
    /// The application it opens.
    pub app: String,
    /// The Argon2 hash of its secret.
    pub hash: String,
    /// When it was made, in microseconds since 1970.
    pub created: u64,
    /// Whether it has been taken back.
    pub revoked: bool,
}

impl KeyRecord {
    /// What to keep of a new key.
    pub fn new(app: &AppName, key: &Key, created: Wall) -> Result<KeyRecord, Error> {
        let hash = key.hash()?;
        Ok(KeyRecord { id: key.id.clone(), app: app.to_string(), hash, created: created.0, revoked: false })
    }
}

/// Where applications and their keys are kept: on the store in production.
///
/// Each change is atomic; refusals are those of [`refuse`].
#[async_trait]
pub trait KeyStore: Send + Sync + 'static {
    /// The record of a key. It may lag behind a revocation by a moment, not more.
    async fn find(&self, id: &str) -> Result<Option<KeyRecord>, Error>;

    /// All applications with their keys, in order.
    async fn apps(&self) -> Result<BTreeMap<String, Vec<KeyRecord>>, Error>;

    /// Creates an application with its first key; refused if it exists.
    async fn create_app(&self, first: KeyRecord) -> Result<(), Error>;

    /// Adds a key to an application that exists.
    async fn add_key(&self, key: KeyRecord) -> Result<(), Error>;

    /// Takes a key back. Doing so again changes nothing.
    async fn revoke(&self, app: &str, id: &str) -> Result<(), Error>;
}

/// Adds a key to those of an application, which keeps its revoked ones as long as there is room for them: a key that is
/// not there opens nothing either.
pub(crate) fn add(keys: &mut Vec<KeyRecord>, key: KeyRecord) -> Result<(), Error> {
    if keys.iter().filter(|key| !key.revoked).count() >= MAX_KEYS {
        return Err(refuse::too_many_keys(&key.app));
    }
    while keys.len() >= MAX_RECORDED
        && let Some(oldest) = keys.iter().position(|key| key.revoked)
    {
        keys.remove(oldest);
    }
    keys.push(key);
    Ok(())
}

/// The refusals of a [`KeyStore`], the same for every implementation.
pub mod refuse {
    use super::{Class, Error, MAX_KEYS, clip};

    /// The application exists.
    pub fn app_exists(app: &str) -> Error {
        Error::new("admin.app_exists", Class::Refused, format!("there is an application `{}` already", clip(app)))
            .hint("`tidings app keys` makes further keys for it.")
    }

    /// There is no such application.
    pub fn no_app(app: &str) -> Error {
        Error::new("admin.no_app", Class::NotFound, format!("there is no application `{}`", clip(app)))
            .hint("`tidings app ls` lists them; `tidings app create NAME` makes one.")
    }

    /// The application has no such key.
    pub fn no_key(app: &str, id: &str) -> Error {
        let message = format!("the application `{}` has no key `{}`", clip(app), clip(id));
        Error::new("admin.no_key", Class::NotFound, message).hint("`tidings app keys NAME` lists its keys.")
    }

    /// The application has all the keys it may have.
    pub fn too_many_keys(app: &str) -> Error {
        let message = format!("the application `{}` has {MAX_KEYS} keys already", clip(app));
        Error::new("admin.too_many_keys", Class::Refused, message)
            .hint("Revoke one that is not used any more: `tidings app keys NAME --revoke ID`.")
    }
}

/// Applications and keys in memory, for tests.
#[derive(Debug, Default)]
pub struct MemoryKeyStore {
    apps: Mutex<BTreeMap<String, Vec<KeyRecord>>>,
}

#[async_trait]
impl KeyStore for MemoryKeyStore {
    async fn find(&self, id: &str) -> Result<Option<KeyRecord>, Error> {
        Ok(self.apps.lock().values().flatten().find(|key| key.id == id).cloned())
    }

    async fn apps(&self) -> Result<BTreeMap<String, Vec<KeyRecord>>, Error> {
        Ok(self.apps.lock().clone())
    }

    async fn create_app(&self, first: KeyRecord) -> Result<(), Error> {
        let mut apps = self.apps.lock();
        if apps.contains_key(&first.app) {
            return Err(refuse::app_exists(&first.app));
        }
        apps.insert(first.app.clone(), vec![first]);
        Ok(())
    }

    async fn add_key(&self, key: KeyRecord) -> Result<(), Error> {
        let mut apps = self.apps.lock();
        let keys = apps.get_mut(&key.app).ok_or_else(|| refuse::no_app(&key.app))?;
        add(keys, key)
    }

    async fn revoke(&self, app: &str, id: &str) -> Result<(), Error> {
        let mut apps = self.apps.lock();
        let keys = apps.get_mut(app).ok_or_else(|| refuse::no_app(app))?;
        let key = keys.iter_mut().find(|key| key.id == id).ok_or_else(|| refuse::no_key(app, id))?;
        key.revoked = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_being_shown_and_matches_only_its_own_hash() {
        let key = Key::random().unwrap();
        let shown = key.reveal();
        assert!(shown.starts_with("tid_") && !format!("{key:?}").contains(&key.secret));
        assert_eq!(Key::parse(&shown), Some(key.clone()));
        let hash = key.hash().unwrap();
        assert!(hash.starts_with("$argon2id$") && !hash.contains(&key.secret));
        assert!(key.matches(&hash));
        assert!(!Key::random().unwrap().matches(&hash));
        assert!(!key.matches("") && !key.matches("$argon2id$nonsense"));
        assert!(check_hash(&hash).is_ok());
        assert_eq!(check_hash("secret").unwrap_err().code, "node.bad_config");
    }

    #[test]
    fn what_is_not_a_key_is_not_taken_for_one() {
        let key = Key::random().unwrap().reveal();
        for bad in
            ["", "tid_", "tid_.", "tid_0123456789abcdef.", "tid_operator.short", &key[4..], &key[..key.len() - 1]]
        {
            assert_eq!(Key::parse(bad), None, "{bad}");
        }
        assert_eq!(Key::parse(&Key::operator().unwrap().reveal()).unwrap().id, OPERATOR_ID);
    }

    #[tokio::test]
    async fn the_store_in_memory_refuses_what_any_store_must() {
        let store = MemoryKeyStore::default();
        let app = AppName::parse("shop").unwrap();
        let record = || KeyRecord::new(&app, &Key::random().unwrap(), Wall(7)).unwrap();
        assert_eq!(store.add_key(record()).await.unwrap_err().code, "admin.no_app");
        let first = record();
        store.create_app(first.clone()).await.unwrap();
        assert_eq!(store.create_app(record()).await.unwrap_err().code, "admin.app_exists");
        assert_eq!(store.revoke("shop", "nope").await.unwrap_err().code, "admin.no_key");
        store.revoke("shop", &first.id).await.unwrap();
        store.revoke("shop", &first.id).await.unwrap();
        assert!(store.find(&first.id).await.unwrap().unwrap().revoked);
        for _ in 0..MAX_KEYS {
            store.add_key(KeyRecord { id: "x".into(), ..first.clone() }).await.unwrap();
        }
        assert_eq!(store.add_key(first).await.unwrap_err().code, "admin.too_many_keys");
    }

    #[test]
    fn keys_that_were_revoked_make_room() {
        let record = |id: usize| KeyRecord {
            id: id.to_string(),
            app: "shop".into(),
            hash: String::new(),
            created: id as u64,
            revoked: false,
        };
        let mut keys = vec![record(0)];
        for rotation in 1..1_000 {
            add(&mut keys, record(rotation)).unwrap();
            keys[..].iter_mut().rev().nth(1).unwrap().revoked = true;
        }
        assert_eq!(keys.len(), MAX_RECORDED);
        assert_eq!(keys.iter().filter(|key| !key.revoked).map(|key| key.id.as_str()).collect::<Vec<_>>(), ["999"]);
        // Only what is revoked goes.
        let mut keys: Vec<KeyRecord> = (0..MAX_KEYS).map(record).collect();
        assert_eq!(add(&mut keys, record(MAX_KEYS)).unwrap_err().code, "admin.too_many_keys");
        assert_eq!(keys.len(), MAX_KEYS);
    }
}
