//! How busy this node is: what clients asked and what was done for them, a second, over the last ten seconds.

use crate::clock::Clock;
use crate::gate::Services;
use crate::principal::Principal;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidings_base::Mono;
use tidings_wire::{Part, v1};

/// How often is looked.
const EVERY: Duration = Duration::from_secs(1);

/// Looks that are remembered: ten seconds, and where they began.
const LOOKS: usize = 11;

/// The parts that clients call.
const CALLED: [Part; 7] =
    [Part::Store, Part::Feed, Part::Cell, Part::Placement, Part::Notify, Part::Tables, Part::Admin];

/// Counts what clients ask; looks at it, and at what the services did, once a second.
#[derive(Default)]
pub(crate) struct Load {
    /// By the parts' wire ids.
    calls: [AtomicU64; Part::ALL.len()],
    looks: Mutex<VecDeque<Look>>,
}

/// What was counted until then, by name.
struct Look {
    at: Mono,
    counts: Vec<(String, u64)>,
}

impl Load {
    /// Begins to look, for as long as somebody keeps the answer.
    pub(crate) fn watch(services: Arc<dyn Services>, clock: Arc<dyn Clock>) -> Arc<Load> {
        let load = Arc::new(Load::default());
        let (watched, services) = (Arc::downgrade(&load), Arc::downgrade(&services));
        tokio::spawn(async move {
            while let (Some(load), Some(services)) = (watched.upgrade(), services.upgrade()) {
                load.look(clock.now().mono, services.done());
                drop((load, services));
                tokio::time::sleep(EVERY).await;
            }
        });
        load
    }

    /// Somebody asked something of a part. What nodes ask each other belongs to what a client asked one of them.
    pub(crate) fn asked(&self, caller: &Principal, part: Part) {
        if !matches!(caller, Principal::Node(_)) {
            self.calls[usize::from(part.id())].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn look(&self, at: Mono, done: Vec<(&'static str, u64)>) {
        let calls = |part: Part| self.calls[usize::from(part.id())].load(Ordering::Relaxed);
        let calls = CALLED.map(|part| (format!("{}_calls", part.name()), calls(part)));
        let done = done.into_iter().map(|(name, count)| (name.to_owned(), count));
        let mut looks = self.looks.lock();
        if looks.len() == LOOKS {
            looks.pop_front();
        }
        looks.push_back(Look { at, counts: calls.into_iter().chain(done).collect() });
    }

    /// What happened a second between the first look that is remembered and the last.
    pub(crate) fn rates(&self) -> Vec<v1::Rate> {
        let looks = self.looks.lock();
        let (Some(first), Some(last)) = (looks.front(), looks.back()) else { return Vec::new() };
        let took = last.at.since(first.at).as_secs_f64();
        let rate = |(name, now): &(String, u64)| {
            let before = first.counts.iter().find(|(of, _)| of == name).map_or(0, |(_, before)| *before);
            let more = now.saturating_sub(before) as f64;
            v1::Rate { name: name.clone(), per_second: if took > 0.0 { more / took } else { 0.0 } }
        };
        last.counts.iter().map(rate).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::principal::OperatorBy;
    use tidings_base::NodeId;

    fn rate(load: &Load, name: &str) -> f64 {
        load.rates().iter().find(|rate| rate.name == name).map_or(f64::NAN, |rate| rate.per_second)
    }

    #[test]
    fn a_rate_is_of_clients_and_of_the_last_ten_seconds() {
        let load = Load::default();
        assert_eq!(load.rates(), []);
        for n in 0..30 {
            load.look(Mono(0) + Duration::from_secs(n), vec![("entries", n.min(20) * 5)]);
            load.asked(&Principal::operator(OperatorBy::Key), Part::Store);
            load.asked(&Principal::Node(NodeId(2)), Part::Cell);
        }
        // Seconds 19 to 29: five entries in one of them, and a call in each.
        assert_eq!(rate(&load, "entries"), 0.5);
        assert_eq!(rate(&load, "store_calls"), 1.0);
        assert_eq!(rate(&load, "cell_calls"), 0.0);
    }
}
