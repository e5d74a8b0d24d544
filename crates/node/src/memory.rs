//! Services in memory: what tests of the shell and its carriers run against. Nothing of it survives the process.

use crate::apps::Apps;
use crate::clock::Clock;
use crate::gate::Services;
use crate::keys::{KeyStore, MemoryKeyStore};
use crate::principal::Principal;
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidings_base::{Class, Error};
use tidings_wire::v1::{admin_message, feed_message, store_message};
use tidings_wire::{Body, v1};
use tokio::sync::{Notify, OwnedRwLockWriteGuard, RwLock};

/// Rows by (group, row), cells by column.
type RowMap = BTreeMap<(Bytes, Bytes), BTreeMap<Bytes, v1::Cell>>;

/// A store and a feed as simple as they can be: no fences, no redelivery.
pub struct MemoryServices {
    rows: Mutex<RowMap>,
    topics: Mutex<BTreeMap<Bytes, Vec<Bytes>>>,
    consumed: Mutex<BTreeMap<(Bytes, Bytes), usize>>,
    apps: Apps,
    ready: AtomicBool,
    turn: Arc<RwLock<()>>,
    waiting: Notify,
}

impl MemoryServices {
    /// Empty services, with the keys of applications beside them.
    pub fn new(clock: Arc<dyn Clock>) -> (Arc<MemoryServices>, Arc<dyn KeyStore>) {
        let keys: Arc<dyn KeyStore> = Arc::new(MemoryKeyStore::default());
        let services = MemoryServices {
            rows: Mutex::default(),
            topics: Mutex::default(),
            consumed: Mutex::default(),
            apps: Apps::new(keys.clone(), clock),
            ready: AtomicBool::new(true),
            turn: Arc::default(),
            waiting: Notify::new(),
        };
        (Arc::new(services), keys)
    }

    /// Pretends to be ready or not.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    /// The full names of all rows that were ever written.
    pub fn everything(&self) -> Vec<(Bytes, Bytes)> {
        self.rows.lock().keys().cloned().collect()
    }

    /// Makes all calls wait until what is returned is dropped; `None` if a call is going on.
    pub fn pause_calls(&self) -> Option<OwnedRwLockWriteGuard<()>> {
        self.turn.clone().try_write_owned().ok()
    }

    /// Waits until a call waits.
    pub async fn call_is_waiting(&self) {
        self.waiting.notified().await;
    }

    fn store(&self, message: store_message::Message) -> Result<store_message::Message, Error> {
        use store_message::Message;
        match message {
            Message::Apply(apply) => {
                let mut rows = self.rows.lock();
                for (group, row) in apply.groups.into_iter().flat_map(|g| {
                    let group = g.group;
                    g.rows.into_iter().map(move |row| (group.clone(), row))
                }) {
                    let cells = rows.entry((group, row.row)).or_default();
                    for cell in row.cells {
                        let newer = cells.get(&cell.column).is_none_or(|old| old.timestamp <= cell.timestamp);
                        if newer {
                            cells.insert(cell.column.clone(), cell);
                        }
                    }
                }
                Ok(Message::Applied(v1::Applied::default()))
            }
            Message::Get(get) => {
                let key = get.key.unwrap_or_default();
                let rows = self.rows.lock();
                let row = rows.get(&(key.group, key.row.clone())).and_then(|cells| row(key.row, cells, &get.columns));
                Ok(Message::Rows(v1::Rows { rows: row.into_iter().collect(), next: None }))
            }
            Message::Scan(scan) => Ok(Message::Rows(self.scan(&scan))),
            Message::CompareAndSet(set) => Ok(Message::CompareAndSetDone(self.compare_and_set(set))),
            Message::Status(_) => Ok(Message::StatusReply(v1::StoreStatusReply { incarnation: 1, applied: 0 })),
            _ => Err(tidings_wire::error::unsupported()),
        }
    }

    fn scan(&self, scan: &v1::Scan) -> v1::Rows {
        let rows = self.rows.lock();
        let from = rows.range((scan.group.clone(), scan.start.clone())..);
        let in_range =
            from.take_while(|((group, row), _)| *group == scan.group && (scan.end.is_empty() || *row < scan.end));
        let mut found: Vec<v1::Row> =
            in_range.filter_map(|((_, name), cells)| row(name.clone(), cells, &scan.columns)).collect();
        let limit = if scan.limit == 0 { usize::MAX } else { scan.limit as usize };
        let next = found.get(limit).map(|row| row.row.clone());
        found.truncate(limit);
        v1::Rows { rows: found, next }
    }

    fn compare_and_set(&self, set: v1::CompareAndSet) -> v1::CompareAndSetDone {
        let key = set.key.unwrap_or_default();
        let mut rows = self.rows.lock();
        let cells = rows.entry((key.group, key.row)).or_default();
        let actual = cells.get(&set.column).cloned();
        if actual.as_ref().map_or(0, |cell| cell.timestamp) != set.expected {
            return v1::CompareAndSetDone { written: false, actual };
        }
        cells.extend(set.write.map(|cell| (set.column, cell)));
        v1::CompareAndSetDone { written: true, actual: None }
    }

    fn feed(&self, message: feed_message::Message) -> Result<feed_message::Message, Error> {
        use feed_message::Message;
        match message {
            Message::Append(append) => {
                let mut topics = self.topics.lock();
                let entries = topics.entry(append.topic).or_default();
                let first = entries.len() as u64 + 1;
                entries.extend(append.entries);
                Ok(Message::Appended(v1::Appended { first, last: entries.len() as u64 }))
            }
            Message::Consume(consume) => {
                let topics = self.topics.lock();
                let mut consumed = self.consumed.lock();
                let from = consumed.entry((consume.topic.clone(), consume.group)).or_default();
                let entries = topics.get(&consume.topic).map_or(&[][..], Vec::as_slice);
                let taken = entries.iter().enumerate().skip(*from).take(consume.limit as usize);
                let delivery = |(i, entry): (usize, &Bytes)| v1::Delivery {
                    number: i as u64 + 1,
                    entry: entry.clone(),
                    redelivered: 0,
                };
                let deliveries: Vec<_> = taken.map(delivery).collect();
                *from += deliveries.len();
                Ok(Message::Deliveries(v1::Deliveries { deliveries }))
            }
            Message::Ack(_) => Ok(Message::Acked(v1::Acked {})),
            _ => Err(tidings_wire::error::unsupported()),
        }
    }
}

/// The live cells of a row; `None` if there are none.
fn row(name: Bytes, cells: &BTreeMap<Bytes, v1::Cell>, columns: &[Bytes]) -> Option<v1::Row> {
    let wanted = |cell: &&v1::Cell| cell.value.is_some() && (columns.is_empty() || columns.contains(&cell.column));
    let cells: Vec<_> = cells.values().filter(wanted).cloned().collect();
    (!cells.is_empty()).then_some(v1::Row { row: name, cells })
}

#[async_trait]
impl Services for MemoryServices {
    async fn call(&self, _: &Principal, request: Body) -> Result<Body, Error> {
        use admin_message::Message::{Status, StatusReply};
        if self.turn.try_read().is_err() {
            self.waiting.notify_one();
        }
        let _turn = self.turn.read().await;
        match request {
            Body::Store(v1::StoreMessage { message: Some(message) }) => {
                Ok(Body::Store(v1::StoreMessage { message: Some(self.store(message)?) }))
            }
            Body::Feed(v1::FeedMessage { message: Some(message) }) => {
                Ok(Body::Feed(v1::FeedMessage { message: Some(self.feed(message)?) }))
            }
            Body::Admin(v1::AdminMessage { message: Some(message) }) => {
                let answer = match (&message, self.apps.call(&message).await) {
                    (_, Some(answer)) => answer?,
                    (Status(_), None) => StatusReply(v1::StatusReply::default()),
                    _ => return Err(tidings_wire::error::unsupported()),
                };
                Ok(Body::Admin(v1::AdminMessage { message: Some(answer) }))
            }
            _ => Err(tidings_wire::error::unsupported()),
        }
    }

    fn ready(&self) -> Result<(), Error> {
        match self.ready.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(Error::new("node.not_ready", Class::Unreachable, "the services are starting")),
        }
    }

    async fn shutdown(&self) {
        self.set_ready(false);
    }
}
