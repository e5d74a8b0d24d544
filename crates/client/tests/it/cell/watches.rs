//! Watches: what happened to a node, as a stream.

use super::{code, over_line, seconds, soon, two};
use futures::StreamExt;
use tidings_client::cell::testing::TestCell;
use tidings_client::cell::{Event, Events, Mode};

#[tokio::test(start_paused = true)]
async fn changes_of_contents_are_told_after_the_fact() {
    let (_test, one, two) = two().await;
    one.write("/file", "0").await.unwrap();
    let file = two.open("/file").read().events(Events::CONTENTS).await.unwrap();
    let mut watch = file.watch();
    for i in 1..5 {
        one.write("/file", i.to_string()).await.unwrap();
        assert_eq!(soon(watch.next()).await, Some(Event::ContentsChanged));
        assert_eq!(file.contents_and_stat().await.unwrap().text(), i.to_string());
    }
}

#[tokio::test(start_paused = true)]
async fn a_watcher_who_does_not_look_holds_up_nobody_and_hears_of_the_last() {
    let (_test, one, two) = two().await;
    one.write("/file", "0").await.unwrap();
    let file = two.open("/file").read().events(Events::CONTENTS).await.unwrap();
    let watch = file.watch();
    for i in 0..300 {
        one.write("/file", i.to_string()).await.unwrap();
    }
    seconds(1).await;
    let events: Vec<Event> = watch.take(1).collect().await;
    assert_eq!(events, [Event::ContentsChanged]);
    assert_eq!(file.contents_and_stat().await.unwrap().text(), "299");
}

#[tokio::test(start_paused = true)]
async fn children_are_named() {
    let (_test, one, two) = two().await;
    one.create_directory("/dir").await.unwrap();
    let mut watch = two.watch("/dir").await.unwrap();
    one.write("/dir/a", "").await.unwrap();
    let Some(Event::ChildrenChanged { names, more }) = soon(watch.next()).await else { panic!() };
    assert_eq!((names, more), (vec!["a".to_owned()], false));
    one.delete("/dir/a").await.unwrap();
    assert!(matches!(soon(watch.next()).await, Some(Event::ChildrenChanged { .. })));
    assert!(watch.handle().unwrap().read_dir().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_ends_the_watch() {
    let (_test, one, two) = two().await;
    one.write("/file", "0").await.unwrap();
    let file = two.open("/file").read().await.unwrap();
    let mut watch = file.watch();
    one.delete("/file").await.unwrap();
    assert_eq!(soon(watch.next()).await, Some(Event::HandleInvalid));
    assert_eq!(soon(watch.next()).await, None);
    assert_eq!(code(file.stat().await), "cell.node_gone");
    assert_eq!(soon(file.watch().next()).await, None, "a new watch of it ends at once");
}

#[tokio::test(start_paused = true)]
async fn a_holder_hears_of_who_waits() {
    let (_test, one, two) = two().await;
    let mine = one.open("/lock").lock().events(Events::LOCK).create_file("").await.unwrap();
    let mut watch = mine.watch();
    let lock = mine.acquire(Mode::Exclusive).await.unwrap();
    let theirs = two.open("/lock").lock().await.unwrap();
    let waiting = tokio::spawn(async move { theirs.acquire(Mode::Exclusive).await.map(drop) });
    loop {
        match soon(watch.next()).await {
            Some(Event::ConflictingRequest) => break,
            Some(Event::LockAcquired) => {}
            other => panic!("{other:?}"),
        }
    }
    drop(lock);
    soon(waiting).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_watch_survives_a_fail_over_and_ends_with_the_session() {
    let test = TestCell::start();
    let writer = test.connect().await.unwrap();
    let (line, cell) = over_line(&test).await;
    writer.write("/file", "0").await.unwrap();
    let file = cell.open("/file").read().events(Events::CONTENTS).await.unwrap();
    let mut watch = file.watch();
    test.fail_over();
    writer.write("/file", "1").await.unwrap();
    assert_eq!(soon(watch.next()).await, Some(Event::ContentsChanged));
    while file.contents_and_stat().await.unwrap().text() != "1" {
        assert_eq!(soon(watch.next()).await, Some(Event::ContentsChanged));
    }
    line.cut();
    while soon(watch.next()).await.is_some() {}
    assert_eq!(code(file.stat().await), "cell.expired");
}
