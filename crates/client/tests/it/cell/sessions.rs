//! Sessions: jeopardy, safety, expiry, closing, fail-over, what the client observes.

use super::{code, over_line, seconds, soon, still_waits, two};
use std::time::Duration;
use tidings_base::Class;
use tidings_client::cell::testing::TestCell;
use tidings_client::cell::{Cell, Mode, SessionEvent, SessionOptions, State};

#[tokio::test(start_paused = true)]
async fn a_pause_blocks_calls_and_nothing_else() {
    let test = TestCell::start();
    let (line, cell) = over_line(&test).await;
    let mut events = cell.events();
    cell.write("/file", "x").await.unwrap();
    let handle = cell.open("/file").read().lock().await.unwrap();
    let lock = handle.acquire(Mode::Exclusive).await.unwrap();
    seconds(60).await;
    assert_eq!(cell.state(), State::Active, "held by KeepAlives alone");
    line.cut();
    assert_eq!(soon(events.next()).await, Some(SessionEvent::Jeopardy));
    assert_eq!(cell.state(), State::Jeopardy);
    let mut read = std::pin::pin!(cell.read("/file"));
    assert!(still_waits(&mut read).await, "calls wait in jeopardy");
    line.mend();
    assert_eq!(soon(read).await.unwrap().unwrap().text(), "x");
    assert_eq!(soon(events.next()).await, Some(SessionEvent::Safe { survived: vec!["/file".into()], lost: vec![] }));
    assert_eq!(lock.loss(), None);
    let observed = cell.observed();
    assert_eq!((observed.jeopardies, observed.failed), (1, 0));
    assert!(observed.jeopardy > Duration::from_millis(150), "{observed:?}");
    assert!(observed.jeopardy < Duration::from_secs(5), "{observed:?}");
    assert!(observed.availability() > 0.9 && observed.availability() < 1.0);
    assert!(observed.unanswered > 0);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_lives_on_its_cache_is_not_idle() {
    let (_test, one, two) = two().await;
    one.write("/config", "x").await.unwrap();
    two.read("/config").await.unwrap();
    let sent = two.observed().sent;
    for _ in 0..36 {
        seconds(5).await;
        assert_eq!(two.read("/config").await.unwrap().unwrap().text(), "x");
    }
    assert_eq!(two.state(), State::Active);
    let observed = two.observed();
    assert_eq!(observed.cached, 36, "{observed:?}");
    // KeepAlives, and a call in half a minute.
    assert!(observed.sent - sent < 40, "{observed:?}");
    assert_eq!(one.state(), State::Expired, "nobody uses it");
}

#[tokio::test(start_paused = true)]
async fn a_change_that_an_ended_session_refused_has_not_happened() {
    let (_test, one, two) = two().await;
    one.read("/file").await.unwrap();
    // It is idle, and its end waits for its cache lease.
    tokio::time::sleep(Duration::from_millis(60_300)).await;
    assert_eq!(one.state(), State::Active);
    let refused = one.write("/file", "x").await.unwrap_err();
    assert_eq!((refused.code.as_ref(), refused.class), ("cell.expired", Class::Refused));
    drop(two);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_not_found_again_expires() {
    let test = TestCell::start();
    let (line, cell) = over_line(&test).await;
    let other = test.connect().await.unwrap();
    let mut events = cell.events();
    let mine = cell.open("/mine").read().lock().create_file("x").ephemeral().await.unwrap();
    let lock = mine.acquire(Mode::Exclusive).await.unwrap();
    line.cut();
    let waiting = tokio::spawn({
        let cell = cell.clone();
        async move { cell.stat("/mine").await }
    });
    assert_eq!(soon(events.next()).await, Some(SessionEvent::Jeopardy));
    seconds(20).await;
    assert_eq!(other.read("/mine").await.unwrap(), None, "the ephemeral file went with the session");
    line.mend();
    assert_eq!(soon(events.next()).await, Some(SessionEvent::Expired));
    assert_eq!(soon(events.next()).await, None);
    assert_eq!(code(soon(waiting).await.unwrap()), "cell.expired");
    assert_eq!(code(cell.read("/mine").await), "cell.expired");
    assert_eq!(code(mine.stat().await), "cell.expired");
    assert_eq!(soon(lock.lost()).await.code, "cell.expired");
    assert_eq!(cell.state(), State::Expired);
    assert!(cell.observed().failed >= 2);
    assert_eq!(soon(cell.events().next()).await, None);
}

#[tokio::test(start_paused = true)]
async fn the_grace_period_ends_by_itself() {
    let test = TestCell::start();
    let line = test.line("app:app/cut");
    let options = SessionOptions { grace: Duration::from_secs(7), ..SessionOptions::default() };
    let cell = line.link().unwrap().session(options).await.unwrap();
    line.cut();
    let began = tokio::time::Instant::now();
    assert_eq!(code(soon(cell.read("/x")).await), "cell.expired");
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_fail_over_is_a_pause() {
    let (test, one, two) = two().await;
    one.write("/file", "0").await.unwrap();
    let handle = one.open("/file").read().write().lock().await.unwrap();
    let lock = handle.acquire(Mode::Exclusive).await.unwrap();
    let sequencer = lock.sequencer();
    for i in 1..6 {
        test.fail_over();
        handle.set_contents(i.to_string(), None).await.unwrap();
        assert_eq!(two.read("/file").await.unwrap().unwrap().text(), i.to_string());
        assert!(two.check_sequencer(&sequencer).await.unwrap());
        assert_eq!(lock.loss(), None);
    }
    lock.release().await.unwrap();
    assert_eq!((one.observed().jeopardies, one.observed().failed), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn closing_ends_everything_of_the_session() {
    let (_test, one, two) = two().await;
    let mine = one.open("/mine").lock().create_file("").ephemeral().await.unwrap();
    let lock = mine.acquire(Mode::Exclusive).await.unwrap();
    let mut events = one.events();
    let other = one.clone();
    one.close().await.unwrap();
    assert_eq!(events.next().await, Some(SessionEvent::Closed));
    assert_eq!(events.next().await, None);
    assert_eq!(two.read("/mine").await.unwrap(), None);
    assert_eq!(code(other.read("/mine").await), "cell.closed");
    assert_eq!(lock.lost().await.code, "cell.closed");
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_of_a_session_closes_it() {
    let (_test, one, two) = two().await;
    let mine = one.open("/mine").create_file("").ephemeral().await.unwrap();
    drop(one);
    seconds(2).await;
    assert!(two.read("/mine").await.unwrap().is_some(), "its handle keeps the session");
    drop(mine);
    seconds(1).await;
    assert_eq!(two.read("/mine").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn sessions_of_one_link_share_its_renewals() {
    let test = TestCell::start();
    let link = test.line("app:app/many").link().unwrap();
    let mut cells: Vec<Cell> = Vec::new();
    for _ in 0..50 {
        cells.push(link.session(SessionOptions::default()).await.unwrap());
    }
    cells[0].write("/file", "x").await.unwrap();
    for cell in &cells {
        cell.read("/file").await.unwrap();
    }
    seconds(60).await;
    let sent: u64 = cells.iter().map(|cell| cell.observed().sent).sum();
    assert!(sent < 50 * 15, "a session sends a KeepAlive every ten seconds and little else: {sent}");
    let sessions: std::collections::BTreeSet<u64> = cells.iter().map(Cell::session).collect();
    assert_eq!(sessions.len(), 50);
    for cell in &cells {
        let cached = cell.observed().cached;
        cell.read("/file").await.unwrap();
        assert_eq!(cell.observed().cached, cached + 1, "the link's lease kept the copies alive");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cell_that_nobody_answers_for_is_an_error() {
    let test = TestCell::start();
    let line = test.line("app:app/cut");
    line.cut();
    let options = SessionOptions { begin_within: Duration::from_secs(5), ..SessionOptions::default() };
    let error = line.link().unwrap().session(options).await.unwrap_err();
    assert!(matches!(error.class, tidings_base::Class::Unreachable | tidings_base::Class::OutcomeUnknown), "{error}");
}

#[tokio::test(start_paused = true)]
async fn who_closes_counts_on_no_lock_from_then_on() {
    let test = TestCell::start();
    let (line, cell) = over_line(&test).await;
    cell.write("/file", "x").await.unwrap();
    let handle = cell.open("/file").read().lock().await.unwrap();
    let lock = handle.acquire(Mode::Exclusive).await.unwrap();
    line.cut();
    let begin = tokio::time::Instant::now();
    let closing = tokio::spawn(cell.clone().close());
    assert_eq!(soon(lock.lost()).await.code, "cell.closed");
    assert!(begin.elapsed() < Duration::from_secs(1), "the answer may never come");
    soon(closing).await.unwrap().unwrap();
}
