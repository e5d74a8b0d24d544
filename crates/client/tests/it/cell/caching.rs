//! The cache: what is served without asking, and that it is never stale.

use super::{over_line, seconds, two};
use std::future::IntoFuture;
use std::time::Duration;
use tidings_cell::mutant::Mutant;
use tidings_client::cell::testing::TestCell;
use tidings_client::cell::{Acl, Cell, Event, Events, Mode, SessionOptions, traced};
use tidings_wire::v1::{self, cell_message::Message};

#[tokio::test(start_paused = true)]
async fn a_second_read_is_served_from_the_cache() {
    let (_test, one, two) = two().await;
    one.write("/file", "x").await.unwrap();
    let handle = two.open("/file").read().await.unwrap();
    two.read("/file").await.unwrap();
    seconds(1).await;
    let (file, trace) = traced(two.read("/file")).await;
    assert_eq!(file.unwrap().unwrap().text(), "x");
    assert_eq!((trace.cached, trace.calls), (1, 0));
    let (file, trace) = traced(handle.contents_and_stat()).await;
    assert_eq!((file.unwrap().text().as_ref(), trace.cached, trace.calls), ("x", 1, 0));
    let (stat, trace) = traced(two.stat("/file")).await;
    assert_eq!((stat.unwrap().unwrap().length, trace.cached), (1, 1));
    assert_eq!(two.observed().cached, 3);
}

#[tokio::test(start_paused = true)]
async fn absence_and_listings_are_cached_and_invalidated() {
    let (_test, one, two) = two().await;
    for round in 0..2 {
        two.read("/new").await.unwrap();
        two.list("/").await.unwrap();
        seconds(1).await;
        let (both, trace) = traced(async { (two.read("/new").await, two.list("/").await) }).await;
        assert_eq!(both.0.unwrap(), None, "round {round}");
        assert!(both.1.unwrap().unwrap().iter().all(|child| child.name != "new"));
        assert_eq!((trace.cached, trace.calls), (2, 0));
        one.write("/new", "x").await.unwrap();
        assert_eq!(two.read("/new").await.unwrap().unwrap().text(), "x");
        assert!(two.list("/").await.unwrap().unwrap().iter().any(|child| child.name == "new"));
        one.delete("/new").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_returns_only_when_no_copy_is_left() {
    let (_test, one, two) = two().await;
    for i in 0..100 {
        one.write("/file", i.to_string()).await.unwrap();
        assert_eq!(two.read("/file").await.unwrap().unwrap().text(), i.to_string());
        // Mostly from the cache.
        assert_eq!(two.read("/file").await.unwrap().unwrap().text(), i.to_string());
        two.write("/file", "between").await.unwrap();
        assert_eq!(one.read("/file").await.unwrap().unwrap().text(), "between");
        assert_eq!(two.read("/file").await.unwrap().unwrap().text(), "between");
    }
}

#[tokio::test(start_paused = true)]
async fn lock_changes_show_in_cached_stats() {
    let (_test, one, two) = two().await;
    let handle = one.open("/lock").lock().create_file("").await.unwrap();
    for _ in 0..5 {
        assert_eq!(two.stat("/lock").await.unwrap().unwrap().lock, None);
        let lock = handle.acquire(Mode::Exclusive).await.unwrap();
        assert_eq!(two.stat("/lock").await.unwrap().unwrap().lock, Some(Mode::Exclusive));
        lock.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_reader_holds_a_write_up_for_its_cache_lease_alone() {
    let test = TestCell::start();
    let writer = test.connect().await.unwrap();
    let (line, reader) = over_line(&test).await;
    writer.write("/file", "old").await.unwrap();
    reader.read("/file").await.unwrap();
    seconds(1).await;
    line.cut();
    let began = tokio::time::Instant::now();
    writer.write("/file", "new").await.unwrap();
    let took = began.elapsed();
    assert!(took > Duration::from_millis(1_000) && took < Duration::from_millis(2_500), "{took:?}");
    // The reader cannot serve the old one any more: it has to ask, and nobody answers.
    let read = tokio::time::timeout(Duration::from_secs(5), reader.read("/file")).await;
    assert!(read.is_err(), "{read:?}");
    line.mend();
    assert_eq!(reader.read("/file").await.unwrap().unwrap().text(), "new");
}

#[tokio::test(start_paused = true)]
async fn uncached_handles_always_ask() {
    let (_test, one, _two) = two().await;
    one.write("/file", "x").await.unwrap();
    let handle = one.open("/file").read().uncached().await.unwrap();
    for _ in 0..3 {
        let (file, trace) = traced(handle.contents_and_stat()).await;
        file.unwrap();
        assert_eq!((trace.cached, trace.calls), (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_cache_of_nothing_works_too() {
    let test = TestCell::start();
    let options = SessionOptions { cache: 0, ..SessionOptions::default() };
    let cell = test.line("app:app/none").link().unwrap().session(options).await.unwrap();
    cell.write("/file", "x").await.unwrap();
    for _ in 0..3 {
        assert_eq!(cell.read("/file").await.unwrap().unwrap().text(), "x");
    }
    assert_eq!(cell.observed().cached, 0);
}

#[tokio::test(start_paused = true)]
async fn after_a_fail_over_nothing_old_is_served() {
    let (test, one, two) = two().await;
    for i in 0..10 {
        one.write("/file", i.to_string()).await.unwrap();
        two.read("/file").await.unwrap();
        two.read("/file").await.unwrap();
        test.fail_over();
        one.write("/file", "after").await.unwrap();
        assert_eq!(two.read("/file").await.unwrap().unwrap().text(), "after");
    }
}

/// How many handles each session has, as the master counts them.
async fn handles(test: &TestCell, of: &Cell) -> u32 {
    let operator = test.line("operator").link().unwrap().session(SessionOptions::default()).await.unwrap();
    match operator.request(Message::ListSessions(v1::ListSessions::default())).await.unwrap() {
        Message::SessionList(list) => list.sessions.iter().find(|s| s.session == of.session()).unwrap().handles,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_open_is_answered_from_the_cache() {
    let (test, one, two) = two().await;
    one.write("/file", "x").await.unwrap();
    let first = two.open("/file").read().await.unwrap();
    seconds(1).await;
    let (second, trace) = traced(two.open("/file").read().into_future()).await;
    let second = second.unwrap();
    assert_eq!((trace.cached, trace.calls, second.instance()), (1, 0, first.instance()));
    assert!(!second.created());
    assert_eq!(handles(&test, &two).await, 1);
    // What one does to its own is no concern of the other.
    first.poison();
    assert!(first.stat().await.is_err() && second.stat().await.is_ok());
    let sent = two.observed().sent;
    first.close().await.unwrap();
    assert_eq!(two.observed().sent, sent, "the other still has it open");
    one.write("/file", "y").await.unwrap();
    assert_eq!(second.contents_and_stat().await.unwrap().text(), "y");
    second.close().await.unwrap();
    assert_eq!(handles(&test, &two).await, 0, "closed with the last");
    let (third, trace) = traced(two.open("/file").read().into_future()).await;
    assert!(third.unwrap().contents_and_stat().await.is_ok());
    assert_eq!((trace.cached, trace.calls), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn opens_that_need_the_cell_are_not_answered_from_the_cache() {
    let (_test, one, two) = two().await;
    one.write("/file", "x").await.unwrap();
    let _open = two.open("/file").read().await.unwrap();
    let lasting = one.open("/brief").read().create_file("").ephemeral().await.unwrap();
    let brief = two.open("/brief").read().await.unwrap();
    seconds(1).await;
    let asks = async |open: tidings_client::cell::Open| {
        let (handle, trace) = traced(open.into_future()).await;
        handle.unwrap();
        assert_eq!(trace.calls, 1);
    };
    asks(two.open("/file").read().lock()).await;
    asks(two.open("/file").read().events(Events::CONTENTS)).await;
    asks(two.open("/file").read().uncached()).await;
    asks(two.open("/file").read().create_file("")).await;
    asks(two.open("/file").read().write()).await;
    asks(two.open("/file").write()).await;
    // R9: every open of an ephemeral node keeps it alive, so the cell hears of each.
    asks(two.open("/brief").read()).await;
    lasting.close().await.unwrap();
    assert!(one.stat("/brief").await.unwrap().is_some());
    brief.close().await.unwrap();
    assert_eq!(one.stat("/brief").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_cached_open_ends_with_every_change_of_its_node() {
    let (test, one, two) = two().await;
    one.write("/file", "x").await.unwrap();
    let open = async || {
        let (handle, trace) = traced(two.open("/file").read().into_future()).await;
        handle.map(|handle| (handle, trace.calls))
    };
    let (kept, _) = open().await.unwrap();
    seconds(1).await;
    assert_eq!(open().await.unwrap().1, 0);
    one.write("/file", "y").await.unwrap();
    seconds(1).await;
    let (again, calls) = open().await.unwrap();
    assert_eq!(calls, 1, "it may have changed since");
    seconds(1).await;
    assert_eq!(open().await.unwrap().1, 0);
    test.fail_over();
    seconds(5).await;
    assert_eq!(open().await.unwrap().1, 1, "nothing of an earlier epoch counts");
    one.delete("/file").await.unwrap();
    assert_eq!(open().await.unwrap_err().code, "cell.no_node");
    assert!(kept.stat().await.is_err() && again.stat().await.is_err());
    one.write("/file", "z").await.unwrap();
    assert_ne!(open().await.unwrap().0.instance(), kept.instance());
    // Who may not read it any more may not open it either.
    let (_shared, _) = open().await.unwrap();
    seconds(1).await;
    assert_eq!(open().await.unwrap().1, 0);
    one.write("/acl/nobody", "").await.unwrap();
    let file = one.open("/file").write().await.unwrap();
    file.set_acl(Acl { read: "nobody".into(), ..Acl::default() }, None).await.unwrap();
    assert_eq!(open().await.unwrap_err().code, "cell.denied");
}

#[tokio::test(start_paused = true)]
async fn everybody_who_shares_a_handle_hears_of_its_end() {
    let (_test, one, two) = two().await;
    one.write("/file", "x").await.unwrap();
    let first = two.open("/file").read().await.unwrap();
    seconds(1).await;
    let second = two.open("/file").read().await.unwrap();
    let (mut one_watches, mut other_watches) = (first.watch(), second.watch());
    one.delete("/file").await.unwrap();
    assert_eq!(one_watches.next().await, Some(Event::HandleInvalid));
    assert_eq!(other_watches.next().await, Some(Event::HandleInvalid));
}

/// R9: every open of an ephemeral node counts as an opener, and every open for a lock is a holder of its own. Without the
/// rule this test notices.
#[tokio::test(start_paused = true)]
async fn opens_of_ephemerals_and_for_locks_have_handles_of_their_own() {
    let apart = async |mutant: Option<Mutant>| {
        let test = TestCell::start();
        let link = test.line("operator").link().unwrap();
        let cell = link.session(SessionOptions { mutant, ..SessionOptions::default() }).await.unwrap();
        let _made = cell.open("/brief").create_file("").ephemeral().await.unwrap();
        cell.write("/lock", "x").await.unwrap();
        let open = async || {
            let opened = (cell.open("/brief").read().await.unwrap(), cell.open("/lock").lock().await.unwrap());
            cell.read_many(&["/brief", "/lock"]).await.unwrap();
            seconds(1).await;
            opened
        };
        let ((_one, first), (_two, second)) = (open().await, open().await);
        let _held = first.acquire(Mode::Exclusive).await.unwrap();
        let excluded = matches!(second.try_acquire(Mode::Exclusive).await, Ok(None));
        let listed = cell.request(Message::ListSessions(v1::ListSessions::default())).await;
        let Ok(Message::SessionList(list)) = listed else { panic!("{listed:?}") };
        (list.sessions[0].ephemerals, excluded)
    };
    assert_eq!(apart(None).await, (3, true));
    assert_eq!(apart(Some(Mutant::OpensShared)).await, (2, false));
}

#[tokio::test(start_paused = true)]
async fn the_root_is_open_for_reading_and_asked_for_once() {
    let (_test, one, _two) = two().await;
    one.write("/file", "x").await.unwrap();
    let root = one.root().await.unwrap();
    assert!(root.read_dir().await.unwrap().iter().any(|child| child.name == "file"));
    seconds(1).await;
    let (again, trace) = traced(one.root()).await;
    assert_eq!((again.unwrap().path(), trace.calls), ("/", 0));
}
