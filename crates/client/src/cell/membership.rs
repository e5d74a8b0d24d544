//! Membership: who is there, as files that go when their owners do.

use super::calls::Cell;
use super::events::{Events, Watch};
use super::handle::Handle;
use bytes::Bytes;
use futures::Stream;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll};
use tidings_base::Error;
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
///     println!("{} workers", set.len());
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
        let (cell, directory) = (self.cell.clone(), self.directory.clone());
        let sets = futures::stream::unfold((watch, None), move |(watch, last)| {
            next_set(cell.clone(), directory.clone(), watch, last)
        });
        Ok(Members { sets: Box::pin(sets) })
    }

    async fn watch_directory(&self) -> Result<Watch, Error> {
        let path = self.directory.as_str();
        let open = || self.cell.open(path).read().events(Events::CHILDREN);
        let handle = match open().await {
            Err(error) if matches!(error.code.as_ref(), "cell.no_node" | "cell.no_parent") => {
                self.cell.create_directories(path).await?;
                open().await?
            }
            result => result?,
        };
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

/// Waits until the set is another one than was told last.
async fn next_set(
    cell: Cell,
    directory: NodePath,
    mut watch: Watch,
    mut last: Option<Set>,
) -> Option<(Set, (Watch, Option<Set>))> {
    loop {
        if last.is_some() {
            watch.next().await?;
        }
        let set = members(&cell, &directory).await.ok()?;
        if last.as_ref() != Some(&set) {
            last = Some(set.clone());
            return Some((set, (watch, last)));
        }
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

/// Who is there, as a stream: the present set first, then every change. It ends with the session, and when the
/// directory is deleted.
pub struct Members {
    sets: Pin<Box<dyn Stream<Item = BTreeMap<String, Bytes>> + Send>>,
}

impl Members {
    /// The next set, by name.
    pub async fn next(&mut self) -> Option<BTreeMap<String, Bytes>> {
        std::future::poll_fn(|cx| self.sets.as_mut().poll_next(cx)).await
    }
}

impl Stream for Members {
    type Item = BTreeMap<String, Bytes>;
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.sets.as_mut().poll_next(cx)
    }
}
