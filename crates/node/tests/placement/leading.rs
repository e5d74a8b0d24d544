//! A node leads, answers owners, lookups and operators, and the others say who it is.

use super::troubles::leader;
use super::{ask, create, found, until};
use std::time::Duration;
use tidings_client::placement::{PlacementTransport, To};
use tidings_client::{Request, Retry};
use tidings_wire::v1::placement_message::Message;
use tidings_wire::{Body, v1};

/// One poll of an owner.
fn poll(nonce: u64, epoch: u64, seq: u64, heard: u64, claims: Vec<v1::LeasedRange>) -> Message {
    Message::OwnerPoll(v1::OwnerPoll {
        namespace: "objects".into(),
        owner: "one".into(),
        address: "10.0.0.1:80".into(),
        incarnation: 1,
        nonce,
        epoch,
        seq,
        heard,
        claims,
        wait_ms: 300,
        ..Default::default()
    })
}

/// The answer to a poll; `None` while the manager is out of touch with the cell.
async fn answer(client: &tidings_client::Client, poll: Message) -> Option<v1::OwnerAnswer> {
    match ask(client, poll).await {
        Ok(Message::OwnerAnswer(answer)) => Some(answer),
        Ok(other) => panic!("not an answer to an owner: {other:?}"),
        Err(error) if error.class == tidings_base::Class::Unreachable => None,
        Err(error) => panic!("{error}"),
    }
}

/// Asks all servers that a client knows.
async fn ask_everyone(client: &tidings_client::Client, message: Message) -> Result<Message, tidings_base::Error> {
    let message = v1::PlacementMessage { message: Some(message) };
    let answer = PlacementTransport::call(client, To::Everyone, message, Duration::from_secs(5)).await?;
    Ok(answer.message.expect("an answer says something"))
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_all_managers_hears_the_one_that_leads() {
    let mut nodes = found(3).await;
    create(&nodes.clients(), "objects").await;
    let lookup =
        |namespace: &str| Message::LookupPoll(v1::LookupPoll { namespace: namespace.into(), ..Default::default() });
    // Whoever knows all of them, or a single one, whichever that is.
    for client in [nodes.clients(), nodes.client(0), nodes.client(1), nodes.client(2)] {
        until("the leader answers", async || match ask_everyone(&client, lookup("objects")).await {
            Ok(Message::LookupAnswer(table)) => Some(table),
            Ok(other) => panic!("not an answer to a lookup: {other:?}"),
            Err(_) => None,
        })
        .await;
    }
    // Two say that they do not lead; what the leader says is told.
    let refused = ask_everyone(&nodes.clients(), lookup("none")).await.unwrap_err();
    assert_eq!(refused.code, "placement.no_namespace");
    // The leader of that epoch dies: a later one answers.
    let (at, epoch) = leader(&nodes).await;
    nodes.kill(at).await;
    let known = v1::LookupPoll { namespace: "objects".into(), epoch, ..Default::default() };
    until("the next leader is found", async || {
        match ask_everyone(&nodes.clients(), Message::LookupPoll(known.clone())).await {
            Ok(Message::LookupAnswer(answer)) => Some(answer.epoch).filter(|later| *later > epoch),
            _ => None,
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_joins_is_granted_the_ring_and_lookups_hear_of_it() {
    let nodes = found(1).await;
    let client = nodes.client(0);
    create(&client, "objects").await;
    let mut seq = 0;
    let hello = until("the manager answers", async || {
        seq += 1;
        answer(&client, poll(7, 0, seq, 0, vec![])).await
    })
    .await;
    assert!(hello.hello && hello.grants.is_empty(), "F2: {hello:?}");
    let (mut heard, mut held) = (hello.seq, Vec::new());
    let granted = until("the whole ring is granted", async || {
        seq += 1;
        let said = answer(&client, poll(7, hello.epoch, seq, heard, held.clone())).await?;
        heard = said.seq;
        held = said.renewals.clone();
        held.extend(said.grants.iter().filter_map(|grant| grant.range));
        let points: u128 = held.iter().map(|range| u128::from(range.last - range.start) + 1).sum();
        (points == 1 << 64).then(|| held.clone())
    })
    .await;
    let lookup = v1::LookupPoll { namespace: "objects".into(), ..Default::default() };
    let Message::LookupAnswer(table) = ask(&client, Message::LookupPoll(lookup)).await.unwrap() else {
        panic!("not an answer to a lookup");
    };
    assert!(table.snapshot && table.owners[0].address == "10.0.0.1:80", "{table:?}");
    assert_eq!(table.ranges.len(), granted.len());
    // What operators ask, and names that the caller knows.
    let Message::NamespaceListReply(list) = ask(&client, Message::NamespaceList(v1::NamespaceList {})).await.unwrap()
    else {
        panic!("not a list");
    };
    assert_eq!(list.namespaces.iter().map(|info| info.namespace.as_str()).collect::<Vec<_>>(), ["objects"]);
    let unknown = Message::TableGet(v1::TableGet { namespace: "none".into(), from: 0 });
    let refused = ask(&client, unknown).await.unwrap_err();
    assert_eq!(
        (refused.code.as_ref(), refused.message.as_str()),
        ("placement.no_namespace", "there is no namespace `none`")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_does_not_lead_says_who_does_and_a_new_leader_knows_everything() {
    let mut nodes = found(3).await;
    create(&nodes.clients(), "objects").await;
    let list = Body::Placement(v1::PlacementMessage { message: Some(Message::NamespaceList(v1::NamespaceList {})) });
    let leader = until("one leads, and both others say so", async || {
        let mut redirects = Vec::new();
        for at in 0..3 {
            let client = nodes.client(at);
            until("connected", async || client.is_connected().then_some(())).await;
            let said = client.call(Request::new(list.clone()).retry(Retry::Never)).await;
            redirects.push(said.err().map(|error| error.redirect));
        }
        let leader = redirects.iter().position(Option::is_none)?;
        let address = nodes.configs[leader].listen.to_string();
        let others = redirects.iter().flatten().filter(|said| said.as_ref() == Some(&address));
        (others.count() == 2).then_some(leader)
    })
    .await;
    // A configuration that cannot outlast a fail-over is refused (F10).
    let config = v1::NamespaceConfig { lease_ms: 1_000, renew_ms: 500, ..Default::default() };
    let tight = v1::NamespaceCreate { namespace: "tight".into(), config: Some(config) };
    let refused = ask(&nodes.clients(), Message::NamespaceCreate(tight)).await.unwrap_err();
    assert_eq!(refused.code, "placement.bad_times");
    nodes.kill(leader).await;
    let client = nodes.client((leader + 1) % 3);
    let list = until("another node leads", async || {
        match ask(&client, Message::NamespaceList(v1::NamespaceList {})).await.ok()? {
            Message::NamespaceListReply(list) => Some(list.namespaces),
            _ => None,
        }
    })
    .await;
    assert_eq!(list.len(), 1);
}
