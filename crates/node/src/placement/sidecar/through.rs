//! The way of the sidecar's owners and lookups to the leader: through the gate, as their principal.

use super::Sidecar;
use super::beliefs::Beliefs;
use crate::clock::Clock;
use crate::principal::Principal;
use futures::future::BoxFuture;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::placement::{PlacementTransport, To};
use tidings_wire::v1::placement_message::Message;
use tidings_wire::{Body, error, v1};

/// The way of one principal's messages. It does not keep the node alive.
pub(super) struct Through {
    sidecar: Weak<Sidecar>,
    principal: Principal,
    beliefs: Arc<Beliefs>,
    clock: Arc<dyn Clock>,
}

impl Through {
    pub(super) fn new(
        sidecar: Weak<Sidecar>,
        principal: Principal,
        beliefs: Arc<Beliefs>,
        clock: Arc<dyn Clock>,
    ) -> Through {
        Through { sidecar, principal, beliefs, clock }
    }

    async fn carry(&self, message: v1::PlacementMessage) -> Result<v1::PlacementMessage, Error> {
        let forgets = || self.sidecar.upgrade().is_some_and(|sidecar| sidecar.forgets_beliefs.load(Ordering::Relaxed));
        if let Some(Message::OwnerPoll(poll)) = &message.message
            && !forgets()
        {
            // F12: what this poll releases, the application must not believe in any more.
            self.beliefs.within(&poll.claims, &*self.clock).await;
        }
        // Only the gate is kept while a poll is held, so that a sidecar that is dropped ends its owners.
        let gate = self.sidecar.upgrade().ok_or_else(|| error::unsent(&error::going_away(None)))?.gate.clone();
        match gate.call_anywhere(&self.principal, Body::Placement(message)).await? {
            Body::Placement(answer) => {
                if let Some(Message::OwnerAnswer(answer)) = &answer.message {
                    self.beliefs.lease_is(answer.lease_us);
                }
                Ok(answer)
            }
            _ => Err(Error::new("placement.malformed", Class::Failed, "the answer is none of placement")),
        }
    }
}

impl PlacementTransport for Through {
    /// Every node knows who leads, so asking one is asking all.
    fn call(
        &self,
        _: To,
        message: v1::PlacementMessage,
        within: Duration,
    ) -> BoxFuture<'_, Result<v1::PlacementMessage, Error>> {
        Box::pin(async move {
            let answer = tokio::time::timeout(within, self.carry(message)).await;
            answer.unwrap_or_else(|_| Err(error::deadline()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use tidings_base::{KeyRange, LeaseNumber, NodeId};
    use tidings_client::placement::{Held, Leased};

    #[tokio::test]
    async fn a_poll_that_releases_waits_until_the_application_believes_nothing_of_it() {
        let (beliefs, clock) = (Arc::new(Beliefs::default()), Arc::new(SystemClock));
        // Nobody is behind it: a message that leaves fails at once.
        let through = Through::new(Weak::new(), Principal::Node(NodeId(1)), beliefs.clone(), clock);
        let leased = Leased { range: KeyRange::FULL, lease: LeaseNumber::new(3).unwrap() };
        beliefs.tell(SystemClock.now().mono, || vec![Held { leased, remaining: Duration::from_secs(60) }]);
        let poll = |claims| {
            let poll = v1::OwnerPoll { claims, ..Default::default() };
            let message = v1::PlacementMessage { message: Some(Message::OwnerPoll(poll)) };
            through.call(To::Leader, message, Duration::from_secs(30))
        };
        let short = Duration::from_millis(50);
        assert!(tokio::time::timeout(short, poll(vec![leased.into()])).await.is_ok(), "it releases nothing");
        let mut releasing = poll(vec![]);
        assert!(tokio::time::timeout(short, &mut releasing).await.is_err(), "F12: the application believes in it");
        beliefs.clear();
        let left = tokio::time::timeout(Duration::from_secs(1), releasing).await.expect("it may leave now");
        assert!(left.is_err());
    }
}
