//! What a replica proposes, and what it votes for.
//!
//! One whose pool is closed has no part in batches with commands, nor in any that follows one at which a snapshot is due, unless
//! it has executed one that does: so that one is final. Once f + 1 honest ones are closed, the order ends there, with the same
//! state at all of them. (Not only its parent counts: simplex builds on any batch that was certified, and one with commands may
//! have been, just after the due one and just before the replicas were closed.)

use super::batch::{Batch, LONGEST_BODY};
use super::{Digest, Scheme};
use crate::command::{Name, Signed};
use crate::keys::Purpose;
use crate::membership::Membership;
use crate::mutant::Mutant;
use crate::pool::Pool;
use crate::snapshot::EVERY;
use commonware_consensus::Application;
use commonware_consensus::marshal::ancestry::Ancestry;
use commonware_consensus::simplex::types::Context;
use commonware_cryptography::Digested;
use commonware_cryptography::ed25519::PublicKey;
use commonware_runtime::Clock;
use futures::StreamExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How many batches back a proposer looks for commands that are under way. One that is further behind may propose a command
/// again, which costs room and is executed once.
const FURTHEST: u64 = 256;

/// Proposes what waits in the pool, and votes for batches of signed commands.
#[derive(Clone)]
pub struct Proposer {
    membership: Arc<Membership>,
    pool: Arc<Pool>,
    patience: Duration,
    mutant: Option<Mutant>,
}

impl Proposer {
    /// One that waits so long for a command before it proposes an empty batch: less than a leader is given.
    pub fn new(membership: Arc<Membership>, pool: Arc<Pool>, patience: Duration) -> Proposer {
        Proposer { membership, pool, patience, mutant: None }
    }

    /// The same without a rule, for tests.
    #[doc(hidden)]
    pub fn without(self, mutant: Option<Mutant>) -> Proposer {
        Proposer { mutant, ..self }
    }

    /// Whether a replica may vote for it (rule G).
    fn acceptable(&self, batch: &Batch) -> bool {
        if self.pool.is_closed() && (!batch.commands().is_empty() || self.is_beyond(batch.number())) {
            return false;
        }
        let signed: BTreeMap<Name, &Signed> = batch.commands().iter().map(|signed| (signed.name(), signed)).collect();
        let is_signed = |signed: &Signed| {
            let ignored = self.mutant == Some(Mutant::SignatureIgnored);
            self.pool.knows(signed) || signed.verify(&self.membership, Purpose::Order) || ignored
        };
        let known = |command: &tidings_sketch::replica::Command| {
            signed.get(&(command.client, command.nonce)).is_some_and(|signed| is_signed(signed))
        };
        let acceptable = batch.ordered().check(LONGEST_BODY, known).is_ok();
        // What was verified here is known when its client, or whoever passes it on, brings it.
        if acceptable && batch.number() > self.pool.height() {
            for signed in batch.commands() {
                self.pool.add(signed.clone());
            }
        }
        acceptable
    }

    /// Whether a closed order ends before the batch of this number: somewhere from the last one that is executed here up to the
    /// one before it, a snapshot is due. Heights have no gaps, and what is executed is final; so nothing in between is looked at.
    fn is_beyond(&self, number: u64) -> bool {
        number > self.pool.height().max(1).next_multiple_of(EVERY)
    }
}

impl<E: Clock> Application<E> for Proposer {
    type SigningScheme = Scheme;
    type Context = Context<Digest, PublicKey>;
    type Block = Batch;
    type Input = ();

    /// Takes nothing out of the pool: a proposal may be called off, and a view may come to nothing.
    async fn propose(
        &mut self,
        (clock, _): (E, Self::Context),
        mut ancestry: impl Ancestry<Batch>,
        (): (),
    ) -> Option<Digested<Batch>> {
        let parent = ancestry.next().await?;
        if self.pool.is_closed() {
            let next = Batch::after(&parent, Vec::new());
            return (!self.is_beyond(next.number())).then(|| next.digested());
        }
        let (mut under_way, mut next) = (BTreeSet::new(), Some(parent.clone()));
        let lowest = self.pool.height().max(parent.inner().number().saturating_sub(FURTHEST));
        // What is in batches that are not executed yet is not proposed again.
        while let Some(batch) = next.filter(|batch| batch.inner().number() > lowest) {
            under_way.extend(batch.inner().commands().iter().map(Signed::name));
            next = ancestry.next().await;
        }
        let over = clock.sleep(self.patience);
        tokio::pin!(over);
        loop {
            let arrival = self.pool.arrival();
            let picked = self.pool.pick(&under_way, LONGEST_BODY);
            if !picked.is_empty() {
                return Some(Batch::after(&parent, picked).digested());
            }
            tokio::select! {
                biased;
                () = arrival => {}
                () = &mut over => return Some(Batch::after(&parent, Vec::new()).digested()),
            }
        }
    }

    async fn verify(&mut self, _: (E, Self::Context), mut ancestry: impl Ancestry<Batch>) -> bool {
        match ancestry.next().await {
            Some(batch) => self.acceptable(batch.inner()),
            // The engine ends: not to answer is to abstain.
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::engine_key;
    use crate::membership::tests::group;
    use bytes::Bytes;
    use commonware_consensus::marshal::ancestry::from_iter;
    use commonware_consensus::types::{Epoch, Round, View};
    use commonware_cryptography::Digestible as _;
    use commonware_runtime::{Runner as _, Supervisor as _, deterministic};
    use tidings_sketch::replica::Command;

    #[test]
    fn unsigned_and_repeated_commands_are_not_voted_for() {
        let founded = group("one");
        let membership = Arc::new(founded.membership.clone());
        let proposer = Proposer::new(membership.clone(), Arc::default(), Duration::ZERO);
        let genesis = Batch::genesis(&membership).digested();
        let signed = |nonce| {
            let command = Command { client: 1, nonce, request: Bytes::from_static(b"put") };
            Signed::new(&membership, &founded.clients[0].secret, Purpose::Order, command)
        };
        let forged = Signed { signature: signed(2).signature, ..signed(1) };
        assert!(proposer.acceptable(&Batch::after(&genesis, vec![signed(1), signed(2)])));
        let pool = &proposer.pool;
        assert!(pool.knows(&signed(1)) && pool.knows(&signed(2)), "what was verified is not verified again");
        pool.executed(1, [signed(1).name(), signed(2).name()]);
        assert!(proposer.acceptable(&Batch::after(&genesis, vec![signed(3)])) && pool.is_empty(), "executed already");
        assert!(proposer.acceptable(&Batch::after(&genesis, Vec::new())));
        assert!(!proposer.acceptable(&Batch::after(&genesis, vec![signed(1), signed(1)])));
        let forged = Batch::after(&genesis, vec![signed(2), forged]);
        assert!(!proposer.acceptable(&forged));
        assert!(proposer.without(Some(Mutant::SignatureIgnored)).acceptable(&forged), "the rule is what keeps it out");
    }

    /// So many empty batches, one after the other, with the genesis before them.
    fn chain(membership: &Membership, length: u64) -> Vec<Digested<Batch>> {
        let mut all = vec![Batch::genesis(membership).digested()];
        for at in 0..length as usize {
            all.push(Batch::after(&all[at], Vec::new()).digested());
        }
        all
    }

    #[test]
    fn who_is_closed_votes_for_no_commands_and_for_nothing_after_a_snapshot() {
        let founded = group("one");
        let membership = Arc::new(founded.membership.clone());
        let pool = Arc::new(Pool::default());
        let proposer = Proposer::new(membership.clone(), pool.clone(), Duration::ZERO);
        let command = Command { client: 1, nonce: 1, request: Bytes::from_static(b"put") };
        let signed = Signed::new(&membership, &founded.clients[0].secret, Purpose::Order, command);
        let all = chain(&membership, 2 * EVERY + 2);
        let busy = Batch::after(&all[0], vec![signed.clone()]);
        assert!(proposer.acceptable(&busy));
        pool.close();
        assert!(!proposer.acceptable(&busy));
        assert_eq!(pool.add(signed), crate::pool::Added::Full);
        // What was certified after the due one before all were closed, and is not final, may not become so by what is built on it.
        for (executed, last) in [(0, EVERY), (EVERY - 1, EVERY), (EVERY, EVERY), (EVERY + 1, 2 * EVERY)] {
            pool.executed(executed, []);
            for batch in all.iter().skip(1).map(Digested::inner) {
                let number = batch.number();
                assert_eq!(proposer.acceptable(batch), number <= last, "{number} after {executed} were executed");
            }
        }
    }

    #[test]
    fn who_is_closed_proposes_nothing_with_commands_and_nothing_after_a_snapshot() {
        let founded = group("one");
        let membership = Arc::new(founded.membership.clone());
        let pool = Arc::new(Pool::default());
        let proposer = Proposer::new(membership.clone(), pool.clone(), Duration::ZERO);
        let command = Command { client: 1, nonce: 1, request: Bytes::from_static(b"put") };
        let signed = Signed::new(&membership, &founded.clients[0].secret, Purpose::Order, command);
        let all = chain(&membership, EVERY + 2);
        deterministic::Runner::default().start(|clock| async move {
            let leader = engine_key(&membership.replicas()[0].key).unwrap();
            let proposed = async |at: u64| {
                let parents: Vec<_> = all[..=at as usize].iter().rev().cloned().collect();
                let parent = (View::zero(), parents[0].digest());
                let context =
                    Context { round: Round::new(Epoch::zero(), View::new(at + 1)), leader: leader.clone(), parent };
                let proposed = proposer.clone().propose((clock.child("clock"), context), from_iter(parents), ()).await;
                proposed.map(|batch| (batch.inner().number(), batch.inner().commands().len()))
            };
            pool.add(signed);
            assert_eq!(proposed(0).await, Some((1, 1)));
            pool.close();
            assert_eq!(proposed(0).await, Some((1, 0)), "what waits is left");
            for (executed, last) in [(0, EVERY - 1), (EVERY, EVERY - 1), (EVERY + 1, EVERY + 2)] {
                pool.executed(executed, []);
                for at in [EVERY - 1, EVERY, EVERY + 1, EVERY + 2] {
                    let expected = (at <= last).then_some((at + 1, 0));
                    assert_eq!(proposed(at).await, expected, "on {at} after {executed} were executed");
                }
            }
        });
    }
}
