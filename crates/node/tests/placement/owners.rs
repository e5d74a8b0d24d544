//! Owners join, share, leave and die; lookups follow.

use super::{Line, RING, create, found, held, owner, points, settled, until};
use std::time::Duration;
use tidings_client::placement::{Lookup, Owner, OwnerOptions, OwnerState, Placed, Placement};
use tokio::time::timeout;

fn hint(lookup: &Lookup, key: &str) -> Option<String> {
    match lookup.lookup(key).unwrap() {
        Placed::Hint(hint) => Some(hint.address().to_owned()),
        Placed::Unowned => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_owners_share_the_ring_and_what_a_dead_one_held_moves_after_its_lease() {
    let nodes = found(1).await;
    create(&nodes.client(0), "objects").await;
    let line = Line::new(nodes.client(0));
    let first = owner(line.clone(), "first");
    settled("the first joins", &[&first]).await;
    let second = owner(nodes.client(0), "second");
    settled("they share", &[&first, &second]).await;
    let lookup = Lookup::connect(nodes.client(0), "objects").await.unwrap();
    let mut losses = lookup.losses();
    // Hints are right when nothing joins or leaves.
    let keys: Vec<String> = (0..200).map(|n| format!("key-{n}")).collect();
    until("the lookup knows both", async || {
        keys.iter()
            .all(|key| {
                let holder = if first.check_now(key).is_some() { "first.test:80" } else { "second.test:80" };
                (first.check_now(key).is_some() != second.check_now(key).is_some())
                    && hint(&lookup, key).as_deref() == Some(holder)
            })
            .then_some(())
    })
    .await;
    let lost = held(&first);
    line.cut();
    until("the other one has everything", async || (points(&[&second]) == RING).then_some(())).await;
    assert_eq!(points(&[&first]), 0, "the dead one's checks failed before");
    let mut told: u128 = 0;
    while told < lost.iter().map(|leased| leased.range.len()).sum() {
        let loss = timeout(super::STUCK, losses.next()).await.expect("no loss was told").unwrap();
        told += loss.ranges.iter().map(|range| range.len()).sum::<u128>();
    }
    until("the lookup knows one", async || {
        keys.iter().all(|key| hint(&lookup, key).as_deref() == Some("second.test:80")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_leaves_or_is_drained_frees_what_it_held_at_once() {
    let nodes = found(1).await;
    create(&nodes.client(0), "objects").await;
    let owners = [owner(nodes.client(0), "a"), owner(nodes.client(0), "b"), owner(nodes.client(0), "c")];
    settled("three share", &[&owners[0], &owners[1], &owners[2]]).await;
    owners[0].leave();
    settled("two are left", &[&owners[1], &owners[2]]).await;
    Placement::new(nodes.client(0)).drain("objects", "b").await.unwrap();
    assert_eq!(timeout(super::STUCK, drained(&owners[1])).await, Ok(()));
    settled("one is left", &[&owners[2]]).await;
    let infos = Placement::new(nodes.client(0)).owners("objects").await.unwrap();
    let c = infos.iter().find(|info| info.owner.as_ref().is_some_and(|owner| owner.id == "c")).unwrap();
    assert!(c.live && c.share_ppm == 1_000_000, "{c:?}");
}

async fn drained(owner: &Owner) {
    let mut state = owner.state();
    while state != OwnerState::Drained {
        state = owner.state_other_than(state).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_name_twice_waits_for_the_first_one() {
    let nodes = found(1).await;
    create(&nodes.client(0), "objects").await;
    let first = owner(nodes.client(0), "one");
    settled("the first joins", &[&first]).await;
    let process = |incarnation| {
        let mut options = OwnerOptions::new("objects", "one", "elsewhere.test:80");
        options.incarnation = Some(incarnation);
        options.join_within = Duration::from_secs(1);
        options
    };
    let later = first.incarnation() + 1;
    let refused = Owner::join(nodes.client(0), process(later)).await.err().expect("the first one lives");
    assert_eq!(refused.code, "placement.owner_id_in_use");
    assert_eq!(points(&[&first]), RING, "the first one keeps everything");
    let before = first.check_now("key").unwrap();
    first.leave();
    let second = Owner::start(nodes.client(0), process(later)).unwrap();
    settled("the second joins", &[&second]).await;
    assert!(second.check_now("key").unwrap() > before, "a new process, a new number");
    // One that has not been there may count less, if its clock was set back: it waits until the name is free.
    let refused = Owner::join(nodes.client(0), process(1)).await.err().expect("the second one lives");
    assert_eq!(refused.code, "placement.owner_id_in_use");
    second.leave();
    let third = Owner::start(nodes.client(0), process(1)).unwrap();
    settled("the third joins", &[&third]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_deleted_under_its_owners_ends_their_leases_and_never_reuses_their_numbers() {
    let nodes = found(1).await;
    create(&nodes.client(0), "objects").await;
    let owner = owner(nodes.client(0), "one");
    settled("it joins", &[&owner]).await;
    let highest = held(&owner).iter().map(|leased| leased.lease).max().unwrap();
    let placement = Placement::new(nodes.client(0));
    placement.delete("objects").await.unwrap();
    until("nothing is held", async || held(&owner).is_empty().then_some(())).await;
    until("it hears why", async || owner.refusal().filter(|why| why.code == "placement.no_namespace")).await;
    assert!(placement.namespaces().await.unwrap().is_empty());
    create(&nodes.client(0), "objects").await;
    settled("it joins again", &[&owner]).await;
    assert!(held(&owner).iter().all(|leased| leased.lease > highest), "F8: {highest:?} {:?}", held(&owner));
}
