//! Who holds which part of the ring, and under which lease: what placement would say at the instant of the call.

use std::sync::{Arc, Mutex, PoisonError};
use tidings_base::{KeyHash, KeyRange, LeaseNumber};

/// Parts of the ring.
pub const PARTS: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    owner: usize,
    lease: u32,
    moving: bool,
}

/// The ring. Nodes are numbered.
#[derive(Clone, Debug, Default)]
pub struct Ring(Arc<Mutex<[Part; PARTS]>>);

/// The part that a place lies in.
pub fn part(at: KeyHash) -> usize {
    (at.0 >> (u64::BITS - PARTS.ilog2())) as usize
}

/// The places of a part.
pub fn range(part: usize) -> KeyRange {
    let bits = PARTS.ilog2();
    let start = (part as u64) << (u64::BITS - bits);
    KeyRange::new(KeyHash(start), KeyHash(start | u64::MAX >> bits))
}

impl Ring {
    fn with<T>(&self, part: usize, act: impl FnOnce(&mut Part) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)[part])
    }

    /// Who holds a part, or held it last.
    pub fn owner(&self, part: usize) -> usize {
        self.with(part, |part| part.owner)
    }

    /// The lease under which a node holds a part, if it does.
    pub fn held(&self, node: usize, part: usize) -> Option<LeaseNumber> {
        let part = self.with(part, |part| *part);
        (part.owner == node && !part.moving).then(|| LeaseNumber::new(part.lease))?
    }

    /// Nobody holds it from now on; false if nobody does already.
    pub fn take(&self, part: usize) -> bool {
        self.with(part, |part| !std::mem::replace(&mut part.moving, true))
    }

    /// Somebody holds it, under the next number.
    pub fn grant(&self, part: usize, node: usize) {
        self.with(part, |part| *part = Part { owner: node, lease: part.lease + 1, moving: false });
    }
}
