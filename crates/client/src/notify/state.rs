//! What a client keeps across restarts: its token.

use bytes::Bytes;
use std::ffi::OsString;
use std::fs::{self, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tidings_base::{Class, Error};
use tidings_notify::client::is_state;

/// The largest state that is read: anything larger is some other file.
const MAX_STATE: u64 = 64 << 10;

/// How often a file is looked at anew that whoever used it has just replaced.
const CLAIMS: usize = 8;

/// Where the state of a client is kept.
pub struct State {
    kept: Option<Bytes>,
    keeper: Keeper,
}

enum Keeper {
    None,
    File(Claimed),
    Callback(Box<dyn FnMut(Bytes) + Send>),
}

impl State {
    /// Nowhere: a restart is another client, and the servers forget this one an hour after it went.
    pub fn none() -> State {
        State { kept: None, keeper: Keeper::None }
    }

    /// In a file, which is replaced as a whole; its directory must be there and take new files. One client at a time may use
    /// it, since two would take the id from each other: another is refused until this one has ended
    /// ([`Listener::leave`](super::Listener::leave)).
    pub fn file(path: impl Into<PathBuf>) -> Result<State, Error> {
        let claimed = Claimed::take(path.into())?;
        let path = &claimed.path;
        // What will be written beside it can be written there: better known now than after a restart without a state.
        let beside = beside(path);
        create(&beside).and_then(|_| fs::remove_file(&beside)).map_err(|e| unusable(path, e))?;
        let mut kept = Vec::new();
        let read = (&claimed.file).take(MAX_STATE + 1).read_to_end(&mut kept).map_err(|e| unusable(path, e))?;
        if read as u64 > MAX_STATE {
            return Err(unusable(path, "it is too large for a client's state"));
        }
        // One that was claimed and never written is empty.
        let kept = (!kept.is_empty()).then(|| Bytes::from(kept));
        if kept.as_ref().is_some_and(|kept| !is_state(kept)) {
            return Err(unusable(path, "it has something else in it, which would be lost"));
        }
        Ok(State { kept, keeper: Keeper::File(claimed) })
    }

    /// Wherever the application likes: `kept` is what `write` was last given, if it was.
    pub fn callback(kept: Option<Bytes>, write: impl FnMut(Bytes) + Send + 'static) -> State {
        State { kept, keeper: Keeper::Callback(Box::new(write)) }
    }

    pub(super) fn is_kept(&self) -> bool {
        !matches!(self.keeper, Keeper::None)
    }

    pub(super) fn take(&mut self) -> Option<Bytes> {
        self.kept.take()
    }

    /// Writes it. State that could not be written costs a restart its id, and nothing else.
    pub(super) fn write(&mut self, bytes: Bytes) {
        match &mut self.keeper {
            Keeper::None => {}
            Keeper::Callback(write) => write(bytes),
            Keeper::File(claimed) => {
                if let Err(error) = claimed.replace(&bytes) {
                    let path = claimed.path.display();
                    tracing::warn!(%path, %error, "notify: the client's state was not written");
                }
            }
        }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.keeper {
            Keeper::None => f.write_str("None"),
            Keeper::File(claimed) => f.debug_tuple("File").field(&claimed.path).finish(),
            Keeper::Callback(_) => f.write_str("Callback"),
        }
    }
}

/// A file that is this client's alone, by its lock, for as long as it runs.
struct Claimed {
    path: PathBuf,
    file: fs::File,
}

impl Claimed {
    fn take(path: PathBuf) -> Result<Claimed, Error> {
        for _ in 0..CLAIMS {
            let file = present(&path).map_err(|e| unusable(&path, e))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(in_use(&path)),
                // Some file systems know no locks.
                Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => {}
                Err(TryLockError::Error(e)) => return Err(unusable(&path, e)),
            }
            // Whoever used it may have replaced it just before its lock was free.
            let is_there = file.metadata().and_then(|ours| Ok(ours.ino() == fs::metadata(&path)?.ino()));
            if is_there.unwrap_or(false) {
                return Ok(Claimed { path, file });
            }
        }
        Err(in_use(&path))
    }

    fn replace(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let beside = beside(&self.path);
        let mut file = create(&beside)?;
        // Nobody else has it, so this fails only where there are no locks.
        let _ = file.try_lock();
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, &self.path)?;
        self.file = file;
        Ok(())
    }
}

/// What a new state is called until it takes the place of the old one: no other client's file has this name beside it.
fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(".new");
    name.into()
}

/// The file as it is; a new one is empty.
fn present(path: &Path) -> std::io::Result<fs::File> {
    match fs::File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            private().read(true).write(true).create(true).truncate(false).open(path)
        }
        found => found,
    }
}

fn create(path: &Path) -> std::io::Result<fs::File> {
    private().write(true).create(true).truncate(true).open(path)
}

/// The token is a credential: nobody else may read it.
fn private() -> fs::OpenOptions {
    let mut options = fs::File::options();
    options.mode(0o600);
    options
}

fn in_use(path: &Path) -> Error {
    let message = format!("another client uses the state in {}", path.display());
    Error::new("notify.state_in_use", Class::Refused, message)
        .hint("Name a file of this client's own, or wait until the other one has ended.")
}

fn unusable(path: &Path, why: impl std::fmt::Display) -> Error {
    let message = format!("cannot keep a client's state in {}: {why}", path.display());
    Error::new("notify.bad_state_file", Class::Failed, message)
        .hint("Name a file of this client's own, or a new one in a directory that is there and can be written to.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use tidings_wire::v1;

    /// A state with this token.
    fn token(text: &str) -> Bytes {
        let state = v1::NotifyClientState { token: text.to_owned().into(), ..Default::default() };
        Bytes::from(state.encode_to_vec())
    }

    #[test]
    fn a_file_gives_back_what_was_written_last() {
        let dir = std::env::temp_dir().join(format!("tidings-state-{}", getrandom::u64().unwrap()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("state");
        let mut state = State::file(&path).unwrap();
        assert!(state.is_kept() && state.take().is_none());
        // Before and after it was written it is one client's alone.
        for written in ["one", "two"] {
            assert_eq!(State::file(&path).unwrap_err().code, "notify.state_in_use");
            state.write(token(written));
        }
        assert_eq!(State::file(&path).unwrap_err().code, "notify.state_in_use");
        drop(state);
        assert_eq!(State::file(&path).unwrap().take().unwrap(), token("two"));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        // Names that differ only behind their last dot are two.
        let [mut one, mut other] = ["shop.1", "shop.2"].map(|name| State::file(dir.join(name)).unwrap());
        one.write(token("one"));
        other.write(token("other"));
        drop((one, other));
        assert_eq!(State::file(dir.join("shop.1")).unwrap().take().unwrap(), token("one"));
        assert_eq!(State::file(dir.join("no/such/state")).unwrap_err().code, "notify.bad_state_file");
        // Somebody's own file is neither used nor lost.
        for notes in [vec![0; 65 << 10], b"milk, eggs".to_vec(), b"# notes\n".to_vec()] {
            fs::write(&path, &notes).unwrap();
            assert_eq!(State::file(&path).unwrap_err().code, "notify.bad_state_file");
            assert_eq!(fs::read(&path).unwrap(), notes);
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
