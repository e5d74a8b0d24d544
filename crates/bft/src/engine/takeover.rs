//! Takes a state over from the other replicas: f + 1 equal signed hashes make one (rule G), whoever sends its bytes.

use super::batch::Batch;
use super::message::Message;
use super::wires::Wire;
use super::{Finalization, Identity, Runtime, Scheme, engine_key, file_key};
use crate::mutant::Mutant;
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
/// Of so many looks that find no agreement one is told of: about one a minute.
const LOOKS_TOLD: u64 = 60 / WAIT.as_secs();

/// How others are asked, and heard.
pub trait Asks: Send {
    /// Asks somebody something. It may be lost.
    fn ask(&mut self, whom: Recipients<PublicKey>, message: Bytes);

    /// What comes next, and from whom; `None` if nothing comes any more.
    fn hear(&mut self) -> impl Future<Output = Option<(PublicKey, Bytes)>> + Send;
}

impl<E: Runtime> Asks for Wire<E> {
    fn ask(&mut self, whom: Recipients<PublicKey>, message: Bytes) {
        let _ = self.0.send(whom, message, false);
    }

    async fn hear(&mut self) -> Option<(PublicKey, Bytes)> {
        let (peer, mut message) = self.1.recv().await.ok()?;
        Some((peer, message.copy_to_bytes(message.remaining())))
    }
}

/// A state, and a batch that it has executed or that is the next one: the order goes on from there.
pub struct Taken {
    /// The state.
    pub snapshot: Snapshot,
    /// The word of enough replicas for the batch.
    pub floor: Finalization,
}

/// One who takes over.
pub struct Taker<'a, E, A> {
    context: E,
    identity: &'a Identity,
    scheme: &'a Scheme,
    wire: &'a mut A,
    mutant: Option<Mutant>,
}

impl<'a, E: Runtime, A: Asks> Taker<'a, E, A> {
    /// One who asks over this wire.
    pub fn new(context: E, identity: &'a Identity, scheme: &'a Scheme, wire: &'a mut A) -> Taker<'a, E, A> {
        Taker { context, identity, scheme, wire, mutant: None }
    }

    /// The same without a rule, for tests.
    #[doc(hidden)]
    pub fn without(self, mutant: Option<Mutant>) -> Taker<'a, E, A> {
        Taker { mutant, ..self }
    }

    /// Asks until a state is taken over, or f + 1 replicas have none yet: then the order is short, and is had from its
    /// beginning.
    pub async fn take(mut self) -> Option<Taken> {
        let mut looks = 0;
        loop {
            let Some((height, hash, by)) = self.words().await? else {
                if looks % LOOKS_TOLD == 0 {
                    tracing::warn!("no f + 1 replicas give their word for the same state: none is taken over yet");
                }
                looks += 1;
                continue;
            };
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
        let (mut tally, mut without) = (Tally::default().without(self.mutant), BTreeSet::new());
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
        self.wire.ask(to, message.encoded());
    }

    /// What comes within the time, until something is accepted.
    async fn answer<T>(&mut self, mut accept: impl FnMut(&PublicKey, Message) -> Option<T>) -> Option<T> {
        let over = self.context.sleep(WAIT);
        tokio::pin!(over);
        loop {
            tokio::select! {
                biased;
                () = &mut over => return None,
                received = self.wire.hear() => match received {
                    Some((peer, message)) => {
                        let message = Message::read(message);
                        if let Some(accepted) = message.ok().and_then(|message| accept(&peer, message)) {
                            return Some(accepted);
                        }
                    }
                    None => {
                        over.await;
                        return None;
                    }
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::message::LONGEST_PART;
    use crate::membership::Founded;
    use crate::membership::tests::group;
    use crate::snapshot::{Attestation, EVERY};
    use commonware_codec::Encode;
    use commonware_consensus::simplex::types::{Finalize, Proposal};
    use commonware_consensus::types::{Epoch, Round, View};
    use commonware_cryptography::Digested;
    use commonware_runtime::{Runner as _, deterministic};
    use commonware_utils::non_empty;
    use std::collections::VecDeque;
    use std::sync::Arc;

    fn identity(founded: &Founded, number: usize) -> Identity {
        Identity::new(Arc::new(founded.membership.clone()), &founded.replicas[number].secret, true).unwrap()
    }

    /// Empty batches up to a height.
    fn chain(founded: &Founded, height: u64) -> Vec<Digested<Batch>> {
        let mut all = vec![Batch::genesis(&founded.membership).digested()];
        (0..height as usize).for_each(|at| all.push(Batch::after(&all[at], Vec::new()).digested()));
        all
    }

    /// What three of a group say of a batch.
    fn word(founded: &Founded, batch: &Digested<Batch>) -> Finalization {
        let view = View::new(batch.inner().number());
        let proposal = Proposal::new(Round::new(Epoch::zero(), view), View::zero(), batch.digest());
        let schemes: Vec<Scheme> = (0..3).map(|number| identity(founded, number).scheme().unwrap()).collect();
        let votes: Vec<_> = schemes.iter().map(|scheme| Finalize::sign(scheme, proposal.clone()).unwrap()).collect();
        Finalization::from_finalizes(&schemes[0], non_empty![@votes.iter()], &Sequential).unwrap()
    }

    /// What the first replica says in place of the truth.
    #[derive(Clone, Debug, PartialEq)]
    enum Lie {
        /// Nothing.
        None,
        /// Other bytes of the snapshot.
        Part,
        /// This, for where to go on.
        Floor(Bytes, Bytes),
        /// Another state, further on, with the true word for where to go on.
        State(Snapshot),
    }

    /// Three replicas that are asked; the first one may lie.
    struct Three {
        founded: Founded,
        snapshot: Snapshot,
        floor: (Finalization, Batch),
        lie: Lie,
        answers: VecDeque<(PublicKey, Bytes)>,
        /// Who was asked for where to go on.
        asked: Vec<usize>,
    }

    impl Three {
        /// The state that this one gives its word for.
        fn state(&self, number: usize) -> &Snapshot {
            match &self.lie {
                Lie::State(state) if number == 0 => state,
                _ => &self.snapshot,
            }
        }

        fn answer(&mut self, number: usize, message: &Message) -> Message {
            let lies = number == 0;
            match *message {
                Message::AskPart { height, offset } => {
                    let state = self.state(number);
                    let end = state.bytes.len().min(offset as usize + LONGEST_PART);
                    let mut bytes = state.bytes[offset as usize..end].to_vec();
                    if lies && self.lie == Lie::Part {
                        bytes[0] ^= 1;
                    }
                    Message::Part { height, offset, total: state.bytes.len() as u64, bytes: bytes.into() }
                }
                Message::AskFloor { height } => {
                    self.asked.push(number);
                    let (finalization, batch) = match &self.lie {
                        Lie::Floor(finalization, batch) if lies => (finalization.clone(), batch.clone()),
                        _ => (self.floor.0.encode(), self.floor.1.encode()),
                    };
                    Message::Floor { height, finalization, batch }
                }
                _ => {
                    let secret = &self.founded.replicas[number].secret;
                    Message::Word(Some(Attestation::new(&self.founded.membership, secret, self.state(number))))
                }
            }
        }
    }

    impl Asks for Three {
        fn ask(&mut self, whom: Recipients<PublicKey>, message: Bytes) {
            let message = Message::read(message).unwrap();
            for number in 0..3 {
                let key = engine_key(&self.founded.membership.replicas()[number].key).unwrap();
                if matches!(&whom, Recipients::All) || matches!(&whom, Recipients::One(one) if *one == key) {
                    let answer = self.answer(number, &message).encoded();
                    self.answers.push_back((key, answer));
                }
            }
        }

        async fn hear(&mut self) -> Option<(PublicKey, Bytes)> {
            match self.answers.pop_front() {
                Some(heard) => Some(heard),
                None => std::future::pending().await,
            }
        }
    }

    /// Takes over from three of which the first one lies: whether what is taken is the truth, and who was asked where to go on.
    fn taken_without(
        mutant: Option<Mutant>,
        lie: impl FnOnce(&Founded, &[Digested<Batch>]) -> Lie,
    ) -> (bool, Vec<usize>) {
        let founded = group("one");
        let all = chain(&founded, EVERY + 2);
        let floor = (word(&founded, &all[EVERY as usize]), all[EVERY as usize].inner().clone());
        let snapshot = Snapshot::from_bytes(EVERY, Bytes::from(vec![7; LONGEST_PART + 100]));
        let lie = lie(&founded, &all);
        let (me, answers, asked) = (identity(&founded, 3), VecDeque::new(), Vec::new());
        let mut three = Three { founded, snapshot, floor, lie, answers, asked };
        let scheme = me.scheme().unwrap();
        let taken = deterministic::Runner::default().start(|context| async {
            let taker = Taker::new(context, &me, &scheme, &mut three).without(mutant);
            taker.take().await.unwrap()
        });
        (taken.snapshot == three.snapshot && taken.floor == three.floor.0, three.asked)
    }

    fn taken(lie: impl FnOnce(&Founded, &[Digested<Batch>]) -> Lie) -> Vec<usize> {
        let (is_true, asked) = taken_without(None, lie);
        assert!(is_true, "it is not what was agreed on");
        asked
    }

    #[test]
    fn one_replicas_word_for_a_state_is_not_enough() {
        let made_up = || Lie::State(Snapshot::from_bytes(2 * EVERY, Bytes::from_static(b"made up")));
        assert_eq!(taken(|_, _| made_up()), [1]);
        let (is_true, _) = taken_without(Some(Mutant::OneWordEnough), |_, _| made_up());
        assert!(!is_true, "the rule is what keeps it out");
    }

    #[test]
    fn what_the_first_says_is_taken_if_it_is_true() {
        assert_eq!(taken(|_, _| Lie::None), [0]);
    }

    #[test]
    fn other_bytes_than_the_agreed_ones_are_not_taken() {
        assert_eq!(taken(|_, _| Lie::Part), [1]);
    }

    #[test]
    fn another_batch_than_the_certified_one_is_not_taken() {
        let lie = |founded: &Founded, all: &[Digested<Batch>]| {
            Lie::Floor(word(founded, &all[EVERY as usize]).encode(), all[EVERY as usize - 1].inner().encode())
        };
        assert_eq!(taken(lie), [0, 1]);
    }

    #[test]
    fn a_batch_beyond_the_state_is_not_taken() {
        let lie = |founded: &Founded, all: &[Digested<Batch>]| {
            Lie::Floor(word(founded, &all[EVERY as usize + 2]).encode(), all[EVERY as usize + 2].inner().encode())
        };
        assert_eq!(taken(lie), [0, 1]);
    }

    #[test]
    fn a_certificate_of_others_is_not_taken() {
        let lie = |_: &Founded, all: &[Digested<Batch>]| {
            let batch = &all[EVERY as usize - 1];
            Lie::Floor(word(&group("two"), batch).encode(), batch.inner().encode())
        };
        assert_eq!(taken(lie), [0, 1]);
    }

    #[test]
    fn nonsense_is_not_taken() {
        let nonsense = Bytes::from_static(b"nonsense");
        assert_eq!(taken(|_, _| Lie::Floor(nonsense.clone(), nonsense)), [0, 1]);
    }
}
