//! The segment that is written to: how it is made, added to, and settled after a crash.

use crate::format::{Encoder, HEADER_SPACE, Kind, RECORD_HEAD, SegmentHeader, TEMPORARY_SUFFIX, segment_name};
use crate::scan::Tail;
use crate::view::{SegmentReader, View};
use std::io;
use tidings_base::disk::{Disk, DiskFile};

/// The segment that is written to.
pub(crate) struct Active {
    pub sequence: u64,
    pub file: Box<dyn DiskFile>,
    pub seed: u32,
    pub capacity: u32,
    /// Where the next record goes.
    pub end: u32,
    /// What is synced.
    pub synced: u32,
    pub chain: u32,
    /// Up to here zeroes were written already; behind the end everything reads as zero in any case.
    pub zeroed: u32,
}

impl Active {
    pub fn put(&mut self, kind: Kind, index: u64) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(RECORD_HEAD as usize);
        let mut encoder = Encoder { seed: self.seed, offset: self.end, chain: self.chain, promise: self.synced };
        encoder.put(&mut bytes, kind, index, &[]);
        self.file.write_at(u64::from(self.end), &bytes)
    }

    /// How far to write zeroes along with records that end at `end`; 0 if enough were written before.
    pub fn zero_ahead(&self, end: u32, step: u32) -> u32 {
        if step == 0 || end + RECORD_HEAD <= self.zeroed {
            return 0;
        }
        end.saturating_add(step).min(self.capacity)
    }

    /// Leaves the promise that everything so far is synced, for recovery to find; the next write goes over it.
    pub fn mark(&mut self) -> io::Result<()> {
        self.put(Kind::Marker, 0)
    }
}

/// Makes the end of the last segment what the scan said it is, durably.
///
/// What no promise covers is written once more: if an fsync failed before, the system may hold those bytes in memory
/// as clean though the disk never got them, and only a new write makes the next fsync mean something. What stands
/// behind the end is wiped: a record that outlived a lost one before it must not come back when new records have
/// grown up to it.
pub(crate) fn settle(active: &mut Active, tail: &Tail) -> io::Result<()> {
    if tail.promise < tail.end {
        let mut bytes = vec![0; (tail.end - tail.promise) as usize];
        active.file.read_at(u64::from(tail.promise), &mut bytes)?;
        active.file.write_at(u64::from(tail.promise), &bytes)?;
    }
    if let Some((from, to)) = tail.dirt {
        active.file.write_at(u64::from(from), &vec![0; (to.min(active.capacity) - from) as usize])?;
    }
    active.file.sync()?;
    active.mark()
}

/// Whether a segment that could not be made may be found by the next open.
pub(crate) enum InPlace {
    No,
    Perhaps,
}

/// Why a segment was not made.
pub(crate) struct MakeError(pub io::Error, pub InPlace);

/// Makes a segment under another name, complete and durable, and only then puts it in its place: a segment that is
/// found has its header and its full length, whatever crashed.
pub(crate) fn make_segment(disk: &dyn Disk, header: &SegmentHeader, view: &View) -> Result<Active, MakeError> {
    let name = segment_name(header.sequence);
    let temporary = name.clone() + TEMPORARY_SUFFIX;
    let (bytes, seed) = header.encode();
    let prepare = || {
        match disk.remove(&temporary) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = disk.create(&temporary)?;
        file.set_len(u64::from(header.capacity))?;
        file.write_at(0, &bytes)?;
        file.sync()
    };
    prepare().map_err(|e| MakeError(e, InPlace::No))?;
    let place = || {
        disk.rename(&temporary, &name)?;
        disk.sync_dir()?;
        Ok((disk.open(&name)?, disk.open(&name)?))
    };
    let (file, for_readers) = place().map_err(|e| MakeError(e, InPlace::Perhaps))?;
    view.add_segment(header.sequence, SegmentReader::new(header.sequence, seed, header.capacity, for_readers));
    Ok(Active {
        sequence: header.sequence,
        file,
        seed,
        capacity: header.capacity,
        end: HEADER_SPACE,
        synced: HEADER_SPACE,
        chain: seed,
        zeroed: HEADER_SPACE,
    })
}
