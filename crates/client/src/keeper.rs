//! Keeps one connection up to any of the servers.

use crate::backoff::Backoff;
use crate::config::{Address, ClientConfig};
use crate::dial::dial;
use crate::link::Link;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_wire::error;
use tokio::sync::watch;
use tokio::time::Instant;

/// A connection that lasted this long was a good one: after it, connecting begins with short pauses again. Longer than a
/// server that takes connections and drops them needs for it, shorter than nodes take turns in failing: a session that
/// lost its master twice in a few seconds must not wait for seconds before it looks for the next.
const GOOD_CONNECTION: Duration = Duration::from_secs(1);

/// A server that has said nothing for so long does not hold up the way to the next one: it may have been stopped, or cut off
/// without a word. Longer than a handshake takes, shorter than anybody waits gladly.
const SILENT: Duration = Duration::from_secs(1);

/// What the keeper has.
#[derive(Clone, Debug)]
pub(crate) enum Home {
    /// It is connecting; the last attempt failed so.
    Connecting(Option<Error>),
    /// A connection that is ready.
    Up(Arc<Link>),
    /// The servers do not want this client. It goes on trying, slowly, but calls need not wait for it.
    Refused(Error),
}

pub(crate) struct Keeper {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) servers: Vec<Address>,
    pub(crate) home: watch::Sender<Home>,
    pub(crate) backoff: Backoff,
    /// Which server to try first.
    pub(crate) first: usize,
}

impl Keeper {
    /// Runs until nobody holds the client any more.
    pub(crate) async fn run(mut self) {
        loop {
            match self.connect_to_any().await {
                Ok(link) => {
                    let since = Instant::now();
                    self.home.send_replace(Home::Up(link.clone()));
                    tokio::select! {
                        _ = link.wait_left() => {}
                        _ = link.wait_closed() => {}
                        _ = self.home.closed() => {
                            link.close(error::closed());
                            return;
                        }
                    }
                    tracing::debug!(left = link.left().is_some(), why = ?link.closed(), "connection ended");
                    self.home.send_replace(Home::Connecting(link.closed()));
                    self.first += 1;
                    if since.elapsed() >= GOOD_CONNECTION {
                        self.backoff.reset();
                    }
                }
                Err(error) if is_refusal(&error) => {
                    self.home.send_replace(Home::Refused(error));
                }
                Err(error) => {
                    self.home.send_replace(Home::Connecting(Some(error)));
                }
            }
            let pause = self.backoff.next();
            tokio::select! {
                _ = tokio::time::sleep(pause) => {}
                _ = self.home.closed() => return,
            }
        }
    }

    /// Tries each server once, beginning with the next one: another as soon as one has failed, or is silent. Whichever is
    /// ready first is taken, the others are left.
    async fn connect_to_any(&mut self) -> Result<Arc<Link>, Error> {
        let (servers, config, first) = (&self.servers, &self.config, self.first);
        let mut rest = (0..servers.len()).map(|i| (first + i) % servers.len());
        let dial_at = |at: usize| async move { (at, dial(&servers[at], config).await) };
        let mut dialling: FuturesUnordered<_> = rest.next().map(dial_at).into_iter().collect();
        let mut worst = error::closed();
        loop {
            tokio::select! {
                dialled = dialling.next() => match dialled {
                    Some((at, Ok(link))) => {
                        self.first = at;
                        return Ok(link);
                    }
                    Some((_, Err(error))) => {
                        // A refusal says more than "nobody there".
                        if is_refusal(&error) || !is_refusal(&worst) {
                            worst = error;
                        }
                        dialling.extend(rest.next().map(dial_at));
                    }
                    None => return Err(worst),
                },
                () = tokio::time::sleep(SILENT), if rest.len() > 0 => dialling.extend(rest.next().map(dial_at)),
            }
        }
    }
}

/// Whether waiting and trying again would help nobody.
fn is_refusal(error: &Error) -> bool {
    matches!(error.class, Class::Invalid | Class::Refused | Class::NotFound)
}
