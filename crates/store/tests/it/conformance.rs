//! The suite against the store in memory, plain and with faults before it. Time is tokio's and paused: no test waits.

use async_trait::async_trait;
use bytes::Bytes;
use std::time::Duration;
use tidings_base::Class;
use tidings_store::faulty::{Fault, Faulty, Plan, Scope};
use tidings_store::messages::*;
use tidings_store::suite::{self, Subject};
use tidings_store::{Feed, MemoryStore, Store};

struct InMemory;

#[async_trait]
impl Subject for InMemory {
    type Made = MemoryStore;

    async fn fresh(&self) -> MemoryStore {
        MemoryStore::new()
    }

    async fn reopen(&self, made: MemoryStore) -> MemoryStore {
        made.reopen();
        made
    }
}

#[tokio::test(start_paused = true)]
async fn the_store_in_memory_keeps_the_rules_of_a_store() {
    suite::store(&InMemory).await;
}

#[tokio::test(start_paused = true)]
async fn the_store_in_memory_keeps_the_rules_of_a_feed() {
    suite::feed(&InMemory).await;
}

#[tokio::test(start_paused = true)]
async fn the_store_in_memory_commits_both_at_once() {
    suite::store_and_feed(&InMemory).await;
}

#[tokio::test(start_paused = true)]
async fn a_wrapper_without_rules_changes_nothing() {
    struct Wrapped;
    #[async_trait]
    impl Subject for Wrapped {
        type Made = Faulty<MemoryStore>;
        async fn fresh(&self) -> Faulty<MemoryStore> {
            Faulty::new(MemoryStore::new, Plan::default(), 1)
        }
        async fn reopen(&self, made: Faulty<MemoryStore>) -> Faulty<MemoryStore> {
            made.inner().reopen();
            made
        }
    }
    suite::store(&Wrapped).await;
    suite::feed(&Wrapped).await;
}

#[tokio::test(start_paused = true)]
async fn the_rules_under_faults_hold_on_many_seeds() {
    for seed in 0..20 {
        let faulty = Faulty::new(MemoryStore::new, Plan::rough(), seed);
        suite::store_under_faults(&faulty, seed).await;
        suite::feed_under_faults(&faulty, seed).await;
    }
}

/// The suite itself must be able to fail: a store that acknowledges and forgets is caught.
#[tokio::test(start_paused = true)]
#[should_panic(expected = "repeated blind writes come to what the rules say")]
async fn a_store_that_loses_acknowledged_writes_is_caught() {
    let faulty = Faulty::new(MemoryStore::new, Plan::default().rule(Scope::All, Fault::AckAndLose, 4), 3);
    suite::store_under_faults(&faulty, 3).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "came after its acknowledgement")]
async fn a_feed_that_loses_acknowledgements_is_caught() {
    struct Forgetful(MemoryStore);
    #[async_trait]
    impl Feed for Forgetful {
        async fn append(
            &self,
            topic: Bytes,
            entries: Vec<Bytes>,
        ) -> Result<tidings_wire::v1::Appended, tidings_base::Error> {
            self.0.append(topic, entries).await
        }
        async fn consume(
            &self,
            wanted: tidings_wire::v1::Consume,
        ) -> Result<Vec<tidings_wire::v1::Delivery>, tidings_base::Error> {
            self.0.consume(wanted).await
        }
        async fn ack(&self, _: Bytes, _: Bytes, _: Vec<u64>) -> Result<(), tidings_base::Error> {
            Ok(())
        }
    }
    suite::feed_under_faults(&Forgetful(MemoryStore::new()), 1).await;
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_faults() {
    let outcomes = |seed| async move {
        let faulty = Faulty::new(MemoryStore::new, Plan::rough(), seed);
        let mut outcomes = Vec::new();
        for i in 0..100u64 {
            let applied = faulty.apply(put("g", format!("r{i}"), cell("c", 1, "v"))).await;
            outcomes.push(applied.map(|a| a.failures.len()).map_err(|e| e.code));
        }
        outcomes
    };
    let (first, again, other) = (outcomes(5).await, outcomes(5).await, outcomes(6).await);
    assert_eq!(first, again);
    assert_ne!(first, other);
    assert!(first.contains(&Ok(1)) && first.iter().any(Result::is_err) && first.contains(&Ok(0)));
}

#[tokio::test(start_paused = true)]
async fn a_rule_strikes_only_in_its_range() {
    let rows = Scope::Rows { groups: "g".into().."h".into(), rows: "m".into()..Bytes::new() };
    let faulty = Faulty::new(MemoryStore::new, Plan::default().rule(rows, Fault::Fail, 1), 1);
    let batch = apply(vec![
        group("g", vec![row("z", vec![cell("c", 1, "v")])]),
        group("g2", vec![row("a", vec![cell("c", 1, "v")])]),
        group("i", vec![row("z", vec![cell("c", 1, "v")])]),
    ]);
    let failed = faulty.apply(batch).await.unwrap().failures;
    assert_eq!(
        failed.iter().map(|f| (&f.group[..], f.code.as_str())).collect::<Vec<_>>(),
        [(&b"g"[..], "store.unavailable")]
    );
    assert_eq!(faulty.get(get("g", "z")).await.unwrap_err().class, Class::Unreachable);
    assert_eq!(faulty.inner().get(get("g", "z")).await.unwrap(), None);
    assert!(faulty.get(get("i", "z")).await.unwrap().is_some());
    assert!(faulty.scan(scan("g")).await.is_err());
    assert!(faulty.scan(tidings_wire::v1::Scan { end: "m".into(), ..scan("g") }).await.is_ok());
    faulty.append("topic".into(), vec![Bytes::from("entry")]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_crash_takes_what_was_not_synced_and_nothing_else() {
    let faulty = Faulty::new(MemoryStore::new, Plan::default().sync_every(100), 1);
    faulty.apply(put("g", "kept", cell("c", 1, "v"))).await.unwrap();
    faulty.append("t".into(), vec![Bytes::from("1"), Bytes::from("2")]).await.unwrap();
    assert_eq!(faulty.consume(consume("t", "g", 2, 0)).await.unwrap().len(), 2);
    faulty.ack("t".into(), "g".into(), vec![1]).await.unwrap();
    faulty.sync();
    faulty.apply(put("g", "lost", cell("c", 1, "v"))).await.unwrap();
    faulty.ack("t".into(), "g".into(), vec![2]).await.unwrap();
    faulty.append("t".into(), vec![Bytes::from("3")]).await.unwrap();
    assert_eq!(faulty.crash().await.unwrap(), 3);
    assert!(faulty.get(get("g", "kept")).await.unwrap().is_some());
    assert_eq!(faulty.get(get("g", "lost")).await.unwrap(), None);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let again = faulty.consume(consume("t", "g", 9, 0)).await.unwrap();
    assert_eq!(again.iter().map(|d| d.number).collect::<Vec<_>>(), [2], "the lost acknowledgement lets 2 come again");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_stops_waiting_is_given_nothing() {
    let store = MemoryStore::new();
    let impatient = store.consume(consume("t", "g", 5, 60_000));
    assert!(tokio::time::timeout(Duration::from_millis(10), impatient).await.is_err());
    store.append("t".into(), vec![Bytes::from("entry")]).await.unwrap();
    let deliveries = store.consume(consume("t", "g", 5, 0)).await.unwrap();
    assert_eq!(deliveries.iter().map(|d| (d.number, d.redelivered)).collect::<Vec<_>>(), [(1, 0)]);
}
