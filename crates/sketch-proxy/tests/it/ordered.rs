//! A proxy before a BFT group, which runs in this process on the model of the order.

use crate::origins::{Asking, Got, Origin as WebServer, Sin as Wrong};
use crate::ports::free_address;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;
use tempfile::TempDir;
use tidings_bft::http::Origin;
use tidings_bft::kv::KeyValue;
use tidings_bft::seat::Durable;
use tidings_bft::sin::Sin;
use tidings_bft::testing::{Modelled, Part};
use tidings_client::placement::testing::{Line, TestPool};
use tidings_sketch_proxy::{BftGroup, Config, Core, CoreStats, Group, Proxy, Secret, Service, Site};

const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A group of four with two clients.
pub struct Town<S> {
    group: Modelled<S>,
    _directory: TempDir,
}

impl<S: Durable> Town<S> {
    pub async fn start(services: [S; 4], sins: [Option<Sin>; 4]) -> Town<S> {
        let directory = tempfile::tempdir().unwrap();
        let parts = services.into_iter().zip(sins);
        let parts = parts.map(|(service, sin)| Part { addresses: (free_address(), free_address()), service, sin });
        let group = Modelled::start(directory.path(), 7, 2, parts.collect()).await.unwrap();
        Town { group, _directory: directory }
    }

    /// How a proxy before it is configured, as one of its clients.
    pub fn config(&self, client: usize, service: Service) -> Config {
        let group = BftGroup {
            membership: Arc::new(self.group.founded.membership.clone()),
            client: self.group.founded.clients[client].clone(),
            last_nonce: 0,
            service,
        };
        let mut config = Config::new(HERE, vec![Site::of_group(group).unwrap()]);
        config.sites[0].patience = Duration::from_millis(500);
        config.sites[0].allowance = None;
        config
    }

    /// Waits until all replicas are equally far.
    async fn settled(&self) {
        for _ in 0..3_000 {
            if self.group.is_level() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("they are never equally far");
    }
}

/// Keys and values, and a proxy before them.
async fn keys(sins: [Option<Sin>; 4], change: impl FnOnce(&mut Config)) -> (Town<KeyValue>, Proxy, Asking) {
    let town = Town::start([(); 4].map(|()| KeyValue::default()), sins).await;
    let mut config = town.config(0, Service::Keys);
    change(&mut config);
    let proxy = Proxy::start(config).await.unwrap();
    let asking = Asking::of(proxy.address());
    (town, proxy, asking)
}

fn how(got: &Got) -> (u16, &str, &[u8]) {
    (got.status, got.header("tidings-verified"), &got.body)
}

#[tokio::test]
async fn keys_are_written_in_order_and_read_from_one_replica() {
    let (town, proxy, asking) = keys([None; 4], |_| {}).await;
    assert_eq!(how(&asking.get("/colour").await), (404, "agreed", &b"the key has no value\n"[..]));
    assert_eq!(asking.get("/colour").await.header("tidings-verified"), "fast", "that, too, is remembered");
    // As browsers and libraries send it.
    let usual = [("accept-encoding", "gzip, br"), ("content-type", "text/plain"), ("accept", "*/*")];
    assert_eq!(asking.ask("PUT", "/colour", &usual, "red").await.status, 201);
    town.settled().await;
    assert_eq!(how(&asking.get("/colour").await), (200, "agreed", &b"red"[..]));
    for _ in 0..20 {
        // Whoever has a cookie or names himself is answered alike: the service does not hear of it.
        let got = asking.ask("GET", "/colour", &[("cookie", "a=b"), ("authorization", "x")], "").await;
        assert_eq!(how(&got), (200, "fast", &b"red"[..]));
    }
    assert_eq!(asking.ask("PUT", "/colour", &[], "blue").await.status, 204);
    town.settled().await;
    assert_eq!(how(&asking.get("/colour").await), (200, "agreed", &b"blue"[..]));
    let etag = asking.get("/colour").await.header("etag").to_owned();
    assert_eq!(asking.ask("GET", "/colour", &[("if-none-match", &etag)], "").await.status, 304);
    assert_eq!(asking.ask("GET", "/colour", &[("range", "bytes=1-2")], "").await.body, "lu");
    assert_eq!(asking.ask("DELETE", "/colour", &[], "").await.status, 204);
    assert_eq!(asking.ask("DELETE", "/colour", &[], "").await.status, 404);
    town.settled().await;
    assert_eq!(asking.get("/colour").await.status, 404);
    let stats = proxy.stats();
    assert_eq!(
        (stats.sites[0].origins.len(), stats.sites[0].origins.iter().map(|of| of.differed).sum::<u64>()),
        (4, 0),
        "{stats:?}"
    );
    assert!(stats.all.fast >= 22 && stats.sites[0].origins[3].origin.starts_with("replica-3 127.0.0.1:"), "{stats:?}");
}

/// A key has many spellings, which are one request: what was seen by one of them is remembered of all.
#[tokio::test]
async fn all_spellings_of_a_key_are_one() {
    let (town, _proxy, asking) = keys([None; 4], |_| {}).await;
    for (written, value) in [("/a/colour", "red"), ("/%61%2Fcolour", "blue"), ("/a%2f%63olour", "green")] {
        asking.ask("PUT", written, &[], value).await;
        town.settled().await;
        assert_eq!(how(&asking.get("/a%2Fcolour").await), (200, "agreed", value.as_bytes()));
        for read in ["/a/colour", "/%61/colour", "/a%2fcolou%72"] {
            assert_eq!(how(&asking.get(read).await), (200, "fast", value.as_bytes()), "{read}");
        }
    }
}

#[tokio::test]
async fn what_the_service_does_not_know_is_refused() {
    let (_town, _proxy, asking) = keys([None; 4], |config| config.sites[0].give_up = Duration::from_secs(1)).await;
    let got = asking.ask("POST", "/colour", &[], "red").await;
    assert_eq!((got.status, got.header("allow")), (405, "GET, HEAD, PUT, DELETE"));
    assert_eq!(asking.ask("PUT", "/colour", &[("if-match", "\"1\"")], "red").await.status, 501);
    assert_eq!(asking.ask("PUT", "/colour", &[("content-range", "bytes 0-2/9")], "red").await.status, 415);
    assert_eq!(asking.ask("PUT", "/colour", &[("content-encoding", "gzip")], "red").await.status, 415);
    assert_eq!(asking.ask("PUT", "/colour", &[], &"x".repeat(65 << 10)).await.status, 413);
    assert_eq!([asking.get("/").await.status, asking.get("/a?b").await.status], [400, 400]);
    assert_eq!(asking.get("/colour").await.status, 404, "nothing of it was written");
}

#[tokio::test]
async fn without_a_quorum_nothing_is_answered() {
    let quick = |config: &mut Config| config.sites[0].give_up = Duration::from_millis(700);
    let (mut town, _proxy, asking) = keys([None; 4], quick).await;
    assert_eq!(asking.ask("PUT", "/colour", &[], "red").await.status, 201);
    town.group.servers[0] = None;
    assert_eq!(asking.get("/colour").await.body, "red", "one of four may be away");
    town.group.servers[1] = None;
    let got = asking.get("/other").await;
    assert!(got.status == 502 && String::from_utf8_lossy(&got.body).contains("too few replicas"), "{got:?}");
    let got = asking.ask("PUT", "/colour", &[], "blue").await;
    assert!(got.status == 502 && String::from_utf8_lossy(&got.body).contains("may have been executed"), "{got:?}");
}

/// Rule A, whatever one replica does: somebody writes ever larger numbers, and no read is below one that ended before it began.
#[tokio::test]
async fn no_read_goes_back_whatever_one_replica_does() {
    for sin in [Sin::Stale, Sin::Forger, Sin::Equivocator, Sin::Mute] {
        let impatient = |config: &mut Config| config.sites[0].patience = Duration::from_millis(50);
        let (_town, proxy, asking) = keys([None, Some(sin), None, None], impatient).await;
        assert_eq!(asking.ask("PUT", "/count", &[], "0").await.status, 201);
        let (highest, written) = (AtomicU64::new(0), AtomicU64::new(0));
        let write = async {
            for number in 1..=12u64 {
                let status = asking.ask("PUT", "/count", &[], &number.to_string()).await.status;
                assert_eq!(status, 204, "{sin:?}");
                written.store(number, SeqCst);
                tokio::time::sleep(Duration::from_millis(15)).await;
            }
        };
        let read = async |reader: u64| {
            for _ in 0..40 {
                let floor = highest.load(SeqCst);
                let got = asking.get("/count").await;
                let number: u64 =
                    String::from_utf8_lossy(&got.body).parse().unwrap_or_else(|_| panic!("{sin:?} {got:?}"));
                assert!(number >= floor, "{sin:?}: reader {reader} read {number} after {floor}");
                assert!(number <= written.load(SeqCst) + 1, "{sin:?}: {number} was never written");
                highest.fetch_max(number, SeqCst);
            }
        };
        tokio::join!(write, read(1), read(2), read(3));
        let stats = proxy.stats();
        assert!(stats.all.fast > 0 && stats.all.transitions > 0, "{sin:?}: {stats:?}");
        let mut reads = 0;
        while asking.get("/count").await.body != "12" {
            reads += 1;
            assert!(reads < 100, "{sin:?}: the last value is never seen");
        }
    }
}

fn cookie(got: &Got) -> String {
    let set = got.header("set-cookie");
    assert!(set.ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{set}");
    set.split(';').next().unwrap().to_owned()
}

/// Rule K: one honest replica is behind, so that one of four first reads is stale, unless its session is looked at.
#[tokio::test]
async fn whoever_brings_its_cookie_reads_what_it_has_written() {
    const KEYS: u32 = 60;
    let (town, _proxy, asking) = keys([None; 4], |config| config.sites[0].read_your_writes = true).await;
    for key in 0..KEYS {
        assert_eq!(asking.ask("PUT", &format!("/{key}"), &[], "old").await.status, 201);
        assert_eq!(asking.get(&format!("/{key}")).await.body, "old");
    }
    town.settled().await;
    town.group.held.store(3, Relaxed);
    let mut stale = 0;
    for key in 0..KEYS {
        let path = format!("/{key}");
        let session = cookie(&asking.ask("PUT", &path, &[], "new").await);
        if key % 2 == 0 {
            stale += u32::from(asking.get(&path).await.body == "old");
            continue;
        }
        // Whatever else is in it.
        let cookies = format!("name=Zo\u{eb}; {session}; other=1");
        let got = asking.ask("GET", &path, &[("cookie", &cookies)], "").await;
        assert_eq!(how(&got), (200, "agreed", &b"new"[..]), "key {key}");
        assert!(got.header("set-cookie").is_empty(), "a read is no write");
    }
    assert!((1..KEYS / 2).contains(&stale), "without its cookie nobody is promised that: {stale}");
}

const KEYS: u32 = 24;

#[tokio::test]
async fn no_cookie_is_set_unless_it_is_wanted() {
    let (_town, _proxy, asking) = keys([None; 4], |_| {}).await;
    assert_eq!(asking.ask("PUT", "/colour", &[], "red").await.header("set-cookie"), "");
}

#[tokio::test]
async fn a_client_of_another_group_is_refused_at_once() {
    let (one, other) = tokio::join!(
        Town::start([(); 4].map(|()| KeyValue::default()), [None; 4]),
        Town::start([(); 4].map(|()| KeyValue::default()), [None; 4])
    );
    let mut config = one.config(0, Service::Keys);
    let Some(Group::Bft(group)) = &mut config.sites[0].group else { panic!("{config:?}") };
    group.client = other.group.founded.clients[0].clone();
    let refused = Proxy::start(config).await.err().map(|error| error.code.into_owned());
    assert_eq!(refused.as_deref(), Some("bft.no_client"));
}

/// What is in the way is said to whoever asks: nothing that the replicas serve could be compared.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_group_of_another_service_is_told_of() {
    let keys = Town::start([(); 4].map(|()| KeyValue::default()), [None; 4]).await;
    let pages = Town::start([(); 4].map(|()| Origin::new(free_address()).unwrap()), [None; 4]).await;
    for config in [keys.config(0, Service::Pages), pages.config(0, Service::Keys)] {
        let proxy = Proxy::start(config).await.unwrap();
        let got = Asking::of(proxy.address()).get("/page").await;
        let told = String::from_utf8_lossy(&got.body).into_owned();
        assert!(got.status == 502 && told.contains("another service"), "{} {told}", got.status);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pages_of_servers_beside_the_replicas_are_verified() {
    let mut servers = Vec::new();
    for wrong in [Wrong::None, Wrong::Forger, Wrong::None, Wrong::None] {
        servers.push(WebServer::start(wrong).await);
    }
    servers.iter().for_each(|server| server.put("/page", "hello"));
    let beside = [0, 1, 2, 3].map(|at| Origin::new(servers[at].address).unwrap());
    let town = Town::start(beside, [None; 4]).await;
    let proxy = Proxy::start(town.config(0, Service::Pages)).await.unwrap();
    let asking = Asking::of(proxy.address());
    for _ in 0..30 {
        let got = asking.get("/page").await;
        assert_eq!((got.status, &got.body[..], got.header("content-type")), (200, &b"hello"[..], "text/plain"));
    }
    assert!(proxy.stats().all.fast > 10, "{:?}", proxy.stats());
    assert_eq!(how(&asking.get("/none").await), (404, "agreed", &b"no such page"[..]));
    assert_eq!(asking.ask("GET", "/language", &[("accept-language", "fr")], "").await.body, "fr");
    assert_eq!(asking.get("/broken").await.status, 500);
    assert_eq!(asking.get("/broken").await.header("tidings-verified"), "agreed", "errors are not remembered");
    assert_eq!(asking.ask("POST", "/page", &[], "x").await.header("allow"), "GET, HEAD");
    assert!(servers.iter().all(|server| server.writes.load(SeqCst) == 0));
    servers.iter().for_each(|server| server.put("/page", "changed"));
    let mut reads = 0;
    while asking.get("/page").await.body != "changed" {
        reads += 1;
        assert!(reads < 100);
    }
}

/// Two proxies of one core before one group, that have divided everything between them; and who asks each.
struct Pair {
    town: Town<KeyValue>,
    proxies: Vec<Proxy>,
    lines: Vec<Line>,
    asking: [Asking; 2],
    _pool: TestPool,
}

impl Pair {
    async fn start() -> Pair {
        let town = Town::start([(); 4].map(|()| KeyValue::default()), [None; 4]).await;
        let pool = TestPool::start("sketches").await.unwrap();
        let (mut proxies, mut lines) = (Vec::new(), Vec::new());
        for at in 0..2 {
            let mut config = town.config(at, Service::Keys);
            config.sites[0].patience = Duration::from_secs(5);
            config.sites[0].give_up = Duration::from_secs(40);
            config.sites[0].read_your_writes = true;
            let line = pool.line();
            let mut core = Core::of(line.clone(), free_address(), Secret::new(&[7; 32]).unwrap());
            lines.push(line);
            core.owner = pool.options(&format!("proxy-{at}"));
            config.core = Some(core);
            proxies.push(Proxy::start(config).await.unwrap());
        }
        // Whichever proxy is asked, it is one page.
        let asking = [0, 1].map(|at: usize| Asking::of(proxies[at].address()).named("a.org"));
        let pair = Pair { town, proxies, lines, asking, _pool: pool };
        pair.until("the core is divided", |core| core[0].share > 0.2 && core[1].share > 0.2).await;
        pair
    }

    fn core(&self) -> [CoreStats; 2] {
        [0, 1].map(|at: usize| self.proxies[at].stats().core.unwrap())
    }

    async fn until(&self, what: &str, is_so: impl Fn(&[CoreStats; 2]) -> bool) {
        for _ in 0..6_000 {
            let core = self.core();
            if is_so(&core) && core[0].share + core[1].share > 0.999_999 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("never: {what}: {:?}", self.core());
    }

    /// Writes all keys by one proxy, and reads them by both.
    async fn write(&self, value: &'static str) {
        let [one, two] = &self.asking;
        for key in 0..KEYS {
            let path = format!("/{key}");
            assert!([201, 204].contains(&one.ask("PUT", &path, &[], value).await.status));
            assert_eq!((one.get(&path).await.body, two.get(&path).await.body), (value.into(), value.into()));
        }
        self.town.settled().await;
    }
}

/// A read that the holder of its range cannot answer waits, and nobody goes past it.
#[tokio::test]
async fn a_core_before_a_group_reads_its_own_writes_and_waits_for_the_holder() {
    let pair = Pair::start().await;
    let [one, two] = &pair.asking;
    pair.write("old").await;
    pair.town.group.held.store(3, Relaxed);
    for key in 0..KEYS {
        let path = format!("/{key}");
        let session = cookie(&one.ask("PUT", &path, &[], "new").await);
        let got = two.ask("GET", &path, &[("cookie", &session)], "").await;
        assert_eq!(how(&got), (200, "agreed", &b"new"[..]), "key {key}");
    }
    // Placement does not hear one of them any more; the other waits until its part is nobody's, and has everything then.
    pair.lines[0].cut();
    while pair.core()[0].ranges > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for key in 0..KEYS {
        assert_eq!(two.get(&format!("/{key}")).await.body, "new", "key {key}");
    }
    let core = &pair.core()[1];
    assert!(core.aside == 0 && core.forwarded > 0 && core.share > 0.999, "{core:?}");
}

/// Entries that go along with a range keep their places in the order: they are known to be newer than a write before them.
#[tokio::test]
async fn entries_are_handed_over_with_their_places() {
    let pair = Pair::start().await;
    let [one, two] = &pair.asking;
    let session = cookie(&one.ask("PUT", "/before", &[], "it").await);
    pair.write("new").await;
    pair.proxies[0].leave_core(Duration::from_secs(40)).await;
    pair.until("one has everything", |core| core[1].share > 0.999_999).await;
    let mut fast = 0;
    for key in 0..KEYS {
        let got = two.ask("GET", &format!("/{key}"), &[("cookie", &session)], "").await;
        assert_eq!(got.body, "new", "key {key}");
        fast += u32::from(got.header("tidings-verified") == "fast");
    }
    let core = &pair.core()[1];
    // Of its own part it remembered everything already; a policy may move a range meanwhile.
    assert!(core.carried > 0 && fast > KEYS - 4, "{fast} fast: {core:?}");
}
