//! Writers that remember what was acknowledged, and a reader that asks for all of it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidings_base::Error;
use tidings_client::{Client, ClientConfig};
use tidings_wire::v1::{
    Ack, Append, Apply, Cell, Consume, FeedMessage, GroupWrite, RowWrite, Scan, StoreMessage, feed_message,
    frame::Body, store_message,
};

/// The group of rows that tests write to.
const GROUP: &[u8] = b"load";
/// The topic that tests append to.
const TOPIC: &[u8] = b"load";
/// Writers at once; each waits for its answer before it goes on.
const WRITERS: u64 = 16;

/// What servers have promised so far.
#[derive(Clone, Default)]
pub struct Promised(Arc<Mutex<Promises>>);

#[derive(Default)]
struct Promises {
    rows: BTreeSet<u64>,
    entries: BTreeSet<u64>,
    next: u64,
}

impl Promised {
    fn with<T>(&self, act: impl FnOnce(&mut Promises) -> T) -> T {
        act(&mut self.0.lock().expect("no writer panics"))
    }

    /// How many writes and appends were acknowledged.
    pub fn count(&self) -> usize {
        self.with(|p| p.rows.len() + p.entries.len())
    }

    fn next(&self) -> u64 {
        self.with(|p| {
            p.next += 1;
            p.next
        })
    }
}

/// Runs writers against these servers until they are stopped. Whatever fails is not promised and is not repeated.
pub struct Load {
    tasks: tokio::task::JoinSet<()>,
}

impl Load {
    pub fn start(servers: &[String], promised: &Promised) -> Load {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..WRITERS {
            let (config, promised) = (config(servers), promised.clone());
            tasks.spawn(async move {
                let Ok(client) = Client::connect(config).await else { return };
                loop {
                    let number = promised.next();
                    if number % 4 == 0 {
                        if append(&client, number).await.is_ok() {
                            promised.with(|p| p.entries.insert(number));
                        }
                    } else if write(&client, number).await.is_ok() {
                        promised.with(|p| p.rows.insert(number));
                    }
                }
            });
        }
        Load { tasks }
    }

    /// Waits until this many more were promised, or panics.
    pub async fn until_promised(&self, promised: &Promised, more: usize) {
        let goal = promised.count() + more;
        for _ in 0..6_000 {
            if promised.count() >= goal {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("waited in vain for {goal} acknowledgements, have {}", promised.count());
    }

    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

fn config(servers: &[String]) -> ClientConfig {
    ClientConfig::new(servers)
}

fn row(number: u64) -> Vec<u8> {
    format!("{number:010}").into_bytes()
}

async fn write(client: &Client, number: u64) -> Result<(), Error> {
    let cell = Cell { column: "n".into(), timestamp: 1, value: Some(number.to_string().into()) };
    let rows = vec![RowWrite { row: row(number).into(), cells: vec![cell] }];
    let apply = Apply { groups: vec![GroupWrite { group: GROUP.into(), rows, fence: None }] };
    match store(client, store_message::Message::Apply(apply)).await? {
        store_message::Message::Applied(applied) => {
            assert!(applied.failures.is_empty(), "{applied:?}");
            Ok(())
        }
        other => panic!("{other:?}"),
    }
}

async fn append(client: &Client, number: u64) -> Result<(), Error> {
    let append = Append { topic: TOPIC.into(), entries: vec![number.to_string().into()] };
    feed(client, feed_message::Message::Append(append)).await.map(drop)
}

async fn store(client: &Client, message: store_message::Message) -> Result<store_message::Message, Error> {
    match client.call(Body::Store(StoreMessage { message: Some(message) })).await? {
        Body::Store(StoreMessage { message: Some(answer) }) => Ok(answer),
        other => panic!("{other:?}"),
    }
}

async fn feed(client: &Client, message: feed_message::Message) -> Result<feed_message::Message, Error> {
    match client.call(Body::Feed(FeedMessage { message: Some(message) })).await? {
        Body::Feed(FeedMessage { message: Some(answer) }) => Ok(answer),
        other => panic!("{other:?}"),
    }
}

/// Asserts that everything promised is there, each row with its value and each entry in the feed.
pub async fn assert_kept(servers: &[String], promised: &Promised) {
    let client = Client::connect(config(servers)).await.expect("a server is there");
    let rows = rows(&client).await;
    let entries = entries(&client).await;
    let (lost_rows, lost_entries) = promised.with(|p| {
        let lost =
            |promised: &BTreeSet<u64>, kept: &BTreeSet<u64>| promised.difference(kept).copied().collect::<Vec<_>>();
        (lost(&p.rows, &rows), lost(&p.entries, &entries))
    });
    assert!(lost_rows.is_empty() && lost_entries.is_empty(), "lost rows {lost_rows:?}, lost entries {lost_entries:?}");
    assert!(promised.count() > 0, "nothing was promised, so nothing was tested");
}

async fn rows(client: &Client) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    let mut start = bytes::Bytes::new();
    loop {
        let scan = Scan { group: GROUP.into(), start, limit: 500, ..Scan::default() };
        let body = Body::Store(StoreMessage { message: Some(store_message::Message::Scan(scan)) });
        let mut stream = client.stream(body).await.expect("a scan");
        let mut next = None;
        while let Some(body) = stream.next().await {
            let body = body.expect("rows");
            let Body::Store(StoreMessage { message: Some(store_message::Message::Rows(rows)) }) = body else {
                panic!("{body:?}")
            };
            next = rows.next;
            for row in rows.rows {
                let number: u64 = std::str::from_utf8(&row.row).expect("ours").parse().expect("ours");
                let value = row.cells[0].value.as_deref().expect("no tombstones here");
                assert_eq!(value, number.to_string().as_bytes());
                found.insert(number);
            }
        }
        match next {
            Some(next) => start = next,
            None => return found,
        }
    }
}

/// Every entry of the topic, by a consumer group of its own so that all are delivered.
async fn entries(client: &Client) -> BTreeSet<u64> {
    static GROUPS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let group = format!("check-{}", GROUPS.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let mut found = BTreeSet::new();
    // Nothing is delivered twice while this check lasts, so an empty answer means the end.
    let consume = |group: &str, limit, wait_ms| Consume {
        topic: TOPIC.into(),
        group: group.to_owned().into(),
        limit,
        wait_ms,
        redeliver_ms: 600_000,
    };
    // A group that never acknowledges, so that what this check has read is there for the next one.
    feed(client, feed_message::Message::Consume(consume("keep", 1, 0))).await.expect("a delivery");
    loop {
        let consume = consume(&group, 500, 500);
        let answer = feed(client, feed_message::Message::Consume(consume)).await.expect("deliveries");
        let feed_message::Message::Deliveries(deliveries) = answer else { panic!("{answer:?}") };
        if deliveries.deliveries.is_empty() {
            return found;
        }
        // Beyond the window of unacknowledged entries nothing more would come.
        let numbers = deliveries.deliveries.iter().map(|delivery| delivery.number).collect();
        let ack = Ack { topic: TOPIC.into(), group: group.clone().into(), numbers };
        feed(client, feed_message::Message::Ack(ack)).await.expect("acknowledged");
        for delivery in deliveries.deliveries {
            found.insert(std::str::from_utf8(&delivery.entry).expect("ours").parse().expect("ours"));
        }
    }
}
