//! A small file that is replaced as a whole or not at all: a vote, a note, a position.

use crate::format::{TEMPORARY_SUFFIX, u32_at};
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use tidings_base::disk::Disk;

const MAGIC: [u8; 8] = *b"TIDSMF\r\n";
const FORMAT: u32 = 1;
/// magic 8 · format 4 · tag 4 · length 4 · crc 4, of everything before it and the content.
const HEAD: usize = 24;

/// The largest content: it is read and written as a whole.
pub const MAX_SMALL_FILE: usize = 16 << 20;

/// One small file on a [`Disk`].
///
/// The new content is written beside the old one, synced, and renamed over it; after a crash the file has the old
/// content or the new one, whole. Once [`replace`](SmallFile::replace) has returned it has the new one. If `replace`
/// fails it may have either.
#[derive(Clone)]
pub struct SmallFile {
    disk: Arc<dyn Disk>,
    name: String,
    tag: u32,
}

/// Why a small file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SmallFileError {
    /// It is not what was written.
    #[error("{file} is damaged: {what}; {}", crate::scan::HINT_DAMAGE)]
    Damaged {
        /// The file.
        file: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// It is of another kind or of a newer format than the caller knows.
    #[error(
        "{file} is of kind {kind}, format {format}, which this program does not know; run the version that wrote it"
    )]
    Unknown {
        /// The file.
        file: String,
        /// The caller's tag in it.
        kind: u32,
        /// The format of the small file itself.
        format: u32,
    },
    /// The disk failed.
    #[error("{file} cannot be read: {source}")]
    Disk {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
}

impl SmallFile {
    /// The file of this name; `tag` says what it holds and in which format, and is checked when it is read.
    pub fn new(disk: Arc<dyn Disk>, name: impl Into<String>, tag: u32) -> SmallFile {
        SmallFile { disk, name: name.into(), tag }
    }

    /// Its content, `None` if there is no such file.
    pub fn read(&self) -> Result<Option<Bytes>, SmallFileError> {
        let bytes = match self.read_bytes() {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(SmallFileError::Disk { file: self.name.clone(), source }),
        };
        let damaged = |what| Err(SmallFileError::Damaged { file: self.name.clone(), what });
        if bytes.len() < HEAD {
            return damaged("it is too short");
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..HEAD - 4]), &bytes[HEAD..]);
        if crc != u32_at(&bytes, 20) {
            return damaged("its checksum does not match");
        }
        if bytes[..8] != MAGIC || u32_at(&bytes, 16) as usize != bytes.len() - HEAD {
            return damaged("it is a file of another sort");
        }
        let (format, kind) = (u32_at(&bytes, 8), u32_at(&bytes, 12));
        if format != FORMAT || kind != self.tag {
            return Err(SmallFileError::Unknown { file: self.name.clone(), kind, format });
        }
        Ok(Some(Bytes::from(bytes).slice(HEAD..)))
    }

    fn read_bytes(&self) -> io::Result<Vec<u8>> {
        let file = self.disk.open(&self.name)?;
        let len = file.len()?.min((MAX_SMALL_FILE + HEAD) as u64 + 1);
        let mut bytes = vec![0; len as usize];
        file.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Replaces its content, durably.
    pub fn replace(&self, content: &[u8]) -> io::Result<()> {
        if content.len() > MAX_SMALL_FILE {
            let what = format!("{}: {} bytes are too many for a small file", self.name, content.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut bytes = Vec::with_capacity(HEAD + content.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&self.tag.to_le_bytes());
        bytes.extend_from_slice(&(content.len() as u32).to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes), content);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(content);

        let temporary = self.name.clone() + TEMPORARY_SUFFIX;
        match self.disk.remove(&temporary) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        // A new file each time: one whose sync failed is never used again.
        let mut file = self.disk.create(&temporary)?;
        file.write_at(0, &bytes)?;
        file.sync()?;
        self.disk.rename(&temporary, &self.name)?;
        self.disk.sync_dir()
    }

    /// Removes it, durably; does nothing if there is none.
    pub fn remove(&self) -> io::Result<()> {
        match self.disk.remove(&self.name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
            Ok(()) => self.disk.sync_dir(),
        }
    }
}
