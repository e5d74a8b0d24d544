//! Channels of the clients that are connected to this node.

use super::hooks::Claims;
use super::traces::Traces;
use crate::metrics;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidings_notify::names::Channel;
use tidings_wire::v1;
use tokio::sync::mpsc;

/// Messages that wait for one client; what comes beyond is dropped, and sent again by its registrar.
const WAITING: usize = 64;

/// What a channel brings.
#[derive(Debug)]
pub(super) enum Down {
    Message(Box<v1::NotifyDown>),
    /// The client is to come back by another channel.
    Close,
}

/// The channels of this node, by number.
pub(super) struct Channels {
    node: u64,
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, Open>>,
    traces: Traces,
}

struct Open {
    app: String,
    claims: Claims,
    downs: mpsc::Sender<Down>,
}

impl Channels {
    /// Numbers are never used twice, not even by another process of this node: they begin somewhere at random.
    pub(super) fn new(node: u64, seed: u64) -> Channels {
        Channels { node, next: AtomicU64::new(seed >> 1), open: Mutex::default(), traces: Traces::default() }
    }

    /// What was sent by these channels, and when.
    pub(super) fn traces(&self) -> &Traces {
        &self.traces
    }

    pub(super) fn open(&self, app: &str, claims: Claims) -> (Channel, mpsc::Receiver<Down>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (downs, receiver) = mpsc::channel(WAITING);
        let mut open = self.open.lock();
        open.insert(number, Open { app: app.to_owned(), claims, downs });
        metrics::notify_channels(open.len());
        (Channel { node: self.node, number }, receiver)
    }

    pub(super) fn forget(&self, channel: Channel) {
        let mut open = self.open.lock();
        open.remove(&channel.number);
        metrics::notify_channels(open.len());
    }

    /// What the token says by which a channel of this node was opened; `None` if there is no such channel.
    pub(super) fn claims(&self, channel: Channel) -> Option<Claims> {
        let open = self.open.lock();
        open.get(&channel.number).filter(|_| channel.node == self.node).map(|open| open.claims.clone())
    }

    /// Gives a message to a channel of this node; `false` if there is no such channel.
    pub(super) fn send(&self, channel: Channel, message: Box<v1::NotifyDown>) -> bool {
        let open = self.open.lock();
        let Some(found) = open.get(&channel.number).filter(|_| channel.node == self.node) else { return false };
        for notification in &message.notifications {
            if let Some(times) = notification.times {
                self.traces.sent(&found.app, &notification.object, notification.version, times);
            }
        }
        match found.downs.try_send(Down::Message(message)) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                metrics::notify_dropped();
                true
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.open.lock().len()
    }

    /// The numbers of the channels of an application, or of all.
    pub(super) fn of(&self, app: Option<&str>) -> Vec<u64> {
        let open = self.open.lock();
        open.iter().filter(|(_, open)| app.is_none_or(|app| open.app == app)).map(|(number, _)| *number).collect()
    }

    /// Closes one channel after a while.
    pub(super) fn close_after(&self, number: u64, pause: Duration) {
        let open = self.open.lock();
        if let Some(downs) = open.get(&number).map(|open| open.downs.clone()) {
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                let _ = downs.send(Down::Close).await;
            });
        }
    }

    /// Closes all channels.
    pub(super) fn close(&self) {
        let mut open = self.open.lock();
        // Whoever has read what waits finds the end of the queue.
        open.clear();
        metrics::notify_channels(open.len());
    }
}
