//! What clients may ask, and what they may not.

use crate::origins::{Sin, Site};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidings_sketch::http::{Bodies, PathRule};
use tidings_sketch::sketcher::{Allowance, Way, Writes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn a_page_is_served_as_it_was_asked_for() {
    let site = Site::start(&[Sin::None; 3], |_| {}).await;
    site.put("/page", "0123456789");
    let whole = site.get("/page").await;
    let etag = whole.header("etag").to_owned();
    assert_eq!((whole.status, &whole.body[..], whole.header("content-length")), (200, &b"0123456789"[..], "10"));
    assert!(
        whole.header("server").is_empty()
            && whole.header("via").contains("tidings")
            && !whole.header("date").is_empty()
    );

    let head = site.ask("HEAD", "/page", &[], "").await;
    assert_eq!(
        (head.status, head.body.len(), head.header("content-length"), head.header("etag")),
        (200, 0, "10", &etag[..])
    );
    let known = site.ask("GET", "/page", &[("if-none-match", &etag)], "").await;
    assert_eq!((known.status, known.body.len()), (304, 0));
    let part = site.ask("GET", "/page", &[("range", "bytes=2-4")], "").await;
    assert_eq!((part.status, &part.body[..], part.header("content-range")), (206, &b"234"[..], "bytes 2-4/10"));
    assert_eq!(site.ask("GET", "/page", &[("range", "bytes=10-")], "").await.status, 416);
    assert_eq!(site.ask("GET", "/page", &[("if-match", "\"x\"")], "").await.status, 412);

    assert_eq!(site.get("/missing").await.status, 404);
    let moved = site.get("/moved").await;
    assert_eq!((moved.status, moved.header("location")), (302, "/elsewhere"));
    assert_eq!(site.get("/partial").await.status, 502, "an origin that answers in part was not asked to");
}

/// RFC 9110 §9.3.2. By HTTP/2 nobody drops what is there too much: the answer would be malformed.
#[tokio::test]
async fn no_answer_to_head_has_content() {
    let allowance = Some(Allowance { burst: 10, every: Duration::from_secs(3_600) });
    let site = Site::start(&[Sin::None; 3], |config| config.sites[0].allowance = allowance).await;
    site.put("/page", "0123456789");
    let stream = TcpStream::connect(site.proxy.address()).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let task = tokio::spawn(connection);
    let mut ask = async |method: &str, path: &str, (name, value): (&str, &str)| {
        let uri = format!("http://{}{path}", site.proxy.address());
        let request = Request::builder().method(method).uri(uri).header(name, value).body(Empty::<Bytes>::new());
        let (parts, body) = sender.send_request(request.unwrap()).await.unwrap().into_parts();
        let body = body.collect().await.expect("it is well formed").to_bytes();
        let length = parts.headers.get("content-length").map(|length| length.to_str().unwrap().to_owned());
        (parts.status.as_u16(), body.len(), length)
    };
    for (path, header, status) in [
        ("/page", ("accept", "*/*"), 200),
        ("/page", ("if-match", "\"x\""), 412),
        ("/page", ("host", "a.org"), 400),
        ("/partial", ("accept", "*/*"), 502),
        ("/page", ("cookie", "me=1"), 429),
    ] {
        for _ in 0..if status == 429 { 10 } else { 0 } {
            ask("GET", path, header).await;
        }
        let (got, length, told) = ask("HEAD", path, header).await;
        assert_eq!((got, length), (status, 0), "{path} {header:?}");
        let (got, length, _) = ask("GET", path, header).await;
        assert_eq!((got, Some(length.to_string())), (status, told), "{path} {header:?}");
    }
    task.abort();
}

/// The parts of a multipart message: what each says of itself, and its content.
fn parts(got: &crate::origins::Got) -> Vec<(String, String)> {
    let boundary = got.header("content-type").split_once("boundary=").expect("a boundary").1;
    let text = String::from_utf8(got.body.to_vec()).unwrap();
    let (inner, end) = text.split_once(&format!("\r\n--{boundary}--\r\n")).expect("an end");
    assert!(end.is_empty());
    let part = |part: &str| part.split_once("\r\n\r\n").map(|(head, body)| (head.trim().to_owned(), body.to_owned()));
    inner.split(&format!("\r\n--{boundary}\r\n")).skip(1).map(|one| part(one).expect("a head and a body")).collect()
}

#[tokio::test]
async fn several_ranges_are_served_in_one_answer() {
    let site = Site::start(&[Sin::None; 3], |config| config.sites[0].bodies.memory = 10).await;
    let long = "0123456789".repeat(30_000);
    for (path, page) in [("/page", "0123456789"), ("/on-disk", long.as_str())] {
        site.put(path, page);
        let last = page.len() - 1;
        let got = site.ask("GET", path, &[("range", &format!("bytes=4-5, 0-0, {last}-"))], "").await;
        assert_eq!((got.status, got.header("content-length")), (206, &got.body.len().to_string()[..]));
        let head = |first: usize, last: usize| {
            format!("Content-Type: text/plain\r\nContent-Range: bytes {first}-{last}/{}", page.len())
        };
        let expected = [(head(4, 5), "45"), (head(0, 0), "0"), (head(last, last), "9")];
        assert_eq!(parts(&got), expected.map(|(head, body)| (head, body.to_owned())));
    }
    let got = site.ask("GET", "/page", &[("range", "bytes=0-8, 1-9")], "").await;
    assert_eq!((got.status, &got.body[..]), (200, &b"0123456789"[..]), "the whole is shorter");
}

#[tokio::test]
async fn what_describes_a_page_goes_with_it() {
    let site = Site::start(&[Sin::None; 3], |_| {}).await;
    site.put("/page", "0123456789");
    let etag = site.get("/page").await.header("etag").to_owned();
    let known = site.ask("GET", "/page", &[("if-none-match", &etag)], "").await;
    assert_eq!((known.status, known.header("etag"), known.header("content-type")), (304, &etag[..], ""));
    for (headers, status, range) in [
        ([("if-match", "\"x\"")], 412, ""),
        ([("range", "bytes=10-")], 416, "bytes */10"),
        ([("range", "bytes=x")], 416, "bytes */10"),
    ] {
        let got = site.ask("GET", "/page", &headers, "").await;
        assert_eq!((got.status, got.header("content-range"), got.header("etag")), (status, range, ""), "{headers:?}");
        assert!(got.body.starts_with(b"the page ") && !got.header("tidings-verified").is_empty(), "{got:?}");
    }
}

#[tokio::test]
async fn headers_that_are_forwarded_tell_answers_apart() {
    let site = Site::start(&[Sin::None; 3], |_| {}).await;
    for _ in 0..3 {
        for language in ["de", "en"] {
            let got = site.ask("GET", "/language", &[("accept-language", language)], "").await;
            assert_eq!(got.body, language);
        }
    }
}

#[tokio::test]
async fn who_names_himself_is_not_answered_fast() {
    let site = Site::start(&[Sin::None; 3], |_| {}).await;
    site.put("/", "hello");
    for _ in 0..3 {
        let got = site.ask("GET", "/", &[("cookie", "me=1")], "").await;
        assert_eq!((got.status, got.header("tidings-verified")), (200, "agreed"));
    }
}

/// Rule L: what a client has asked of all origins each time is counted, whatever is remembered.
#[tokio::test]
async fn who_names_himself_is_charged_each_time() {
    for name in [("cookie", "me=1"), ("authorization", "Basic eA==")] {
        let allowance = Some(Allowance { burst: 4, every: Duration::from_secs(3_600) });
        let site = Site::start(&[Sin::None; 3], |config| config.sites[0].allowance = allowance).await;
        site.put("/", "hello");
        assert_eq!(site.get("/").await.status, 200);
        let mut statuses = Vec::new();
        for _ in 0..5 {
            statuses.push(site.ask("GET", "/", &[name], "").await.status);
        }
        assert_eq!(statuses, [200, 200, 200, 429, 429], "{name:?}");
        assert_eq!(site.get("/").await.header("tidings-verified"), "fast", "what is remembered is served");
    }
}

#[tokio::test]
async fn writes_go_to_nobody_or_to_one() {
    let site = Site::start(&[Sin::None; 3], |_| {}).await;
    let got = site.ask("POST", "/", &[], "x").await;
    assert_eq!((got.status, got.header("allow")), (405, "GET, HEAD"));
    let writes = |site: &Site| site.origins.iter().map(|origin| origin.writes.load(Ordering::SeqCst)).sum::<u64>();
    assert_eq!(writes(&site), 0);

    let site = Site::start(&[Sin::None; 3], |config| config.sites[0].writes = Writes::One).await;
    let got = site.ask("POST", "/", &[], "x").await;
    assert_eq!((got.status, got.header("tidings-verified"), &got.body[..], writes(&site)), (200, "no", &b"x"[..], 1));
}

/// A tag that the proxy made says nothing to an origin: it would refuse every write, or execute each.
#[tokio::test]
async fn writes_on_tags_are_refused() {
    let site = Site::start(&[Sin::None; 3], |config| config.sites[0].writes = Writes::One).await;
    site.put("/", "hello");
    let etag = site.get("/").await.header("etag").to_owned();
    for method in ["PUT", "POST", "DELETE", "PATCH"] {
        for condition in [("if-match", &etag[..]), ("if-none-match", &etag), ("if-match", "W/\"x\", *")] {
            let got = site.ask(method, "/", &[condition], "x").await;
            assert_eq!((got.status, &got.body[..8]), (501, &b"an ETag "[..]), "{method} {condition:?}");
        }
    }
    assert!(site.origins.iter().all(|origin| origin.writes.load(Ordering::SeqCst) == 0));
    assert_eq!(site.ask("GET", "/", &[("if-none-match", &etag)], "").await.status, 304, "of a read they are ours");
}

#[tokio::test]
async fn white_listed_paths_are_marked() {
    let white = PathRule { prefix: "/img/".into(), way: Way::One, personal_too: false };
    let site = Site::start(&[Sin::None; 3], |config| config.sites[0].rules.paths = vec![white]).await;
    site.put("/img/1", "picture");
    let got = site.get("/img/1").await;
    assert_eq!((got.status, got.header("tidings-verified"), site.reads()), (200, "no", 1));
}

#[tokio::test]
async fn sizes_and_rates_are_bounded() {
    let allowance = Some(Allowance { burst: 5, every: Duration::from_secs(600) });
    let site = Site::start(&[Sin::None; 3], |config| {
        config.sites[0].writes = Writes::One;
        config.sites[0].longest_request = 1_000;
        config.sites[0].bodies = Bodies { memory: 500, disk: 1_000, unverified_above: None };
        config.sites[0].allowance = allowance;
    })
    .await;
    site.put("/long", &"x".repeat(1_001));
    site.put("/short", &"x".repeat(1_000));
    assert_eq!(site.get("/long").await.status, 502);
    assert_eq!(site.get("/short").await.body.len(), 1_000);
    assert_eq!(site.ask("POST", "/", &[], &"x".repeat(1_001)).await.status, 413);
    for bust in 0..3 {
        assert_eq!(site.get(&format!("/?{bust}")).await.status, 404);
    }
    assert_eq!(site.get("/?more").await.status, 429, "made-up queries cost N executions each");
    assert_eq!(site.get("/short").await.status, 200, "what is remembered is served");
}

#[tokio::test]
async fn pages_that_nobody_takes_are_bounded() {
    let site = Site::start(&[Sin::None; 3], |config| {
        config.sites[0].bodies.memory = 16 << 20;
        config.most_untaken = 20 << 20;
    })
    .await;
    site.put("/long", &"x".repeat(16 << 20));
    let mut slow = TcpStream::connect(site.proxy.address()).await.unwrap();
    slow.write_all(b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut first = [0; 12];
    slow.read_exact(&mut first).await.unwrap();
    assert_eq!(&first[9..], b"200", "it begins, and goes on as the client takes it");
    assert_eq!(site.get("/long").await.status, 503);
    assert_eq!(site.get("/short").await.status, 404, "others have room");
    drop(slow);
    let patience = tokio::time::Instant::now() + Duration::from_secs(30);
    while site.get("/long").await.status != 200 {
        assert!(tokio::time::Instant::now() < patience, "who has gone holds nothing");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Whoever takes nothing of an answer holds memory no longer than a head may take, and then no connection either; by HTTP/2 his other
/// streams do not help him.
#[tokio::test]
async fn an_answer_that_nobody_takes_is_let_go() {
    let site = Site::start(&[Sin::None; 3], |config| {
        config.sites[0].bodies.memory = 16 << 20;
        config.most_untaken = 20 << 20;
        config.slow_client = Duration::from_millis(400);
    })
    .await;
    site.put("/long", &"x".repeat(16 << 20));
    // By the static table: GET, http, a path and a host of their own.
    let head = [&[0x82, 0x86, 0x44, 5][..], b"/long", &[0x41, 1], b"a"].concat();
    let by_http2 = [PREFACE, SETTINGS, &[0, 0, head.len() as u8, 1, 5, 0, 0, 0, 1], &head].concat();
    for asked in [&b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n"[..], &by_http2] {
        let mut slow = TcpStream::connect(site.proxy.address()).await.unwrap();
        slow.write_all(asked).await.unwrap();
        let mut first = [0; 12];
        slow.read_exact(&mut first).await.unwrap();
        let patience = tokio::time::Instant::now() + Duration::from_secs(30);
        while site.get("/long").await.status != 200 {
            assert!(tokio::time::Instant::now() < patience, "it is held for ever");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let told = tokio::time::timeout(Duration::from_secs(30), until_ended(&mut slow)).await;
        let told = told.expect("its connection is ended");
        assert!(told.len() < 16 << 20, "and the answer is not, as if it were whole");
    }
}

/// What bodies of requests take is bounded, for all clients together; a head that will not be served is refused without its body.
#[tokio::test]
async fn bodies_of_requests_are_bounded_together() {
    let site = Site::start(&[Sin::None; 3], |config| {
        config.sites[0].writes = Writes::One;
        config.sites[0].longest_request = 8_000;
        config.most_requested = 10_000;
    })
    .await;
    let half = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8000\r\n\r\n{}", "x".repeat(7_000));
    let mut slow = TcpStream::connect(site.proxy.address()).await.unwrap();
    slow.write_all(half.as_bytes()).await.unwrap();
    // It has its room before others come, who would otherwise have it.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut others = Vec::new();
    while others.last() != Some(&503) {
        assert!(others.len() < 500, "both are held");
        others.push(site.ask("POST", "/", &[], &"x".repeat(5_000)).await.status);
    }
    assert_eq!(site.ask("POST", "/", &[], "short").await.status, 200, "there is room for others");
    slow.write_all("x".repeat(1_000).as_bytes()).await.unwrap();
    let mut first = [0; 12];
    slow.read_exact(&mut first).await.unwrap();
    assert_eq!(&first[9..], b"200", "and it goes on");
    assert_eq!(site.ask("POST", "/", &[], &"x".repeat(8_000)).await.status, 200, "whatever is answered holds nothing");
}

#[tokio::test]
async fn heads_are_bounded() {
    let site = Site::start(&[Sin::None; 3], |_| {}).await;
    let of = |headers: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "Accept: x\r\n".repeat(headers));
    assert!(raw(&site, &of(100)).await.starts_with("HTTP/1.1 431 "));
    assert!(
        raw(&site, &format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(70_000)))
            .await
            .starts_with("HTTP/1.1 414 ")
    );
    // Whoever says more than is read may not hear why; it is over all the same.
    let mut stream = TcpStream::connect(site.proxy.address()).await.unwrap();
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nAccept: {}\r\n\r\n", "x".repeat(1 << 20));
    let _ = stream.write_all(long.as_bytes()).await;
    let told = tokio::time::timeout(Duration::from_secs(20), until_ended(&mut stream)).await.expect("it is over");
    assert!(told.is_empty() || told.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&told));
    assert_eq!(site.reads(), 0);
}

/// Their bodies never come.
#[tokio::test]
async fn what_will_not_be_served_is_refused_by_its_head() {
    let patient = |config: &mut tidings_sketch_proxy::Config| config.slow_client = Duration::from_secs(3_600);
    let site = Site::start(&[Sin::None; 3], patient).await;
    let length = "Content-Length: 9\r\n\r\nabc";
    let mut refused = vec![
        (format!("POST / HTTP/1.1\r\nHost: a\r\n{length}"), "405"),
        (format!("GET / HTTP/1.1\r\nHost: a\r\n{length}"), "400"),
    ];
    refused.push((format!("POST / HTTP/1.1\r\n{length}"), "400"));
    refused.push((format!("POST / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\n{length}"), "501"));
    for (bytes, status) in refused {
        let told = raw(&site, &bytes).await;
        assert!(told.starts_with(&format!("HTTP/1.1 {status}")), "{bytes:?}: {told}");
    }
}

/// Sends bytes as they are, and returns the first line of what comes back.
async fn raw(site: &Site, bytes: &str) -> String {
    let mut stream = TcpStream::connect(site.proxy.address()).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut told = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut told));
    let _ = read.await.expect("it answers and closes");
    String::from_utf8_lossy(&told).lines().next().unwrap_or_default().to_owned()
}

/// Behind each of them stands a request that is as it should be: whoever takes it for the next one has taken what was smuggled. So there is
/// one refusal, the end of the connection, and no origin hears anything.
#[tokio::test]
async fn ambiguous_and_malformed_requests_reach_no_origin() {
    let site = Site::start(&[Sin::None; 3], |config| config.sites[0].writes = Writes::One).await;
    site.put("/", "hello");
    let chunked = "Transfer-Encoding: chunked\r\n";
    let mut asked = Vec::new();
    let mut ask = |what: &str, status: u16| asked.push((what.to_owned(), status));
    // Hosts.
    ask("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400);
    ask("GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400);
    ask("GET / HTTP/1.1\r\n\r\n", 400);
    ask("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400);
    ask("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400);
    ask("GET / HTTP/1.1\r\nHost: me@a\r\n\r\n", 400);
    ask("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    // Other protocols.
    ask("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", 501);
    ask("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", 405);
    ask("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405);
    // Heads that are none.
    ask("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    ask("GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400);
    ask("GET / HTTP/1.1\r\nHost: a\r\nAccept: x\r\n Content-Length: 3\r\n\r\n", 400);
    ask("GET / HTTP/1.1\r\nHost: a\r\nAccept: x\rContent-Length: 3\r\n\r\n", 400);
    ask("nonsense\r\n\r\n", 400);
    // Bodies of reads. What follows is a request of its own to a server that does not expect a body.
    let inner = "GET /other HTTP/1.1\r\nHost: a\r\n\r\n";
    ask(&format!("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{inner}", inner.len()), 400);
    ask(&format!("HEAD / HTTP/1.1\r\nHost: a\r\n{chunked}\r\n1\r\nx\r\n0\r\n\r\n"), 400);
    // Lengths.
    for length in ["4\r\nContent-Length: 5", "4, 5", "+3", "-3", "0x3", "3 3", "", "99999999999999999999999"] {
        ask(&format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\nabc"), 400);
    }
    ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 3\r\n\r\nabc", 400);
    for coding in ["xchunked", "chunked, identity", "identity", "chunked\r\nTransfer-Encoding: identity", "gzip"] {
        ask(&format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: {coding}\r\n\r\n1\r\nx\r\n0\r\n\r\n"), 400);
    }
    ask("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", 400);
    ask(&format!("POST / HTTP/1.0\r\nHost: a\r\n{chunked}\r\n1\r\nx\r\n0\r\n\r\n"), 400);
    for body in
        ["zz\r\nx\r\n0\r\n\r\n", "1;\nx\r\n0\r\n\r\n", "1\r\nxx\r\n0\r\n\r\n", "fffffffffffffffff1\r\nx\r\n0\r\n\r\n"]
    {
        ask(&format!("POST / HTTP/1.1\r\nHost: a\r\n{chunked}\r\n{body}"), 400);
    }
    let written = || site.origins.iter().map(|origin| origin.writes.load(Ordering::SeqCst)).sum::<u64>();
    for (bytes, status) in asked {
        for behind in ["GET /smuggled", "POST /smuggled"] {
            let bytes = format!("{bytes}{behind} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
            let mut stream = TcpStream::connect(site.proxy.address()).await.unwrap();
            stream.write_all(bytes.as_bytes()).await.unwrap();
            let told = tokio::time::timeout(Duration::from_secs(10), until_ended(&mut stream)).await;
            let told =
                String::from_utf8_lossy(&told.unwrap_or_else(|_| panic!("{bytes:?} leaves it open"))).into_owned();
            assert!(told.starts_with(&format!("HTTP/1.1 {status} ")), "{bytes:?}: {told}");
            assert_eq!(told.matches("HTTP/1.1 ").count(), 1, "{bytes:?}: {told}");
            assert_eq!((site.reads(), written()), (0, 0), "{bytes:?}");
        }
    }
}

/// RFC 9112 §6.3: a length beside a coding. Servers on the way may go by either; what one takes for a body is a request to the other. The
/// coding decides, nothing is taken behind it, and an origin hears one length.
#[tokio::test]
async fn nothing_is_taken_behind_a_request_of_two_lengths() {
    let site = Site::start(&[Sin::None; 3], |config| config.sites[0].writes = Writes::One).await;
    let written = || site.origins.iter().map(|origin| origin.writes.load(Ordering::SeqCst)).sum::<u64>();
    let coding = "Transfer-Encoding: chunked\r\n";
    for (at, lengths) in [
        format!("Content-Length: 4\r\n{coding}"),
        format!("{coding}Content-Length: 4\r\n"),
        format!("Content-Length: 4\r\n{coding}Content-Length: 60\r\n"),
        format!("{coding}Content-Length: nonsense\r\n"),
    ]
    .into_iter()
    .enumerate()
    {
        for behind in ["GET /smuggled", "POST /smuggled"] {
            let before = written();
            let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{lengths}\r\n");
            let mut stream = TcpStream::connect(site.proxy.address()).await.unwrap();
            let bytes = format!("{head}2\r\nhi\r\n0\r\n\r\n{behind} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(bytes.as_bytes()).await.unwrap();
            let told = tokio::time::timeout(Duration::from_secs(10), until_ended(&mut stream)).await;
            let told = String::from_utf8_lossy(&told.expect("the connection is closed")).into_owned();
            assert_eq!(told.matches("HTTP/1.1 ").count(), 1, "{at}: {told}");
            assert!(told.starts_with("HTTP/1.1 200 ") && told.ends_with("\r\n\r\nhi"), "{at}: {told}");
            assert_eq!((site.reads(), written() - before), (0, 1), "{at}: {told}");
        }
    }
    // Twice the same is once; two that differ are refused, and what follows is not taken.
    let twice = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";
    assert!(raw(&site, twice).await.starts_with("HTTP/1.1 200 "));
    let before = written();
    let differ = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhiPOST /smuggled HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    assert!(raw(&site, differ).await.starts_with("HTTP/1.1 400 "));
    assert_eq!((site.reads(), written()), (0, before));
}

/// By HTTP/2 a body ends where its frames say; what the head says of it besides would be believed by an origin that is spoken to by HTTP/1.1.
#[tokio::test]
async fn nothing_is_smuggled_by_http2() {
    let site = Site::start(&[Sin::None; 3], |config| config.sites[0].writes = Writes::One).await;
    let written = || site.origins.iter().map(|origin| origin.writes.load(Ordering::SeqCst)).sum::<u64>();
    let field = |name: &str, value: &str| {
        [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
    };
    let two = ["3", "60"].map(|length| field("content-length", length)).concat();
    for (what, fields, is_served) in [
        ("as it should be", field("content-length", "3"), true),
        ("a length that is too short", field("content-length", "1"), false),
        ("a length that is too long", field("content-length", "60"), false),
        ("two lengths", two, false),
        ("a coding", field("transfer-encoding", "chunked"), false),
        ("another host", field("host", "b"), false),
        ("a line's end in a value", field("accept", "x\r\nContent-Length: 60"), false),
        ("a line's end in a name", field("accept: x\r\ncontent-length", "60"), false),
        ("upper case", field("Content-Length", "60"), false),
    ] {
        let before = written();
        // By the static table: POST, http, /, and a host.
        let head = [&[0x83, 0x86, 0x84, 0x41, 1][..], b"a", &fields].concat();
        let headers = [&[0, 0, head.len() as u8, 1, 4, 0, 0, 0, 1][..], &head].concat();
        let body = [&[0, 0, 3, 0, 1, 0, 0, 0, 1][..], b"abc"].concat();
        let mut stream = TcpStream::connect(site.proxy.address()).await.unwrap();
        stream.write_all(&[PREFACE, SETTINGS, &headers, &body].concat()).await.unwrap();
        let said = tokio::time::timeout(Duration::from_secs(10), said_of_the_first(&mut stream)).await;
        let said = said.unwrap_or_else(|_| panic!("nothing is said of {what}"));
        // `:status: 200` is the eighth of the static table.
        assert_eq!(said == [0x88], is_served, "{what}: {said:?}");
        assert_eq!((site.reads(), written() - before), (0, u64::from(is_served)), "{what}");
    }
}

/// The first byte of the answer's head on the first stream of HTTP/2; nothing if it is reset, or the connection ended.
async fn said_of_the_first(stream: &mut TcpStream) -> Vec<u8> {
    loop {
        let mut frame = [0; 9];
        if stream.read_exact(&mut frame).await.is_err() {
            return Vec::new();
        }
        let [high, middle, low, kind, ..] = frame;
        let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
        if stream.read_exact(&mut payload).await.is_err() {
            return Vec::new();
        }
        match kind {
            // HEADERS; RST_STREAM and GOAWAY.
            1 => return payload[..1].to_vec(),
            3 | 7 => return Vec::new(),
            _ => {}
        }
    }
}

/// Whoever announces more than is taken hears so at once, and need not send it.
#[tokio::test]
async fn a_body_that_says_that_it_is_too_long_is_not_waited_for() {
    let patient = |config: &mut tidings_sketch_proxy::Config| {
        config.slow_client = Duration::from_secs(3_600);
        config.sites[0].writes = Writes::One;
    };
    let site = Site::start(&[Sin::None; 3], patient).await;
    let told = raw(&site, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\nabc").await;
    assert!(told.starts_with("HTTP/1.1 413"), "{told}");
}

/// What comes until the connection is ended.
async fn until_ended(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // It may be reset: what matters is that it ends.
    let _ = stream.read_to_end(&mut rest).await;
    rest
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A frame of SETTINGS that says nothing.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// Whoever sends slowly holds nobody up, and not for ever: a place among two is free again each time.
#[tokio::test]
async fn whoever_sends_slowly_is_cut_off_wherever_it_stands() {
    let slow = |config: &mut tidings_sketch_proxy::Config| {
        config.sites[0].writes = Writes::One;
        config.slow_client = Duration::from_millis(400);
        config.most_connections = 2;
    };
    let site = Site::start(&[Sin::None; 3], slow).await;
    site.put("/page", "0123456789");
    // The first request of HTTP/2, of which the head never ends: HEADERS without END_HEADERS.
    let half_a_head = [PREFACE, SETTINGS, &[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82]].concat();
    // A whole head, by the static table: POST, http, /, a host; and of its body one byte.
    let head = [&[0x83, 0x86, 0x84, 0x41, 1][..], b"a"].concat();
    let headers = [&[0, 0, head.len() as u8, 1, 4, 0, 0, 0, 1][..], &head].concat();
    let half_a_body = [PREFACE, SETTINGS, &headers, &[0, 0, 1, 0, 0, 0, 0, 0, 1, b'x']].concat();
    for (what, said) in [
        ("nothing", &b""[..]),
        ("a part of the preface", &PREFACE[..9]),
        ("half a head", b"GET /page HTTP/1.1\r\nHost: a\r\nX-Slow: "),
        ("half a head, by HTTP/2", &half_a_head),
        ("half a body", b"POST /page HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n12"),
        ("half a chunk", b"POST /page HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n12"),
        ("half a body, by HTTP/2", &half_a_body),
        ("a whole request, and no other", b"GET /page HTTP/1.1\r\nHost: a\r\n\r\n"),
    ] {
        let mut streams = Vec::new();
        for _ in 0..2 {
            let mut stream = TcpStream::connect(site.proxy.address()).await.unwrap();
            stream.write_all(said).await.unwrap();
            streams.push(stream);
        }
        // Both places are taken; somebody else waits for one of them, and gets it.
        assert_eq!(site.get("/page").await.status, 200, "behind {what}");
        for stream in &mut streams {
            let told = until_ended(stream).await;
            let told = String::from_utf8_lossy(&told);
            match what {
                "half a body" | "half a chunk" => assert!(told.starts_with("HTTP/1.1 408 "), "{what}: {told}"),
                "a whole request, and no other" => assert!(told.starts_with("HTTP/1.1 200 "), "{what}: {told}"),
                _ => assert!(!told.contains("200 OK"), "{what}: {told}"),
            }
        }
    }
}

/// A byte now and then is not more than nothing.
#[tokio::test]
async fn a_head_or_a_body_that_trickles_is_cut_off() {
    let slow = |config: &mut tidings_sketch_proxy::Config| {
        config.sites[0].writes = Writes::One;
        config.slow_client = Duration::from_millis(400);
    };
    let site = Site::start(&[Sin::None; 3], slow).await;
    for begin in [
        "GET /page HTTP/1.1\r\nHost: a\r\nX-Slow: ",
        "POST /page HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n",
    ] {
        let (mut reading, mut writing) = TcpStream::connect(site.proxy.address()).await.unwrap().into_split();
        writing.write_all(begin.as_bytes()).await.unwrap();
        let trickle = async {
            while writing.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ends = async {
            let mut told = Vec::new();
            let _ = reading.read_to_end(&mut told).await;
            String::from_utf8_lossy(&told).into_owned()
        };
        tokio::select! {
            told = ends => assert!(told.is_empty() || told.starts_with("HTTP/1.1 408 "), "{told}"),
            () = trickle => {}
        }
    }
}
