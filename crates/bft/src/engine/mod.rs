//! The engine that makes the order: simplex and marshal of commonware, bound to a [`Seat`](crate::seat::Seat).
//!
//! ```text
//!   Pool ─▶ Proposer ─▶ simplex ─ votes, certificates ─▶ other replicas      (on the engine's own threads)
//!                          └─▶ marshal ─ batches by height, at least once ─▶ Delivery ─▶ Seat
//! ```
//! - [`batch`]: what is agreed on. [`proposer`]: what is proposed and voted for. [`wires`]: authenticated connections among
//!   replicas. [`chain`]: simplex and marshal over them. [`delivery`]: from the order to the seat.
//! - [`passing`]: commands that others may not have. [`takeover`], [`provider`], [`message`]: a state for a replica that has
//!   lost its own.
//! - [`replica`]: all of it in one process of its own runtime. [`steady`]: the clock it runs by.
//!
//! One epoch lasts for a life of the group: another life has another membership file, and another order.

pub mod batch;
pub mod chain;
pub mod delivery;
pub mod message;
pub mod passing;
pub mod proposer;
pub mod provider;
pub mod replica;
pub mod steady;
pub mod takeover;
pub mod wires;

use crate::keys::{Public, Secret};
use crate::membership::Membership;
use commonware_codec::DecodeExt;
use commonware_consensus::marshal::standard::Standard;
use commonware_cryptography::Signer;
use commonware_cryptography::ed25519::{PrivateKey, PublicKey};
use commonware_runtime::{Clock, Metrics, Network, Resolver, Spawner, Storage};
use commonware_utils::ordered::Set;
use rand_core::CryptoRng;
use std::sync::Arc;
use tidings_base::{Class, Error};

/// What names a batch.
pub type Digest = commonware_cryptography::blake3::Digest;
/// What votes are signed with.
pub type Scheme = commonware_consensus::simplex::scheme::ed25519::Scheme;
/// The word of enough replicas for a batch.
pub type Finalization = commonware_consensus::simplex::types::Finalization<Scheme, Digest>;
/// Where the order is asked for its batches.
pub type Mailbox = commonware_consensus::marshal::core::Mailbox<Scheme, Standard<batch::Batch>>;

/// What the engine runs on: tokio, or the deterministic runtime of tests.
pub trait Runtime: Spawner + Clock + CryptoRng + Storage + Metrics + Network + Resolver {}
impl<E: Spawner + Clock + CryptoRng + Storage + Metrics + Network + Resolver> Runtime for E {}

/// A replica as the engine knows it: its key, and the keys of all.
#[derive(Clone)]
pub struct Identity {
    /// What signs votes and opens connections.
    pub secret: PrivateKey,
    /// All replicas, in the engine's order: by key.
    pub all: Set<PublicKey>,
    /// The group.
    pub group: Arc<Membership>,
    /// Whether it may vote (rule G).
    pub votes: bool,
    namespace: Vec<u8>,
}

impl Identity {
    /// The replica with this secret in a group.
    pub fn new(group: Arc<Membership>, secret: &Secret, votes: bool) -> Result<Identity, Error> {
        let wrong = |message: &str| Error::new("bft.key", Class::Invalid, message);
        let all = group.replicas().iter().map(|member| engine_key(&member.key)).collect::<Result<Vec<_>, _>>()?;
        let secret = PrivateKey::decode(secret.seed().to_vec()).map_err(|_| wrong("the secret signs no votes"))?;
        let all = Set::from_iter_dedup(all);
        if all.position(&secret.public_key()).is_none() {
            return Err(wrong("the secret is of no replica of this group"));
        }
        let namespace = [b"tidings bft ".as_slice(), group.identity()].concat();
        Ok(Identity { secret, all, group, votes, namespace })
    }

    /// Its key.
    pub fn public(&self) -> PublicKey {
        self.secret.public_key()
    }

    /// What verifies votes, and signs them if it may vote.
    fn scheme(&self) -> Option<Scheme> {
        match self.votes {
            true => Scheme::signer(&self.namespace, self.all.clone(), self.secret.clone()),
            false => Scheme::member(&self.namespace, self.all.clone(), &self.public()),
        }
    }
}

fn engine_key(key: &Public) -> Result<PublicKey, Error> {
    PublicKey::decode(key.0.to_vec())
        .map_err(|_| Error::new("bft.key", Class::Invalid, format!("{key} is no key of a replica")))
}

/// The key of a peer as the membership file has it.
fn file_key(key: &PublicKey) -> Public {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(key.as_ref());
    Public(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonware_cryptography::certificate::Scheme as _;

    #[test]
    fn the_engine_has_the_keys_of_the_file() {
        let founded = crate::membership::tests::group("one");
        let group = Arc::new(founded.membership.clone());
        for (member, secrets) in founded.membership.replicas().iter().zip(&founded.replicas) {
            for votes in [true, false] {
                let identity = Identity::new(group.clone(), &secrets.secret, votes).unwrap();
                assert_eq!(file_key(&identity.public()), member.key);
                let membership = identity.scheme().and_then(|scheme| scheme.me()).unwrap();
                assert_eq!(membership.signer().is_some(), votes);
            }
        }
        assert!(Identity::new(group, &founded.clients[0].secret, true).is_err(), "a client is no replica");
    }
}
