//! The bytes of a segment: one header, then records, then zeroes up to a capacity fixed when the file was made.
//!
//! ```text
//! segment  magic 8 · format 4 · capacity 4 · log id 8 · sequence 8 · first 8 · next 8 · salt 8 · prev_end 4 · crc 4
//!          zeroes up to HEADER_SPACE: the header shares no sector with records, so no append can tear it
//! record   head crc 4 · body crc 4 · length 4 · chain 4 · promise 4 · kind 1 · format 1 · zero 2 · index 8
//!          payload, zeroes up to a multiple of 8
//! ```
//! All numbers are little-endian, all checksums CRC32C. The checksum of a record's head also covers the segment it
//! stands in (the checksum of the segment's header) and its offset: bytes that look like a record but were written
//! elsewhere, or were put into a payload by somebody, are not one.
//! - `chain` is the head checksum of the record before (of the segment's header, for the first).
//! - `promise`: everything in this segment below this offset had been synced before this record was written.
//!   Recovery tells a torn tail from damage by it.

/// The format that this code writes, and the newest it reads.
pub(crate) const FORMAT: u32 = 1;
/// The first bytes of every segment; the line end shows a transfer that mangled it.
pub(crate) const MAGIC: [u8; 8] = *b"TIDLOG\r\n";
/// The bytes of a segment's header.
pub(crate) const HEADER_LEN: usize = 64;
/// Where the first record of a segment stands.
pub(crate) const HEADER_SPACE: u32 = 4096;
/// The bytes of a record's head.
pub(crate) const RECORD_HEAD: u32 = 32;
/// Records begin at multiples of this.
pub(crate) const ALIGN: u32 = 8;

/// The largest payload of one record: far above any command, far below the offsets of a segment.
pub const MAX_PAYLOAD: usize = 64 << 20;

const SEGMENT_SUFFIX: &str = ".seg";
/// What a file is called until it is complete.
pub(crate) const TEMPORARY_SUFFIX: &str = ".tmp";

/// The name of a segment's file.
pub(crate) fn segment_name(sequence: u64) -> String {
    format!("{sequence:020}{SEGMENT_SUFFIX}")
}

/// The sequence number in a segment's file name; `None` for other files.
pub(crate) fn segment_sequence(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SEGMENT_SUFFIX)?;
    (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// Whether a file is a segment that was not completed.
pub(crate) fn is_unfinished_segment(name: &str) -> bool {
    name.strip_suffix(TEMPORARY_SUFFIX).is_some_and(|rest| segment_sequence(rest).is_some())
}

/// What a segment says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// The length of the file, for good.
    pub capacity: u32,
    /// Which log it belongs to.
    pub log_id: u64,
    /// Its place among the segments.
    pub sequence: u64,
    /// The first index of the log when the segment was begun.
    pub first: u64,
    /// The index that the next record was to have when the segment was begun.
    pub next: u64,
    /// Makes the checksums of this log unpredictable to those who choose payloads.
    pub salt: u64,
    /// Where the segment before it ended, synced; 0 when there was none.
    pub prev_end: u32,
}

/// Why bytes are not a segment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadHeader {
    /// It does not begin as a segment does.
    Magic,
    /// Its checksum does not match.
    Checksum,
    /// It is of a format this code does not know.
    Format(u32),
}

impl SegmentHeader {
    /// The header's bytes and their checksum, which seeds the checksums of the records.
    pub fn encode(&self) -> ([u8; HEADER_LEN], u32) {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.capacity.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.log_id.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.next.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.salt.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.prev_end.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        (bytes, crc)
    }

    /// Reads a header back, with its checksum.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<(SegmentHeader, u32), BadHeader> {
        // The checksum first: a flipped bit must not pass for a newer format. Its place is the same in all formats.
        let crc = u32_at(bytes, 60);
        if crc32c::crc32c(&bytes[..60]) != crc {
            return Err(if bytes[0..8] == MAGIC { BadHeader::Checksum } else { BadHeader::Magic });
        }
        if bytes[0..8] != MAGIC {
            return Err(BadHeader::Magic);
        }
        if u32_at(bytes, 8) != FORMAT {
            return Err(BadHeader::Format(u32_at(bytes, 8)));
        }
        let header = SegmentHeader {
            capacity: u32_at(bytes, 12),
            log_id: u64_at(bytes, 16),
            sequence: u64_at(bytes, 24),
            first: u64_at(bytes, 32),
            next: u64_at(bytes, 40),
            salt: u64_at(bytes, 48),
            prev_end: u32_at(bytes, 56),
        };
        Ok((header, crc))
    }
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A payload at `index`.
    Entry = 1,
    /// Everything from `index` on is gone.
    Truncate = 2,
    /// Everything before `index` is gone.
    Purge = 3,
    /// Everything is gone; the log goes on at `index`.
    Reset = 4,
    /// Nothing but a promise; the next record is written over it.
    Marker = 5,
    /// The segment is complete and the one after it is there.
    Seal = 6,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        [Kind::Entry, Kind::Truncate, Kind::Purge, Kind::Reset, Kind::Marker, Kind::Seal]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHead {
    /// What it is.
    pub kind: Kind,
    /// The index it concerns.
    pub index: u64,
    /// The bytes of its payload.
    pub length: u32,
    /// The head checksum of the record before.
    pub chain: u32,
    /// Below this offset everything had been synced before this was written.
    pub promise: u32,
    /// The checksum of payload and padding.
    pub body_crc: u32,
    /// Its own checksum.
    pub crc: u32,
}

/// The bytes that a record with this payload takes in a segment.
pub(crate) fn record_size(payload: usize) -> u64 {
    u64::from(RECORD_HEAD) + (payload as u64).next_multiple_of(u64::from(ALIGN))
}

impl RecordHead {
    /// Where the record after this one begins, given where this one does.
    pub fn end(&self, offset: u32) -> u64 {
        u64::from(offset) + record_size(self.length as usize)
    }

    /// Reads the head at `offset` of a segment; `None` if these bytes are not a head that was written there.
    pub fn decode(bytes: &[u8], seed: u32, offset: u32) -> Option<RecordHead> {
        let bytes: &[u8; RECORD_HEAD as usize] = bytes.get(..RECORD_HEAD as usize)?.try_into().ok()?;
        let kind = Kind::from_byte(bytes[20])?;
        if u32::from(bytes[21]) != FORMAT || bytes[22] != 0 || bytes[23] != 0 {
            return None;
        }
        let crc = u32_at(bytes, 0);
        if head_crc(bytes, seed, offset) != crc {
            return None;
        }
        Some(RecordHead {
            kind,
            index: u64_at(bytes, 24),
            length: u32_at(bytes, 8),
            chain: u32_at(bytes, 12),
            promise: u32_at(bytes, 16),
            body_crc: u32_at(bytes, 4),
            crc,
        })
    }
}

/// What is the same for all records of one write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoder {
    /// The checksum of the segment's header.
    pub seed: u32,
    /// Where the next record goes.
    pub offset: u32,
    /// The head checksum of the record before it.
    pub chain: u32,
    /// What had been synced before this write.
    pub promise: u32,
}

impl Encoder {
    /// Adds one record to `out` and moves on.
    pub fn put(&mut self, out: &mut Vec<u8>, kind: Kind, index: u64, payload: &[u8]) {
        let start = out.len();
        let body = start + RECORD_HEAD as usize;
        out.resize(body, 0);
        out.extend_from_slice(payload);
        out.resize(body + payload.len().next_multiple_of(ALIGN as usize), 0);
        let body_crc = crc32c::crc32c(&out[body..]);
        let size = out.len() - start;
        let head: &mut [u8] = &mut out[start..body];
        head[4..8].copy_from_slice(&body_crc.to_le_bytes());
        head[8..12].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        head[12..16].copy_from_slice(&self.chain.to_le_bytes());
        head[16..20].copy_from_slice(&self.promise.to_le_bytes());
        head[20] = kind as u8;
        head[21] = FORMAT as u8;
        head[24..32].copy_from_slice(&index.to_le_bytes());
        let crc = head_crc(head, self.seed, self.offset);
        head[0..4].copy_from_slice(&crc.to_le_bytes());
        self.chain = crc;
        self.offset += size as u32;
    }
}

fn head_crc(head: &[u8], seed: u32, offset: u32) -> u32 {
    let mut covered = [0; RECORD_HEAD as usize];
    covered[..4].copy_from_slice(&offset.to_le_bytes());
    covered[4..].copy_from_slice(&head[4..]);
    crc32c::crc32c_append(seed, &covered)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader { capacity: 9000, log_id: 1, sequence: 7, first: 3, next: 12, salt: 99, prev_end: 4200 }
    }

    #[test]
    fn names_are_twenty_digits_and_nothing_else() {
        assert_eq!(segment_name(1), "00000000000000000001.seg");
        assert_eq!(segment_sequence("00000000000000000042.seg"), Some(42));
        for other in ["42.seg", "0000000000000000004x.seg", "00000000000000000042.seg.tmp", "99999999999999999999.seg"]
        {
            assert_eq!(segment_sequence(other), None, "{other}");
        }
        assert!(is_unfinished_segment("00000000000000000042.seg.tmp") && !is_unfinished_segment("vote.tmp"));
    }

    #[test]
    fn the_bytes_of_format_1_are_pinned() {
        let (bytes, crc) = header().encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok((header(), crc)));
        let mut out = Vec::new();
        let mut encoder = Encoder { seed: crc, offset: 4096, chain: crc, promise: 4096 };
        encoder.put(&mut out, Kind::Entry, 12, b"tidings");
        // A stand-in for all the bytes: what was written once must be readable for ever.
        assert_eq!((crc, crc32c::crc32c(&out)), (3566561250, 4130532974));
        assert_eq!((out.len(), encoder.offset), (40, 4136));
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let (bytes, _) = header().encode();
        for bit in 0..HEADER_LEN * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_record_counts_only_where_it_was_written() {
        let mut out = Vec::new();
        Encoder { seed: 5, offset: 4096, chain: 1, promise: 4096 }.put(&mut out, Kind::Entry, 12, b"x");
        assert!(RecordHead::decode(&out, 5, 4096).is_some());
        assert!(RecordHead::decode(&out, 5, 4104).is_none());
        assert!(RecordHead::decode(&out, 6, 4096).is_none());
    }
}
