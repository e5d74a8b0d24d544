//! Standing for election: a short cell session, the lock, and the address of whoever holds it.

use super::errands::make_directories;
use super::{Reign, Told};
use crate::driver::Handle;
use crate::services::Way;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;
use tidings_cell::token::unverified_sequencer;
use tidings_client::cell::{Cell, Events, Handle as OpenFile, Link, Lock, Mode, SessionOptions, Watch};
use tidings_placement::manager::file::LEADER;
use tidings_placement::manager::{Input, epoch};
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;
use tokio::sync::watch;

/// The pause before another session is tried, and before a manager that stepped down stands again: another one gets
/// the lock first.
const AGAIN: Duration = Duration::from_millis(500);

/// How long a session may take to begin: longer than the cell needs to elect a master and to open.
const BEGIN: Duration = Duration::from_secs(10);

/// What stands for election, or only knows who leads.
pub(super) struct Standing {
    pub(super) told: Told,
    pub(super) way: Way,
    pub(super) reign: Arc<Mutex<Option<Reign>>>,
    pub(super) leader: watch::Sender<Option<String>>,
    pub(super) manager: Handle<Input>,
    /// Counts how often the manager gave up.
    pub(super) stepping_down: watch::Receiver<u64>,
    /// Whether the node stands for election; one that was removed as a member does so no more.
    pub(super) stands: watch::Receiver<bool>,
    pub(super) retires: watch::Receiver<bool>,
}

impl Standing {
    /// One session after the other until the node stops.
    pub(super) async fn run(self) {
        let mut retires = self.retires.clone();
        loop {
            let session = tokio::select! {
                session = self.session() => session,
                _ = retires.wait_for(|retires| *retires) => return,
            };
            match session {
                Ok(cell) => {
                    if let Err(error) = self.stand(&cell).await {
                        tracing::info!(%error, "placement: the cell session ended");
                    }
                    if *self.retires.borrow() {
                        let _ = cell.close().await;
                        return;
                    }
                }
                Err(error) => tracing::debug!(%error, "placement: no cell session yet"),
            }
            tokio::select! {
                () = tokio::time::sleep(AGAIN) => {}
                _ = retires.wait_for(|retires| *retires) => return,
            }
        }
    }

    /// F10: short, never stretched (the cell stretches only leases of the usual length), and its lock free at once.
    async fn session(&self) -> Result<Cell, Error> {
        let options = SessionOptions {
            lease: self.told.fail_over.session,
            lock_delay: Some(Duration::ZERO),
            cache: 1,
            begin_within: BEGIN,
            ..SessionOptions::default()
        };
        Link::new(self.way.clone())?.session(options).await
    }

    /// Knows who leads, and leads when the turn comes, for as long as the session lasts.
    async fn stand(&self, cell: &Cell) -> Result<(), Error> {
        if let Message::KeysReply(keys) = cell.request(Message::Keys(v1::CellKeys {})).await? {
            // Without a manager the node is stopping.
            let _ = self.manager.send(Input::Met { incarnation: keys.incarnation }).await;
        }
        let file = lock_file(cell).await?;
        let mut watch = file.watch();
        self.learn(&file).await?;
        let (mut retires, mut stands) = (self.retires.clone(), self.stands.clone());
        loop {
            let may = *stands.borrow_and_update();
            let lock = tokio::select! {
                lock = file.acquire(Mode::Exclusive), if may => lock?,
                over = self.follow(&file, &mut watch) => return over,
                Ok(()) = stands.changed() => continue,
                _ = retires.wait_for(|retires| *retires) => return Ok(()),
            };
            self.lead(cell, &file, lock).await?;
            if *self.retires.borrow() {
                return Ok(());
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Reads the leader's address whenever it changes; returns when the session is over.
    async fn follow(&self, file: &OpenFile, watch: &mut Watch) -> Result<(), Error> {
        while watch.next().await.is_some() {
            self.learn(file).await?;
        }
        Ok(())
    }

    async fn learn(&self, file: &OpenFile) -> Result<(), Error> {
        let contents = file.contents_and_stat().await?;
        let address = contents.text().into_owned();
        self.leader.send_replace(Some(address).filter(|address| !address.is_empty()));
        Ok(())
    }

    /// Leads until the lock is lost, the manager gives up, or the node stops.
    async fn lead(&self, cell: &Cell, file: &OpenFile, lock: Lock) -> Result<(), Error> {
        let mut stepping_down = self.stepping_down.clone();
        stepping_down.mark_unchanged();
        let (mut retires, mut stands) = (self.retires.clone(), self.stands.clone());
        let sequencer = lock.sequencer().token().clone();
        let epoch = epoch(unverified_sequencer(&sequencer)?.incarnation, lock.generation());
        file.set_sequencer(lock.sequencer());
        let published = file.set_contents(self.told.address.clone(), None).await;
        file.set_sequencer(None);
        published?;
        self.leader.send_replace(Some(self.told.address.clone()));
        // The manager looks at this session only once it has heard of this epoch.
        *self.reign.lock() = Some(Reign { epoch, cell: cell.clone(), sequencer });
        tracing::info!(epoch, "placement: this node leads");
        let _deposed = Deposed { reign: &self.reign };
        if self.manager.send(Input::Elected { epoch }).await.is_err() {
            return Ok(());
        }
        let why = tokio::select! {
            why = lock.lost() => why.to_string(),
            _ = stepping_down.changed() => "the manager gave up".to_owned(),
            _ = stands.wait_for(|stands| !*stands) => "the node is a member no more".to_owned(),
            _ = retires.wait_for(|retires| *retires) => "the node is stopping".to_owned(),
        };
        tracing::info!(epoch, why, "placement: this node leads no more");
        *self.reign.lock() = None;
        let _ = self.manager.send(Input::Deposed).await;
        // Lost, or given back: either way it is not held when this returns.
        let _ = lock.release().await;
        Ok(())
    }
}

/// However a leadership ends, its session is not looked at any more.
struct Deposed<'a> {
    reign: &'a Mutex<Option<Reign>>,
}

impl Drop for Deposed<'_> {
    fn drop(&mut self) {
        *self.reign.lock() = None;
    }
}

/// The lock's file, made if it is not there.
async fn lock_file(cell: &Cell) -> Result<OpenFile, Error> {
    let open = || {
        let open = cell.open(LEADER).read().write().lock().uncached().events(Events::CONTENTS);
        open.lock_delay(Duration::ZERO).create_file("")
    };
    let file = match open().await {
        Err(error) if error.code == "cell.no_parent" => {
            make_directories(cell, LEADER).await?;
            open().await?
        }
        opened => opened?,
    };
    if file.created() {
        // A thousand namespaces have more files than an application may; how many there are the manager bounds.
        cell.request(Message::SetQuota(v1::SetQuota { path: "/".to_owned(), max_nodes: 0, max_bytes: 0 })).await?;
    }
    Ok(file)
}
