//! When a client's machines are woken.

use std::time::{Duration, Instant};
use tidings_base::{Mono, Now, Wall};
use tokio::sync::Notify;

/// The longest sleep; a spurious wake is harmless.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// A client's clock, and who sleeps until a deadline of its machines.
pub(crate) struct Alarm {
    start: Instant,
    changed: Notify,
}

impl Alarm {
    /// A clock that begins now.
    pub(crate) fn new() -> Alarm {
        Alarm { start: Instant::now(), changed: Notify::new() }
    }

    /// The time since then.
    pub(crate) fn now(&self) -> Now {
        let nanos = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Now { mono: Mono(nanos), wall: Wall(0) }
    }

    /// A deadline may have changed.
    pub(crate) fn set_again(&self) {
        self.changed.notify_one();
    }

    /// Wakes at each deadline, for ever.
    pub(crate) async fn keep(&self, deadline: impl Fn() -> Option<Mono>, wake: impl Fn()) {
        loop {
            let pause = deadline().map_or(LONGEST_SLEEP, |at| at.since(self.now().mono));
            tokio::select! {
                () = tokio::time::sleep(pause.max(Duration::from_millis(1))) => wake(),
                () = self.changed.notified() => {}
            }
        }
    }
}
