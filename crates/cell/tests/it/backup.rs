//! Backups: what is in them, and that no damage passes.

use crate::common::*;
use bytes::Bytes;
use tidings_cell::SessionId;
use tidings_cell::namespace::backup;
use tidings_wire::v1;
use tidings_wire::v1::LockMode::Exclusive;
use tidings_wire::v1::cell_command::Command;
use tidings_wire::v1::cell_result::Result as Outcome;

fn filled() -> Cell {
    let mut cell = Cell::new();
    let a = cell.start();
    cell.call(a, create("/acl/us", 1, file("app:shop\n"))).unwrap();
    cell.call(a, create("/d", 2, directory())).unwrap();
    cell.call(a, acl("/d", "us", "us", "us")).unwrap();
    for handle in 3..23 {
        let contents = vec![handle as u8; 10 << 10].into();
        let large = v1::CreateNode { contents, ..Default::default() };
        cell.call(a, create(&format!("/d/f{handle}"), handle, large)).unwrap();
    }
    cell.call(a, take("/d/f3", 3, Exclusive, 1_000)).unwrap();
    cell.call(a, create("/e", 30, ephemeral(false))).unwrap();
    cell.call(a, create("/tmp", 31, ephemeral(true))).unwrap();
    cell.call(a, create("/tmp/kept", 32, file("kept"))).unwrap();
    let quota = v1::WriteQuota { app: APP.into(), path: "/d".into(), max_nodes: 99, max_bytes: 1 << 20 };
    cell.master(Command::WriteQuota(quota));
    cell
}

fn file_of(cell: &Cell) -> Vec<u8> {
    backup::pieces(&cell.state).flat_map(|piece| piece.to_vec()).collect()
}

fn piece(offset: u64, bytes: &[u8]) -> v1::RestorePiece {
    v1::RestorePiece { offset, bytes: Bytes::copy_from_slice(bytes), ..Default::default() }
}

/// Restores a file in pieces of a size; the last answer.
fn restore(cell: &mut Cell, file: &[u8], size: usize, replace: bool) -> Result<(), v1::Error> {
    let mut offset = 0;
    for part in file.chunks(size) {
        let last = offset + part.len() == file.len();
        let total = if last { file.len() as u64 } else { 0 };
        let secret = if last { vec![9; 32].into() } else { Bytes::new() };
        let step = v1::RestorePiece { total, secret, replace, incarnation: 7, ..piece(offset as u64, part) };
        match cell.master(Command::RestorePiece(step)) {
            Outcome::Applied(_) => offset += part.len(),
            Outcome::Error(error) => return Err(error),
            other => panic!("{other:?}"),
        }
    }
    Ok(())
}

#[test]
fn a_backup_holds_trees_lists_and_quotas_and_nothing_of_sessions() {
    let from = filled();
    let file = file_of(&from);
    let summary = backup::check([Bytes::from(file.clone())]).unwrap();
    assert_eq!((summary.version, summary.incarnation, summary.total), (1, 1, file.len() as u64));
    assert_eq!(summary.nodes, 26, "root, acl, acl/us, d, twenty files, tmp, tmp/kept");
    let mut cell = Cell::new();
    let old = cell.start();
    restore(&mut cell, &file, 1_000, false).unwrap();
    assert_eq!(cell.state.incarnation().0, 7);
    assert_eq!((cell.state.session(old), cell.state.keys().newest()), (None, 2));
    assert!(cell.state.locks().next().is_none() && cell.stat("/e").is_none());
    assert!(!cell.stat("/tmp").unwrap().ephemeral);
    assert_eq!(cell.state.contents(&place("/tmp/kept")).unwrap(), "kept");
    let (there, here) = (from.stat("/d/f9").unwrap(), cell.stat("/d/f9").unwrap());
    assert_eq!((here.checksum, &here.acl), (there.checksum, &there.acl));
    assert!(here.instance > there.instance, "larger than any earlier one of this path");
    let quota = cell.state.quota(&place("/d")).unwrap();
    assert_eq!((quota.nodes, quota.bytes, quota.max_nodes), (20, 200 << 10, 99));
    let outsider = cell.start_as("user:web/eve", false);
    assert_eq!(cell.refused(outsider, open("/d/f9", 1)), "cell.denied");
    let again = file_of(&cell);
    assert_eq!(backup::check([Bytes::from(again)]).unwrap().nodes, summary.nodes);
    let mut copy = Cell::new();
    restore(&mut copy, &file, 1 << 20, true).unwrap();
}

#[test]
fn a_restore_ends_what_was_there_only_when_told_to() {
    let mut cell = filled();
    let (file, before) = (file_of(&filled()), cell.state.clone());
    assert_eq!(restore(&mut cell, &file, 4_096, false).unwrap_err().code, "cell.not_empty_cell");
    assert!(cell.state == before);
    // L1: whoever holds a lock may go on for a while.
    assert_eq!(restore(&mut cell, &file, 4_096, true).unwrap_err().code, "cell.locks_in_use");
    assert!(cell.state == before);
    cell.master(stop(SessionId(1), false));
    let _ = cell.start();
    restore(&mut cell, &file, 4_096, true).unwrap();
    assert_eq!(cell.state.session_count(), 0);
    assert!(cell.state.changed().covers(&tidings_cell::CacheKey::node(place("/anything"))));
    assert_eq!(cell.state.incarnation().0, 7);
    restore(&mut cell, &file, 4_096, true).unwrap();
    assert_eq!(cell.state.incarnation().0, 8, "it grows whatever is given");
}

#[test]
fn damage_is_refused_with_its_offset_and_changes_nothing() {
    let file = file_of(&filled());
    let starts: Vec<u64> = {
        let pieces = backup::pieces(&filled().state).map(|piece| piece.len() as u64);
        pieces.scan(0, |at, size| Some(std::mem::replace(at, *at + size))).collect()
    };
    let mut cell = Cell::new();
    cell.start();
    let before = cell.state.clone();
    let mut offsets: Vec<usize> = starts.iter().flat_map(|at| (*at..*at + 20).map(|at| at as usize)).collect();
    offsets.extend((0..file.len()).step_by(5_003));
    offsets.extend(file.len() - 30..file.len());
    for at in offsets.into_iter().filter(|at| *at < file.len()) {
        let mut damaged = file.clone();
        damaged[at] ^= 0x40;
        let error = restore(&mut cell, &damaged, 60_000, false).unwrap_err();
        let start = starts.iter().rev().find(|start| **start <= at as u64).unwrap();
        assert_eq!(error.code, "cell.damaged_backup", "byte {at}");
        assert!(error.message.contains(&format!("offset {start}:")), "byte {at}: {}", error.message);
        let cut = restore(&mut cell, &file[..at.max(1)], 60_000, false).unwrap_err();
        assert_eq!(cut.code, "cell.damaged_backup", "cut at {at}");
    }
    let longer = [&file[..], b"x"].concat();
    let error = restore(&mut cell, &longer, 60_000, false).unwrap_err();
    assert!(error.message.contains(&format!("offset {}", file.len())), "{}", error.message);
    assert!(cell.state == before, "nothing is kept of any of them");
}

#[test]
fn moved_and_lost_parts_are_noticed_where_they_stand() {
    let parts: Vec<Bytes> = backup::pieces(&filled().state).collect();
    assert!(parts.len() > 4);
    let mut swapped = parts.clone();
    swapped.swap(1, 2);
    let mut lost = parts.clone();
    lost.remove(2);
    let mut twice = parts.clone();
    twice.insert(2, parts[1].clone());
    for (parts, at) in
        [(swapped, parts[0].len()), (lost, parts[0].len() + parts[1].len()), (twice, parts[0].len() + parts[1].len())]
    {
        let error = backup::check(parts).unwrap_err();
        assert!(error.message.contains(&format!("offset {at}:")), "{}", error.message);
    }
}

#[test]
fn a_later_version_is_refused_by_name() {
    let mut file = file_of(&filled());
    file[11] = 2;
    let sum = crc32c::crc32c(&file[..28]);
    file[28..32].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(backup::check([Bytes::from(file)]).unwrap_err().code, "cell.newer_backup");
}

#[test]
fn pieces_come_in_order_once_and_under_one_master() {
    let mut cell = Cell::new();
    let step = |cell: &mut Cell, command: v1::RestorePiece| match cell.master(Command::RestorePiece(command)) {
        Outcome::Applied(_) => "",
        Outcome::Error(error) if error.code == "cell.damaged_backup" => "damaged",
        Outcome::Error(error) => panic!("{error:?}"),
        other => panic!("{other:?}"),
    };
    assert_eq!(step(&mut cell, piece(5, b"late")), "damaged");
    assert_eq!(step(&mut cell, piece(0, b"first")), "");
    assert_eq!(step(&mut cell, piece(0, b"first")), "", "sent twice");
    assert_eq!(step(&mut cell, piece(5, b"second")), "");
    assert_eq!(step(&mut cell, piece(5, b"second")), "", "sent twice");
    assert_eq!(step(&mut cell, piece(12, b"gap")), "damaged");
    cell.activate();
    assert_eq!(step(&mut cell, piece(11, b"third")), "damaged", "another master begins anew");
    let file = file_of(&filled());
    restore(&mut cell, &file, 100_000, false).unwrap();
}
