//! Locks: hand-over, queues, losses, sequencers.

use super::{code, over_line, seconds, soon, still_waits, two};
use std::time::Duration;
use tidings_client::cell::testing::TestCell;
use tidings_client::cell::{Cell, Handle, Mode, Sequencer};

async fn lockable(cell: &Cell) -> Handle {
    cell.open("/lock").read().lock().create_file("").await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_handed_over() {
    let (_test, one, two) = two().await;
    let (mine, theirs) = (lockable(&one).await, lockable(&two).await);
    let lock = mine.acquire(Mode::Exclusive).await.unwrap();
    assert_eq!(lock.generation(), 1);
    assert!(theirs.try_acquire(Mode::Exclusive).await.unwrap().is_none());
    let mut waiting = std::pin::pin!(theirs.acquire(Mode::Exclusive));
    assert!(still_waits(&mut waiting).await);
    lock.release().await.unwrap();
    let next = soon(waiting).await.unwrap();
    assert_eq!(next.generation(), 2);
    assert_eq!(next.loss(), None);
}

#[tokio::test(start_paused = true)]
async fn waiting_goes_on_for_longer_than_a_request_is_held() {
    let (_test, one, two) = two().await;
    let (mine, theirs) = (lockable(&one).await, lockable(&two).await);
    let lock = mine.acquire(Mode::Exclusive).await.unwrap();
    let waiting = tokio::spawn(async move { theirs.acquire(Mode::Exclusive).await.map(|lock| lock.generation()) });
    seconds(300).await;
    assert!(!waiting.is_finished());
    lock.release().await.unwrap();
    assert_eq!(soon(waiting).await.unwrap().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_guard_releases_and_the_handle_acquires_again() {
    let (_test, one, two) = two().await;
    let (mine, theirs) = (lockable(&one).await, lockable(&two).await);
    for round in 0..10 {
        let lock = mine.acquire(Mode::Exclusive).await.unwrap();
        assert_eq!(lock.generation(), round * 2 + 1);
        drop(lock);
        // The same handle at once: the release is not overtaken.
        let again = mine.acquire(Mode::Exclusive).await.unwrap();
        again.release().await.unwrap();
    }
    assert!(theirs.try_acquire(Mode::Exclusive).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_waiting_leaves_the_queue() {
    let (_test, one, two) = two().await;
    let (mine, theirs) = (lockable(&one).await, lockable(&two).await);
    let lock = mine.acquire(Mode::Exclusive).await.unwrap();
    for _ in 0..3 {
        let given_up = tokio::time::timeout(Duration::from_millis(50), theirs.acquire(Mode::Exclusive)).await;
        assert!(given_up.is_err());
    }
    lock.release().await.unwrap();
    // Nobody holds it: the given-up acquires were not granted.
    let lock = soon(mine.acquire(Mode::Exclusive)).await.unwrap();
    assert_eq!(lock.generation(), 2);
    let mut waiting = std::pin::pin!(theirs.acquire(Mode::Exclusive));
    assert!(still_waits(&mut waiting).await);
    drop(lock);
    assert_eq!(soon(waiting).await.unwrap().generation(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_dropped_when_it_was_just_granted_is_undone() {
    let (_test, one, two) = two().await;
    let (mine, theirs) = (lockable(&one).await, lockable(&two).await);
    for wait in 0..20 {
        let acquire = mine.acquire(Mode::Exclusive);
        // Somewhere in here it is granted, and nobody looks.
        drop(tokio::time::timeout(Duration::from_micros(wait), acquire).await);
        let lock = soon(theirs.acquire(Mode::Exclusive)).await.unwrap();
        lock.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn readers_share_and_writers_do_not() {
    let (_test, one, two) = two().await;
    let (mine, theirs) = (lockable(&one).await, lockable(&two).await);
    let shared = mine.acquire(Mode::Shared).await.unwrap();
    let also = theirs.acquire(Mode::Shared).await.unwrap();
    let third = lockable(&one).await;
    assert!(third.try_acquire(Mode::Exclusive).await.unwrap().is_none());
    let stat = mine.stat().await.unwrap();
    assert_eq!((stat.lock, stat.lock_holders), (Some(Mode::Shared), 2));
    drop((shared, also));
    let lock = soon(third.acquire(Mode::Exclusive)).await.unwrap();
    assert_eq!(lock.mode(), Mode::Exclusive);
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_is_held_back_for_its_delay() {
    let test = TestCell::start();
    let (line, lost) = over_line(&test).await;
    let other = test.connect().await.unwrap();
    let handle = lost.open("/lock").lock().lock_delay(Duration::from_secs(20)).create_file("").await.unwrap();
    let lock = handle.acquire(Mode::Exclusive).await.unwrap();
    let theirs = lockable(&other).await;
    let began = tokio::time::Instant::now();
    line.cut();
    let next = soon(theirs.acquire(Mode::Exclusive)).await.unwrap();
    // A lease of 12 s and a delay of 20 s.
    assert!(began.elapsed() > Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(next.generation(), 2);
    line.mend();
    assert_eq!(soon(lock.lost()).await.code, "cell.expired");
    assert_eq!(code(lock.release().await), "cell.expired");
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_lost_with_its_node() {
    let (_test, one, two) = two().await;
    let mine = lockable(&one).await;
    let lock = mine.acquire(Mode::Exclusive).await.unwrap();
    two.delete("/lock").await.unwrap();
    soon(lock.lost()).await;
    assert!(lock.loss().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_sequencer_holds_until_the_lock_is_freed() {
    let (_test, one, two) = two().await;
    let mine = lockable(&one).await;
    let lock = mine.acquire(Mode::Exclusive).await.unwrap();
    let text = lock.sequencer().to_string();
    assert!(text.starts_with("seq1."));
    let sequencer: Sequencer = text.parse().unwrap();
    assert_eq!(sequencer, lock.sequencer());
    assert!(two.check_sequencer(&sequencer).await.unwrap());
    assert!(mine.check_sequencer(&mine.sequencer().await.unwrap()).await.unwrap());
    lock.release().await.unwrap();
    assert!(!two.check_sequencer(&sequencer).await.unwrap());
    // Offline, the later one is greater.
    let later = mine.acquire(Mode::Exclusive).await.unwrap().sequencer();
    let keys = two.public_keys().await.unwrap();
    assert_eq!(keys.compare(sequencer.token(), later.token()).unwrap(), std::cmp::Ordering::Less);
    assert_eq!(code("seq1.nonsense".parse::<Sequencer>().and_then(|_| "x".parse::<Sequencer>())), "cell.bad_sequencer");
}

#[tokio::test(start_paused = true)]
async fn a_handle_that_is_tied_to_a_lock_fails_once_that_is_freed() {
    let (_test, one, two) = two().await;
    let mine = lockable(&one).await;
    let lock = mine.acquire(Mode::Exclusive).await.unwrap();
    let data = two.open("/data").read().write().lock().create_file("0").await.unwrap();
    data.set_sequencer(lock.sequencer());
    data.set_contents("1", None).await.unwrap();
    assert_eq!(data.contents_and_stat().await.unwrap().text(), "1");
    let own = data.acquire(Mode::Exclusive).await.unwrap();
    assert_eq!(data.sequencer().await.unwrap(), own.sequencer());
    lock.release().await.unwrap();
    assert_eq!(code(data.sequencer().await), "cell.stale_sequencer");
    assert_eq!(code(data.check_sequencer(&own.sequencer()).await), "cell.stale_sequencer");
    assert_eq!(code(own.release().await), "cell.stale_sequencer");
    assert_eq!(code(data.set_contents("2", None).await), "cell.stale_sequencer");
    assert_eq!(code(data.contents_and_stat().await), "cell.stale_sequencer");
    assert_eq!(code(data.read_dir().await.map(|_| ())), "cell.not_a_directory");
    assert_eq!(code(data.acquire(Mode::Exclusive).await), "cell.stale_sequencer");
    assert_eq!(code(data.delete(None).await), "cell.stale_sequencer");
    data.set_sequencer(None);
    data.set_contents("3", None).await.unwrap();
    // Its lock was released all the same, and a lock is no worse for being what its own handle is tied to.
    let own = soon(data.acquire(Mode::Exclusive)).await.unwrap();
    data.set_sequencer(own.sequencer());
    own.release().await.unwrap();
    data.set_sequencer(None);
    assert_eq!(data.stat().await.unwrap().lock, None);
}

#[tokio::test(start_paused = true)]
async fn many_tasks_of_one_session_wait_in_turn() {
    let (_test, one, two) = two().await;
    let held = lockable(&two).await;
    let lock = held.acquire(Mode::Exclusive).await.unwrap();
    let counter = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..500 {
        let (one, counter) = (one.clone(), counter.clone());
        tasks.spawn(async move {
            let lock = lockable(&one).await.acquire(Mode::Exclusive).await.unwrap();
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            lock.release().await.unwrap();
        });
    }
    seconds(40).await;
    // While hundreds wait, the session lives and other calls get through.
    one.write("/other", "x").await.unwrap();
    lock.release().await.unwrap();
    while let Some(done) = soon(tasks.join_next()).await {
        done.unwrap();
    }
    assert_eq!(counter.load(std::sync::atomic::Ordering::Relaxed), 500);
    assert_eq!(one.observed().jeopardies, 0);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_waits_for_a_lock_writes_on() {
    let (_test, one, two) = two().await;
    let lock = lockable(&one).await.acquire(Mode::Exclusive).await.unwrap();
    let theirs = lockable(&two).await;
    let waiting = tokio::spawn(async move { theirs.acquire(Mode::Exclusive).await.map(|lock| lock.generation()) });
    // More changes than the cell keeps answers for (R8): the waiting acquire must not hold them up.
    for i in 0..1_500 {
        soon(two.write("/file", i.to_string())).await.unwrap();
    }
    assert!(!waiting.is_finished());
    lock.release().await.unwrap();
    assert_eq!(soon(waiting).await.unwrap().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_lock_keeps_nobody_from_other_calls() {
    let (_test, one, two) = two().await;
    let (mine, other) = (lockable(&two).await, two.open("/other").lock().create_file("").await.unwrap());
    let lock = mine.acquire(Mode::Exclusive).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..800 {
        let handle = lockable(&one).await;
        tasks.spawn(async move { handle.acquire(Mode::Exclusive).await.unwrap().release().await.unwrap() });
    }
    seconds(1).await;
    soon(one.write("/file", "x")).await.unwrap();
    let handle = one.open("/other").lock().await.unwrap();
    soon(handle.acquire(Mode::Exclusive)).await.unwrap().release().await.unwrap();
    assert!(other.try_acquire(Mode::Exclusive).await.unwrap().is_some());
    lock.release().await.unwrap();
    while let Some(done) = soon(tasks.join_next()).await {
        done.unwrap();
    }
}
