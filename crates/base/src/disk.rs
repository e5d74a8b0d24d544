//! The disk beneath the agreed log, as small as it can be, so that the simulator can tear it.

use std::io;

/// One directory of flat files. Implementations: the real file system (`tidings-log`), the simulated disk.
///
/// What was written to a file survives a crash only after [`DiskFile::sync`]; that a file exists, was renamed or
/// removed survives only after [`Disk::sync_dir`].
pub trait Disk: Send + Sync {
    /// The names of all files, in order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens an existing file.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Creates a file; it must not exist.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Renames a file over another, atomically.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes creations, renames and removals durable.
    fn sync_dir(&self) -> io::Result<()>;
}

/// One open file.
pub trait DiskFile: Send {
    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether it has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads exactly `buf.len()` bytes from `offset`, or fails with `UnexpectedEof`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes all bytes at `offset`, growing the file as needed. On failure any part may have been written.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Cuts or grows the file (with zeroes).
    fn set_len(&mut self, len: u64) -> io::Result<()>;

    /// Makes everything written so far durable.
    fn sync(&mut self) -> io::Result<()>;
}
