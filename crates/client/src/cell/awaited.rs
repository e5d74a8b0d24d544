//! Waiting for a node of a path: its directory's changes are watched, not the clock.

use super::calls::Cell;
use super::events::{Events, Watch};
use std::time::Duration;
use tidings_base::Error;
use tidings_cell::NodePath;

/// The pause after the directory itself went.
const PAUSE: Duration = Duration::from_secs(1);

/// Somebody who waits for a node that is not there.
pub(crate) struct Awaited<'a> {
    cell: &'a Cell,
    path: &'a str,
    /// Of the directory.
    watch: Option<Watch>,
}

impl<'a> Awaited<'a> {
    pub(crate) fn new(cell: &'a Cell, path: &'a str) -> Awaited<'a> {
        Awaited { cell, path, watch: None }
    }

    /// Waits until it is worth looking for the node again.
    pub(crate) async fn again(&mut self) -> Result<(), Error> {
        match &mut self.watch {
            None => self.watch = Some(watch_parent(self.cell, self.path).await?),
            Some(watch) => {
                if watch.next().await.is_none() {
                    self.watch = None;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        Ok(())
    }
}

async fn watch_parent(cell: &Cell, path: &str) -> Result<Watch, Error> {
    let parent = NodePath::parse(path)?.parent().unwrap_or_else(NodePath::root);
    let handle = cell.open(parent.as_str()).read().events(Events::CHILDREN).await?;
    let watch = handle.watch();
    Ok(Watch { handle: Some(handle), ..watch })
}
