use super::helpers::*;
use futures::future::BoxFuture;
use std::time::Duration;
use tidings_base::{Class, Error, KeyRange};
use tidings_client::placement::testing::TestPool;
use tidings_client::placement::{Lookup, LookupOptions, MAX_KEY, Owner, Placed, PlacementTransport, To};
use tidings_wire::v1::PlacementMessage;

#[tokio::test(start_paused = true)]
async fn lookups_know_the_owner_of_every_key() {
    let pool = TestPool::start("n").await.unwrap();
    let lookup = pool.lookup().await.unwrap();
    assert!(matches!(lookup.lookup("k").unwrap(), Placed::Unowned));
    let mut tables = lookup.tables();
    let (one, changed) = tokio::join!(pool.join("one"), tables.changed());
    assert!(changed);
    let one = one.unwrap();
    let two = pool.join("two").await.unwrap();
    pool.settled().await;
    for key in keys() {
        let hint = lookup.lookup(&key).unwrap().hint().unwrap();
        let owner = if hint.owner() == "one" { &one } else { &two };
        assert_eq!(owner.check_now(&key), Some(hint.lease()), "{key}");
        assert_eq!(hint.address(), format!("{}:1", hint.owner()));
        assert!(hint.age() <= Duration::from_secs(31));
    }
    assert!(lookup.directory().len() >= 64);
    assert_eq!(lookup.lookup(vec![0; MAX_KEY + 1]).unwrap_err().code, "placement.key_too_long");
}

#[tokio::test(start_paused = true)]
async fn a_crash_is_told_as_a_loss_to_every_lookup_however_long_it_was_away() {
    let pool = TestPool::start("n").await.unwrap();
    let line = pool.line();
    let one = Owner::join(line.clone(), pool.options("one")).await.unwrap();
    let _two = pool.join("two").await.unwrap();
    pool.settled().await;
    let lost: Vec<String> = keys().filter(|key| one.check_now(key).is_some()).collect();
    let kept: Vec<String> = keys().filter(|key| one.check_now(key).is_none()).collect();
    let lookup = pool.lookup().await.unwrap();
    let away = pool.line();
    let absent = pool.lookup_over(away.clone()).await.unwrap();
    away.cut();
    line.cut();
    seconds(15).await;
    pool.settled().await;
    // While it was away the range moved on, too.
    pool.fail_over();
    seconds(60).await;
    assert!(absent.age().unwrap() > Duration::from_secs(60));
    away.mend();
    for lookup in [lookup, absent] {
        let mut losses = lookup.losses();
        let mut told = losses.next().await.unwrap();
        while let Ok(Some(more)) = tokio::time::timeout(Duration::from_secs(40), losses.next()).await {
            told.ranges.extend(more.ranges);
        }
        assert!(lost.iter().all(|key| told.contains(key)));
        assert!(kept.iter().all(|key| !told.contains(key)));
        assert!(lost.iter().all(|key| lookup.lookup(key).unwrap().hint().unwrap().owner() == "two"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lookup_of_nothing_is_told_so_and_one_whose_namespace_is_made_anew_loses_everything() {
    let pool = TestPool::start("n").await.unwrap();
    let nowhere =
        Lookup::connect(pool.line(), LookupOptions { clock: pool.options("").clock, ..LookupOptions::new("x") });
    assert_eq!(nowhere.await.err().unwrap().code, "placement.no_namespace");
    let _one = pool.join("one").await.unwrap();
    pool.settled().await;
    let lookup = pool.lookup().await.unwrap();
    let mut losses = lookup.losses();
    pool.placement().delete("n").await.unwrap();
    seconds(5).await;
    assert_eq!(lookup.refusal().unwrap().code, "placement.no_namespace");
    assert!(lookup.lookup("k").unwrap().hint().is_some(), "hints go on, and say how old they are");
    pool.placement().create("n", Default::default()).await.unwrap();
    assert_eq!(losses.next().await.unwrap().ranges, [KeyRange::FULL]);
    let refused = tokio::time::timeout(Duration::from_secs(5), lookup.refused()).await;
    assert!(refused.is_err(), "a manager has answered since: {refused:?}");
    drop(lookup);
    while losses.next().await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn operators_see_what_there_is() {
    let pool = TestPool::start("n").await.unwrap();
    let placement = pool.placement();
    let _one = pool.join("one").await.unwrap();
    pool.settled().await;
    let namespaces = placement.namespaces().await.unwrap();
    assert_eq!(namespaces.iter().map(|info| info.namespace.as_str()).collect::<Vec<_>>(), ["n"]);
    let owners = placement.owners("n").await.unwrap();
    assert_eq!(owners.len(), 1);
    assert!(owners[0].live && owners[0].share_ppm > 999_000);
    assert!(placement.table("n").await.unwrap().ranges.len() >= 64);
    assert_eq!(placement.drain("n", "nobody").await.unwrap_err().code, "placement.no_owner");
    assert_eq!(placement.create("n", Default::default()).await.unwrap_err().code, "placement.namespace_exists");
}

/// The leader waits for something; whoever is asked beside it says that it does not lead.
struct Waits;

impl PlacementTransport for Waits {
    fn call(&self, to: To, _: PlacementMessage, _: Duration) -> BoxFuture<'_, Result<PlacementMessage, Error>> {
        let code = if to == To::Leader { "placement.restored" } else { "placement.not_leader" };
        Box::pin(async move { Err(Error::new(code, Class::Unreachable, "not yet")) })
    }
}

#[tokio::test(start_paused = true)]
async fn a_lookup_that_waits_in_vain_says_what_it_waited_for() {
    let options = LookupOptions { connect_within: Duration::from_secs(10), ..LookupOptions::new("n") };
    let refused = Lookup::connect(Waits, options).await.err().expect("nobody answers");
    assert_eq!(refused.code, "placement.restored");
}
