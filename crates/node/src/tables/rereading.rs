//! R9: orders, limits and aggregates are live as re-reads, which a hot table would ask for without end.
//!
//! ```text
//!   again ─▶ read (cost) ─▶ rows … pause, longer than the cost … again, again, again ─▶ read once
//! ```
//! Whatever a reading costs, its query takes a small share of the time of whoever answers; and when many queries make readings
//! slow, all of them read less often.

use std::time::Duration;
use tokio::time::Instant;

/// The pause after the cheapest reading: as long as a partition gathers changes, however many partitions there are.
const SHORTEST: Duration = Duration::from_millis(100);
/// The pause after the dearest: what changed is told by then.
const LONGEST: Duration = Duration::from_secs(10);
/// How often longer than a reading the pause behind it is: a query is read for a fifth of the time at most.
const SHARE: u32 = 4;

/// When a query may be read again.
#[derive(Debug, Default)]
pub(super) struct Rereading {
    rested: Option<Instant>,
}

impl Rereading {
    /// Waits for the turn. Cancelling it loses nothing.
    pub(super) async fn turn(&self) {
        if let Some(rested) = self.rested {
            tokio::time::sleep_until(rested).await;
        }
    }

    /// It was read, in so much time.
    pub(super) fn read(&mut self, cost: Duration) {
        self.rested = Some(Instant::now() + pause(cost));
    }
}

fn pause(cost: Duration) -> Duration {
    cost.saturating_mul(SHARE).clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_pause_grows_with_what_a_reading_costs_and_is_bounded() {
        let mut rereading = Rereading::default();
        for (cost, expected) in [(0, 100), (25, 100), (50, 200), (1_000, 4_000), (20_000, 10_000)] {
            rereading.read(Duration::from_millis(cost));
            let begun = Instant::now();
            rereading.turn().await;
            assert_eq!(begun.elapsed().as_millis(), expected, "{cost}");
        }
        let begun = Instant::now();
        tokio::time::advance(LONGEST).await;
        rereading.turn().await;
        assert_eq!(begun.elapsed(), LONGEST, "whoever was not asked for so long reads at once");
    }
}
