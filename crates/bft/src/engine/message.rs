//! What replicas say to one another about snapshots.

use crate::codec::{Malformed, Reader, put_bytes};
use crate::keys::Signature;
use crate::snapshot::Attestation;
use bytes::{BufMut, Bytes, BytesMut};

/// The longest part of a snapshot in one message.
pub const LONGEST_PART: usize = 256 << 10;

/// A question or an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// What is your latest snapshot?
    AskWord,
    /// This one, or none.
    Word(Option<Attestation>),
    /// Which bytes does the snapshot of this height have from this one on?
    AskPart {
        /// The height.
        height: u64,
        /// The first byte.
        offset: u64,
    },
    /// These.
    Part {
        /// The height.
        height: u64,
        /// The first byte.
        offset: u64,
        /// How long the snapshot is.
        total: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// Which is the last batch up to this height that enough replicas gave their word for?
    AskFloor {
        /// The height.
        height: u64,
    },
    /// This one, as the engine encodes it.
    Floor {
        /// The height that was asked for.
        height: u64,
        /// The words.
        finalization: Bytes,
        /// The batch.
        batch: Bytes,
    },
}

impl Message {
    /// As bytes.
    pub fn encoded(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Message::AskWord => out.put_u8(1),
            Message::Word(None) => out.put_u8(2),
            Message::Word(Some(word)) => {
                out.put_u8(3);
                out.put_u64(word.height);
                out.put_slice(&word.hash);
                out.put_slice(&word.signature.0);
            }
            Message::AskPart { height, offset } => {
                out.put_u8(4);
                out.put_u64(*height);
                out.put_u64(*offset);
            }
            Message::Part { height, offset, total, bytes } => {
                out.put_u8(5);
                [height, offset, total].into_iter().for_each(|number| out.put_u64(*number));
                put_bytes(&mut out, bytes);
            }
            Message::AskFloor { height } => {
                out.put_u8(6);
                out.put_u64(*height);
            }
            Message::Floor { height, finalization, batch } => {
                out.put_u8(7);
                out.put_u64(*height);
                put_bytes(&mut out, finalization);
                put_bytes(&mut out, batch);
            }
        }
        out.freeze()
    }

    /// Reads one.
    pub fn read(bytes: Bytes) -> Result<Message, Malformed> {
        let (longest, mut reader) = (bytes.len(), Reader::new(bytes));
        let message = match reader.byte()? {
            1 => Message::AskWord,
            2 => Message::Word(None),
            3 => {
                let (height, hash) = (reader.number()?, reader.array()?);
                Message::Word(Some(Attestation { height, hash, signature: Signature(reader.array()?) }))
            }
            4 => Message::AskPart { height: reader.number()?, offset: reader.number()? },
            5 => {
                let (height, offset, total) = (reader.number()?, reader.number()?, reader.number()?);
                Message::Part { height, offset, total, bytes: reader.bytes(LONGEST_PART)? }
            }
            6 => Message::AskFloor { height: reader.number()? },
            7 => {
                let (height, finalization) = (reader.number()?, reader.bytes(longest)?);
                Message::Floor { height, finalization, batch: reader.bytes(longest)? }
            }
            _ => return Err(Malformed::Unknown),
        };
        reader.end()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_cut_ones_do_not() {
        let (bytes, signature) = (Bytes::from_static(b"bytes"), Signature([1; 64]));
        for message in [
            Message::AskWord,
            Message::Word(None),
            Message::Word(Some(Attestation { height: 256, hash: [2; 32], signature })),
            Message::AskPart { height: 256, offset: 3 },
            Message::Part { height: 256, offset: 3, total: 9, bytes: bytes.clone() },
            Message::AskFloor { height: 256 },
            Message::Floor { height: 256, finalization: bytes.clone(), batch: bytes },
        ] {
            let encoded = message.encoded();
            assert_eq!(Message::read(encoded.clone()), Ok(message));
            for short in 0..encoded.len() {
                assert!(Message::read(encoded.slice(..short)).is_err());
            }
        }
    }
}
