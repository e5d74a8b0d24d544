//! Membership: who is there, as files that go when their owners do.

use super::awaited::{Awaited, Told};
use super::calls::Cell;
use super::events::{Events, Watch};
use super::handle::Handle;
use bytes::Bytes;
use futures::Stream;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll};
use tidings_base::{Class, Error};
use tidings_cell::NodePath;

/// The members of a group: one ephemeral file each, in one directory. A member is gone when it leaves, or when its
/// session is.
///
/// ```no_run
/// # use tidings_client::cell::{Cell, Membership};
/// # async fn example(cell: Cell) -> Result<(), tidings_base::Error> {
/// let group = Membership::new(&cell, "/app/workers")?;
/// let me = group.join("worker-7", "10.0.0.7:8080").await?;
/// let mut members = group.watch().await?;
/// while let Some(set) = members.next().await {
///     println!("{} workers", set?.len());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Membership {
    cell: Cell,
    directory: NodePath,
}

impl Membership {
    /// The group in this directory, which is created when somebody first joins or watches.
    pub fn new(cell: &Cell, directory: &str) -> Result<Membership, Error> {
        Ok(Membership { cell: cell.clone(), directory: NodePath::parse(directory)? })
    }

    /// Joins under a name, with something for the others to read. While another member has the name, this waits: after a
    /// crash, until the session that was lost has ended.
    pub async fn join(&self, name: &str, contents: impl Into<Bytes>) -> Result<Member, Error> {
        let contents = contents.into();
        let mut watch = None;
        loop {
            match self.try_join(name, contents.clone()).await {
                Err(error) if error.code == "cell.node_exists" => {}
                result => return result,
            }
            // The first time round the name may have become free before the watch began.
            match &mut watch {
                None => watch = Some(self.watch_directory().await?),
                Some(changes) => {
                    // The directory went: the next one is watched anew.
                    if changes.next().await.is_none() {
                        watch = None;
                    }
                }
            }
        }
    }

    /// Joins under a name, or fails with `cell.node_exists` if another member has it.
    pub async fn try_join(&self, name: &str, contents: impl Into<Bytes>) -> Result<Member, Error> {
        let path = self.directory.child(name)?;
        let contents = contents.into();
        let open =
            || self.cell.open(path.as_str()).read().write().create_file(contents.clone()).ephemeral().exclusive();
        let handle = match open().await {
            Err(error) if error.code == "cell.no_parent" => {
                self.cell.create_directories(self.directory.as_str()).await?;
                open().await?
            }
            result => result?,
        };
        Ok(Member { handle, name: name.to_owned() })
    }

    /// Who is there now, with what each has to say.
    pub async fn members(&self) -> Result<BTreeMap<String, Bytes>, Error> {
        members(&self.cell, &self.directory).await
    }

    /// Who is there, now and whenever that changes.
    pub async fn watch(&self) -> Result<Members, Error> {
        let watch = self.watch_directory().await?;
        let watching = Watching { group: self.clone(), watch: Some(watch), told: Told::default() };
        Ok(Members { sets: Box::pin(futures::stream::unfold(watching, Watching::next)) })
    }

    /// Waits for a directory of the path, and watches it.
    async fn watch_again(&self) -> Result<Watch, Error> {
        let mut awaited = Awaited::new(&self.cell, self.directory.as_str());
        loop {
            match self.watch_present().await {
                Err(error) if error.class == Class::NotFound => awaited.again().await?,
                watch => return watch,
            }
        }
    }

    async fn watch_directory(&self) -> Result<Watch, Error> {
        match self.watch_present().await {
            Err(error) if matches!(error.code.as_ref(), "cell.no_node" | "cell.no_parent") => {
                self.cell.create_directories(self.directory.as_str()).await?;
                self.watch_present().await
            }
            watch => watch,
        }
    }

    async fn watch_present(&self) -> Result<Watch, Error> {
        let handle = self.cell.open(self.directory.as_str()).read().events(Events::CHILDREN).await?;
        let watch = handle.watch();
        Ok(Watch { handle: Some(handle), ..watch })
    }
}

async fn members(cell: &Cell, directory: &NodePath) -> Result<BTreeMap<String, Bytes>, Error> {
    let Some(listing) = cell.list(directory.as_str()).await? else { return Ok(BTreeMap::new()) };
    let files = listing.iter().filter(|child| !child.stat.directory);
    let names: Vec<&str> = files.map(|child| child.name.as_str()).collect();
    let paths = names.iter().map(|name| directory.child(name)).collect::<Result<Vec<_>, _>>()?;
    let paths: Vec<&str> = paths.iter().map(NodePath::as_str).collect();
    let read = cell.read_many(&paths).await?;
    // One that left between the listing and the reading is not there.
    let present = names.iter().zip(read).filter_map(|(name, file)| Some((name.to_string(), file?.contents().clone())));
    Ok(present.collect())
}

type Set = BTreeMap<String, Bytes>;

/// Somebody who watches a group.
struct Watching {
    group: Membership,
    /// `None` = the directory was deleted, or there was an error.
    watch: Option<Watch>,
    told: Told<Set>,
}

impl Watching {
    /// Waits until there is something else than was told last.
    async fn next(mut self) -> Option<(Result<Set, Error>, Watching)> {
        while !self.told.is_over() {
            let now = self.look().await;
            if now.is_err() {
                self.watch = None;
            }
            if let Some(news) = self.told.news(&self.group.cell, now).await {
                return Some((news, self));
            }
        }
        None
    }

    /// Who is there, once something may have changed since it was told.
    async fn look(&mut self) -> Result<Set, Error> {
        match &mut self.watch {
            _ if self.told.is_nothing() => {}
            Some(watch) => {
                if watch.next().await.is_none() {
                    self.watch = None;
                }
            }
            None => self.watch = Some(self.group.watch_again().await?),
        }
        self.group.members().await
    }
}

/// Being a member, for as long as this is kept. Dropping it leaves in the background.
#[must_use = "a member that is dropped leaves"]
pub struct Member {
    handle: Handle,
    name: String,
}

impl Member {
    /// The name it joined under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Changes what the others read.
    pub async fn update(&self, contents: impl Into<Bytes>) -> Result<(), Error> {
        self.handle.set_contents(contents, None).await.map(|_| ())
    }

    /// Leaves, and returns when the others can know.
    pub async fn leave(self) -> Result<(), Error> {
        self.handle.close().await
    }
}

/// Who is there, as a stream: the present set first, then every change. While the directory is deleted nobody is there. An
/// error is told once, and the stream goes on when it has passed; that the session is over is the last item.
pub struct Members {
    sets: Pin<Box<dyn Stream<Item = Result<Set, Error>> + Send>>,
}

impl Members {
    /// The next set, by name.
    pub async fn next(&mut self) -> Option<Result<BTreeMap<String, Bytes>, Error>> {
        std::future::poll_fn(|cx| self.sets.as_mut().poll_next(cx)).await
    }
}

impl Stream for Members {
    type Item = Result<BTreeMap<String, Bytes>, Error>;
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.sets.as_mut().poll_next(cx)
    }
}
