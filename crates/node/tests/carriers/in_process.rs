//! Frames within a process: the same promises as over sockets, without one.

use super::*;
use tidings_base::NodeId;
use tidings_client::cell::Cell;

fn config(node: &Node) -> ClientConfig {
    ClientConfig { seed: Some(1), ..ClientConfig::in_process(node.door()) }
}

#[tokio::test]
async fn calls_and_long_answers_go_through_the_door() {
    let node = start().await;
    let client = Client::connect(config(&node.node)).await.unwrap();
    let mut answers = client.stream(scan(300, 10 << 10)).await.unwrap();
    let credit = tidings_wire::Limits::CLIENT.initial_credit as usize;
    until("the first frames are made", || node.script.made.load(Ordering::SeqCst) >= credit).await;
    let slow = client.call(get("slow:100"));
    let fast = async { row_of(&client.call(get("echo")).await.unwrap()) };
    let (slow, fast) = tokio::join!(slow, fast);
    assert_eq!((row_of(&slow.unwrap()).as_str(), fast.as_str()), ("slow", "echo"));
    // Nobody reads: no more is made than was granted.
    assert!(node.script.made.load(Ordering::SeqCst) <= credit + 2);
    for i in 0..300 {
        assert_eq!(row_of(&answers.next().await.unwrap().unwrap()), i.to_string());
    }
    assert!(answers.next().await.is_none());
}

#[tokio::test]
async fn limits_redirects_and_farewells_hold_there_too() {
    let (node, other) = (start().await, start().await);
    let client = Client::connect(config(&node.node)).await.unwrap();
    let max = tidings_wire::Limits::CLIENT.max_frame as usize;
    let error = client.call(get(&"x".repeat(max))).await.unwrap_err();
    assert_eq!(error.code, "control.too_large");
    // Somebody else is reached by a socket.
    *node.script.redirect.lock() = Some(other.node.url());
    let redirected = Client::connect(config(&node.node)).await.unwrap();
    assert_eq!(row_of(&redirected.call(get("redirect")).await.unwrap()), "here");
    assert_eq!(other.node.connections(), 1);
    // What is open when the farewell comes still ends well, and nothing begins after it.
    let slow = tokio::spawn({
        let client = client.clone();
        async move { client.call(get("slow:300")).await }
    });
    until("the call arrives", || node.script.working.load(Ordering::SeqCst) == 1).await;
    node.node.shutdown().await.unwrap();
    assert_eq!(row_of(&slow.await.unwrap().unwrap()), "slow");
    let late = client.call(tidings_client::Request::new(get("late")).within(Duration::from_millis(200))).await;
    assert_eq!(late.unwrap_err().class, Class::Unreachable);
}

#[tokio::test]
async fn whoever_runs_the_node_is_its_operator_and_a_key_makes_somebody_else_of_him() {
    let (server, key) = with_app().await;
    let message = v1::admin_message::Message::AppList(v1::AppList::default());
    let list = || Body::Admin(v1::AdminMessage { message: Some(message.clone()) });
    let operator = Client::connect(config(&server.node)).await.unwrap();
    operator.call(list()).await.unwrap();
    let shop = ClientConfig { credential: Some(key), ..config(&server.node) };
    let shop = Client::connect(shop).await.unwrap();
    assert_eq!(shop.call(list()).await.unwrap_err().class, Class::Refused);
    let forged = ClientConfig { credential: Some("tid_aa.bb".into()), ..config(&server.node) };
    assert_eq!(Client::connect(forged).await.unwrap_err().class, Class::Refused);
}

#[tokio::test]
async fn a_program_with_a_node_of_its_own_has_a_cell() {
    let data = tempfile::tempdir().unwrap();
    let mut config = loopback();
    config.data = data.path().into();
    config.node = NodeId(1).0;
    let node = Node::start(config).await.unwrap();
    let cell = Cell::connect(ClientConfig::in_process(node.door())).await.unwrap();
    cell.write("/greeting", "hello").await.unwrap();
    assert_eq!(cell.read("/greeting").await.unwrap().unwrap().contents()[..], b"hello"[..]);
    drop(cell);
    node.shutdown().await.unwrap();
}
