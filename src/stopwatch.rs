//! How long something took: the binary's one use of a clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Runs from when it was made.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Begins to run.
    #[allow(clippy::disallowed_methods)] // a shell may ask what time it is
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    /// The time since the start.
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Microseconds since 1970 by the wall clock: the default timestamp of a cell that a person writes.
#[allow(clippy::disallowed_methods)] // a shell may ask what time it is
pub fn wall_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}
