//! Takes a state over from the other replicas: f + 1 equal signed hashes make one (rule G), whoever sends its bytes.

use super::batch::Batch;
use super::message::{LONGEST_PART, Message};
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
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_sketch::ReplicaId;

/// How long answers are waited for.
const WAIT: Duration = Duration::from_secs(2);
/// How often one part is asked for.
const ATTEMPTS: usize = 3;
/// How long one replica may take to send a snapshot: so long for any, and so long for each of its parts, which come as fast
/// over a line of 8 Mbit/s.
const COPY: Duration = Duration::from_secs(10);
const COPY_OF_A_PART: Duration = Duration::from_millis(250);
/// How often that time is doubled for a replica that has failed before: its line may be slower.
const MOST_DOUBLED: u32 = 6;
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
    /// How often each has begun to send a snapshot, and has not sent in time what was agreed on.
    failed: BTreeMap<PublicKey, u32>,
    mutant: Option<Mutant>,
}

impl<'a, E: Runtime, A: Asks> Taker<'a, E, A> {
    /// One who asks over this wire.
    pub fn new(context: E, identity: &'a Identity, scheme: &'a Scheme, wire: &'a mut A) -> Taker<'a, E, A> {
        Taker { context, identity, scheme, wire, failed: BTreeMap::new(), mutant: None }
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
            let Some((height, hash, mut by)) = self.words().await? else {
                if looks % LOOKS_TOLD == 0 {
                    tracing::warn!("no f + 1 replicas give their word for the same state: none is taken over yet");
                }
                looks += 1;
                continue;
            };
            // While one takes its time, the others may go on so far that nothing follows on this state: whoever took it in vain is
            // asked last.
            by.sort_by_key(|peer| self.failed.get(peer).copied());
            for peer in by {
                let Some(snapshot) = self.snapshot(&peer, height, hash).await else {
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

    /// The snapshot with this hash, if this replica sends it in time.
    async fn snapshot(&mut self, from: &PublicKey, height: u64, hash: [u8; 32]) -> Option<Snapshot> {
        let (total, first) = self.part(from, height, 0).await?;
        let total = usize::try_from(total).ok().filter(|total| *total <= LONGEST)?;
        let failed = self.failed.get(from).copied().unwrap_or(0);
        let over = self.context.sleep(patience(total) * 2u32.pow(failed.min(MOST_DOUBLED)));
        tokio::pin!(over);
        let copied = tokio::select! {
            biased;
            () = &mut over => None,
            copied = self.copy(from, height, total, first) => copied.filter(|snapshot| snapshot.hash == hash),
        };
        if copied.is_none() {
            self.failed.insert(from.clone(), failed + 1);
        }
        copied
    }

    /// The parts, each as long as it can be: with shorter ones a liar could go on for ever.
    async fn copy(&mut self, from: &PublicKey, height: u64, total: usize, first: Bytes) -> Option<Snapshot> {
        let (mut bytes, mut part) = (BytesMut::new(), first);
        loop {
            if part.len() != LONGEST_PART.min(total - bytes.len()) {
                return None;
            }
            bytes.extend_from_slice(&part);
            if bytes.len() == total {
                return Some(Snapshot::from_bytes(height, bytes.freeze()));
            }
            let (of, next) = self.part(from, height, bytes.len() as u64).await?;
            if of != total as u64 {
                return None;
            }
            part = next;
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

/// How long the bytes of a snapshot may take that is so long.
fn patience(total: usize) -> Duration {
    COPY + COPY_OF_A_PART * total.div_ceil(LONGEST_PART) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::Founded;
    use crate::membership::tests::group;
    use crate::snapshot::{Attestation, EVERY};
    use commonware_codec::Encode;
    use commonware_consensus::simplex::types::{Finalize, Proposal};
    use commonware_consensus::types::{Epoch, Round, View};
    use commonware_cryptography::Digested;
    use commonware_runtime::{Clock as _, Runner as _, Supervisor as _, deterministic};
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
        /// The bytes, one at a time.
        Drip,
        /// The bytes, each part when it is almost given up; and who is asked after that has nothing any more for where to go on.
        Late,
        /// This, for where to go on.
        Floor(Bytes, Bytes),
        /// Another state, further on, with the true word for where to go on.
        State(Snapshot),
    }

    /// Three replicas that are asked; the first one may lie.
    struct Three {
        clock: deterministic::Context,
        founded: Founded,
        snapshot: Snapshot,
        floor: (Finalization, Batch),
        lie: Lie,
        answers: VecDeque<(usize, PublicKey, Bytes)>,
        /// Who was asked for the snapshot.
        begun: Vec<usize>,
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
                    if offset == 0 {
                        self.begun.push(number);
                    }
                    let state = self.state(number);
                    let length = if lies && self.lie == Lie::Drip { 1 } else { LONGEST_PART };
                    let end = state.bytes.len().min(offset as usize + length);
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
                        Lie::Late if self.asked.len() == 1 => (Bytes::new(), Bytes::new()),
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
                    self.answers.push_back((number, key, answer));
                }
            }
        }

        async fn hear(&mut self) -> Option<(PublicKey, Bytes)> {
            let is_part = |answer: &Bytes| matches!(Message::read(answer.clone()), Ok(Message::Part { .. }));
            if self.lie == Lie::Late && self.answers.front().is_some_and(|(by, _, answer)| *by == 0 && is_part(answer))
            {
                self.clock.sleep(WAIT - Duration::from_millis(100)).await;
            }
            match self.answers.pop_front() {
                Some((_, key, answer)) => Some((key, answer)),
                None => std::future::pending().await,
            }
        }
    }

    /// Takes over from three of which the first one lies: whether what is taken is the truth, who was asked for it, and who where
    /// to go on.
    fn taken_without(
        mutant: Option<Mutant>,
        lie: impl FnOnce(&Founded, &[Digested<Batch>]) -> Lie,
    ) -> (bool, Vec<usize>, Vec<usize>) {
        let founded = group("one");
        let all = chain(&founded, EVERY + 2);
        let floor = (word(&founded, &all[EVERY as usize]), all[EVERY as usize].inner().clone());
        let snapshot = Snapshot::from_bytes(EVERY, Bytes::from(vec![7; 7 * LONGEST_PART + 100]));
        let lie = lie(&founded, &all);
        let me = identity(&founded, 3);
        let scheme = me.scheme().unwrap();
        deterministic::Runner::default().start(|context| async move {
            let (clock, answers, begun, asked) = (context.child("clock"), VecDeque::new(), Vec::new(), Vec::new());
            let mut three = Three { clock, founded, snapshot, floor, lie, answers, begun, asked };
            let taker = Taker::new(context, &me, &scheme, &mut three).without(mutant);
            let taken = taker.take().await.unwrap();
            (taken.snapshot == three.snapshot && taken.floor == three.floor.0, three.begun, three.asked)
        })
    }

    fn taken(lie: impl FnOnce(&Founded, &[Digested<Batch>]) -> Lie) -> Vec<usize> {
        let (is_true, _, asked) = taken_without(None, lie);
        assert!(is_true, "it is not what was agreed on");
        asked
    }

    #[test]
    fn one_replicas_word_for_a_state_is_not_enough() {
        let made_up = || Lie::State(Snapshot::from_bytes(2 * EVERY, Bytes::from_static(b"made up")));
        assert_eq!(taken(|_, _| made_up()), [1]);
        let (is_true, ..) = taken_without(Some(Mutant::OneWordEnough), |_, _| made_up());
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
    fn parts_that_are_shorter_than_they_could_be_are_not_taken() {
        assert_eq!(taken(|_, _| Lie::Drip), [1]);
    }

    /// With each part almost as late as it may be, a gibibyte would take hours, and all of it could be another one's bytes.
    #[test]
    fn who_sends_late_is_given_up_and_asked_last() {
        let (is_true, begun, asked) = taken_without(None, |_, _| Lie::Late);
        assert!(is_true, "it is not what was agreed on");
        assert_eq!((begun, asked), (vec![0, 1, 1], vec![1, 1]));
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
