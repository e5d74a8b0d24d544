//! Configuration in a file of the cell: typed, and reloaded when it changes.

use super::awaited::{Awaited, pause};
use super::calls::Cell;
use super::events::{Events, Watch};
use super::handle::Handle;
use super::stat::File;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tidings_base::{Class, Error};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// How bytes become a value.
type Parse<T> = dyn Fn(&[u8]) -> Result<T, String> + Send + Sync;

/// A value that is kept in a file of the cell. It follows the file; the last good value stays when the file becomes
/// unreadable or goes, and [`error`](Config::error) says why.
///
/// ```no_run
/// # use tidings_client::cell::{Cell, Config};
/// #[derive(serde::Deserialize)]
/// struct Limits { requests: u32 }
///
/// # async fn example(cell: Cell) -> Result<(), tidings_base::Error> {
/// let mut limits = Config::<Limits>::open(&cell, "/app/limits").await?;
/// println!("{} requests", limits.get().requests);
/// while limits.changed().await {
///     match limits.error() {
///         None => println!("now {}", limits.get().requests),
///         Some(error) => eprintln!("kept the last good value: {error}"),
///     }
/// }
/// # Ok(()) }
/// ```
pub struct Config<T> {
    current: watch::Receiver<Current<T>>,
    follower: Arc<Follower>,
}

struct Current<T> {
    value: Arc<T>,
    /// The content generation of the last good value.
    generation: u64,
    error: Option<Error>,
}

impl<T> Clone for Config<T> {
    fn clone(&self) -> Config<T> {
        Config { current: self.current.clone(), follower: self.follower.clone() }
    }
}

/// The task that follows the file; it ends with the last clone.
struct Follower(AbortHandle);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> Config<T> {
    /// Reads a file of JSON, which must be there and good, and follows it.
    pub async fn open(cell: &Cell, path: &str) -> Result<Config<T>, Error> {
        Config::open_with(cell, path, |bytes| serde_json::from_slice(bytes).map_err(|e| e.to_string())).await
    }
}

impl<T: Send + Sync + 'static> Config<T> {
    /// Reads a file of any form, which must be there and good, and follows it.
    pub async fn open_with(
        cell: &Cell,
        path: &str,
        parse: impl Fn(&[u8]) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Config<T>, Error> {
        let file = cell.open(path).read().events(Events::CONTENTS).await?;
        let watch = file.watch();
        let read = file.contents_and_stat().await?;
        let generation = read.stat().content_generation;
        let value = Arc::new(parse(read.contents()).map_err(|why| unreadable(path, &why))?);
        let (sender, current) = watch::channel(Current { value, generation, error: None });
        let following = Following { cell: cell.clone(), path: path.to_owned(), parse: Box::new(parse), sender };
        let follower = tokio::spawn(following.run(file, watch, read.stat().instance)).abort_handle();
        Ok(Config { current, follower: Arc::new(Follower(follower)) })
    }
}

impl<T> Config<T> {
    /// The last good value.
    pub fn get(&self) -> Arc<T> {
        self.current.borrow().value.clone()
    }

    /// The content generation that the last good value came from.
    pub fn generation(&self) -> u64 {
        self.current.borrow().generation
    }

    /// Why the file's present contents are not what [`get`](Config::get) gives, if they are not.
    pub fn error(&self) -> Option<Error> {
        self.current.borrow().error.clone()
    }

    /// Waits until there is another value, or another error. `false` = nothing will change any more: the session is over.
    pub async fn changed(&mut self) -> bool {
        self.current.changed().await.is_ok()
    }
}

struct Following<T> {
    cell: Cell,
    path: String,
    parse: Box<Parse<T>>,
    sender: watch::Sender<Current<T>>,
}

impl<T> Following<T> {
    /// Follows the file until the session is over; if the file is deleted, until there is another one of its path.
    async fn run(self, mut file: Handle, mut watch: Watch, mut instance: u64) {
        loop {
            while watch.next().await.is_some() {
                match file.contents_and_stat().await {
                    Ok(read) => self.take(read, false),
                    // That it has passed is no event.
                    Err(error) => {
                        self.keep(error);
                        break;
                    }
                }
            }
            let read;
            (file, watch, read) = match self.reopen().await {
                Ok(opened) => opened,
                Err(error) => return self.keep(error),
            };
            let new = read.stat().instance != instance;
            instance = read.stat().instance;
            self.take(read, new);
        }
    }

    /// Waits for a file of the path that can be read. Only the end of the session is the end.
    async fn reopen(&self) -> Result<(Handle, Watch, File), Error> {
        let mut awaited = Awaited::new(&self.cell, &self.path);
        loop {
            let failed = match self.open().await {
                Ok(opened) => return Ok(opened),
                Err(error) if error.class == Class::NotFound => {
                    self.keep(error);
                    awaited.again().await
                }
                Err(error) => Err(error),
            };
            match failed {
                Err(error) if self.cell.state().is_over() => return Err(error),
                Err(error) => {
                    self.keep(error);
                    pause().await;
                }
                Ok(()) => {}
            }
        }
    }

    async fn open(&self) -> Result<(Handle, Watch, File), Error> {
        let file = self.cell.open(&self.path).read().events(Events::CONTENTS).await?;
        let watch = file.watch();
        let read = file.contents_and_stat().await?;
        Ok((file, watch, read))
    }

    /// Takes what was read: a new value, or an error beside the last good one.
    fn take(&self, read: File, new: bool) {
        let generation = read.stat().content_generation;
        // Events may be told twice, and nothing new is no change.
        let known = {
            let c = self.sender.borrow();
            c.generation == generation && c.error.is_none() && !new
        };
        if known {
            return;
        }
        match (self.parse)(read.contents()) {
            Ok(value) => {
                self.sender.send_replace(Current { value: Arc::new(value), generation, error: None });
            }
            Err(why) => self.keep(unreadable(&self.path, &why)),
        }
    }

    fn keep(&self, error: Error) {
        self.sender.send_if_modified(|current| {
            let changed = current.error.as_ref() != Some(&error);
            current.error = Some(error);
            changed
        });
    }
}

fn unreadable(path: &str, why: &str) -> Error {
    Error::new("cell.unreadable_config", Class::Invalid, format!("`{path}` cannot be read: {why}"))
        .hint("Write a good version; until then the last good value is used.")
}
