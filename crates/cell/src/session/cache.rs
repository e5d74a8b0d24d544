//! What readers of this session may serve without asking: which entries, and until when.
//!
//! The entries themselves are with the readers; here is only which there are. An answer may be cached if nothing can have
//! changed since the master recorded that this session may cache it: see [`Session::put_read`].

use super::calls::Call;
use super::lease::Phase;
use super::{CacheChange, Output, Session, Timer};
use crate::mutant::Mutant;
use crate::path::NodePath;
use std::collections::BTreeMap;
use tidings_base::bounded::BoundedMap;
use tidings_base::{Mono, Outbox};
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;

/// What is cached and invalidated as one: a node, or the listing of its children.
pub(super) type Key = (NodePath, bool);

/// What a call of this session may change: nothing of it is cached from when the call is made until it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    Keys {
        keys: Vec<Key>,
        /// Everything below it, too: others may know now of what is absent there.
        below: Option<NodePath>,
    },
    All,
}

impl Touch {
    /// Whether it may change what a read of this path is answered.
    pub(super) fn may_change(&self, path: &str) -> bool {
        match self {
            Touch::Keys { keys, below } => {
                let is_below = |above: &NodePath| NodePath::parse(path).map_or(true, |path| path.is_below(above));
                keys.iter().any(|(key, _)| key.as_str() == path) || below.as_ref().is_some_and(is_below)
            }
            Touch::All => true,
        }
    }
}

/// Whether entries may be kept and served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No lease of the link counts yet: entries are kept, and not served.
    Warming,
    /// Entries are served until then.
    Open { until: Mono },
    /// A lease ran out: nothing is kept. Everything is flushed before it opens again (R4).
    Lapsed,
}

/// The session's part of the cache.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    state: State,
    /// When the session was created or resumed in this epoch: the link's leases asked for earlier do not count.
    attached: Mono,
    /// The latest end of those that count.
    link_until: Option<Mono>,
    /// Which entries there are, and whether each has its contents. Oldest first out.
    entries: Option<BoundedMap<Key, bool>>,
    /// R4: answers stamped below are used and not cached.
    floor: u64,
    /// Keys that own calls under way may change.
    blocked: BTreeMap<Key, u32>,
    blocked_below: BTreeMap<NodePath, u32>,
    blocked_whole: u32,
    /// Grows with every flush: an answer to a question of before is not cached.
    flushes: u64,
}

impl Cache {
    pub(super) fn new(bound: usize) -> Cache {
        Cache {
            state: State::Warming,
            attached: Mono(0),
            link_until: None,
            entries: (bound > 0).then(|| BoundedMap::new(bound)),
            floor: 0,
            blocked: BTreeMap::new(),
            blocked_below: BTreeMap::new(),
            blocked_whole: 0,
            flushes: 0,
        }
    }

    pub(super) fn flushes(&self) -> u64 {
        self.flushes
    }

    pub(super) fn is_lapsed(&self) -> bool {
        self.state == State::Lapsed
    }

    /// The session is known to a master from now on: sequences and leases begin anew.
    pub(super) fn attach(&mut self, now: Mono) {
        self.state = State::Warming;
        self.attached = now;
        self.link_until = None;
        self.floor = 0;
    }

    /// Takes a lease of the link; whether it counts and is news.
    pub(super) fn renew(&mut self, asked: Mono, until: Mono) -> bool {
        // Not at the same instant either: on a coarse clock that may have been before.
        let counts = asked > self.attached && self.link_until.is_none_or(|known| until > known);
        if counts {
            self.link_until = Some(until);
        }
        counts
    }

    /// The answer to an own change: slower answers from before it are not cached.
    pub(super) fn raise_floor(&mut self, epoch: u64, stamp: Option<&v1::CacheStamp>) {
        if let Some(stamp) = stamp.filter(|stamp| stamp.epoch == epoch) {
            self.floor = self.floor.max(stamp.seq);
        }
    }

    pub(super) fn block(&mut self, touch: &Touch) {
        match touch {
            Touch::All => self.blocked_whole += 1,
            Touch::Keys { keys, below } => {
                keys.iter().for_each(|key| *self.blocked.entry(key.clone()).or_default() += 1);
                below.iter().for_each(|path| *self.blocked_below.entry(path.clone()).or_default() += 1);
            }
        }
    }

    pub(super) fn unblock(&mut self, touch: &Touch) {
        match touch {
            Touch::All => self.blocked_whole -= 1,
            Touch::Keys { keys, below } => {
                keys.iter().for_each(|key| one_less(&mut self.blocked, key));
                below.iter().for_each(|path| one_less(&mut self.blocked_below, path));
            }
        }
    }

    pub(super) fn is_blocked(&self, key: &Key) -> bool {
        self.blocked_whole > 0
            || self.blocked.contains_key(key)
            || self.blocked_below.keys().any(|above| key.0.is_below(above))
    }

    fn drop_key(&mut self, key: &Key, out: &mut Outbox<Output>) {
        if self.entries.as_mut().is_some_and(|entries| entries.remove(key).is_some()) {
            let (path, listing) = key.clone();
            out.put(Output::Cache(CacheChange::Drop { path, listing }));
        }
    }

    fn drop_below(&mut self, path: &NodePath, out: &mut Outbox<Output>) {
        let Some(entries) = &self.entries else { return };
        let within = entries.keys_from(&(path.bound_below(), false)).take_while(|key| key.0.is_within(path));
        let below: Vec<Key> = within.filter(|key| key.0 != *path).cloned().collect();
        below.iter().for_each(|key| self.drop_key(key, out));
    }

    fn flush(&mut self, out: &mut Outbox<Output>) {
        if let Some(entries) = &mut self.entries {
            while entries.pop_oldest().is_some() {}
        }
        self.flushes += 1;
        out.put(Output::Cache(CacheChange::Flush));
    }

    /// Lets entries be served until then. After a lapse what was cached before is gone first.
    fn open(&mut self, now: Mono, until: Mono, out: &mut Outbox<Output>) {
        if until <= now {
            return;
        }
        match self.state {
            State::Open { until: same } if same == until => return,
            State::Lapsed => self.flush(out),
            State::Warming | State::Open { .. } => {}
        }
        self.state = State::Open { until };
        out.put(Output::Cache(CacheChange::Until(until)));
    }

    fn put(&mut self, key: Key, full: bool, read: v1::NodeRead, out: &mut Outbox<Output>) {
        let Some(entries) = &mut self.entries else { return };
        // Both are true; the one that has the contents is worth more.
        if !full && entries.get(&key).is_some_and(|has_contents| *has_contents) {
            return;
        }
        if let Some(((path, listing), _)) = entries.insert(key.clone(), full) {
            out.put(Output::Cache(CacheChange::Drop { path, listing }));
        }
        out.put(Output::Cache(CacheChange::Put { path: key.0, listing: key.1, read }));
    }
}

impl Session {
    /// Either lease moved: entries may be served until the earlier end.
    pub(super) fn update_until(&mut self, now: Mono, out: &mut Outbox<Output>) {
        let Phase::Active { until: lease } = self.phase else { return };
        let Some(link) = self.cache.link_until else { return };
        self.cache.open(now, lease.min(link), out);
        if let State::Open { until } = self.cache.state {
            self.timers.set(Timer::Cache, until);
            self.timers.cancel(&Timer::Doubt);
        }
    }

    /// Entries may not be used any more.
    pub(super) fn cache_lapsed(&mut self, now: Mono, out: &mut Outbox<Output>) {
        self.cache_off(out);
        self.doubt(now, out);
    }

    /// Nothing is kept until both leases hold again.
    pub(super) fn cache_off(&mut self, out: &mut Outbox<Output>) {
        self.cache.state = State::Lapsed;
        self.timers.cancel(&Timer::Cache);
        self.cache.flush(out);
    }

    /// Another master: everything goes, and nothing is served under leases of the old one.
    pub(super) fn cache_reset(&mut self, out: &mut Outbox<Output>) {
        self.cache.flush(out);
        self.cache.state = State::Warming;
        self.cache.link_until = None;
        self.timers.cancel(&Timer::Cache);
        out.put(Output::Cache(CacheChange::Until(Mono(0))));
    }

    /// Does what a batch says, before it is acknowledged.
    pub(super) fn invalidate(&mut self, seq: u64, flush: bool, gone: &[v1::Invalidation], out: &mut Outbox<Output>) {
        self.cache.floor = self.cache.floor.max(seq);
        if flush {
            return self.cache.flush(out);
        }
        for invalidation in gone {
            match NodePath::parse(&invalidation.path) {
                Ok(path) => self.cache.drop_key(&(path, invalidation.listing), out),
                // Not understood: it may mean anything.
                Err(_) => self.cache.flush(out),
            }
        }
    }

    /// An own call is about to change these: the request acknowledges for the copies here.
    pub(super) fn block(&mut self, touch: &Touch, out: &mut Outbox<Output>) {
        self.cache.block(touch);
        self.calls.taint(touch);
        match touch {
            Touch::All => self.cache.flush(out),
            Touch::Keys { keys, below } => {
                keys.iter().for_each(|key| self.cache.drop_key(key, out));
                below.iter().for_each(|path| self.cache.drop_below(path, out));
            }
        }
    }

    /// Caches an answer, if it may be. R4: not without a stamp of this epoch, not one stamped below what was processed,
    /// not when a lease ran out, everything was flushed, or an own change of the key was made since the question was sent.
    pub(super) fn put_read(&mut self, call: &Call, key: Key, full: bool, read: v1::NodeRead, out: &mut Outbox<Output>) {
        let (Some(me), Some(stamp)) = (self.me, read.stamp) else { return };
        let fresh = stamp.epoch == me.epoch && stamp.seq >= self.cache.floor || self.mutant(Mutant::StampIgnored);
        let undisturbed = !call.tainted && call.flushes == self.cache.flushes && !self.cache.is_blocked(&key);
        if fresh && undisturbed && !self.cache.is_lapsed() {
            self.cache.put(key, full, read, out);
        }
    }

    /// What a call changes, at most; `None` if nothing.
    pub(super) fn touched(&self, message: &Message) -> Option<Touch> {
        let of_handle = |handle: u64| self.handles.get(handle).map(|handle| handle.path.clone());
        let rights = matches!(message, Message::SetAcl(_));
        let (path, existence) = match message {
            Message::Open(open) => (open.create.as_ref().and_then(|_| NodePath::parse(&open.path).ok())?, true),
            Message::SetContents(set) => (self.target(set.target.as_ref())?, false),
            Message::SetAcl(set) => (self.target(set.target.as_ref())?, false),
            Message::Delete(delete) => (self.target(delete.target.as_ref())?, true),
            Message::Acquire(acquire) => (of_handle(acquire.handle)?, false),
            Message::CancelAcquire(cancel) => (of_handle(cancel.handle)?, false),
            Message::Release(release) => (of_handle(release.handle)?, false),
            Message::Close(close) => {
                let handle = self.handles.get(close.handle).filter(|handle| handle.ephemeral || handle.lock)?;
                (handle.path.clone(), true)
            }
            Message::Restore(_) | Message::EndSession(_) => return Some(Touch::All),
            _ => return None,
        };
        // An access list decides who may read anything.
        if path.is_acl() {
            return Some(Touch::All);
        }
        // At least what `Namespace::touches` says: the master counts on it that these are gone here.
        let mut keys = Vec::new();
        if let Some(parent) = path.parent() {
            if existence {
                keys.extend(parent.parent().map(|above| (above, true)));
                keys.push((parent.clone(), false));
            }
            keys.push((parent, true));
        }
        keys.extend([(path.clone(), false), (path.clone(), true)]);
        Some(Touch::Keys { keys, below: (existence || rights).then_some(path) })
    }

    /// The path that a call is about, as far as it is known here.
    pub(super) fn target(&self, target: Option<&v1::NodeTarget>) -> Option<NodePath> {
        match target?.target.as_ref()? {
            v1::node_target::Target::Handle(handle) => self.handles.get(*handle).map(|handle| handle.path.clone()),
            v1::node_target::Target::Path(path) => NodePath::parse(path).ok(),
        }
    }
}

fn one_less<K: Ord>(counts: &mut BTreeMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
