//! One node: what a session does, by frames.

use super::{Nodes, Raw, ask_bare, path};
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_writes_reads_and_compares() {
    let nodes = Nodes::found(1).await;
    let session = Raw::start(nodes.client(0)).await;
    let opened = session.put("/config", "one").await.unwrap();
    assert!(opened.created && !opened.token.is_empty());
    let generation = opened.stat.unwrap().content_generation;
    let stat = session.set("/config", "two", Some(generation)).await.unwrap();
    assert!(stat.content_generation > generation);
    let refused = session.set("/config", "three", Some(generation)).await.unwrap_err();
    assert_eq!(refused.code, "cell.wrong_generation");
    assert_eq!(session.read("/config").await.unwrap().contents, "two");
    assert!(session.read("/nothing").await.unwrap().stat.is_none());
    let wrong = session.open(v1::OpenNode { path: "a//b".into(), read: true, ..Default::default() }).await;
    assert_eq!(wrong.unwrap_err().code, "cell.bad_path");
    // What was refused left the session alive.
    let delete = v1::DeleteNode { target: path("/config"), ..Default::default() };
    assert!(matches!(session.call(Message::Delete(delete)).await, Ok(Message::Done(_))));
    assert!(session.read("/config").await.unwrap().stat.is_none());
    assert!(matches!(session.call(Message::CloseSession(v1::CloseSession {})).await, Ok(Message::Done(_))));
    let after = session.set("/config", "x", None).await.unwrap_err();
    assert!(["cell.expired", "cell.no_session"].contains(&after.code.as_ref()), "{after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_keep_alive_carries_events_at_once() {
    let nodes = Nodes::found(1).await;
    let (watcher, writer) = (Raw::start(nodes.client(0)).await, Raw::start(nodes.client(0)).await);
    writer.put("/config", "one").await.unwrap();
    let open = v1::OpenNode { path: "/config".into(), read: true, events: 1, ..Default::default() };
    let handle = watcher.open(open).await.unwrap().handle;
    let keep = async {
        let mut ack = None;
        loop {
            let kept = watcher.keep_alive(ack.take()).await.unwrap();
            let Some(batch) = kept.batch else { continue };
            if batch.events.iter().any(|e| e.handle == handle && e.kind() == v1::CellEventKind::ContentsChanged) {
                return;
            }
            ack = Some(v1::CellAck { epoch: kept.epoch, seq: batch.seq });
        }
    };
    let write = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        writer.set("/config", "two", None).await.unwrap();
    };
    tokio::time::timeout(super::STUCK, async { tokio::join!(keep, write) }).await.expect("the event comes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_acquire_is_granted_when_the_holder_goes() {
    let nodes = Nodes::found(1).await;
    let (first, second) = (Raw::start(nodes.client(0)).await, Raw::start(nodes.client(0)).await);
    first.put("/leader", "").await.unwrap();
    let lock = async |session: &Raw| {
        let open = v1::OpenNode { path: "/leader".into(), lock: true, read: true, ..Default::default() };
        session.open(open).await.unwrap().handle
    };
    let acquire = |handle, try_only| {
        Message::Acquire(v1::AcquireLock { handle, mode: v1::LockMode::Exclusive as i32, try_only, waits_as: 0 })
    };
    let (mine, theirs) = (lock(&first).await, lock(&second).await);
    let held = first.call(acquire(mine, false)).await.unwrap();
    let Message::Acquired(held) = held else { panic!("not acquired: {held:?}") };
    assert!(!held.sequencer.is_empty());
    assert_eq!(second.call(acquire(theirs, true)).await.unwrap_err().code, "cell.lock_held");
    let release = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        first.call(Message::Release(v1::ReleaseLock { handle: mine })).await.unwrap();
    };
    let (granted, ()) = tokio::join!(second.call(acquire(theirs, false)), release);
    let Message::Acquired(granted) = granted.unwrap() else { panic!("not acquired") };
    assert!(granted.generation > held.generation);
    let check = |token| Message::CheckSequencer(v1::CheckSequencer { token });
    for (token, expected) in [(held.sequencer, false), (granted.sequencer, true)] {
        match second.call(check(token)).await.unwrap() {
            Message::SequencerChecked(checked) => assert_eq!(checked.valid, expected, "{}", checked.why),
            other => panic!("not checked: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_hears_of_a_shutdown_and_the_state_survives_it() {
    let mut nodes = Nodes::found(1).await;
    let session = Raw::start(nodes.client(0)).await;
    session.put("/kept", "this").await.unwrap();
    let held = session.message(0, Message::KeepAlive(v1::KeepAlive { link: session.link, ..Default::default() }));
    let held = tidings_client::Request::new(tidings_wire::Body::Cell(held));
    let client = session.client.clone();
    let held = tokio::spawn(async move {
        client.call(held.within(super::STUCK).retry(tidings_client::Retry::Never)).await.map(drop)
    });
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    nodes.nodes[0].take().unwrap().shutdown().await.unwrap();
    let told = held.await.unwrap().unwrap_err();
    assert!(["cell.stopped", "cell.not_master"].contains(&told.code.as_ref()), "{told}");
    nodes.restart(0).await;
    nodes.ready().await;
    let session = Raw::start(nodes.client(0)).await;
    assert_eq!(session.read("/kept").await.unwrap().contents, "this");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_and_empty_messages_are_no_requests() {
    let nodes = Nodes::found(1).await;
    let client = nodes.client(0);
    let answer = ask_bare(&client, Message::Done(v1::CellDone::default())).await.unwrap_err();
    assert_eq!(answer.code, "control.unsupported");
    let empty = super::ask(&client, v1::CellMessage::default()).await.unwrap_err();
    assert_eq!(empty.code, "control.unsupported");
}
