//! One file of the simulated disk, and what a crash leaves of it.

use super::SECTOR;
use std::collections::BTreeMap;
use tidings_base::Seeded;

#[derive(Default)]
pub(super) struct File {
    /// As the running process sees it.
    pub data: Vec<u8>,
    /// The durable bytes of sectors that were written since the last sync.
    pub unsynced: BTreeMap<u32, Box<[u8; SECTOR]>>,
    /// The durable bytes of sectors whose sync failed: the system thinks they are clean, so a later sync does not
    /// write them, but the next write to them makes them unsynced again.
    pub forsaken: BTreeMap<u32, Box<[u8; SECTOR]>>,
    pub durable_len: usize,
}

impl File {
    /// Notes the durable bytes of the sectors of `from..to`, which are about to change.
    pub fn touch(&mut self, from: usize, to: usize) {
        if from >= to {
            return;
        }
        for sector in (from / SECTOR) as u32..=((to - 1) / SECTOR) as u32 {
            if self.unsynced.contains_key(&sector) {
                continue;
            }
            let old = self.forsaken.remove(&sector).unwrap_or_else(|| {
                let mut old = Box::new([0; SECTOR]);
                let start = sector as usize * SECTOR;
                let end = (start + SECTOR).min(self.data.len());
                if start < end {
                    old[..end - start].copy_from_slice(&self.data[start..end]);
                }
                old
            });
            self.unsynced.insert(sector, old);
        }
    }

    pub fn set_len(&mut self, len: usize) {
        if len < self.data.len() {
            self.touch(len, self.data.len());
        }
        self.data.resize(len, 0);
    }

    pub fn sync(&mut self) {
        self.unsynced.clear();
        self.durable_len = self.data.len();
    }

    /// What power loss leaves: for each sector that was not synced the old bytes, the new ones, or some of each.
    pub fn crash(&mut self, rng: &mut Seeded) {
        let new_len = self.data.len();
        let len = if new_len == self.durable_len || rng.one_in(2) { self.durable_len } else { new_len };
        self.data.resize(len.max(new_len), 0);
        let mood = Mood::draw(rng);
        for (sector, old) in std::mem::take(&mut self.unsynced) {
            let start = (sector as usize * SECTOR).min(self.data.len());
            let end = (start + SECTOR).min(self.data.len());
            let kept = mood.kept(rng);
            if start + kept < end {
                self.data[start + kept..end].copy_from_slice(&old[kept..end - start]);
            }
        }
        for (sector, old) in std::mem::take(&mut self.forsaken) {
            let start = (sector as usize * SECTOR).min(self.data.len());
            let end = (start + SECTOR).min(self.data.len());
            self.data[start..end].copy_from_slice(&old[..end - start]);
        }
        self.data.truncate(len);
        self.durable_len = len;
    }
}

/// How one crash treats what was not synced: the extremes come up often, the mixtures too.
pub(super) enum Mood {
    AllLost,
    AllKept,
    Mixed,
}

impl Mood {
    pub fn draw(rng: &mut Seeded) -> Mood {
        match rng.below(4) {
            0 => Mood::AllLost,
            1 => Mood::AllKept,
            _ => Mood::Mixed,
        }
    }

    /// How many new bytes of a sector survive.
    fn kept(&self, rng: &mut Seeded) -> usize {
        match self {
            Mood::AllLost => 0,
            Mood::AllKept => SECTOR,
            Mood::Mixed => match rng.below(5) {
                0 | 1 => 0,
                2 | 3 => SECTOR,
                _ => rng.below(SECTOR as u64) as usize,
            },
        }
    }

    pub fn keeps(&self, rng: &mut Seeded) -> bool {
        match self {
            Mood::AllLost => false,
            Mood::AllKept => true,
            Mood::Mixed => rng.one_in(2),
        }
    }
}
