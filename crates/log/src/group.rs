//! Group commit: many callers, one write and one sync for all who wait.
//!
//! ```text
//!   append ─┐                     ┌─ write all of it in one piece ─ sync ─┐
//!   append ─┼─▶ bounded queue ──▶ writer thread                           ├─▶ callbacks, in order
//!   truncate┘        │            └─ meanwhile the queue fills again ─────┘
//!                    └─▶ readers see it at once
//! ```
//! While one round is on its way to the disk the next one gathers, so a slow disk makes larger rounds and not fewer
//! records a second. Changes of all sorts keep their order. A change can be read as soon as it is in the queue; its
//! callback says when it is durable.

use crate::log::{Log, Reader, purge};
use crate::view::{Change, View};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Called once, when a change is durable or has failed. It must be quick and must not panic: the next round waits.
pub type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// The bounds of a [`GroupCommit`].
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// The most changes that may wait, those on their way to the disk included. Changes without payload (truncate,
    /// purge, reset, flush) are taken up to twice that, so that appends cannot crowd them out. Default 16,384: many
    /// times what one fsync can be shared by before the queue adds noticeable delay.
    pub max_waiting: usize,
    /// The most bytes of payload that may wait; one larger change is taken when nothing waits. Default 32 MiB.
    pub max_waiting_bytes: usize,
    /// How many bytes of payload one round takes before it goes to the disk. Default 4 MiB: an fsync of that is still
    /// a matter of milliseconds.
    pub max_round_bytes: usize,
}

impl Default for GroupOptions {
    fn default() -> GroupOptions {
        GroupOptions { max_waiting: 16_384, max_waiting_bytes: 32 << 20, max_round_bytes: 4 << 20 }
    }
}

/// Why a change was not taken; its callback comes back uncalled.
pub struct Refused {
    /// The reason.
    pub reason: RefusedReason,
    /// The callback.
    pub done: Done,
}

/// Why a change was not taken.
#[derive(Debug, thiserror::Error)]
pub enum RefusedReason {
    /// Too much waits already: try again when [`GroupCommit::when_room`] says so.
    #[error("too many changes wait for the disk; try again when some are done")]
    Busy,
    /// It does not fit the log.
    #[error("{0}")]
    Invalid(io::Error),
    /// The log failed or was closed; it must be opened again.
    #[error("{0}")]
    Stopped(io::Error),
}

impl std::fmt::Debug for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Refused").field("reason", &self.reason).finish_non_exhaustive()
    }
}

/// How much a [`GroupCommit`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Rounds that reached the disk, one write and one sync each.
    pub rounds: u64,
    /// Changes in them.
    pub changes: u64,
    /// Changes that wait now, those on their way to the disk included.
    pub waiting: usize,
    /// Bytes of payload that wait now.
    pub waiting_bytes: usize,
}

struct Job {
    /// `None` only waits for those before it.
    change: Option<Change>,
    number: u64,
    bytes: usize,
    done: Done,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    stats: GroupStats,
    /// Called when half of the room is free again.
    on_room: Vec<Box<dyn FnOnce() + Send>>,
    stopped: Option<(io::ErrorKind, String)>,
    writer_sleeps: bool,
}

struct Shared {
    view: Arc<View>,
    reader: Reader,
    options: GroupOptions,
    queue: Mutex<Queue>,
    work: Condvar,
    /// The log itself; `None` when it is closed. Only a round holds this lock.
    log: Mutex<Option<Log>>,
}

/// Shares one [`Log`] among many callers; cheap to clone. When the last clone is dropped, everything queued is
/// written, and the log is closed.
#[derive(Clone)]
pub struct GroupCommit {
    owner: Arc<Owner>,
}

struct Owner {
    shared: Arc<Shared>,
    mode: Mode,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Thread,
    Inline,
    Manual,
}

impl GroupCommit {
    /// Starts a thread that writes. Fails only if the system gives no thread.
    pub fn start(log: Log, options: GroupOptions) -> io::Result<GroupCommit> {
        let group = GroupCommit::with(log, options, Mode::Thread);
        let shared = group.owner.shared.clone();
        let thread = std::thread::Builder::new().name("log-writer".to_owned()).spawn(move || shared.write_on())?;
        *group.owner.thread.lock() = Some(thread);
        Ok(group)
    }

    /// Without a thread: every change is written and synced within the call, and its callback called.
    pub fn inline(log: Log) -> GroupCommit {
        GroupCommit::with(log, GroupOptions::default(), Mode::Inline)
    }

    /// Without a thread: changes wait until [`pump`](GroupCommit::pump) performs a round.
    pub fn manual(log: Log, options: GroupOptions) -> GroupCommit {
        GroupCommit::with(log, options, Mode::Manual)
    }

    fn with(log: Log, options: GroupOptions, mode: Mode) -> GroupCommit {
        let shared = Shared {
            view: log.view().clone(),
            reader: log.reader(),
            options,
            queue: Mutex::default(),
            work: Condvar::new(),
            log: Mutex::new(Some(log)),
        };
        GroupCommit { owner: Arc::new(Owner { shared: Arc::new(shared), mode, thread: Mutex::new(None) }) }
    }

    /// Adds records at the end; `first_index` must be the log's next. They can be read when this returns, and are
    /// durable when `done` is called. A round takes all of it or nothing.
    pub fn append(&self, first_index: u64, payloads: Vec<Bytes>, done: Done) -> Result<(), Refused> {
        let bytes = payloads.iter().map(Bytes::len).sum();
        self.put(bytes, done, |_, _| Some(Change::Append { first: first_index, payloads }))
    }

    /// Drops everything after `index`.
    pub fn truncate_after(&self, index: u64, done: Done) -> Result<(), Refused> {
        self.truncate_from(index.saturating_add(1), done)
    }

    /// Drops `index` and everything after it.
    pub fn truncate_from(&self, index: u64, done: Done) -> Result<(), Refused> {
        self.put(0, done, |_, next| (index < next).then_some(Change::TruncateFrom(index)))
    }

    /// Drops everything up to and including `index`, as [`Log::purge_through`] does.
    pub fn purge_through(&self, index: u64, done: Done) -> Result<(), Refused> {
        self.put(0, done, |first, next| purge(index, first, next))
    }

    /// Drops everything and goes on at `next_index`.
    pub fn reset(&self, next_index: u64, done: Done) -> Result<(), Refused> {
        self.put(0, done, |_, _| Some(Change::Reset(next_index)))
    }

    /// Calls `done` when everything queued so far is durable.
    pub fn flush(&self, done: Done) -> Result<(), Refused> {
        self.put(0, done, |_, _| None)
    }

    /// Reads as [`Log::read`] does, while others write.
    pub fn read(&self, from: u64, to: u64, max_bytes: usize) -> io::Result<Vec<(u64, Bytes)>> {
        self.owner.shared.reader.read(from, to, max_bytes)
    }

    /// A handle that only reads.
    pub fn reader(&self) -> Reader {
        self.owner.shared.reader.clone()
    }

    /// The first index that the log holds or will hold.
    pub fn first(&self) -> u64 {
        self.owner.shared.reader.first()
    }

    /// The index that the next record will have.
    pub fn next(&self) -> u64 {
        self.owner.shared.reader.next()
    }

    /// The last index, `None` if the log is empty.
    pub fn last(&self) -> Option<u64> {
        self.owner.shared.reader.last()
    }

    /// How much it has done, and how much waits.
    pub fn stats(&self) -> GroupStats {
        self.owner.shared.queue.lock().stats
    }

    /// Calls `wake` once when at least half of the queue's room is free: at once if it is, or if the log stopped.
    pub fn when_room(&self, wake: Box<dyn FnOnce() + Send>) {
        let shared = &self.owner.shared;
        let mut queue = shared.queue.lock();
        if queue.stopped.is_some() || shared.has_room(&queue) {
            drop(queue);
            wake();
        } else {
            queue.on_room.push(wake);
        }
    }

    /// Performs one round if anything waits, and says whether it did: for [`manual`](GroupCommit::manual).
    pub fn pump(&self) -> bool {
        self.owner.shared.round()
    }

    /// Writes everything queued and closes the log; changes are refused from now on, reads are not.
    ///
    /// Not to be called from a callback of the same log: it waits for them.
    pub fn close(&self) -> io::Result<()> {
        self.owner.close()
    }

    fn put(&self, bytes: usize, done: Done, change: impl FnOnce(u64, u64) -> Option<Change>) -> Result<(), Refused> {
        let shared = &self.owner.shared;
        let mut queue = shared.queue.lock();
        if let Some(stopped) = &queue.stopped {
            return Err(Refused { reason: RefusedReason::Stopped(again(stopped)), done });
        }
        let (waiting, waiting_bytes) = (queue.stats.waiting, queue.stats.waiting_bytes);
        let max_waiting = shared.options.max_waiting * if bytes == 0 { 2 } else { 1 };
        let fits = waiting < max_waiting
            && (bytes == 0 || waiting_bytes == 0 || waiting_bytes + bytes <= shared.options.max_waiting_bytes);
        if !fits {
            return Err(Refused { reason: RefusedReason::Busy, done });
        }
        let (first, next) = shared.view.bounds();
        let change = change(first, next);
        let number = match change.as_ref().map(|change| shared.view.show(change)) {
            None => 0,
            Some(Ok(number)) => number,
            Some(Err(e)) => return Err(Refused { reason: RefusedReason::Invalid(e), done }),
        };
        queue.jobs.push_back(Job { change, number, bytes, done });
        queue.stats.waiting += 1;
        queue.stats.waiting_bytes += bytes;
        let wake = std::mem::take(&mut queue.writer_sleeps);
        drop(queue);
        match self.owner.mode {
            Mode::Thread if wake => {
                shared.work.notify_one();
            }
            Mode::Inline => {
                shared.round();
            }
            Mode::Thread | Mode::Manual => {}
        }
        Ok(())
    }
}

fn again(error: &(io::ErrorKind, String)) -> io::Error {
    io::Error::new(error.0, error.1.clone())
}

impl Shared {
    fn has_room(&self, queue: &Queue) -> bool {
        queue.stats.waiting <= self.options.max_waiting / 2
            && queue.stats.waiting_bytes <= self.options.max_waiting_bytes / 2
    }

    /// The writer thread: rounds until the group is closed and nothing waits.
    fn write_on(&self) {
        let guard = StopOnPanic(self);
        loop {
            let mut queue = self.queue.lock();
            while queue.jobs.is_empty() {
                if queue.stopped.is_some() {
                    drop(queue);
                    std::mem::forget(guard);
                    return;
                }
                queue.writer_sleeps = true;
                self.work.wait(&mut queue);
            }
            drop(queue);
            self.round();
        }
    }

    /// Takes what waits, writes it in one piece, syncs once, calls the callbacks in order.
    fn round(&self) -> bool {
        let mut holder = self.log.lock();
        let mut jobs = self.gather();
        if jobs.is_empty() {
            return false;
        }
        let changes: Vec<Change> = jobs.iter_mut().filter_map(|job| job.change.take()).collect();
        let outcome = match holder.as_mut() {
            Some(log) => self.perform(log, &changes, &jobs),
            None => Err(io::Error::other("the log is closed")),
        };
        let failure = outcome.err().map(|error| (error.kind(), error.to_string()));
        if failure.is_some() {
            self.give_up(holder.as_ref(), &mut jobs);
        }
        drop(holder);
        let woken = self.settle_accounts(&jobs, changes.len(), failure.is_none());
        let mut panic = None;
        for job in jobs {
            // One caller's panic must not keep the others from hearing; it stops the log when they have.
            let call = || (job.done)(failure.as_ref().map_or(Ok(()), |error| Err(again(error))));
            panic = std::panic::catch_unwind(AssertUnwindSafe(call)).err().or(panic);
        }
        for wake in woken {
            wake();
        }
        if let Some(panic) = panic {
            std::panic::resume_unwind(panic);
        }
        true
    }

    fn gather(&self) -> Vec<Job> {
        let mut queue = self.queue.lock();
        let mut bytes = 0;
        let mut count = 0;
        for job in &queue.jobs {
            bytes += job.bytes;
            if count > 0 && bytes > self.options.max_round_bytes {
                break;
            }
            count += 1;
        }
        queue.jobs.drain(..count).collect()
    }

    fn perform(&self, log: &mut Log, changes: &[Change], jobs: &[Job]) -> io::Result<()> {
        if !changes.is_empty() {
            let steps = log.write(changes)?;
            let number = jobs.iter().map(|job| job.number).max().unwrap_or(0);
            self.view.written(number, steps);
        }
        log.sync()?;
        if changes.iter().any(|change| matches!(change, Change::PurgeTo(_) | Change::Reset(_))) {
            log.remove_dead_segments()?;
        }
        Ok(())
    }

    /// After a failure everything that waits fails too, since it was to follow what failed. Readers see the log as it
    /// was written. If the log is still usable (the disk was too full for a new segment), it goes on from there.
    fn give_up(&self, log: Option<&Log>, jobs: &mut Vec<Job>) {
        let mut queue = self.queue.lock();
        jobs.extend(queue.jobs.drain(..));
        let Some(log) = log else { return };
        let (first, next) = log.on_disk();
        self.view.take_back(first, next);
        if let Err(e) = log.usable() {
            queue.stopped.get_or_insert((e.kind(), e.to_string()));
        }
    }

    fn settle_accounts(&self, jobs: &[Job], changes: usize, done: bool) -> Vec<Box<dyn FnOnce() + Send>> {
        let mut queue = self.queue.lock();
        queue.stats.waiting -= jobs.len();
        queue.stats.waiting_bytes -= jobs.iter().map(|job| job.bytes).sum::<usize>();
        if done {
            queue.stats.rounds += 1;
            queue.stats.changes += changes as u64;
        }
        if queue.stopped.is_some() || self.has_room(&queue) { std::mem::take(&mut queue.on_room) } else { Vec::new() }
    }
}

/// If a callback panics, the writer is gone: callers must hear of it instead of waiting for ever.
struct StopOnPanic<'a>(&'a Shared);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        let stopped = (io::ErrorKind::Other, "the log's writer stopped: a callback panicked".to_owned());
        queue.stopped.get_or_insert(stopped.clone());
        let jobs = std::mem::take(&mut queue.jobs);
        let woken = std::mem::take(&mut queue.on_room);
        drop(queue);
        for job in jobs {
            (job.done)(Err(again(&stopped)));
        }
        for wake in woken {
            wake();
        }
    }
}

impl Owner {
    fn close(&self) -> io::Result<()> {
        {
            let mut queue = self.shared.queue.lock();
            queue.stopped.get_or_insert((io::ErrorKind::NotConnected, "the log is closed".to_owned()));
            queue.writer_sleeps = false;
        }
        self.shared.work.notify_one();
        let thread = self.thread.lock().take();
        // The last clone may be dropped by a callback: then the writer itself is here, and goes on after it.
        let on_writer = thread.as_ref().is_some_and(|thread| thread.thread().id() == std::thread::current().id());
        if on_writer {
            return Ok(());
        }
        let panicked = thread.is_some_and(|thread| thread.join().is_err());
        while self.mode != Mode::Thread && self.shared.round() {}
        let log = self.shared.log.lock().take();
        if panicked {
            return Err(io::Error::other("the log's writer stopped: a callback panicked"));
        }
        log.map_or(Ok(()), Log::close)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Who needs to know calls `close`.
        let _ = self.close();
    }
}
