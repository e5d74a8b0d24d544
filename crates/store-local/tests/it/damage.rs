//! Damaged, foreign, newer and locked directories: each has a name and a hint, none is used.

use crate::{check, copy_dir, read_dir};
use bytes::Bytes;
use std::fs;
use std::path::{Path, PathBuf};
use tidings_base::agreed::{AgreedState, Entry};
use tidings_base::{Class, Error, LogIndex};
use tidings_store::messages::*;
use tidings_store::{StoreState, command};
use tidings_store_local::{FjallKv, OpenError, Options};
use tidings_wire::v1::store_command::Command;

fn open(dir: &Path) -> Result<FjallKv, OpenError> {
    FjallKv::open(dir, Options::default())
}

/// A state of some thousand rows, flushed and closed.
fn filled(dir: &Path) {
    let mut state = StoreState::open(open(dir).unwrap()).unwrap();
    for index in 1..=20u64 {
        let rows = (0..200).map(|i| row(format!("r{index:02}-{i:03}"), vec![cell("c", 1, vec![b'x'; 100])])).collect();
        let command = command::encode(Command::Apply(apply(vec![group("g", rows)])));
        state.apply(&[Entry { index: LogIndex(index), command: &command }], Bytes::new()).unwrap();
    }
    state.flush().unwrap();
}

fn refused(dir: &Path) -> Error {
    let error: Error = open(dir).expect_err("it must not open").into();
    assert!(!error.hint.is_empty());
    error
}

fn find(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(find(&path, suffix));
        } else if path.to_string_lossy().ends_with(suffix) {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    fs::write(dir.path().join("FORMAT"), "tidings-store 3\n").unwrap();
    let error = refused(dir.path());
    assert_eq!((error.code.as_ref(), error.class), ("store.newer_format", Class::Refused));
    assert!(error.message.contains("FORMAT") && error.message.contains('3'), "{error}");
    // An older one is read, and is of this format from then on.
    fs::write(dir.path().join("FORMAT"), "tidings-store 1\n").unwrap();
    assert_eq!(check(dir.path()).unwrap().flushed, 20);
    drop(open(dir.path()).unwrap());
    assert_eq!(fs::read_to_string(dir.path().join("FORMAT")).unwrap(), "tidings-store 2\n");
}

#[test]
fn a_directory_of_something_else_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("letters.txt"), "dear").unwrap();
    assert_eq!(refused(dir.path()).code, "store.foreign_directory");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was added");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("FORMAT"), "another program 7\n").unwrap();
    assert_eq!(refused(dir.path()).code, "store.foreign_directory");
}

#[test]
fn a_half_created_directory_is_finished() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("FORMAT.new"), "tid").unwrap();
    filled(dir.path());
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    // A crash amid the creation of the engine: nothing was ever durable, so the log has everything.
    let fresh = tempfile::tempdir().unwrap();
    fs::copy(dir.path().join("FORMAT"), fresh.path().join("FORMAT")).unwrap();
    drop(open(fresh.path()).unwrap());
    for journal in find(fresh.path(), ".jnl") {
        fs::write(journal, "garbage").unwrap();
    }
    fs::remove_dir_all(fresh.path().join("generation-1/keyspaces")).unwrap();
    filled(fresh.path());
}

#[test]
fn a_damaged_or_missing_current_is_named() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let current = dir.path().join("CURRENT");
    let good = fs::read_to_string(&current).unwrap();
    for bad in [good.replace("flushed 20", "flushed 21"), good[..good.len() - 3].to_owned(), String::new()] {
        fs::write(&current, bad).unwrap();
        let error = refused(dir.path());
        assert_eq!((error.code.as_ref(), error.class), ("store.damaged", Class::Failed));
        assert!(error.message.contains("CURRENT"), "{error}");
    }
    fs::remove_file(&current).unwrap();
    assert!(refused(dir.path()).message.contains("CURRENT"));
    fs::write(&current, good).unwrap();
    assert_eq!(check(dir.path()).unwrap().pairs, 4001);
}

#[test]
fn the_check_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    // A generation that a crash left behind: a start would remove it.
    copy_dir(&dir.path().join("generation-1"), &dir.path().join("generation-9"));
    let before = read_dir(dir.path());
    assert_eq!(check(dir.path()).unwrap().pairs, 4001);
    assert!(read_dir(dir.path()) == before, "something was written");
    drop(open(dir.path()).unwrap());
    assert!(read_dir(dir.path()) != before, "an open is no mere look");
}

#[test]
fn a_second_process_is_told_that_the_directory_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let _open = open(dir.path()).unwrap();
    assert_eq!(refused(dir.path()).code, "store.locked");
    assert!(matches!(check(dir.path()), Err(OpenError::Locked { .. })));
}

/// fjall cuts its journal at the first damage, silently. What `CURRENT` remembers tells a torn tail from a loss.
#[test]
fn a_journal_that_lost_durable_batches_is_named() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let [journal] = &find(dir.path(), ".jnl")[..] else { panic!("one journal") };
    let content = fs::read(journal).unwrap();
    for (what, damage) in [
        ("cut", content[..content.len().min(200_000)].to_vec()),
        ("zeros in the middle", {
            let mut damaged = content.clone();
            damaged[100_000..140_000].fill(0);
            damaged
        }),
        ("a flipped bit", {
            let mut damaged = content.clone();
            damaged[100_000] ^= 4;
            damaged
        }),
        ("empty", Vec::new()),
    ] {
        let copy = tempfile::tempdir().unwrap();
        copy_dir(dir.path(), copy.path());
        let [journal] = &find(copy.path(), ".jnl")[..] else { panic!("one journal") };
        fs::write(journal, damage).unwrap();
        let error = refused(copy.path());
        assert_eq!((error.code.as_ref(), error.class), ("store.damaged", Class::Failed), "{what}");
    }
}

#[test]
fn damage_in_tables_is_found_at_open_or_by_the_check() {
    // A restore makes tables without a journal behind them.
    let dir = tempfile::tempdir().unwrap();
    let source = tempfile::tempdir().unwrap();
    filled(source.path());
    let mut from = StoreState::open(open(source.path()).unwrap()).unwrap();
    let mut to = StoreState::open(open(dir.path()).unwrap()).unwrap();
    let mut pieces = from.snapshot().unwrap();
    to.restore(from.position(), pieces.as_mut()).unwrap();
    drop(to);
    let whole = check(dir.path()).unwrap();
    assert_eq!((whole.pairs, whole.generation, whole.flushed), (4001, 2, 20));

    let tables: Vec<PathBuf> = find(&dir.path().join("generation-2/keyspaces/1/tables"), "");
    assert!(!tables.is_empty());
    let largest = tables.iter().max_by_key(|p| fs::metadata(p).unwrap().len()).unwrap();
    let relative = largest.strip_prefix(dir.path()).unwrap();
    let content = fs::read(largest).unwrap();
    let mut cases: Vec<(String, Option<Vec<u8>>)> = vec![
        ("missing".to_owned(), None),
        ("cut".to_owned(), Some(content[..content.len() / 2].to_vec())),
        ("empty".to_owned(), Some(Vec::new())),
    ];
    for part in 0..20 {
        let mut flipped = content.clone();
        let at = content.len() * part / 20 + 7;
        flipped[at] ^= 0x40;
        cases.push((format!("bit flipped at {at}"), Some(flipped)));
    }
    for (what, damage) in cases {
        let copy = tempfile::tempdir().unwrap();
        copy_dir(dir.path(), copy.path());
        match damage {
            None => fs::remove_file(copy.path().join(relative)).unwrap(),
            Some(damage) => fs::write(copy.path().join(relative), damage).unwrap(),
        }
        match check(copy.path()) {
            Err(error) => {
                let error = Error::from(error);
                assert_eq!((error.code.as_ref(), error.class), ("store.damaged", Class::Failed), "{what}: {error}");
                assert!(error.message.contains("generation-2"), "{what}: {error}");
            }
            // Bytes that nothing depends on may change; the content may not.
            Ok(report) => assert_eq!(report, whole, "{what}"),
        }
    }
}
