//! Channels of clients that speak HTTP alone: what they post goes up, what they stream or poll comes down.
//!
//! A channel is its principal's: nobody else can speak or hear by it, whatever number he guesses. One that nobody reads for
//! [`IDLE`] is closed, whatever is said by it; its client opens another, as after any channel that closed.

use super::adapter::{Adapter, Seat};
use crate::clock::Clock;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidings_base::{Class, Error, Mono};
use tidings_wire::{error, v1};
use tokio::sync::mpsc;

/// How long a channel lives without anybody who streams or polls: some times a poll's pause.
const IDLE: Duration = Duration::from_secs(60);
/// How often channels are looked at that nobody uses.
const SWEEP: Duration = Duration::from_secs(5);
/// Channels of one node that speak HTTP.
const MOST: usize = 10_000;
/// Messages of one poll's answer, and those that wait for it.
const AT_ONCE: usize = 64;
/// Messages of one client that wait to be passed on; whoever says more waits, for so long.
const SAID: usize = 16;
const TAKEN: Duration = Duration::from_secs(10);

/// The channels of a node whose clients speak HTTP.
pub struct HttpChannels {
    clock: Arc<dyn Clock>,
    /// Channels of one principal: as many as it may have clients.
    each: usize,
    open: Mutex<BTreeMap<String, Arc<Held>>>,
}

struct Held {
    caller: v1::NotifyCaller,
    ups: mpsc::Sender<v1::NotifyUp>,
    /// One reads at a time.
    downs: Arc<tokio::sync::Mutex<mpsc::Receiver<v1::NotifyDown>>>,
    last: Mutex<Mono>,
}

/// The other ends of what is held for a client between its requests.
struct Posts {
    ups: mpsc::Receiver<v1::NotifyUp>,
    downs: mpsc::Sender<v1::NotifyDown>,
}

impl Adapter for Posts {
    async fn receive(&mut self) -> Result<v1::NotifyUp, Error> {
        self.ups.recv().await.ok_or_else(error::closed)
    }

    async fn send(&mut self, message: Box<v1::NotifyDown>) -> Result<(), Error> {
        self.downs.send(*message).await.map_err(|_| error::closed())
    }

    /// Whoever reads finds the end.
    fn close(self, _: Error) {}
}

/// The reading side of a channel, for as long as somebody reads.
pub struct Reading {
    held: Arc<Held>,
    downs: tokio::sync::OwnedMutexGuard<mpsc::Receiver<v1::NotifyDown>>,
    clock: Arc<dyn Clock>,
}

impl Drop for Reading {
    fn drop(&mut self) {
        *self.held.last.lock() = self.clock.now().mono;
    }
}

impl Reading {
    /// The next message; `None` once the channel is closed.
    pub async fn next(&mut self) -> Option<v1::NotifyDown> {
        self.downs.recv().await
    }

    /// What comes within a while: at least one message unless none comes, and what waits behind it. `None` once the channel
    /// is closed.
    pub async fn some(&mut self, wait: Duration) -> Option<Vec<v1::NotifyDown>> {
        let Ok(first) = tokio::time::timeout(wait, self.downs.recv()).await else { return Some(Vec::new()) };
        let mut all = vec![first?];
        while all.len() < AT_ONCE
            && let Ok(next) = self.downs.try_recv()
        {
            all.push(next);
        }
        Some(all)
    }
}

impl HttpChannels {
    /// None yet.
    pub fn new(clock: Arc<dyn Clock>, each: usize) -> Arc<HttpChannels> {
        let channels = Arc::new(HttpChannels { clock, each, open: Mutex::default() });
        tokio::spawn(sweep(Arc::downgrade(&channels)));
        channels
    }

    /// Keeps a channel under a name that nobody can guess.
    pub fn keep(&self, caller: v1::NotifyCaller, seat: Seat) -> Result<String, Error> {
        let (name, posts) = self.hold(caller)?;
        // It ends with what is held, or when the node lets its clients go.
        tokio::spawn(seat.serve(posts));
        Ok(name)
    }

    fn hold(&self, caller: v1::NotifyCaller) -> Result<(String, Posts), Error> {
        let mut name = [0; 16];
        getrandom::fill(&mut name)
            .map_err(|e| Error::new("node.no_randomness", Class::Failed, format!("no random bytes: {e}")))?;
        let name = name.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        let last = Mutex::new(self.clock.now().mono);
        let ((ups, said), (telling, downs)) = (mpsc::channel(SAID), mpsc::channel(AT_ONCE));
        let held = Held { caller, ups, downs: Arc::new(tokio::sync::Mutex::new(downs)), last };
        let mut open = self.open.lock();
        if open.len() >= MOST {
            return Err(Error::new("control.busy", Class::Unreachable, format!("{MOST} channels speak HTTP already"))
                .hint("Use another node, or frames over WebSocket."));
        }
        let ours =
            |other: &Held| (&other.caller.app, &other.caller.principal) == (&held.caller.app, &held.caller.principal);
        let others: Vec<(&String, &Arc<Held>)> = open.iter().filter(|(_, other)| ours(other)).collect();
        let full = others.len() >= self.each;
        // One that nobody reads may be of a client that has come by another since.
        let unread = others.into_iter().filter(|(_, other)| other.downs.try_lock().is_ok());
        let oldest = unread.min_by_key(|(_, other)| *other.last.lock()).map(|(name, _)| name.clone());
        if let Some(oldest) = oldest.as_ref().filter(|_| full) {
            open.remove(oldest);
        } else if full {
            return Err(Error::new(
                "notify.too_many_channels",
                Class::Refused,
                format!("{} channels of this principal speak HTTP already", self.each),
            )
            .hint("Close some, or raise `notify.ids` of the node's configuration."));
        }
        open.insert(name.clone(), Arc::new(held));
        Ok((name, Posts { ups: said, downs: telling }))
    }

    fn find(&self, caller: &v1::NotifyCaller, name: &str) -> Result<Arc<Held>, Error> {
        let held = self.open.lock().get(name).filter(|held| held.caller == *caller).cloned();
        held.ok_or_else(|| {
            Error::new("notify.no_channel", Class::NotFound, "there is no such channel")
                .hint("It was closed, or nobody has read it for too long: open another one.")
        })
    }

    /// Takes a client's message.
    pub async fn say(&self, caller: &v1::NotifyCaller, name: &str, up: v1::NotifyUp) -> Result<(), Error> {
        let held = self.find(caller, name)?;
        match tokio::time::timeout(TAKEN, held.ups.send(up)).await {
            // Without whoever takes it the node is stopping.
            Ok(sent) => sent.map_err(|_| error::going_away(None)),
            Err(_) => Err(Error::new("control.busy", Class::Unreachable, "what is said by this channel is not taken")
                .hint("Read what comes by it: answers wait for that.")),
        }
    }

    /// Begins to read; one reads at a time.
    pub fn read(&self, caller: &v1::NotifyCaller, name: &str) -> Result<Reading, Error> {
        let held = self.find(caller, name)?;
        let downs = held.downs.clone().try_lock_owned().map_err(|_| {
            Error::new("notify.channel_in_use", Class::Refused, "somebody reads this channel already")
                .hint("Stream or poll a channel once at a time.")
        })?;
        *held.last.lock() = self.clock.now().mono;
        Ok(Reading { held, downs, clock: self.clock.clone() })
    }

    /// Closes a channel.
    pub fn close(&self, caller: &v1::NotifyCaller, name: &str) -> Result<(), Error> {
        self.find(caller, name)?;
        self.open.lock().remove(name);
        Ok(())
    }

    /// Closes all, when the node stops.
    pub fn close_all(&self) {
        self.open.lock().clear();
    }
}

async fn sweep(channels: Weak<HttpChannels>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(channels) = channels.upgrade() else { return };
        let now = channels.clock.now().mono;
        // Whoever reads has the lock.
        channels.open.lock().retain(|_, held| held.downs.try_lock().is_err() || now.since(*held.last.lock()) < IDLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::PausedClock;

    fn ann() -> v1::NotifyCaller {
        v1::NotifyCaller { app: "shop".into(), principal: "ann".into(), ..Default::default() }
    }

    /// Whoever posts and never reads hears of nothing: the channel is none.
    #[tokio::test(start_paused = true)]
    async fn a_channel_that_nobody_reads_is_closed_whatever_is_said_by_it() {
        let ann = ann();
        let channels = HttpChannels::new(Arc::new(PausedClock::start()), 8);
        let (unread, mut posts) = channels.hold(ann.clone()).unwrap();
        let (read, _posts) = channels.hold(ann.clone()).unwrap();
        let mut said = 0;
        for _ in 0..10 {
            tokio::time::sleep(IDLE / 5).await;
            drop(channels.read(&ann, &read).unwrap());
            said += usize::from(channels.say(&ann, &unread, v1::NotifyUp::default()).await.is_ok());
        }
        assert!((3..=6).contains(&said), "{said}");
        assert_eq!(channels.say(&ann, &unread, v1::NotifyUp::default()).await.unwrap_err().code, "notify.no_channel");
        for _ in 0..said {
            posts.receive().await.unwrap();
        }
        assert!(posts.receive().await.is_err(), "its client is offline");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_taken_is_refused_in_the_end() {
        let ann = ann();
        let channels = HttpChannels::new(Arc::new(PausedClock::start()), 8);
        let (name, mut posts) = channels.hold(ann.clone()).unwrap();
        for _ in 0..SAID {
            channels.say(&ann, &name, v1::NotifyUp::default()).await.unwrap();
        }
        let late = tokio::time::timeout(2 * TAKEN, channels.say(&ann, &name, v1::NotifyUp::default()));
        assert_eq!(late.await.expect("it has a deadline").unwrap_err().code, "control.busy");
        posts.receive().await.unwrap();
        channels.say(&ann, &name, v1::NotifyUp::default()).await.unwrap();
    }
}
