use super::helpers::*;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::placement::testing::TestPool;
use tidings_client::placement::{HandOver, Items, Move, Owner, OwnerState};

#[tokio::test(start_paused = true)]
async fn state_moves_with_the_lease_and_nothing_is_lost() {
    let pool = TestPool::start("n").await.unwrap();
    let directory = Directory::default();
    let one = server(&pool, "one", &directory, Manner::Well).await;
    pool.settled().await;
    let lookup = pool.lookup().await.unwrap();
    let mut losses = lookup.losses();
    for key in keys() {
        assert_eq!(one.count(&key).unwrap(), 1);
    }
    let two = server(&pool, "two", &directory, Manner::Well).await;
    seconds(20).await;
    pool.settled().await;
    assert!(held(&two.owner) > 40, "{}", held(&two.owner));
    for key in keys() {
        let server = if one.owner.check_now(&key).is_some() { &one } else { &two };
        assert_eq!(server.count(&key).unwrap(), 2, "{key}");
    }
    // A drain moves the rest.
    one.owner.drain().await.unwrap();
    assert_eq!(one.owner.state(), OwnerState::Drained);
    seconds(5).await;
    for key in keys() {
        assert_eq!(two.count(&key).unwrap(), 3, "{key}");
    }
    assert!(one.counters.is_empty(), "what is handed over is forgotten");
    let told = tokio::time::timeout(Duration::from_secs(60), losses.next()).await;
    assert!(told.is_err(), "a clean move is no loss: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_that_fails_leaves_the_range_where_it_is() {
    for manner in [Manner::Fails, Manner::Hangs, Manner::Panics] {
        let pool = TestPool::start("n").await.unwrap();
        let directory = Directory::default();
        let one = server(&pool, "one", &directory, manner).await;
        pool.settled().await;
        for key in keys() {
            assert_eq!(one.count(&key).unwrap(), 1);
        }
        let two = server(&pool, "two", &directory, Manner::Well).await;
        // Longer than a hand-over may take.
        seconds(45).await;
        // Some of it is tried again and again; what is served is served with its state.
        let mut served = 0;
        for key in keys() {
            assert_eq!(two.owner.check_now(&key), None, "{manner:?}");
            if let Ok(count) = one.count(&key) {
                assert_eq!(count, 2, "{manner:?} {key}");
                served += 1;
            }
        }
        assert!(served > 40, "{manner:?}: {served}");
    }
}

/// The other side.
type Receiver = (Owner, Items<Arc<()>>);

/// Copies everything, and then does not say so.
struct Half {
    items: Items<Arc<()>>,
    to: Arc<Mutex<Option<Receiver>>>,
    over: Arc<AtomicUsize>,
}

impl HandOver for Half {
    fn export(&self, to: Move) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let (owner, items) = loop {
                let there = self.to.lock().clone();
                match there {
                    Some(there) => break there,
                    None => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            };
            owner.receive(&items, to.token, to.incarnation, self.items.export(to.leased))?;
            Err(Error::new("test.fails", Class::Failed, "it cannot"))
        })
    }

    fn over(&self, _: u64) {
        self.over.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn state_that_came_by_a_move_that_was_given_up_is_dropped() {
    let pool = TestPool::start("n").await.unwrap();
    let (to, over, kept) = (Arc::new(Mutex::new(None)), Arc::new(AtomicUsize::new(0)), Arc::new(()));
    let join = async |name: &str| {
        let items = Items::new();
        let half = Half { items: items.clone(), to: to.clone(), over: over.clone() };
        (Owner::join(pool.line(), pool.options(name).items(&items).hand_over(half)).await.unwrap(), items)
    };
    let (one, mine) = join("one").await;
    pool.settled().await;
    for key in keys() {
        one.with(&mine, &key, |state| *state = Some(kept.clone())).unwrap();
    }
    let two = join("two").await;
    *to.lock() = Some(two.clone());
    seconds(10).await;
    assert!(over.load(Ordering::Relaxed) > 0, "moves were begun and given up");
    assert_eq!(Arc::strong_count(&kept), 201, "one copy of each is left, and this");
    assert_eq!((held(&one), held(&two.0)), (200, 0));
}

#[tokio::test(start_paused = true)]
async fn a_drain_whose_hand_over_hangs_ends_with_a_loss() {
    let pool = TestPool::start("n").await.unwrap();
    let directory = Directory::default();
    let one = server(&pool, "one", &directory, Manner::Hangs).await;
    pool.settled().await;
    let two = server(&pool, "two", &directory, Manner::Well).await;
    let lookup = pool.lookup().await.unwrap();
    let mut losses = lookup.losses();
    let drained = tokio::time::timeout(Duration::from_secs(150), one.owner.drain()).await;
    drained.expect("a drain ends").unwrap();
    let loss = tokio::time::timeout(Duration::from_secs(30), losses.next()).await.expect("a loss is told").unwrap();
    assert!(keys().any(|key| loss.contains(key)));
    pool.settled().await;
    assert_eq!(held(&two.owner), 200);
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_no_manager_will_confirm_ends_when_nothing_is_held() {
    for (deleted, code) in [(true, "placement.no_namespace"), (false, "placement.no_manager")] {
        let pool = TestPool::start("n").await.unwrap();
        let directory = Directory::default();
        let line = pool.line();
        let one = Owner::join(line.clone(), handing_over(&pool, "one", &directory, Manner::Hangs).0).await.unwrap();
        let _two = server(&pool, "two", &directory, Manner::Well).await;
        pool.settled().await;
        let draining = one.clone();
        let drained = tokio::spawn(async move { draining.drain().await });
        seconds(1).await;
        assert!(held(&one) > 0, "it hands over still");
        if deleted {
            pool.placement().delete("n").await.unwrap();
        } else {
            line.cut();
        }
        let ended = tokio::time::timeout(Duration::from_secs(60), drained).await.expect("a drain ends");
        assert_eq!(ended.unwrap().unwrap_err().code, code);
        assert_eq!(held(&one), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_owner_waits_for_nobody_to_hand_over_to() {
    let pool = TestPool::start("n").await.unwrap();
    let one = server(&pool, "one", &Directory::default(), Manner::Well).await;
    pool.settled().await;
    let lookup = pool.lookup().await.unwrap();
    let began = tokio::time::Instant::now();
    one.owner.drain().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "less than a drain may take: {:?}", began.elapsed());
    let told = tokio::time::timeout(Duration::from_secs(10), lookup.losses().next()).await;
    assert!(told.is_ok(), "its state is lost, and that is told");
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_an_operator_drained_can_be_taken_back() {
    let pool = TestPool::start("n").await.unwrap();
    let directory = Directory::default();
    let one = server(&pool, "one", &directory, Manner::Well).await;
    let two = server(&pool, "two", &directory, Manner::Well).await;
    seconds(20).await;
    pool.settled().await;
    pool.placement().drain("n", "one").await.unwrap();
    assert_eq!(one.owner.state_other_than(OwnerState::Serving).await, OwnerState::Drained);
    seconds(60).await;
    assert_eq!((held(&one.owner), held(&two.owner)), (0, 200));
    pool.placement().cancel_drain("n", "one").await.unwrap();
    assert_eq!(one.owner.state_other_than(OwnerState::Drained).await, OwnerState::Serving);
    seconds(60).await;
    assert!(held(&one.owner) > 40);
}

#[tokio::test(start_paused = true)]
async fn state_for_another_process_or_other_items_is_refused() {
    let pool = TestPool::start("n").await.unwrap();
    let directory = Directory::default();
    let (options, counters) = handing_over(&pool, "one", &directory, Manner::Well);
    let owner = Owner::join(pool.line(), options).await.unwrap();
    let now = owner.incarnation();
    let code = |result: Result<(), tidings_base::Error>| result.unwrap_err().code;
    assert_eq!(code(owner.receive(&counters, 1, now + 1, vec![])), "placement.not_for_us");
    let others = tidings_client::placement::Items::<u64>::new();
    assert_eq!(code(owner.receive(&others, 1, now, vec![])), "placement.not_for_us");
    assert_eq!(code(owner.imported(1, now - 1)), "placement.not_for_us");
    owner.imported(1, now).unwrap();
    owner.leave();
    assert_eq!(code(owner.imported(1, now)), "placement.left");
}
