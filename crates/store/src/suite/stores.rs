//! The rules of a store without faults.

use super::Subject;
use crate::api::Store;
use crate::merge::{MAX_TIMESTAMP, Version};
use crate::messages::*;
use bytes::Bytes;
use futures::future::join_all;
use tidings_base::{Class, Incarnation, Seeded};
use tidings_wire::v1;

/// Runs every rule of a store.
pub async fn store<S>(subject: &S)
where
    S: Subject,
    S::Made: Store,
{
    let store = subject.fresh().await;
    merging(&store).await;
    merging_any_order(&store).await;
    reading(&store).await;
    scanning(&store).await;
    scanning_large(&store).await;
    groups_fail_alone(&store).await;
    fences(&store).await;
    compare_and_set_decides(&store).await;
    compare_and_set_races(&store).await;
    groups_are_atomic(&store).await;
    bad_input(&store).await;
    let store = incarnations(subject, store).await;
    survives(subject, store).await;
}

/// The live cells of a row as (column, timestamp, value).
async fn cells(store: &impl Store, in_group: &str, at_row: &str) -> Vec<(String, u64, Bytes)> {
    let read = store.get(get(in_group.to_owned(), at_row.to_owned())).await.expect("a read succeeds");
    let cells = read.map(|row| row.cells).unwrap_or_default();
    let name = |column: &Bytes| String::from_utf8(column.to_vec()).expect("the suite's columns are text");
    cells.iter().map(|c| (name(&c.column), c.timestamp, c.value.clone().expect("a live cell"))).collect()
}

async fn write(store: &impl Store, batch: v1::Apply) {
    let applied = store.apply(batch).await.expect("a write succeeds");
    assert_eq!(applied.failures, [], "a write without a fence has no failures");
}

async fn merging(store: &impl Store) {
    let seen = |at: u64, value: &'static str| vec![("c".to_owned(), at, Bytes::from(value))];
    for (name, versions, expected) in [
        ("newest wins", vec![cell("c", 2, "old"), cell("c", 9, "new"), cell("c", 5, "mid")], seen(9, "new")),
        ("the larger bytes win a tie", vec![cell("c", 4, "a"), cell("c", 4, "ab"), cell("c", 4, "aa")], seen(4, "ab")),
        ("a tombstone wins a tie", vec![cell("c", 4, "zzz"), tombstone("c", 4), cell("c", 4, "zzzz")], vec![]),
        ("a newer value replaces a tombstone", vec![tombstone("c", 4), cell("c", 5, "v")], seen(5, "v")),
        ("an empty value is a value", vec![cell("c", 1, "")], seen(1, "")),
        (
            "the largest timestamp works",
            vec![cell("c", MAX_TIMESTAMP, "v"), cell("c", 7, "w")],
            seen(MAX_TIMESTAMP, "v"),
        ),
    ] {
        let mut backwards = versions.clone();
        backwards.reverse();
        for (way, order) in [("forwards", versions.clone()), ("backwards", backwards)] {
            let at = format!("{name} {way}");
            for version in order {
                write(store, put("merging", at.clone(), version)).await;
            }
            assert_eq!(cells(store, "merging", &at).await, expected, "{at}");
        }
        let at = format!("{name} in one batch");
        write(store, apply(vec![group("merging", vec![row(at.clone(), versions)])])).await;
        assert_eq!(cells(store, "merging", &at).await, expected, "{at}");
    }
}

async fn merging_any_order(store: &impl Store) {
    let mut rng = Seeded::new(1).fork("merging in any order");
    for round in 0..20 {
        let at = format!("round {round}");
        let mut expected: Option<Version> = None;
        let mut versions = Vec::new();
        for _ in 0..6 {
            let value = if rng.one_in(4) { None } else { Some(Bytes::from(vec![b'a'; rng.below(3) as usize])) };
            let version = Version { timestamp: rng.between(1, 3), value };
            versions.push(version.clone());
            expected = Some(expected.map_or(version.clone(), |e| e.merge(version)));
        }
        rng.shuffle(&mut versions);
        // Concurrently: the order of arrival is the implementation's.
        let writes = versions.into_iter().map(|v| {
            let cell = v1::Cell { column: Bytes::from("c"), timestamp: v.timestamp, value: v.value };
            write(store, put("merging any order", at.clone(), cell))
        });
        join_all(writes).await;
        let expected = expected.expect("six versions").value.map(|v| vec![v]).unwrap_or_default();
        let seen: Vec<Bytes> = cells(store, "merging any order", &at).await.into_iter().map(|c| c.2).collect();
        assert_eq!(seen, expected, "concurrent writes merge by the rules ({at})");
    }
}

async fn reading(store: &impl Store) {
    assert_eq!(store.get(get("reading", "nothing")).await.expect("a read succeeds"), None, "an absent row is none");
    let columns = vec![cell("b", 1, "2"), cell("a", 1, "1"), cell("d", 1, "4"), tombstone("c", 1)];
    write(store, apply(vec![group("reading", vec![row("r", columns)])])).await;
    let names = |row: Option<v1::Row>| -> Vec<Bytes> {
        row.map(|row| row.cells.into_iter().map(|c| c.column).collect()).unwrap_or_default()
    };
    let all = store.get(get("reading", "r")).await.expect("a read succeeds");
    assert_eq!(names(all), ["a", "b", "d"], "cells come in the order of columns, tombstones left out");
    let some = v1::Get { columns: ["d", "x", "c", "a", "a"].map(Bytes::from).to_vec(), ..get("reading", "r") };
    assert_eq!(names(store.get(some).await.expect("a read succeeds")), ["a", "d"], "named columns only, each once");
    let none = v1::Get { columns: vec![Bytes::from("c")], ..get("reading", "r") };
    assert_eq!(store.get(none).await.expect("a read succeeds"), None, "a row without live cells is none");
    // Names with the bytes that an encoding might trip over.
    let odd: Vec<Bytes> = [&b"\0"[..], b"\0\0", b"\0\x01", b"\0\xff", b"\x01", b"\xff", b"\xff\xff", b"a\0", b"a"]
        .map(Bytes::from_static)
        .to_vec();
    for name in &odd {
        write(store, put(name.clone(), name.clone(), cell(name.clone(), 1, name.clone()))).await;
    }
    for name in &odd {
        let row = store.get(get(name.clone(), name.clone())).await.expect("a read succeeds").expect("it was written");
        assert_eq!(row.cells, [cell(name.clone(), 1, name.clone())], "any bytes are a name");
        let rows = store.scan(scan(name.clone())).await.expect("a scan succeeds").rows;
        assert_eq!(rows.len(), 1, "a group does not see the rows of its neighbours");
    }
}

async fn scanning(store: &impl Store) {
    let keys: Vec<String> = (0..50).map(|i| format!("row {:03}", i * 7 % 50)).collect();
    let rows = keys.iter().map(|key| row(key.clone(), vec![cell("a", 1, key.clone()), cell("b", 1, "b")]));
    write(store, apply(vec![group("scanning", rows.collect())])).await;
    write(store, apply(vec![group("scanning", vec![row("row 010", vec![tombstone("a", 2), tombstone("b", 2)])])]))
        .await;
    let expected: Vec<String> = (0..50).filter(|i| *i != 10).map(|i| format!("row {i:03}")).collect();
    for limit in [1, 3, 7, 49, 50, 0] {
        let mut seen = Vec::new();
        let mut start = Bytes::new();
        for _ in 0..=60 {
            let page = v1::Scan { start: start.clone(), limit, ..scan("scanning") };
            let page = store.scan(page).await.expect("a scan succeeds");
            assert!(limit == 0 || page.rows.len() <= limit as usize, "a page has at most as many rows as asked for");
            seen.extend(page.rows.into_iter().map(|r| String::from_utf8(r.row.to_vec()).expect("text")));
            match page.next {
                Some(next) => {
                    assert!(next > start, "paging goes on");
                    start = next;
                }
                None => break,
            }
        }
        assert_eq!(seen, expected, "pages of {limit} give every row once, in order");
    }
    let part =
        v1::Scan { start: "row 007".into(), end: "row 012".into(), columns: vec!["b".into()], ..scan("scanning") };
    let part = store.scan(part).await.expect("a scan succeeds");
    let seen: Vec<&[u8]> = part.rows.iter().map(|r| &r.row[..]).collect();
    assert_eq!(seen, [b"row 007", b"row 008", b"row 009", b"row 011"], "start is in, end is out, the dead row too");
    assert!(part.rows.iter().all(|r| r.cells == [cell("b", 1, "b")]), "named columns only");
    assert_eq!(part.next, None, "a complete scan says so");
    assert_eq!(store.scan(scan("scanning nothing")).await.expect("a scan succeeds").rows, [], "an empty group");
}

async fn scanning_large(store: &impl Store) {
    let large = Bytes::from(vec![b'x'; 300 << 10]);
    for key in ["a", "b", "c", "d", "e", "f"] {
        let cells = vec![cell("1", 1, large.clone()), cell("2", 1, large.clone())];
        write(store, apply(vec![group("scanning large", vec![row(key, cells)])])).await;
    }
    let mut seen = Vec::new();
    let mut start = Bytes::new();
    for _ in 0..10 {
        let page =
            store.scan(v1::Scan { start: start.clone(), ..scan("scanning large") }).await.expect("a scan succeeds");
        for row in page.rows {
            assert_eq!(row.cells.len(), 2, "a row comes whole, however large");
            assert!(row.cells.iter().all(|c| c.value.as_ref() == Some(&large)));
            seen.push(row.row);
        }
        let Some(next) = page.next else { break };
        start = next;
    }
    assert_eq!(seen, ["a", "b", "c", "d", "e", "f"], "large rows are paged, none is lost");
}

async fn groups_fail_alone(store: &impl Store) {
    write(store, apply(vec![fenced(group("alone 2", vec![]), "owner", 5)])).await;
    let write_to = |name: &'static str| group(name, vec![row("r", vec![cell("c", 1, "v")])]);
    let batch = apply(vec![write_to("alone 1"), fenced(write_to("alone 2"), "owner", 4), write_to("alone 3")]);
    let applied = store.apply(batch).await.expect("a partial failure is an answer, not an error");
    let failures: Vec<_> = applied.failures.iter().map(|f| (&f.group[..], f.code.as_str(), f.fence)).collect();
    assert_eq!(failures, [(&b"alone 2"[..], "store.fenced", 5)], "the failed group is named, with the number seen");
    assert_eq!(cells(store, "alone 1", "r").await.len(), 1, "the groups beside it are written");
    assert_eq!(cells(store, "alone 2", "r").await, [], "nothing of the failed group is written");
    assert_eq!(cells(store, "alone 3", "r").await.len(), 1, "the groups behind it are written");
}

async fn fences(store: &impl Store) {
    let under = |at: &'static str, number: u64| {
        apply(vec![fenced(group("fences", vec![row(at, vec![cell("c", 1, "v")])]), "owner", number)])
    };
    let failures = |applied: Result<v1::Applied, _>| applied.expect("an answer").failures.len();
    assert_eq!(failures(store.apply(under("first", 3)).await), 0, "the first number is taken");
    assert_eq!(failures(store.apply(under("same", 3)).await), 0, "the same number is taken again");
    assert_eq!(failures(store.apply(under("higher", 7)).await), 0, "a higher number is taken");
    assert_eq!(failures(store.apply(under("lower", 6)).await), 1, "a lower number is rejected");
    assert_eq!(cells(store, "fences", "lower").await, [], "a rejected write leaves nothing");
    let other = apply(vec![fenced(group("fences", vec![row("other", vec![cell("c", 1, "v")])]), "another", 1)]);
    assert_eq!(failures(store.apply(other).await), 0, "names are apart");
    let elsewhere = apply(vec![fenced(group("fences 2", vec![row("r", vec![cell("c", 1, "v")])]), "owner", 1)]);
    assert_eq!(failures(store.apply(elsewhere).await), 0, "groups are apart");
    write(store, put("fences", "free", cell("c", 1, "v"))).await;
    assert_eq!(cells(store, "fences", "free").await.len(), 1, "a write without a fence is not held up by one");

    let swap = |number| v1::CompareAndSet {
        fence: Some(fence("owner", number)),
        ..compare_and_set("fences", "swap", 0, cell("c", 1, "v"))
    };
    let refused = store.compare_and_set(swap(6)).await.expect_err("a lower number is rejected");
    assert_eq!((refused.code.as_ref(), refused.class), ("store.fenced", Class::Refused));
    assert!(store.compare_and_set(swap(8)).await.expect("a higher number is taken").written);
    assert_eq!(failures(store.apply(under("after", 7)).await), 1, "a compare-and-set's number is remembered, too");
}

async fn compare_and_set_decides(store: &impl Store) {
    let swap = |expected, write| store.compare_and_set(compare_and_set("cas", "r", expected, write));
    let answer = swap(5, cell("c", 9, "early")).await.expect("an answer");
    assert_eq!((answer.written, answer.actual), (false, None), "nothing is there, something was expected");
    assert!(swap(0, cell("c", 5, "one")).await.expect("an answer").written, "0 expects no cell");
    let answer = swap(0, cell("c", 6, "two")).await.expect("an answer");
    assert!(!answer.written);
    assert_eq!(answer.actual, Some(cell("c", 5, "one")), "what stood in the way is told");
    assert!(swap(5, tombstone("c", 7)).await.expect("an answer").written, "a tombstone can be the write");
    let answer = swap(0, cell("c", 8, "three")).await.expect("an answer");
    assert_eq!((answer.written, answer.actual), (false, Some(tombstone("c", 7))), "a tombstone counts as newest");
    assert!(swap(7, cell("c", 8, "four")).await.expect("an answer").written);
    assert_eq!(cells(store, "cas", "r").await, [("c".to_owned(), 8, Bytes::from("four"))]);
}

async fn compare_and_set_races(store: &impl Store) {
    const TASKS: u64 = 8;
    const EACH: u64 = 5;
    let increment = |task: u64| async move {
        let mut won = Vec::new();
        while won.len() < EACH as usize {
            let at = cells(store, "races", "counter").await.first().map_or(0, |c| c.1);
            let write = cell("c", at + 1, format!("task {task}"));
            let swapped = store.compare_and_set(compare_and_set("races", "counter", at, write)).await;
            if swapped.expect("an answer").written {
                won.push(at + 1);
            }
        }
        won
    };
    let mut won: Vec<u64> = join_all((0..TASKS).map(increment)).await.concat();
    won.sort_unstable();
    assert_eq!(won, (1..=TASKS * EACH).collect::<Vec<_>>(), "each step is won by exactly one of those who race");
}

async fn groups_are_atomic(store: &impl Store) {
    let writer = async {
        for round in 1..=40u64 {
            let value = format!("{round}");
            let rows = ["a", "b", "c"].map(|key| row(key, vec![cell("c", round, value.clone())]));
            write(store, apply(vec![group("atomic", rows.to_vec())])).await;
        }
    };
    let reader = async {
        for _ in 0..40 {
            let rows = store.scan(scan("atomic")).await.expect("a scan succeeds").rows;
            let values: Vec<_> = rows.iter().map(|r| r.cells[0].value.clone()).collect();
            assert!(values.is_empty() || values.len() == 3, "a batch is seen whole or not at all");
            assert!(values.windows(2).all(|pair| pair[0] == pair[1]), "rows of one batch are seen together");
            tokio::task::yield_now().await;
        }
    };
    futures::join!(writer, reader);
}

async fn bad_input(store: &impl Store) {
    let ok = || row("r", vec![cell("c", 1, "v")]);
    let long = |n: usize| Bytes::from(vec![b'x'; n]);
    for (batch, code) in [
        (apply(vec![]), "store.empty_batch"),
        (apply(vec![group("bad", vec![])]), "store.empty_batch"),
        (apply(vec![group("bad", vec![row("r", vec![])])]), "store.empty_batch"),
        (put("bad", "r", cell("c", 0, "v")), "store.bad_timestamp"),
        (put("bad", "r", cell("c", MAX_TIMESTAMP + 1, "v")), "store.bad_timestamp"),
        (put("", "r", cell("c", 1, "v")), "store.empty_name"),
        (put("bad", "", cell("c", 1, "v")), "store.empty_name"),
        (put("bad", "r", cell("", 1, "v")), "store.empty_name"),
        (put(long(5000), "r", cell("c", 1, "v")), "store.too_large"),
        (put("bad", "r", cell("c", 1, long(2 << 20))), "store.too_large"),
        (apply(vec![group("bad", vec![ok()]), group("bad", vec![ok()])]), "store.duplicate_group"),
        (apply(vec![fenced(group("bad", vec![ok()]), "owner", 0)]), "store.bad_fence"),
        (apply(vec![group("bad", vec![ok(), row("s", vec![cell("c", 0, "v")])])]), "store.bad_timestamp"),
    ] {
        let error = store.apply(batch).await.expect_err(code);
        assert_eq!((error.code.as_ref(), error.class), (code, Class::Invalid), "{error}");
        assert!(!error.hint.is_empty(), "{code} says what to do");
    }
    assert_eq!(store.scan(scan("bad")).await.expect("a scan succeeds").rows, [], "bad input writes nothing");
    let error = store.compare_and_set(compare_and_set("bad", "r", 5, cell("c", 5, "v"))).await.expect_err("not newer");
    assert_eq!(error.code, "store.bad_timestamp");
    let backwards = v1::Scan { start: "b".into(), end: "a".into(), ..scan("bad") };
    assert_eq!(store.scan(backwards).await.expect_err("backwards").code, "store.bad_range");
    assert_eq!(store.get(v1::Get::default()).await.expect_err("no key").class, Class::Invalid);
}

async fn incarnations<S>(subject: &S, store: S::Made) -> S::Made
where
    S: Subject,
    S::Made: Store,
{
    let first = store.incarnation().await.expect("an answer");
    let raised = store.raise_incarnation(Incarnation(0)).await.expect("an answer");
    assert!(raised > first, "a detected loss raises the incarnation");
    let raised = store.raise_incarnation(Incarnation(raised.0 + 1000)).await.expect("an answer");
    assert_eq!(raised.0, first.0.max(raised.0), "to at least what is asked for");
    let store = subject.reopen(store).await;
    assert_eq!(store.incarnation().await.expect("an answer"), raised, "and it stays");
    store
}

async fn survives<S>(subject: &S, store: S::Made)
where
    S: Subject,
    S::Made: Store,
{
    for i in 0..20u64 {
        let write_it =
            fenced(group("survives", vec![row(format!("r{i:02}"), vec![cell("c", i + 1, "v")])]), "owner", i + 1);
        write(&store, apply(vec![write_it])).await;
    }
    let before = store.scan(scan("survives")).await.expect("a scan succeeds");
    let store = subject.reopen(store).await;
    assert_eq!(store.scan(scan("survives")).await.expect("a scan succeeds"), before, "answered writes survive");
    let stale = apply(vec![fenced(group("survives", vec![]), "owner", 19)]);
    assert_eq!(store.apply(stale).await.expect("an answer").failures.len(), 1, "so do fences");
}
