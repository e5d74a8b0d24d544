//! What a session knows of one open handle: shared by the handle, its lock, its watches and the session.

use super::errors;
use super::events::{Event, Events, Inbox};
use super::stat::Stat;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use tidings_base::Error;
use tidings_cell::NodePath;
use tidings_cell::mutant::Mutant;
use tidings_wire::v1;
use tokio::sync::watch;

/// What was asked for at open.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) path: NodePath,
    pub(crate) read: bool,
    pub(crate) events: Events,
    pub(crate) uncached: bool,
    /// Nothing else is asked for: another open like it may share the handle.
    pub(crate) alike: Option<Alike>,
}

/// What makes opens alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Alike {
    path: NodePath,
    read: bool,
    write: bool,
}

impl Asked {
    /// What a request asks for. Lock handles are not shared (R9), nor is what tells or creates.
    pub(crate) fn new(request: &v1::OpenNode, mutant: Option<Mutant>) -> Result<Asked, Error> {
        let v1::OpenNode { read, write, lock, events, uncached, .. } = *request;
        let path = NodePath::parse(&request.path)?;
        let alone = lock && mutant != Some(Mutant::OpensShared);
        let plain = !alone && events == 0 && !uncached && request.create.is_none();
        let alike = plain.then(|| Alike { path: path.clone(), read, write });
        Ok(Asked { path, read, events: Events(events), uncached, alike })
    }
}

/// One open handle.
pub(crate) struct Opened {
    pub(crate) number: u64,
    pub(crate) asked: Asked,
    /// As it was opened. Its instance stays: a later node of the same path is another one.
    pub(crate) stat: Stat,
    pub(crate) created: bool,
    /// When the cell allowed it; `None` = it may not be shared.
    pub(crate) stamp: Option<v1::CacheStamp>,
    inner: Mutex<Inner>,
    poisoned: watch::Sender<bool>,
    /// Releases and given-up acquires whose end is not known yet.
    unsettled: watch::Sender<usize>,
    closed: AtomicBool,
}

#[derive(Default)]
struct Inner {
    watches: Vec<Weak<Inbox<Event>>>,
    grant: Option<Arc<Grant>>,
    /// No event comes any more.
    ended: bool,
    /// R11: calls on this handle are to fail once one of these is stale.
    sequencers: Vec<Bytes>,
}

/// A lock as it was granted, and whether it has been lost since.
pub(crate) struct Grant {
    pub(crate) generation: u64,
    pub(crate) sequencer: Bytes,
    lost: watch::Sender<Option<Error>>,
}

impl Grant {
    /// The lock is not held any more.
    fn lose(&self, why: Error) {
        self.lost.send_if_modified(|lost| match lost {
            Some(_) => false,
            None => {
                *lost = Some(why);
                true
            }
        });
    }

    /// Why the lock is lost, if it is.
    pub(crate) fn loss(&self) -> Option<Error> {
        self.lost.borrow().clone()
    }

    /// Waits until the lock is lost.
    pub(crate) async fn lost(&self) -> Error {
        let mut lost = self.lost.subscribe();
        match lost.wait_for(Option::is_some).await.map(|why| why.clone()) {
            Ok(Some(why)) => why,
            // The grant itself keeps the sender.
            _ => errors::closed(),
        }
    }
}

impl Opened {
    pub(crate) fn new(opened: &v1::NodeOpened, asked: Asked) -> Arc<Opened> {
        let stat = opened.stat.clone().map(Stat::from).unwrap_or_default();
        Opened::with(opened.handle, asked, stat, opened.created, opened.stamp)
    }

    /// The same handle for somebody else: what either does to its own is no concern of the other.
    pub(crate) fn again(&self, stat: Stat) -> Arc<Opened> {
        Opened::with(self.number, self.asked.clone(), stat, false, self.stamp)
    }

    fn with(number: u64, asked: Asked, stat: Stat, created: bool, stamp: Option<v1::CacheStamp>) -> Arc<Opened> {
        Arc::new(Opened {
            number,
            asked,
            stat,
            created,
            stamp,
            inner: Mutex::default(),
            poisoned: watch::Sender::new(false),
            unsettled: watch::Sender::new(0),
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn watch(&self) -> Arc<Inbox<Event>> {
        let inbox = Arc::new(Inbox::default());
        let mut inner = self.inner.lock();
        if inner.ended {
            inbox.end();
        }
        inner.watches.retain(|w| w.strong_count() > 0);
        inner.watches.push(Arc::downgrade(&inbox));
        inbox
    }

    /// Something happened to the node.
    pub(crate) fn event(&self, event: v1::CellEvent) {
        for event in Event::from_wire(event, self.asked.events) {
            let last = event == Event::HandleInvalid;
            if last || event == Event::LockLost {
                self.lose(errors::lock_lost(self.asked.path.as_str()));
            }
            let watches: Vec<_> = self.inner.lock().watches.iter().filter_map(Weak::upgrade).collect();
            for inbox in watches {
                inbox.tell(event.clone());
            }
            if last {
                self.end();
            }
        }
    }

    /// The lock was granted.
    pub(crate) fn granted(&self, acquired: &v1::LockAcquired) -> Arc<Grant> {
        let grant = Arc::new(Grant {
            generation: acquired.generation,
            sequencer: acquired.sequencer.clone(),
            lost: watch::Sender::new(None),
        });
        let mut inner = self.inner.lock();
        match inner.ended {
            // Nobody would ever hear that it is lost.
            true => grant.lose(errors::lock_lost(self.asked.path.as_str())),
            false => inner.grant = Some(grant.clone()),
        }
        drop(inner);
        grant
    }

    /// The lock is not held any more, if it was.
    pub(crate) fn lose(&self, why: Error) {
        let grant = self.inner.lock().grant.take();
        if let Some(grant) = grant {
            grant.lose(why);
        }
    }

    /// Nothing happens to this handle any more.
    pub(crate) fn end(&self) {
        let mut inner = self.inner.lock();
        inner.ended = true;
        let watches = std::mem::take(&mut inner.watches);
        drop(inner);
        for inbox in watches.iter().filter_map(Weak::upgrade) {
            inbox.end();
        }
    }

    /// Whether it is for the caller to close the handle.
    pub(crate) fn begin_close(&self) -> bool {
        !self.closed.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn poison(&self) {
        self.poisoned.send_replace(true);
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        *self.poisoned.borrow()
    }

    /// Waits until somebody poisons the handle.
    pub(crate) async fn poisoned(&self) {
        let mut poisoned = self.poisoned.subscribe();
        if poisoned.wait_for(|p| *p).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    pub(crate) fn sequencers(&self) -> Vec<Bytes> {
        self.inner.lock().sequencers.clone()
    }

    pub(crate) fn set_sequencers(&self, sequencers: Vec<Bytes>) {
        self.inner.lock().sequencers = sequencers;
    }

    /// A release began whose end matters to the next acquire.
    pub(crate) fn unsettle(&self) {
        self.unsettled.send_modify(|n| *n += 1);
    }

    pub(crate) fn settle(&self) {
        self.unsettled.send_modify(|n| *n = n.saturating_sub(1));
    }

    /// Waits until no release is under way: an acquire that overtook one would find the lock still held.
    pub(crate) async fn settled(&self) {
        if *self.unsettled.borrow() == 0 {
            return;
        }
        let mut unsettled = self.unsettled.subscribe();
        if unsettled.wait_for(|n| *n == 0).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
