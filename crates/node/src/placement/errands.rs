//! The manager's files in the cell: read without a cache, and changed by compare-and-set under the leader's sequencer.

use super::Reign;
use crate::driver::Handle;
use crate::services::Way;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::cell::Cell;
use tidings_placement::manager::file::{self, File};
use tidings_placement::manager::{Input, Outcome};
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;
use tidings_wire::v1::node_target::Target;
use tokio::sync::{Semaphore, mpsc};

/// Files that are asked for at once: as many as the cell reads in one request.
const MANY: usize = 128;

/// Requests for files under way at once: a take-over of a thousand namespaces must not crowd out everybody else.
const READERS: usize = 16;

/// How long the cell may take to answer a read before it is asked again.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// The pause before a read is tried again, and before a refused change is looked at again: the cell elects a master in
/// a second or so, and a full disk or quota does not go away faster than that.
const READ_AGAIN: Duration = Duration::from_millis(100);
const REFUSED_AGAIN: Duration = Duration::from_secs(1);

/// What the manager wants of the cell. As many may wait as the manager wants at a time: one commit a file.
pub(super) enum Errand {
    /// A change.
    Commit { id: u64, file: File, expected: Option<u64>, bytes: Bytes },
    /// Files to be read.
    Read(Vec<(u64, File)>),
    /// The namespaces there are.
    List,
}

/// Runs errands as they come, each on its own, and tells the manager what came of them.
pub(super) async fn run(clerk: Clerk, mut queue: mpsc::UnboundedReceiver<Errand>, manager: Handle<Input>) {
    let clerk = Arc::new(clerk);
    let mut under_way: FuturesUnordered<BoxFuture<'static, Vec<Input>>> = FuturesUnordered::new();
    loop {
        tokio::select! {
            errand = queue.recv() => match errand {
                Some(errand) => clerk.clone().begin(errand, &under_way),
                None => return,
            },
            Some(heard) = under_way.next(), if !under_way.is_empty() => {
                for input in heard {
                    if manager.send(input).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// Goes to the cell.
pub(super) struct Clerk {
    way: Way,
    reign: Arc<Mutex<Option<Reign>>>,
    readers: Semaphore,
}

impl Clerk {
    pub(super) fn new(way: Way, reign: Arc<Mutex<Option<Reign>>>) -> Clerk {
        Clerk { way, reign, readers: Semaphore::new(READERS) }
    }

    fn begin(self: Arc<Self>, errand: Errand, under_way: &FuturesUnordered<BoxFuture<'static, Vec<Input>>>) {
        match errand {
            Errand::Commit { id, file, expected, bytes } => under_way.push(Box::pin(async move {
                let outcome = self.commit(&file, expected, bytes).await;
                vec![Input::Committed { id, outcome }]
            })),
            Errand::Read(files) => {
                for files in files.chunks(MANY).map(<[_]>::to_vec) {
                    let clerk = self.clone();
                    under_way.push(Box::pin(async move { clerk.read(files).await }));
                }
            }
            Errand::List => {
                under_way.push(Box::pin(async move { vec![Input::Listed { names: self.list().await }] }));
            }
        }
    }

    fn reign(&self) -> Option<Reign> {
        self.reign.lock().clone()
    }

    // ---- changes ----------------------------------------------------------------------------------------------------

    /// One compare-and-set. A new file is made empty first, since a creation cannot be fenced: an empty file counts as
    /// none, so a deposed leader that makes one changes nothing.
    async fn commit(&self, file: &File, expected: Option<u64>, bytes: Bytes) -> Outcome {
        let Some(reign) = self.reign() else { return Outcome::Unknown };
        let path = file.path();
        let generation = match expected {
            Some(generation) => Ok(Some(generation)),
            None => empty_file(&reign.cell, &path).await,
        };
        let set = match generation {
            Ok(Some(generation)) => v1::SetContents {
                target: target(&path),
                contents: bytes,
                if_generation: Some(generation),
                sequencers: vec![reign.sequencer.clone()],
            },
            Ok(None) => return Outcome::Conflict,
            Err(error) => return self.outcome(&path, &error).await,
        };
        match reign.cell.request(Message::SetContents(set)).await {
            Ok(Message::Done(v1::CellDone { stat: Some(stat), .. })) => {
                Outcome::Done { generation: stat.content_generation }
            }
            Ok(_) => Outcome::Unknown,
            Err(error) => self.outcome(&path, &error).await,
        }
    }

    /// What an error says of a change.
    async fn outcome(&self, path: &str, error: &Error) -> Outcome {
        match error.code.as_ref() {
            "cell.wrong_generation" | "cell.stale_sequencer" | "cell.no_node" => Outcome::Conflict,
            // The session is over: who leads next finds out.
            "cell.expired" | "cell.closed" => Outcome::Unknown,
            _ => {
                if !matches!(error.class, Class::OutcomeUnknown | Class::Unreachable) {
                    tracing::error!(path, %error, "the cell refused a change of placement; trying again");
                }
                tokio::time::sleep(REFUSED_AGAIN).await;
                Outcome::Unknown
            }
        }
    }

    // ---- reads ------------------------------------------------------------------------------------------------------

    async fn read(&self, files: Vec<(u64, File)>) -> Vec<Input> {
        let Ok(_turn) = self.readers.acquire().await else { return Vec::new() };
        let mut heard = Vec::with_capacity(files.len());
        let mut left = files.as_slice();
        while !left.is_empty() {
            let paths = left.iter().map(|(_, file)| file.path()).collect();
            let nodes = match self.ask(Message::ReadMany(v1::ReadMany { paths })).await {
                Ok(Message::ManyRead(read)) if (1..=left.len()).contains(&read.nodes.len()) => read.nodes,
                Ok(_) => return failed(heard, left, &unexpected()),
                Err(error) => return failed(heard, left, &error),
            };
            let (read, rest) = left.split_at(nodes.len());
            // Of large files only the first ones fit one answer.
            left = rest;
            heard.extend(read.iter().zip(nodes).map(|((id, _), node)| {
                let there = node.stat.filter(|_| !node.contents.is_empty());
                Input::FileRead { id: *id, contents: Ok(there.map(|stat| (stat.content_generation, node.contents))) }
            }));
        }
        heard
    }

    async fn list(&self) -> Result<Vec<String>, Error> {
        let read = v1::ReadNode {
            target: target(file::ROOT),
            contents: false,
            children: true,
            uncached: true,
            ..Default::default()
        };
        let children = match self.ask(Message::Read(read)).await? {
            Message::NodeRead(read) => read.children,
            _ => return Err(unexpected()),
        };
        let directory = |child: &v1::Child| child.stat.as_ref().is_some_and(|stat| stat.directory);
        Ok(children.iter().filter(|child| directory(child)).map(|child| file::unescape(&child.name)).collect())
    }

    /// Reads without a session, so that nothing is ever cached: a paused reader must not hold up the next leader's
    /// commits. Tried again while this node leads.
    async fn ask(&self, message: Message) -> Result<Message, Error> {
        loop {
            match self.way.ask(message.clone(), READ_WITHIN).await {
                Err(error) if matches!(error.class, Class::Unreachable | Class::OutcomeUnknown) => {
                    if self.reign().is_none() {
                        return Err(error);
                    }
                    tokio::time::sleep(READ_AGAIN).await;
                }
                answer => return answer,
            }
        }
    }
}

/// The files that were not read.
fn failed(mut heard: Vec<Input>, left: &[(u64, File)], error: &Error) -> Vec<Input> {
    tracing::warn!(%error, files = left.len(), "placement's files could not be read");
    heard.extend(left.iter().map(|(id, _)| Input::FileRead { id: *id, contents: Err(error.clone()) }));
    heard
}

/// The generation of a file that is there and empty, made if it is not there; `None` if it has contents.
async fn empty_file(cell: &Cell, path: &str) -> Result<Option<u64>, Error> {
    let open = || cell.open(path).write().uncached().create_file("");
    let opened = match open().await {
        Err(error) if error.code == "cell.no_parent" => {
            make_directories(cell, path).await?;
            open().await?
        }
        opened => opened?,
    };
    let stat = opened.opened_stat();
    Ok((stat.length == 0).then_some(stat.content_generation))
}

/// Makes all directories above a path. Without a look first, which would be cached.
pub(super) async fn make_directories(cell: &Cell, path: &str) -> Result<(), Error> {
    let ends = path.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0);
    for end in ends {
        cell.open(&path[..end]).uncached().create_directory().await?;
    }
    Ok(())
}

fn target(path: &str) -> Option<v1::NodeTarget> {
    Some(v1::NodeTarget { target: Some(Target::Path(path.to_owned())) })
}

fn unexpected() -> Error {
    Error::new("placement.unexpected", Class::Failed, "the cell's answer is of another kind than the question")
}
