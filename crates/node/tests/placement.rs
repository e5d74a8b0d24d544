//! Placement over real sockets: a manager that leads, owners, lookups, and what happens to them.

mod leading;

use crate::cell::{Nodes, until};
use std::time::Duration;
use tidings_base::Error;
use tidings_client::{Client, Request, Retry};
use tidings_node::config::Time;
use tidings_wire::v1::placement_message::Message;
use tidings_wire::{Body, v1};

/// Leases of the tests: as short as a cell session allows.
pub const LEASE: Duration = Duration::from_millis(2_500);
pub const RENEW: Duration = Duration::from_millis(400);

/// Nodes whose managers allow such leases: a healthy owner may lose them in a fail-over, which these tests do not mind
/// unless they say so.
pub async fn found(members: usize) -> Nodes {
    Nodes::found_with(members, |config| {
        config.placement.session = Time::seconds(1);
        config.placement.fail_over = Time::millis(500);
        config.placement.round_trip = Time::millis(100);
    })
    .await
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

/// Makes a namespace as soon as a manager leads.
pub async fn create(client: &Client, namespace: &str) {
    let ms = |time: Duration| time.as_millis() as u32;
    let config = v1::NamespaceConfig { lease_ms: ms(LEASE), renew_ms: ms(RENEW), ..Default::default() };
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
