//! What a client keeps across restarts: its token.

use bytes::Bytes;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use tidings_base::{Class, Error};

/// The largest state that is read: anything larger is some other file.
const MAX_STATE: u64 = 64 << 10;

/// Where the state of a client is kept.
pub struct State {
    kept: Option<Bytes>,
    keeper: Keeper,
}

enum Keeper {
    None,
    File(PathBuf),
    Callback(Box<dyn FnMut(Bytes) + Send>),
}

impl State {
    /// Nowhere: a restart is another client, and the servers forget this one an hour after it went.
    pub fn none() -> State {
        State { kept: None, keeper: Keeper::None }
    }

    /// In a file, which is replaced as a whole; its directory must be there and take new files. One process at a time may use
    /// it.
    pub fn file(path: impl Into<PathBuf>) -> Result<State, Error> {
        let path = path.into();
        // What will be written beside it can be written there: better known now than after a restart without a state.
        let beside = path.with_extension(BESIDE);
        create(&beside).and_then(|_| fs::remove_file(&beside)).map_err(|e| unusable(&path, e))?;
        let kept = match fs::metadata(&path) {
            Ok(found) if found.len() > MAX_STATE => {
                return Err(unusable(&path, "it is too large for a client's state"));
            }
            Ok(_) => Some(Bytes::from(fs::read(&path).map_err(|e| unusable(&path, e))?)),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(unusable(&path, e)),
        };
        Ok(State { kept, keeper: Keeper::File(path) })
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
            Keeper::File(path) => {
                if let Err(error) = replace(path, &bytes) {
                    tracing::warn!(path = %path.display(), %error, "notify: the client's state was not written");
                }
            }
        }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.keeper {
            Keeper::None => f.write_str("None"),
            Keeper::File(path) => f.debug_tuple("File").field(path).finish(),
            Keeper::Callback(_) => f.write_str("Callback"),
        }
    }
}

/// What a new state is called until it takes the place of the old one.
const BESIDE: &str = "new";

fn create(path: &Path) -> std::io::Result<fs::File> {
    let mut options = fs::File::options();
    // The token is a credential: nobody else may read it.
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.write(true).create(true).truncate(true).open(path)
}

fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let beside = path.with_extension(BESIDE);
    let mut file = create(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

fn unusable(path: &Path, why: impl std::fmt::Display) -> Error {
    let message = format!("cannot keep a client's state in {}: {why}", path.display());
    Error::new("notify.bad_state_file", Class::Failed, message)
        .hint("Name a file of this client's own, or a new one in a directory that is there and can be written to.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gives_back_what_was_written_last() {
        let dir = std::env::temp_dir().join(format!("tidings-state-{}", getrandom::u64().unwrap()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("state");
        let mut state = State::file(&path).unwrap();
        assert!(state.is_kept() && state.take().is_none());
        state.write("one".into());
        state.write("two".into());
        assert_eq!(State::file(&path).unwrap().take().unwrap(), "two");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        assert_eq!(State::file(dir.join("no/such/state")).unwrap_err().code, "notify.bad_state_file");
        fs::write(&path, vec![0; 65 << 10]).unwrap();
        assert_eq!(State::file(&path).unwrap_err().code, "notify.bad_state_file");
        fs::remove_dir_all(&dir).unwrap();
    }
}
