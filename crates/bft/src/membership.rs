//! Who is of a group: replicas with their keys and addresses, and clients with their keys. A file that all share.

use crate::keys::{MacKey, Public, Secret, hex, unhex};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use tidings_base::{Class, Error, Incarnation};
use tidings_sketch::ReplicaId;

/// The most replicas of a group: votes go from each to each.
pub const MOST_REPLICAS: usize = 31;
/// The most clients of a group: each has a window of replies in every replica's memory.
pub const MOST_CLIENTS: usize = 10_000;

/// One replica, as others see it.
#[derive(Clone, Debug)]
pub struct Member {
    /// What verifies its votes and snapshots.
    pub key: Public,
    /// Where other replicas reach it.
    pub peers: SocketAddr,
    /// Where clients reach it.
    pub clients: SocketAddr,
}

/// A group in one of its lives. Whoever holds another file is of another group.
#[derive(Clone, Debug)]
pub struct Membership {
    name: String,
    life: Incarnation,
    replicas: Vec<Member>,
    clients: BTreeMap<u64, Public>,
    begins: Option<[u8; 32]>,
    identity: [u8; 32],
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    life: u64,
    /// In a later life: the hash of the state with which it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    begins: Option<String>,
    replica: Vec<ReplicaRow>,
    client: Vec<ClientRow>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplicaRow {
    key: String,
    peers: SocketAddr,
    clients: SocketAddr,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientRow {
    id: u64,
    key: String,
}

fn wrong(message: impl Into<String>) -> Error {
    Error::new("bft.membership", Class::Invalid, message)
}

impl Membership {
    /// A group, if it can be one.
    pub fn new(
        name: &str,
        life: Incarnation,
        replicas: Vec<Member>,
        clients: BTreeMap<u64, Public>,
    ) -> Result<Membership, Error> {
        // Quorums of 2f + 1 need not share an honest replica among more than 3f + 1.
        if replicas.len() < 4 || replicas.len() > MOST_REPLICAS || replicas.len() % 3 != 1 {
            return Err(wrong(format!("{} replicas are named", replicas.len()))
                .hint(format!("a group has 4, 7, 10 and so on up to {MOST_REPLICAS}: 3f + 1 bear f liars")));
        }
        if clients.is_empty() || clients.len() > MOST_CLIENTS {
            return Err(wrong(format!("a group has from 1 to {MOST_CLIENTS} clients, not {}", clients.len())));
        }
        let keys: BTreeSet<Public> =
            replicas.iter().map(|member| member.key).chain(clients.values().copied()).collect();
        if keys.len() != replicas.len() + clients.len() {
            return Err(wrong("a key stands in the file twice"));
        }
        let addresses = replicas.iter().flat_map(|member| [member.peers, member.clients]);
        if addresses.collect::<BTreeSet<_>>().len() != 2 * replicas.len() {
            return Err(wrong("an address stands in the file twice"));
        }
        let identity = identity(name, life, &replicas, &clients, None);
        Ok(Membership { name: name.to_owned(), life, replicas, clients, begins: None, identity })
    }

    /// The same group in a life that begins with the state of this hash.
    pub fn beginning_with(self, begins: [u8; 32]) -> Membership {
        let begins = Some(begins);
        let identity = identity(&self.name, self.life, &self.replicas, &self.clients, begins.as_ref());
        Membership { begins, identity, ..self }
    }

    /// The group's next life (rule G): this replica has another key, and everybody begins with the state of this hash.
    pub fn rekeyed(&self, replica: ReplicaId, key: Public, begins: [u8; 32]) -> Result<Membership, Error> {
        let mut replicas = self.replicas.clone();
        let member = replicas.get_mut(usize::from(replica.0));
        member.ok_or_else(|| wrong(format!("there is no replica {}", replica.0)))?.key = key;
        let next = Membership::new(&self.name, Incarnation(self.life.0 + 1), replicas, self.clients.clone())?;
        Ok(next.beginning_with(begins))
    }

    /// Reads a group from the text of its file.
    pub fn parse(text: &str) -> Result<Membership, Error> {
        let file: File = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let member = |row: ReplicaRow| Ok(Member { key: row.key.parse()?, peers: row.peers, clients: row.clients });
        let replicas = file.replica.into_iter().map(member).collect::<Result<_, Error>>()?;
        let mut clients = BTreeMap::new();
        for row in file.client {
            if clients.insert(row.id, row.key.parse()?).is_some() {
                return Err(wrong(format!("client {} stands in the file twice", row.id)));
            }
        }
        let group = Membership::new(&file.name, Incarnation(file.life), replicas, clients)?;
        Ok(match file.begins {
            Some(begins) => group.beginning_with(unhex(&begins)?),
            None => group,
        })
    }

    /// The text of its file.
    pub fn to_text(&self) -> Result<String, Error> {
        let replica = self.replicas.iter().map(|member| ReplicaRow {
            key: member.key.to_string(),
            peers: member.peers,
            clients: member.clients,
        });
        let client = self.clients.iter().map(|(id, key)| ClientRow { id: *id, key: key.to_string() });
        let (replica, client) = (replica.collect(), client.collect());
        let begins = self.begins.map(|begins| hex(&begins));
        toml::to_string(&File { name: self.name.clone(), life: self.life.0, begins, replica, client })
            .map_err(|error| wrong(error.to_string()))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which of its lives it is in: another one has another order.
    pub fn life(&self) -> Incarnation {
        self.life
    }

    /// The hash of the state with which this life begins, if there was one before.
    pub fn begins(&self) -> Option<&[u8; 32]> {
        self.begins.as_ref()
    }

    /// Its replicas, in the order of their numbers.
    pub fn replicas(&self) -> &[Member] {
        &self.replicas
    }

    /// How many replicas there are.
    pub fn size(&self) -> u16 {
        self.replicas.len() as u16
    }

    /// How many of them may lie: f of 3f + 1.
    pub fn faults(&self) -> u16 {
        (self.size() - 1) / 3
    }

    /// The number of the replica with this key.
    pub fn replica(&self, key: &Public) -> Option<ReplicaId> {
        let at = self.replicas.iter().position(|member| member.key == *key)?;
        Some(ReplicaId(at as u16))
    }

    /// The key of a registered client.
    pub fn client(&self, id: u64) -> Option<&Public> {
        self.clients.get(&id)
    }

    /// Refuses secrets that are of none of its clients: its replicas would hear nothing of what they sign.
    pub fn check_client(&self, client: &ClientSecrets) -> Result<(), Error> {
        if self.client(client.id) == Some(&client.secret.public()) {
            return Ok(());
        }
        let what = format!("client {} is not of the group `{}`", client.id, self.name);
        Err(Error::new("bft.no_client", Class::Invalid, what)
            .hint("The files of the group and of its client are made together, by `tidings bft keygen`."))
    }

    /// Its registered clients.
    pub fn clients(&self) -> impl Iterator<Item = u64> + '_ {
        self.clients.keys().copied()
    }

    /// The hash of all that: what is signed is signed for it.
    pub fn identity(&self) -> &[u8; 32] {
        &self.identity
    }

    /// The same as a number, as replies carry it.
    pub fn number(&self) -> u64 {
        self.identity.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

/// Addresses are not part of it: they may change.
fn identity(
    name: &str,
    life: Incarnation,
    replicas: &[Member],
    clients: &BTreeMap<u64, Public>,
    begins: Option<&[u8; 32]>,
) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"tidings bft group 1");
    hasher.update(&(name.len() as u64).to_be_bytes()).update(name.as_bytes());
    hasher.update(&life.0.to_be_bytes()).update(&(replicas.len() as u64).to_be_bytes());
    replicas.iter().for_each(|member| {
        hasher.update(&member.key.0);
    });
    clients.iter().for_each(|(id, key)| {
        hasher.update(&id.to_be_bytes()).update(&key.0);
    });
    if let Some(begins) = begins {
        hasher.update(b"begins").update(begins);
    }
    *hasher.finalize().as_bytes()
}

/// What a replica alone knows.
#[derive(Clone, Debug)]
pub struct ReplicaSecrets {
    /// Signs votes and snapshots.
    pub secret: Secret,
    /// By client.
    pub macs: BTreeMap<u64, MacKey>,
}

/// What a client alone knows.
#[derive(Clone, Debug)]
pub struct ClientSecrets {
    /// Its number in the group.
    pub id: u64,
    /// Signs commands.
    pub secret: Secret,
    replies: [u8; 32],
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplicaSecretsFile {
    secret: String,
    /// By client; keys of tables are texts.
    macs: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientSecretsFile {
    id: u64,
    secret: String,
    replies: String,
}

impl ReplicaSecrets {
    /// Reads them from the text of a file.
    pub fn parse(text: &str) -> Result<ReplicaSecrets, Error> {
        let file: ReplicaSecretsFile = toml::from_str(text).map_err(|error| wrong(error.message().to_owned()))?;
        let mac = |(id, key): (String, String)| {
            let id = id.parse().map_err(|_| wrong(format!("`{id}` is no number of a client")))?;
            Ok((id, MacKey(unhex(&key)?)))
        };
        let macs = file.macs.into_iter().map(mac).collect::<Result<_, Error>>()?;
        Ok(ReplicaSecrets { secret: Secret::of(unhex(&file.secret)?)?, macs })
    }

    /// The text of their file.
    pub fn to_text(&self) -> Result<String, Error> {
        let macs = self.macs.iter().map(|(id, key)| (id.to_string(), hex(&key.0))).collect();
        let file = ReplicaSecretsFile { secret: hex(self.secret.seed()), macs };
        toml::to_string(&file).map_err(|error| wrong(error.to_string()))
    }
}

impl ClientSecrets {
    /// Reads them from the text of a file.
    pub fn parse(text: &str) -> Result<ClientSecrets, Error> {
        let file: ClientSecretsFile = toml::from_str(text).map_err(|error| wrong(error.message().to_owned()))?;
        let secret = Secret::of(unhex(&file.secret)?)?;
        Ok(ClientSecrets { id: file.id, secret, replies: unhex(&file.replies)? })
    }

    /// The text of their file.
    pub fn to_text(&self) -> Result<String, Error> {
        let (secret, replies) = (hex(self.secret.seed()), hex(&self.replies));
        toml::to_string(&ClientSecretsFile { id: self.id, secret, replies }).map_err(|error| wrong(error.to_string()))
    }

    /// What it shares with one replica.
    pub fn mac(&self, replica: ReplicaId) -> MacKey {
        MacKey::derive(&self.replies, replica.0)
    }
}

/// A new group with all its secrets.
#[derive(Debug)]
pub struct Founded {
    /// What everybody may know.
    pub membership: Membership,
    /// By number.
    pub replicas: Vec<ReplicaSecrets>,
    /// In the order of their ids, from one.
    pub clients: Vec<ClientSecrets>,
}

/// Makes the keys of a group in its first life, from randomness such as [`random`](crate::keys::random). Replicas listen at
/// the addresses given, for others and for clients.
pub fn found(
    name: &str,
    addresses: &[(SocketAddr, SocketAddr)],
    clients: u64,
    mut random: impl FnMut() -> Result<[u8; 32], Error>,
) -> Result<Founded, Error> {
    let clients = (1..=clients)
        .map(|id| Ok(ClientSecrets { id, secret: Secret::of(random()?)?, replies: random()? }))
        .collect::<Result<Vec<_>, Error>>()?;
    let (mut members, mut replicas) = (Vec::new(), Vec::new());
    for (number, (peers, at)) in (0u16..).zip(addresses) {
        let secret = Secret::of(random()?)?;
        members.push(Member { key: secret.public(), peers: *peers, clients: *at });
        let macs = clients.iter().map(|client| (client.id, client.mac(ReplicaId(number)))).collect();
        replicas.push(ReplicaSecrets { secret, macs });
    }
    let keys = clients.iter().map(|client| (client.id, client.secret.public())).collect();
    Ok(Founded { membership: Membership::new(name, Incarnation(1), members, keys)?, replicas, clients })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Four replicas, and the secrets of two clients.
    pub(crate) fn four(name: &str) -> (Membership, Vec<ClientSecrets>) {
        let founded = group(name);
        (founded.membership, founded.clients)
    }

    /// The same keys at every call.
    pub(crate) fn group(name: &str) -> Founded {
        let addresses: Vec<(SocketAddr, SocketAddr)> = (0..4u16)
            .map(|number| (([127, 0, 0, 1], 7000 + number).into(), ([127, 0, 0, 1], 7100 + number).into()))
            .collect();
        let mut last = 0;
        let count = || {
            last += 1;
            Ok([last; 32])
        };
        found(name, &addresses, 2, count).unwrap()
    }

    #[test]
    fn files_come_back() {
        let founded = group("one");
        let read = Membership::parse(&founded.membership.to_text().unwrap()).unwrap();
        assert_eq!(read.identity(), founded.membership.identity());
        assert_eq!((read.faults(), read.size()), (1, 4));
        let replica = ReplicaSecrets::parse(&founded.replicas[2].to_text().unwrap()).unwrap();
        assert_eq!(read.replica(&replica.secret.public()), Some(ReplicaId(2)));
        let client = ClientSecrets::parse(&founded.clients[1].to_text().unwrap()).unwrap();
        assert_eq!(client.mac(ReplicaId(2)), replica.macs[&2]);
    }

    #[test]
    fn another_life_name_or_key_is_another_group() {
        let (one, _) = four("one");
        assert_ne!(one.number(), four("two").0.number());
        let clients = one.clients.clone();
        let later = Membership::new("one", Incarnation(2), one.replicas.clone(), clients.clone()).unwrap();
        assert_ne!(later.number(), one.number());
        let (secret, begins) = (Secret::of([77; 32]).unwrap(), [7; 32]);
        let rekeyed = one.rekeyed(ReplicaId(3), secret.public(), begins).unwrap();
        assert_eq!((rekeyed.life(), rekeyed.begins()), (Incarnation(2), Some(&begins)));
        assert_eq!(rekeyed.replica(&secret.public()), Some(ReplicaId(3)));
        assert_ne!(rekeyed.clone().beginning_with([8; 32]).number(), rekeyed.number(), "another beginning");
        assert_eq!(Membership::parse(&rekeyed.to_text().unwrap()).unwrap().number(), rekeyed.number());
        assert!(one.rekeyed(ReplicaId(4), secret.public(), begins).is_err());
        let mut moved = one.replicas.clone();
        moved[0].peers.set_port(1);
        assert_eq!(Membership::new("one", Incarnation(1), moved, clients).unwrap().number(), one.number());
    }

    #[test]
    fn what_cannot_be_a_group_is_refused() {
        let (one, _) = four("one");
        let with = |replicas: Vec<Member>| Membership::new("one", Incarnation(1), replicas, one.clients.clone());
        assert!(with(one.replicas[..3].to_vec()).unwrap_err().hint.contains("3f + 1"));
        let five = [&one.replicas[..], &one.replicas[..1]].concat();
        assert!(with(five).unwrap_err().hint.contains("3f + 1"));
        let mut twice = one.replicas.clone();
        twice[1].key = twice[0].key;
        assert!(with(twice).unwrap_err().message.contains("key"));
        let mut twice = one.replicas.clone();
        twice[1].clients = twice[0].peers;
        assert!(with(twice).unwrap_err().message.contains("address"));
        assert!(Membership::parse("name = 1").is_err());
    }
}
