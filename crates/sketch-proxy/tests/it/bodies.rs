//! Bodies that memory does not hold, and bodies in a coding.

use crate::origins::{Sin, Site};
use flate2::read::GzDecoder;
use std::io::Read;
use std::time::Duration;
use tidings_sketch::http::Bodies;

fn long(seed: u8) -> String {
    (0..300_000u32).map(|at| char::from(b'a' + ((at.wrapping_mul(2_654_435_761) >> 24) as u8 ^ seed) % 26)).collect()
}

#[tokio::test]
async fn long_bodies_lie_on_disk_and_are_verified_like_others() {
    let place = tempfile::tempdir().unwrap();
    let spool = place.path().to_owned();
    let site = Site::start(&[Sin::None, Sin::Forger, Sin::None], |config| {
        config.sites[0].bodies = Bodies { memory: 1_000, disk: 1 << 20, unverified_above: None };
        config.sites[0].spool = spool;
    })
    .await;
    let page = long(1);
    site.put("/long", &page);
    for _ in 0..10 {
        let got = site.get("/long").await;
        assert_eq!((got.status, got.header("content-length"), got.body == page), (200, "300000", true));
    }
    let part = site.ask("GET", "/long", &[("range", "bytes=100000-299998")], "").await;
    assert_eq!((part.status, &part.body[..]), (206, &page.as_bytes()[100_000..299_999]));
    let head = site.ask("HEAD", "/long", &[], "").await;
    assert_eq!((head.header("content-length"), head.body.len()), ("300000", 0));
    site.put("/longer", &"x".repeat((1 << 20) + 1));
    assert_eq!(site.get("/longer").await.status, 502, "longer than any page may be");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "no file has a name");
}

#[tokio::test]
async fn without_room_on_disk_there_is_no_page() {
    let site = Site::start(&[Sin::None; 3], |config| {
        config.sites[0].bodies.memory = 1_000;
        config.sites[0].most_on_disk = 128 << 10;
    })
    .await;
    site.put("/long", &long(1));
    site.put("/short", "short");
    assert_eq!(site.get("/long").await.status, 502);
    assert_eq!(site.get("/short").await.status, 200);
}

#[tokio::test]
async fn what_is_too_long_to_hold_passes_by_rule_and_is_marked() {
    let site = Site::start(&[Sin::None; 3], |config| config.sites[0].bodies.unverified_above = Some(100_000)).await;
    let page = long(1);
    site.put("/long", &page);
    site.put("/short", "short");
    for _ in 0..3 {
        let got = site.get("/long").await;
        assert_eq!((got.status, got.header("tidings-verified"), got.body == page), (200, "no", true));
        assert!(got.header("etag").is_empty(), "nobody has seen all of it");
    }
    assert_eq!(site.get("/short").await.header("tidings-verified"), "agreed");
    assert_eq!(site.get("/short").await.header("tidings-verified"), "fast");
}

/// Whatever waits to be verified takes of one room, and gives it back however that ends.
#[tokio::test]
async fn bodies_in_memory_are_bounded_together() {
    for (disk, status) in [(0, 502), (1 << 30, 200)] {
        let site = Site::start(&[Sin::None; 3], |config| {
            (config.most_held, config.sites[0].most_on_disk) = (10_000, disk);
            config.sites[0].bodies.disk = 1 << 20;
        })
        .await;
        for (path, length) in [("/a", 9_000), ("/b", 9_000), ("/short", 500), ("/too-long", (1 << 20) + 1)] {
            site.put(path, &"x".repeat(length));
        }
        // Of three, one fits.
        for path in ["/a", "/b", "/a"] {
            let got = site.get(path).await;
            assert_eq!(
                (got.status, got.body.len() == 9_000),
                (status, status == 200),
                "what does not fit lies on disk"
            );
        }
        for _ in 0..30 {
            assert_eq!(site.get("/too-long").await.status, 502);
        }
        let patience = tokio::time::Instant::now() + Duration::from_secs(30);
        while site.get("/short").await.status != 200 {
            assert!(tokio::time::Instant::now() < patience, "what is over takes none");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn texts_are_compressed_for_whoever_takes_them_so() {
    for memory in [1 << 20, 1_000] {
        let bodies = Bodies { memory, ..Bodies::default() };
        let site = Site::start(&[Sin::None, Sin::Stale, Sin::None], |config| config.sites[0].bodies = bodies).await;
        compressed(site).await;
    }
}

async fn compressed(site: Site) {
    let page = long(2);
    site.put("/text", &page);
    let plain = site.get("/text").await;
    assert_eq!((plain.header("content-encoding"), plain.header("vary")), ("", "Accept-Encoding"));
    let coded = site.ask("GET", "/text", &[("accept-encoding", "br, gzip")], "").await;
    assert_eq!(
        (coded.status, coded.header("content-encoding"), coded.header("tidings-verified")),
        (200, "gzip", "fast")
    );
    assert!(coded.body.len() < page.len() && coded.header("etag") != plain.header("etag"));
    let mut text = String::new();
    GzDecoder::new(&coded.body[..]).read_to_string(&mut text).unwrap();
    assert!(text == page, "what is packed is the page");
    let known = [("accept-encoding", "gzip"), ("if-none-match", coded.header("etag"))];
    assert_eq!(site.ask("GET", "/text", &known, "").await.status, 304);
    let part = site.ask("GET", "/text", &[("accept-encoding", "gzip"), ("range", "bytes=0-9")], "").await;
    assert_eq!((part.status, &part.body[..]), (206, &page.as_bytes()[..10]), "ranges are of the page as it is");
}
