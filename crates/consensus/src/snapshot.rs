//! Snapshots as files: pieces with a checksum each, a checksum of the whole at the end.
//!
//! ```text
//!   "TIDSNAP1" | length of position, position (RaftPosition), CRC32C of both
//!   length, CRC32C, data          for each piece, 1 … SNAPSHOT_CHUNK bytes
//!   0, CRC32C of all data, number of pieces, CRC32C of these three
//! ```
//! Numbers are little-endian. A file is written under a temporary name, synced, and renamed; what has a final name is
//! whole, or the disk lost it and opening says so.

use crate::codec::Applied;
use crate::error::StartError;
use crate::types::{LogId, index_or_zero};
use bytes::Bytes;
use prost::Message;
use std::io;
use std::sync::Arc;
use tidings_base::agreed::{SNAPSHOT_CHUNK, SnapshotChunks, StateFailure};
use tidings_base::disk::{Disk, DiskFile};
use tidings_wire::v1;

const MAGIC: &[u8; 8] = b"TIDSNAP1";
const PREFIX: &str = "snapshot-";
const TEMPORARY: &str = ".tmp";

/// The most bytes a position may have: room for thousands of members, far from what could exhaust memory.
const MAX_POSITION: usize = 1 << 20;

/// The snapshot files of one replica. A file that is open stays readable when its name is gone.
#[derive(Clone)]
pub(crate) struct SnapshotFiles {
    disk: Arc<dyn Disk>,
}

/// A whole snapshot on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredSnapshot {
    pub name: String,
    pub applied: Applied,
}

impl SnapshotFiles {
    /// Removes what a crash left unfinished and finds the latest whole snapshot.
    pub fn open(disk: Arc<dyn Disk>) -> Result<(SnapshotFiles, Option<StoredSnapshot>), StartError> {
        let files = SnapshotFiles { disk };
        let list = files.disk.list().map_err(|e| StartError::disk("the directory", e))?;
        let mut latest: Option<StoredSnapshot> = None;
        for name in list.into_iter().filter(|name| name.starts_with(PREFIX)) {
            if name.ends_with(TEMPORARY) {
                files.disk.remove(&name).map_err(|e| StartError::disk(&name, e))?;
                continue;
            }
            let applied =
                files.read(&name).map_err(|e| StartError::Damaged { file: name.clone(), why: e.what })?.applied;
            let older = match &latest {
                Some(found) if found.applied.last >= applied.last => Some(name),
                _ => latest.replace(StoredSnapshot { name, applied }).map(|found| found.name),
            };
            if let Some(older) = older {
                files.disk.remove(&older).map_err(|e| StartError::disk(&older, e))?;
            }
        }
        Ok((files, latest))
    }

    /// Begins a file under a temporary name; `label` keeps two that are written at once apart.
    pub fn write(&self, label: &str, applied: &Applied) -> io::Result<SnapshotWriter> {
        let name = format!("{PREFIX}{label}{TEMPORARY}");
        if self.disk.list()?.contains(&name) {
            self.disk.remove(&name)?;
        }
        let mut file = self.disk.create(&name)?;
        let position = applied.wire().encode_to_vec();
        let mut head = MAGIC.to_vec();
        head.extend_from_slice(&(position.len() as u32).to_le_bytes());
        head.extend_from_slice(&position);
        head.extend_from_slice(&crc32c::crc32c(&head[MAGIC.len()..]).to_le_bytes());
        file.write_at(0, &head)?;
        Ok(SnapshotWriter { name, file, offset: head.len() as u64, checksum: 0, pieces: 0, applied: applied.clone() })
    }

    /// Reads a file from its beginning.
    pub fn read(&self, name: &str) -> Result<SnapshotReader, StateFailure> {
        let failure = |e: io::Error| StateFailure::new(format!("{name}: {e}"));
        let file = self.disk.open(name).map_err(failure)?;
        let mut fixed = [0; 12];
        file.read_at(0, &mut fixed).map_err(failure)?;
        if &fixed[..8] != MAGIC {
            return Err(StateFailure::new(format!("{name} is no snapshot of a version that this program knows")));
        }
        let length = u32_at(&fixed, 8) as usize;
        if length > MAX_POSITION {
            return Err(StateFailure::new(format!("{name} is damaged in its head")));
        }
        let mut rest = vec![0; length + 4];
        file.read_at(12, &mut rest).map_err(failure)?;
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&fixed[8..]), &rest[..length]);
        if checksum != u32_at(&rest, length) {
            return Err(StateFailure::new(format!("{name} is damaged in its head")));
        }
        let applied = v1::RaftPosition::decode(&rest[..length])
            .map_err(|e| e.to_string())
            .and_then(|position| Applied::from_wire(&position).map_err(|e| e.to_string()))
            .map_err(|e| StateFailure::new(format!("{name}: {e}")))?;
        let offset = 12 + rest.len() as u64;
        Ok(SnapshotReader { name: name.into(), file, offset, checksum: 0, pieces: 0, done: false, applied })
    }

    /// Gives a finished file its final name and removes `before`.
    pub fn adopt(&self, temporary: &str, applied: &Applied, before: Option<&str>) -> io::Result<StoredSnapshot> {
        let term = applied.last.as_ref().map_or(0, crate::types::term_of);
        let name = format!("{PREFIX}{:020}-{term}", index_or_zero(applied.last.as_ref()).0);
        self.disk.rename(temporary, &name)?;
        self.disk.sync_dir()?;
        if let Some(before) = before
            && before != name
        {
            self.disk.remove(before)?;
        }
        Ok(StoredSnapshot { name, applied: applied.clone() })
    }

    /// Removes a file that is of no use any more.
    pub fn discard(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
}

/// Reads all snapshot files through and changes nothing; says how many there are, and how far the latest goes.
pub(crate) fn check(disk: Arc<dyn Disk>) -> Result<(usize, Option<LogId>), StartError> {
    let files = SnapshotFiles { disk };
    let list = files.disk.list().map_err(|e| StartError::disk("the directory", e))?;
    let whole = list.into_iter().filter(|name| name.starts_with(PREFIX) && !name.ends_with(TEMPORARY));
    let (mut read, mut latest) = (0, None);
    for name in whole {
        let through = files.read(&name).and_then(|mut reader| {
            while reader.next_chunk()?.is_some() {}
            Ok(reader.applied.last)
        });
        latest = latest.max(through.map_err(|e| StartError::Damaged { file: name, why: e.what })?);
        read += 1;
    }
    Ok((read, latest))
}

/// A snapshot being written.
pub(crate) struct SnapshotWriter {
    pub name: String,
    file: Box<dyn DiskFile>,
    offset: u64,
    checksum: u32,
    pieces: u64,
    pub applied: Applied,
}

impl SnapshotWriter {
    pub fn piece(&mut self, data: &[u8]) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        if data.len() > SNAPSHOT_CHUNK {
            return Err(io::Error::other("a piece of a snapshot is too large"));
        }
        let mut bytes = Vec::with_capacity(8 + data.len());
        bytes.extend_from_slice(&(data.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(data).to_le_bytes());
        bytes.extend_from_slice(data);
        self.file.write_at(self.offset, &bytes)?;
        self.offset += bytes.len() as u64;
        self.checksum = crc32c::crc32c_append(self.checksum, data);
        self.pieces += 1;
        Ok(())
    }

    /// The checksum of all data so far.
    pub fn checksum(&self) -> u32 {
        self.checksum
    }

    /// Writes the end and syncs; returns the temporary name.
    pub fn finish(mut self) -> io::Result<(String, Applied)> {
        let mut end = [0; 20];
        end[4..8].copy_from_slice(&self.checksum.to_le_bytes());
        end[8..16].copy_from_slice(&self.pieces.to_le_bytes());
        let checksum = crc32c::crc32c(&end[..16]);
        end[16..].copy_from_slice(&checksum.to_le_bytes());
        self.file.write_at(self.offset, &end)?;
        self.file.sync()?;
        Ok((self.name, self.applied))
    }
}

/// A snapshot being read, piece by piece, each checked.
pub(crate) struct SnapshotReader {
    name: String,
    file: Box<dyn DiskFile>,
    offset: u64,
    checksum: u32,
    pieces: u64,
    done: bool,
    pub applied: Applied,
}

impl SnapshotReader {
    fn damaged<T>(&self) -> Result<T, StateFailure> {
        Err(StateFailure::new(format!("{} is damaged at byte {}", self.name, self.offset)))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StateFailure> {
        self.file.read_at(offset, buf).map_err(|e| StateFailure::new(format!("{} at byte {offset}: {e}", self.name)))
    }
}

impl SnapshotChunks for SnapshotReader {
    fn next_chunk(&mut self) -> Result<Option<Bytes>, StateFailure> {
        if self.done {
            return Ok(None);
        }
        let mut head = [0; 8];
        self.read_at(self.offset, &mut head)?;
        let (length, checksum) = (u32_at(&head, 0) as usize, u32_at(&head, 4));
        if length == 0 {
            let mut end = [0; 20];
            self.read_at(self.offset, &mut end)?;
            let pieces = u64::from_le_bytes(end[8..16].try_into().expect("eight bytes"));
            let whole = crc32c::crc32c(&end[..16]) == u32_at(&end, 16);
            if !whole || checksum != self.checksum || pieces != self.pieces {
                return self.damaged();
            }
            self.done = true;
            return Ok(None);
        }
        if length > SNAPSHOT_CHUNK {
            return self.damaged();
        }
        let mut data = vec![0; length];
        self.read_at(self.offset + 8, &mut data)?;
        if crc32c::crc32c(&data) != checksum {
            return self.damaged();
        }
        self.offset += 8 + length as u64;
        self.checksum = crc32c::crc32c_append(self.checksum, &data);
        self.pieces += 1;
        Ok(Some(data.into()))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
