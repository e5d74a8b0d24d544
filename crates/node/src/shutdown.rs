//! Telling everything that the node is about to stop.

use tokio::sync::watch;

/// Begins a shutdown. Dropping it begins one too, so that nothing waits for a node that is gone.
#[derive(Debug)]
pub struct Trigger(watch::Sender<bool>);

/// Hears of a shutdown.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

/// A trigger and its first listener.
pub fn channel() -> (Trigger, Shutdown) {
    let (sender, receiver) = watch::channel(false);
    (Trigger(sender), Shutdown(receiver))
}

impl Trigger {
    /// Begins the shutdown; again changes nothing.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }
}

impl Shutdown {
    /// Whether the shutdown has begun.
    pub fn has_begun(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Waits until the shutdown begins.
    pub async fn begun(&mut self) {
        // An error means that the trigger is gone, which is a shutdown as well.
        let _ = self.0.wait_for(|begun| *begun).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_shutdown_reaches_every_listener_also_when_the_trigger_is_dropped() {
        let (trigger, mut first) = channel();
        let mut second = first.clone();
        assert!(!first.has_begun());
        trigger.begin();
        first.begun().await;
        second.begun().await;
        assert!(second.has_begun());
        let (trigger, mut orphan) = channel();
        drop(trigger);
        orphan.begun().await;
        assert!(orphan.has_begun());
    }
}
