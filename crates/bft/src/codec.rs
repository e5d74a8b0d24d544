//! Bytes on the wire and on disk: fixed widths, big-endian, lengths first. One value has one encoding.

use bytes::{Buf, BufMut, Bytes};

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// They end too early.
    #[error("the bytes end too early")]
    Short,
    /// Something is longer than it may be.
    #[error("a part is longer than it may be")]
    Long,
    /// A number stands where no such thing is known.
    #[error("a part is of an unknown kind")]
    Unknown,
    /// More follows than there should be.
    #[error("more follows than there should be")]
    Rest,
}

/// Reads parts one after the other.
#[derive(Debug)]
pub struct Reader(Bytes);

impl Reader {
    /// A reader of these bytes.
    pub fn new(bytes: Bytes) -> Reader {
        Reader(bytes)
    }

    /// One byte.
    pub fn byte(&mut self) -> Result<u8, Malformed> {
        self.0.try_get_u8().map_err(|_| Malformed::Short)
    }

    /// Four bytes as a number.
    pub fn number32(&mut self) -> Result<u32, Malformed> {
        self.0.try_get_u32().map_err(|_| Malformed::Short)
    }

    /// Eight bytes as a number.
    pub fn number(&mut self) -> Result<u64, Malformed> {
        self.0.try_get_u64().map_err(|_| Malformed::Short)
    }

    /// Exactly so many bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        self.0.try_copy_to_slice(&mut array).map_err(|_| Malformed::Short)?;
        Ok(array)
    }

    /// Bytes with their length before them.
    pub fn bytes(&mut self, longest: usize) -> Result<Bytes, Malformed> {
        let length = self.number32()? as usize;
        if length > longest {
            return Err(Malformed::Long);
        }
        if length > self.0.len() {
            return Err(Malformed::Short);
        }
        Ok(self.0.split_to(length))
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        self.0.len()
    }

    /// Nothing may follow.
    pub fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Rest) }
    }
}

/// Writes bytes with their length before them. What is longer than four bytes can say is never built.
pub fn put_bytes(out: &mut impl BufMut, bytes: &[u8]) {
    out.put_u32(bytes.len() as u32);
    out.put_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;

    #[test]
    fn parts_come_back_and_nothing_else_does() {
        let mut out = BytesMut::new();
        out.put_u64(7);
        put_bytes(&mut out, b"abc");
        let bytes = out.freeze();
        let mut reader = Reader::new(bytes.clone());
        assert_eq!((reader.number(), reader.bytes(3)), (Ok(7), Ok(Bytes::from_static(b"abc"))));
        assert_eq!(reader.end(), Ok(()));
        for short in 0..bytes.len() {
            let mut reader = Reader::new(bytes.slice(..short));
            let read = reader.number().and_then(|_| reader.bytes(3));
            assert_eq!(read, Err(Malformed::Short));
        }
        let mut reader = Reader::new(bytes.slice(8..));
        assert_eq!(reader.bytes(2), Err(Malformed::Long));
        assert_eq!(Reader::new(bytes).end(), Err(Malformed::Rest));
    }
}
