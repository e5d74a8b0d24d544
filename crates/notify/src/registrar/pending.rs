//! Changes of a client's registrations that matchers have not confirmed. A client may have fifty thousand: whatever happens once
//! for each of them must not look at all of them.

use crate::CallId;
use std::collections::BTreeMap;
use std::ops::Bound;
use tidings_base::Mono;

/// A change of a registration that its matcher has not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub seqno: u64,
    pub registered: bool,
    /// F3: it was confirmed before, and no marker stands for it; only news of the object come of it.
    pub scrub: bool,
    /// Our row says so, stably: only then may its matcher hear of it.
    pub stored: bool,
    pub call: Option<CallId>,
    pub sent: Mono,
    /// It is not sent again before then.
    pub not_before: Mono,
    pub failures: u32,
}

impl Pending {
    pub fn new(seqno: u64, registered: bool) -> Pending {
        Pending {
            seqno,
            registered,
            scrub: false,
            stored: true,
            call: None,
            sent: Mono(0),
            not_before: Mono(0),
            failures: 0,
        }
    }

    fn is_due(&self, now: Mono) -> bool {
        self.stored && self.call.is_none() && self.not_before <= now
    }
}

/// All of a client's, by object, and how many of them are what.
#[derive(Clone, Debug, Default)]
pub(super) struct Pendings {
    all: BTreeMap<u32, Pending>,
    under_way: usize,
    scrubs: usize,
    /// The object that was sent last: what follows it comes next.
    last: u32,
}

impl Pendings {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many are with matchers.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// How many a client waits for.
    pub fn awaited(&self) -> usize {
        self.all.len() - self.scrubs
    }

    pub fn contains(&self, object: u32) -> bool {
        self.all.contains_key(&object)
    }

    pub fn objects(&self) -> impl Iterator<Item = u32> {
        self.all.keys().copied()
    }

    /// Calls to matchers that are under way.
    pub fn calls(&self) -> impl Iterator<Item = CallId> {
        self.all.values().filter_map(|pending| pending.call)
    }

    pub fn get(&self, object: u32) -> Option<&Pending> {
        self.all.get(&object)
    }

    /// A change that is not under way, in place of an earlier one.
    pub fn insert(&mut self, object: u32, pending: Pending) -> Option<Pending> {
        let old = self.remove(object);
        self.scrubs += usize::from(pending.scrub);
        self.all.insert(object, Pending { call: None, ..pending });
        old
    }

    pub fn remove(&mut self, object: u32) -> Option<Pending> {
        let old = self.all.remove(&object)?;
        self.under_way -= usize::from(old.call.is_some());
        self.scrubs -= usize::from(old.scrub);
        Some(old)
    }

    /// The row says so, stably; whether this change was still to be confirmed.
    pub fn is_stored(&mut self, object: u32, seqno: u64) -> bool {
        let pending = self.all.get_mut(&object).filter(|pending| pending.seqno == seqno);
        pending.map(|pending| pending.stored = true).is_some()
    }

    /// Those that may be sent now, as many as are wanted, beginning behind those that were sent last.
    pub fn due(&self, now: Mono, wanted: usize) -> Vec<u32> {
        if wanted == 0 {
            return Vec::new();
        }
        let behind = self.all.range((Bound::Excluded(self.last), Bound::Unbounded));
        let before = self.all.range(..=self.last);
        let due = behind.chain(before).filter(|(_, pending)| pending.is_due(now));
        due.map(|(object, _)| *object).take(wanted).collect()
    }

    /// It is with its matcher.
    pub fn sent(&mut self, object: u32, call: CallId, now: Mono) -> Option<Pending> {
        let pending = self.all.get_mut(&object)?;
        self.under_way += usize::from(pending.call.is_none());
        (pending.call, pending.sent, self.last) = (Some(call), now, object);
        Some(*pending)
    }

    /// Its matcher could not take it: how often that was so, by now.
    pub fn failed(&mut self, object: u32) -> Option<&mut Pending> {
        let pending = self.all.get_mut(&object)?;
        self.under_way -= usize::from(pending.call.take().is_some());
        pending.failures += 1;
        Some(pending)
    }

    /// Gives up calls that were made before then; which.
    pub fn give_up(&mut self, before: impl Fn(&Pending) -> bool) -> Vec<CallId> {
        let silent = self.all.values_mut().filter(|pending| pending.call.is_some() && before(pending));
        let calls: Vec<CallId> = silent.filter_map(|pending| pending.call.take()).collect();
        self.under_way -= calls.len();
        calls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_what_is_there() {
        let mut pendings = Pendings::default();
        for object in 0..10 {
            pendings.insert(object, Pending { scrub: object % 2 == 0, ..Pending::new(1, true) });
        }
        let counts = |pendings: &Pendings| (pendings.len(), pendings.under_way(), pendings.awaited());
        assert_eq!(counts(&pendings), (10, 0, 5));
        for (call, object) in (1..).zip(pendings.due(Mono(0), 4)) {
            pendings.sent(object, CallId(call), Mono(call));
        }
        assert_eq!(counts(&pendings), (10, 4, 5));
        assert_eq!(pendings.due(Mono(0), 3), [5, 6, 7], "those behind the last come next");
        pendings.failed(1).unwrap().not_before = Mono(9);
        assert_eq!(pendings.give_up(|pending| pending.sent <= Mono(3)), [CallId(2), CallId(3)]);
        assert_eq!(counts(&pendings), (10, 1, 5));
        assert_eq!(pendings.due(Mono(0), 9), [5, 6, 7, 8, 9, 0, 2, 3], "and then those before it");
        pendings.insert(2, Pending::new(2, false));
        assert!(pendings.remove(4).is_some() && pendings.remove(4).is_none());
        assert_eq!(counts(&pendings), (9, 0, 6));
        assert!(pendings.is_stored(2, 2) && !pendings.is_stored(2, 1));
    }
}
