//! The rules of a feed without faults, and of both in one commit.

use super::Subject;
use crate::api::{Feed, Store, StoreAndFeed};
use crate::messages::*;
use bytes::Bytes;
use futures::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use tidings_base::Class;
use tidings_wire::v1;

/// Long enough for any implementation to deliver what is there.
const PATIENCE_MS: u32 = 20_000;
/// How soon entries come again where a case waits for that.
const SOON_MS: u32 = 200;

/// Runs every rule of a feed.
pub async fn feed<S>(subject: &S)
where
    S: Subject,
    S::Made: Feed,
{
    let feed = subject.fresh().await;
    numbers_in_order(&feed).await;
    waiting(&feed).await;
    redelivery(&feed).await;
    groups_are_apart(&feed).await;
    competing(&feed).await;
    acks_out_of_order(&feed).await;
    large_entries(&feed).await;
    bad_input(&feed).await;
    survives(subject, feed).await;
}

/// Runs the rules of store and feed in one commit.
pub async fn store_and_feed<S>(subject: &S)
where
    S: Subject,
    S::Made: StoreAndFeed,
{
    let both = subject.fresh().await;
    let commit = |number: u64| v1::ApplyAndAppend {
        groups: vec![
            group("commit 1", vec![row("r", vec![cell("c", number, "v")])]),
            fenced(group("commit 2", vec![row("r", vec![cell("c", number, "v")])]), "owner", number),
        ],
        append: Some(v1::Append { topic: "commit".into(), entries: vec![Bytes::from(format!("{number}"))] }),
    };
    let done = both.apply_and_append(commit(5)).await.expect("an answer");
    assert_eq!((done.failures.len(), done.appended.map(|a| (a.first, a.last))), (0, Some((1, 1))));
    let refused = both.apply_and_append(commit(4)).await.expect("an answer");
    let failed: Vec<_> = refused.failures.iter().map(|f| (&f.group[..], f.code.as_str())).collect();
    assert_eq!(failed, [(&b"commit 2"[..], "store.fenced")], "the group that refused is named");
    assert_eq!(refused.appended, None, "if a group fails, nothing is appended");
    let read = both.get(get("commit 1", "r")).await.expect("a read succeeds").expect("it was written");
    assert_eq!(read.cells, [cell("c", 5, "v")], "nor is anything written in the other groups");
    let seen = drain(&both, "commit", "g", 1).await;
    assert_eq!(seen, [(1, Bytes::from("5"))], "only what was committed is delivered");
    let done = both.apply_and_append(commit(6)).await.expect("an answer");
    assert_eq!(done.appended.map(|a| a.first), Some(2), "numbers have no gap");
}

fn entry(i: u64) -> Bytes {
    Bytes::from(format!("entry {i}"))
}

async fn take(feed: &impl Feed, topic: &str, group: &str, limit: u32) -> Vec<v1::Delivery> {
    let wanted = consume(topic.to_owned(), group.to_owned(), limit, PATIENCE_MS);
    feed.consume(wanted).await.expect("consuming succeeds")
}

async fn acknowledge(feed: &impl Feed, topic: &str, group: &str, numbers: Vec<u64>) {
    feed.ack(topic.to_owned().into(), group.to_owned().into(), numbers).await.expect("acknowledging succeeds");
}

/// Consumes and acknowledges until `count` entries came.
async fn drain(feed: &impl Feed, topic: &str, group: &str, count: usize) -> Vec<(u64, Bytes)> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let deliveries = take(feed, topic, group, 7).await;
        assert!(!deliveries.is_empty(), "entries that are there are delivered ({} of {count} came)", seen.len());
        acknowledge(feed, topic, group, deliveries.iter().map(|d| d.number).collect()).await;
        seen.extend(deliveries.into_iter().map(|d| (d.number, d.entry)));
    }
    seen
}

async fn assert_quiet(feed: &impl Feed, topic: &str, group: &str, rule: &str) {
    let more = feed.consume(consume(topic.to_owned(), group.to_owned(), 10, 0)).await.expect("consuming succeeds");
    assert_eq!(more, [], "{rule}");
}

async fn numbers_in_order(feed: &impl Feed) {
    assert_quiet(feed, "order", "g", "a topic begins empty").await;
    let mut next = 1;
    for size in [1u64, 3, 10, 1] {
        let entries = (next..next + size).map(entry).collect();
        let appended = feed.append("order".into(), entries).await.expect("appending succeeds");
        assert_eq!((appended.first, appended.last), (next, next + size - 1), "numbers follow one another from 1");
        next += size;
    }
    let seen = drain(feed, "order", "g", 15).await;
    assert_eq!(seen, (1..=15).map(|i| (i, entry(i))).collect::<Vec<_>>(), "one consumer sees entries in order, whole");
    assert_quiet(feed, "order", "g", "acknowledged entries do not come again").await;
}

async fn waiting(feed: &impl Feed) {
    assert_quiet(feed, "waiting", "g", "no wait is no wait").await;
    let consumer = take(feed, "waiting", "g", 10);
    let producer = async {
        tokio::task::yield_now().await;
        feed.append("waiting".into(), vec![entry(1)]).await.expect("appending succeeds");
    };
    let (deliveries, ()) = futures::join!(consumer, producer);
    assert_eq!(deliveries.len(), 1, "a waiting consumer hears of an append");
    assert_eq!((deliveries[0].number, deliveries[0].redelivered), (1, 0));
    acknowledge(feed, "waiting", "g", vec![1]).await;
    let nothing = feed.consume(consume("waiting", "g", 10, 50)).await.expect("consuming succeeds");
    assert_eq!(nothing, [], "a wait ends with nothing when nothing comes");
}

async fn redelivery(feed: &impl Feed) {
    feed.append("again".into(), vec![entry(1), entry(2)]).await.expect("appending succeeds");
    let soon = || v1::Consume { redeliver_ms: SOON_MS, ..consume("again", "g", 2, PATIENCE_MS) };
    let first = feed.consume(soon()).await.expect("consuming succeeds");
    assert_eq!(first.iter().map(|d| (d.number, d.redelivered)).collect::<Vec<_>>(), [(1, 0), (2, 0)]);
    acknowledge(feed, "again", "g", vec![1]).await;
    let second = feed.consume(soon()).await.expect("consuming succeeds");
    let seen: Vec<_> = second.iter().map(|d| (d.number, d.entry.clone())).collect();
    assert_eq!(seen, [(2, entry(2))], "what was not acknowledged comes again, what was does not");
    assert!(second[0].redelivered >= 1, "and says that it came before");
    acknowledge(feed, "again", "g", vec![2, 2, 1]).await;
    let nothing = feed.consume(v1::Consume { wait_ms: 2 * SOON_MS, ..soon() }).await.expect("consuming succeeds");
    assert_eq!(nothing, [], "acknowledging twice is acknowledging");
}

async fn groups_are_apart(feed: &impl Feed) {
    // Both are known before the first entry: a topic keeps entries for the groups it knows.
    assert_quiet(feed, "apart", "one", "a topic begins empty").await;
    assert_quiet(feed, "apart", "two", "a topic begins empty").await;
    feed.append("apart".into(), (1..=5).map(entry).collect()).await.expect("appending succeeds");
    let one = drain(feed, "apart", "one", 5).await;
    let two = drain(feed, "apart", "two", 5).await;
    assert_eq!(one, two, "each group sees every entry");
    feed.append("apart 2".into(), vec![entry(1)]).await.expect("appending succeeds");
    assert_quiet(feed, "apart", "one", "topics are apart").await;
}

async fn competing(feed: &impl Feed) {
    const ENTRIES: u64 = 120;
    assert_quiet(feed, "competing", "g", "a topic begins empty").await;
    let producer = async {
        for first in (1..=ENTRIES).step_by(10) {
            feed.append("competing".into(), (first..first + 10).map(entry).collect())
                .await
                .expect("appending succeeds");
            tokio::task::yield_now().await;
        }
    };
    let consumer = |_| async {
        let mut seen = Vec::new();
        loop {
            let deliveries = feed.consume(consume("competing", "g", 4, 1000)).await.expect("consuming succeeds");
            if deliveries.is_empty() {
                return seen;
            }
            let numbers: Vec<u64> = deliveries.iter().map(|d| d.number).collect();
            assert!(numbers.is_sorted(), "one answer is in order");
            acknowledge(feed, "competing", "g", numbers.clone()).await;
            seen.extend(numbers);
        }
    };
    let (seen, ()) = futures::join!(join_all((0..4).map(consumer)), producer);
    let mut all = seen.concat();
    all.sort_unstable();
    assert_eq!(all, (1..=ENTRIES).collect::<Vec<_>>(), "each entry goes to one of the competing consumers");
}

async fn acks_out_of_order(feed: &impl Feed) {
    feed.append("gaps".into(), (1..=20).map(entry).collect()).await.expect("appending succeeds");
    let soon = |wait_ms| v1::Consume { redeliver_ms: SOON_MS, ..consume("gaps", "g", 100, wait_ms) };
    let mut open: BTreeSet<u64> = (1..=20).collect();
    let first = feed.consume(soon(PATIENCE_MS)).await.expect("consuming succeeds");
    assert_eq!(first.len(), 20);
    for numbers in [vec![20, 3, 2], vec![10, 11, 12, 14], vec![13]] {
        numbers.iter().for_each(|n| assert!(open.remove(n)));
        acknowledge(feed, "gaps", "g", numbers).await;
    }
    let mut again = BTreeMap::new();
    while again.len() < open.len() {
        let deliveries = feed.consume(soon(PATIENCE_MS)).await.expect("consuming succeeds");
        assert!(!deliveries.is_empty(), "what is open comes again");
        again.extend(deliveries.into_iter().map(|d| (d.number, d.entry)));
    }
    assert_eq!(again, open.iter().map(|n| (*n, entry(*n))).collect(), "exactly the open entries come again");
    acknowledge(feed, "gaps", "g", open.into_iter().rev().collect()).await;
    assert_quiet(feed, "gaps", "g", "then nothing is left").await;
}

async fn large_entries(feed: &impl Feed) {
    let large = |i: u8| Bytes::from(vec![i; 700 << 10]);
    for i in 1..=4 {
        feed.append("large".into(), vec![large(i), Bytes::new()]).await.expect("appending succeeds");
    }
    let seen = drain(feed, "large", "g", 8).await;
    let expected: Vec<_> =
        (1..=8u64).map(|n| (n, if n % 2 == 1 { large(n.div_ceil(2) as u8) } else { Bytes::new() })).collect();
    assert!(seen == expected, "large and empty entries come whole and in order");
}

async fn bad_input(feed: &impl Feed) {
    let invalid = |error: tidings_base::Error, code: &str| {
        assert_eq!((error.code.as_ref(), error.class), (code, Class::Invalid), "{error}");
        assert!(!error.hint.is_empty(), "{code} says what to do");
    };
    invalid(feed.append("bad".into(), vec![]).await.expect_err("nothing"), "feed.empty_batch");
    invalid(feed.append("".into(), vec![entry(1)]).await.expect_err("no topic"), "feed.empty_name");
    let large = Bytes::from(vec![0; 2 << 20]);
    invalid(feed.append("bad".into(), vec![large]).await.expect_err("too large"), "feed.too_large");
    invalid(feed.consume(consume("bad", "", 1, 0)).await.expect_err("no group"), "feed.empty_name");
    invalid(feed.ack("bad".into(), "g".into(), vec![0]).await.expect_err("zero"), "feed.bad_number");
    assert_quiet(feed, "bad", "g", "bad input appends nothing").await;
    invalid(feed.ack("bad".into(), "g".into(), vec![1]).await.expect_err("not there"), "feed.never_delivered");
    let error = feed.ack("bad".into(), "stranger".into(), vec![1]).await.expect_err("an unknown group");
    assert_eq!((error.code.as_ref(), error.class), ("feed.unknown_group", Class::NotFound));
}

async fn survives<S>(subject: &S, feed: S::Made)
where
    S: Subject,
    S::Made: Feed,
{
    feed.append("survives".into(), (1..=10).map(entry).collect()).await.expect("appending succeeds");
    // All ten are given out for a long time; four are acknowledged.
    assert_eq!(take(&feed, "survives", "g", 10).await.len(), 10);
    acknowledge(&feed, "survives", "g", vec![1, 2, 5, 9]).await;
    let feed = subject.reopen(feed).await;
    let seen = drain(&feed, "survives", "g", 6).await;
    let expected: Vec<_> = [3, 4, 6, 7, 8, 10].map(|n| (n, entry(n))).to_vec();
    assert_eq!(seen, expected, "after a restart everything unacknowledged comes at once, acknowledged entries do not");
    let appended = feed.append("survives".into(), vec![entry(11)]).await.expect("appending succeeds");
    assert_eq!(appended.first, 11, "numbers go on");
    let feed = subject.reopen(feed).await;
    assert_eq!(drain(&feed, "survives", "g", 1).await, [(11, entry(11))], "the group is still known");
}
