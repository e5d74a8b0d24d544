//! What operators ask: namespaces, tables, owners, drains, rebalancing.

use super::errors;
use super::transport::PlacementTransport;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_placement::To;
use tidings_wire::v1::{self, placement_message::Message};
use tokio::time::{Instant, sleep};

/// How long a question may take: longer than the managers need to elect another leader.
const WITHIN: Duration = Duration::from_secs(15);

/// The pause after an attempt that found no leader.
const PAUSE: Duration = Duration::from_millis(250);

/// What operators ask of placement. Cheap to clone.
///
/// ```no_run
/// # use tidings_client::{Client, ClientConfig, placement::Placement};
/// # async fn example() -> Result<(), tidings_base::Error> {
/// let client = Client::connect(ClientConfig::new(["http://127.0.0.1:7400"])).await?;
/// let placement = Placement::new(client);
/// placement.create("counters", Default::default()).await?;
/// for owner in placement.owners("counters").await? {
///     println!("{:?}: {} ranges", owner.owner, owner.ranges);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Placement {
    transport: Arc<dyn PlacementTransport>,
    within: Duration,
}

impl Placement {
    /// Asks over a connection, or anything else that reaches the managers.
    pub fn new(transport: impl PlacementTransport) -> Placement {
        Placement { transport: Arc::new(transport), within: WITHIN }
    }

    /// The same with this much time for each question, retries included.
    pub fn within(mut self, within: Duration) -> Placement {
        self.within = within;
        self
    }

    /// All namespaces.
    pub async fn namespaces(&self) -> Result<Vec<v1::NamespaceInfo>, Error> {
        match self.ask(Message::NamespaceList(v1::NamespaceList {})).await? {
            Message::NamespaceListReply(reply) => Ok(reply.namespaces),
            _ => Err(errors::unexpected()),
        }
    }

    /// Makes a namespace; zero or empty fields of its configuration stand for the defaults.
    pub async fn create(&self, namespace: &str, config: v1::NamespaceConfig) -> Result<(), Error> {
        let create = v1::NamespaceCreate { namespace: namespace.into(), config: Some(config) };
        self.done(Message::NamespaceCreate(create)).await
    }

    /// Deletes a namespace. What its owners hold runs out.
    pub async fn delete(&self, namespace: &str) -> Result<(), Error> {
        self.done(Message::NamespaceDelete(v1::NamespaceDelete { namespace: namespace.into() })).await
    }

    /// The whole table of a namespace.
    pub async fn table(&self, namespace: &str) -> Result<v1::TableReply, Error> {
        let mut whole = v1::TableReply::default();
        loop {
            let get = v1::TableGet { namespace: namespace.into(), from: whole.next };
            match self.ask(Message::TableGet(get)).await? {
                Message::TableReply(part) => add_part(&mut whole, part),
                _ => return Err(errors::unexpected()),
            }
            if whole.next == 0 {
                return Ok(whole);
            }
        }
    }

    /// All owners of a namespace that are known, live or not.
    pub async fn owners(&self, namespace: &str) -> Result<Vec<v1::OwnerInfo>, Error> {
        let (mut owners, mut from) = (Vec::new(), 0);
        loop {
            match self.ask(Message::OwnerList(v1::OwnerList { namespace: namespace.into(), from })).await? {
                Message::OwnerListReply(part) => {
                    owners.extend(part.owners);
                    // Owners come in the order of their indices.
                    if part.next <= from {
                        return Ok(owners);
                    }
                    from = part.next;
                }
                _ => return Err(errors::unexpected()),
            }
        }
    }

    /// Has everything of an owner moved away.
    pub async fn drain(&self, namespace: &str, owner: &str) -> Result<(), Error> {
        self.drain_or_not(namespace, owner, false).await
    }

    /// Takes an owner back into service.
    pub async fn cancel_drain(&self, namespace: &str, owner: &str) -> Result<(), Error> {
        self.drain_or_not(namespace, owner, true).await
    }

    async fn drain_or_not(&self, namespace: &str, owner: &str, cancel: bool) -> Result<(), Error> {
        let drain = v1::OwnerDrain { namespace: namespace.into(), owner: owner.into(), cancel };
        self.done(Message::OwnerDrain(drain)).await
    }

    /// Lets the namespace's policy act on what was measured, or tells what it would do.
    pub async fn rebalance(&self, namespace: &str, dry_run: bool) -> Result<v1::RebalanceReply, Error> {
        match self.ask(Message::Rebalance(v1::Rebalance { namespace: namespace.into(), dry_run })).await? {
            Message::RebalanceReply(reply) => Ok(reply),
            _ => Err(errors::unexpected()),
        }
    }

    async fn done(&self, message: Message) -> Result<(), Error> {
        match self.ask(message).await? {
            Message::Done(_) => Ok(()),
            _ => Err(errors::unexpected()),
        }
    }

    /// Asks whoever leads, and waits for a leader if there is none.
    async fn ask(&self, message: Message) -> Result<Message, Error> {
        let deadline = Instant::now() + self.within;
        let mut hopeless = 0;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let message = v1::PlacementMessage { message: Some(message.clone()) };
            match self.transport.call(To::Leader, message, left).await {
                Ok(answer) => return answer.message.ok_or_else(errors::unexpected),
                // Nothing happened: somebody may lead in a moment.
                Err(error) if error.class == Class::Unreachable && Instant::now() + PAUSE < deadline => {
                    hopeless += usize::from(error.lacks_majority());
                    if hopeless >= self.transport.ways() {
                        return Err(error);
                    }
                    sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Adds a part to a table that one frame does not hold. Each part names the owners of its ranges anew.
pub fn add_part(whole: &mut v1::TableReply, part: v1::TableReply) {
    let known: BTreeSet<u32> = whole.owners.iter().map(|owner| owner.index).collect();
    whole.owners.extend(part.owners.into_iter().filter(|owner| !known.contains(&owner.index)));
    whole.ranges.extend(part.ranges);
    whole.info = part.info;
    // Parts follow each other around the ring: one that does not is the last.
    whole.next = if part.next > whole.next { part.next } else { 0 };
}
