//! What stays true when calls fail, come late, happen twice, or end without a known outcome.

use crate::api::{Feed, Store};
use crate::merge::Version;
use crate::messages::*;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use tidings_base::{Class, Error, Seeded};
use tidings_wire::v1;

/// How often a call is repeated before the suite gives up: faults are frequent, not permanent.
const TRIES: usize = 200;

/// Repeats a call until it is answered; only errors that tell of bad luck are repeated.
async fn insist<T, F: Future<Output = Result<T, Error>>>(mut call: impl FnMut() -> F) -> T {
    for _ in 0..TRIES {
        match call().await {
            Ok(answer) => return answer,
            Err(error) if matches!(error.class, Class::Unreachable | Class::OutcomeUnknown) => {}
            Err(error) => panic!("bad luck has the classes unreachable and outcome_unknown, not {error:?}"),
        }
    }
    panic!("{TRIES} tries in a row failed");
}

/// Holds a store to what blind, repeated writes must come to, and compare-and-set to its count.
pub async fn store_under_faults(store: &impl Store, seed: u64) {
    repeated_writes_converge(store, &mut Seeded::new(seed).fork("writes")).await;
    counted_swaps(store).await;
}

async fn repeated_writes_converge(store: &impl Store, rng: &mut Seeded) {
    let mut model: BTreeMap<(String, String), Version> = BTreeMap::new();
    for _ in 0..150 {
        let (in_group, at_row) = (format!("g{}", rng.below(3)), format!("r{}", rng.below(5)));
        let value = if rng.one_in(5) { None } else { Some(Bytes::from(format!("{}", rng.below(1000)))) };
        let version = Version { timestamp: rng.between(1, 40), value: value.clone() };
        let write = v1::Cell { column: "c".into(), timestamp: version.timestamp, value };
        // Blind writes may be repeated: a failed group is written again until it is not among the failures.
        for attempt in 0.. {
            assert!(attempt < TRIES, "a group failed {TRIES} times in a row");
            let batch = put(in_group.clone(), at_row.clone(), write.clone());
            let applied = insist(|| store.apply(batch.clone())).await;
            let failed: Vec<&[u8]> = applied.failures.iter().map(|f| &f.group[..]).collect();
            if failed.is_empty() {
                break;
            }
            assert_eq!(failed, [in_group.as_bytes()], "only a group of the batch can fail");
        }
        let entry = model.entry((in_group, at_row)).or_insert_with(|| version.clone());
        *entry = entry.clone().merge(version);
    }
    for ((in_group, at_row), version) in model {
        let read = insist(|| store.get(get(in_group.clone(), at_row.clone()))).await;
        let live = read.map(|row| row.cells).unwrap_or_default();
        let expected: Vec<_> = version.value.map(|v| cell("c", version.timestamp, v)).into_iter().collect();
        assert_eq!(live, expected, "repeated blind writes come to what the rules say ({in_group}, {at_row})");
    }
}

async fn counted_swaps(store: &impl Store) {
    let (mut written, mut unknown) = (0u64, 0u64);
    for _ in 0..100 {
        let at = insist(|| store.get(get("count", "r"))).await.map_or(0, |row| row.cells[0].timestamp);
        let swap = compare_and_set("count", "r", at, cell("c", at + 1, "v"));
        match store.compare_and_set(swap).await {
            Ok(done) => written += u64::from(done.written),
            Err(error) if error.class == Class::OutcomeUnknown => unknown += 1,
            Err(error) => assert_eq!(error.class, Class::Unreachable, "{error:?}"),
        }
    }
    let count = insist(|| store.get(get("count", "r"))).await.map_or(0, |row| row.cells[0].timestamp);
    assert!(
        (written..=written + unknown).contains(&count),
        "{written} answered and {unknown} unknown swaps cannot make {count}"
    );
}

/// Holds a feed to delivering every answered append, and never an entry whose acknowledgement was answered.
pub async fn feed_under_faults(feed: &impl Feed, seed: u64) {
    let mut rng = Seeded::new(seed).fork("feed");
    let mut answered: BTreeMap<u64, Bytes> = BTreeMap::new();
    let mut sent: BTreeSet<Bytes> = BTreeSet::new();
    let mut acked: BTreeSet<u64> = BTreeSet::new();
    let mut seen: BTreeMap<u64, Bytes> = BTreeMap::new();
    for round in 0..120 {
        let entry = Bytes::from(format!("entry {round}"));
        sent.insert(entry.clone());
        if let Ok(appended) = feed.append("faults".into(), vec![entry.clone()]).await {
            assert!(answered.insert(appended.first, entry).is_none(), "a number is given once");
        }
        if rng.one_in(3) {
            take(feed, &mut seen, &mut acked, &sent, 0).await;
        }
    }
    for _ in 0..TRIES {
        if answered.keys().all(|number| acked.contains(number)) {
            break;
        }
        take(feed, &mut seen, &mut acked, &sent, 100).await;
    }
    // Several times as long as it takes an entry to come again.
    for _ in 0..3 {
        take(feed, &mut seen, &mut acked, &sent, 100).await;
    }
    for (number, entry) in answered {
        assert_eq!(seen.get(&number), Some(&entry), "an answered append is delivered");
        assert!(acked.contains(&number), "and can be acknowledged");
    }
}

/// Consumes once, checks what comes, and acknowledges it.
async fn take(
    feed: &impl Feed,
    seen: &mut BTreeMap<u64, Bytes>,
    acked: &mut BTreeSet<u64>,
    sent: &BTreeSet<Bytes>,
    wait_ms: u32,
) {
    let wanted = v1::Consume { redeliver_ms: 20, ..consume("faults", "g", 8, wait_ms) };
    let deliveries = insist(|| feed.consume(wanted.clone())).await;
    for delivery in &deliveries {
        assert!(!acked.contains(&delivery.number), "entry {} came after its acknowledgement", delivery.number);
        assert!(sent.contains(&delivery.entry), "an entry came that nobody sent");
        let before = seen.insert(delivery.number, delivery.entry.clone());
        assert!(before.is_none_or(|before| before == delivery.entry), "a number always means the same entry");
    }
    let numbers: Vec<u64> = deliveries.iter().map(|d| d.number).collect();
    if !numbers.is_empty() {
        // Of unknown outcome or refused, an acknowledgement may be repeated until it is answered.
        insist(|| feed.ack("faults".into(), "g".into(), numbers.clone())).await;
        acked.extend(numbers);
    }
}
