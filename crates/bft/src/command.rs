//! Commands with their signatures (rule G): a MAC for each replica would let a client split them.

use crate::codec::{Malformed, Reader, put_bytes};
use crate::keys::{Purpose, Secret, Signature};
use crate::membership::Membership;
use bytes::{BufMut, Bytes, BytesMut};
use tidings_sketch::replica::Command;
use tidings_sketch::sketch::Sketch;

/// The longest request.
pub const LONGEST_REQUEST: usize = 64 << 10;
/// What a signed command has beside its request, encoded.
pub const OVERHEAD: usize = 8 + 8 + 4 + 64;

/// Set in the nonces of questions to one replica, which are no votes.
pub const ALONE: u64 = 1 << 63;

/// What names a command: its client, and its nonce among those of that client.
pub type Name = (u64, u64);

/// A command, and the signature of its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// What is asked.
    pub command: Command,
    /// Made by the client for this group.
    pub signature: Signature,
}

impl Signed {
    /// Signs a command for a group.
    pub fn new(group: &Membership, secret: &Secret, purpose: Purpose, command: Command) -> Signed {
        let signature = secret.sign(purpose, &signed_bytes(group, &command));
        Signed { command, signature }
    }

    /// Whether its client, a registered one, signed it for this group and this purpose.
    pub fn verify(&self, group: &Membership, purpose: Purpose) -> bool {
        let key = group.client(self.command.client);
        key.is_some_and(|key| key.verify(purpose, &signed_bytes(group, &self.command), &self.signature))
    }

    /// Whether one replica is asked, and not all of them.
    pub fn is_alone(&self) -> bool {
        self.command.nonce & ALONE != 0
    }

    /// What names it.
    pub fn name(&self) -> Name {
        (self.command.client, self.command.nonce)
    }

    /// The hash of a result, as replies to this command carry it. It is keyed by the signature, which nobody but the client
    /// knew before it asked: two values with the same short hash cannot be searched for beforehand.
    pub fn sketch(&self, result: &[u8]) -> Sketch {
        let hash = blake3::keyed_hash(blake3::hash(&self.signature.0).as_bytes(), result);
        let mut sketch = [0; 16];
        sketch.copy_from_slice(&hash.as_bytes()[..16]);
        Sketch(sketch)
    }

    /// How long it is when encoded.
    pub fn length(&self) -> usize {
        OVERHEAD + self.command.request.len()
    }

    /// Writes it.
    pub fn put(&self, out: &mut impl BufMut) {
        out.put_u64(self.command.client);
        out.put_u64(self.command.nonce);
        put_bytes(out, &self.command.request);
        out.put_slice(&self.signature.0);
    }

    /// Reads it; whether it is signed is another question.
    pub fn read(reader: &mut Reader) -> Result<Signed, Malformed> {
        let (client, nonce) = (reader.number()?, reader.number()?);
        let request = reader.bytes(LONGEST_REQUEST)?;
        Ok(Signed { command: Command { client, nonce, request }, signature: Signature(reader.array()?) })
    }

    /// It alone, as bytes.
    pub fn encoded(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.length());
        self.put(&mut out);
        out.freeze()
    }
}

fn signed_bytes(group: &Membership, command: &Command) -> Vec<u8> {
    let numbers = [command.client.to_be_bytes(), command.nonce.to_be_bytes()].concat();
    [group.identity().as_slice(), &numbers, &command.request].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::tests::four;

    #[test]
    fn a_command_counts_as_its_client_signed_it_in_its_group() {
        let (group, clients) = four("one");
        let command = Command { client: 1, nonce: 7, request: Bytes::from_static(b"put") };
        let signed = Signed::new(&group, &clients[0].secret, Purpose::Order, command.clone());
        assert!(signed.verify(&group, Purpose::Order) && !signed.verify(&group, Purpose::Read));
        assert!(!signed.verify(&four("two").0, Purpose::Order), "of another group");
        for other in [
            Command { client: 2, ..command.clone() },
            Command { nonce: 8, ..command.clone() },
            Command { client: 9, ..command.clone() },
            Command { request: Bytes::from_static(b"pat"), ..command.clone() },
        ] {
            assert!(!Signed { command: other, ..signed.clone() }.verify(&group, Purpose::Order));
        }
    }

    #[test]
    fn it_comes_back_from_its_bytes() {
        let (group, clients) = four("one");
        let command = Command { client: 1, nonce: 7, request: Bytes::from_static(b"put") };
        let signed = Signed::new(&group, &clients[0].secret, Purpose::Order, command);
        let mut reader = Reader::new(signed.encoded());
        assert_eq!(signed.encoded().len(), signed.length());
        assert_eq!(Signed::read(&mut reader), Ok(signed));
        assert_eq!(reader.end(), Ok(()));
    }
}
