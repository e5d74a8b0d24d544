//! A picture of the state in pieces, and the way back.
//!
//! ```text
//!   piece  = "TCS1" · number u32 · flags u8 (1 = last) · crc32c u32 of all else · a part of the stream
//!   stream = ( length varint · CellRecord )* , then in the last piece: count of records u64
//! ```
//! The picture is a cheap clone: pieces are made as they are asked for, while later commands are applied. Pieces that are
//! lost, repeated, swapped, cut or damaged are refused.

use super::Namespace;
use super::records::Cursor;
use crate::mutant::Mutant;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use tidings_base::agreed::{SNAPSHOT_CHUNK, SnapshotChunks, StateFailure};
use tidings_wire::v1;

/// The format and, in its last byte, the version: a later one is refused.
const TAG: &[u8; 4] = b"TCS1";
const HEAD: usize = 4 + 4 + 1 + 4;
const BODY: usize = SNAPSHOT_CHUNK - HEAD;
const LAST: u8 = 1;
/// No record is longer: a node with its contents, or a piece of a backup, as large as a command can be.
const MAX_RECORD: usize = 16 << 20;

/// Cuts a frozen state into pieces.
pub(super) struct Writer {
    state: Namespace,
    cursor: Cursor,
    buffer: BytesMut,
    records: u64,
    number: u32,
    ended: bool,
}

impl Writer {
    pub(super) fn new(state: Namespace) -> Writer {
        Writer { state, cursor: Cursor::Head, buffer: BytesMut::new(), records: 0, number: 0, ended: false }
    }

    /// Whether every record is in the buffer.
    fn fill(&mut self) -> bool {
        while self.buffer.len() < BODY {
            let Some(record) = self.state.next_record(&mut self.cursor) else { return true };
            let record = v1::CellRecord { record: Some(record) };
            self.buffer.put_slice(&record.encode_length_delimited_to_vec());
            self.records += 1;
        }
        false
    }
}

impl SnapshotChunks for Writer {
    fn next_chunk(&mut self) -> Result<Option<Bytes>, StateFailure> {
        if self.ended {
            return Ok(None);
        }
        // The count goes into the last piece whole.
        self.ended = self.fill() && self.buffer.len() + 8 <= BODY;
        let mut body = self.buffer.split_to(self.buffer.len().min(BODY - 8));
        if self.ended {
            body.put_u64(self.records);
        }
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

/// Reads a whole state out of pieces; nothing is kept of one that is damaged.
pub(super) fn read(chunks: &mut dyn SnapshotChunks, mutant: Option<Mutant>) -> Result<Namespace, StateFailure> {
    let mut state = Namespace::with_mutant(mutant);
    let (mut buffer, mut records, mut number) = (BytesMut::new(), 0, 0);
    let count = loop {
        let (body, last) = take_piece(chunks, number)?;
        number += 1;
        buffer.put_slice(&body);
        let count = match last {
            true if buffer.len() < 8 => return Err(bad("its count is missing")),
            true => Some(buffer.split_off(buffer.len() - 8).get_u64()),
            false => None,
        };
        while let Some(record) = take_record(&mut buffer)? {
            records += 1;
            let record = v1::CellRecord::decode(record).map_err(|_| bad("a record cannot be read"))?;
            let record = record.record.ok_or_else(|| bad("a record is of a later version"))?;
            state.load(record).map_err(bad)?;
        }
        if let Some(count) = count {
            break count;
        }
    };
    if !buffer.is_empty() || count != records {
        return Err(bad("its records do not add up"));
    }
    if chunks.next_chunk()?.is_some() {
        return Err(bad("something follows its end"));
    }
    state.index().map_err(bad)?;
    Ok(state)
}

fn take_piece(chunks: &mut dyn SnapshotChunks, expected: u32) -> Result<(Bytes, bool), StateFailure> {
    let Some(mut piece) = chunks.next_chunk()? else { return Err(bad("its end is missing")) };
    if piece.len() < HEAD || piece.len() > SNAPSHOT_CHUNK {
        return Err(bad("a piece has an impossible length"));
    }
    if piece.split_to(4) != TAG[..] {
        return Err(bad("a piece is of another format or a later version"));
    }
    let (number, flags, sum) = (piece.get_u32(), piece.get_u8(), piece.get_u32());
    if sum != checksum(number, flags, &piece) {
        return Err(bad(format!("the checksum of piece {expected} is wrong")));
    }
    if number != expected {
        return Err(bad(format!("piece {number} came where piece {expected} belongs")));
    }
    Ok((piece, flags == LAST))
}

/// The next record's bytes; `None` = more pieces are needed.
fn take_record(buffer: &mut BytesMut) -> Result<Option<Bytes>, StateFailure> {
    let length = match buffer.iter().take(10).position(|byte| *byte < 0x80) {
        None if buffer.len() < 10 => return Ok(None),
        None => return Err(bad("a length is malformed")),
        Some(at) => {
            let mut head = &buffer[..=at];
            let length = prost::encoding::decode_varint(&mut head).map_err(|_| bad("a length is malformed"))?;
            (at + 1, usize::try_from(length).unwrap_or(usize::MAX))
        }
    };
    if length.1 > MAX_RECORD {
        return Err(bad("a length is impossible"));
    }
    if buffer.len() < length.0 + length.1 {
        return Ok(None);
    }
    buffer.advance(length.0);
    // A copy, so that a small file does not keep a whole piece in memory.
    Ok(Some(Bytes::copy_from_slice(&buffer.split_to(length.1))))
}

fn checksum(number: u32, flags: u8, body: &[u8]) -> u32 {
    let head = crc32c::crc32c_append(crc32c::crc32c(&number.to_be_bytes()), &[flags]);
    crc32c::crc32c_append(head, body)
}

fn bad(what: impl AsRef<str>) -> StateFailure {
    StateFailure::new(format!("the snapshot of the cell cannot be used: {}", what.as_ref()))
}
