//! What was claimed, held against what clients saw.

use std::collections::{BTreeMap, BTreeSet};
use tidings_sketch::seen::{Read, Seen};

#[derive(Default)]
pub struct Checker {
    pages: BTreeMap<u64, Seen>,
    /// Every answer that was ever true.
    pub truths: BTreeSet<Vec<u8>>,
    pub own_writes_read: u64,
}

impl Checker {
    pub fn write(&mut self, page: u64, ended: u64, version: u64) {
        self.pages.entry(page).or_default().write(ended, version);
    }

    /// S2; and K, if the read's session has seen a write of its own end.
    pub fn read(&mut self, page: u64, read: Read, own: Option<u64>) -> Result<(), String> {
        self.own_writes_read += u64::from(own.is_some());
        if own.is_some_and(|own| read.version < own) {
            return Err(format!("page {page}: {read:?} does not reflect its session's own write"));
        }
        let seen = self.pages.entry(page).or_default();
        seen.read(read).map_err(|broken| format!("page {page}: {broken}"))
    }

    pub fn finish(&self) -> Result<(), String> {
        let broken = |(page, seen): (&u64, &Seen)| seen.finish().map_err(|broken| format!("page {page}: {broken}"));
        self.pages.iter().try_for_each(broken)
    }

    pub fn stale(&self) -> u64 {
        self.pages.values().map(Seen::stale).sum()
    }
}
