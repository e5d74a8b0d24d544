//! Origins that take their time: that is no fault, and costs nobody more than it takes.

use crate::origins::Asking;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tidings_sketch::http::PathRule;
use tidings_sketch::sketcher::{Way, Writes};
use tidings_sketch_proxy::{Config, Proxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Far longer than an origin has that is asked alone.
const LONG: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_millis(300);

/// Requests that an origin has executed.
type Executed = Arc<AtomicU64>;

/// What comes of a request.
#[derive(Clone, Copy, PartialEq)]
enum Pace {
    Slow,
    /// It answers at once.
    Quick,
    /// It begins, and never ends.
    Stuck,
}

/// An origin whose `/trickles` begins at once and goes on later, and that sleeps before it answers anything else.
async fn origin(pace: Pace, executed: Executed) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, pace, Arc::clone(&executed)));
        }
    });
    address
}

/// One answer a connection, in two halves.
async fn answer(mut stream: TcpStream, pace: Pace, executed: Executed) {
    let (mut head, mut piece) = (Vec::new(), [0; 4_096]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return,
            Ok(read) => head.extend_from_slice(&piece[..read]),
        }
    }
    executed.fetch_add(1, SeqCst);
    let halves = [&b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 10\r\n\r\n01234"[..], b"56789"];
    if pace != Pace::Slow {
        let _ = stream.write_all(halves[0]).await;
        if pace == Pace::Stuck {
            let _ = stream.read(&mut piece).await;
            return;
        }
        let _ = stream.write_all(halves[1]).await;
        return;
    }
    if !head.starts_with(b"GET /trickles ") {
        tokio::time::sleep(LONG).await;
    }
    let _ = stream.write_all(halves[0]).await;
    if head.starts_with(b"GET /trickles ") {
        tokio::time::sleep(LONG).await;
    }
    let _ = stream.write_all(halves[1]).await;
}

struct Site {
    proxy: Proxy,
    asking: Asking,
    executed: Executed,
}

async fn site(change: impl FnOnce(&mut Config)) -> Site {
    let (executed, mut urls) = (Executed::default(), Vec::new());
    for _ in 0..3 {
        urls.push(format!("http://{}", origin(Pace::Slow, Arc::clone(&executed)).await));
    }
    let mut config = Config::of(SocketAddr::from(([127, 0, 0, 1], 0)), &urls).unwrap();
    (config.sites[0].patience, config.sites[0].give_up) = (PATIENCE, Duration::from_secs(60));
    change(&mut config);
    let proxy = Proxy::start(config).await.unwrap();
    let asking = Asking::of(proxy.address());
    Site { proxy, asking, executed }
}

impl Site {
    /// How an answer was verified; it must be the whole.
    async fn ask(&self, method: &str, path: &str) -> String {
        let got = self.asking.ask(method, path, &[], "").await;
        assert_eq!((got.status, &got.body[..]), (200, &b"0123456789"[..]), "{got:?}");
        got.header("tidings-verified").to_owned()
    }

    fn silences(&self) -> u64 {
        self.proxy.standing().iter().map(|(standing, _)| standing.silences).sum()
    }
}

#[tokio::test]
async fn a_write_that_takes_its_time_is_answered() {
    let site = site(|config| config.sites[0].writes = Writes::One).await;
    assert_eq!(site.ask("POST", "/").await, "no");
    assert_eq!((site.executed.load(SeqCst), site.silences()), (1, 0), "once, and nobody was silent");
}

#[tokio::test]
async fn a_page_that_takes_its_time_is_fast_all_the_same() {
    let site = site(|_| {}).await;
    assert_eq!(site.ask("GET", "/trickles").await, "agreed");
    let asked = site.executed.load(SeqCst);
    assert_eq!(site.ask("GET", "/trickles").await, "fast");
    assert_eq!((site.executed.load(SeqCst), site.silences()), (asked + 1, 0), "at the price of one");
}

#[tokio::test]
async fn an_unverified_page_that_takes_its_time_is_served() {
    let white = PathRule { prefix: "/".into(), way: Way::One, personal_too: true };
    let site = site(|config| config.sites[0].rules.paths.push(white)).await;
    assert_eq!(site.ask("GET", "/trickles").await, "no");
    assert_eq!(site.executed.load(SeqCst), 1, "who has begun is not asked again");
    assert_eq!(site.ask("GET", "/").await, "no");
    assert_eq!((site.executed.load(SeqCst), site.silences()), (3, 0), "who has not is, once");
}

/// Rule I: whoever is asked for what takes everybody long is not worse than others.
#[tokio::test]
async fn nobody_is_ejected_for_pages_that_take_everybody_long() {
    let site = site(|_| {}).await;
    let reads = (0..40).map(|_| site.ask("GET", "/"));
    assert_eq!(site.ask("GET", "/").await, "agreed");
    let ways = futures::future::join_all(reads).await;
    assert!(ways.iter().all(|way| way == "agreed"), "{ways:?}");
    assert_eq!(site.silences(), 0);
    assert!(site.proxy.standing().iter().all(|(standing, _)| !standing.ejected));
}

/// A body takes room as long as anybody has it to send, though its client has gone.
#[tokio::test]
async fn a_body_whose_client_has_gone_takes_room_while_it_is_under_way() {
    let site = site(|config| (config.sites[0].writes, config.most_requested) = (Writes::One, 10_000)).await;
    let mut stream = TcpStream::connect(site.proxy.address()).await.unwrap();
    let asked = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8000\r\n\r\n{}", "x".repeat(8_000));
    stream.write_all(asked.as_bytes()).await.unwrap();
    while site.executed.load(SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(stream);
    tokio::time::sleep(LONG / 10).await;
    let write = async || site.asking.ask("POST", "/", &[], &"x".repeat(8_000)).await.status;
    assert_eq!(write().await, 503);
    let patience = tokio::time::Instant::now() + Duration::from_secs(30);
    while write().await == 503 {
        assert!(tokio::time::Instant::now() < patience, "what is over takes none");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A client that goes away leaves nobody to blame and nothing under way: what it asked for is heard to its end.
#[tokio::test]
async fn what_is_asked_for_is_heard_though_the_client_has_gone() {
    let site = site(|_| {}).await;
    assert_eq!(site.ask("GET", "/trickles").await, "agreed");
    let asked = site.executed.load(SeqCst);
    for gone in 1..=3 {
        let mut stream = TcpStream::connect(site.proxy.address()).await.unwrap();
        let head = format!("GET /trickles HTTP/1.1\r\nHost: {}\r\n\r\n", site.proxy.address());
        stream.write_all(head.as_bytes()).await.unwrap();
        while site.executed.load(SeqCst) < asked + gone {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    for _ in 0..1_000 {
        if site.proxy.stats().all.fast == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let all = site.proxy.stats().all;
    assert_eq!(
        (all.fast, all.replicated, site.silences(), site.executed.load(SeqCst)),
        (3, 1, 0, asked + 3),
        "{all:?}"
    );
}

/// One origin that begins all its answers and ends none takes half the room of those that wait for one alone, and no connections
/// without end of those that ask all.
#[tokio::test]
async fn one_that_is_stuck_takes_a_part_of_the_room() {
    for method in ["GET", "POST"] {
        let stuck = Executed::default();
        let mut urls = vec![format!("http://{}", origin(Pace::Stuck, Arc::clone(&stuck)).await)];
        for _ in 0..2 {
            urls.push(format!("http://{}", origin(Pace::Quick, Executed::default()).await));
        }
        let mut config = Config::of(SocketAddr::from(([127, 0, 0, 1], 0)), &urls).unwrap();
        (config.sites[0].most_requests, config.sites[0].writes) = (8, Writes::One);
        config.sites[0].give_up = Duration::from_secs(600);
        let proxy = Proxy::start(config).await.unwrap();
        let asking = Arc::new(Asking::of(proxy.address()));
        assert_eq!(asking.get("/").await.header("tidings-verified"), "agreed");
        let (mut waiting, mut statuses) = (tokio::task::JoinSet::new(), Vec::new());
        for _ in 0..60 {
            let asking = Arc::clone(&asking);
            waiting.spawn(async move { asking.ask(method, "/", &[], "").await.status });
            let ended = tokio::time::timeout(Duration::from_millis(500), waiting.join_next()).await;
            statuses.extend(ended.ok().flatten().map(Result::unwrap));
        }
        assert_eq!(waiting.len(), 4, "{statuses:?}");
        match method {
            "GET" => assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}"),
            // A write is nobody else's.
            _ => assert!(statuses.contains(&200) && statuses.contains(&503), "{statuses:?}"),
        }
        for page in 0..40 {
            assert_eq!(asking.get(&format!("/{page}")).await.header("tidings-verified"), "agreed");
        }
        assert!((8..=16).contains(&stuck.load(SeqCst)), "{stuck:?}");
    }
}
