//! What was claimed, held against what clients saw.
//!
//! A read's *version* is the number of writes to its page that its answer reflects. Delay-once (rule A, §4.1) says that no
//! read is older than one that ended before it began, and that a stale read repeats one that was not stale: a read of the
//! same version which began before the stale one ended, and which reflects every write that ended before *it* began. And
//! fast answers never go back in the order in which answers leave (rule B: each is compared with the entry as it is then).

use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
pub struct Read {
    pub began: u64,
    pub ended: u64,
    pub version: u64,
    /// The version of the last write that this read's session has seen end.
    pub own: Option<u64>,
    /// Whether one replica gave it.
    pub fast: bool,
}

#[derive(Clone, Debug)]
pub struct Write {
    pub ended: u64,
    pub version: u64,
}

/// What clients saw of one page.
#[derive(Default)]
pub struct Page {
    pub reads: Vec<Read>,
    pub writes: Vec<Write>,
}

#[derive(Default)]
pub struct Checker {
    pub pages: BTreeMap<u64, Page>,
    /// Every answer that was ever true.
    pub truths: BTreeSet<Vec<u8>>,
    pub stale: u64,
    pub own_writes_read: u64,
}

impl Page {
    fn last_write_before(&self, began: u64) -> u64 {
        self.writes.iter().filter(|write| write.ended < began).map(|write| write.version).max().unwrap_or(0)
    }

    fn last_read_before(&self, began: u64) -> u64 {
        self.reads.iter().filter(|read| read.ended < began).map(|read| read.version).max().unwrap_or(0)
    }
}

impl Checker {
    /// S2 and K, over everything that clients saw.
    pub fn check(&mut self) -> Result<(), String> {
        for (number, page) in &self.pages {
            for read in &page.reads {
                let newest = page.last_read_before(read.began);
                if read.version < newest {
                    return Err(format!("page {number}: {read:?} is older than a read of version {newest} before it"));
                }
                let left = page.last_read_before(read.ended);
                if read.fast && read.version < left {
                    return Err(format!(
                        "page {number}: {read:?} is older than an answer of version {left} that left before"
                    ));
                }
                if let Some(own) = read.own {
                    self.own_writes_read += 1;
                    if read.version < own {
                        return Err(format!("page {number}: {read:?} does not reflect its session's own write"));
                    }
                }
                if read.version >= page.last_write_before(read.began) {
                    continue;
                }
                self.stale += 1;
                let source = page.reads.iter().any(|other| {
                    other.version == read.version
                        && other.began < read.ended
                        && other.version >= page.last_write_before(other.began)
                });
                if !source {
                    return Err(format!("page {number}: {read:?} advances, and not to the last write before it"));
                }
            }
        }
        Ok(())
    }
}
