//! Placement over real sockets: a manager that leads, owners, lookups, and what happens to them.

mod http;
mod leading;
mod owners;
mod troubles;

use crate::cell::{Nodes, STUCK, until};
use futures::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidings_base::Error;
use tidings_client::placement::{Leased, Owner, OwnerOptions, PlacementTransport, To};
use tidings_client::{Client, Request, Retry};
use tidings_node::Config;
use tidings_node::config::Time;
use tidings_node::hindrance::Hindrance;
use tidings_wire::v1::placement_message::Message;
use tidings_wire::{Body, v1};

/// Leases of the tests: as short as a cell session allows.
pub const LEASE: Duration = Duration::from_millis(2_500);
pub const RENEW: Duration = Duration::from_millis(400);

/// Nodes whose managers allow such leases: a healthy owner may lose them in a fail-over, which these tests do not mind
/// unless they say so.
pub async fn found(members: usize) -> Nodes {
    found_hindered(members, Hindrance::default()).await
}

/// The same of nodes that are made worse than they are.
pub async fn found_hindered(members: usize, worse: Hindrance) -> Nodes {
    let change = |config: &mut Config| {
        config.placement.session = Time::seconds(2);
        config.placement.fail_over = Time::millis(40);
        config.placement.round_trip = Time::millis(40);
    };
    Nodes::found_hindered(members, change, worse).await
}

/// Asks placement, once, following redirects.
pub async fn ask(client: &Client, message: Message) -> Result<Message, Error> {
    let body = Body::Placement(v1::PlacementMessage { message: Some(message) });
    let request = Request::new(body).within(Duration::from_secs(5)).retry(Retry::Redirected);
    match client.call(request).await? {
        Body::Placement(v1::PlacementMessage { message: Some(answer) }) => Ok(answer),
        other => panic!("not of placement: {other:?}"),
    }
}

/// Makes a namespace with short leases as soon as a manager leads.
pub async fn create(client: &Client, namespace: &str) {
    create_with(client, namespace, LEASE, RENEW).await;
}

/// The same with these leases.
pub async fn create_with(client: &Client, namespace: &str, lease: Duration, renew: Duration) {
    let ms = |time: Duration| time.as_millis() as u32;
    let config = v1::NamespaceConfig { lease_ms: ms(lease), renew_ms: ms(renew), ..Default::default() };
    let create = v1::NamespaceCreate { namespace: namespace.into(), config: Some(config) };
    until("a manager leads", async || match ask(client, Message::NamespaceCreate(create.clone())).await {
        Ok(Message::Done(_)) => Some(()),
        Ok(other) => panic!("not done: {other:?}"),
        Err(error) if error.code == "placement.namespace_exists" => Some(()),
        Err(error) if error.code.starts_with("placement.") && error.code != "placement.not_leader" => panic!("{error}"),
        Err(_) => None,
    })
    .await;
}

/// A connection that can be cut, as a crash or a partition does it: nothing passes, and nobody is told.
#[derive(Clone)]
pub struct Line {
    client: Client,
    cut: Arc<AtomicBool>,
}

impl Line {
    pub fn new(client: Client) -> Line {
        Line { client, cut: Arc::default() }
    }

    pub fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }
}

impl PlacementTransport for Line {
    fn call(
        &self,
        to: To,
        message: v1::PlacementMessage,
        within: Duration,
    ) -> BoxFuture<'_, Result<v1::PlacementMessage, Error>> {
        Box::pin(async move {
            let answer = match self.cut.load(Ordering::Relaxed) {
                true => Err(tidings_wire::error::deadline()),
                false => PlacementTransport::call(&self.client, to, message, within).await,
            };
            if self.cut.load(Ordering::Relaxed) {
                tokio::time::sleep(within).await;
                return Err(tidings_wire::error::deadline());
            }
            answer
        })
    }
}

/// An owner in `objects` that begins to join.
pub fn owner(transport: impl PlacementTransport, name: &str) -> Owner {
    Owner::start(transport, OwnerOptions::new("objects", name, format!("{name}.test:80"))).unwrap()
}

/// What an owner holds.
pub fn held(owner: &Owner) -> Vec<Leased> {
    owner.held().into_iter().map(|held| held.leased).collect()
}

/// How much of the ring owners hold together; more than all of it if two hold the same.
pub fn points(owners: &[&Owner]) -> u128 {
    owners.iter().flat_map(|owner| held(owner)).map(|leased| leased.range.len()).sum()
}

pub const RING: u128 = 1 << 64;

/// Waits until these owners hold the whole ring, each some of it.
pub async fn settled(what: &str, owners: &[&Owner]) {
    let settling = async {
        while owners.iter().any(|owner| held(owner).is_empty()) || points(owners) != RING {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(STUCK, settling).await.is_err() {
        let each = owners.iter().map(|owner| {
            let share = points(&[owner]) as f64 / RING as f64;
            format!(
                "{} {:?} {} ranges {share:.3} {:?}",
                owner.name(),
                owner.state(),
                held(owner).len(),
                owner.refusal()
            )
        });
        panic!("not settled: {what}: {}", each.collect::<Vec<_>>().join("; "));
    }
}
