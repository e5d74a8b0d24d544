//! What this node can do, behind the gate: cell, store and feed, replication, administration.
//!
//! ```text
//!   Gate ─▶ NodeServices ─┬─ cell ────────▶ CellGroup (master here), who redirects, or the master, through Peers
//!                         ├─ placement ───▶ Placement (leads here), who redirects, or the leader, through Peers
//!                         ├─ notify ──────▶ Notify: machines here, owners of ranges elsewhere through Peers
//!                         ├─ tables ──────▶ Tables: machines here, owners of partitions elsewhere through Peers
//!                         ├─ store, feed ─▶ StoreGroup (leads here) or the leader, through Peers
//!                         ├─ raft ────────▶ consensus::Group::receive, by group
//!                         └─ admin ───────▶ status, members, incarnation; Apps on the keys in the store
//! ```

pub(crate) mod admin;
mod cells;
mod gone;
mod ground;
mod keys;
mod leaving;
mod peers;
mod placed;
mod roll_call;
mod stored;
mod sweeping;

pub use cells::Cells;
pub(crate) use cells::Way;
pub(crate) use ground::Ground;
pub use peers::{ClockGap, Met, Peers};
pub use placed::Placed;
pub(crate) use placed::Through;
pub use stored::Stored;
pub(crate) use sweeping::{Cleaning, PAUSE};

use crate::apps::Apps;
use crate::cell::CellGroup;
use crate::clock::Clock;
use crate::connection::{Requests, Responder};
use crate::gate::{Answers, Services};
use crate::group::{Refused, StoreGroup};
use crate::hindrance::Hindrance;
use crate::notify::{self, Notify, Seat};
use crate::placement::{Placement, Told};
use crate::principal::{AppName, Principal};
use crate::tables::{self, Tables, Watching};
use async_trait::async_trait;
use futures::StreamExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::agreed::Role;
use tidings_base::{Class, Error, GroupId};
use tidings_consensus::{Group, Missed, Standing};
use tidings_wire::error;
use tidings_wire::v1;
use tidings_wire::v1::admin_message::Message as Admin;
use tidings_wire::v1::cell_message::Message as CellMessage;
use tidings_wire::v1::frame::Body;

/// The longest that the cell holds a request, and some: a KeepAlive of the longest lease. Whoever asks has a deadline of
/// its own.
const HELD: Duration = Duration::from_secs(75);

/// The services of a node that is a member of the cell's group and the store's.
pub struct NodeServices {
    stored: Stored,
    cells: Cells,
    apps: Apps,
    /// Applications that were found to be there, and those that the configuration names.
    made: Mutex<BTreeSet<AppName>>,
    clock: Arc<dyn Clock>,
    /// Absent where the shell is tested without it.
    placed: Option<Placed>,
    /// The same.
    notify: Option<Notify>,
    /// The same.
    tables: Option<Tables>,
    /// What looks after the members: who of them is dead, and whether this node still is one.
    watchers: Vec<AbortOnDrop>,
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl NodeServices {
    /// Services on these members' cell and store.
    pub fn new(cell: CellGroup, store: StoreGroup, peers: Arc<Peers>, clock: Arc<dyn Clock>) -> NodeServices {
        let cells = Cells::new(cell, peers.clone());
        let stored = Stored::new(store, peers);
        let apps = Apps::new(Arc::new(stored.clone()), clock.clone());
        let made = Mutex::default();
        let (placed, notify, tables, watchers) = (None, None, None, Vec::new());
        let mut services = NodeServices { stored, cells, apps, made, clock, placed, notify, tables, watchers };
        let logs = services.logs().map(Clone::clone);
        let watching = tokio::spawn(roll_call::watch(logs, services.stored.peers.clone(), services.clock.clone()));
        services.watchers.push(AbortOnDrop(watching.abort_handle()));
        services
    }

    /// The same services, to which these applications are there without having been made: the configuration names them.
    pub(crate) fn with_apps(self, apps: impl IntoIterator<Item = AppName>) -> NodeServices {
        self.made.lock().extend(apps);
        self
    }

    /// The same services, whose rows go wrong as planned.
    pub(crate) fn hindered(mut self, hindrance: &Hindrance) -> NodeServices {
        self.stored.hindered = hindrance.store(&self.stored.store);
        self
    }

    /// The same services with placement, whose state is in the cell.
    pub fn with_placement(mut self, told: Told) -> Result<NodeServices, Error> {
        let placement = Placement::start(told, self.cells.clone(), self.clock.clone())?;
        self.placed = Some(Placed::new(placement, self.stored.peers.clone()));
        Ok(self)
    }

    /// The same services with Notify, whose ranges are leased by placement; without placement there is none.
    pub fn with_notify(mut self, told: notify::Told) -> Result<NodeServices, Error> {
        if let Some(placed) = &self.placed {
            let (stored, cells) = (self.stored.clone(), self.cells.clone());
            let notify = Notify::start(told, stored, cells, placed.clone(), self.clock.clone())?;
            self.notify = Some(notify);
        }
        Ok(self)
    }

    /// The same services with Tables, whose partitions are leased by placement; without placement there are none.
    pub fn with_tables(mut self, told: tables::Told) -> Result<NodeServices, Error> {
        if let Some(placed) = &self.placed {
            let (stored, cells) = (self.stored.clone(), self.cells.clone());
            self.tables =
                Some(Tables::start(told, stored, cells, placed.clone(), self.notify.clone(), self.clock.clone())?);
        }
        Ok(self)
    }

    /// Tables on this node.
    pub(crate) fn tables_here(&self) -> Result<&Tables, Error> {
        self.tables.as_ref().ok_or_else(error::unsupported)
    }

    /// Notify on this node.
    pub(crate) fn notify_here(&self) -> Result<&Notify, Error> {
        self.notify.as_ref().ok_or_else(error::unsupported)
    }

    fn placed(&self) -> Result<&Placed, Error> {
        self.placed.as_ref().ok_or_else(error::unsupported)
    }

    /// The same services, which put spares in the place of members that stay dead.
    pub(crate) fn with_spares(
        mut self,
        spares: crate::cell::Spares,
        after: Duration,
        clock: Arc<dyn Clock>,
    ) -> NodeServices {
        if !spares.is_empty() {
            let groups = self.logs().map(Clone::clone).into();
            let stored = self.stored.clone();
            let watching = tokio::spawn(crate::cell::watch_spares(groups, spares, stored, after, clock));
            self.watchers.push(AbortOnDrop(watching.abort_handle()));
        }
        self
    }

    /// The same services, which hand over what they own when this node is a member no more.
    pub(crate) fn leaving_with_membership(mut self) -> NodeServices {
        let placement = self.placed.as_ref().map(|placed| placed.here().clone());
        let (notify, tables) = (self.notify.clone(), self.tables.clone());
        let watching = leaving::watch(self.stored.store.log().clone(), placement, notify, tables);
        self.watchers.push(AbortOnDrop(tokio::spawn(watching).abort_handle()));
        self
    }

    /// The store as the node itself uses it, wherever its leader is.
    pub fn stored(&self) -> &Stored {
        &self.stored
    }

    /// The cell, wherever its master is.
    pub fn cells(&self) -> &Cells {
        &self.cells
    }

    /// The agreed logs of all groups: the store's, the cell's.
    fn logs(&self) -> [&Group; 2] {
        [self.stored.store.log(), self.cells.here().log()]
    }

    /// A status with what only placement and the other members know.
    async fn described(&self, mut answer: Admin, alone: bool) -> Admin {
        if let Admin::StatusReply(status) = &mut answer {
            status.placement = self.placed.as_ref().map(|placed| placed.here().status());
            let notify = self.notify.as_ref().map(|notify| ("notify", notify.ranges()));
            let tables = self.tables.as_ref().map(|tables| ("tables", tables.partitions()));
            let share = |(part, ranges): (&str, usize)| v1::Share { part: part.to_owned(), ranges: ranges as u64 };
            status.shares = notify.into_iter().chain(tables).map(share).collect();
            if self.logs().iter().any(|log| log.is_outside()) {
                status.contacts = self.stored.peers.asked();
            }
            if !alone {
                roll_call::add(&self.stored.peers, &*self.clock, status).await;
            }
        }
        answer
    }

    /// An answer of placement. Its state is in the cell: without a majority there nobody leads it, whoever did last.
    fn placed_answer(&self, answer: Result<v1::PlacementMessage, Error>) -> Result<Body, Error> {
        let log = self.cells.here().log();
        answer.map(Body::Placement).map_err(|error| match log.missed() {
            Some(Missed { hopeless: true, .. }) => admin::explain(log, error.redirect(None)),
            _ => admin::explain(log, error),
        })
    }

    /// Waits until a machine has stopped by itself; which.
    async fn broken(&self) -> &'static str {
        let placement = async {
            match &self.placed {
                Some(placed) => placed.here().broken().await,
                None => std::future::pending().await,
            }
        };
        let notify = async {
            match &self.notify {
                Some(notify) => notify.broken().await,
                None => std::future::pending().await,
            }
        };
        let tables = async {
            match &self.tables {
                Some(tables) => tables.broken().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.stored.store.broken() => "store",
            () = self.cells.here().broken() => "cell",
            () = placement => "placement",
            machine = notify => machine,
            machine = tables => machine,
        }
    }

    async fn stop_machines(&self) {
        // What looks after the members must not keep the store open.
        self.watchers.iter().for_each(|watcher| watcher.0.abort());
        if let Some(tables) = &self.tables {
            tables.stop().await;
        }
        if let Some(notify) = &self.notify {
            notify.stop().await;
        }
        if let Some(placed) = &self.placed {
            placed.here().stop();
        }
    }

    fn log(&self, group: u32) -> Option<&Group> {
        match GroupId(group) {
            GroupId::CELL => Some(self.cells.here().log()),
            GroupId::STORE => Some(self.stored.store.log()),
            _ => None,
        }
    }
}

#[async_trait]
impl Services for NodeServices {
    async fn call(&self, _: &Principal, request: Body) -> Result<Body, Error> {
        match request {
            Body::Raft(message) => match self.log(message.group) {
                Some(log) => Ok(Body::Raft(log.receive(message).await)),
                None => Err(admin::no_group(message.group)),
            },
            Body::Admin(v1::AdminMessage { message: Some(message) }) => {
                let alone = matches!(message, Admin::Status(v1::StatusRequest { alone: true }));
                let answer = match self.apps.call(&message).await {
                    Some(answer) => answer?,
                    None => admin::call(&self.logs(), &self.stored, &*self.clock, message).await?,
                };
                let answer = self.described(answer, alone).await;
                Ok(Body::Admin(v1::AdminMessage { message: Some(answer) }))
            }
            Body::Cell(message) => {
                let answer = self.cells.here().request(message).await;
                answer.map(Body::Cell).map_err(|refused| refused.error)
            }
            Body::Placement(message) => self.placed_answer(self.placed()?.here().request(message).await),
            Body::Notify(message) => self.notify_here()?.call(message).await.map(Body::Notify),
            Body::Tables(message) => self.tables_here()?.call(message).await.map(Body::Tables),
            request => stored::one(self.stored.here_unless_leaving(request).await?),
        }
    }

    async fn call_anywhere(&self, caller: &Principal, request: Body) -> Result<Body, Error> {
        match request {
            Body::Store(_) | Body::Feed(_) => {
                stored::one(self.stored.unless_leaving(stored::waits(&request), self.stored.anywhere(request)).await?)
            }
            Body::Cell(message) => self.cells.anywhere(message, HELD).await.map(Body::Cell),
            Body::Placement(message) => self.placed_answer(self.placed()?.anywhere(message, HELD).await),
            request => self.call(caller, request).await,
        }
    }

    fn cell(&self, request: v1::CellMessage, responder: Responder) -> Option<BoxFuture<'static, ()>> {
        Some(Box::pin(held(self.cells.here().request(request), responder)))
    }

    fn notify(
        &self,
        request: v1::NotifyMessage,
        rest: Option<Requests>,
        responder: Responder,
    ) -> Option<BoxFuture<'static, ()>> {
        match &self.notify {
            Some(notify) => Some(notify.serve(request, rest, responder)),
            None => {
                responder.fail(error::unsupported());
                None
            }
        }
    }

    fn tables(
        &self,
        request: v1::TablesMessage,
        rest: Option<Requests>,
        responder: Responder,
    ) -> Option<BoxFuture<'static, ()>> {
        match &self.tables {
            Some(tables) => Some(tables.serve(request, rest, responder)),
            None => {
                responder.fail(error::unsupported());
                None
            }
        }
    }

    async fn tables_watch(&self, caller: v1::TablesCaller, query: v1::LiveQuery) -> Result<Watching, Error> {
        self.tables_here()?.watch(caller, query).await
    }

    async fn app_exists(&self, app: &AppName) -> Result<(), Error> {
        if self.made.lock().contains(app) {
            return Ok(());
        }
        self.stored.app_exists(app).await?;
        // It stays: applications are never taken away.
        self.made.lock().insert(app.clone());
        Ok(())
    }

    fn notify_channel(&self, caller: v1::NotifyCaller) -> Result<Seat, Error> {
        self.notify_here()?.channel(caller)
    }

    async fn stream(&self, _: &Principal, request: Body) -> Result<Answers, Error> {
        if let Body::Cell(v1::CellMessage { message: Some(CellMessage::Backup(_)), .. }) = request {
            return self.cells.here().backup().await.map_err(|refused| refused.error);
        }
        let frames = self.stored.here_unless_leaving(request).await?;
        Ok(futures::stream::iter(frames.into_iter().map(Ok)).boxed())
    }

    fn done(&self) -> Vec<(&'static str, u64)> {
        let entries = |log: &Group| log.status().applied.0;
        let [store, cell] = self.logs().map(entries);
        let sent = self.notify.as_ref().map(|notify| ("notifications", notify.sent()));
        [("store_entries", store), ("cell_entries", cell)].into_iter().chain(sent).collect()
    }

    fn ready(&self) -> Result<(), Error> {
        for log in self.logs() {
            if log.status().standing == Standing::Stopped {
                return Err(admin::stopped(log));
            }
            if log.led_outside().is_some() {
                continue;
            }
            let name = admin::name(log);
            let why = match *log.role().borrow() {
                Role::Follower { leader: None } => format!("no leader of the {name}'s group is known"),
                _ if !log.in_touch() => format!("this node is not in touch with a majority of the {name}'s group"),
                _ => continue,
            };
            return Err(Error::new("node.not_ready", Class::Unreachable, why).hint(
                "A majority of the members must run and reach each other; a new node must be added to both groups, or be \
                 told of members (`contacts`).",
            ));
        }
        Ok(())
    }

    async fn failed(&self) -> Error {
        let [one, other] = self.logs();
        tokio::select! {
            () = one.failed() => admin::stopped(one),
            () = other.failed() => admin::stopped(other),
            machine = self.broken() => machine_stopped(machine),
        }
    }

    async fn hand_over(&self) {
        self.logs().iter().for_each(|log| log.stand_no_more());
        let rest = async {
            let tables = async {
                if let Some(tables) = &self.tables {
                    tables.hand_over().await;
                }
            };
            let notify = async {
                if let Some(notify) = &self.notify {
                    notify.hand_over().await;
                }
            };
            tokio::join!(tables, notify);
            // While the master of the cell, to whom the lock is given back, is near.
            if let Some(placed) = &self.placed {
                placed.here().retire().await;
            }
            self.cells.here().log().retire().await;
        };
        tokio::join!(self.stored.store.log().retire(), rest);
    }

    async fn retire(&self) {
        if let Some(tables) = &self.tables {
            tables.retire();
        }
        if let Some(notify) = &self.notify {
            notify.retire();
        }
        self.stored.store.let_go();
        self.cells.here().let_go().await;
    }

    async fn shutdown(&self) {
        self.stop_machines().await;
        tokio::join!(self.stored.store.shutdown(), self.cells.here().shutdown());
    }

    async fn stop(&self) {
        self.stop_machines().await;
        tokio::join!(self.stored.store.stop(), self.cells.here().stop());
    }
}

/// A machine panics only where it is wrong itself; what it would have said is not said by anybody else.
fn machine_stopped(machine: &str) -> Error {
    Error::new("node.machine_stopped", Class::Failed, format!("the machine `{machine}` of this node stopped by itself"))
        .hint(
            "Start the node again; nothing that was acknowledged is lost. Its output says where the machine broke: that is \
             a defect, please report it.",
        )
}

/// What waits for the master's answer: as small as it can be, since most of what it waits for is held.
async fn held(answer: impl Future<Output = Result<v1::CellMessage, Refused>>, responder: Responder) {
    let answer = answer.await;
    responder.finish(answer.map(Body::Cell).map_err(|refused| refused.error));
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::data_dir::DataDir;

    /// The services of an embedded node, and the lock of its directory.
    pub(crate) async fn embedded(dir: &std::path::Path) -> (NodeServices, DataDir) {
        let config = crate::Config::embedded(dir, ([127, 0, 0, 1], 0).into());
        let data = DataDir::open(&config.data).unwrap();
        let (clock, hindrance) = (Arc::new(crate::SystemClock), Hindrance::default());
        let services = crate::start_services(&config, &hindrance, Default::default(), &data, config.listen, clock);
        (services.await.unwrap(), data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer_of<F, R>(_: F) -> usize
    where
        F: Fn(&CellGroup, v1::CellMessage) -> R,
    {
        size_of::<R>()
    }

    /// Nobody else says what a machine would have said: the node must not seem well without it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_machine_that_stops_by_itself_fails_the_node() {
        for machine in ["store", "cell", "placement", "registrar"] {
            let dir = tempfile::tempdir().unwrap();
            let (services, _data) = testing::embedded(dir.path()).await;
            assert!(futures::poll!(services.failed()).is_pending());
            match machine {
                "store" => services.stored.store.break_front(),
                "cell" => services.cells.here().break_master(),
                "placement" => services.placed().unwrap().here().stop(),
                _ => services.notify_here().unwrap().stop().await,
            }
            let failed = services.failed().await;
            assert_eq!(failed.code, "node.machine_stopped");
            // All of Notify's end together.
            let named = ["matcher", "bridge"].iter().chain([&machine]).any(|name| failed.message.contains(name));
            assert!(named, "{machine}: {}", failed.message);
            services.stop().await;
        }
    }

    /// Twenty thousand sessions hold a KeepAlive each: what waits for one must not hold the request itself.
    #[test]
    fn a_held_request_keeps_little() {
        let asked = answer_of(CellGroup::request);
        assert!(asked <= 160, "{asked}");
        assert!(asked < size_of::<v1::CellMessage>());
        let held = asked + size_of::<Responder>();
        assert!(held <= 256, "{held}");
    }
}
