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
        let name = journal.file_name().unwrap().to_string_lossy();
        assert!(error.message.contains(&*name), "{what}: {error}");
    }
}

/// What a restore leaves: tables without a journal behind them.
fn restored(dir: &Path) {
    let source = tempfile::tempdir().unwrap();
    filled(source.path());
    let mut from = StoreState::open(open(source.path()).unwrap()).unwrap();
    let mut to = StoreState::open(open(dir).unwrap()).unwrap();
    let mut pieces = from.snapshot().unwrap();
    to.restore(from.position(), pieces.as_mut()).unwrap();
}

/// Every way to spoil a file that is tried here: its name, and what is left of the file.
fn spoilt(content: &[u8]) -> Vec<(String, Option<Vec<u8>>)> {
    let mut cases = vec![
        ("missing".to_owned(), None),
        ("cut".to_owned(), Some(content[..content.len() / 2].to_vec())),
        ("empty".to_owned(), Some(Vec::new())),
    ];
    for part in 0..20 {
        let mut flipped = content.to_vec();
        let at = (content.len() * part / 20 + 7).min(content.len() - 1);
        flipped[at] ^= 0x40;
        cases.push((format!("bit flipped at {at}"), Some(flipped)));
    }
    cases
}

/// Spoils `file` of the state in `dir` in every way; an open and the check must both name it, and the open change
/// nothing.
fn each_damage_is_named(dir: &Path, file: &Path) {
    let relative = file.strip_prefix(dir).unwrap();
    for (what, damage) in spoilt(&fs::read(file).unwrap()) {
        let copy = tempfile::tempdir().unwrap();
        copy_dir(dir, copy.path());
        let there = copy.path().join(relative);
        match damage {
            None => fs::remove_file(&there).unwrap(),
            Some(damage) => fs::write(&there, damage).unwrap(),
        }
        let before = read_dir(copy.path());
        for error in [Error::from(check(copy.path()).expect_err(&what)), refused(copy.path())] {
            assert_eq!((error.code.as_ref(), error.class), ("store.damaged", Class::Failed), "{what}: {error}");
            assert!(error.message.contains(&*there.to_string_lossy()), "{what}: {error}");
        }
        assert!(read_dir(copy.path()) == before, "{what}: a refused open changed files");
    }
}

#[test]
fn damage_in_a_table_is_found_at_open_and_named() {
    let dir = tempfile::tempdir().unwrap();
    restored(dir.path());
    let whole = check(dir.path()).unwrap();
    assert_eq!((whole.pairs, whole.generation, whole.flushed), (4001, 2, 20));
    let tables = find(&dir.path().join("generation-2/keyspaces/1/tables"), "");
    each_damage_is_named(dir.path(), tables.iter().max_by_key(|p| fs::metadata(p).unwrap().len()).unwrap());
}

#[test]
fn damage_in_the_list_of_tables_is_found_at_open_and_named() {
    let dir = tempfile::tempdir().unwrap();
    restored(dir.path());
    let keyspace = dir.path().join("generation-2/keyspaces/1");
    let current = fs::read(keyspace.join("current")).unwrap();
    let list = keyspace.join(format!("v{}", u64::from_le_bytes(current[..8].try_into().unwrap())));
    each_damage_is_named(dir.path(), &list);

    fs::write(keyspace.join("current"), &current[..20]).unwrap();
    assert!(refused(dir.path()).message.contains("keyspaces/1/current"));
}

/// With no bytes to verify only the newest table is looked at; the check looks at all, and a read meets the damage.
#[test]
fn damage_beyond_what_an_open_verifies_is_found_by_the_check() {
    let dir = tempfile::tempdir().unwrap();
    // Enough for two or three tables, and too few for the engine to make one of them.
    let small = Options { gathered_bytes: 200_000, ..Options::default() };
    drop(FjallKv::open(dir.path(), small).unwrap());
    filled(dir.path());
    // The engine moves rows into tables while it is open and has gathered enough: sooner or later.
    let tables = (0..100).find_map(|_| {
        let _open = open(dir.path()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let tables = find(&dir.path().join("generation-1/keyspaces/1/tables"), "");
        (tables.len() > 1).then_some(tables)
    });
    let tables = tables.expect("several tables");
    let oldest =
        tables.iter().min_by_key(|p| p.file_name().unwrap().to_string_lossy().parse::<u64>().unwrap()).unwrap();
    let mut content = fs::read(oldest).unwrap();
    content[1000] ^= 1;
    fs::write(oldest, content).unwrap();
    drop(FjallKv::open(dir.path(), Options { verified_bytes: 0, ..Options::default() }).unwrap());
    assert!(Error::from(check(dir.path()).unwrap_err()).message.contains(&*oldest.to_string_lossy()));
}
