//! A picture of the state in pieces, and the way back.
//!
//! The picture is one stream of pairs in ascending order, cut into pieces anywhere:
//! ```text
//!   piece  = "TSP1" · number u32 · flags u8 (1 = last) · crc32c u32 of all else · a part of the stream
//!   stream = ( key length varint · key · value length varint · value )* , then in the last piece: pair count u64
//! ```
//! Pieces that are lost, repeated, swapped, cut or damaged are refused.

use crate::key;
use crate::kv::KvView;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::encoding::{decode_varint, encode_varint};
use std::ops::ControlFlow;
use tidings_base::agreed::{SNAPSHOT_CHUNK, SnapshotChunks, StateFailure};

const TAG: &[u8; 4] = b"TSP1";
const HEAD: usize = 4 + 4 + 1 + 4;
const LAST: u8 = 1;
const BODY: usize = SNAPSHOT_CHUNK - HEAD;
/// How many bytes are read from the space at a time.
const READ_AHEAD: usize = 4 * BODY;

/// Cuts a frozen view into pieces.
pub(crate) struct PairWriter<V> {
    view: V,
    /// Where the next read begins; `None` after the last pair.
    from: Option<Bytes>,
    buffer: BytesMut,
    pairs: u64,
    number: u32,
    ended: bool,
}

impl<V: KvView + Send> PairWriter<V> {
    pub(crate) fn new(view: V) -> PairWriter<V> {
        PairWriter { view, from: Some(Bytes::new()), buffer: BytesMut::new(), pairs: 0, number: 0, ended: false }
    }

    /// Reads pairs until there is enough for a piece, or no more.
    fn fill(&mut self) -> Result<(), StateFailure> {
        let Some(from) = self.from.take() else { return Ok(()) };
        let (buffer, pairs, resume) = (&mut self.buffer, &mut self.pairs, &mut self.from);
        self.view.scan(&from, &[], &mut |at, stored| {
            if at == key::POSITION {
                return ControlFlow::Continue(());
            }
            if buffer.len() >= READ_AHEAD {
                *resume = Some(at);
                return ControlFlow::Break(());
            }
            encode_varint(at.len() as u64, buffer);
            buffer.put_slice(&at);
            encode_varint(stored.len() as u64, buffer);
            buffer.put_slice(&stored);
            *pairs += 1;
            ControlFlow::Continue(())
        })?;
        if self.from.is_none() {
            self.buffer.put_u64(self.pairs);
        }
        Ok(())
    }
}

impl<V: KvView + Send> SnapshotChunks for PairWriter<V> {
    fn next_chunk(&mut self) -> Result<Option<Bytes>, StateFailure> {
        if self.ended {
            return Ok(None);
        }
        while self.buffer.len() < BODY && self.from.is_some() {
            self.fill()?;
        }
        let body = self.buffer.split_to(self.buffer.len().min(BODY));
        self.ended = self.buffer.is_empty() && self.from.is_none();
        let flags = if self.ended { LAST } else { 0 };
        let mut piece = BytesMut::with_capacity(HEAD + body.len());
        piece.put_slice(TAG);
        piece.put_u32(self.number);
        piece.put_u8(flags);
        piece.put_u32(checksum(self.number, flags, &body));
        piece.put_slice(&body);
        self.number += 1;
        Ok(Some(piece.freeze()))
    }
}

/// Reads pairs out of pieces.
pub(crate) struct PairReader<'a> {
    chunks: &'a mut dyn SnapshotChunks,
    buffer: BytesMut,
    pairs: u64,
    number: u32,
    ended: bool,
    previous: Option<Bytes>,
}

impl<'a> PairReader<'a> {
    pub(crate) fn new(chunks: &'a mut dyn SnapshotChunks) -> PairReader<'a> {
        PairReader { chunks, buffer: BytesMut::new(), pairs: 0, number: 0, ended: false, previous: None }
    }

    /// The next pair, `None` after the last one, when everything was checked.
    pub(crate) fn next_pair(&mut self) -> Result<Option<(Bytes, Bytes)>, StateFailure> {
        loop {
            // The stream ends with the count: the last eight bytes of the last piece are never a pair.
            if self.ended && self.buffer.len() <= 8 {
                return self.finish().map(|()| None);
            }
            if let Some(pair) = self.parse()? {
                return Ok(Some(pair));
            }
            if self.ended {
                return Err(bad("a pair is cut short"));
            }
            self.take_piece()?;
        }
    }

    fn parse(&mut self) -> Result<Option<(Bytes, Bytes)>, StateFailure> {
        let reserved = if self.ended { 8 } else { 0 };
        let mut rest = &self.buffer[..self.buffer.len() - reserved.min(self.buffer.len())];
        let whole = rest.len();
        let Some(key_len) = length(&mut rest)? else { return Ok(None) };
        let key_at = whole - rest.len();
        if rest.len() < key_len {
            return Ok(None);
        }
        rest.advance(key_len);
        let Some(value_len) = length(&mut rest)? else { return Ok(None) };
        let value_at = whole - rest.len();
        if rest.len() < value_len {
            return Ok(None);
        }
        let record = self.buffer.split_to(value_at + value_len).freeze();
        // Copies, so that a small pair does not keep a whole piece in memory.
        let at = Bytes::copy_from_slice(&record[key_at..key_at + key_len]);
        let stored = Bytes::copy_from_slice(&record[value_at..]);
        if self.previous.as_ref().is_some_and(|previous| *previous >= at) || at == key::POSITION {
            return Err(bad("its pairs are out of order"));
        }
        self.previous = Some(at.clone());
        self.pairs += 1;
        Ok(Some((at, stored)))
    }

    fn take_piece(&mut self) -> Result<(), StateFailure> {
        let Some(mut piece) = self.chunks.next_chunk()? else { return Err(bad("its end is missing")) };
        if piece.len() < HEAD || piece.len() > SNAPSHOT_CHUNK {
            return Err(bad("a piece has an impossible length"));
        }
        if piece.split_to(4) != TAG[..] {
            return Err(bad("a piece has an unknown format tag"));
        }
        let (number, flags, sum) = (piece.get_u32(), piece.get_u8(), piece.get_u32());
        if sum != checksum(number, flags, &piece) {
            return Err(bad(format!("the checksum of piece {number} is wrong")));
        }
        if number != self.number {
            return Err(bad(format!("piece {number} came where piece {} belongs", self.number)));
        }
        self.number += 1;
        self.ended = flags == LAST;
        self.buffer.put_slice(&piece);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), StateFailure> {
        if self.buffer.len() != 8 || self.buffer.get_u64() != self.pairs {
            return Err(bad("its pairs do not add up"));
        }
        // Leave the reader so that another call ends here again.
        self.buffer.put_u64(self.pairs);
        Ok(())
    }
}

/// A length, `None` if more bytes are needed to know it.
fn length(rest: &mut &[u8]) -> Result<Option<usize>, StateFailure> {
    match rest.iter().take(10).position(|b| *b < 0x80) {
        None if rest.len() < 10 => Ok(None),
        None => Err(bad("a length is malformed")),
        Some(_) => {
            let length = decode_varint(rest).map_err(|_| bad("a length is malformed"))?;
            // Lengths are below 4 GiB in every engine; more is damage, and must not make us wait for it.
            if length > u64::from(u32::MAX) { Err(bad("a length is impossible")) } else { Ok(Some(length as usize)) }
        }
    }
}

fn checksum(number: u32, flags: u8, body: &[u8]) -> u32 {
    let head = crc32c::crc32c_append(crc32c::crc32c(&number.to_be_bytes()), &[flags]);
    crc32c::crc32c_append(head, body)
}

fn bad(what: impl AsRef<str>) -> StateFailure {
    StateFailure::new(format!("the snapshot of store and feed cannot be used: {}", what.as_ref()))
}
