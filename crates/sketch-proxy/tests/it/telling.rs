//! Rules that change, and what a proxy tells of itself.

use crate::origins::{Sin, Site};
use std::net::SocketAddr;
use std::time::Duration;
use tidings_sketch::http::{PathRule, Rules};
use tidings_sketch::sketcher::Way;
use tidings_sketch_proxy::survey::Survey;
use tidings_sketch_proxy::{Config, Proxy, Stats};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An answer of the admin address.
pub async fn told(admin: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(admin).await.unwrap();
    let text = format!("{request} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut told = String::new();
    let read = tokio::time::timeout(Duration::from_secs(10), stream.read_to_string(&mut told));
    read.await.expect("it answers and closes").unwrap();
    told
}

#[tokio::test]
async fn other_rules_hold_from_the_next_request_on() {
    let site = Site::start(&[Sin::None; 3], |_| {}).await;
    site.put("/page", "hello");
    let verified = async || site.get("/page").await.header("tidings-verified").to_owned();
    assert_eq!((verified().await, verified().await), ("agreed".to_owned(), "fast".to_owned()));
    let never = PathRule { prefix: "/".into(), way: Way::Replicated, personal_too: false };
    assert_eq!(site.proxy.set_rules(0, Rules { paths: vec![never], ..Rules::default() }), 1);
    assert_eq!((verified().await, verified().await), ("agreed".to_owned(), "agreed".to_owned()));
    assert_eq!(site.proxy.set_rules(0, Rules::default()), 2);
    assert_eq!(verified().await, "agreed", "what was remembered under other rules is not found again");
    assert_eq!(verified().await, "fast");
}

#[tokio::test]
async fn metrics_and_statistics_are_told_on_this_machine() {
    let site = Site::start(&[Sin::None, Sin::Forger, Sin::None], |config| {
        config.admin = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    })
    .await;
    let admin = site.proxy.admin().expect("it tells");
    site.put("/", "hello");
    for _ in 0..40 {
        assert_eq!(site.get("/").await.status, 200);
    }
    let stats = told(admin, "GET /stats").await;
    let stats: Stats = serde_json::from_str(stats.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(stats, site.proxy.stats());
    assert_eq!((stats.all.requests, stats.all.remembered, stats.sites[0].origins.len()), (40, 1, 3));
    assert!(
        stats.all.fast > 0 && stats.sites[0].origins[1].mismatches + stats.sites[0].origins[1].differed > 0,
        "{stats:?}"
    );
    assert_eq!((stats.sites[0].origins[0].mismatches, stats.sites[0].origins[2].differed), (0, 0));

    let metrics = told(admin, "GET /metrics").await;
    for line in [
        "tidings_sketch_requests_total{verified=\"agreed\",status=\"200\"}".to_owned(),
        format!("tidings_sketch_fast_total {}", stats.all.fast),
        "tidings_sketch_request_seconds_count 40".to_owned(),
        "tidings_sketch_request_seconds_bucket{le=\"+Inf\"} 40".to_owned(),
        "tidings_sketch_remembered_pages 1".to_owned(),
        format!(
            "tidings_sketch_origin_mismatches_total{{origin=\"{}\"}} {}",
            stats.sites[0].origins[1].origin, stats.sites[0].origins[1].mismatches
        ),
        "# TYPE tidings_sketch_origin_ejected gauge".to_owned(),
    ] {
        assert!(metrics.contains(&line), "no {line} in {metrics}");
    }
    assert!(told(admin, "GET /healthz").await.starts_with("HTTP/1.1 200"));
    assert!(told(admin, "GET /other").await.starts_with("HTTP/1.1 404"));
    assert!(told(admin, "POST /metrics").await.starts_with("HTTP/1.1 405"));
}

/// The console's page for whoever looks now, and what is new on it for whoever stays.
#[tokio::test]
async fn the_console_shows_who_was_wrong_and_goes_on() {
    let site = Site::start(&[Sin::None, Sin::Forger, Sin::None], |config| {
        config.admin = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.survey = true;
    })
    .await;
    let admin = site.proxy.admin().expect("it tells");
    for version in 0..3 {
        site.put("/clock", &format!("{version}"));
        for _ in 0..10 {
            assert_eq!(site.get("/clock?one&two").await.status, 200);
        }
    }
    let page = told(admin, "GET /").await;
    let wrong = site.proxy.stats().sites[0].origins[1].clone();
    assert!(wrong.mismatches + wrong.differed > 0, "{wrong:?}");
    for part in ["<!DOCTYPE html>", "text/html", "default-src 'none'", &wrong.origin, "<svg", "class=\"bad\"", "/clock"]
    {
        assert!(page.contains(part), "no {part} in {page}");
    }
    assert!(told(admin, "GET /console.js").await.contains("EventSource('/live')"));

    let mut listeners = Vec::new();
    for _ in 0..9 {
        let mut stream = TcpStream::connect(admin).await.unwrap();
        stream.write_all(b"GET /live HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        listeners.push(stream);
    }
    let mut heard = Vec::new();
    for stream in &mut listeners {
        let (mut text, mut piece) = (String::new(), [0; 4_096]);
        while !text.contains("data: ") && !text.contains("too many listen") {
            let read = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut piece)).await;
            let read = read.expect("there are news").unwrap();
            assert!(read > 0, "{text}");
            text.push_str(&String::from_utf8_lossy(&piece[..read]));
        }
        heard.push(text.contains("text/event-stream"));
    }
    assert_eq!(heard.iter().filter(|live| **live).count(), 8, "one too many is told so");
}

#[tokio::test]
async fn nothing_is_told_to_other_machines() {
    let mut config = Config::of(SocketAddr::from(([127, 0, 0, 1], 0)), &["http://a".to_owned()]).unwrap();
    config.admin = Some(SocketAddr::from(([0, 0, 0, 0], 0)));
    let error = Proxy::start(config).await.err().expect("it is refused");
    assert_eq!(error.code, "sketch.admin_exposed");
}

#[tokio::test]
async fn what_passes_is_surveyed() {
    let site = Site::start(&[Sin::None; 3], |config| {
        config.admin = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.survey = true;
    })
    .await;
    let admin = site.proxy.admin().expect("it tells");
    site.put("/still", "the same");
    for time in 0..30 {
        site.put("/clock", &format!("{time}"));
        assert_eq!((site.get("/still").await.status, site.get("/clock").await.status), (200, 200));
        assert_eq!(site.get("/missing").await.status, 404);
        assert_eq!(site.ask("HEAD", "/still", &[], "").await.status, 200);
    }
    let survey =
        |path: &'static str| async move { told(admin, path).await.split_once("\r\n\r\n").unwrap().1.to_owned() };
    let patience = tokio::time::Instant::now() + Duration::from_secs(60);
    let found: Survey = loop {
        // What has changed is looked at beside.
        let found: Survey = serde_json::from_str(&survey("GET /survey?least=25").await).unwrap();
        if found.requests == 60 {
            break found;
        }
        assert!(found.requests < 60 && tokio::time::Instant::now() < patience, "{found:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    // A stale page of a fast read may repeat the one before.
    assert!((found.urls, found.counted, found.purely_static) == (2, 2, 0.5) && found.transitions > 0, "{found:?}");
    // Who is busy counts a change without looking at it.
    assert!((1..=found.transitions).contains(&found.compared) && found.without_body == 0, "{found:?}");
    assert!(survey("GET /survey.svg?least=25").await.starts_with("<svg"));
    let rare: Survey = serde_json::from_str(&survey("GET /survey?least=31").await).unwrap();
    assert_eq!(rare.counted, 0);

    let site = Site::start(&[Sin::None; 3], |config| config.admin = Some(SocketAddr::from(([127, 0, 0, 1], 0)))).await;
    assert!(told(site.proxy.admin().expect("it tells"), "GET /survey").await.starts_with("HTTP/1.1 404"));
}
