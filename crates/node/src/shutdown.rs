//! Telling everything that the node is about to stop.

use tokio::sync::watch;

/// How far a shutdown is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Serving,
    /// Whoever looks for a node looks elsewhere; who is here is served.
    Leaving,
    /// Everybody is to go.
    Begun,
}

/// Begins a shutdown. Dropping it begins one too, so that nothing waits for a node that is gone.
#[derive(Debug)]
pub struct Trigger(watch::Sender<Stage>);

/// Hears of a shutdown.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<Stage>);

/// A trigger and its first listener.
pub fn channel() -> (Trigger, Shutdown) {
    let (sender, receiver) = watch::channel(Stage::Serving);
    (Trigger(sender), Shutdown(receiver))
}

impl Trigger {
    /// Says that a shutdown is near: nobody is to come any more.
    pub fn leave(&self) {
        self.0.send_replace(Stage::Leaving);
    }

    /// Begins the shutdown; again changes nothing.
    pub fn begin(&self) {
        self.0.send_replace(Stage::Begun);
    }
}

impl Shutdown {
    /// Whether a shutdown is near or has begun.
    pub fn is_near(&self) -> bool {
        *self.0.borrow() > Stage::Serving || self.0.has_changed().is_err()
    }

    /// Waits until the shutdown begins.
    pub async fn begun(&mut self) {
        // An error means that the trigger is gone, which is a shutdown as well.
        let _ = self.0.wait_for(|stage| *stage == Stage::Begun).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_shutdown_reaches_every_listener_also_when_the_trigger_is_dropped() {
        let (trigger, mut first) = channel();
        let mut second = first.clone();
        assert!(!first.is_near());
        trigger.leave();
        assert!(first.is_near());
        assert!(futures::poll!(std::pin::pin!(first.begun())).is_pending(), "it is not here yet");
        trigger.begin();
        first.begun().await;
        second.begun().await;
        assert!(second.is_near());
        let (trigger, mut orphan) = channel();
        drop(trigger);
        orphan.begun().await;
        assert!(orphan.is_near());
    }
}
