//! Takes a state over from the other replicas: f + 1 equal signed hashes make one (rule G), whoever sends its bytes.

use super::batch::Batch;
use super::message::Message;
use super::wires::Wire;
use super::{Finalization, Identity, Runtime, Scheme, engine_key, file_key};
use crate::snapshot::{LONGEST, Snapshot, Tally};
use bytes::{Buf, Bytes, BytesMut};
use commonware_codec::{Decode, DecodeExt};
use commonware_cryptography::Digestible;
use commonware_cryptography::certificate::Verifier;
use commonware_cryptography::ed25519::PublicKey;
use commonware_p2p::{Receiver, Recipients, Sender};
use commonware_parallel::Sequential;
use std::collections::BTreeSet;
use std::time::Duration;
use tidings_sketch::ReplicaId;

/// How long answers are waited for.
const WAIT: Duration = Duration::from_secs(2);
/// How often one part is asked for.
const ATTEMPTS: usize = 3;

/// A state, and a batch that it has executed or that is the next one: the order goes on from there.
pub struct Taken {
    /// The state.
    pub snapshot: Snapshot,
    /// The word of enough replicas for the batch.
    pub floor: Finalization,
}

/// One who takes over.
pub struct Taker<'a, E: Runtime> {
    context: E,
    identity: &'a Identity,
    scheme: &'a Scheme,
    wire: &'a mut Wire<E>,
}

impl<'a, E: Runtime> Taker<'a, E> {
    /// One who asks over this wire.
    pub fn new(context: E, identity: &'a Identity, scheme: &'a Scheme, wire: &'a mut Wire<E>) -> Taker<'a, E> {
        Taker { context, identity, scheme, wire }
    }

    /// Asks until a state is taken over, or f + 1 replicas have none yet: then the order is short, and is had from its
    /// beginning.
    pub async fn take(mut self) -> Option<Taken> {
        loop {
            let Some((height, hash, by)) = self.words().await? else { continue };
            for peer in by {
                let Some(snapshot) = self.snapshot(&peer, height).await.filter(|snapshot| snapshot.hash == hash) else {
                    tracing::warn!(%peer, height, "a replica does not send the snapshot it gave its word for");
                    continue;
                };
                if let Some(floor) = self.floor(&peer, height).await {
                    return Some(Taken { snapshot, floor });
                }
            }
        }
    }

    /// A state that enough have given their word for, and who they are. `None`: enough have none. `Some(None)`: neither.
    #[allow(clippy::option_option)]
    async fn words(&mut self) -> Option<Option<(u64, [u8; 32], Vec<PublicKey>)>> {
        let group = self.identity.group.clone();
        let (mut tally, mut without) = (Tally::default(), BTreeSet::new());
        self.send(Recipients::All, &Message::AskWord);
        let agreed = self
            .answer(|peer, message| {
                let by = group.replica(&file_key(peer))?;
                match message {
                    Message::Word(Some(word)) => {
                        tally.add(&group, by, word);
                    }
                    Message::Word(None) => {
                        without.insert(by);
                    }
                    _ => {}
                }
                tally.agreed(&group)
            })
            .await;
        let key = |by: &ReplicaId| engine_key(&group.replicas()[usize::from(by.0)].key).ok();
        match agreed {
            Some((height, hash, by)) => Some(Some((height, hash, by.iter().filter_map(key).collect()))),
            None if without.len() > usize::from(group.faults()) => None,
            None => Some(None),
        }
    }

    async fn snapshot(&mut self, from: &PublicKey, height: u64) -> Option<Snapshot> {
        let mut bytes = BytesMut::new();
        loop {
            let offset = bytes.len() as u64;
            let (total, part) = self.part(from, height, offset).await?;
            bytes.extend_from_slice(&part);
            if bytes.len() as u64 >= total {
                return Some(Snapshot::from_bytes(height, bytes.freeze()));
            }
            if part.is_empty() || bytes.len() > LONGEST {
                return None;
            }
        }
    }

    async fn part(&mut self, from: &PublicKey, height: u64, offset: u64) -> Option<(u64, Bytes)> {
        for _ in 0..ATTEMPTS {
            self.send(Recipients::One(from.clone()), &Message::AskPart { height, offset });
            let part = self.answer(|peer, message| match message {
                Message::Part { height: of, offset: at, total, bytes }
                    if peer == from && of == height && at == offset =>
                {
                    Some((total, bytes))
                }
                _ => None,
            });
            if let Some(part) = part.await {
                return Some(part);
            }
        }
        None
    }

    async fn floor(&mut self, from: &PublicKey, height: u64) -> Option<Finalization> {
        self.send(Recipients::One(from.clone()), &Message::AskFloor { height });
        let said = self.answer(|peer, message| match message {
            Message::Floor { height: of, finalization, batch } if peer == from && of == height => {
                Some((finalization, batch))
            }
            _ => None,
        });
        let (finalization, batch) = said.await?;
        let finalization = Finalization::decode_cfg(finalization, &self.scheme.certificate_codec_config()).ok()?;
        let batch = Batch::decode(batch).ok()?;
        let fits = batch.digest() == finalization.proposal.payload && batch.number() <= height + 1;
        let mut rng = self.context.child("words");
        (fits && finalization.verify(&mut rng, self.scheme, &Sequential)).then_some(finalization)
    }

    fn send(&mut self, to: Recipients<PublicKey>, message: &Message) {
        let _ = self.wire.0.send(to, message.encoded(), false);
    }

    /// What comes within the time, until something is accepted.
    async fn answer<T>(&mut self, mut accept: impl FnMut(&PublicKey, Message) -> Option<T>) -> Option<T> {
        let over = self.context.sleep(WAIT);
        tokio::pin!(over);
        loop {
            tokio::select! {
                biased;
                () = &mut over => return None,
                received = self.wire.1.recv() => match received {
                    Ok((peer, mut message)) => {
                        let message = Message::read(message.copy_to_bytes(message.remaining()));
                        if let Some(accepted) = message.ok().and_then(|message| accept(&peer, message)) {
                            return Some(accepted);
                        }
                    }
                    Err(_) => {
                        over.await;
                        return None;
                    }
                },
            }
        }
    }
}
