//! What clients saw of one page, held against delay-once (rule A, §4.1), for tests and simulations.
//!
//! A read's *version* is the number of writes to its page that its answer reflects. No read is older than one that ended before
//! it began, and a stale read repeats one that was not stale: a read of the same version which began before the stale one
//! ended, and which reflects every write that ended before *it* began. And fast answers never go back in the order in which
//! answers leave (rule B: each is compared with the entry as it is then).

use std::collections::BTreeMap;

/// A read that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// When it was asked.
    pub began: u64,
    /// When its answer left.
    pub ended: u64,
    /// What it saw.
    pub version: u64,
    /// Whether one replica gave it.
    pub fast: bool,
}

/// The highest version at each time.
#[derive(Clone, Debug, Default)]
struct Highest(Vec<(u64, u64)>);

impl Highest {
    fn add(&mut self, at: u64, version: u64) {
        let highest = self.0.last().map_or(0, |(_, highest)| *highest);
        self.0.push((at, version.max(highest)));
    }

    fn before(&self, at: u64) -> u64 {
        let earlier = self.0.partition_point(|(ended, _)| *ended < at);
        earlier.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}

/// What clients saw of one page, told in the order of time.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    reads: Highest,
    writes: Highest,
    /// By version: when the first read of it began that was not stale.
    fresh: BTreeMap<u64, u64>,
    stale: Vec<Read>,
}

impl Seen {
    /// A write ended.
    pub fn write(&mut self, ended: u64, version: u64) {
        self.writes.add(ended, version);
    }

    /// A read ended. An error says what it breaks.
    pub fn read(&mut self, read: Read) -> Result<(), String> {
        let newest = self.reads.before(read.began);
        if read.version < newest {
            return Err(format!("{read:?} is older than a read of version {newest} before it"));
        }
        let left = self.reads.before(read.ended);
        if read.fast && read.version < left {
            return Err(format!("{read:?} is older than an answer of version {left} that left before"));
        }
        self.reads.add(read.ended, read.version);
        if read.version < self.writes.before(read.began) {
            self.stale.push(read);
        } else {
            let first = self.fresh.entry(read.version).or_insert(read.began);
            *first = read.began.min(*first);
        }
        Ok(())
    }

    /// A read took effect in the group's order, whether or not its client will hear of it: others may repeat it.
    pub fn took_effect(&mut self, began: u64, version: u64) {
        if version >= self.writes.before(began) {
            let first = self.fresh.entry(version).or_insert(began);
            *first = began.min(*first);
        }
    }

    /// Everything was told: whether each stale read repeats one that was not.
    pub fn finish(&self) -> Result<(), String> {
        let repeats = |read: &&Read| self.fresh.get(&read.version).is_some_and(|began| *began < read.ended);
        match self.stale.iter().find(|read| !repeats(read)) {
            None => Ok(()),
            Some(read) => Err(format!("{read:?} advances, and not to the last write before it")),
        }
    }

    /// How many reads were stale.
    pub fn stale(&self) -> u64 {
        self.stale.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(began: u64, ended: u64, version: u64) -> Read {
        Read { began, ended, version, fast: false }
    }

    fn judge(reads: &[Read]) -> Result<(), String> {
        let mut seen = Seen::default();
        seen.write(10, 1);
        seen.write(20, 2);
        reads.iter().try_for_each(|read| seen.read(*read))?;
        seen.finish()
    }

    #[test]
    fn reads_may_be_late_once_and_never_go_back() {
        assert_eq!(judge(&[read(21, 22, 2), read(23, 24, 2)]), Ok(()));
        assert_eq!(judge(&[read(11, 30, 1), read(23, 31, 1)]), Ok(()), "it repeats one that was not stale");
        assert!(judge(&[read(21, 22, 2), read(23, 24, 1)]).unwrap_err().contains("older"));
        assert_eq!(judge(&[read(11, 22, 2), read(12, 24, 1)]), Ok(()), "they overlapped");
        let fast = Read { fast: true, ..read(12, 24, 1) };
        assert!(judge(&[read(11, 22, 2), fast]).unwrap_err().contains("left before"));
        assert!(judge(&[read(23, 24, 1)]).unwrap_err().contains("advances"));
        assert!(judge(&[read(23, 24, 1), read(24, 25, 1)]).unwrap_err().contains("advances"));
    }

    #[test]
    fn a_read_that_nobody_heard_of_may_be_repeated_if_it_was_not_stale() {
        let judge = |began| {
            let mut seen = Seen::default();
            seen.write(10, 1);
            seen.took_effect(began, 1);
            seen.write(20, 2);
            seen.read(read(23, 24, 1))?;
            seen.finish()
        };
        assert_eq!(judge(11), Ok(()));
        assert!(judge(25).unwrap_err().contains("advances"), "it began later");
    }
}
