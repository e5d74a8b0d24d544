//! Following what may go and come back: what was told of it, and waiting for its node. The directories above are watched, not
//! the clock.

use super::calls::Cell;
use super::events::{Events, Watch};
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_cell::NodePath;

/// The pause before somebody looks again where nothing tells of changes: after the directory itself went, and after an
/// error that may pass.
const PAUSE: Duration = Duration::from_secs(1);

/// Somebody who waits for a node that is not there.
pub(crate) struct Awaited<'a> {
    cell: &'a Cell,
    path: &'a str,
    /// Of the nearest directory that is there.
    watch: Option<Watch>,
}

impl<'a> Awaited<'a> {
    pub(crate) fn new(cell: &'a Cell, path: &'a str) -> Awaited<'a> {
        Awaited { cell, path, watch: None }
    }

    /// Waits until it is worth looking for the node again.
    pub(crate) async fn again(&mut self) -> Result<(), Error> {
        let path = NodePath::parse(self.path)?;
        let Some(watch) = &mut self.watch else {
            self.watch = Some(watch_above(self.cell, &path).await?);
            return Ok(());
        };
        let of_parent = watch.handle().map(|handle| handle.path()) == path.parent().as_ref().map(NodePath::as_str);
        if !of_parent {
            // What is made below what it watches is not told of.
            let _ = tokio::time::timeout(PAUSE, watch.next()).await;
            self.watch = None;
        } else if watch.next().await.is_none() {
            self.watch = None;
            pause().await;
        }
        Ok(())
    }
}

/// What was told last of something that is followed for as long as the session lives.
pub(crate) struct Told<T> {
    /// `None` = nothing yet.
    last: Option<Result<T, Error>>,
    /// The session is, and that was told.
    over: bool,
}

impl<T> Default for Told<T> {
    fn default() -> Told<T> {
        Told { last: None, over: false }
    }
}

impl<T: Clone + PartialEq> Told<T> {
    pub(crate) fn is_nothing(&self) -> bool {
        self.last.is_none()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// What is to be told, if it is news. An error that stays is told once, and looked at again after a pause.
    pub(crate) async fn news(&mut self, cell: &Cell, now: Result<T, Error>) -> Option<Result<T, Error>> {
        self.over = now.is_err() && cell.state().is_over();
        if self.last.as_ref() != Some(&now) || self.over {
            self.last = Some(now.clone());
            return Some(now);
        }
        if now.is_err() {
            pause().await;
        }
        None
    }
}

/// Waits until something that failed may be tried again.
pub(crate) async fn pause() {
    tokio::time::sleep(PAUSE).await;
}

/// Watches the nearest directory above that is there.
async fn watch_above(cell: &Cell, path: &NodePath) -> Result<Watch, Error> {
    let mut at = path.clone();
    loop {
        at = at.parent().unwrap_or_else(NodePath::root);
        match cell.open(at.as_str()).read().events(Events::CHILDREN).await {
            Err(error) if error.class == Class::NotFound && !at.is_root() => {}
            opened => {
                let handle = opened?;
                let watch = handle.watch();
                return Ok(Watch { handle: Some(handle), ..watch });
            }
        }
    }
}
