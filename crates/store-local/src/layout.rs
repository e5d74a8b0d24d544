//! The files around the engine: `FORMAT`, `CURRENT`, generations.

use crate::error::OpenError;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The format this program writes, and the newest it reads. 2: tombstones may be marked.
pub const FORMAT_VERSION: u32 = 2;

const FORMAT: &str = "FORMAT";
const FORMAT_NAME: &str = "tidings-store";
const CURRENT: &str = "CURRENT";
const GENERATION: &str = "generation-";

/// What lies beside the generations.
pub(crate) const SMALL_FILES: [&str; 2] = [FORMAT, CURRENT];

/// What `CURRENT` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Current {
    /// The generation that holds the state.
    pub(crate) generation: u64,
    /// The state was durable up to this entry; 0 = never, so that the log still has everything.
    pub(crate) flushed: u64,
}

/// Makes the directory ours, or checks that it is, and says what is current.
pub(crate) fn prepare(dir: &Path) -> Result<Current, OpenError> {
    fs::create_dir_all(dir).map_err(OpenError::io(dir))?;
    let found = check_format(dir)?;
    if let (None, Some(stray)) = (found, first_stray(dir)?) {
        let what = format!("it has no FORMAT file, but holds {stray:?}");
        return Err(OpenError::Foreign { path: dir.to_owned(), what });
    }
    // What an earlier format holds is read as it is; what is written from now on it does not know.
    if found != Some(FORMAT_VERSION) {
        let text = format!("{FORMAT_NAME} {FORMAT_VERSION}\n");
        replace_file(dir, FORMAT, text.as_bytes()).map_err(OpenError::io(&dir.join(FORMAT)))?;
    }
    match read_current(dir)? {
        Some(current) => Ok(current),
        None if generations(dir)?.is_empty() => {
            let current = Current { generation: 1, flushed: 0 };
            write_current(dir, current).map_err(OpenError::io(&dir.join(CURRENT)))?;
            Ok(current)
        }
        None => Err(OpenError::damaged(&dir.join(CURRENT), "it is missing, but generations are there")),
    }
}

/// What is current in a directory that must be ours already.
pub(crate) fn inspect(dir: &Path) -> Result<Current, OpenError> {
    if check_format(dir)?.is_none() {
        return Err(OpenError::Foreign { path: dir.to_owned(), what: "it has no FORMAT file".to_owned() });
    }
    read_current(dir)?.ok_or_else(|| OpenError::damaged(&dir.join(CURRENT), "it is missing"))
}

/// The directory of a generation.
pub(crate) fn generation_dir(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("{GENERATION}{generation}"))
}

/// Replaces `CURRENT` in one durable step.
pub(crate) fn write_current(dir: &Path, current: Current) -> io::Result<()> {
    let body = format!("generation {}\nflushed {}\n", current.generation, current.flushed);
    let text = format!("{body}crc32c {:08x}\n", crc32c::crc32c(body.as_bytes()));
    replace_file(dir, CURRENT, text.as_bytes())
}

/// Removes what a crash left behind: generations that are not current. The caller holds the current one's lock.
pub(crate) fn remove_others(dir: &Path, current: u64) -> Result<(), OpenError> {
    for (generation, path) in generations(dir)? {
        if generation != current {
            fs::remove_dir_all(&path).map_err(OpenError::io(&path))?;
        }
    }
    Ok(())
}

/// Holds the engine's own lock, so that nobody opens what is being read. Where there is none yet, there is no engine.
pub(crate) fn hold(generation: &Path) -> Result<Option<File>, OpenError> {
    let path = generation.join("lock");
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(OpenError::Io { path, error }),
    };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked { path: generation.to_owned() }),
        Err(TryLockError::Error(error)) => Err(OpenError::Io { path, error }),
    }
}

/// What a directory holds; nothing if it is not there.
pub(crate) fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The names of a generation's journals.
pub(crate) fn journals(generation: &Path) -> Result<String, OpenError> {
    let mut found: Vec<String> = entries(generation)
        .map_err(OpenError::io(generation))?
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "jnl"))
        .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .collect();
    found.sort();
    Ok(if found.is_empty() { "none is left".to_owned() } else { found.join(", ") })
}

/// What the `FORMAT` file says, if there is one; it must be one of ours.
fn check_format(dir: &Path) -> Result<Option<u32>, OpenError> {
    let path = dir.join(FORMAT);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(OpenError::Io { path, error }),
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    let found = text.strip_prefix(FORMAT_NAME).and_then(|rest| rest.trim().parse::<u32>().ok());
    match found {
        Some(found) if found > FORMAT_VERSION => Err(OpenError::Newer { path, found, known: FORMAT_VERSION }),
        Some(1..) => Ok(found),
        _ => {
            let what = format!("it says {:?}", text.chars().take(40).collect::<String>());
            Err(OpenError::Foreign { path, what })
        }
    }
}

fn read_current(dir: &Path) -> Result<Option<Current>, OpenError> {
    let path = dir.join(CURRENT);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(OpenError::Io { path, error }),
    };
    let parse = || {
        let text = std::str::from_utf8(&text).ok()?;
        let (body, sum) = text.split_at(text.find("crc32c ")?);
        let sum = u32::from_str_radix(sum.strip_prefix("crc32c ")?.strip_suffix('\n')?, 16).ok()?;
        let mut lines = body.lines();
        let generation = lines.next()?.strip_prefix("generation ")?.parse().ok()?;
        let flushed = lines.next()?.strip_prefix("flushed ")?.parse().ok()?;
        (sum == crc32c::crc32c(body.as_bytes())).then_some(Current { generation, flushed })
    };
    parse().map(Some).ok_or_else(|| OpenError::damaged(&path, "its content does not match its checksum"))
}

fn generations(dir: &Path) -> Result<Vec<(u64, PathBuf)>, OpenError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(OpenError::io(dir))? {
        let entry = entry.map_err(OpenError::io(dir))?;
        let name = entry.file_name();
        if let Some(generation) = name.to_str().and_then(|n| n.strip_prefix(GENERATION)).and_then(|n| n.parse().ok()) {
            found.push((generation, entry.path()));
        }
    }
    Ok(found)
}

/// Something in the directory that a crash of ours would not have left there.
fn first_stray(dir: &Path) -> Result<Option<String>, OpenError> {
    for entry in fs::read_dir(dir).map_err(OpenError::io(dir))? {
        let name = entry.map_err(OpenError::io(dir))?.file_name().to_string_lossy().into_owned();
        if name != temporary(FORMAT) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn temporary(name: &str) -> String {
    format!("{name}.new")
}

/// Writes a file beside, makes it durable, and moves it into place.
fn replace_file(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let beside = dir.join(temporary(name));
    let mut file = File::create(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&beside, dir.join(name))?;
    File::open(dir)?.sync_all()
}
