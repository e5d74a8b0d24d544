//! The disks of simulated hosts: the faults are [`SimDisk`]'s, the time that syncs take is decided here.

use std::time::Duration;
use tidings_base::Seeded;

pub use tidings_log::testing::SimDisk;

/// How long one sync takes on a host's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskPace {
    /// The least.
    pub least: Duration,
    /// Added evenly on top.
    pub spread: Duration,
    /// Once in so many syncs the disk stalls; 0 = never.
    pub stalls: u64,
    /// For how long at most.
    pub stall: Duration,
}

impl Default for DiskPace {
    /// A solid-state disk.
    fn default() -> DiskPace {
        DiskPace {
            least: Duration::from_micros(300),
            spread: Duration::from_millis(3),
            stalls: 200,
            stall: Duration::from_millis(300),
        }
    }
}

impl DiskPace {
    /// A disk that is about to die, or shared with too many others.
    pub fn slow() -> DiskPace {
        DiskPace {
            least: Duration::from_millis(20),
            spread: Duration::from_millis(200),
            stalls: 10,
            stall: Duration::from_secs(2),
        }
    }

    /// The time of the next sync.
    pub fn draw(&self, rng: &mut Seeded) -> Duration {
        let spread = |rng: &mut Seeded, most: Duration| {
            Duration::from_nanos(rng.below(u64::try_from(most.as_nanos()).unwrap_or(u64::MAX - 1) + 1))
        };
        let usual = self.least + spread(rng, self.spread);
        if rng.one_in(self.stalls) { usual + spread(rng, self.stall) } else { usual }
    }
}
