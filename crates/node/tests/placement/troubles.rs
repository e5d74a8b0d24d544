//! Managers die, and the cell with them.

use super::{create, create_with, found, held, owner, points, settled, until};
use crate::cell::Nodes;
use std::time::Duration;
use tidings_client::placement::Placement;
use tidings_wire::{Body, v1};

/// The place of the living node that leads placement, and its epoch.
pub async fn leader(nodes: &Nodes) -> (usize, u64) {
    until("a node leads placement", async || {
        for at in (0..nodes.nodes.len()).filter(|at| nodes.nodes[*at].is_some()) {
            let status = v1::admin_message::Message::Status(v1::StatusRequest::default());
            let asked = Body::Admin(v1::AdminMessage { message: Some(status) });
            let request = tidings_client::Request::new(asked).within(Duration::from_secs(2));
            if let Ok(Body::Admin(v1::AdminMessage { message: Some(answer) })) = nodes.client(at).call(request).await
                && let v1::admin_message::Message::StatusReply(v1::StatusReply { placement: Some(said), .. }) = answer
                && said.role == "leading"
            {
                assert_eq!(said.leader, nodes.configs[at].listen.to_string());
                return Some((at, said.epoch));
            }
        }
        None
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_manager_costs_no_healthy_owner_anything() {
    const LEASE: Duration = Duration::from_secs(10);
    let mut nodes = found(3).await;
    create_with(&nodes.clients(), "objects", LEASE, Duration::from_millis(500)).await;
    let owners = [owner(nodes.clients(), "a"), owner(nodes.clients(), "b")];
    settled("two join", &[&owners[0], &owners[1]]).await;
    let before = [held(&owners[0]), held(&owners[1])];
    let (at, epoch) = leader(&nodes).await;
    nodes.kill(at).await;
    let (_, next) = leader(&nodes).await;
    assert!(next > epoch, "{next} after {epoch}");
    until("the new leader has renewed everything", async || {
        let fresh = |held: &tidings_client::placement::Held| held.remaining > LEASE - Duration::from_secs(1);
        owners.iter().all(|owner| owner.held().iter().all(fresh)).then_some(())
    })
    .await;
    // The same ranges under the same numbers.
    assert!([held(&owners[0]), held(&owners[1])] == before, "leases were lost");
    // And it goes on: a third one joins under the new leader.
    let third = owner(nodes.clients(), "c");
    settled("a third one joins under the new leader", &[&owners[0], &owners[1], &third]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_stop_when_the_cell_is_gone_for_longer_than_a_lease_and_go_on_by_themselves() {
    let mut nodes = found(3).await;
    create(&nodes.clients(), "objects").await;
    let one = owner(nodes.clients(), "one");
    settled("one joins", &[&one]).await;
    let highest = held(&one).iter().map(|leased| leased.lease).max().unwrap();
    // A minority is left, whoever leads.
    let (at, _) = leader(&nodes).await;
    let dead = [(at + 1) % 3, (at + 2) % 3];
    for at in dead {
        nodes.kill(at).await;
    }
    until("the owner has stopped", async || (points(&[&one]) == 0).then_some(())).await;
    for at in dead {
        nodes.restart(at).await;
    }
    settled("it goes on", &[&one]).await;
    assert!(held(&one).iter().all(|leased| leased.lease > highest), "what lapsed is never revived (F6)");
    let namespaces = Placement::new(nodes.clients()).namespaces().await.unwrap();
    assert_eq!(namespaces.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_in_order_hands_the_lead_over_at_once() {
    let mut nodes = found(3).await;
    create_with(&nodes.clients(), "objects", Duration::from_secs(8), super::RENEW).await;
    let one = owner(nodes.clients(), "one");
    settled("one joins", &[&one]).await;
    let before = held(&one);
    let (at, epoch) = leader(&nodes).await;
    nodes.nodes[at].take().unwrap().shutdown().await.unwrap();
    let stopped = std::time::Instant::now();
    let (_, next) = leader(&nodes).await;
    println!("another node leads after {:?}", stopped.elapsed());
    assert!(next > epoch);
    until("the next leader has renewed", async || {
        one.held().iter().all(|held| held.remaining > Duration::from_millis(7_300)).then_some(())
    })
    .await;
    assert!(held(&one) == before, "leases were lost");
}
