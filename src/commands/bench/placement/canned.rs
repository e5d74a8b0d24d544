//! A manager that says always the same: what the library's calls cost is measured on an owner and a lookup that have heard it.

use futures::future::BoxFuture;
use std::time::Duration;
use tidings_base::Error;
use tidings_client::placement::{PlacementTransport, To};
use tidings_wire::v1::{self, placement_message::Message};

/// For so long what it leases is held: longer than anything is measured.
const LEASE: Duration = Duration::from_secs(3_600);

/// What it says.
pub struct Canned {
    /// The whole table, for lookups.
    pub table: v1::LookupAnswer,
    /// What an owner holds.
    pub leases: Vec<v1::LeasedRange>,
}

impl Canned {
    /// The answer to a message, if it gets one: what tells of nothing new is held for ever.
    fn answer(&self, message: Message) -> Option<Message> {
        match message {
            Message::LookupPoll(poll) if poll.lsn == 0 => Some(Message::LookupAnswer(self.table.clone())),
            Message::OwnerPoll(poll) if poll.claims.is_empty() => {
                let hello = poll.epoch == 0;
                let grant = |range: &v1::LeasedRange| v1::Grant { range: Some(*range), ..Default::default() };
                Some(Message::OwnerAnswer(v1::OwnerAnswer {
                    epoch: 1,
                    nonce: poll.nonce,
                    seq: poll.heard + 1,
                    heard: poll.seq,
                    hello,
                    grants: self.leases.iter().filter(|_| !hello).map(grant).collect(),
                    lease_us: LEASE.as_micros() as u64,
                    ..Default::default()
                }))
            }
            _ => None,
        }
    }
}

impl PlacementTransport for Canned {
    fn call(
        &self,
        _: To,
        message: v1::PlacementMessage,
        within: Duration,
    ) -> BoxFuture<'_, Result<v1::PlacementMessage, Error>> {
        Box::pin(async move {
            match message.message.and_then(|message| self.answer(message)) {
                Some(message) => Ok(v1::PlacementMessage { message: Some(message) }),
                None => {
                    tokio::time::sleep(within).await;
                    Err(tidings_wire::error::deadline())
                }
            }
        })
    }
}
