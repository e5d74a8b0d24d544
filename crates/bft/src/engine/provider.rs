//! Gives a replica that has lost its state what it needs: a word for the latest snapshot, its bytes, and where to go on.

use super::message::{LONGEST_PART, Message};
use super::wires::Wire;
use super::{Mailbox, Runtime};
use crate::seat::{Durable, Seat};
use crate::snapshot::Snapshot;
use bytes::Buf;
use commonware_codec::Encode;
use commonware_consensus::marshal::Identifier;
use commonware_consensus::types::Height;
use commonware_p2p::{Receiver, Recipients, Sender};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Snapshots that are kept for those who are fetching them, while later ones are taken.
const MOST_KEPT: usize = 2;
/// How far below a snapshot a batch with a certificate of its own is looked for.
const FURTHEST: u64 = 10_000;

/// Answers until the network ends.
pub async fn provide<E: Runtime, S: Durable>(seat: Arc<Seat<S>>, order: Mailbox, (mut sender, mut receiver): Wire<E>) {
    let mut given: BTreeMap<u64, Snapshot> = BTreeMap::new();
    while let Ok((peer, mut message)) = receiver.recv().await {
        let bytes = message.copy_to_bytes(message.remaining());
        let answer = match Message::read(bytes) {
            Ok(Message::AskWord) => Some(word(&seat, &mut given)),
            Ok(Message::AskPart { height, offset }) => given.get(&height).and_then(|snapshot| part(snapshot, offset)),
            Ok(Message::AskFloor { height }) => floor(&order, height).await,
            // Answers that come too late, and what nobody understands.
            Ok(_) | Err(_) => None,
        };
        if let Some(answer) = answer {
            let _ = sender.send(Recipients::One(peer), answer.encoded(), false);
        }
    }
}

fn word<S: Durable>(seat: &Seat<S>, given: &mut BTreeMap<u64, Snapshot>) -> Message {
    let Some((snapshot, word)) = seat.snapshot() else { return Message::Word(None) };
    given.insert(snapshot.height, snapshot);
    if given.len() > MOST_KEPT {
        given.pop_first();
    }
    Message::Word(Some(word))
}

fn part(snapshot: &Snapshot, offset: u64) -> Option<Message> {
    let (total, from) = (snapshot.bytes.len(), usize::try_from(offset).ok()?);
    let bytes = snapshot.bytes.get(from..total.min(from.checked_add(LONGEST_PART)?))?;
    let bytes = snapshot.bytes.slice_ref(bytes);
    Some(Message::Part { height: snapshot.height, offset, total: total as u64, bytes })
}

async fn floor(order: &Mailbox, height: u64) -> Option<Message> {
    for at in (1..=height).rev().take(FURTHEST as usize) {
        let Some(finalization) = order.get_finalization(Height::new(at)).await else { continue };
        let batch = order.get_block(Identifier::Height(Height::new(at))).await?;
        return Some(Message::Floor { height, finalization: finalization.encode(), batch: batch.inner().encode() });
    }
    None
}
