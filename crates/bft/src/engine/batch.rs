//! What the engine agrees on: a batch of signed commands, and the batch it follows.

use super::Digest;
use crate::codec::Reader;
use crate::command::{OVERHEAD, Signed};
use crate::membership::Membership;
use bytes::{BufMut, Bytes};
use commonware_codec::{Buf, Encode, EncodeSize, Error, FixedSize, Read, ReadExt, Write};
use commonware_consensus::types::Height;
use commonware_consensus::{BoundedBlock, Heightable};
use commonware_cryptography::{Digested, Digestible};
use tidings_sketch::replica::Block;

/// The most bytes of commands in a batch: far above what arrives in the time of a view, and sent within one.
pub const LONGEST_BODY: usize = 1 << 20;

/// Commands in their order, after those of its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    parent: Digest,
    height: u64,
    commands: Vec<Signed>,
}

impl Batch {
    /// The batch before all others: of nothing, and of this group alone.
    pub fn genesis(group: &Membership) -> Batch {
        Batch { parent: commonware_cryptography::blake3::Digest(*group.identity()), height: 0, commands: Vec::new() }
    }

    /// The batch that follows another one.
    pub fn after(parent: &Digested<Batch>, commands: Vec<Signed>) -> Batch {
        Batch { parent: parent.digest(), height: parent.inner().height + 1, commands }
    }

    /// With its digest, as the engine carries it.
    pub fn digested(self) -> Digested<Batch> {
        let digest = self.digest();
        Digested::precomputed(self, digest)
    }

    /// Its number, from one; the genesis has zero.
    pub fn number(&self) -> u64 {
        self.height
    }

    /// What is in it.
    pub fn commands(&self) -> &[Signed] {
        &self.commands
    }

    /// As it is executed: signatures have done their service.
    pub fn ordered(&self) -> Block {
        let commands = self.commands.iter().map(|signed| signed.command.clone()).collect();
        Block { height: self.height, commands }
    }

    fn body(&self) -> usize {
        self.commands.iter().map(Signed::length).sum()
    }
}

impl Write for Batch {
    fn write(&self, buf: &mut impl BufMut) {
        self.height.write(buf);
        self.parent.write(buf);
        (self.body() as u32).write(buf);
        self.commands.iter().for_each(|signed| signed.put(buf));
    }
}

impl EncodeSize for Batch {
    fn encode_size(&self) -> usize {
        u64::SIZE + Digest::SIZE + u32::SIZE + self.body()
    }
}

impl Read for Batch {
    type Cfg = ();

    fn read_cfg(buf: &mut impl Buf, _: &()) -> Result<Batch, Error> {
        let (height, parent) = (u64::read(buf)?, Digest::read(buf)?);
        let length = u32::read(buf)? as usize;
        if length > LONGEST_BODY {
            return Err(Error::InvalidLength(length));
        }
        let body: Bytes = buf.try_take_owned(length).map_err(|_| Error::EndOfBuffer)?;
        let (mut reader, mut commands) = (Reader::new(body), Vec::with_capacity(length / (2 * OVERHEAD)));
        while reader.left() > 0 {
            let signed = Signed::read(&mut reader).map_err(|_| Error::Invalid("Batch", "a command is malformed"))?;
            commands.push(signed);
        }
        Ok(Batch { parent, height, commands })
    }
}

impl Digestible for Batch {
    type Digest = Digest;

    fn digest(&self) -> Digest {
        commonware_cryptography::blake3::Digest(*blake3::hash(&self.encode()).as_bytes())
    }
}

impl Heightable for Batch {
    fn height(&self) -> Height {
        Height::new(self.height)
    }
}

impl commonware_consensus::Block for Batch {
    fn parent(&self) -> Digest {
        self.parent
    }
}

impl BoundedBlock for Batch {
    fn max_encode_size(_: &()) -> usize {
        u64::SIZE + Digest::SIZE + u32::SIZE + LONGEST_BODY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Purpose;
    use crate::membership::tests::group;
    use commonware_codec::DecodeExt;
    use tidings_sketch::replica::Command;

    #[test]
    fn a_batch_comes_back_from_its_bytes_and_other_bytes_do_not() {
        let founded = group("one");
        let genesis = Batch::genesis(&founded.membership).digested();
        assert_ne!(genesis.digest(), Batch::genesis(&group("two").membership).digest(), "of another group");
        let signed = |nonce| {
            let command = Command { client: 1, nonce, request: Bytes::from_static(b"put") };
            Signed::new(&founded.membership, &founded.clients[0].secret, Purpose::Order, command)
        };
        let batch = Batch::after(&genesis, vec![signed(1), signed(2)]);
        let bytes = batch.encode();
        assert_eq!(bytes.len(), batch.encode_size());
        assert_eq!(Batch::decode(bytes.clone()).unwrap(), batch);
        for short in 0..bytes.len() {
            assert!(Batch::decode(bytes.slice(..short)).is_err());
        }
        let mut long = bytes.to_vec();
        long.push(0);
        assert!(Batch::decode(long).is_err());
    }
}
