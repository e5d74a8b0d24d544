//! Elections: one of many leads, and everybody knows who.

use super::awaited::{Awaited, Told};
use super::calls::Cell;
use super::events::{Events, Watch};
use super::handle::Handle;
use super::lock::Lock;
use super::sequencer::Sequencer;
use super::stat::{File, Mode};
use futures::Stream;
use std::pin::Pin;
use std::task::{Context, Poll};
use tidings_base::{Class, Error};

/// What stands in the file behind the leader's identity: the lock generation that it leads under, so that an identity
/// left over from an earlier leader is not taken for the present one's.
const GENERATION: &str = "\nlock generation ";

/// An election over one file: who holds its lock leads, and its contents say who that is.
///
/// ```no_run
/// # use tidings_client::cell::{Cell, Election};
/// # async fn lead(_: tidings_client::cell::Sequencer) {}
/// # async fn example(cell: Cell) -> Result<(), tidings_base::Error> {
/// let election = Election::new(&cell, "/app/leader");
/// let leadership = election.campaign("10.0.0.7:8080").await?;
/// tokio::select! {
///     () = lead(leadership.sequencer()) => leadership.resign().await?,
///     why = leadership.lost() => eprintln!("no longer leader: {why}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Election {
    cell: Cell,
    path: String,
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// What it called itself.
    pub identity: String,
    /// Grows from leader to leader of one file.
    pub generation: u64,
}

impl Election {
    /// The election of this path; its file is created when somebody first stands or observes.
    pub fn new(cell: &Cell, path: &str) -> Election {
        Election { cell: cell.clone(), path: path.to_owned() }
    }

    /// Stands for election and waits until elected, first come, first served. Dropping the future withdraws.
    pub async fn campaign(&self, identity: &str) -> Result<Leadership, Error> {
        if identity.is_empty() || identity.contains('\n') {
            return Err(Error::new("cell.bad_identity", Class::Invalid, "a leader's identity is one line of text")
                .hint("Use an address or a name."));
        }
        loop {
            match self.stand(identity).await {
                // Somebody deleted the file: the next one is another election.
                Err(error) if error.code == "cell.node_gone" => {}
                // The lock was lost between the election and the announcement.
                Err(error) if error.code == "cell.stale_sequencer" => {}
                result => return result,
            }
        }
    }

    async fn stand(&self, identity: &str) -> Result<Leadership, Error> {
        let handle = self.cell.open(&self.path).write().lock().events(Events::LOCK).create_file("").await?;
        let lock = handle.acquire(Mode::Exclusive).await?;
        // From here on nothing is written through this handle by anybody but the leader.
        handle.set_sequencer(lock.sequencer());
        handle.set_contents(format!("{identity}{GENERATION}{}\n", lock.generation()), None).await?;
        Ok(Leadership { lock, handle, identity: identity.to_owned() })
    }

    /// Who leads now, if anybody does.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        Ok(self.cell.read(&self.path).await?.and_then(|file| leader_in(&file)))
    }

    /// Who leads, now and whenever that changes. A leader that was lost leads until the next one is elected.
    pub async fn observe(&self) -> Result<Observation, Error> {
        let handle = match self.open_to_observe().await {
            Err(error) if error.code == "cell.no_node" => {
                // Somebody may create it first: then it is simply opened.
                let made = self.cell.open(&self.path).create_file("").await;
                made.map(drop)?;
                self.open_to_observe().await?
            }
            result => result?,
        };
        let watch = handle.watch();
        let observing = Observing { election: self.clone(), open: Some((watch, handle)), told: Told::default() };
        Ok(Observation { states: Box::pin(futures::stream::unfold(observing, Observing::next)) })
    }

    /// Waits for a file of the path, and observes it.
    async fn reopen(&self) -> Result<(Watch, Handle), Error> {
        let mut awaited = Awaited::new(&self.cell, &self.path);
        loop {
            match self.open_to_observe().await {
                Err(error) if error.class == Class::NotFound => awaited.again().await?,
                opened => return opened.map(|handle| (handle.watch(), handle)),
            }
        }
    }

    async fn open_to_observe(&self) -> Result<Handle, Error> {
        self.cell.open(&self.path).read().events(Events::CONTENTS | Events::LOCK).await
    }
}

/// Somebody who observes an election.
struct Observing {
    election: Election,
    /// `None` = the file was deleted, or there was an error.
    open: Option<(Watch, Handle)>,
    told: Told<Option<Leader>>,
}

type Seen = Result<Option<Leader>, Error>;

impl Observing {
    /// Waits until there is something else than was told last.
    async fn next(mut self) -> Option<(Seen, Observing)> {
        while !self.told.is_over() {
            let now = self.look().await;
            if now.is_err() {
                self.open = None;
            }
            if let Some(news) = self.told.news(&self.election.cell, now).await {
                return Some((news, self));
            }
        }
        None
    }

    /// Who leads, once something may have changed since it was told: in the file, or that there is one.
    async fn look(&mut self) -> Seen {
        match &mut self.open {
            _ if self.told.is_nothing() => {}
            Some((watch, _)) => {
                if watch.next().await.is_none() {
                    self.open = None;
                }
            }
            None => self.open = Some(self.election.reopen().await?),
        }
        self.election.leader().await
    }
}

/// The leader that a file names, if it is the one that holds the lock. A file that says nothing of a generation was
/// written by hand, and is believed while the lock is held.
fn leader_in(file: &File) -> Option<Leader> {
    file.stat().lock?;
    let generation = file.stat().lock_generation;
    let text = file.text();
    let identity = match text.trim_end_matches('\n').rsplit_once(GENERATION) {
        Some((identity, under)) => (under.parse() == Ok(generation)).then_some(identity)?,
        None => text.trim_end_matches('\n'),
    };
    (!identity.is_empty()).then(|| Leader { identity: identity.to_owned(), generation })
}

/// Being leader. Dropping it resigns in the background.
#[must_use = "a leadership that is dropped is resigned"]
pub struct Leadership {
    lock: Lock,
    handle: Handle,
    identity: String,
}

impl Leadership {
    /// What this leader called itself.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// What proves to others that this one leads.
    pub fn sequencer(&self) -> Sequencer {
        self.lock.sequencer()
    }

    /// Grows from leader to leader of one file.
    pub fn generation(&self) -> u64 {
        self.lock.generation()
    }

    /// Waits until the leadership is lost.
    pub async fn lost(&self) -> Error {
        self.lock.lost().await
    }

    /// Steps down: the file is emptied, and the next one in the queue leads.
    pub async fn resign(self) -> Result<(), Error> {
        let Leadership { lock, handle, .. } = self;
        handle.set_contents("", None).await?;
        lock.release().await
    }
}

/// Who leads, as a stream: the present state first, then every change. While the file is deleted, or its directory, nobody
/// leads. An error is told once, and the stream goes on when it has passed; that the session is over is the last item.
pub struct Observation {
    states: Pin<Box<dyn Stream<Item = Seen> + Send>>,
}

impl Observation {
    /// The next state; `None` inside = nobody leads.
    pub async fn next(&mut self) -> Option<Result<Option<Leader>, Error>> {
        std::future::poll_fn(|cx| self.states.as_mut().poll_next(cx)).await
    }
}

impl Stream for Observation {
    type Item = Result<Option<Leader>, Error>;
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.states.as_mut().poll_next(cx)
    }
}
