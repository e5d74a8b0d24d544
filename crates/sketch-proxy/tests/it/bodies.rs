//! Bodies that memory does not hold, and bodies in a coding.

use crate::origins::{Sin, Site};
use bytes::Bytes;
use flate2::read::GzDecoder;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;
use tidings_sketch::http::Bodies;
use tidings_sketch_proxy::{Config, Proxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

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
async fn a_spool_that_holds_no_files_is_refused_at_the_start() {
    let place = tempfile::tempdir().unwrap();
    let (file, nowhere) = (place.path().join("file"), place.path().join("nowhere"));
    std::fs::write(&file, "").unwrap();
    for spool in [file, nowhere] {
        let mut config = Config::of(SocketAddr::from(([127, 0, 0, 1], 0)), &["http://a".to_owned()]).unwrap();
        config.sites[0].spool = spool;
        let refused = Proxy::start(config).await.err().unwrap();
        assert!(refused.code == "sketch.bad_spool" && refused.hint.contains("--spool"), "{refused}");
    }
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

/// Whoever tells no length is let past, or refused, once it is longer than it may be: as if it had told. Nothing of it is evaluated.
#[tokio::test]
async fn a_length_that_is_not_told_changes_nothing() {
    let page = long(3);
    for (memory, above) in [(1 << 20, Some(100_000)), (1_000, Some(100_000)), (1_000, None)] {
        let site = Site::start(&[Sin::None; 3], |config| {
            config.sites[0].bodies = Bodies { memory, disk: 200_000, unverified_above: above };
        })
        .await;
        site.put("/chunked/long", &page);
        site.put("/chunked/short", &page[..99_999]);
        let any = [("if-none-match", "*"), ("range", "bytes=0-9"), ("accept-encoding", "gzip")];
        for headers in [&any[..0], &any] {
            let got = site.ask("GET", "/chunked/long", headers, "").await;
            match above {
                Some(_) => {
                    assert_eq!((got.status, got.header("tidings-verified"), got.body == page), (200, "no", true))
                }
                None => assert_eq!(got.status, 502),
            }
            assert!(got.header("etag").is_empty() && got.header("content-encoding").is_empty(), "{:?}", got.headers);
        }
        for verified in ["agreed", "fast"] {
            let got = site.get("/chunked/short").await;
            assert_eq!((got.header("tidings-verified"), got.body == page[..99_999]), (verified, true));
        }
    }
}

/// What follows a page that nobody has looked at does not say of itself that somebody has.
#[tokio::test]
async fn trailers_of_what_passes_do_not() {
    let mut urls = Vec::new();
    for _ in 0..3 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        urls.push(format!("http://{}", listener.local_addr().unwrap()));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = [0; 4_096];
                let asked = stream.read(&mut head).await.unwrap_or(0);
                let length = if head[..asked].starts_with(b"GET /long") { 1_000 } else { 10 };
                let (page, trailers) = ("x".repeat(length), "X-Sum: 1\r\nTidings-Verified: fast\r\n");
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n{length:x}\r\n{page}\r\n0\r\n{trailers}\r\n"
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
    }
    let mut config = Config::of(SocketAddr::from(([127, 0, 0, 1], 0)), &urls).unwrap();
    config.sites[0].bodies.unverified_above = Some(100);
    let proxy = Proxy::start(config).await.unwrap();
    let stream = TokioIo::new(TcpStream::connect(proxy.address()).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    for (path, verified, trailers) in [("/long", "no", 0), ("/short", "agreed", 1), ("/short", "fast", 1)] {
        let request = Request::get(format!("http://a.org{path}")).body(Empty::<Bytes>::new()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.headers()["tidings-verified"], verified);
        let whole = answer.into_body().collect().await.unwrap();
        let said = whole.trailers().cloned().unwrap_or_default();
        assert_eq!((said.len(), said.contains_key("tidings-verified")), (trailers, false), "{path}: {said:?}");
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
