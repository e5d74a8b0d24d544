//! Calls, streams, credit, cancellation, identity: what works.

use super::*;
use tidings_client::ws::{self, Form};
use tidings_client::{Request, Retry};
use tidings_node::carrier::WEBSOCKET_PATH;

#[tokio::test]
async fn calls_are_answered_in_any_order() {
    let node = start().await;
    let client = node.client().await;
    let slow = client.call(get("slow:100"));
    let fast = async {
        for i in 0..100 {
            let answer = client.call(get(&format!("echo{i}"))).await.unwrap();
            assert_eq!(row_of(&answer), format!("echo{i}"));
        }
    };
    let (slow, ()) = tokio::join!(slow, fast);
    assert_eq!(row_of(&slow.unwrap()), "slow");
    let error = client.call(get("refuse")).await.unwrap_err();
    assert_eq!((error.code.as_ref(), error.class, error.hint.as_str()), ("store.fenced", Class::Refused, "Do not."));
}

#[tokio::test]
async fn many_callers_share_one_connection() {
    let node = start().await;
    let client = node.client().await;
    let callers = (0..64).map(|i| {
        let client = client.clone();
        tokio::spawn(async move {
            for j in 0..50 {
                let name = format!("{i}-{j}");
                assert_eq!(row_of(&client.call(get(&name)).await.unwrap()), name);
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    assert_eq!(node.node.connections(), 1);
}

#[tokio::test]
async fn a_long_answer_comes_in_order_and_waits_for_its_reader() {
    let node = start().await;
    let client = node.client().await;
    let mut answers = client.stream(scan(300, 10)).await.unwrap();
    // Nobody reads: no more is made than was granted (and the one that is held back to be the last).
    let credit = tidings_wire::Limits::CLIENT.initial_credit as usize;
    until("the first frames are made", || node.script.made.load(Ordering::SeqCst) >= credit).await;
    for i in 0..20 {
        assert_eq!(row_of(&client.call(get(&format!("other{i}"))).await.unwrap()), format!("other{i}"));
    }
    assert!(node.script.made.load(Ordering::SeqCst) <= credit + 2);
    for i in 0..300 {
        assert_eq!(row_of(&answers.next().await.unwrap().unwrap()), i.to_string());
    }
    assert!(answers.next().await.is_none());
    assert_eq!(node.script.working.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn giving_up_stops_the_work_at_the_server() {
    let node = start().await;
    let client = node.client().await;
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.call(get("hang")).await }
    });
    until("the call arrives", || node.script.working.load(Ordering::SeqCst) == 1).await;
    call.abort();
    until("the work stops", || node.script.working.load(Ordering::SeqCst) == 0).await;
    // A stream that is dropped too.
    let answers = client.stream(scan(1_000, 10)).await.unwrap();
    assert_eq!(node.script.working.load(Ordering::SeqCst), 1);
    drop(answers);
    until("the stream stops", || node.script.working.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn a_call_that_expects_one_frame_is_not_given_many() {
    let node = start().await;
    let client = node.client().await;
    assert_eq!(client.call(scan(3, 1)).await.unwrap_err().code, "control.long_answer");
    assert_eq!(row_of(&client.call(get("next")).await.unwrap()), "next");
}

#[tokio::test]
async fn websockets_carry_the_same_frames_in_both_forms() {
    let node = start().await;
    for form in [Form::Binary, Form::Json] {
        let link = ws::connect(&node.authority(), WEBSOCKET_PATH, form, None).await.unwrap();
        assert_eq!(row_of(&link.call(get("hello"), None).await.unwrap()), "hello");
        let error = link.call(get("refuse"), None).await.unwrap_err();
        assert_eq!(error.code, "store.fenced");
        let mut answers = link.stream(scan(50, 100), None).await.unwrap();
        for i in 0..50 {
            assert_eq!(row_of(&answers.next().await.unwrap().unwrap()), i.to_string());
        }
        assert!(answers.next().await.is_none());
        let big = link.call(get("big:500000"), None).await.unwrap();
        assert_eq!(row_of(&big), "big");
        link.close(tidings_wire::error::closed());
    }
    until("the sockets are closed", || node.node.connections() == 0).await;
}

#[tokio::test]
async fn a_credential_in_the_header_or_in_hello_names_the_application() {
    let (server, key) = with_app().await;
    let mut config = client_config([server.node.url()]);
    config.credential = Some(key.clone());
    let client = Client::connect(config).await.unwrap();
    client.call(get("x")).await.unwrap();

    let authority = server.address().to_string();
    let link = ws::connect(&authority, WEBSOCKET_PATH, Form::Binary, Some(&key)).await.unwrap();
    link.call(get("x"), None).await.unwrap();

    let wrong = ws::connect(&authority, WEBSOCKET_PATH, Form::Json, Some("tid_nope.nope")).await.unwrap_err();
    assert_eq!(wrong.class, Class::Refused, "{wrong}");
    let none = ws::connect(&authority, WEBSOCKET_PATH, Form::Json, None).await.unwrap_err();
    assert_eq!(none.code, "control.unauthenticated");
    let none = Client::connect(client_config([server.node.url()])).await.unwrap_err();
    assert_eq!(none.code, "control.unauthenticated");
    let mut config = client_config([server.node.url()]);
    config.credential = Some("tid_nope.nope".into());
    let wrong = Client::connect(config).await.unwrap_err();
    assert_eq!(wrong.code, "control.unauthenticated");
}

#[tokio::test]
async fn a_plain_grpc_client_speaks_with_the_node() {
    let node = start().await;
    let mut client = v1::tidings_client::TidingsClient::connect(node.node.url()).await.unwrap();
    let hello = v1::Hello { min: 1, max: 1, ..Default::default() };
    let control = |message| Some(Body::Control(v1::Control { message: Some(message) }));
    let frames = vec![v1::Frame { op: 0, more: false, body: control(v1::control::Message::Hello(hello)) }];
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    for frame in frames {
        sender.send(frame).await.unwrap();
    }
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut answers = client.stream(stream).await.unwrap().into_inner();
    let welcome = answers.message().await.unwrap().unwrap();
    assert!(matches!(
        welcome.body,
        Some(Body::Control(v1::Control { message: Some(v1::control::Message::Welcome(_)) }))
    ));
    sender.send(v1::Frame { op: 1, more: false, body: Some(get("plain")) }).await.unwrap();
    let answer = answers.message().await.unwrap().unwrap();
    assert_eq!((answer.op, answer.more, row_of(&answer.body.unwrap())), (1, false, "plain".into()));
    drop(sender);
    assert!(answers.message().await.unwrap().is_none(), "an orderly end");
}

#[tokio::test]
async fn more_callers_than_allowed_wait_for_their_turn() {
    let mut config = loopback();
    config.limits.operations = 4;
    let node = ScriptedNode::start(config).await;
    let client = node.client().await;
    let calls = (0..32).map(|_| client.call(Request::new(get("slow:10")).retry(Retry::Never)));
    for answer in futures::future::join_all(calls).await {
        assert_eq!(row_of(&answer.unwrap()), "slow");
    }
}
