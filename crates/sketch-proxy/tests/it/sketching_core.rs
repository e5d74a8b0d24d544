//! Several proxies that remember as one, on a pool of placement inside the process.

use crate::origins::{Got, Origin, Sin};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidings_client::placement::testing::{Line, TestPool};
use tidings_sketch::http::Rules;
use tidings_sketch::sketcher::{Allowance, Writes};
use tidings_sketch_proxy::{Config, Core, CoreStats, Proxy, Secret};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Origins, and proxies before them that share a core.
struct Site {
    origins: Vec<Arc<Origin>>,
    pool: TestPool,
    proxies: Vec<Proxy>,
    /// Each proxy's to the manager.
    lines: Vec<Line>,
    /// Where each proxy hears the others.
    doors: Vec<SocketAddr>,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// A port that nobody has at the moment.
fn free() -> SocketAddr {
    std::net::TcpListener::bind(HERE).unwrap().local_addr().unwrap()
}

impl Site {
    async fn start(origins: usize) -> Site {
        let mut site = Site {
            origins: Vec::new(),
            pool: TestPool::start("sketches").await.unwrap(),
            proxies: Vec::new(),
            lines: Vec::new(),
            doors: Vec::new(),
            client: Client::builder(TokioExecutor::new()).build_http(),
        };
        for _ in 0..origins {
            site.origins.push(Origin::start(Sin::None).await);
        }
        site
    }

    /// Adds a proxy with this secret.
    async fn add(&mut self, secret: &[u8; 32], change: impl FnOnce(&mut Config)) {
        let urls: Vec<String> = self.origins.iter().map(|origin| format!("http://{}", origin.address)).collect();
        let mut config = Config::of(HERE, &urls).unwrap();
        // A machine that is busy is no reason to ask all origins.
        config.sites[0].patience = Duration::from_secs(10);
        let door = free();
        let line = self.pool.line();
        let mut core = Core::of(line.clone(), door, Secret::new(secret).unwrap());
        self.lines.push(line);
        core.owner = self.pool.options(&format!("proxy-{}", self.proxies.len()));
        config.core = Some(core);
        change(&mut config);
        self.proxies.push(Proxy::start(config).await.unwrap());
        self.doors.push(door);
    }

    fn put(&self, path: &str, page: &str) {
        self.origins.iter().for_each(|origin| origin.put(path, page));
    }

    fn asked(&self, path: &str) -> u64 {
        self.origins.iter().map(|origin| origin.asked(path)).sum()
    }

    async fn ask(&self, at: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)]) -> Got {
        let mut request = Request::builder().method(method).uri(format!("http://{at}{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        // Whatever port it came by, it is one page.
        let request = request.header("host", "a.org").body(Full::default()).unwrap();
        let asked = tokio::time::timeout(Duration::from_secs(60), self.client.request(request));
        let (parts, body) = asked.await.expect("it answers").expect("it answers properly").into_parts();
        let body = body.collect().await.expect("it answers to the end").to_bytes();
        Got { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    async fn get(&self, proxy: usize, path: &str) -> Got {
        self.ask(self.proxies[proxy].address(), "GET", path, &[]).await
    }

    fn core(&self, proxy: usize) -> CoreStats {
        self.proxies[proxy].stats().core.expect("it is in a core")
    }

    /// Waits until something is so.
    async fn until(&self, what: &str, mut is_so: impl AsyncFnMut(&Site) -> bool) {
        for _ in 0..6_000 {
            if is_so(self).await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let all: Vec<CoreStats> = (0..self.proxies.len()).map(|proxy| self.core(proxy)).collect();
        panic!("waited in vain until {what}: {all:?}");
    }

    /// Waits until each of these has a good part of the ring, and they have all of it among them.
    async fn divided(&self, members: &[usize]) {
        self.until("the core is divided", async |site| {
            let shares: Vec<f64> = members.iter().map(|proxy| site.core(*proxy).share).collect();
            shares.iter().all(|share| *share > 0.2) && shares.iter().sum::<f64>() > 0.999_999
        })
        .await;
    }

    /// Waits until one proxy knows what the other one has, and asks it.
    async fn asks(&self, one: usize, other: usize) {
        let mut page = 0;
        self.until("one proxy asks the other", async |site| {
            page += 1;
            site.get(one, &format!("/asks-{page}")).await;
            site.core(other).served > 0
        })
        .await;
    }

    /// Waits until these have all of the ring among them and nothing moves any more, and pages are remembered wherever they are
    /// asked for.
    async fn settled(&self, members: &[usize]) {
        let least = 0.6 / members.len() as f64;
        let (mut before, mut looks) = (Vec::new(), 0);
        self.until("the core has settled", async |site| {
            let shares: Vec<f64> = members.iter().map(|proxy| site.core(*proxy).share).collect();
            let whole = shares.iter().all(|share| *share > least) && shares.iter().sum::<f64>() > 0.999_999;
            looks = if whole && shares == before { looks + 1 } else { 0 };
            before = shares;
            looks > 250
        })
        .await;
        for page in 0..12 {
            let path = format!("/settled-{page}");
            self.put(&path, "here");
            for proxy in members {
                let fast = async |site: &Site| site.get(*proxy, &path).await.header("tidings-verified") == "fast";
                self.until("a page is remembered", fast).await;
            }
        }
    }
}

const SECRET: [u8; 32] = [1; 32];

/// Each page is agreed on once, by whichever proxy it was first asked, and is fast at all of them.
#[tokio::test(flavor = "multi_thread")]
async fn pages_are_agreed_on_once_over_the_core() {
    let mut site = Site::start(5).await;
    for _ in 0..3 {
        site.add(&SECRET, |config| config.sites[0].writes = Writes::One).await;
    }
    site.settled(&[0, 1, 2]).await;
    let (pages, long) = (30, "long ".repeat(50_000));
    let text = |page: usize| format!("page {page} {}", if page.is_multiple_of(10) { long.as_str() } else { "" });
    let before: Vec<CoreStats> = (0..3).map(|proxy| site.core(proxy)).collect();
    let mut agreed = 0;
    for page in 0..pages {
        let path = format!("/{page}");
        site.put(&path, &text(page));
        for turn in 0..3 {
            let got = site.get((page + turn) % 3, &path).await;
            assert_eq!((got.status, &got.body[..]), (200, text(page).as_bytes()), "{page} {turn}");
            agreed += usize::from(got.header("tidings-verified") == "agreed");
        }
    }
    // A policy may move a range meanwhile, which costs some more.
    assert!((pages..pages + 10).contains(&agreed), "{agreed} of {pages} pages were agreed on");
    let executions: u64 = (0..pages).map(|page| site.asked(&format!("/{page}"))).sum();
    // Five for the vote and two fast ones; every proxy for itself would have taken fifteen.
    assert!(executions < 10 * pages as u64, "{executions} executions");
    let after: Vec<CoreStats> = (0..3).map(|proxy| site.core(proxy)).collect();
    let grown = |count: fn(&CoreStats) -> u64| -> u64 {
        before.iter().zip(&after).map(|(before, after)| count(after) - count(before)).sum()
    };
    assert!(grown(|core| core.forwarded) > 30, "{after:?}");
    assert!(grown(|core| core.served) >= grown(|core| core.forwarded), "{after:?}");
    assert_eq!(after.iter().map(|core| core.foreign).sum::<u64>(), 0, "{after:?}");

    // Conditions, ranges and HEAD are of whichever proxy was asked; so are writes, which go to one origin.
    for proxy in 0..3 {
        let address = site.proxies[proxy].address();
        let tag = site.get(proxy, "/10").await.header("etag").to_owned();
        assert_eq!(site.ask(address, "GET", "/10", &[("if-none-match", tag.as_str())]).await.status, 304);
        let part = site.ask(address, "GET", "/10", &[("range", "bytes=0-3")]).await;
        assert_eq!((part.status, &part.body[..]), (206, &b"page"[..]));
        let head = site.ask(address, "HEAD", "/10", &[]).await;
        assert_eq!((head.status, head.body.len()), (200, 0));
        assert_eq!(site.get(proxy, "/nowhere").await.status, 404);
        let written = site.ask(address, "POST", "/10", &[]).await;
        assert_eq!((written.status, written.header("tidings-verified")), (200, "no"));
        let own = site.ask(address, "GET", "/10", &[("cookie", "me=1")]).await;
        assert_eq!((own.status, own.header("tidings-verified")), (200, "agreed"));
    }
    assert_eq!(
        site.origins.iter().map(|origin| origin.writes.load(std::sync::atomic::Ordering::SeqCst)).sum::<u64>(),
        3
    );
}

/// Entries go with their range: whoever is granted it again begins anew, and meanwhile everything is agreed on.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_that_was_lost_is_not_remembered() {
    let mut site = Site::start(3).await;
    site.add(&SECRET, |_| {}).await;
    site.settled(&[0]).await;
    site.put("/page", "hello");
    assert_eq!(site.get(0, "/page").await.header("tidings-verified"), "agreed");
    assert_eq!(site.get(0, "/page").await.header("tidings-verified"), "fast");
    site.lines[0].cut();
    site.until("everything is lost", async |site| site.core(0).ranges == 0).await;
    for _ in 0..3 {
        let got = site.get(0, "/page").await;
        assert_eq!((got.status, got.header("tidings-verified")), (200, "agreed"), "nobody remembers it");
    }
    assert!(site.core(0).aside >= 3, "{:?}", site.core(0));
    site.lines[0].mend();
    site.until("everything is back", async |site| site.core(0).share > 0.999_999).await;
    assert_eq!(site.get(0, "/page").await.header("tidings-verified"), "agreed", "it begins anew");
    let fast = async |site: &Site| site.get(0, "/page").await.header("tidings-verified") == "fast";
    site.until("it is remembered again", fast).await;
}

/// A proxy that is drained hands over what it remembers: nothing is agreed on again, or next to nothing.
#[tokio::test(flavor = "multi_thread")]
async fn entries_go_along_with_a_range_that_is_handed_over() {
    let mut site = Site::start(3).await;
    for _ in 0..2 {
        site.add(&SECRET, |_| {}).await;
    }
    site.settled(&[0, 1]).await;
    let pages = 60;
    for page in 0..pages {
        site.put(&format!("/{page}"), &format!("page {page}"));
        for _ in 0..2 {
            assert_eq!(site.get(0, &format!("/{page}")).await.status, 200);
        }
    }
    let before: u64 = site.core(0).carried;
    site.proxies[1].leave_core(Duration::from_secs(60)).await;
    site.until("the other one has everything", async |site| site.core(0).share > 0.999_999).await;
    assert!(site.core(0).carried > before, "{:?}", site.core(0));
    let mut agreed = 0;
    for page in 0..pages {
        let got = site.get(0, &format!("/{page}")).await;
        assert_eq!((got.status, &got.body[..]), (200, format!("page {page}").as_bytes()));
        agreed += usize::from(got.header("tidings-verified") == "agreed");
    }
    // Shards at the ends of ranges stay behind: a few pages in a hundred.
    assert!(agreed < pages / 4, "{agreed} of {pages} pages had to be agreed on again; {:?}", site.core(0));
    // Who has left still serves, by asking the other one.
    let got = site.get(1, "/0").await;
    assert_eq!((got.status, &got.body[..]), (200, &b"page 0"[..]));
}

/// Whoever does not know the secret is heard by nobody: neither clients that say they are proxies, nor proxies of another core.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_speaks_for_the_core() {
    let mut site = Site::start(3).await;
    site.add(&SECRET, |_| {}).await;
    site.settled(&[0]).await;
    site.put("/page", "hello");
    let nonce = "0".repeat(32);
    let forged = format!("ask {nonce} http usual 0000000000000000 {nonce}");
    for header in [forged.as_str(), "ask", "", "page fast 00000000000000000000000000000000"] {
        let got = site.ask(site.doors[0], "GET", "/page", &[("tidings-core", header)]).await;
        assert_eq!((got.status, got.header("tidings-core")), (403, ""), "{header}");
        // At the front door it is a header like others that do not pass.
        let got = site.ask(site.proxies[0].address(), "GET", "/page", &[("tidings-core", header)]).await;
        assert_eq!((got.status, &got.body[..], got.header("tidings-core")), (200, &b"hello"[..], ""), "{header}");
    }
    assert_eq!(site.ask(site.doors[0], "GET", "/page", &[]).await.status, 403);
    assert_eq!(site.core(0).foreign, 5);

    // One of another secret is neither asked nor answered: what it is asked for is agreed on, and nobody's page is wrong.
    site.add(&[2; 32], |_| {}).await;
    let turned_away = async |site: &Site| {
        let got = site.get(1, "/page").await;
        assert_eq!((got.status, &got.body[..]), (200, &b"hello"[..]));
        site.core(1).unanswered > 0
    };
    site.until("it was turned away", turned_away).await;
    for page in 0..30 {
        let path = format!("/{page}");
        site.put(&path, &path);
        for proxy in 0..2 {
            let got = site.get(proxy, &path).await;
            assert_eq!((got.status, &got.body[..]), (200, path.as_bytes()), "{proxy}");
        }
    }
    let stats = [site.core(0), site.core(1)];
    assert!(stats.iter().all(|core| core.forwarded == 0 && core.served == 0), "{stats:?}");
    assert!(stats[0].foreign > 5 && stats[1].aside > 0, "{stats:?}");
}

/// Rules count by what they say in a core; what was remembered under them before they were others is forgotten all the same.
#[tokio::test(flavor = "multi_thread")]
async fn rules_that_come_back_find_nothing() {
    let mut site = Site::start(3).await;
    site.add(&SECRET, |_| {}).await;
    site.settled(&[0]).await;
    site.put("/page", "hello");
    let verified = async |site: &Site| site.get(0, "/page").await.header("tidings-verified").to_owned();
    assert_eq!((verified(&site).await, verified(&site).await), ("agreed".to_owned(), "fast".to_owned()));
    let others = Rules { remembers_set_cookie: true, ..Rules::default() };
    site.proxies[0].set_rules(0, others);
    assert_eq!((verified(&site).await, verified(&site).await), ("agreed".to_owned(), "fast".to_owned()));
    site.proxies[0].set_rules(0, Rules::default());
    assert_eq!(verified(&site).await, "agreed", "another page may have been seen meanwhile");
    assert_eq!(verified(&site).await, "fast");
}

/// A proxy that reaches no origin answers nothing for the others, and keeps nobody else from it.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_without_origins_stands_in_nobodys_way() {
    let mut site = Site::start(3).await;
    site.add(&SECRET, |_| {}).await;
    site.add(&SECRET, |config| {
        config.sites[0].patience = Duration::from_nanos(1);
        config.sites[0].give_up = Duration::from_nanos(1);
    })
    .await;
    site.divided(&[0, 1]).await;
    site.asks(0, 1).await;
    for page in 0..30 {
        let path = format!("/{page}");
        site.put(&path, &path);
        let got = site.get(0, &path).await;
        assert_eq!((got.status, &got.body[..]), (200, path.as_bytes()), "{path}");
    }
    let stats = [site.core(0), site.core(1)];
    // Now and then an answer is there before anybody looks at the clock.
    let ended = stats[0].aside + stats[0].forwarded;
    assert!(stats[1].served > 1 && stats[0].aside > 0 && ended >= stats[1].served, "{stats:?}");
    assert_eq!(stats[0].unanswered, 0, "it has answered");
}

/// Whether a page is served that origins do not agree on is for the proxy to say that was asked for it.
#[tokio::test(flavor = "multi_thread")]
async fn each_proxy_keeps_to_its_own_rule() {
    let mut site = Site::start(3).await;
    site.add(&SECRET, |config| config.sites[0].unverified_rather_than_none = true).await;
    site.add(&SECRET, |_| {}).await;
    site.divided(&[0, 1]).await;
    site.asks(0, 1).await;
    site.asks(1, 0).await;
    for page in 0..20 {
        let path = format!("/{page}");
        site.origins.iter().enumerate().for_each(|(number, origin)| origin.put(&path, &format!("{page} {number}")));
        let (marked, refused) = (site.get(0, &path).await, site.get(1, &path).await);
        assert_eq!((marked.status, marked.header("tidings-verified")), (200, "no"), "{path}");
        assert_eq!(refused.status, 502, "{path}");
    }
    let stats = [site.core(0), site.core(1)];
    assert!(stats.iter().all(|core| core.served > 1 && core.unanswered == 0), "{stats:?}");
}

/// What a client may send, proxies can pass on; and what they cannot pass on goes to all origins, without end of the asking.
#[tokio::test(flavor = "multi_thread")]
async fn many_headers_and_many_requests_are_no_reason_to_leave_a_proxy_alone() {
    let mut site = Site::start(3).await;
    for most_forwards in [1_024, 0] {
        site.add(&SECRET, |config| {
            config.core.as_mut().expect("it is in a core").most_forwards = most_forwards;
        })
        .await;
    }
    site.divided(&[0, 1]).await;
    site.asks(0, 1).await;
    // With `Host` as many as the front door takes.
    let headers = ["accept"; 99].map(|name| (name, "text/plain"));
    for page in 0..20 {
        let path = format!("/{page}");
        site.put(&path, &path);
        let got = site.ask(site.proxies[0].address(), "GET", &path, &headers).await;
        assert_eq!((got.status, &got.body[..]), (200, path.as_bytes()), "{path}");
        let got = site.get(1, &path).await;
        assert_eq!((got.status, &got.body[..]), (200, path.as_bytes()), "{path}");
    }
    let stats = [site.core(0), site.core(1)];
    assert!(stats[0].forwarded > 0 && stats[0].unanswered == 0, "{stats:?}");
    assert!(stats[1].forwarded == 0 && stats[1].aside > 0 && stats[1].unanswered == 0, "{stats:?}");
}

/// Entries are long. Nobody has them read who does not know the secret.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_forged_is_turned_away_before_it_is_read() {
    let mut site = Site::start(3).await;
    site.add(&SECRET, |config| config.slow_client = Duration::from_secs(3_600)).await;
    let (zeros, length) = ("0".repeat(32), 16 << 20);
    let header = format!("carry {zeros} 1 1 {length} {zeros} {zeros}");
    let mut stream = tokio::net::TcpStream::connect(site.doors[0]).await.unwrap();
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nTidings-Core: {header}\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    let read = tokio::time::timeout(Duration::from_secs(60), stream.read_exact(&mut answer)).await;
    read.expect("it does not wait for what is announced").unwrap();
    assert_eq!(&answer, b"HTTP/1.1 403");
    assert_eq!(site.core(0).foreign, 1);
}

/// A proxy that placement refuses serves on, and says why.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_by_placement_is_told() {
    let mut site = Site::start(3).await;
    site.add(&SECRET, |config| config.core.as_mut().expect("it is in a core").owner.namespace = "nowhere".into()).await;
    site.until("it is refused", async |site| site.core(0).refusal.is_some()).await;
    site.put("/page", "hello");
    let got = site.get(0, "/page").await;
    assert_eq!((got.status, got.header("tidings-verified")), (200, "agreed"));
}

#[tokio::test]
async fn what_cannot_be_joined_is_refused_by_name() {
    assert_eq!(Secret::new(b"short").err().expect("it can be guessed").code, "sketch.bad_secret");
    let pool = TestPool::start("sketches").await.unwrap();
    let mut config = Config::of(HERE, &["http://a".to_owned()]).unwrap();
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    config.core = Some(Core::of(pool.line(), everywhere, Secret::new(&SECRET).unwrap()));
    let error = Proxy::start(config).await.err().expect("others could not reach it");
    assert_eq!(error.code, "sketch.no_core_address");
}

/// Rule L: what one client may cause in pages that nothing is remembered of is counted once over the core, whichever proxies it asks:
/// each counts its part.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_has_one_allowance_at_all_proxies_together() {
    const BURST: usize = 90;
    let mut site = Site::start(3).await;
    let allowance = Some(Allowance { burst: BURST as u32, every: Duration::from_secs(3_600) });
    for _ in 0..3 {
        site.add(&SECRET, |config| config.sites[0].allowance = allowance).await;
    }
    site.divided(&[0, 1, 2]).await;
    let mut served = 0;
    for page in 0..300 {
        match site.get(page % 3, &format!("/made-up-{page}")).await.status {
            429 => {}
            404 => served += 1,
            other => panic!("{other}"),
        }
    }
    // A range that moves meanwhile takes a part of what was left along.
    assert!((BURST / 2..BURST * 3 / 2).contains(&served), "{served} were asked of all origins");
}
