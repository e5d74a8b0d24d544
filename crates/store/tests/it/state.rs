//! The state against its reference, in any batching, through snapshots.

use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tidings_base::agreed::{AgreedState, Entry, Position, SNAPSHOT_CHUNK, SnapshotChunks, StateFailure};
use tidings_base::{LogIndex, Seeded};
use tidings_store::command;
use tidings_store::messages::*;
use tidings_store::read::{ROW_BYTES, Unread, all_pairs, join_frames};
use tidings_store::suite::{Model, random_commands};
use tidings_store::{FeedAnswer, FeedQuery, Kv, KvReader, MemoryKv, Query, StoreState};
use tidings_wire::v1;
use tidings_wire::v1::store_command::Command;
use tidings_wire::v1::store_message::Message as StoreMessage;
use tidings_wire::v1::store_result::Result as Outcome;

type State = StoreState<MemoryKv>;

fn fresh() -> State {
    StoreState::open(MemoryKv::new()).unwrap()
}

fn apply_all(state: &mut State, commands: &[Bytes], note: &'static str) -> Vec<Bytes> {
    let first = state.position().index.0 + 1;
    let entries: Vec<Entry<'_>> =
        (first..).zip(commands).map(|(index, command)| Entry { index: LogIndex(index), command }).collect();
    state.apply(&entries, Bytes::from(note)).unwrap()
}

fn one(state: &mut State, command: Command) -> Result<Outcome, tidings_base::Error> {
    let mut results = apply_all(state, &[command::encode(command)], "");
    command::decode_outcome(results.remove(0))
}

fn pairs(state: &State) -> BTreeMap<Bytes, Bytes> {
    all_pairs(&state.kv().reader().view().unwrap()).unwrap()
}

struct Pieces(Vec<Bytes>);

impl SnapshotChunks for Pieces {
    fn next_chunk(&mut self) -> Result<Option<Bytes>, StateFailure> {
        Ok(if self.0.is_empty() { None } else { Some(self.0.remove(0)) })
    }
}

fn pieces(state: &mut State) -> Vec<Bytes> {
    let mut chunks = state.snapshot().unwrap();
    let mut pieces = Vec::new();
    while let Some(piece) = chunks.next_chunk().unwrap() {
        assert!(piece.len() <= SNAPSHOT_CHUNK);
        pieces.push(piece);
    }
    pieces
}

/// Answers without their prose, which is not the reference's business; collections stop where the state likes.
fn comparable(outcome: Result<Outcome, String>) -> Result<Outcome, String> {
    outcome.map(|mut outcome| {
        match &mut outcome {
            Outcome::Applied(applied) => applied.failures.iter_mut().for_each(|f| f.message.clear()),
            Outcome::AppliedAndAppended(both) => both.failures.iter_mut().for_each(|f| f.message.clear()),
            _ => {}
        }
        outcome
    })
}

fn check_reads(state: &State, model: &Model) {
    let reader = state.reader();
    let mut rows: Vec<(Bytes, Bytes)> = model.cells.keys().map(|(g, r, _)| (g.clone(), r.clone())).collect();
    rows.dedup();
    for (in_group, at_row) in &rows {
        let read = reader.get(&get(in_group.clone(), at_row.clone())).unwrap();
        assert_eq!(read.map(|row| row.cells).unwrap_or_default(), model.row(in_group, at_row));
    }
    let mut groups: Vec<Bytes> = rows.iter().map(|(g, _)| g.clone()).collect();
    groups.dedup();
    for in_group in groups {
        let expected = rows.iter().filter(|(g, _)| *g == in_group);
        let expected = expected.map(|(g, r)| v1::Row { row: r.clone(), cells: model.row(g, r) });
        let expected: Vec<_> = expected.filter(|row| !row.cells.is_empty()).collect();
        assert_eq!(reader.scan(&scan(in_group)).unwrap().rows, expected);
    }
    for (topic, kept) in &model.topics {
        for group in kept.groups.keys() {
            let query =
                FeedQuery { topic: topic.clone(), group: group.clone(), again: vec![], from: 1, limit: usize::MAX };
            let FeedAnswer::Open { entries, .. } = reader.feed(&query).unwrap() else { panic!("the group is known") };
            assert_eq!(Some(entries), model.open_entries(topic, group));
        }
    }
    assert_eq!(reader.status().unwrap().0.0, model.incarnation);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_state_agrees_with_the_reference(seed in any::<u64>()) {
        let mut rng = Seeded::new(seed);
        let mut state = fresh();
        let mut model = Model::default();
        for command in random_commands(&mut rng, 150) {
            let expected = comparable(model.apply(&command));
            let actual = comparable(one(&mut state, command.clone()).map_err(|e| e.code.into_owned()));
            prop_assert_eq!(actual, expected, "{:?}", command);
        }
        check_reads(&state, &model);
    }

    #[test]
    fn batching_and_snapshots_do_not_show(seed in any::<u64>()) {
        let mut rng = Seeded::new(seed);
        let mut commands: Vec<Bytes> = random_commands(&mut rng, 120).into_iter().map(command::encode).collect();
        // Entries of the log itself, and bytes that are no command.
        commands[rng.clone().below(120) as usize] = Bytes::new();
        commands[rng.clone().below(60) as usize] = Bytes::from_static(b"\xff\xffnonsense");
        let mut single = fresh();
        let mut expected = Vec::new();
        for command in &commands {
            expected.extend(apply_all(&mut single, std::slice::from_ref(command), "note"));
        }
        let mut other = fresh();
        let mut results = Vec::new();
        let mut rest = &commands[..];
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(rng.between(1, 30).min(rest.len() as u64) as usize);
            results.extend(apply_all(&mut other, batch, "note"));
            rest = later;
            if rng.one_in(3) {
                let mut restored = fresh();
                apply_all(&mut restored, &commands[..5], "other content");
                restored.restore(other.position(), &mut Pieces(pieces(&mut other))).unwrap();
                prop_assert_eq!(restored.position(), other.position());
                other = restored;
            }
        }
        prop_assert_eq!(results, expected);
        prop_assert_eq!(pairs(&other), pairs(&single));
        prop_assert_eq!(StoreState::open(other.kv().clone()).unwrap().position(), single.position());
    }
}

#[test]
fn entries_that_were_applied_are_not_applied_again() {
    let mut state = fresh();
    apply_all(&mut state, &[Bytes::new(), Bytes::new()], "two");
    for index in [1, 2] {
        assert!(state.apply(&[Entry { index: LogIndex(index), command: &[] }], Bytes::new()).is_err());
    }
    let twice = [Entry { index: LogIndex(3), command: &[] }, Entry { index: LogIndex(3), command: &[] }];
    assert!(state.apply(&twice, Bytes::new()).is_err());
    assert_eq!(state.position(), Position { index: LogIndex(2), note: Bytes::from("two") });
    state.apply(&[], Bytes::from("only the note")).unwrap();
    assert_eq!(state.position(), Position { index: LogIndex(2), note: Bytes::from("only the note") });
}

#[test]
fn a_snapshot_stays_as_it_was_and_large_values_cross_its_pieces() {
    let mut state = fresh();
    for i in 0..5u64 {
        let large = vec![b'a' + i as u8; 900 << 10];
        one(&mut state, Command::Apply(put("g", format!("r{i}"), cell("c", 1, large)))).unwrap();
    }
    let (before, position) = (pairs(&state), state.position());
    let mut chunks = state.snapshot().unwrap();
    let mut taken = vec![chunks.next_chunk().unwrap().unwrap()];
    one(&mut state, Command::Apply(put("g", "r0", cell("c", 2, "later")))).unwrap();
    while let Some(piece) = chunks.next_chunk().unwrap() {
        taken.push(piece);
    }
    assert!(taken.len() > 15, "4.5 MB are many pieces");
    let mut restored = fresh();
    restored.restore(position, &mut Pieces(taken)).unwrap();
    assert!(pairs(&restored) == before);
}

#[test]
fn a_snapshot_that_is_not_whole_is_refused_and_the_old_state_stays() {
    let mut state = fresh();
    for i in 0..3u64 {
        let command = put("g", format!("r{i}"), cell("c", 1, vec![7; 300 << 10]));
        one(&mut state, Command::Apply(command)).unwrap();
    }
    let (position, good) = (state.position(), pieces(&mut state));
    assert!(good.len() >= 4);
    let mut bad: Vec<(&str, Vec<Bytes>)> = vec![("empty", vec![]), ("cut", good[..good.len() - 1].to_vec())];
    bad.push(("first missing", good[1..].to_vec()));
    bad.push(("swapped", [&good[1..2], &good[..1], &good[2..]].concat()));
    bad.push(("repeated", [&good[..1], &good[..]].concat()));
    for at in [0, 5, 8, 12, 5000] {
        let mut flipped = good.clone();
        let mut piece = flipped[1].to_vec();
        piece[at] ^= 0x10;
        flipped[1] = piece.into();
        bad.push(("flipped", flipped));
    }
    let mut short = good.clone();
    short[1].truncate(1000);
    bad.push(("truncated", short));
    let mut target = fresh();
    one(&mut target, Command::Apply(put("g", "old", cell("c", 1, "v")))).unwrap();
    let (old, old_position) = (pairs(&target), target.position());
    for (what, pieces) in bad {
        let refused = target.restore(position.clone(), &mut Pieces(pieces));
        assert!(refused.is_err_and(|f| f.what.contains("snapshot")), "{what}");
        assert!(pairs(&target) == old && target.position() == old_position, "{what}");
    }
    target.restore(position, &mut Pieces(good)).unwrap();
    assert!(pairs(&target) == pairs(&state));
}

fn kept(state: &State, topic: &str) -> (u64, u64) {
    let topic = state.reader().topic(topic.as_bytes()).unwrap().unwrap();
    (topic.kept(), topic.kept_bytes())
}

fn append(topic: &str, entries: usize, size: usize) -> Command {
    let entries = vec![Bytes::from(vec![b'e'; size]); entries];
    Command::Append(v1::Append { topic: topic.to_owned().into(), entries })
}

fn retain(topic: &str, retention: v1::FeedRetention) -> Command {
    Command::FeedRetain(v1::FeedRetain { topic: topic.to_owned().into(), retention: Some(retention) })
}

#[test]
fn a_topic_that_nobody_consumes_keeps_the_latest() {
    let mut state = fresh();
    one(&mut state, retain("t", v1::FeedRetention { unclaimed_entries: 10, ..Default::default() })).unwrap();
    for _ in 0..30 {
        one(&mut state, append("t", 3, 5)).unwrap();
    }
    assert_eq!(kept(&state, "t"), (10, 50));
    one(&mut state, retain("t", v1::FeedRetention { unclaimed_bytes: 12, ..Default::default() })).unwrap();
    assert_eq!(kept(&state, "t"), (2, 10));
    let join = Command::FeedJoin(v1::FeedJoin { topic: "t".into(), group: "g".into() });
    assert_eq!(one(&mut state, join).unwrap(), Outcome::FeedJoined(v1::FeedJoined { floor: 88 }));
}

#[test]
fn a_topic_keeps_what_a_group_waits_for_and_says_when_it_is_full() {
    let mut state = fresh();
    for group in ["fast", "slow"] {
        one(&mut state, Command::FeedJoin(v1::FeedJoin { topic: "t".into(), group: group.into() })).unwrap();
    }
    one(&mut state, retain("t", v1::FeedRetention { backlog_entries: 6, ..Default::default() })).unwrap();
    one(&mut state, append("t", 6, 1)).unwrap();
    let before = pairs(&state);
    let refused = one(&mut state, append("t", 1, 1)).unwrap_err();
    assert_eq!(refused.code, "feed.full");
    let changed: Vec<_> = pairs(&state).into_iter().filter(|(at, v)| before.get(at) != Some(v)).collect();
    assert_eq!(changed.len(), 1, "only the position moves with a refused command");
    let ack = |group: &str, numbers: Vec<u64>| {
        Command::Ack(v1::Ack { topic: "t".into(), group: group.to_owned().into(), numbers })
    };
    one(&mut state, ack("fast", (1..=6).collect())).unwrap();
    assert_eq!(kept(&state, "t").0, 6, "the slow group still needs them");
    one(&mut state, ack("slow", vec![1, 2, 4])).unwrap();
    assert_eq!(kept(&state, "t").0, 4, "what both have acknowledged goes");
    one(&mut state, append("t", 2, 1)).unwrap();
    one(&mut state, Command::FeedLeave(v1::FeedLeave { topic: "t".into(), group: "slow".into() })).unwrap();
    assert_eq!(kept(&state, "t").0, 2, "a forgotten group holds nothing");
}

#[test]
fn a_long_backlog_is_dropped_in_steps() {
    let mut state = fresh();
    let join = |group: &str| Command::FeedJoin(v1::FeedJoin { topic: "t".into(), group: group.to_owned().into() });
    one(&mut state, join("g")).unwrap();
    for _ in 0..10 {
        one(&mut state, append("t", 1000, 1)).unwrap();
    }
    one(&mut state, Command::FeedTrim(v1::FeedTrim { topic: "t".into(), through: 9_999 })).unwrap();
    assert!(kept(&state, "t").0 > 1, "one command does not drop ten thousand entries");
    for _ in 0..10 {
        one(&mut state, join("g")).unwrap();
        one(&mut state, Command::Ack(v1::Ack { topic: "t".into(), group: "g".into(), numbers: vec![1] })).unwrap();
    }
    assert_eq!(kept(&state, "t"), (1, 1), "later ones finish");
}

#[test]
fn acknowledgements_stay_within_the_window() {
    let mut state = fresh();
    one(&mut state, Command::FeedJoin(v1::FeedJoin { topic: "t".into(), group: "g".into() })).unwrap();
    for _ in 0..9 {
        one(&mut state, append("t", 1000, 0)).unwrap();
    }
    let ack = |numbers| Command::Ack(v1::Ack { topic: "t".into(), group: "g".into(), numbers });
    assert_eq!(one(&mut state, ack(vec![8193])).unwrap_err().code, "feed.never_delivered");
    one(&mut state, ack(vec![8192])).unwrap();
    let query = |from| FeedQuery { topic: "t".into(), group: "g".into(), again: vec![], from, limit: 10_000 };
    let FeedAnswer::Open { entries, more, .. } = state.reader().feed(&query(1)).unwrap() else { panic!() };
    assert_eq!((entries.len(), more), (8191, false), "nothing beyond the window is delivered");
    one(&mut state, ack(vec![1])).unwrap();
    let FeedAnswer::Open { entries, .. } = state.reader().feed(&query(8192)).unwrap() else { panic!() };
    assert_eq!(entries.iter().map(|e| e.0).collect::<Vec<_>>(), [8193], "the window moves with the floor");
}

/// Looks through all of a group; how many tombstones are removed, and in how many steps.
fn collect(state: &mut State, group: &'static str, seen: u64, before: u64) -> (u64, u64) {
    let (mut from, mut removed, mut steps) = (Bytes::new(), 0, 0);
    loop {
        let collect =
            Command::StoreCollect(v1::StoreCollect { from, group: group.into(), seen, before, ..Default::default() });
        let Outcome::StoreCollected(collected) = one(state, collect).unwrap() else { panic!() };
        (removed, steps) = (removed + collected.removed, steps + 1);
        if collected.next.is_empty() {
            return (removed, steps);
        }
        from = collected.next;
    }
}

#[test]
fn tombstones_are_collected_in_steps_and_only_those_seen_long_ago() {
    let mut state = fresh();
    let rows = |batch: u64| {
        let cells = |i: u64| vec![tombstone("c", i + 1), cell("d", 1, "v")];
        (0..1000u64).map(move |i| row(format!("r{batch}-{i:04}"), cells(i))).collect::<Vec<_>>()
    };
    for batch in 0..5 {
        one(&mut state, Command::Apply(apply(vec![group("g", rows(batch)), group("h", rows(batch))]))).unwrap();
    }
    assert_eq!(collect(&mut state, "g", 100, 100), (0, 3), "nobody has seen them before");
    for batch in 5..10 {
        one(&mut state, Command::Apply(apply(vec![group("g", rows(batch))]))).unwrap();
    }
    // A cell that was written and deleted since is another tombstone; the same one again is the same.
    let again =
        |timestamp| Command::Apply(apply(vec![group("g", vec![row("r0-0000", vec![tombstone("c", timestamp)])])]));
    one(&mut state, again(5_000)).unwrap();
    one(&mut state, Command::Apply(apply(vec![group("g", vec![row("r0-0001", vec![tombstone("c", 2)])])]))).unwrap();
    assert_eq!(collect(&mut state, "g", 200, 100).0, 0, "they were seen at 100, not before");
    assert_eq!(collect(&mut state, "g", 300, 101).0, 4_999);
    assert_eq!(collect(&mut state, "g", 400, 201).0, 5_001);
    assert_eq!(pairs(&state).len(), 10_000 + 10_000 + 1, "another group's tombstones stay");
    // What is gone may come again.
    one(&mut state, Command::Apply(put("g", "r0-0001", cell("c", 1, "late")))).unwrap();
    let read = state.reader().get(&get("g", "r0-0001")).unwrap().unwrap();
    assert_eq!(read.cells.iter().filter(|cell| cell.column == "c").count(), 1);
}

/// Nobody can make a node hold more than so much of a row for one request.
#[test]
fn a_row_that_is_too_large_is_refused_and_its_columns_can_be_read() {
    let mut state = fresh();
    let large = vec![b'x'; tidings_store::limits::MAX_VALUE];
    let cells = ROW_BYTES / large.len() + 1;
    for number in 0..cells {
        one(&mut state, Command::Apply(put("g", "wide", cell(format!("c{number:03}"), 1, large.clone())))).unwrap();
    }
    one(&mut state, Command::Apply(put("g", "a", cell("c", 1, "v")))).unwrap();
    let reader = state.reader();
    assert_eq!(reader.get(&get("g", "wide")), Err(Unread::TooLarge));
    assert_eq!(reader.scan(&v1::Scan { start: "wide".into(), ..scan("g") }), Err(Unread::TooLarge));
    let some = v1::Get { columns: vec!["c001".into(), "c002".into()], ..get("g", "wide") };
    assert_eq!(reader.get(&some).unwrap().unwrap().cells.len(), 2);
    assert_eq!(reader.get(&get("g", "a")).unwrap().unwrap().cells.len(), 1);
    assert_eq!(Unread::TooLarge.into_error().code, "store.row_too_large");
}

#[test]
fn answers_are_cut_into_frames_that_a_client_takes() {
    let mut state = fresh();
    let long_key = |i: u64| format!("{i:04}{}", "k".repeat(4000));
    for i in 0..60u64 {
        one(&mut state, Command::Apply(put("keys", long_key(i), cell("c", 1, "v")))).unwrap();
    }
    let cells = (0..200u64).map(|i| cell(format!("{i:03}"), 1, vec![b'x'; 2000])).collect();
    one(&mut state, Command::Apply(apply(vec![group("wide", vec![row("r", cells)])]))).unwrap();
    let largest = vec![b'x'; tidings_store::limits::MAX_VALUE];
    for at in ["a", "b"] {
        let column = "c".repeat(4096);
        one(&mut state, Command::Apply(put("large", at, cell(column, 1, largest.clone())))).unwrap();
    }
    let reader = state.reader();
    for (in_group, rows, frames_at_least) in [("keys", 60, 4), ("wide", 1, 6), ("large", 1, 1)] {
        let mut frames = Vec::new();
        let query = Query::Scan(scan(in_group));
        reader
            .answer(&query, &mut |frame, more| {
                assert!(frame.encoded_len() < tidings_wire::limits::CLIENT_FRAME - 100);
                let StoreMessage::Rows(rows) = frame else { panic!() };
                assert!(rows.rows.iter().all(|row| !row.cells.is_empty()));
                frames.push((rows, more));
            })
            .unwrap();
        assert!(frames.len() >= frames_at_least, "{in_group}: {}", frames.len());
        let (last, before) = frames.split_last().unwrap();
        assert!(!last.1 && before.iter().all(|(_, more)| *more));
        let joined = join_frames(frames.into_iter().map(|(frame, _)| frame));
        assert_eq!(joined.rows.len(), rows);
        assert!(joined == reader.scan(&scan(in_group)).unwrap());
    }
}
