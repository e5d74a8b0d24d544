//! Operations of every shape between two drivers.

use crate::pipe::{Pipe, Tap, pipe};
use bytes::Bytes;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error, NodeId, Seeded};
use tidings_client::link::{Admission, Driver, Gone, Handler, Link, Operation, TrySendError};
use tidings_wire::session::{Config, Side};
use tidings_wire::v1::{FeedMessage, feed_message};
use tidings_wire::{Body, Limits, error, v1};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Hands every operation to the test.
struct ToTest(mpsc::UnboundedSender<Operation>);

impl Handler for ToTest {
    fn hello(&mut self, _: v1::Hello) -> BoxFuture<'static, Result<Admission, Error>> {
        let admission = Admission { node: NodeId(1), principal: "app:test".into(), limits: limits() };
        Box::pin(async { Ok(admission) })
    }

    fn ready(&mut self, _: &Arc<Link>, _: &v1::Welcome) {}

    fn open(&mut self, operation: Operation) -> Option<BoxFuture<'static, ()>> {
        let _ = self.0.send(operation);
        None
    }
}

fn limits() -> Limits {
    Limits { max_operations: 8, initial_credit: 4, ..Limits::CLIENT }
}

/// One end: its handle, what the other side begins, its task, and its tap.
struct End {
    link: Arc<Link>,
    operations: mpsc::UnboundedReceiver<Operation>,
    task: JoinHandle<Error>,
    tap: Tap,
}

fn end(side: Side, (pipe, tap): (Pipe, Tap)) -> End {
    let (sender, operations) = mpsc::unbounded_channel();
    let link = Link::new(side);
    let handler = ToTest(sender);
    let driver = match side {
        Side::Acceptor => Driver::accept(link.clone(), pipe, Arc::new(Config::acceptor(limits())), handler),
        Side::Connector => {
            let hello = v1::Hello { min: 1, max: 1, ..Default::default() };
            Driver::connect(link.clone(), pipe, Arc::new(Config::connector()), handler, hello, 1_000)
        }
    };
    End { link, operations, task: tokio::spawn(driver), tap }
}

async fn pair() -> (End, End) {
    let (near, far) = pipe();
    let (client, server) = (end(Side::Connector, near), end(Side::Acceptor, far));
    assert_eq!(client.link.wait_ready().await, Ok(limits()));
    server.link.wait_ready().await.unwrap();
    (client, server)
}

fn text(text: &str) -> Body {
    let append = v1::Append { topic: Bytes::copy_from_slice(text.as_bytes()), entries: vec![] };
    Body::Feed(FeedMessage { message: Some(feed_message::Message::Append(append)) })
}

fn text_of(body: &Body) -> String {
    match body {
        Body::Feed(FeedMessage { message: Some(feed_message::Message::Append(append)) }) => {
            String::from_utf8(append.topic.to_vec()).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn either_side_may_begin() {
    let (mut client, mut server) = pair().await;
    let (answer, ()) = tokio::join!(client.link.call(text("up"), None), async {
        let operation = server.operations.recv().await.unwrap();
        assert_eq!((operation.responder.op().0, text_of(&operation.body)), (1, "up".into()));
        operation.responder.reply(text("down"));
    });
    assert_eq!(text_of(&answer.unwrap()), "down");
    let (answer, ()) = tokio::join!(server.link.call(text("push"), None), async {
        let operation = client.operations.recv().await.unwrap();
        assert_eq!(operation.responder.op().0, 2);
        operation.responder.fail(error::unsupported());
    });
    assert_eq!(answer.unwrap_err().code, "control.unsupported");
}

#[tokio::test(start_paused = true)]
async fn a_long_request_waits_for_its_reader() {
    let (client, mut server) = pair().await;
    let (mut outflow, mut answers) = client.link.open(text("0"), None).await.unwrap();
    let sending = tokio::spawn(async move {
        for i in 1..50 {
            outflow.send(text(&i.to_string())).await.unwrap();
        }
        outflow.finish(text("last"));
    });
    let operation = server.operations.recv().await.unwrap();
    let mut rest = operation.rest.expect("more follow");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!sending.is_finished(), "nobody read, so no more was granted");
    for i in 1..50 {
        assert_eq!(text_of(&rest.next().await.unwrap().unwrap()), i.to_string());
    }
    assert_eq!(text_of(&rest.next().await.unwrap().unwrap()), "last");
    assert_eq!(rest.next().await, Ok(None));
    sending.await.unwrap();
    operation.responder.reply(text("done"));
    assert_eq!(text_of(&answers.next().await.unwrap().unwrap()), "done");
    assert!(answers.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_takes_nothing_ends_its_operation_and_no_other() {
    let (client, mut server) = pair().await;
    let mut stuck = client.link.stream(text("long"), None).await.unwrap();
    let Operation { mut responder, .. } = server.operations.recv().await.unwrap();
    for i in 0..4 {
        responder.try_send(text(&i.to_string())).unwrap();
    }
    assert!(matches!(responder.try_send(text("4")), Err(TrySendError::Full(_))));
    let began = Instant::now();
    let (sent, other) = tokio::join!(responder.send(text("4")), async {
        let (answer, ()) = tokio::join!(client.link.call(text("other"), None), async {
            server.operations.recv().await.unwrap().responder.reply(text("fine"));
        });
        answer
    });
    assert_eq!(text_of(&other.unwrap()), "fine");
    assert_eq!((sent, began.elapsed()), (Err(Gone), tidings_client::link::READER_PATIENCE));
    for i in 0..4 {
        assert_eq!(text_of(&stuck.next().await.unwrap().unwrap()), i.to_string());
    }
    assert_eq!(stuck.next().await.unwrap().unwrap_err().code, "control.slow_reader");
    assert!(stuck.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_handler_hears_that_nobody_waits_any_more() {
    let (client, mut server) = pair().await;
    let call = tokio::spawn({
        let link = client.link.clone();
        async move { link.call(text("x"), None).await }
    });
    let Operation { mut responder, .. } = server.operations.recv().await.unwrap();
    call.abort();
    responder.gone().await;
    assert_eq!(responder.try_send(text("late")), Err(TrySendError::Gone));
    // And one that asks only after the end hears it too.
    let call = tokio::spawn({
        let link = client.link.clone();
        async move { link.call(text("y"), None).await }
    });
    let Operation { mut responder, .. } = server.operations.recv().await.unwrap();
    call.abort();
    tokio::time::sleep(Duration::from_secs(1)).await;
    responder.gone().await;
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_is_dropped_is_answered_all_the_same() {
    let (client, mut server) = pair().await;
    let (answer, ()) = tokio::join!(client.link.call(text("x"), None), async {
        drop(server.operations.recv().await.unwrap());
    });
    assert_eq!(answer.unwrap_err().code, "control.unanswered");
}

#[tokio::test(start_paused = true)]
async fn a_stuck_carrier_ends_the_connection_after_the_stall() {
    let (client, mut server) = pair().await;
    server.tap.set_stuck(true);
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let link = client.link.clone();
            tokio::spawn(async move { link.call(text("x"), None).await })
        })
        .collect();
    for _ in 0..8 {
        let operation = server.operations.recv().await.unwrap();
        operation.responder.reply(text(&"x".repeat(100_000)));
    }
    assert_eq!(server.task.await.unwrap().code, "control.slow_reader");
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap_err().class, Class::OutcomeUnknown);
    }
}

#[tokio::test(start_paused = true)]
async fn answers_that_nobody_takes_are_not_kept_without_bound() {
    let (client, mut server) = pair().await;
    server.tap.set_stuck(true);
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(client.link.stream(text("x"), None).await.unwrap());
    }
    let big = || text(&"x".repeat(1_000_000));
    let mut responders = Vec::new();
    for _ in 0..8 {
        responders.push(server.operations.recv().await.unwrap().responder);
    }
    let began = Instant::now();
    // The credit of eight operations together would be far more than is kept.
    let mut taken = 0;
    for responder in &mut responders {
        while responder.try_send(big()).is_ok() {
            taken += 1;
            tokio::task::yield_now().await;
        }
    }
    assert!(taken <= 12, "{taken} MB were taken for a reader that reads nothing");
    for responder in responders {
        responder.reply(big());
    }
    assert!(began.elapsed() < Duration::from_secs(30));
    drop(streams);
    assert_eq!(server.task.await.unwrap().code, "control.slow_reader");
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_stopped_leaves_nobody_waiting() {
    let (client, mut server) = pair().await;
    let mut answers = client.link.stream(text("long"), None).await.unwrap();
    let call = tokio::spawn({
        let link = client.link.clone();
        async move { link.call(text("x"), None).await }
    });
    let Operation { mut responder, .. } = server.operations.recv().await.unwrap();
    let Operation { responder: mut other, .. } = server.operations.recv().await.unwrap();
    client.task.abort();
    assert_eq!(call.await.unwrap().unwrap_err().class, Class::OutcomeUnknown);
    assert!(answers.next().await.unwrap().is_err());
    responder.gone().await;
    other.gone().await;
    assert_eq!(client.link.call(text("late"), None).await.unwrap_err().class, Class::Unreachable);
    assert_eq!(server.task.await.unwrap().code, "control.closed");
}

/// Callers that call, give up, and let deadlines pass, against handlers that answer, fail, or forget.
#[tokio::test(start_paused = true)]
async fn a_crowd_of_callers_and_handlers_leaves_nothing_behind() {
    for seed in 0..20 {
        let (client, mut server) = pair().await;
        let handlers = tokio::spawn(async move {
            let mut rng = Seeded::new(seed).fork("handlers");
            while let Some(Operation { mut responder, body, .. }) = server.operations.recv().await {
                let (what, frames) = (rng.below(5), rng.below(20));
                tokio::spawn(async move {
                    for i in 0..frames {
                        if responder.send(text(&i.to_string())).await.is_err() {
                            return;
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(what * 7)).await;
                    match what {
                        0 => responder.fail(error::unsupported()),
                        1 => drop(responder),
                        _ => responder.reply(body),
                    }
                });
            }
            server.link
        });
        let callers: Vec<_> = (0..40)
            .map(|i| {
                let (link, mut rng) = (client.link.clone(), Seeded::new(seed).fork(&i.to_string()));
                tokio::spawn(async move {
                    for _ in 0..10 {
                        let deadline = Instant::now() + Duration::from_millis(rng.between(1, 40));
                        let mut answers = match link.stream(text("x"), Some(deadline)).await {
                            Ok(answers) => answers,
                            Err(error) => {
                                assert_eq!(error.code, "control.deadline");
                                continue;
                            }
                        };
                        // Some read to the end, some stop early.
                        for _ in 0..rng.below(30) {
                            if answers.next().await.is_none() {
                                break;
                            }
                        }
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        // All room is free again: as many calls as are allowed at once go through.
        let link = client.link.clone();
        let calls = (0..8).map(|_| link.call(text("y"), Some(Instant::now() + Duration::from_secs(5))));
        for answer in futures::future::join_all(calls).await {
            match answer {
                Ok(_) => {}
                Err(error) => assert!(
                    ["control.unsupported", "control.unanswered", "control.long_answer"].contains(&error.code.as_ref()),
                    "{error}"
                ),
            }
        }
        client.link.close(error::closed());
        client.task.await.unwrap();
        let server = handlers.await.unwrap();
        assert!(server.closed().is_some());
    }
}
