//! The state behind the log: bytes in, bytes out, pictures of it.

use crate::common::*;
use bytes::Bytes;
use prost::Message;
use tidings_base::LogIndex;
use tidings_base::agreed::{AgreedState, Entry, Position, SNAPSHOT_CHUNK, SnapshotChunks, StateFailure};
use tidings_cell::namespace::{CellState, Namespace};
use tidings_wire::v1;
use tidings_wire::v1::LockMode::{Exclusive, Shared};
use tidings_wire::v1::cell_command::Command;
use tidings_wire::v1::cell_result::Result as Outcome;

struct Chunks(std::vec::IntoIter<Bytes>);

impl SnapshotChunks for Chunks {
    fn next_chunk(&mut self) -> Result<Option<Bytes>, StateFailure> {
        Ok(self.0.next())
    }
}

fn commands() -> Vec<Bytes> {
    let (a, b) = (1, 2);
    let of = |session, number, command| {
        let actor = (session > 0).then_some(v1::CellActor { session, number, answered_below: 0 });
        Bytes::from(v1::CellCommand { actor, epoch: 1, command: Some(command) }.encode_to_vec())
    };
    let caller = v1::CellCaller { app: APP.into(), principal: "app:shop/k".into(), privileged: false };
    let start =
        Command::StartSession(v1::StartSession { caller: Some(caller), lease_ms: 20_000, secret: 77, keeper: 0 });
    let large = |byte: u8| v1::CreateNode { contents: vec![byte; 200 << 10].into(), ..Default::default() };
    vec![
        of(0, 0, Command::NewMaster(v1::NewMaster { node: 1, secret: vec![1; 32].into(), cache_lease_ms: 1_800 })),
        of(0, 0, start.clone()),
        of(0, 0, start.clone()),
        of(0, 0, start),
        of(a, 1, create("/d", 1, ephemeral(true))),
        of(a, 2, create("/d/e", 2, ephemeral(false))),
        of(b, 1, open("/d/e", 1)),
        of(a, 3, create("/acl/x", 3, file("app:shop\n"))),
        of(a, 4, create("/f", 4, large(1))),
        of(a, 5, create("/g", 5, large(2))),
        of(a, 6, take("/f", 4, Shared, 30_000)),
        of(b, 2, take("/f", 2, Shared, 10_000)),
        of(3, 1, take("/f", 1, Shared, 20_000)),
        of(b, 3, take("/g", 2, Exclusive, 1_000)),
        of(0, 0, stop(tidings_cell::SessionId(3), true)),
        of(b, 4, Command::WriteContents(put("/none", "x"))),
        of(0, 0, Command::RotateKeys(v1::RotateKeys { secret: vec![2; 32].into() })),
        of(
            0,
            0,
            Command::WriteQuota(v1::WriteQuota { app: APP.into(), path: "/d".into(), max_nodes: 9, max_bytes: 8 }),
        ),
        of(
            0,
            0,
            Command::RestorePiece(v1::RestorePiece { bytes: "start".into(), replace: true, ..Default::default() }),
        ),
    ]
}

fn filled() -> CellState {
    let mut state = CellState::new();
    let commands = commands();
    let entries: Vec<Entry<'_>> =
        commands.iter().zip(1..).map(|(command, index)| Entry { index: LogIndex(index), command }).collect();
    let results = state.apply(&entries, Bytes::from_static(b"note")).unwrap();
    for (at, result) in results.iter().enumerate() {
        let result = v1::CellResult::decode(result.clone()).unwrap().result.unwrap();
        assert_eq!(matches!(result, Outcome::Error(_)), at == 15, "{at}: {result:?}");
    }
    state
}

fn picture(state: &mut CellState) -> Vec<Bytes> {
    let mut writer = state.snapshot().unwrap();
    std::iter::from_fn(|| writer.next_chunk().unwrap()).collect()
}

fn namespace(state: &CellState) -> Namespace {
    state.shared().read().clone()
}

#[test]
fn the_log_s_own_entries_and_garbage_change_nothing() {
    let mut state = filled();
    let before = namespace(&state);
    let next = state.position().index.0 + 1;
    let later = v1::CellCommand { epoch: 1, ..Default::default() }.encode_to_vec();
    let entries = [
        Entry { index: LogIndex(next), command: b"" },
        Entry { index: LogIndex(next + 1), command: b"\xff\xff\xff" },
        Entry { index: LogIndex(next + 2), command: &later },
    ];
    let results = state.apply(&entries, Bytes::new()).unwrap();
    assert!(results[0].is_empty());
    for result in &results[1..] {
        let result = v1::CellResult::decode(result.clone()).unwrap().result.unwrap();
        assert!(matches!(result, Outcome::Error(error) if error.code == "cell.bad_command"));
    }
    assert_eq!(state.position().index, LogIndex(next + 2));
    assert!(namespace(&state) == before);
    let gap = [Entry { index: LogIndex(next + 9), command: b"" }];
    assert!(state.apply(&gap, Bytes::new()).is_err());
}

#[test]
fn a_picture_makes_the_same_state() {
    let mut state = filled();
    let pieces = picture(&mut state);
    assert!(pieces.len() >= 2 && pieces.iter().all(|piece| piece.len() <= SNAPSHOT_CHUNK));
    let mut other = CellState::new();
    other.restore(state.position(), &mut Chunks(pieces.into_iter())).unwrap();
    let (one, two) = (namespace(&state), namespace(&other));
    assert!(one == two && one.digest() == two.digest() && other.position() == state.position());
    assert_eq!(two.locks().count(), 2);
    assert_eq!(two.ephemerals_of(tidings_cell::SessionId(2)).len(), 1);
}

#[test]
fn later_commands_do_not_show_in_a_picture() {
    let mut state = filled();
    let before = namespace(&state);
    let mut writer = state.snapshot().unwrap();
    let first = writer.next_chunk().unwrap().unwrap();
    let end = v1::CellCommand { epoch: 1, command: Some(stop(tidings_cell::SessionId(1), true)), actor: None };
    let next = LogIndex(state.position().index.0 + 1);
    state.apply(&[Entry { index: next, command: &end.encode_to_vec() }], Bytes::new()).unwrap();
    let rest = std::iter::from_fn(|| writer.next_chunk().unwrap());
    let pieces: Vec<Bytes> = std::iter::once(first).chain(rest).collect();
    let mut other = CellState::new();
    other.restore(Position::default(), &mut Chunks(pieces.into_iter())).unwrap();
    assert!(namespace(&other) == before && namespace(&state) != before);
}

#[test]
fn a_damaged_picture_is_refused_and_leaves_the_state_whole() {
    let pieces = picture(&mut filled());
    let mut state = filled();
    let before = namespace(&state);
    let mut refused = |pieces: Vec<Bytes>, what: &str| {
        let failed = state.restore(Position::default(), &mut Chunks(pieces.into_iter()));
        assert!(failed.is_err(), "{what}");
        assert!(namespace(&state) == before && state.position().index.0 > 0);
    };
    for piece in 0..pieces.len() {
        for at in [0, 3, 4, 7, 8, 9, 12, 13, 200, pieces[piece].len() - 1] {
            let mut damaged = pieces.clone();
            let mut bytes = damaged[piece].to_vec();
            bytes[at] ^= 0x10;
            damaged[piece] = bytes.into();
            refused(damaged, &format!("byte {at} of piece {piece}"));
        }
        let mut lost = pieces.clone();
        lost.remove(piece);
        refused(lost, "a lost piece");
        let mut twice = pieces.clone();
        twice.insert(piece, pieces[piece].clone());
        refused(twice, "a repeated piece");
    }
    let mut swapped = pieces.clone();
    swapped.swap(0, 1);
    refused(swapped, "swapped pieces");
    refused(Vec::new(), "nothing");
}
