//! Origins that are away are left out before requests find out, and come back.

use crate::origins::{Sin, Site};
use std::time::Duration;
use tidings_sketch_proxy::{Checks, OriginStats};

const PATH: &str = "/healthz";

async fn site(sins: &[Sin]) -> Site {
    Site::start(sins, |config| {
        let mut checks = Checks::of(PATH).unwrap();
        checks.interval = Duration::from_millis(20);
        checks.patience = Duration::from_secs(5);
        (checks.down, checks.up) = (2, 2);
        config.sites[0].checks = Some(checks);
        // Nobody is asked a second time because this machine is busy.
        config.sites[0].patience = Duration::from_secs(30);
        config.sites[0].give_up = Duration::from_secs(30);
    })
    .await
}

/// Waits until origins are as they should be.
async fn until(site: &Site, what: &str, is: impl Fn(&[OriginStats]) -> bool) {
    let patience = tokio::time::Instant::now() + Duration::from_secs(60);
    while !is(&site.proxy.stats().sites[0].origins) {
        assert!(tokio::time::Instant::now() < patience, "not {what}: {:?}", site.proxy.stats());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn who_is_down_is_not_asked_alone_until_he_is_up() {
    let site = site(&[Sin::None; 3]).await;
    site.put("/", "hello");
    [0, 2].iter().for_each(|well: &usize| site.origins[*well].put(PATH, "ok"));
    until(&site, "told apart", |all| all.iter().map(|of| of.up).eq([Some(true), Some(false), Some(true)])).await;
    let sick = &site.origins[1];
    for _ in 0..60 {
        assert_eq!(site.get("/").await.body, "hello");
    }
    assert!(sick.asked("/") <= 1, "it was asked in the vote alone: {}", sick.asked("/"));
    let stats = site.proxy.stats();
    assert!(
        stats.sites[0].origins[1].ejected
            && stats.sites[0].origins[1].checks_failed > 0
            && !stats.sites[0].origins[0].ejected,
        "{stats:?}"
    );

    sick.put(PATH, "ok");
    until(&site, "back", |all| all[1].up == Some(true) && !all[1].ejected).await;
    let before = sick.asked("/");
    let patience = tokio::time::Instant::now() + Duration::from_secs(60);
    while sick.asked("/") == before {
        assert_eq!(site.get("/").await.body, "hello");
        assert!(tokio::time::Instant::now() < patience, "it is not asked again");
    }
}

#[tokio::test]
async fn no_more_are_left_out_than_may_be_wrong() {
    let site = site(&[Sin::None; 3]).await;
    site.put("/", "hello");
    site.put(PATH, "ok");
    until(&site, "well", |all| all.iter().all(|of| of.up == Some(true))).await;
    site.origins.iter().for_each(|origin| origin.remove(PATH));
    until(&site, "down", |all| all.iter().all(|of| of.up == Some(false))).await;
    assert_eq!(site.proxy.stats().sites[0].origins.iter().filter(|of| of.ejected).count(), 1);
    for _ in 0..20 {
        let got = site.get("/").await;
        assert_eq!((got.status, &got.body[..]), (200, &b"hello"[..]), "checks say nothing of pages");
    }
}

#[tokio::test]
async fn who_takes_connections_and_says_nothing_is_down() {
    let site = site(&[Sin::None, Sin::Mute, Sin::None]).await;
    site.put("/", "hello");
    site.put(PATH, "ok");
    until(&site, "found", |all| all[1].up == Some(false) && all[0].up == Some(true)).await;
    site.origins[2].stop().await;
    until(&site, "gone", |all| all[2].up == Some(false)).await;
}
