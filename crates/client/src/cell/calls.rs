//! The cell as an application sees it.

use super::events::{Events, SessionEvents, Watch};
use super::handle::{Handle, done};
use super::link::Link;
use super::observed::Observed;
use super::open::Open;
use super::sequencer::Sequencer;
use super::session::{Core, State};
use super::stat::{File, Listing, Stat};
use super::trace;
use super::transport::{CellTransport, unexpected};
use crate::{Client, ClientConfig};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Error, Mono};
use tidings_cell::mutant::Mutant;
use tidings_cell::token::PublicKeys;
use tidings_cell::{NodePath, error};
use tidings_wire::v1::{self, cell_message::Message};

/// The most paths that one request for many may name.
const MANY: usize = 128;

/// How often a write by path tries again when the file appears and disappears under it.
const WRITE_ATTEMPTS: usize = 8;

/// How a session behaves. The defaults fit most.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// How long the session lives without contact; zero = what the cell takes for good (12 s). At most 60 s.
    pub lease: Duration,
    /// How long calls wait after the lease ran out before the session is given up. 45 s: longer than almost every
    /// fail-over (the seed's figure).
    pub grace: Duration,
    /// How long locks are held back if they are lost, for handles that do not say; `None` = the cell's own 60 s.
    pub lock_delay: Option<Duration>,
    /// The most entries to cache. The cell itself allows 4,096 a session.
    pub cache: usize,
    /// How long to wait for the session to begin. 30 s: longer than a cell needs to elect a master and to open.
    pub begin_within: Duration,
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            lease: Duration::ZERO,
            grace: Duration::from_secs(45),
            lock_delay: None,
            cache: 4_096,
            begin_within: Duration::from_secs(30),
            mutant: None,
        }
    }
}

/// A session with the cell: small files, directories and locks, consistently cached. Cheap to clone; the session is
/// closed when the last clone and the last handle are dropped.
///
/// Calls wait out a fail-over, and a loss of contact up to the grace period; then all of them fail with
/// `cell.expired`, and a new `Cell` is needed.
///
/// ```no_run
/// # use tidings_client::cell::Cell;
/// # async fn example() -> Result<(), tidings_base::Error> {
/// let cell = Cell::connect(["http://127.0.0.1:7400"]).await?;
/// cell.write("/greeting", "hello").await?;
/// let file = cell.read("/greeting").await?.expect("just written");
/// assert_eq!(file.text(), "hello");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Cell {
    inner: Arc<Inner>,
}

/// What keeps the session.
pub(crate) struct Inner {
    pub(crate) core: Arc<Core>,
    pub(crate) lock_delay: Option<Duration>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.core.close();
    }
}

impl Cell {
    /// Connects to a cluster and creates a session there.
    pub async fn connect(config: impl Into<ClientConfig>) -> Result<Cell, Error> {
        Cell::connect_with(config, SessionOptions::default()).await
    }

    /// Connects to a cluster and creates a session with these options there.
    pub async fn connect_with(config: impl Into<ClientConfig>, options: SessionOptions) -> Result<Cell, Error> {
        let client = Client::new(config.into())?;
        Link::new(client)?.session(options).await
    }

    /// Creates a session over a client that exists, or over anything else that reaches a master.
    pub async fn with(transport: impl CellTransport) -> Result<Cell, Error> {
        Link::new(transport)?.session(SessionOptions::default()).await
    }

    pub(crate) fn of(core: Arc<Core>, lock_delay: Option<Duration>) -> Cell {
        Cell { inner: Arc::new(Inner { core, lock_delay }) }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.inner.core
    }

    /// The session's number.
    pub fn session(&self) -> u64 {
        self.core().session()
    }

    /// How the session stands.
    pub fn state(&self) -> State {
        self.core().state()
    }

    /// The lease that the session was granted last: how long it lives without contact, on the master's clock.
    pub fn lease(&self) -> Duration {
        self.core().lease()
    }

    /// Until when the session's owner may count on it, on this host's boot clock; `None` unless it is active. Locks are
    /// held back for their delay after that (R10).
    pub fn lease_until(&self) -> Option<Mono> {
        self.core().lease_until()
    }

    /// What happens to the session from now on: jeopardy, safety, its end.
    pub fn events(&self) -> SessionEvents {
        SessionEvents { inbox: self.core().events() }
    }

    /// What this client has seen of the cell's availability.
    pub fn observed(&self) -> Observed {
        self.core().observed()
    }

    /// Opens a node; say what for, then await it.
    pub fn open(&self, path: &str) -> Open {
        Open::new(self.inner.clone(), path)
    }

    /// The root directory, open for reading. Asked for once, it costs nothing while it is in use.
    pub async fn root(&self) -> Result<Handle, Error> {
        self.open("/").read().await
    }

    /// A file's contents and metadata; `None` = there is no such node. From the cache where that is allowed.
    pub async fn read(&self, path: &str) -> Result<Option<File>, Error> {
        if let Some(found) = self.core().cache.node(path) {
            trace::hit();
            return Ok(found);
        }
        let read = self.read_node(path, true, false).await?;
        Ok(read.stat.map(|stat| File::new(stat, read.contents)))
    }

    /// Many files at once, in the order of their paths: one request for about a hundred of those that are not cached.
    pub async fn read_many<S: AsRef<str>>(&self, paths: &[S]) -> Result<Vec<Option<File>>, Error> {
        let mut files: Vec<Option<Option<File>>> =
            paths.iter().map(|path| self.core().cache.node(path.as_ref())).collect();
        let missing: Vec<usize> = (0..paths.len()).filter(|i| files[*i].is_none()).collect();
        let mut missing = missing.as_slice();
        while !missing.is_empty() {
            let chunk = &missing[..missing.len().min(MANY)];
            let paths = chunk.iter().map(|i| parsed(paths[*i].as_ref())).collect::<Result<_, _>>()?;
            let read = match self.core().ask(Message::ReadMany(v1::ReadMany { paths })).await? {
                Message::ManyRead(read) if (1..=chunk.len()).contains(&read.nodes.len()) => read.nodes,
                _ => return Err(unexpected()),
            };
            // Of large files only the first ones fit one answer.
            missing = &missing[read.len()..];
            for (i, node) in chunk.iter().zip(read) {
                files[*i] = Some(node.stat.map(|stat| File::new(stat, node.contents)));
            }
        }
        Ok(files.into_iter().map(Option::flatten).collect())
    }

    /// A node's metadata; `None` = there is no such node. From the cache where that is allowed.
    pub async fn stat(&self, path: &str) -> Result<Option<Stat>, Error> {
        if let Some(found) = self.core().cache.stat(path) {
            trace::hit();
            return Ok(found.map(|file| file.stat().clone()));
        }
        Ok(self.read_node(path, false, false).await?.stat.map(Stat::from))
    }

    /// The children of a directory with their metadata; `None` = there is no such node. From the cache where that is
    /// allowed.
    pub async fn list(&self, path: &str) -> Result<Option<Listing>, Error> {
        if let Some(found) = self.core().cache.listing(path) {
            trace::hit();
            return Ok(Some(found));
        }
        let read = self.read_node(path, false, true).await?;
        Ok(read.stat.map(|_| Listing::new(read.children)))
    }

    async fn read_node(&self, path: &str, contents: bool, children: bool) -> Result<v1::NodeRead, Error> {
        let read = v1::ReadNode { target: target(path)?, contents, children, uncached: false, ..Default::default() };
        match self.core().ask(Message::Read(read)).await? {
            Message::NodeRead(read) => Ok(read),
            _ => Err(unexpected()),
        }
    }

    /// Writes a file, and creates it if it is not there. Returns its metadata.
    pub async fn write(&self, path: &str, contents: impl Into<Bytes>) -> Result<Stat, Error> {
        let contents = contents.into();
        for _ in 0..WRITE_ATTEMPTS {
            match self.write_existing(path, contents.clone(), None).await {
                Err(error) if error.code == "cell.no_node" => {}
                result => return result,
            }
            match self.open(path).write().create_file(contents.clone()).exclusive().await {
                Err(error) if error.code == "cell.node_exists" => {}
                Ok(handle) => return Ok(handle.opened_stat().clone()),
                Err(error) => return Err(error),
            }
        }
        Err(error::busy("the file appeared and disappeared while it was written"))
    }

    /// Writes a file only if its content generation is still this one.
    pub async fn write_if(&self, path: &str, contents: impl Into<Bytes>, generation: u64) -> Result<Stat, Error> {
        self.write_existing(path, contents.into(), Some(generation)).await
    }

    async fn write_existing(&self, path: &str, contents: Bytes, if_generation: Option<u64>) -> Result<Stat, Error> {
        let set = v1::SetContents { target: target(path)?, contents, if_generation, sequencers: vec![] };
        done(self.core().ask(Message::SetContents(set)).await?)
    }

    /// Creates a directory; fine if it is there already.
    pub async fn create_directory(&self, path: &str) -> Result<(), Error> {
        match self.open(path).write().create_directory().await {
            // Who may not write it may know that it is there.
            Err(error) if error.code == "cell.denied" => match self.stat(path).await {
                Ok(Some(stat)) if stat.directory => Ok(()),
                _ => Err(error),
            },
            opened => opened.map(drop),
        }
    }

    /// Creates a directory and those above it that are missing.
    pub async fn create_directories(&self, path: &str) -> Result<(), Error> {
        let path = NodePath::parse(path)?;
        let above = std::iter::successors(path.parent(), NodePath::parent).filter(|p| !p.is_root());
        let mut above: Vec<NodePath> = above.collect();
        above.reverse();
        for directory in above.iter().chain([&path]) {
            match self.stat(directory.as_str()).await {
                Ok(Some(stat)) if stat.directory => {}
                Ok(Some(_)) => return Err(error::not_a_directory(directory)),
                // Who may not read it may still make it.
                Err(error) if error.code != "cell.denied" => return Err(error),
                Ok(None) | Err(_) => self.create_directory(directory.as_str()).await?,
            }
        }
        Ok(())
    }

    /// Deletes a node, which must have no children.
    pub async fn delete(&self, path: &str) -> Result<(), Error> {
        let delete = v1::DeleteNode { target: target(path)?, if_generation: None, sequencers: vec![] };
        done(self.core().ask(Message::Delete(delete)).await?).map(|_| ())
    }

    /// Opens a node for reading and watches it: contents and children.
    pub async fn watch(&self, path: &str) -> Result<Watch, Error> {
        let handle = self.open(path).read().events(Events::CONTENTS | Events::CHILDREN).await?;
        let watch = handle.watch();
        Ok(Watch { handle: Some(handle), ..watch })
    }

    /// Whether a lock is still held as its sequencer says.
    pub async fn check_sequencer(&self, sequencer: &Sequencer) -> Result<bool, Error> {
        let check = v1::CheckSequencer { token: sequencer.token().clone() };
        match self.core().ask(Message::CheckSequencer(check)).await? {
            Message::SequencerChecked(checked) => Ok(checked.valid),
            _ => Err(unexpected()),
        }
    }

    /// The keys that verify sequencers where the cell cannot be asked.
    pub async fn public_keys(&self) -> Result<PublicKeys, Error> {
        match self.core().ask(Message::Keys(v1::CellKeys {})).await? {
            Message::KeysReply(reply) => Ok(PublicKeys::from_wire(&reply.keys)),
            _ => Err(unexpected()),
        }
    }

    /// Any request of the protocol under this session, for what has no method of its own: quotas, lists of sessions and
    /// locks. What opens a handle or takes a lock this way is the caller's to close.
    pub async fn request(&self, message: Message) -> Result<Message, Error> {
        self.core().ask(message).await
    }

    /// Ends the session: its handles are closed, its locks released, its ephemeral files deleted. Returns when the cell
    /// has done so; calls that are under way fail.
    pub async fn close(self) -> Result<(), Error> {
        let mut states = self.core().states();
        self.core().close();
        match states.wait_for(|state| state.is_over()).await.map(|state| *state) {
            Ok(State::Expired) => Err(error::expired(self.session())),
            _ => Ok(()),
        }
    }
}

impl std::fmt::Debug for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cell").field("session", &self.session()).field("state", &self.state()).finish()
    }
}

fn parsed(path: &str) -> Result<String, Error> {
    NodePath::parse(path).map(|path| path.as_str().to_owned())
}

fn target(path: &str) -> Result<Option<v1::NodeTarget>, Error> {
    Ok(Some(v1::NodeTarget { target: Some(v1::node_target::Target::Path(parsed(path)?)) }))
}
