//! Clients see only right pages, at the price of one.

use crate::origins::{Sin, Site};
use std::time::Duration;

/// Three right, one wrong, one stale: what a quorum of three bears.
const FIVE: [Sin; 5] = [Sin::None, Sin::Forger, Sin::None, Sin::Stale, Sin::None];

#[tokio::test]
async fn with_two_of_five_wrong_only_right_pages_are_seen() {
    let site = Site::start(&FIVE, |_| {}).await;
    for version in 0..4 {
        let text = |page: u64, version: u64| format!("page {page}, version {version}");
        (0..5).for_each(|page| site.put(&format!("/{page}"), &text(page, version)));
        for page in 0..5 {
            let (mut seen, mut reads) = (0, 0);
            while seen < 20 {
                let got = site.get(&format!("/{page}")).await;
                reads += 1;
                match got.body == text(page, version) {
                    true => seen += 1,
                    // Stale is what was remembered, until somebody has seen the new version; never after, never made up.
                    false => assert!(seen == 0 && version > 0 && got.body == text(page, version - 1), "{got:?}"),
                }
                assert!(got.status == 200 && reads < 200, "{got:?}");
            }
        }
    }
    let standing = site.proxy.standing();
    assert!(standing[1].0.mismatches + standing[1].1 > 0, "the forger is noticed: {standing:?}");
    assert!([0, 2, 4].iter().all(|right| standing[*right].1 == 0), "{standing:?}");
}

#[tokio::test]
async fn who_says_something_else_each_time_is_found_out() {
    // A machine that is busy is nobody's silence.
    let patient = |config: &mut tidings_sketch_proxy::Config| config.sites[0].patience = Duration::from_secs(30);
    let site = Site::start(&[Sin::None, Sin::Fickle, Sin::None], patient).await;
    site.put("/", "hello");
    let mut reads = 0;
    while !site.proxy.standing()[1].0.ejected {
        assert_eq!(site.get("/").await.body, "hello");
        reads += 1;
        assert!(reads < 1_000, "{:?}", site.proxy.standing());
    }
    let (standing, counts) = (site.proxy.standing(), site.proxy.stats().all);
    assert!([0, 2].iter().all(|right| standing[*right].0.mismatches == 0), "{standing:?}");
    assert_eq!(counts.transitions, 0, "the page has not changed");
}

#[tokio::test]
async fn a_read_of_what_is_remembered_costs_one_execution() {
    let site = Site::start(&[Sin::None; 5], |_| {}).await;
    site.put("/", "hello");
    let first = site.get("/").await;
    assert_eq!((first.header("tidings-verified"), site.proxy.stats().all.replicated), ("agreed", 1));
    for _ in 0..100 {
        let got = site.get("/").await;
        assert_eq!((got.header("tidings-verified"), &got.body[..]), ("fast", &b"hello"[..]));
    }
    // A vote is over when three are equal; the other two may still be under way.
    let reads = site.reads();
    assert!((103..=105).contains(&reads), "{reads} executions of 101 reads");
    let connections: u64 =
        site.origins.iter().map(|origin| origin.connections.load(std::sync::atomic::Ordering::SeqCst)).sum();
    assert!(connections <= 10, "{connections} connections: they are kept and used again");
}

#[tokio::test]
async fn without_a_quorum_nothing_is_served_or_it_is_marked() {
    let wrong = [Sin::None, Sin::Forger, Sin::Mute];
    let quick = |config: &mut tidings_sketch_proxy::Config| config.sites[0].give_up = Duration::from_millis(400);
    let site = Site::start(&wrong, quick).await;
    site.put("/", "hello");
    let got = site.get("/").await;
    assert_eq!(got.status, 502, "{got:?}");
    assert!(String::from_utf8_lossy(&got.body).contains("do not agree"), "{got:?}");

    let site = Site::start(&[Sin::None; 3], quick).await;
    site.put("/", "hello");
    site.origins[0].stop().await;
    assert_eq!(site.get("/").await.status, 200, "two of three are enough");
    site.origins[1].stop().await;
    let got = site.get("/other").await;
    assert_eq!(got.status, 502);
    assert!(String::from_utf8_lossy(&got.body).contains("too few replicas answered"), "{got:?}");

    let marked = |config: &mut tidings_sketch_proxy::Config| {
        config.sites[0].give_up = Duration::from_millis(400);
        config.sites[0].unverified_rather_than_none = true;
    };
    let site = Site::start(&[Sin::None, Sin::Mute, Sin::Mute], marked).await;
    site.put("/", "hello");
    let got = site.get("/").await;
    assert_eq!((got.status, got.header("tidings-verified"), &got.body[..]), (200, "no", &b"hello"[..]));
}

#[tokio::test]
async fn a_server_error_is_agreed_on_each_time() {
    let site = Site::start(&[Sin::None; 3], |_| {}).await;
    for _ in 0..3 {
        let got = site.get("/broken").await;
        assert_eq!((got.status, got.header("tidings-verified")), (500, "agreed"));
    }
}
