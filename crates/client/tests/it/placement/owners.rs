use super::helpers::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidings_client::placement::testing::TestPool;
use tidings_client::placement::{Items, MAX_KEY, Owner, OwnerState};
use tidings_wire::v1::OwnerLoad;

#[tokio::test(start_paused = true)]
async fn each_key_has_one_owner_and_all_are_owned() {
    let pool = TestPool::start("n").await.unwrap();
    let one = pool.join("one").await.unwrap();
    pool.settled().await;
    assert_eq!(held(&one), 200);
    let two = pool.join("two").await.unwrap();
    pool.settled().await;
    assert_eq!(held(&one) + held(&two), 200);
    assert!(held(&one) > 40 && held(&two) > 40, "{} and {}", held(&one), held(&two));
    assert!(keys().all(|key| one.check_now(&key).is_some() != two.check_now(&key).is_some()));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_is_cut_off_stops_before_the_next_one_begins() {
    let pool = TestPool::start("n").await.unwrap();
    let line = pool.line();
    let one = Owner::join(line.clone(), pool.options("one")).await.unwrap();
    pool.settled().await;
    let before = one.check_now("key 1").unwrap();
    line.cut();
    let two = pool.join("two").await.unwrap();
    for _ in 0..400 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(keys().all(|key| one.check_now(&key).is_none() || two.check_now(&key).is_none()));
    }
    assert_eq!((held(&one), held(&two)), (0, 200));
    assert!(!one.check_continuous("key 1", before));
    assert!(two.check_now("key 1").unwrap() > before, "a fencing token grows");
    line.mend();
    seconds(5).await;
    pool.settled().await;
    assert_eq!(held(&one) + held(&two), 200);
    assert!(held(&one) > 0);
}

#[tokio::test(start_paused = true)]
async fn a_fail_over_of_the_managers_interrupts_nothing() {
    let pool = TestPool::start("n").await.unwrap();
    let one = pool.join("one").await.unwrap();
    pool.settled().await;
    let before = one.check_now("key 1").unwrap();
    let mut changes = one.changes();
    assert!(!changes.next().await.unwrap().granted.is_empty());
    pool.fail_over();
    seconds(30).await;
    assert!(one.check_continuous("key 1", before));
    one.leave();
    let last = changes.next().await.unwrap();
    assert!(last.granted.is_empty() && !last.revoked.is_empty());
    assert_eq!(changes.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn operations_answer_only_while_the_lease_holds() {
    let pool = TestPool::start("n").await.unwrap();
    let line = pool.line();
    let counters = Items::new();
    let owner = Owner::join(line.clone(), pool.options("one").items(&counters)).await.unwrap();
    pool.settled().await;
    let add = |by: u64| {
        move |count: &mut Option<u64>| {
            let count = count.get_or_insert(0);
            *count += by;
            *count
        }
    };
    assert_eq!(owner.with(&counters, "k", add(1)).unwrap(), 1);
    assert_eq!(owner.with(&counters, "k", add(1)).unwrap(), 2);
    let lease = owner.check_now("k").unwrap();
    assert_eq!(owner.guarded("k", |seen| seen).unwrap(), lease);
    assert_eq!(owner.with(&counters, vec![b'x'; MAX_KEY + 1], add(1)).unwrap_err().code, "placement.key_too_long");
    // The lease ends while an operation runs: its answer is not given.
    let interrupted = owner
        .guarded_async("k", async |_| {
            line.cut();
            seconds(20).await;
        })
        .await;
    assert_eq!(interrupted.unwrap_err().code, "placement.interrupted");
    assert_eq!(owner.with(&counters, "k", add(1)).unwrap_err().code, "placement.not_owner");
    line.mend();
    pool.settled().await;
    assert_eq!(owner.with(&counters, "k", add(1)).unwrap(), 1, "what was counted under the earlier lease is stale");
    let shared = owner.with_shared(&counters, "k", || 7, async |count| count).await;
    assert_eq!(shared.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_an_application_measured_stands_until_it_says_something_else() {
    let pool = TestPool::start("n").await.unwrap();
    let line = pool.line();
    let one = Owner::join(line.clone(), pool.options("one")).await.unwrap();
    pool.settled().await;
    let rate = async || pool.placement().owners("n").await.unwrap()[0].rate;
    (0..1_000).for_each(|_| assert!(one.check_now("k").is_some()));
    seconds(15).await;
    assert!(rate().await > 10.0, "checks are counted: {}", rate().await);
    one.report_load(OwnerLoad { rate: 7.0, hot: vec![], samples: 20_000 });
    // Longer than checks are gathered.
    seconds(25).await;
    assert_eq!(rate().await, 7.0);
    pool.fail_over();
    seconds(25).await;
    assert_eq!(rate().await, 7.0, "the next leader is told, too");
    line.cut();
    one.report_load(OwnerLoad { rate: 5.0, hot: vec![], samples: 20_000 });
    seconds(5).await;
    line.mend();
    seconds(25).await;
    assert_eq!(rate().await, 5.0, "the poll that carried it was lost");
    one.report_load(OwnerLoad { rate: 0.0, hot: vec![], samples: 20_000 });
    seconds(25).await;
    assert_eq!(rate().await, 0.0);
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_owner_gives_everything_up() {
    let pool = TestPool::start("n").await.unwrap();
    let well = Arc::new(AtomicBool::new(true));
    let health = well.clone();
    let options = pool.options("one").health(move || health.load(Ordering::Relaxed));
    let one = Owner::join(pool.line(), options).await.unwrap();
    let two = pool.join("two").await.unwrap();
    pool.settled().await;
    assert!(held(&one) > 0);
    well.store(false, Ordering::Relaxed);
    seconds(20).await;
    assert_eq!((held(&one), held(&two)), (0, 200));
    well.store(true, Ordering::Relaxed);
    seconds(10).await;
    pool.settled().await;
    assert!(held(&one) > 0);
}

#[tokio::test(start_paused = true)]
async fn a_leave_is_said_until_a_manager_has_heard_it() {
    let pool = TestPool::start("n").await.unwrap();
    let line = pool.line();
    let one = Owner::join(line.clone(), pool.options("one")).await.unwrap();
    let two = pool.join("two").await.unwrap();
    pool.settled().await;
    // Its last words are lost.
    line.cut();
    one.leave();
    seconds(4).await;
    line.mend();
    seconds(3).await;
    assert_eq!(held(&two), 200, "nobody waits for the end of its leases");
    let owners = pool.placement().owners("n").await.unwrap();
    let live: Vec<bool> = owners.iter().map(|info| info.live).collect();
    assert_eq!(live, [false, true], "it is gone");
}

#[tokio::test(start_paused = true)]
async fn a_second_process_of_a_name_waits_for_the_first_unless_it_proves_it_dead() {
    let pool = TestPool::start("n").await.unwrap();
    let line = pool.line();
    let mut options = pool.options("one");
    options.incarnation = Some(5);
    let first = Owner::join(line.clone(), options.clone()).await.unwrap();
    pool.settled().await;
    options.incarnation = Some(6);
    options.join_within = Duration::from_secs(5);
    let refused = Owner::join(pool.line(), options.clone()).await.err().unwrap();
    assert_eq!(refused.code, "placement.owner_id_in_use");
    line.cut();
    options.join_within = Duration::from_secs(30);
    let second = Owner::join(pool.line(), options.clone()).await.unwrap();
    assert_eq!(held(&first), 0);
    // The first one may be heard again: it was replaced.
    line.mend();
    seconds(5).await;
    assert_eq!(first.refusal().unwrap().code, "placement.stale_incarnation");
    // Another one that has not been there before may count less, if its clock was set back: it waits.
    options.incarnation = Some(4);
    options.join_within = Duration::from_secs(5);
    let third = Owner::join(pool.line(), options).await.err().unwrap();
    assert_eq!(third.code, "placement.owner_id_in_use");
    pool.settled().await;
    assert_eq!(held(&second), 200);

    let dir = std::env::temp_dir().join(format!("tidings-owner-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let proving = || pool.options("three").data_dir(&dir);
    let third = Owner::join(pool.line(), proving()).await.unwrap();
    pool.settled().await;
    let twice = Owner::join(pool.line(), proving()).await.err().unwrap();
    assert_eq!(twice.code, "placement.directory_in_use");
    let before = third.incarnation();
    drop(third);
    let began = tokio::time::Instant::now();
    let again = Owner::join(pool.line(), proving()).await.unwrap();
    assert!(again.incarnation() > before && began.elapsed() < Duration::from_secs(5));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_cannot_join_is_told_why() {
    let pool = TestPool::start("n").await.unwrap();
    let mut options = pool.options("one");
    options.namespace = "nowhere".into();
    assert_eq!(Owner::join(pool.line(), options).await.err().unwrap().code, "placement.no_namespace");
    for address in ["a b", "a", ":80"] {
        let mut options = pool.options("one");
        options.address = address.into();
        assert_eq!(Owner::join(pool.line(), options).await.err().unwrap().code, "placement.bad_address", "{address}");
    }
    let line = pool.line();
    line.cut();
    let mut options = pool.options("one");
    options.join_within = Duration::from_secs(3);
    assert_eq!(Owner::join(line, options).await.err().unwrap().code, "placement.no_manager");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_deleted_stops_its_owners_and_one_made_anew_takes_them_back() {
    let pool = TestPool::start("n").await.unwrap();
    let owner = pool.join("one").await.unwrap();
    pool.settled().await;
    let before = owner.check_now("k").unwrap();
    pool.placement().delete("n").await.unwrap();
    seconds(15).await;
    assert_eq!(held(&owner), 0);
    assert_eq!(owner.refusal().unwrap().code, "placement.no_namespace");
    assert_eq!(owner.state(), OwnerState::Serving);
    pool.placement().create("n", Default::default()).await.unwrap();
    seconds(80).await;
    pool.settled().await;
    assert!(owner.check_now("k").unwrap() > before);
    assert_eq!(owner.refusal(), None);
}
