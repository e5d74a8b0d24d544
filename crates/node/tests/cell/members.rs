//! Three nodes: whoever is asked says who is master, and the next one takes over.

use super::{Nodes, Raw, STUCK, ask_bare, until};
use crate::cell_load::Load;
use crate::support::request;
use http::Method;
use tidings_client::{Request, Retry};
use tidings_node::config::{Member, Time};
use tidings_wire::v1::cell_message::Message;
use tidings_wire::{Body, v1};

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_says_who_is_master() {
    let nodes = Nodes::found(3).await;
    let master = nodes.master().await;
    let follower = (master + 1) % 3;
    let create = Message::CreateSession(v1::CreateSession { lease_ms: 0, secret: 9, link: 9, keeper: 0 });
    let create = v1::CellMessage { message: Some(create), ..Default::default() };
    let client = nodes.client(follower);
    until("connected", async || client.is_connected().then_some(())).await;
    let told = client.call(Request::new(Body::Cell(create)).retry(Retry::Never)).await.unwrap_err();
    assert_eq!(told.redirect, Some(nodes.configs[master].listen.to_string()), "{told}");
    // A client follows it by itself.
    let session = Raw::start(client).await;
    session.put("/a", "1").await.unwrap();
    assert_eq!(session.read("/a").await.unwrap().contents, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_and_what_was_acknowledged_survive_the_master() {
    let mut nodes = Nodes::found(3).await;
    let mut session = Raw::start(nodes.clients()).await;
    let token = session.put("/kept", "this").await.unwrap().token;
    let master = nodes.master().await;
    nodes.kill(master).await;
    let mut resume = v1::ResumeSession { link: session.link, handles: vec![token], epoch: 0 };
    let epoch = until("another master asks for it", async || {
        match session.call(Message::ResumeSession(resume.clone())).await {
            Ok(Message::ResumeNeeded(needed)) if needed.epoch > session.epoch => Some(needed.epoch),
            _ => None,
        }
    })
    .await;
    resume.epoch = epoch;
    let resumed =
        until("it resumes the session", async || match session.call(Message::ResumeSession(resume.clone())).await {
            Ok(Message::SessionResumed(resumed)) => Some(resumed),
            _ => None,
        })
        .await;
    assert!(resumed.gone.is_empty());
    session.epoch = resumed.epoch;
    assert_eq!(session.read("/kept").await.unwrap().contents, "this");
    session.set("/kept", "more", None).await.unwrap();
    // The old master comes back and follows.
    nodes.restart(master).await;
    nodes.ready().await;
    assert_ne!(nodes.master().await, master);
    assert_eq!(session.read("/kept").await.unwrap().contents, "more");
}

/// Everybody says where the newest stands, and what is applied there; whoever does not hear the others goes on with what is old.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_says_what_it_has_applied_and_the_newest_with_its_place() {
    let mut nodes = Nodes::found(3).await;
    let session = Raw::start(nodes.clients()).await;
    session.put("/a", "old").await.unwrap();
    let master = nodes.master().await;
    let read = async |nodes: &Nodes, at: usize, how: &str| {
        let ask = request(Method::GET, &format!("/v1/cell/files/a?place={how}"), None, None);
        let answer = nodes.http(at, ask).await;
        let place = answer.headers.get("tidings-place").map(|place| place.to_str().unwrap().to_owned());
        let place: Vec<String> = place.unwrap_or_default().split('.').map(str::to_owned).collect();
        (answer.status.as_u16(), answer.text(), place)
    };
    let mut last = (String::new(), 0, 0);
    for at in 0..3 {
        // The way to the master may have to be made first.
        let newest = async || Some(read(&nodes, at, "newest").await).filter(|(status, ..)| *status == 200);
        let (_, contents, place) = until("the master is reached", newest).await;
        assert_eq!((contents.as_str(), place.len()), ("old", 4));
        let number = |at: usize| place[at].parse::<u64>().unwrap();
        assert!(at == 0 || (place[0] == last.0 && (number(2), number(3)) > (last.1, last.2)), "{last:?} {place:?}");
        last = (place[0].clone(), number(2), number(3));
        until("it has applied it", async || (read(&nodes, at, "applied").await.1 == "old").then_some(())).await;
    }
    // Without a majority nobody knows the newest; what is applied is still there.
    let (left, gone) = ((master + 1) % 3, (master + 2) % 3);
    nodes.kill(master).await;
    nodes.kill(gone).await;
    let (status, contents, place) = read(&nodes, left, "applied").await;
    assert_eq!((status, contents.as_str(), place[0].clone()), (200, "old", last.0));
    let (status, _, place) = read(&nodes, left, "newest").await;
    assert!(status >= 500 && place == [""], "{status} {place:?}");
    assert_eq!(read(&nodes, left, "oldest").await.0, 400);
}

/// One request of an operator, at whichever node: who is asked redirects, and a leader that is to leave hands over first.
async fn change(nodes: &Nodes, group: u32, change: v1::member_change::Change) {
    let change = v1::MemberChange { group, change: Some(change), force: false };
    let message = v1::admin_message::Message::MemberChange(change.clone());
    let body = Body::Admin(v1::AdminMessage { message: Some(message) });
    for _ in 0..20 {
        match nodes.clients().call(Request::new(body.clone()).within(STUCK)).await {
            Ok(_) => return,
            // The answer to the first attempt was lost with its leader.
            Err(e) if ["raft.no_member", "raft.already_member"].contains(&e.code.as_ref()) => return,
            // Many groups on few processors: who does not answer in time is asked again, as the error says.
            Err(e) if e.code == "raft.no_majority" => tokio::time::sleep(std::time::Duration::from_millis(500)).await,
            Err(e) => panic!("{change:?}: {e}"),
        }
    }
    panic!("{change:?}: there is no majority for long");
}

async fn leader(nodes: &Nodes, name: &str) -> usize {
    until("the group has a leader", async || {
        for at in (0..nodes.nodes.len()).filter(|at| nodes.nodes[*at].is_some()) {
            let group = nodes.group_status(at, name).await?;
            if group.role == "leader" {
                return Some(at);
            }
        }
        None
    })
    .await
}

/// Has the node at `place` lead a group: whoever leads it now is restarted until it is so.
async fn let_lead(nodes: &mut Nodes, name: &str, place: usize) {
    for _ in 0..20 {
        let now = leader(nodes, name).await;
        if now == place {
            return;
        }
        nodes.nodes[now].take().unwrap().shutdown().await.unwrap();
        nodes.restart(now).await;
        nodes.ready().await;
    }
    panic!("another node leads again and again");
}

/// Puts a new node in the place of another one while sessions write, read and take turns with a lock: calls are answered
/// meanwhile, no session is lost, nor anything that was acknowledged.
async fn replace_under_load(nodes: &mut Nodes, leaving: usize) {
    let new = nodes.joining().await;
    let urls: Vec<String> = (0..nodes.configs.len()).map(|at| nodes.url(at)).collect();
    let load = Load::start(&urls).await;
    load.goes_on().await;
    for group in [0, 1] {
        let before = load.done();
        let add = v1::Member { node: new.node, address: new.address.clone() };
        change(nodes, group, v1::member_change::Change::Add(add)).await;
        change(nodes, group, v1::member_change::Change::Remove(leaving as u64 + 1)).await;
        assert!(load.done() > before, "nothing was served while group {group} changed");
        load.goes_on().await;
    }
    nodes.nodes[leaving].take().unwrap().shutdown().await.unwrap();
    load.goes_on().await;
    let promised = load.stop().await;
    nodes.ready().await;
    promised.assert_kept(&[nodes.url(3)]).await;
}

/// Puts a new node in the place of one that leads these groups.
async fn replace_leader_of(names: &[&str]) {
    let mut nodes = Nodes::found(3).await;
    let leaving = match names {
        [name] => leader(&nodes, name).await,
        // Who hands over prefers the last of those that are equally far.
        _ => 2,
    };
    for name in names {
        let_lead(&mut nodes, name, leaving).await;
    }
    replace_under_load(&mut nodes, leaving).await;
    for name in ["cell", "store"] {
        let group = nodes.group_status(3, name).await.unwrap();
        let voters: Vec<u64> = group.members.iter().filter(|m| m.voter).map(|m| m.node).collect();
        assert!(voters.len() == 3 && voters.contains(&4) && !voters.contains(&(leaving as u64 + 1)), "{voters:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_is_replaced_while_the_cell_serves() {
    let mut nodes = Nodes::found(3).await;
    let (master, store) = (leader(&nodes, "cell").await, leader(&nodes, "store").await);
    let leaving = (0..3).find(|at| *at != master && *at != store).unwrap();
    replace_under_load(&mut nodes, leaving).await;
    let unknown = v1::MemberChange { group: 7, change: Some(v1::member_change::Change::Remove(1)), force: false };
    let message = Some(v1::admin_message::Message::MemberChange(unknown));
    let refused = nodes.client(3).call(Body::Admin(v1::AdminMessage { message })).await.unwrap_err();
    assert_eq!(refused.code, "admin.no_group");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_master_of_the_cell_is_replaced() {
    replace_leader_of(&["cell"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_of_the_store_is_replaced() {
    replace_leader_of(&["store"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_leads_both_groups_is_replaced() {
    replace_leader_of(&["cell", "store"]).await;
}

async fn a_spare_takes_the_place_of_the_dead(
    spare: std::net::SocketAddr,
    name: impl Fn(&mut tidings_node::config::Cell),
) {
    let mut nodes = Nodes::found_with(3, |config| {
        name(&mut config.cell);
        config.cell.replace_after = Time::seconds(1);
    })
    .await;
    nodes.join_at(spare).await;
    let dead = (nodes.master().await + 1) % 3;
    nodes.kill(dead).await;
    until("the spare votes in the dead member's place", async || {
        let master = nodes.master().await;
        let voters: Vec<u64> =
            nodes.cell_status(master).await?.members.iter().filter(|m| m.voter).map(|m| m.node).collect();
        (voters.len() == 3 && voters.contains(&4) && !voters.contains(&(dead as u64 + 1))).then_some(())
    })
    .await;
    nodes.ready().await;
    assert!(ask_bare(&nodes.client(3), Message::Keys(v1::CellKeys {})).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spare_takes_the_place_of_a_member_that_stays_dead() {
    // The spare's address must be known to all before it runs. One that does not run is passed over.
    let (spare, silent) = (super::free_address(), super::free_address());
    let named = |node, address: std::net::SocketAddr| Member { node, address: address.to_string() };
    a_spare_takes_the_place_of_the_dead(spare, |cell| cell.spares = vec![named(5, silent), named(4, spare)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spare_is_found_by_name() {
    let spare = super::free_address();
    let names = vec!["no-such-host.invalid:7400".to_owned(), format!("localhost:{}", spare.port())];
    a_spare_takes_the_place_of_the_dead(spare, |cell| cell.spare_names = names.clone()).await;
}
