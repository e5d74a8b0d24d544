//! The channel on which a machine hears of its log.

use parking_lot::Mutex;
use tidings_base::agreed::{Heard, Role};
use tokio::sync::{mpsc, watch};

/// What the replica last said about itself, and who listens.
///
/// The channel has no bound of its own: what is said answers a request, of which there is a bounded number, or tells of
/// a change of role or lease, of which there are a few each heartbeat.
pub(crate) struct Announcer {
    listener: Mutex<Option<mpsc::UnboundedSender<Heard>>>,
    role: watch::Sender<Role>,
}

impl Default for Announcer {
    fn default() -> Announcer {
        Announcer { listener: Mutex::default(), role: watch::Sender::new(Role::Follower { leader: None }) }
    }
}

impl Announcer {
    /// A new listener, in the place of an earlier one. It first hears the present role, if the replica leads or knows
    /// who does.
    pub fn subscribe(&self) -> mpsc::UnboundedReceiver<Heard> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut listener = self.listener.lock();
        let role = *self.role.borrow();
        if role != (Role::Follower { leader: None }) {
            // The receiver is right here.
            let _ = sender.send(Heard::Role(role));
        }
        *listener = Some(sender);
        receiver
    }

    /// Tells the listener, if there is one.
    pub fn say(&self, heard: Heard) {
        let mut listener = self.listener.lock();
        if listener.as_ref().is_some_and(|l| l.send(heard).is_err()) {
            *listener = None;
        }
    }

    /// Tells of a role if it is another one than before, which is returned then.
    pub fn role(&self, role: Role) -> Option<Role> {
        let listener = self.listener.lock();
        let before = self.role.send_replace(role);
        if before == role {
            return None;
        }
        if let Some(listener) = listener.as_ref() {
            // A listener that is gone is forgotten by `say`.
            let _ = listener.send(Heard::Role(role));
        }
        Some(before)
    }

    /// The role last told, and how it changes.
    pub fn watch(&self) -> watch::Receiver<Role> {
        self.role.subscribe()
    }
}
