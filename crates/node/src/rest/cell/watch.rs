//! Changes of a node as server-sent events.
//!
//! The first event is the node as it is; each later one is the node after a change, of a directory with the names of what
//! was added, removed or changed in it (and not all of them, if `more` is said). Several changes may be told as one:
//! whoever reads the last event knows the present state, and whoever comes back gets it first. Lines of comment keep
//! the connection alive.

use super::types::{Stat, Told};
use crate::principal::Identity;
use crate::rest::App;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use std::convert::Infallible;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::cell::{Event as Change, Events, Handle, Stat as NodeStat, Watch};
use tokio::time::{Instant, Interval};

/// A quiet stream says something so often: less than what network equipment lets pass in silence.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// How long to wait before another session is tried, when the one at hand is gone.
const PAUSE: Duration = Duration::from_millis(500);

/// A stream's place between two events.
struct Watching {
    app: App,
    identity: Identity,
    path: String,
    /// The node and its events; absent until it is opened (again). The session stays in use as long as the handle.
    open: Option<(crate::gateway::Session, Handle, Watch)>,
    /// What was told last.
    told: Option<Stat>,
    /// What changed in the directory and is not told yet: names, and whether there are more.
    untold: Option<(Vec<String>, bool)>,
    /// When to ask again whether the caller is still who it said.
    recheck: Interval,
    ended: bool,
}

/// Begins to watch; fails where a read would.
pub(super) async fn stream(app: App, identity: Identity, path: String) -> Result<Response, Error> {
    let every: Duration = app.config.timings.key_check.into();
    let recheck = tokio::time::interval_at(Instant::now() + every, every);
    let mut watching = Watching { app, identity, path, open: None, told: None, untold: None, recheck, ended: false };
    watching.open().await?;
    let events = stream::unfold(watching, |mut watching| async move {
        let event = watching.next().await?;
        Some((Ok::<Event, Infallible>(event), watching))
    });
    let keep_alive = KeepAlive::new().interval(HEARTBEAT).text("still here");
    Ok(Sse::new(events).keep_alive(keep_alive).into_response())
}

impl Watching {
    async fn open(&mut self) -> Result<(), Error> {
        let session = self.app.gateway.session(&self.identity).await?;
        let handle = session.open(&self.path).read().events(Events::CONTENTS | Events::CHILDREN).await?;
        let watch = handle.watch();
        if self.told.is_some() && handle.is_directory() {
            // What happened since the last handle, nobody told.
            self.untold = Some((Vec::new(), true));
        }
        self.open = Some((session, handle, watch));
        Ok(())
    }

    /// The next event; `None` = no more come.
    async fn next(&mut self) -> Option<Event> {
        let mut shutdown = self.app.shutdown.clone();
        tokio::select! {
            event = self.change() => event,
            // Whoever comes back finds another node, or this one again.
            () = shutdown.begun() => None,
        }
    }

    async fn change(&mut self) -> Option<Event> {
        while !self.ended {
            match self.look().await {
                Look::Tell(event) => return Some(event),
                Look::Again => continue,
                Look::Same => {}
            }
            let Some((_, _, watch)) = &mut self.open else { continue };
            tokio::select! {
                event = watch.next() => match event {
                    Some(Change::ChildrenChanged { names, more }) => self.untold = Some((names, more)),
                    Some(_) => {}
                    None => self.open = None,
                },
                // A key that was taken back, or a token that ended, opens no door any more.
                _ = self.recheck.tick() => {
                    if let Err(error) = self.app.auth.recheck(&self.identity).await
                        && matches!(error.class, Class::Refused | Class::Invalid | Class::NotFound)
                    {
                        let Look::Tell(event) = self.end("error", &error) else { return None };
                        return Some(event);
                    }
                }
            }
        }
        None
    }

    async fn stat(&mut self) -> Result<NodeStat, Error> {
        if self.open.is_none() {
            self.open().await?;
        }
        match &self.open {
            Some((_, handle, _)) => handle.stat().await,
            None => Err(tidings_wire::error::closed()),
        }
    }

    /// Reads the node and compares it with what was told.
    async fn look(&mut self) -> Look {
        match self.stat().await {
            Ok(stat) => {
                let stat = Stat::from(&stat);
                let untold = self.untold.take();
                if self.told.as_ref() == Some(&stat) && untold.is_none() {
                    return Look::Same;
                }
                let id = format!("{}-{}", stat.instance, stat.content_generation);
                let (changed, more) = untold.unwrap_or_default();
                let told = Told { stat: &stat, changed, more };
                let event = Event::default().event("changed").id(id).json_data(&told).unwrap_or_default();
                self.told = Some(stat);
                Look::Tell(event)
            }
            // It may have been made anew: that is a change like any other.
            Err(error) if error.code == "cell.node_gone" => {
                self.open = None;
                Look::Again
            }
            Err(error) if error.code == "cell.no_node" => self.end("gone", &error),
            Err(error) if error.code == "cell.expired" || error.class == Class::Unreachable => {
                self.open = None;
                tokio::time::sleep(PAUSE).await;
                Look::Again
            }
            Err(error) => self.end("error", &error),
        }
    }

    fn end(&mut self, event: &str, error: &Error) -> Look {
        self.ended = true;
        let body = crate::rest::ErrorBody::from(error.clone());
        Look::Tell(Event::default().event(event).json_data(&body).unwrap_or_default())
    }
}

/// What a look at the node came to.
enum Look {
    /// Tell this.
    Tell(Event),
    /// It is as was told.
    Same,
    /// Look again.
    Again,
}
