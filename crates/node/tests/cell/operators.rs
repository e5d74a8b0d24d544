//! Backup and restore, and what a damaged file is told.

use super::{Nodes, Raw, ask_bare, until};
use bytes::{Bytes, BytesMut};
use tidings_base::Error;
use tidings_client::Client;
use tidings_wire::v1::cell_message::Message;
use tidings_wire::{Body, v1};

/// What a restore sends at a time.
const PIECE: usize = 256 << 10;

async fn backup(client: &Client) -> Result<Bytes, Error> {
    let message = Some(Message::Backup(v1::BackupCell {}));
    let mut answers = client.stream(Body::Cell(v1::CellMessage { message, ..Default::default() })).await?;
    let mut file = BytesMut::new();
    while let Some(frame) = answers.next().await {
        match frame? {
            Body::Cell(v1::CellMessage { message: Some(Message::BackupChunk(chunk)), .. }) => {
                file.extend_from_slice(&chunk.bytes);
            }
            other => panic!("not a piece of a backup: {other:?}"),
        }
    }
    Ok(file.freeze())
}

async fn restore(client: &Client, file: &Bytes, replace: bool) -> Result<(), Error> {
    for offset in (0..file.len()).step_by(PIECE) {
        let bytes = file.slice(offset..file.len().min(offset + PIECE));
        let is_last = offset + bytes.len() == file.len();
        let total = if is_last { file.len() as u64 } else { 0 };
        let piece = v1::RestoreCell { offset: offset as u64, bytes, total, replace };
        match ask_bare(client, Message::Restore(piece)).await? {
            Message::Done(_) => {}
            other => panic!("not done: {other:?}"),
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_restored_into_a_new_cell_and_a_damaged_one_is_refused() {
    let nodes = Nodes::found(1).await;
    let session = Raw::start(nodes.client(0)).await;
    let before = session.put("/config", "precious").await.unwrap().stat.unwrap();
    // Larger than one piece.
    for n in 0..8 {
        let contents = vec![b'a' + n; 100 << 10];
        let create = v1::CreateNode { contents: contents.into(), ..Default::default() };
        let open = v1::OpenNode { path: format!("/large-{n}"), create: Some(create), read: true, ..Default::default() };
        session.open(open).await.unwrap();
    }
    let file = backup(&nodes.client(0)).await.unwrap();
    assert!(file.len() > 8 * (100 << 10), "{}", file.len());

    let new = Nodes::found(1).await;
    let mut damaged = BytesMut::from(&file[..]);
    let at = file.len() / 2;
    damaged[at] ^= 1;
    let refused = restore(&new.client(0), &damaged.freeze(), false).await.unwrap_err();
    assert_eq!(refused.code, "cell.damaged_backup");
    let said: Vec<usize> =
        refused.message.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    assert!(said.iter().any(|offset| *offset > 0 && *offset <= at), "which offset? {refused}");
    let short = restore(&new.client(0), &file.slice(..file.len() - 5), false).await.unwrap_err();
    assert_eq!(short.code, "cell.damaged_backup", "{short}");

    until("the whole file is restored", async || restore(&new.client(0), &file, false).await.ok()).await;
    let session = Raw::start(new.client(0)).await;
    let after = session.read("/config").await.unwrap();
    assert_eq!(after.contents, "precious");
    // It is another node: no handle of before is one of after.
    assert!(after.stat.unwrap().instance > before.instance);
    // Into a cell that has something, only on request.
    assert_eq!(restore(&new.client(0), &file, false).await.unwrap_err().code, "cell.not_empty_cell");
    let held = session.read("/config").await;
    assert!(held.is_ok(), "a refused restore ends no session: {held:?}");
    restore(&new.client(0), &file, true).await.unwrap();
    assert!(session.read("/config").await.is_err(), "a restore ends all sessions");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_the_masters() {
    let nodes = Nodes::found(3).await;
    let follower = (nodes.master().await + 1) % 3;
    let session = Raw::start(nodes.client(follower)).await;
    session.put("/config", "x").await.unwrap();
    // The client follows the redirect of whoever it asks.
    assert!(!backup(&nodes.client(follower)).await.unwrap().is_empty());
}
