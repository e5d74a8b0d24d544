//! Keys: who signs commands, votes and snapshots, and what replies are MACed with.

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use tidings_base::{Class, Error};

/// What a signature is for: one made for another purpose never counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A command that is to be ordered.
    Order = 1,
    /// A question that is answered without an order.
    Read = 2,
    /// The hash of a replica's state at a height.
    Snapshot = 3,
    /// A fast read of D-Prophecy.
    Fast = 4,
}

/// A signature of Ed25519.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature(pub [u8; 64]);

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", &hex(&self.0)[..8])
    }
}

/// What verifies signatures, known to everybody.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Public(pub [u8; 32]);

impl Public {
    /// Whether whoever holds the secret signed this for this purpose.
    pub fn verify(&self, purpose: Purpose, message: &[u8], signature: &Signature) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(&purposed(purpose, message), &signature.0).is_ok()
    }
}

impl fmt::Debug for Public {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", &hex(&self.0)[..8])
    }
}

impl fmt::Display for Public {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl FromStr for Public {
    type Err = Error;
    fn from_str(text: &str) -> Result<Public, Error> {
        unhex(text).map(Public)
    }
}

/// What signs. Of a replica it signs votes too, in the engine.
#[derive(Clone)]
pub struct Secret {
    seed: [u8; 32],
    pair: Arc<Ed25519KeyPair>,
}

impl Secret {
    /// The secret of a seed.
    pub fn of(seed: [u8; 32]) -> Result<Secret, Error> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed)
            .map_err(|_| Error::new("bft.key", Class::Invalid, "the bytes are no secret key"))?;
        Ok(Secret { seed, pair: Arc::new(pair) })
    }

    /// The seed itself, for whoever signs votes.
    pub fn seed(&self) -> &[u8; 32] {
        &self.seed
    }

    /// What verifies its signatures.
    pub fn public(&self) -> Public {
        let mut key = [0; 32];
        key.copy_from_slice(self.pair.public_key().as_ref());
        Public(key)
    }

    /// Signs for a purpose.
    pub fn sign(&self, purpose: Purpose, message: &[u8]) -> Signature {
        let mut signature = [0; 64];
        signature.copy_from_slice(self.pair.sign(&purposed(purpose, message)).as_ref());
        Signature(signature)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret of {:?}", self.public())
    }
}

fn purposed(purpose: Purpose, message: &[u8]) -> Vec<u8> {
    [b"tidings bft ", [purpose as u8].as_slice(), message].concat()
}

/// What one client and one replica share: replies between them are MACed under it (rule G).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MacKey(pub [u8; 32]);

impl MacKey {
    /// The key of one replica, from a client's secret for replies.
    pub fn derive(secret: &[u8; 32], replica: u16) -> MacKey {
        MacKey(
            *blake3::keyed_hash(secret, &[b"tidings bft reply ".as_slice(), &replica.to_be_bytes()].concat())
                .as_bytes(),
        )
    }

    /// The MAC of a message.
    pub fn tag(&self, message: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(&self.0, message).as_bytes()
    }

    /// Whether a MAC is right, in constant time.
    pub fn verify(&self, message: &[u8], tag: [u8; 32]) -> bool {
        blake3::keyed_hash(&self.0, message) == blake3::Hash::from(tag)
    }
}

impl fmt::Debug for MacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MacKey(secret)")
    }
}

/// Fresh random bytes for a key.
pub fn random() -> Result<[u8; 32], Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new("bft.random", Class::Failed, format!("no randomness to be had: {error}")))?;
    Ok(bytes)
}

/// Bytes as they stand in files of keys.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of [`hex`].
pub fn unhex<const N: usize>(text: &str) -> Result<[u8; N], Error> {
    let wrong = || Error::new("bft.key", Class::Invalid, format!("a key is {} hexadecimal digits", 2 * N));
    let digits: Option<Vec<u8>> = text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len() == 2 * N).ok_or_else(wrong)?;
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_counts_for_its_purpose_its_message_and_its_key() {
        let (secret, other) = (Secret::of([1; 32]).unwrap(), Secret::of([2; 32]).unwrap());
        let signature = secret.sign(Purpose::Order, b"put");
        assert!(secret.public().verify(Purpose::Order, b"put", &signature));
        assert!(!secret.public().verify(Purpose::Read, b"put", &signature));
        assert!(!secret.public().verify(Purpose::Order, b"get", &signature));
        assert!(!other.public().verify(Purpose::Order, b"put", &signature));
    }

    #[test]
    fn each_replica_has_its_own_key_with_a_client() {
        let (one, two) = (MacKey::derive(&[1; 32], 0), MacKey::derive(&[1; 32], 1));
        assert!(one.verify(b"reply", one.tag(b"reply")));
        assert!(!two.verify(b"reply", one.tag(b"reply")) && !one.verify(b"other", one.tag(b"reply")));
    }

    #[test]
    fn keys_come_back_from_files() {
        let public = Secret::of([1; 32]).unwrap().public();
        assert_eq!(public.to_string().parse(), Ok(public));
        assert!("12".parse::<Public>().is_err() && "zz".repeat(32).parse::<Public>().is_err());
    }
}
