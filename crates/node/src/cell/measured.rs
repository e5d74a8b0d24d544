//! From what the master measures to metrics.

use crate::metrics;
use tidings_cell::master::Measure;

/// Records one measurement under its name in [`metrics`].
pub(super) fn record(measure: Measure) {
    match measure {
        Measure::KeptAlive { held, lease } => metrics::cell_kept_alive(held, lease),
        Measure::InvalidationWait(wait) => metrics::cell_invalidation_wait(wait),
        Measure::FailOver(took) => metrics::cell_fail_over(took),
        Measure::ClockOutOfBound { client: (app, principal), ours, theirs } => {
            metrics::cell_clock_out_of_bound();
            let what = "a client's clock and the one here differ by more than 10 %: it may not use what it caches";
            tracing::warn!(%app, %principal, ?ours, ?theirs, what);
        }
        Measure::Gauges { sessions, handles, interest, waiters, undelivered } => {
            metrics::cell_gauges(&metrics::CellGauges { sessions, handles, interest, waiters, undelivered });
        }
    }
}
