//! Which cluster a node belongs to.
//!
//! Numbers of nodes and addresses are given by people and may be given twice. So a cluster has a number of its own, drawn
//! at random by its first leader and agreed as an entry of its log: the first such entry counts. Every message says it,
//! and one of another cluster is refused, whatever else it says. A node that knows no number (it is about to join, or its
//! directory is of an earlier version) takes that of the first leader that it accepts, once.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;
use tidings_base::{Mono, NodeId};
use tokio::sync::watch;

/// So many strangers are remembered: those that were named by mistake, not all that there are.
const MAX_STRANGERS: usize = 64;

/// How long a stranger that was not heard again is worth a word, and how often its refusal is logged.
const RECENT: Duration = Duration::from_secs(60);

/// The number by which a cluster knows its own; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClusterId(NonZeroU64);

impl ClusterId {
    /// The cluster of this number; 0 stands for none.
    pub fn new(number: u64) -> Option<ClusterId> {
        NonZeroU64::new(number).map(ClusterId)
    }

    /// As it travels.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for ClusterId {
    type Err = ();

    fn from_str(digits: &str) -> Result<ClusterId, ()> {
        let whole = digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let number = u64::from_str_radix(digits, 16).ok().filter(|_| whole);
        number.and_then(ClusterId::new).ok_or(())
    }
}

/// A node of another cluster that this one spoke to or heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stranger {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Whether it answered under that number, or only called.
    pub(crate) answered: bool,
    /// When it was last refused.
    at: Mono,
}

type Keep = Box<dyn Fn(ClusterId) -> io::Result<()> + Send + Sync>;

/// What a node knows of its cluster, shared by all its groups.
pub struct Identity {
    known: OnceLock<ClusterId>,
    /// Writes the number down; called before anybody is told of it, and by one at a time.
    keep: Mutex<Keep>,
    strangers: watch::Sender<BTreeMap<NodeId, Stranger>>,
}

impl Default for Identity {
    /// Of a node that knows no number and keeps what it learns in memory only.
    fn default() -> Identity {
        Identity::new(None, |_| Ok(()))
    }
}

impl Identity {
    /// Of a node that has written `known` down before, and writes down what it learns with `keep`.
    pub fn new(
        known: Option<ClusterId>,
        keep: impl Fn(ClusterId) -> io::Result<()> + Send + Sync + 'static,
    ) -> Identity {
        let known = known.map_or_else(OnceLock::new, OnceLock::from);
        Identity { known, keep: Mutex::new(Box::new(keep)), strangers: watch::Sender::default() }
    }

    /// The cluster, if it is known.
    pub fn known(&self) -> Option<ClusterId> {
        self.known.get().copied()
    }

    /// As messages say it.
    pub(crate) fn wire(&self) -> u64 {
        self.known().map_or(0, ClusterId::get)
    }

    /// Takes this number, unless there is one already.
    pub(crate) fn adopt(&self, cluster: ClusterId) -> io::Result<()> {
        let keep = self.keep.lock();
        if self.known.get().is_none() {
            keep(cluster)?;
            // Set under the lock alone.
            let _ = self.known.set(cluster);
            tracing::info!(%cluster, "this node knows its cluster");
        }
        Ok(())
    }

    /// Whether a message that says `theirs` comes from another cluster: then from which, and `true` if that is worth a
    /// line in the log.
    pub(crate) fn refuses(&self, from: NodeId, theirs: u64, answered: bool, now: Mono) -> Option<(ClusterId, bool)> {
        let cluster = ClusterId::new(theirs)?;
        if self.known().is_none_or(|ours| ours == cluster) {
            return None;
        }
        let mut news = true;
        self.strangers.send_modify(|strangers| {
            strangers.retain(|_, stranger| now.since(stranger.at) < RECENT);
            let before = strangers.get(&from).filter(|before| before.cluster == cluster);
            news = before.is_none();
            let answered = answered || before.is_some_and(|before| before.answered);
            if strangers.len() < MAX_STRANGERS || strangers.contains_key(&from) {
                strangers.insert(from, Stranger { cluster, answered, at: now });
            }
        });
        Some((cluster, news))
    }

    /// Forgets that a node was a stranger: it is tried again.
    pub(crate) fn forgive(&self, node: NodeId) {
        self.strangers.send_modify(|strangers| _ = strangers.remove(&node));
    }

    /// The strangers as they come.
    pub(crate) fn watch(&self) -> watch::Receiver<BTreeMap<NodeId, Stranger>> {
        self.strangers.subscribe()
    }

    /// The strangers that were refused within the last minute.
    pub(crate) fn strangers(&self, now: Mono) -> BTreeMap<NodeId, Stranger> {
        let mut strangers = self.strangers.borrow().clone();
        strangers.retain(|_, stranger| now.since(stranger.at) < RECENT);
        strangers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn id(number: u64) -> ClusterId {
        ClusterId::new(number).unwrap()
    }

    #[test]
    fn a_number_is_written_down_before_it_is_known_and_never_changes() {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (sink, full) = (kept.clone(), Arc::new(Mutex::new(true)));
        let disk = full.clone();
        let identity = Identity::new(None, move |cluster| match *disk.lock() {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => {
                sink.lock().push(cluster);
                Ok(())
            }
        });
        assert!(identity.adopt(id(7)).is_err());
        assert_eq!(identity.known(), None);
        *full.lock() = false;
        identity.adopt(id(8)).unwrap();
        identity.adopt(id(9)).unwrap();
        assert_eq!((identity.known(), kept.lock().clone()), (Some(id(8)), vec![id(8)]));
    }

    #[test]
    fn only_another_number_is_refused_and_told_once_in_a_while() {
        let identity = Identity::new(Some(id(1)), |_| Ok(()));
        let (now, later) = (Mono(1), Mono(1) + RECENT);
        assert_eq!(identity.refuses(NodeId(2), 0, true, now), None, "it does not know its cluster yet");
        assert_eq!(identity.refuses(NodeId(2), 1, true, now), None);
        assert_eq!(identity.refuses(NodeId(2), 5, true, now), Some((id(5), true)));
        assert_eq!(identity.refuses(NodeId(2), 5, true, now), Some((id(5), false)));
        assert_eq!(identity.strangers(now).keys().copied().collect::<Vec<_>>(), [NodeId(2)]);
        assert!(identity.strangers(later).is_empty());
        assert_eq!(identity.refuses(NodeId(2), 5, true, later), Some((id(5), true)));
        assert_eq!(Identity::default().refuses(NodeId(2), 5, true, now), None, "one that knows none refuses nobody");
    }

    #[test]
    fn a_number_is_read_as_it_is_shown() {
        assert_eq!(id(0x2f).to_string().parse(), Ok(id(0x2f)));
        for wrong in ["", "2f", "0000000000000000", "+00000000000002f", "000000000000002g"] {
            assert_eq!(wrong.parse::<ClusterId>(), Err(()), "{wrong:?}");
        }
    }
}
