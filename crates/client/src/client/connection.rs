//! How the connection stands, for whoever tells people.

use super::Client;
use crate::keeper::Home;
use tidings_base::Error;
use tidings_wire::error;
use tokio::sync::watch;

/// What happens to the connection that a client keeps up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// It is lost, for this reason; the client goes on trying.
    Lost(Error),
    /// There is one again, to the same server or another.
    Back,
}

/// Losses and returns of a client's connection. It does not keep the client.
#[derive(Debug)]
pub struct Connection {
    home: watch::Receiver<Home>,
    up: bool,
}

impl Client {
    /// Tells of losses and returns of the connection from now on.
    pub fn connection(&self) -> Connection {
        let mut home = self.inner.home.clone();
        let up = matches!(&*home.borrow_and_update(), Home::Up(_));
        Connection { home, up }
    }
}

impl Connection {
    /// The next loss or return; `None` once the client is gone. A connection that was back before anybody looked was not
    /// lost.
    pub async fn next(&mut self) -> Option<ConnectionEvent> {
        let up = self.up;
        let home = self.home.wait_for(|home| matches!(home, Home::Up(_)) != up).await.ok()?;
        self.up = !up;
        Some(match &*home {
            Home::Up(_) => ConnectionEvent::Back,
            Home::Connecting(why) => ConnectionEvent::Lost(why.clone().unwrap_or_else(error::closed)),
            Home::Refused(why) => ConnectionEvent::Lost(why.clone()),
        })
    }
}
