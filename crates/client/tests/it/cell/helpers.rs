//! Elections, mutexes, memberships and configurations.

use super::{code, over_line, seconds, soon, still_waits, two};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tidings_client::cell::testing::TestCell;
use tidings_client::cell::{Acl, Cell, Config, Election, Membership, Mutex, SessionOptions};

#[tokio::test(start_paused = true)]
async fn one_leads_and_the_next_follows() {
    let (_test, one, two) = two().await;
    let (mine, theirs) = (Election::new(&one, "/leader"), Election::new(&two, "/leader"));
    assert_eq!(theirs.leader().await.unwrap(), None);
    let mut observed = theirs.observe().await.unwrap();
    assert_eq!(soon(observed.next()).await, Some(Ok(None)));
    let leadership = mine.campaign("one").await.unwrap();
    let leader = soon(observed.next()).await.unwrap().unwrap().unwrap();
    assert_eq!((leader.identity.as_str(), leader.generation), ("one", leadership.generation()));
    assert_eq!(theirs.leader().await.unwrap(), Some(leader));
    let mut campaign = std::pin::pin!(theirs.campaign("two"));
    assert!(still_waits(&mut campaign).await);
    leadership.resign().await.unwrap();
    let leadership = soon(campaign).await.unwrap();
    assert_eq!(leadership.identity(), "two");
    assert!(one.check_sequencer(&leadership.sequencer()).await.unwrap());
    loop {
        if soon(observed.next()).await.unwrap().unwrap().is_some_and(|leader| leader.identity == "two") {
            break;
        }
    }
    drop(leadership);
    seconds(1).await;
    assert_eq!(mine.leader().await.unwrap(), None, "nobody holds the lock");
    assert_eq!(code(mine.campaign("two\nlines").await.map(drop)), "cell.bad_identity");
}

#[tokio::test(start_paused = true)]
async fn a_lost_leader_is_replaced_and_cannot_write() {
    let test = TestCell::start();
    let (line, lost) = over_line(&test).await;
    let other = test.connect().await.unwrap();
    let leadership = Election::new(&lost, "/leader").campaign("lost").await.unwrap();
    let next = Election::new(&other, "/leader");
    line.cut();
    let after = tokio::time::timeout(Duration::from_secs(120), next.campaign("next")).await.unwrap().unwrap();
    assert!(after.generation() > leadership.generation());
    line.mend();
    assert_eq!(soon(leadership.lost()).await.code, "cell.expired");
    assert_eq!(next.leader().await.unwrap().unwrap().identity, "next");
}

#[tokio::test(start_paused = true)]
async fn a_mutex_excludes_tasks_and_processes() {
    let (_test, one, two) = two().await;
    let mutexes = [Mutex::new(&one, "/mutex"), Mutex::new(&two, "/mutex")];
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..20 {
        let (mutex, inside) = (mutexes[i % 2].clone(), inside.clone());
        tasks.spawn(async move {
            let guard = mutex.lock().await.unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
            tokio::time::sleep(Duration::from_millis(10)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            match i % 3 {
                0 => guard.unlock().await.unwrap(),
                _ => drop(guard),
            }
        });
    }
    while let Some(done) = soon(tasks.join_next()).await {
        done.unwrap();
    }
    let held = mutexes[0].try_lock().await.unwrap().expect("free");
    assert!(mutexes[0].try_lock().await.unwrap().is_none());
    assert!(mutexes[1].try_lock().await.unwrap().is_none());
    assert!(one.check_sequencer(&held.sequencer()).await.unwrap());
    drop(held);
    // Somebody deletes the file: the mutex makes another one.
    seconds(1).await;
    one.delete("/mutex").await.unwrap();
    soon(mutexes[1].lock()).await.unwrap().unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn members_come_and_go() {
    let test = TestCell::start();
    let watcher = test.connect().await.unwrap();
    let (line, lost) = over_line(&test).await;
    let stays = test.connect().await.unwrap();
    let group = |cell| Membership::new(cell, "/app/workers").unwrap();
    let mut sets = group(&watcher).watch().await.unwrap();
    assert!(soon(sets.next()).await.unwrap().unwrap().is_empty());
    let first = group(&stays).join("stays", "10.0.0.1").await.unwrap();
    let _second = group(&lost).join("lost", "10.0.0.2").await.unwrap();
    let set = loop {
        let set = soon(sets.next()).await.unwrap().unwrap();
        if set.len() == 2 {
            break set;
        }
    };
    assert_eq!((set["stays"].as_ref(), set["lost"].as_ref()), (&b"10.0.0.1"[..], &b"10.0.0.2"[..]));
    assert_eq!(code(group(&stays).try_join("lost", "").await.map(drop)), "cell.node_exists");
    first.update("10.0.0.3").await.unwrap();
    while soon(sets.next()).await.unwrap().unwrap()["stays"] != "10.0.0.3" {}
    // The one that was lost is waited for.
    line.cut();
    let again = soon(group(&stays).join("lost", "10.0.0.4")).await.unwrap();
    assert_eq!(again.name(), "lost");
    again.leave().await.unwrap();
    first.leave().await.unwrap();
    while !soon(sets.next()).await.unwrap().unwrap().is_empty() {}
    assert!(group(&watcher).members().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_name_watches_the_directory_that_is_there() {
    let test = TestCell::start();
    let (line, waiter) = over_line(&test).await;
    let other = test.connect().await.unwrap();
    let group = |cell| Membership::new(cell, "/group").unwrap();
    let first = group(&other).join("name", "").await.unwrap();
    let joining = tokio::spawn({
        let group = group(&waiter);
        async move { group.join("name", "").await.unwrap() }
    });
    seconds(1).await;
    // Out of its sight the directory is made anew, and the name is taken in it.
    line.cut();
    first.leave().await.unwrap();
    other.delete("/group").await.unwrap();
    let second = group(&other).join("name", "").await.unwrap();
    line.mend();
    seconds(2).await;
    let calls = waiter.observed().calls;
    for _ in 0..2_000 {
        tokio::task::yield_now().await;
    }
    assert!(waiter.observed().calls < calls + 10, "it asks without a pause");
    second.leave().await.unwrap();
    soon(joining).await.unwrap().leave().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_election_is_observed_beyond_the_end_of_its_file() {
    let (_test, one, two) = two().await;
    let election = Election::new(&one, "/leader");
    let mut observed = Election::new(&two, "/leader").observe().await.unwrap();
    assert_eq!(soon(observed.next()).await, Some(Ok(None)));
    let first = election.campaign("first").await.unwrap();
    assert_eq!(soon(observed.next()).await.unwrap().unwrap().unwrap().identity, "first");
    one.delete("/leader").await.unwrap();
    assert_eq!(soon(observed.next()).await, Some(Ok(None)), "nobody leads");
    soon(first.lost()).await;
    seconds(5).await;
    let _second = election.campaign("second").await.unwrap();
    loop {
        if soon(observed.next()).await.unwrap().unwrap().is_some_and(|leader| leader.identity == "second") {
            break;
        }
    }
    two.close().await.unwrap();
    assert_eq!(soon(observed.next()).await.unwrap().unwrap_err().code, "cell.closed");
    assert_eq!(soon(observed.next()).await, None);
}

/// The owner of `/app` shuts others out, and lets them in again.
async fn shut(cell: &Cell, shut: bool) {
    let read = if shut { "owner" } else { "" };
    let acl = Acl { read: read.to_owned(), ..Acl::default() };
    let names = cell.list("/app").await.unwrap().unwrap();
    for path in names.iter().map(|child| format!("/app/{}", child.name)).chain(["/app".to_owned()]) {
        cell.open(&path).write().await.unwrap().set_acl(acl.clone(), None).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_follows_hears_of_errors_and_goes_on_when_they_have_passed() {
    let test = TestCell::start();
    let owner = test.connect().await.unwrap();
    let other = test.line("app:app/other").link().unwrap().session(SessionOptions::default()).await.unwrap();
    owner.create_directory("/acl").await.unwrap();
    owner.write("/acl/owner", "app:app/test\n").await.unwrap();
    owner.create_directory("/app").await.unwrap();
    owner.write("/app/limits", r#"{"requests": 1}"#).await.unwrap();
    let mut leaders = Election::new(&other, "/app/leader").observe().await.unwrap();
    assert_eq!(soon(leaders.next()).await, Some(Ok(None)));
    let mut members = Membership::new(&other, "/app").unwrap().watch().await.unwrap();
    assert_eq!(soon(members.next()).await.unwrap().unwrap().len(), 2);
    let mut limits = Config::<Limits>::open(&other, "/app/limits").await.unwrap();

    shut(&owner, true).await;
    owner.write("/app/leader", "somebody").await.unwrap();
    owner.write("/app/limits", r#"{"requests": 2}"#).await.unwrap();
    owner.write("/app/more", "").await.unwrap();
    // Whoever is shut out is told of no change; after a fail-over everybody looks again.
    test.fail_over();
    assert_eq!(code(soon(leaders.next()).await.unwrap().map(drop)), "cell.denied");
    assert_eq!(code(soon(members.next()).await.unwrap().map(drop)), "cell.denied");
    while limits.error().is_none_or(|error| error.code != "cell.denied") {
        assert!(soon(limits.changed()).await, "it goes on");
    }
    seconds(5).await;

    shut(&owner, false).await;
    let _leadership = Election::new(&owner, "/app/leader").campaign("owner").await.unwrap();
    while soon(leaders.next()).await.unwrap().unwrap().is_none_or(|leader| leader.identity != "owner") {}
    while soon(members.next()).await.unwrap().unwrap().len() != 3 {}
    while limits.get().requests != 2 || limits.error().is_some() {
        assert!(soon(limits.changed()).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_goes_and_comes_back_is_followed() {
    let (_test, one, two) = two().await;
    one.create_directories("/deep/app").await.unwrap();
    let mut leaders = Election::new(&two, "/deep/app/leader").observe().await.unwrap();
    let mut members = Membership::new(&two, "/deep/app").unwrap().watch().await.unwrap();
    assert_eq!(soon(leaders.next()).await, Some(Ok(None)));
    assert_eq!(soon(members.next()).await.unwrap().unwrap().len(), 1);
    for path in ["/deep/app/leader", "/deep/app", "/deep"] {
        one.delete(path).await.unwrap();
    }
    assert!(soon(members.next()).await.unwrap().unwrap().is_empty());
    seconds(5).await;
    one.create_directories("/deep/app").await.unwrap();
    let _leadership = Election::new(&one, "/deep/app/leader").campaign("one").await.unwrap();
    while soon(leaders.next()).await.unwrap().unwrap().is_none_or(|leader| leader.identity != "one") {}
    while soon(members.next()).await.unwrap().unwrap().is_empty() {}
}

#[derive(Debug, serde::Deserialize)]
struct Limits {
    requests: u32,
}

#[tokio::test(start_paused = true)]
async fn a_configuration_follows_its_file_and_keeps_the_last_good_value() {
    let (_test, one, two) = two().await;
    assert_eq!(code(Config::<Limits>::open(&two, "/limits").await.map(drop)), "cell.no_node");
    one.write("/limits", "nonsense").await.unwrap();
    assert_eq!(code(Config::<Limits>::open(&two, "/limits").await.map(drop)), "cell.unreadable_config");
    one.write("/limits", r#"{"requests": 1}"#).await.unwrap();
    let mut limits = Config::<Limits>::open(&two, "/limits").await.unwrap();
    assert_eq!((limits.get().requests, limits.error()), (1, None));
    one.write("/limits", r#"{"requests": 2}"#).await.unwrap();
    assert!(soon(limits.changed()).await);
    assert_eq!((limits.get().requests, limits.error()), (2, None));
    one.write("/limits", r#"{"requests": "many"}"#).await.unwrap();
    assert!(soon(limits.changed()).await);
    assert_eq!(limits.get().requests, 2);
    assert_eq!(limits.error().unwrap().code, "cell.unreadable_config");
    one.delete("/limits").await.unwrap();
    while limits.error().is_none_or(|error| error.code != "cell.no_node") {
        assert!(soon(limits.changed()).await);
    }
    assert_eq!(limits.get().requests, 2);
    seconds(5).await;
    one.write("/limits", r#"{"requests": 3}"#).await.unwrap();
    while limits.get().requests != 3 {
        assert!(soon(limits.changed()).await);
    }
    assert_eq!(limits.error(), None);
    two.close().await.unwrap();
    while soon(limits.changed()).await {}
    assert_eq!(limits.get().requests, 3);
}
