//! The file system behind [`Disk`], a slow disk for measurements, and the lock on a data directory.

use crate::format::TEMPORARY_SUFFIX;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::disk::{Disk, DiskFile};

/// One directory of the file system.
#[derive(Clone, Debug)]
pub struct RealDisk {
    path: PathBuf,
}

impl RealDisk {
    /// Opens the directory, making it (durably) if it is not there.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<RealDisk> {
        let path = path.into();
        make_directory(&path).map_err(|e| naming(&path, &e))?;
        Ok(RealDisk { path })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str) -> io::Result<PathBuf> {
        let plain = !name.is_empty() && name != "." && name != ".." && !name.contains('/');
        if !plain {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is not a plain file name")));
        }
        Ok(self.path.join(name))
    }

    fn open_with(&self, name: &str, create: bool) -> io::Result<Box<dyn DiskFile>> {
        let path = self.file(name)?;
        let file =
            OpenOptions::new().read(true).write(true).create_new(create).open(&path).map_err(|e| naming(&path, &e))?;
        Ok(Box::new(RealFile { file, path }))
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        make_directory(parent)?;
    }
    match std::fs::create_dir(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// The same error with the file's name in it.
fn naming(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Disk for RealDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(|e| naming(&self.path, &e))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                // A name that is not UTF-8 is none of ours.
                names.extend(entry.file_name().into_string().ok());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.open_with(name, false)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.open_with(name, true)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.file(from)?, self.file(to)?);
        std::fs::rename(&from, &to).map_err(|e| naming(&from, &e))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.file(name)?;
        std::fs::remove_file(&path).map_err(|e| naming(&path, &e))
    }

    fn sync_dir(&self) -> io::Result<()> {
        File::open(&self.path).and_then(|dir| dir.sync_all()).map_err(|e| naming(&self.path, &e))
    }
}

struct RealFile {
    file: File,
    path: PathBuf,
}

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata().map_err(|e| naming(&self.path, &e))?.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset).map_err(|e| naming(&self.path, &e))
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset).map_err(|e| naming(&self.path, &e))
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        let now = DiskFile::len(self)?;
        let done = if len > now { reserve(&self.file, now, len) } else { self.file.set_len(len) };
        done.map_err(|e| naming(&self.path, &e))
    }

    fn sync(&mut self) -> io::Result<()> {
        // fdatasync: the data and the length, not the times.
        self.file.sync_data().map_err(|e| naming(&self.path, &e))
    }
}

/// Grows a file with its blocks reserved, so that a full disk shows now and not in the middle of a later write.
fn reserve(file: &File, now: u64, len: u64) -> io::Result<()> {
    use rustix::io::Errno;
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), now, len - now) {
        Ok(()) => Ok(()),
        // Not every file system can; then a full disk shows later, which the log survives too.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => file.set_len(len),
        Err(e) => Err(e.into()),
    }
}

/// A disk whose every sync takes longer: for measurements, never for use.
#[derive(Clone)]
pub struct SlowDisk {
    inner: Arc<dyn Disk>,
    delay: Duration,
}

impl SlowDisk {
    /// Makes each sync of a file of `inner` take `delay` more.
    pub fn new(inner: Arc<dyn Disk>, delay: Duration) -> SlowDisk {
        SlowDisk { inner, delay }
    }

    fn slow(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(SlowFile { inner: file, delay: self.delay })
    }
}

impl Disk for SlowDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.slow(self.inner.open(name)?))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.slow(self.inner.create(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.inner.sync_dir()
    }
}

struct SlowFile {
    inner: Box<dyn DiskFile>,
    delay: Duration,
}

impl DiskFile for SlowFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, bytes)
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    #[allow(clippy::disallowed_methods, reason = "waiting is what a slow disk is for")]
    fn sync(&mut self) -> io::Result<()> {
        std::thread::sleep(self.delay);
        self.inner.sync()
    }
}

/// The file in a data directory that its one process holds locked.
const LOCK_FILE: &str = "LOCK";

/// Holds a directory for this process until it is dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct DirLock {
    /// Closing it gives the lock back. The file stays, unless whoever holds it removes it: whoever locks one makes sure that
    /// it is still the directory's.
    _file: File,
}

/// How often a lock file may be removed from under one who locks it.
const REMOVED_TRIES: usize = 16;

/// Why a directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("{} is in use by {}; stop it first, or use another directory", path.display(), holder(*pid))]
    Held {
        /// The directory.
        path: PathBuf,
        /// The process that holds it, if it left its number.
        pid: Option<u32>,
    },
    /// The lock file could not be used.
    #[error("cannot lock {}: {source}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

impl DirLock {
    /// Locks the directory, which must exist.
    pub fn take(directory: &Path) -> Result<DirLock, LockError> {
        let path = directory.join(LOCK_FILE);
        let fail = |source| LockError::Io { path: path.clone(), source };
        for _ in 0..REMOVED_TRIES {
            let mut file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(fail)?;
            hold(directory, &mut file)?;
            // Its last holder may have removed it in between: then it keeps nobody out.
            if !is_at(&file, &path).map_err(fail)? {
                continue;
            }
            file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(fail)?;
            return Ok(DirLock { _file: file });
        }
        Err(LockError::Held { path: directory.to_owned(), pid: None })
    }

    /// Gives the lock back and removes its file, as if nobody had ever locked the directory.
    pub fn remove(self, directory: &Path) -> io::Result<()> {
        // While it is held: whoever waits for it finds that it is gone.
        std::fs::remove_file(directory.join(LOCK_FILE))
    }

    /// Locks the directory without writing to it, for one who only looks; `None` if nobody ever locked it, so that
    /// there is nothing to lock.
    pub fn take_to_look(directory: &Path) -> Result<Option<DirLock>, LockError> {
        let path = directory.join(LOCK_FILE);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(LockError::Io { path, source }),
        };
        hold(directory, &mut file)?;
        Ok(Some(DirLock { _file: file }))
    }
}

/// Whether the file is the one that is at the path now.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let held = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (held.dev(), held.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

fn hold(directory: &Path, file: &mut File) -> Result<(), LockError> {
    match rustix::fs::flock(&*file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            // The number only helps the reader of the message; without it the message says less.
            let _ = file.read_to_string(&mut text);
            Err(LockError::Held { path: directory.to_owned(), pid: text.trim().parse().ok().filter(is_alive) })
        }
        Err(e) => Err(LockError::Io { path: directory.join(LOCK_FILE), source: e.into() }),
    }
}

/// Whether there is such a process. Who only looks leaves no number, and that of an earlier holder would mislead.
fn is_alive(pid: &u32) -> bool {
    let pid = i32::try_from(*pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// Whether a file was being made when a process died: nothing refers to it.
pub fn is_temporary(name: &str) -> bool {
    name.ends_with(TEMPORARY_SUFFIX)
}
