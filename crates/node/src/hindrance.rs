//! What makes a node worse than it is, on purpose: for measurements and for tests of tests, never for use.

use crate::group::StoreGroup;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidings_base::Error;
use tidings_base::disk::Disk;
use tidings_log::SlowDisk;
use tidings_store::Store;
use tidings_store::faulty::{Faulty, Plan};
use tidings_wire::v1::store_message::Message;
use tidings_wire::v1::{Apply, Get, Rows, Scan};

/// Between two looks whether rows should go wrong.
const LOOK: Duration = Duration::from_millis(50);

/// How a node is made worse. The default is not at all.
#[derive(Clone, Debug, Default)]
pub struct Hindrance {
    /// Each sync of a log takes so much longer.
    pub each_sync: Duration,
    /// What goes wrong with rows that the parts of this node ask for, where it leads the store itself.
    pub rows: Plan,
    /// It does so only while there is a file of this name.
    pub rows_while: Option<PathBuf>,
    /// F12 is left out: what an application may still believe in is released at once. Tests must notice.
    pub forgets_beliefs: bool,
}

impl Hindrance {
    pub(crate) fn disk(&self, disk: impl Disk + 'static) -> Arc<dyn Disk> {
        match self.each_sync.is_zero() {
            true => Arc::new(disk),
            false => Arc::new(SlowDisk::new(Arc::new(disk), self.each_sync)),
        }
    }

    pub(crate) fn store(&self, store: &StoreGroup) -> Option<Hindered> {
        let store = store.clone();
        let begins = if self.rows_while.is_some() { Plan::default() } else { self.rows.clone() };
        let faulty = || Arc::new(Faulty::new(move || store.clone(), begins, 0));
        let hindered = (!self.rows.rules.is_empty()).then(|| Hindered(faulty()));
        if let (Some(Hindered(faulty)), Some(sign)) = (&hindered, &self.rows_while) {
            tokio::spawn(look(Arc::downgrade(faulty), self.rows.clone(), sign.clone()));
        }
        hindered
    }
}

/// Lets rows go wrong while there is a sign, for as long as there is a store.
async fn look(faulty: Weak<Faulty<StoreGroup>>, plan: Plan, sign: PathBuf) {
    while let Some(faulty) = faulty.upgrade() {
        faulty.plan(if sign.exists() { plan.clone() } else { Plan::default() });
        drop(faulty);
        tokio::time::sleep(LOOK).await;
    }
}

/// A store whose answers go wrong as planned.
#[derive(Clone)]
pub(crate) struct Hindered(Arc<Faulty<StoreGroup>>);

impl Hindered {
    /// The answer, if it is one of rows.
    pub(crate) async fn ask(&self, message: &Message) -> Option<Result<Message, Error>> {
        Some(match message.clone() {
            Message::Apply(apply) => self.apply(apply).await,
            Message::Get(get) => self.get(get).await,
            Message::Scan(scan) => self.scan(scan).await,
            _ => return None,
        })
    }

    async fn apply(&self, apply: Apply) -> Result<Message, Error> {
        self.0.apply(apply).await.map(Message::Applied)
    }

    async fn get(&self, get: Get) -> Result<Message, Error> {
        let row = self.0.get(get).await?;
        Ok(Message::Rows(Rows { rows: row.into_iter().collect(), ..Rows::default() }))
    }

    async fn scan(&self, scan: Scan) -> Result<Message, Error> {
        self.0.scan(scan).await.map(Message::Rows)
    }
}
