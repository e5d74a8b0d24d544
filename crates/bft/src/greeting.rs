//! How a connection shows whose it is, before anything is asked on it: what was recorded on another one opens none.
//!
//! ```text
//!   client ◀─ Challenge, drawn for this connection ─ replica
//!          ── Hello { client, MAC of the challenge } ─▶   then questions of this client, and of nobody else
//! ```
//! Whoever listens to the wire can repeat a question as it was signed. Without this it would be answered wherever it came from: a
//! reply that somebody waits for would go astray, a slow service would be asked again and again, and the client itself would be
//! shown out for having too many connections.

use crate::codec::{Malformed, Reader};
use crate::keys::{MacKey, random};
use crate::membership::Membership;
use bytes::{BufMut, Bytes, BytesMut};
use std::time::Duration;
use tidings_base::Error;

/// The longest frame of a greeting, either way.
pub const LONGEST_GREETING: usize = 64;
/// How long a client waits for a replica's challenge. One that says none is asked nothing, and reached for again.
pub(crate) const GREETS: Duration = Duration::from_secs(5);

const CHALLENGE: u8 = 15;
const HELLO: u8 = 14;

/// What a replica says first on a connection. No two are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge(pub [u8; 32]);

impl Challenge {
    /// One for a new connection.
    pub fn draw() -> Result<Challenge, Error> {
        Ok(Challenge(random()?))
    }

    /// The frame, without its length.
    pub fn encoded(&self) -> Bytes {
        Bytes::from([&[CHALLENGE], self.0.as_slice()].concat())
    }

    /// Reads a frame.
    pub fn read(bytes: Bytes) -> Result<Challenge, Malformed> {
        let mut reader = Reader::new(bytes);
        if reader.byte()? != CHALLENGE {
            return Err(Malformed::Unknown);
        }
        let challenge = Challenge(reader.array()?);
        reader.end()?;
        Ok(challenge)
    }

    /// What a client of a group answers by what it shares with the replica.
    pub fn answered(&self, group: &Membership, client: u64, key: &MacKey) -> Hello {
        Hello { client, tag: key.tag(&self.covered(group, client)) }
    }

    /// No frame of a replica begins with these bytes: its MACs of those are none of greetings.
    fn covered(&self, group: &Membership, client: u64) -> Vec<u8> {
        [b"tidings bft hello ", group.identity().as_slice(), &client.to_be_bytes(), &self.0].concat()
    }
}

/// What a client says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Who it says it is.
    pub client: u64,
    /// The MAC of the challenge.
    pub tag: [u8; 32],
}

impl Hello {
    /// Whether it was made for this connection by whoever shares the key.
    pub fn answers(&self, challenge: &Challenge, group: &Membership, key: &MacKey) -> bool {
        key.verify(&challenge.covered(group, self.client), self.tag)
    }

    /// The frame, without its length.
    pub fn encoded(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(HELLO);
        out.put_u64(self.client);
        out.put_slice(&self.tag);
        out.freeze()
    }

    /// Reads a frame.
    pub fn read(bytes: Bytes) -> Result<Hello, Malformed> {
        let mut reader = Reader::new(bytes);
        if reader.byte()? != HELLO {
            return Err(Malformed::Unknown);
        }
        let hello = Hello { client: reader.number()?, tag: reader.array()? };
        reader.end()?;
        Ok(hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::tests::four;
    use tidings_sketch::ReplicaId;

    #[test]
    fn a_greeting_counts_on_its_connection_for_its_client_in_its_group() {
        let (group, clients) = four("one");
        let (challenge, key) = (Challenge([1; 32]), clients[0].mac(ReplicaId(0)));
        let hello = challenge.answered(&group, 1, &key);
        assert!(hello.answers(&challenge, &group, &key));
        assert!(!hello.answers(&Challenge([2; 32]), &group, &key), "on another connection");
        assert!(!Hello { client: 2, ..hello }.answers(&challenge, &group, &key));
        assert!(!hello.answers(&challenge, &four("two").0, &key));
        for other in [clients[0].mac(ReplicaId(1)), clients[1].mac(ReplicaId(0))] {
            assert!(!hello.answers(&challenge, &group, &other));
        }
    }

    #[test]
    fn greetings_come_back_and_are_short() {
        let (challenge, hello) = (Challenge([1; 32]), Hello { client: 1, tag: [2; 32] });
        assert_eq!(Challenge::read(challenge.encoded()), Ok(challenge));
        assert_eq!(Hello::read(hello.encoded()), Ok(hello));
        assert!(challenge.encoded().len() <= LONGEST_GREETING && hello.encoded().len() <= LONGEST_GREETING);
        assert!(Hello::read(challenge.encoded()).is_err() && Challenge::read(hello.encoded()).is_err());
    }
}
