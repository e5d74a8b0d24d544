//! Names: objects, clients, channels; each key carries its place on the ring in front, as its row does (F3).

use std::fmt;
use std::sync::Arc;
use tidings_base::{KeyHash, LeaseNumber};
use tidings_wire::v1;

/// The longest name of an object, in bytes.
pub const MAX_NAME: usize = 256;
/// The largest payload that may ride the fast path.
pub const MAX_PAYLOAD: usize = 4 << 10;
/// The largest version: stamps have 63 bits.
pub const MAX_VERSION: u64 = (1 << 63) - 1;
/// The longest name of an application, of a user, and of an installation.
pub const MAX_APP: usize = 256;
/// Names of users come from identity providers; columns must hold them with a uuid.
pub const MAX_USER: usize = 1 << 10;
/// The longest id of an installation.
pub const MAX_SOURCE: usize = 256;
/// Bytes of a client's uuid.
pub const UUID: usize = 16;

/// An object of an application under one generation: hash · application · generation · name, each self-delimiting.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Arc<[u8]>);

/// A client: hash of (application, user) · application · generation · user · uuid. All ids of a user are neighbours.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientKey(Arc<[u8]>);

/// Where an object stands on the matchers' ring.
pub fn object_hash(app: &str, name: &[u8]) -> KeyHash {
    KeyHash::of(&[app.as_bytes(), &[0], name].concat())
}

/// Where a user's clients stand on the registrars' ring.
pub fn client_hash(app: &str, user: &str) -> KeyHash {
    KeyHash::of(&[app.as_bytes(), &[0], user.as_bytes()].concat())
}

fn compose(hash: KeyHash, app: &str, generation: u32, name: &[u8], tail: &[u8]) -> Arc<[u8]> {
    let mut key = Vec::with_capacity(16 + app.len() + name.len() + tail.len());
    key.extend_from_slice(&hash.0.to_be_bytes());
    key.extend_from_slice(&(app.len() as u16).to_be_bytes());
    key.extend_from_slice(app.as_bytes());
    key.extend_from_slice(&generation.to_be_bytes());
    key.extend_from_slice(&(name.len() as u16).to_be_bytes());
    key.extend_from_slice(name);
    key.extend_from_slice(tail);
    key.into()
}

/// The parts of a key that was composed here, or found in a row.
struct Parts<'a> {
    app: &'a str,
    generation: u32,
    name: &'a [u8],
    /// Where the length of the name stands.
    id: usize,
    end: usize,
}

fn parse(key: &[u8]) -> Option<Parts<'_>> {
    let number = |at: usize| Some(usize::from(u16::from_be_bytes(key.get(at..at + 2)?.try_into().ok()?)));
    let app_end = 10 + number(8)?;
    let app = std::str::from_utf8(key.get(10..app_end)?).ok()?;
    let generation = u32::from_be_bytes(key.get(app_end..app_end + 4)?.try_into().ok()?);
    let id = app_end + 4;
    let end = id + 2 + number(id)?;
    Some(Parts { app, generation, name: key.get(id + 2..end)?, id, end })
}

/// Application and generation of a key, whatever stands behind its name.
pub(crate) fn generation_of(key: &[u8]) -> Option<(&str, u32)> {
    parse(key).map(|parts| (parts.app, parts.generation))
}

fn hash_of(key: &[u8]) -> KeyHash {
    key.get(..8).and_then(|head| head.try_into().ok()).map_or(KeyHash(0), |head| KeyHash(u64::from_be_bytes(head)))
}

impl ObjectKey {
    /// The key of an object.
    pub fn new(app: &str, generation: u32, name: &[u8]) -> ObjectKey {
        ObjectKey(compose(object_hash(app, name), app, generation, name, &[]))
    }

    /// The key that a row's name holds; `None` if it is none, or has something behind it.
    pub fn parse(bytes: &[u8]) -> Option<ObjectKey> {
        let parts = parse(bytes)?;
        (parts.end == bytes.len()).then(|| ObjectKey(bytes.into()))
    }

    /// Where it stands on the ring.
    pub fn hash(&self) -> KeyHash {
        hash_of(&self.0)
    }

    /// The application.
    pub fn app(&self) -> &str {
        parse(&self.0).map_or("", |parts| parts.app)
    }

    /// The application's generation.
    pub fn generation(&self) -> u32 {
        parse(&self.0).map_or(0, |parts| parts.generation)
    }

    /// The name within the application.
    pub fn name(&self) -> &[u8] {
        parse(&self.0).map_or(&[], |parts| parts.name)
    }

    /// All of it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl ClientKey {
    /// The key of a client.
    pub fn new(app: &str, generation: u32, user: &str, uuid: [u8; UUID]) -> ClientKey {
        ClientKey(compose(client_hash(app, user), app, generation, user.as_bytes(), &uuid))
    }

    /// What all ids of a user begin with.
    pub fn prefix(app: &str, generation: u32, user: &str) -> Vec<u8> {
        compose(client_hash(app, user), app, generation, user.as_bytes(), &[]).to_vec()
    }

    /// The key that a row's name holds, if it is one.
    pub fn parse(bytes: &[u8]) -> Option<ClientKey> {
        let parts = parse(bytes)?;
        std::str::from_utf8(parts.name).ok()?;
        (parts.end + UUID == bytes.len()).then(|| ClientKey(bytes.into()))
    }

    /// The key of a client that a message names, under a generation; `None` if the message is no such name.
    pub fn of_message(id: Option<&v1::NotifyClientId>, generation: u32) -> Option<ClientKey> {
        let id = id?;
        let fits = id.app.len() <= MAX_APP && !id.app.is_empty() && id.user.len() <= MAX_USER;
        let uuid = id.uuid.as_ref().try_into().ok()?;
        fits.then(|| ClientKey::new(&id.app, generation, &id.user, uuid))
    }

    /// The client as messages name it.
    pub fn to_message(&self) -> v1::NotifyClientId {
        let user = parse(&self.0).and_then(|parts| std::str::from_utf8(parts.name).ok()).unwrap_or_default();
        v1::NotifyClientId { app: self.app().into(), user: user.into(), uuid: self.uuid().to_vec().into() }
    }

    /// Where it stands on the ring.
    pub fn hash(&self) -> KeyHash {
        hash_of(&self.0)
    }

    /// The application.
    pub fn app(&self) -> &str {
        parse(&self.0).map_or("", |parts| parts.app)
    }

    /// The application's generation.
    pub fn generation(&self) -> u32 {
        parse(&self.0).map_or(0, |parts| parts.generation)
    }

    /// What tells it from other ids of its user; the digest's salt, too (F7).
    pub fn uuid(&self) -> [u8; UUID] {
        let tail = self.0.len().checked_sub(UUID).and_then(|at| self.0.get(at..));
        tail.and_then(|tail| tail.try_into().ok()).unwrap_or_default()
    }

    /// User and uuid, as they name a column of the application's objects.
    pub fn id(&self) -> &[u8] {
        parse(&self.0).and_then(|parts| self.0.get(parts.id..)).unwrap_or(&[])
    }

    /// The client of an application that a column names, if it is one.
    pub fn of_id(app: &str, generation: u32, id: &[u8]) -> Option<ClientKey> {
        let length = usize::from(u16::from_be_bytes(id.get(..2)?.try_into().ok()?));
        let user = std::str::from_utf8(id.get(2..2 + length)?).ok()?;
        let uuid = id.get(2 + length..)?.try_into().ok()?;
        Some(ClientKey::new(app, generation, user, uuid))
    }

    /// All of it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.app(), String::from_utf8_lossy(self.name()))
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = parse(&self.0).map_or(&[][..], |parts| parts.name);
        write!(f, "{}/{}/", self.app(), String::from_utf8_lossy(user))?;
        self.uuid().iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Where a client can be reached: a connection of a node. Connections are never numbered twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel {
    /// The node.
    pub node: u64,
    /// The connection.
    pub number: u64,
}

impl Channel {
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        ((u128::from(self.node) << 64) | u128::from(self.number)).to_be_bytes()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Channel> {
        let both = u128::from_be_bytes(bytes.try_into().ok()?);
        Some(Channel { node: (both >> 64) as u64, number: both as u64 })
    }
}

/// Who asks, as the node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The application.
    pub app: String,
    /// The principal: the user whose clients these are.
    pub principal: String,
}

/// What an answer stands on (F1): it may leave only while the key is held under this lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The key's place.
    pub key: KeyHash,
    /// The lease under which the work was begun.
    pub lease: LeaseNumber,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back_and_stand_where_their_hash_is() {
        let object = ObjectKey::new("app", 7, b"a:b\0c");
        assert_eq!((object.app(), object.generation(), object.name()), ("app", 7, &b"a:b\0c"[..]));
        assert_eq!(object.hash(), object_hash("app", b"a:b\0c"));
        assert_eq!(ObjectKey::parse(object.as_bytes()), Some(object.clone()));
        assert_eq!(ObjectKey::parse(&[object.as_bytes(), &[0]].concat()), None);
        let client = ClientKey::new("app", 7, "user:app/ann", [3; UUID]);
        assert_eq!(ClientKey::parse(client.as_bytes()), Some(client.clone()));
        assert_eq!(ClientKey::of_id("app", 7, client.id()), Some(client.clone()));
        assert_eq!(ClientKey::of_message(Some(&client.to_message()), 7), Some(client.clone()));
        assert!(client.as_bytes().starts_with(&ClientKey::prefix("app", 7, "user:app/ann")));
        assert_eq!(ClientKey::of_id("app", 7, &[0]), None);
    }

    #[test]
    fn no_object_is_a_prefix_of_another() {
        let short = ObjectKey::new("app", 0, b"a");
        let long = ObjectKey::new("app", 0, b"ab");
        assert!(!long.as_bytes()[8..].starts_with(&short.as_bytes()[8..]));
    }
}
