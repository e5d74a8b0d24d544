//! Bodies of pages: in memory, on disk, or on their way past (rule L).

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tidings_base::{Class, Error};
use tidings_sketch::http::{Bodies, Hold};
use tidings_sketch::sketch::{BodyHash, BodyPen};
use tokio::io::AsyncWriteExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

/// Of so many bytes a file is read at a time.
const PIECE: u64 = 64 << 10;
/// What a permit of the disk's room stands for.
const ROOM_UNIT: u64 = 64 << 10;

/// A body.
#[derive(Debug)]
pub(crate) enum Held {
    Memory(Kept),
    Disk(Arc<Spool>),
    /// Too long to be held: whoever sends it takes it.
    Passing(Mutex<Option<Passing>>),
}

/// A body in memory, and the room that it takes until it is let go.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

/// Memory for bodies until they are verified, in bytes, for all sites together.
#[derive(Clone, Debug)]
pub(crate) struct Room(Arc<Semaphore>);

impl Room {
    pub(crate) fn new(bytes: usize) -> Room {
        Room(Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))))
    }

    /// Room for so many bytes, if there is some.
    fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
    }

    /// What is there already, if there is room for it.
    pub(crate) fn keep(&self, bytes: Bytes) -> Option<Held> {
        Some(Held::Memory(Kept { _room: self.take(bytes.len())?, bytes }))
    }
}

/// A body in a file that has no name.
#[derive(Debug)]
pub(crate) struct Spool {
    file: File,
    _room: OwnedSemaphorePermit,
}

/// A whole body, its length and its hash; and trailers.
pub(crate) struct Whole {
    pub(crate) body: Held,
    pub(crate) length: u64,
    pub(crate) hash: BodyHash,
    pub(crate) trailers: HeaderMap,
}

/// Where bodies are held.
pub(crate) struct Store {
    bodies: Bodies,
    directory: PathBuf,
    memory: Room,
    room: Arc<Semaphore>,
}

/// A body in a file that is being written.
struct Writing {
    file: tokio::fs::File,
    /// Of what was written. Apart, since it is two kilobytes: whatever waits for a body would be so much longer.
    pen: Box<BodyPen>,
    room: OwnedSemaphorePermit,
    units: u64,
}

impl Writing {
    async fn ended(mut self) -> io::Result<Arc<Spool>> {
        self.file.flush().await?;
        Ok(Arc::new(Spool { file: self.file.into_std().await, _room: self.room }))
    }
}

impl Store {
    pub(crate) fn new(bodies: Bodies, directory: PathBuf, room: u64, memory: Room) -> Store {
        let permits = usize::try_from(room / ROOM_UNIT).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Store { bodies, directory, memory, room: Arc::new(Semaphore::new(permits)) }
    }

    /// Takes a body in, to its end unless it passes by. What memory has no room for lies on disk, however short it is.
    pub(crate) async fn take(&self, mut incoming: Incoming) -> io::Result<Whole> {
        let told = incoming.size_hint().exact();
        match self.bodies.hold(told.unwrap_or(0)) {
            Hold::Refused => return Err(too_long()),
            Hold::Unverified => return Ok(passing(None, told, incoming)),
            Hold::Memory | Hold::Disk => {}
        }
        let (mut length, mut memory) = (0, BytesMut::new());
        let (mut writing, mut trailers) = (None::<Writing>, HeaderMap::new());
        let mut kept = self.memory.take(0).ok_or_else(no_room)?;
        while let Some(frame) = incoming.frame().await {
            match frame.map_err(io::Error::other)?.into_data() {
                Ok(data) => {
                    length += data.len() as u64;
                    match self.bodies.hold(length) {
                        Hold::Refused => return Err(too_long()),
                        // Its length was not told, and it was held so far.
                        Hold::Unverified => {
                            let begun = match writing {
                                Some(writing) => {
                                    let written = 0..length - data.len() as u64;
                                    Begun::Disk(Reading::new(writing.ended().await?, written))
                                }
                                None => Begun::Memory(Kept { bytes: memory.freeze(), _room: kept }),
                            };
                            return Ok(passing(Some((begun, data)), None, incoming));
                        }
                        Hold::Memory | Hold::Disk => {
                            let fits = writing.is_none() && self.bodies.hold(length) == Hold::Memory;
                            match self.memory.take(data.len()).filter(|_| fits) {
                                Some(room) => {
                                    kept.merge(room);
                                    memory.extend_from_slice(&data);
                                }
                                None => {
                                    self.write(&mut writing, &mut memory, &data, length).await?;
                                    drop(kept.split(kept.num_permits()));
                                }
                            }
                        }
                    }
                }
                Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
            }
        }
        let (body, hash) = match writing {
            None => {
                let body = memory.freeze();
                let hash = BodyHash::of(&body);
                (Held::Memory(Kept { bytes: body, _room: kept }), hash)
            }
            Some(writing) => {
                let hash = writing.pen.finish();
                (Held::Disk(writing.ended().await?), hash)
            }
        };
        Ok(Whole { body, length, hash, trailers })
    }

    /// From here on a body lies on disk, what is in memory of it too.
    async fn write(
        &self,
        writing: &mut Option<Writing>,
        memory: &mut BytesMut,
        data: &Bytes,
        length: u64,
    ) -> io::Result<()> {
        if writing.is_none() {
            let directory = self.directory.clone();
            let made = tokio::task::spawn_blocking(move || nameless(&directory)).await;
            let mut file = tokio::fs::File::from_std(made.map_err(io::Error::other)??);
            let (begun, mut pen) = (memory.split(), Box::<BodyPen>::default());
            file.write_all(&begun).await?;
            pen.part(&begun);
            let room = Arc::clone(&self.room).try_acquire_many_owned(0).map_err(io::Error::other)?;
            *writing = Some(Writing { file, pen, room, units: 0 });
        }
        let Some(writing) = writing else { return Ok(()) };
        let more = length.div_ceil(ROOM_UNIT).saturating_sub(writing.units);
        let permits = u32::try_from(more).unwrap_or(u32::MAX);
        let more_room = Arc::clone(&self.room).try_acquire_many_owned(permits);
        writing.room.merge(more_room.map_err(|_| io::Error::other("there is no room on disk for its body"))?);
        writing.units += more;
        writing.pen.part(data);
        writing.file.write_all(data).await
    }
}

/// A file without a name, which is gone once nobody has it.
fn nameless(directory: &Path) -> io::Result<File> {
    tempfile::tempfile_in(directory)
}

/// Refuses a directory in which bodies cannot lie: otherwise the first long page would find out.
pub(crate) fn check_spool(directory: &Path) -> Result<(), Error> {
    nameless(directory).map(drop).map_err(|error| {
        let what = format!("long bodies cannot lie in {}: {error}", directory.display());
        Error::new("sketch.bad_spool", Class::Invalid, what)
            .hint("Name a directory that is there, and that this process may write to, with --spool.")
    })
}

fn no_room() -> io::Error {
    io::Error::other("there is no room in memory for its body")
}

fn too_long() -> io::Error {
    io::Error::other("its body is too long")
}

fn passing(begun: Option<(Begun, Bytes)>, told: Option<u64>, rest: Incoming) -> Whole {
    let (begun, next) = begun.map_or((None, Bytes::new()), |(begun, next)| (Some(begun), next));
    let body = Held::Passing(Mutex::new(Some(Passing { begun, next, rest })));
    // Whoever says the same of it agrees; what it is nobody has seen.
    Whole { body, length: told.unwrap_or(0), hash: BodyHash([0; 32]), trailers: HeaderMap::new() }
}

/// A body on its way past.
#[derive(Debug)]
pub(crate) struct Passing {
    /// What was held before it was too long.
    begun: Option<Begun>,
    next: Bytes,
    rest: Incoming,
}

/// The beginning of a body.
#[derive(Debug)]
enum Begun {
    Memory(Kept),
    Disk(Reading),
}

impl Body for Passing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let piece = |bytes| Poll::Ready(Some(Ok(Frame::data(bytes))));
        match &mut self.begun {
            Some(Begun::Memory(kept)) => {
                let bytes = std::mem::take(&mut kept.bytes);
                self.begun = None;
                return piece(bytes);
            }
            Some(Begun::Disk(reading)) => match std::task::ready!(Pin::new(reading).poll_frame(context)) {
                Some(read) => return Poll::Ready(Some(read)),
                None => self.begun = None,
            },
            None => {}
        }
        if !self.next.is_empty() {
            return piece(std::mem::take(&mut self.next));
        }
        // Trailers pass by the rules that headers do, and nobody has looked at these.
        let frame = std::task::ready!(Pin::new(&mut self.rest).poll_frame(context));
        let frame = frame.map(|frame| frame.map_err(io::Error::other));
        Poll::Ready(frame.filter(|frame| frame.as_ref().map_or(true, Frame::is_data)))
    }

    fn size_hint(&self) -> SizeHint {
        // Whoever told a length was let past before anything of it was held.
        let told = self.rest.size_hint().exact().filter(|_| self.begun.is_none() && self.next.is_empty());
        told.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

impl Spool {
    /// All of a body that is short enough for memory.
    pub(crate) async fn whole(self: Arc<Self>, length: u64) -> io::Result<Bytes> {
        let reading = tokio::task::spawn_blocking(move || {
            let mut whole = vec![0; usize::try_from(length).map_err(io::Error::other)?];
            self.file.read_exact_at(&mut whole, 0)?;
            Ok(Bytes::from(whole))
        });
        reading.await.map_err(io::Error::other)?
    }
}

/// A part of a body on disk, read as the client takes it.
#[derive(Debug)]
pub(crate) struct Reading {
    spool: Arc<Spool>,
    at: u64,
    end: u64,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
}

impl Reading {
    pub(crate) fn new(spool: Arc<Spool>, part: std::ops::Range<u64>) -> Reading {
        Reading { spool, at: part.start, end: part.end, reading: None }
    }
}

impl Body for Reading {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.at >= self.end {
            return Poll::Ready(None);
        }
        let (at, length) = (self.at, PIECE.min(self.end - self.at));
        let spool = Arc::clone(&self.spool);
        let reading = self.reading.get_or_insert_with(|| {
            tokio::task::spawn_blocking(move || {
                let mut piece = vec![0; length as usize];
                spool.file.read_exact_at(&mut piece, at)?;
                Ok(Bytes::from(piece))
            })
        });
        let read = std::task::ready!(Pin::new(reading).poll(context));
        self.reading = None;
        self.at += length;
        Poll::Ready(Some(read.map_err(io::Error::other).and_then(|piece| piece).map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.end - self.at)
    }
}
