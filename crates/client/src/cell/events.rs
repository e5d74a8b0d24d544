//! Streams of what happened: to a node ([`Watch`]) and to the session ([`SessionEvents`]).

use super::handle::Handle;
use futures::Stream;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::BitOr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tidings_wire::v1::{self, CellEventKind};

/// The most names that one event carries; with more it only says that there are more.
const MOST_NAMES: usize = 64;

/// The most session events that wait for a reader who takes none; the oldest go first, the last state stays.
const MOST_SESSION_EVENTS: usize = 64;

/// Which events a handle is to hear. `HandleInvalid` always comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events(pub(crate) u32);

impl Events {
    /// None but `HandleInvalid`.
    pub const NONE: Events = Events(0);
    /// The contents changed.
    pub const CONTENTS: Events = Events(1);
    /// Children were added, removed or changed.
    pub const CHILDREN: Events = Events(2);
    /// The lock was acquired, lost, or somebody waits for it.
    pub const LOCK: Events = Events(4);
    /// All of them.
    pub const ALL: Events = Events(7);

    /// Whether all of `other` are among these.
    pub fn contains(self, other: Events) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Events {
    type Output = Events;
    fn bitor(self, other: Events) -> Events {
        Events(self.0 | other.0)
    }
}

/// Something happened to a node. Several changes may be told as one: at least one event follows the last change, so
/// whoever reads after each event misses nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The contents changed.
    ContentsChanged,
    /// Children were added, removed or changed.
    ChildrenChanged {
        /// Which.
        names: Vec<String>,
        /// More changed than are named: list the directory.
        more: bool,
    },
    /// Somebody acquired the lock; or may have, while the cell had no master.
    LockAcquired,
    /// This handle held the lock and holds it no more.
    LockLost,
    /// Somebody waits for the lock that this handle holds.
    ConflictingRequest,
    /// The node is gone: all further calls on the handle fail. The last event.
    HandleInvalid,
}

impl Event {
    /// The same kind of event, whatever it carries.
    fn is_like(&self, other: &Event) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// The event of a message; after a fail-over, everything that was asked for so that a reader who
    /// knows nothing of fail-overs is right all the same.
    pub(crate) fn from_wire(event: v1::CellEvent, asked: Events) -> Vec<Event> {
        match event.kind() {
            CellEventKind::Unspecified => vec![],
            CellEventKind::ContentsChanged => vec![Event::ContentsChanged],
            CellEventKind::ChildrenChanged => {
                vec![Event::ChildrenChanged { names: event.children, more: event.more }]
            }
            CellEventKind::LockAcquired => vec![Event::LockAcquired],
            CellEventKind::LockLost => vec![Event::LockLost],
            CellEventKind::ConflictingRequest => vec![Event::ConflictingRequest],
            CellEventKind::HandleInvalid => vec![Event::HandleInvalid],
            CellEventKind::FailOver => {
                let contents = asked.contains(Events::CONTENTS).then_some(Event::ContentsChanged);
                let children =
                    asked.contains(Events::CHILDREN).then_some(Event::ChildrenChanged { names: vec![], more: true });
                let lock = asked.contains(Events::LOCK).then_some(Event::LockAcquired);
                contents.into_iter().chain(children).chain(lock).collect()
            }
        }
    }
}

/// Events on their way to one reader. Bounded: there is at most one event of each kind.
pub(crate) struct Inbox<E> {
    inner: Mutex<Waiting<E>>,
}

impl<E> Default for Inbox<E> {
    fn default() -> Self {
        Inbox { inner: Mutex::default() }
    }
}

struct Waiting<E> {
    events: VecDeque<E>,
    ended: bool,
    reader: Option<Waker>,
}

impl<E> Default for Waiting<E> {
    fn default() -> Self {
        Waiting { events: VecDeque::new(), ended: false, reader: None }
    }
}

impl<E> Inbox<E> {
    fn with(&self, change: impl FnOnce(&mut Waiting<E>)) {
        let mut waiting = self.inner.lock();
        change(&mut waiting);
        let reader = waiting.reader.take();
        drop(waiting);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Nothing comes any more; what waits is still read.
    pub(crate) fn end(&self) {
        self.with(|waiting| waiting.ended = true);
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<E>> {
        let mut waiting = self.inner.lock();
        match waiting.events.pop_front() {
            Some(event) => Poll::Ready(Some(event)),
            None if waiting.ended => Poll::Ready(None),
            None => {
                waiting.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Inbox<Event> {
    /// Adds an event, or makes one of the same kind that still waits say more.
    pub(crate) fn tell(&self, event: Event) {
        self.with(|waiting| match waiting.events.iter_mut().find(|e| e.is_like(&event)) {
            Some(earlier) => merge(earlier, event),
            None => waiting.events.push_back(event),
        });
    }
}

fn merge(earlier: &mut Event, later: Event) {
    let (Event::ChildrenChanged { names, more }, Event::ChildrenChanged { names: added, more: still_more }) =
        (earlier, later)
    else {
        return;
    };
    *more |= still_more;
    for name in added {
        match names.len() < MOST_NAMES {
            _ if names.contains(&name) => {}
            true => names.push(name),
            false => *more = true,
        }
    }
}

impl Inbox<SessionEvent> {
    pub(crate) fn tell(&self, event: SessionEvent) {
        self.with(|waiting| {
            if waiting.events.len() >= MOST_SESSION_EVENTS {
                waiting.events.pop_front();
            }
            waiting.events.push_back(event);
        });
    }
}

/// What happens to one node, as a stream. It ends with the handle, and with the session.
///
/// Events tell of changes after the watch began, so begin it first and read then:
///
/// ```no_run
/// # use tidings_client::cell::{Cell, Events};
/// # async fn example(cell: Cell) -> Result<(), tidings_base::Error> {
/// let file = cell.open("/app/config").read().events(Events::CONTENTS).await?;
/// let mut watch = file.watch();
/// loop {
///     println!("{}", file.contents_and_stat().await?.text());
///     if watch.next().await.is_none() {
///         break;
///     }
/// }
/// # Ok(()) }
/// ```
pub struct Watch {
    pub(crate) inbox: Arc<Inbox<Event>>,
    /// Kept open for as long as it is watched, where the watch was begun by path.
    pub(crate) handle: Option<Handle>,
}

impl Watch {
    /// The next event; `None` once the handle is closed or invalid, or the session has ended.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| self.inbox.poll(cx)).await
    }

    /// The handle that is watched, where the watch was begun by path.
    pub fn handle(&self) -> Option<&Handle> {
        self.handle.as_ref()
    }
}

impl Stream for Watch {
    type Item = Event;
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.inbox.poll(cx)
    }
}

/// What happens to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// The local lease ran out: nothing cached is served and calls wait. Whoever holds a lock should stop acting on it
    /// before the lock-delay has passed.
    Jeopardy,
    /// There is contact again, and the session still exists.
    Safe {
        /// Paths whose locks are held still.
        survived: Vec<String>,
        /// Paths whose locks were lost meanwhile.
        lost: Vec<String>,
    },
    /// The session is gone, and everything of it. The last event.
    Expired,
    /// The session was closed. The last event.
    Closed,
}

/// What happens to a session, as a stream; it ends with the session.
pub struct SessionEvents {
    pub(crate) inbox: Arc<Inbox<SessionEvent>>,
}

impl SessionEvents {
    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<SessionEvent> {
        std::future::poll_fn(|cx| self.inbox.poll(cx)).await
    }
}

impl Stream for SessionEvents {
    type Item = SessionEvent;
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<SessionEvent>> {
        self.inbox.poll(cx)
    }
}
