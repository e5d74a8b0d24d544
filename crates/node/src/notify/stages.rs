//! How long notifications took, stage by stage, and how many there were: for whoever draws it. Metrics tell the same to those
//! who scrape.

use crate::metrics::{self, NOTIFY_STAGES as STAGES};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidings_wire::v1;

/// What this node has done since it started.
#[derive(Default)]
pub(super) struct Stages {
    published: AtomicU64,
    sent: AtomicU64,
    stages: [Histogram; STAGES.len()],
}

#[derive(Default)]
struct Histogram {
    /// One for each bound, and one for what is beyond all of them.
    counts: [AtomicU64; metrics::LATENCY_BUCKETS.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    fn record(&self, took: Duration) {
        let bounds = &metrics::LATENCY_BUCKETS;
        let place = bounds.iter().position(|bound| took.as_secs_f64() <= *bound).unwrap_or(bounds.len());
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Stages {
    /// So many publications were taken.
    pub(super) fn published(&self, count: usize) {
        metrics::notify_published(count);
        self.published.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// How many notifications were sent.
    pub(super) fn notifications(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Counts what is sent to a client, and how long it took to come so far.
    pub(super) fn sent(&self, message: &v1::NotifyDown) {
        for notification in &message.notifications {
            metrics::notify_sent(notification.unknown > 0);
            self.sent.fetch_add(1, Ordering::Relaxed);
            if let Some(times) = &notification.times {
                self.took(times);
            }
        }
    }

    fn took(&self, times: &v1::NotifyTimes) {
        let v1::NotifyTimes { published_us, feed_us, matcher_us, registrar_us, sent_us, .. } = *times;
        // The fast path may have begun with the call, and not with the feed's entry.
        let early = feed_us == 0;
        let spans = [
            (early, published_us, matcher_us),
            (!early, published_us, feed_us),
            (!early, feed_us, matcher_us),
            (true, matcher_us, registrar_us),
            (true, registrar_us, sent_us),
        ];
        for ((name, histogram), (was, from, to)) in STAGES.into_iter().zip(&self.stages).zip(spans) {
            if was && from > 0 && to > 0 {
                let took = Duration::from_micros(to.saturating_sub(from));
                metrics::notify_stage(name, took);
                histogram.record(took);
            }
        }
    }

    /// All of it, as it stands.
    pub(super) fn load(&self, node: u64, channels: usize) -> v1::NotifyNodeLoad {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let stages = STAGES.into_iter().zip(&self.stages).map(|(stage, histogram)| v1::NotifyStage {
            stage: stage.to_owned(),
            counts: histogram.counts.iter().map(read).collect(),
            sum_us: read(&histogram.sum_us),
        });
        v1::NotifyNodeLoad {
            node,
            channels: channels as u64,
            published: read(&self.published),
            sent: read(&self.sent),
            bounds_us: metrics::LATENCY_BUCKETS.iter().map(|bound| (bound * 1e6).round() as u64).collect(),
            stages: stages.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_long_is_counted_where_it_belongs() {
        let stages = Stages::default();
        let times = v1::NotifyTimes {
            published_us: 1_000,
            feed_us: 1_500,
            matcher_us: 3_000,
            registrar_us: 3_000 + 60_000_000,
            ..Default::default()
        };
        let known = v1::Notification { version: 1, times: Some(times), ..Default::default() };
        let unknown = v1::Notification { unknown: 1, ..Default::default() };
        stages.sent(&v1::NotifyDown { notifications: vec![known, unknown], ..Default::default() });
        stages.published(3);
        let load = stages.load(7, 2);
        assert_eq!((load.node, load.channels, load.published, load.sent), (7, 2, 3, 2));
        let of = |name: &str| load.stages.iter().find(|of| of.stage == name).unwrap();
        let only_at = |place: usize| (0..=load.bounds_us.len()).map(|at| u64::from(at == place)).collect::<Vec<u64>>();
        assert_eq!((&of("feed").counts, of("feed").sum_us), (&only_at(0), 500), "500 µs is the first bound");
        assert_eq!((&of("bridge").counts, load.bounds_us[2]), (&only_at(2), 2_500));
        assert_eq!(of("matcher").counts, only_at(load.bounds_us.len()), "beyond all bounds");
        // It did not begin with the call, and was not sent.
        assert_eq!((of("call").sum_us, of("registrar").sum_us), (0, 0));
    }
}
