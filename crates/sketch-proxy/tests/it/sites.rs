//! Several sites behind one proxy, and several in one core.

use crate::ordered::Town;
use crate::origins::{Asking, Origin, Sin};
use crate::ports::free_address;
use crate::telling::told;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidings_bft::kv::KeyValue;
use tidings_client::placement::testing::{Line, TestPool};
use tidings_sketch::http::{PathRule, Rules};
use tidings_sketch::sketcher::Way;
use tidings_sketch_proxy::{Config, Core, CoreStats, Proxy, Secret, Service, Site, SiteStats};

const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

async fn origins(sin: Sin) -> Vec<Arc<Origin>> {
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(Origin::start(sin).await);
    }
    all
}

fn site(name: &str, hosts: &[&str], origins: &[Arc<Origin>]) -> Site {
    let urls: Vec<String> = origins.iter().map(|origin| format!("http://{}", origin.address)).collect();
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    // A machine that is busy is no reason to ask all origins.
    Site { name: name.to_owned(), hosts, patience: Duration::from_secs(10), ..Site::of(&urls).unwrap() }
}

fn put(origins: &[Arc<Origin>], path: &str, page: &str) {
    origins.iter().for_each(|origin| origin.put(path, page));
}

async fn verified(asking: &Asking, path: &str, page: &str) -> String {
    let got = asking.get(path).await;
    assert_eq!((got.status, &got.body[..]), (200, page.as_bytes()), "{path}");
    got.header("tidings-verified").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_host_has_its_own_servers() {
    let (shop, news, stuck) = (origins(Sin::None).await, origins(Sin::None).await, origins(Sin::Mute).await);
    put(&shop, "/", "shop");
    put(&news, "/", "news");
    let mut sites = vec![
        site("shop", &["shop.example", "*.shop.example"], &shop),
        site("news", &["news.example"], &news),
        site("stuck", &["stuck.example"], &stuck),
    ];
    for site in &mut sites {
        (site.give_up, site.most_requests) = (Duration::from_secs(600), 100);
    }
    let admin = Some(HERE);
    let proxy = Proxy::start(Config { admin, ..Config::new(HERE, sites) }).await.unwrap();
    let of = |host: &'static str| Asking::of(proxy.address()).named(host);
    let mut waits = tokio::task::JoinSet::new();
    for page in 0..200 {
        let asking = of("stuck.example");
        waits.spawn(async move { asking.get(&format!("/{page}")).await.status });
    }
    // All that it may have under way is, and what is more is refused.
    for _ in 0..100 {
        assert_eq!(waits.join_next().await.unwrap().unwrap(), 503);
    }
    for (host, page) in [("shop.example", "shop"), ("www.shop.example:81", "shop"), ("news.example", "news")] {
        assert_eq!(verified(&of(host), "/", page).await, "agreed", "{host}");
        assert_eq!(verified(&of(host), "/", page).await, "fast", "{host}");
    }
    let got = of("other.example").get("/").await;
    assert_eq!((got.status, got.header("tidings-verified")), (421, ""), "nobody's is refused, and asked of nobody");

    // Each counts for itself, keeps its own rules, and is told apart.
    let stats = proxy.stats();
    let counted =
        |site: &SiteStats| (site.name.clone(), site.counted.fast, site.counted.replicated, site.counted.remembered);
    assert_eq!(counted(&stats.sites[0]), ("shop".to_owned(), 2, 2, 2));
    assert_eq!(counted(&stats.sites[1]), ("news".to_owned(), 1, 1, 1));
    assert_eq!((stats.all.fast, stats.all.remembered, stats.sites[2].origins.len()), (3, 3, 3));
    let never = PathRule { prefix: "/".into(), way: Way::Replicated, personal_too: false };
    assert_eq!(proxy.set_rules(0, Rules { paths: vec![never], ..Rules::default() }), 1);
    assert_eq!(verified(&of("shop.example"), "/", "shop").await, "agreed");
    assert_eq!(verified(&of("news.example"), "/", "news").await, "fast");
    let metrics = told(proxy.admin().unwrap(), "GET /metrics").await;
    for line in [
        "tidings_sketch_fast_total{site=\"shop\"} 2".to_owned(),
        "tidings_sketch_fast_total{site=\"news\"} 2".to_owned(),
        "tidings_sketch_requests_total{site=\"shop\",verified=\"fast\",status=\"200\"} 2".to_owned(),
        "tidings_sketch_requests_total{site=\"stuck\",verified=\"-\",status=\"503\"} 100".to_owned(),
        "tidings_sketch_requests_total{verified=\"-\",status=\"421\"} 1".to_owned(),
        "tidings_sketch_request_seconds_bucket{site=\"news\",le=\"+Inf\"} 3".to_owned(),
        "tidings_sketch_request_seconds_count{site=\"news\"} 3".to_owned(),
        format!("tidings_sketch_origin_up{{site=\"stuck\",origin=\"http://{}\"}} 1", stuck[0].address),
    ] {
        assert!(metrics.contains(&line), "no {line} in {metrics}");
    }
    let page = told(proxy.admin().unwrap(), "GET /").await;
    assert!(["shop", "news", "stuck"].iter().all(|name| page.contains(&format!("<h3>{name}</h3>"))), "{page}");
}

/// One client of a group in two places would make commands fail.
#[tokio::test(flavor = "multi_thread")]
async fn what_two_sites_may_not_share_is_refused() {
    let town = Town::start([(); 4].map(|()| KeyValue::default()), [None; 4]).await;
    let keys = |name: &str, client: usize| {
        let site = town.config(client, Service::Keys).sites.remove(0);
        Site { name: name.into(), hosts: vec![format!("{name}.example")], ..site }
    };
    let refused = Proxy::start(Config::new(HERE, vec![keys("one", 0), keys("other", 0)])).await.err().unwrap();
    assert!(refused.code == "sketch.bad_sites" && refused.message.contains("one and other"), "{refused}");
    let both = Proxy::start(Config::new(HERE, vec![keys("one", 0), keys("other", 1)])).await.unwrap();
    let asking = |host| Asking::of(both.address()).named(host);
    assert_eq!(asking("one.example").ask("PUT", "/a", &[], "1").await.status, 201);
    assert_eq!(verified(&asking("other.example"), "/a", "1").await, "agreed");
    let mut misfit = keys("odd", 1);
    (misfit.group, misfit.quorum) = (None, 7);
    let refused = Proxy::start(Config::new(HERE, vec![keys("one", 0), misfit])).await.err().unwrap();
    assert!(refused.message.starts_with("site odd: "), "{refused}");
}

/// Web servers and a BFT group, behind two proxies that share one core.
struct Shared {
    web: Vec<Arc<Origin>>,
    proxies: Vec<Proxy>,
    lines: Vec<Line>,
    _town: Town<KeyValue>,
    _pool: TestPool,
}

impl Shared {
    /// Proxies of which the second has these sites, and reads of the group wait so long for whoever holds their range.
    async fn start(second: &[&str], holderless: Duration) -> Shared {
        let town = Town::start([(); 4].map(|()| KeyValue::default()), [None; 4]).await;
        let (web, pool) = (origins(Sin::None).await, TestPool::start("sketches").await.unwrap());
        let mut shared = Shared { web, proxies: Vec::new(), lines: Vec::new(), _town: town, _pool: pool };
        for at in 0..2 {
            let keys = shared._town.config(at, Service::Keys).sites.remove(0);
            let (patience, give_up) = (Duration::from_secs(5), holderless);
            let keys = Site { name: "keys".into(), hosts: vec!["keys.example".into()], patience, give_up, ..keys };
            let mut sites = vec![site("web", &["web.example"], &shared.web), keys];
            sites.retain(|site| at == 0 || second.contains(&site.name.as_str()));
            let line = shared._pool.line();
            let mut core = Core::of(line.clone(), free_address(), Secret::new(&[7; 32]).unwrap());
            shared.lines.push(line);
            core.owner = shared._pool.options(&format!("proxy-{at}"));
            core.holderless = holderless;
            let config = Config { core: Some(core), ..Config::new(HERE, sites) };
            shared.proxies.push(Proxy::start(config).await.unwrap());
        }
        shared.until("the core is divided", |core| core[0].share > 0.2 && core[1].share > 0.2).await;
        shared
    }

    fn core(&self) -> [CoreStats; 2] {
        [0, 1].map(|at: usize| self.proxies[at].stats().core.unwrap())
    }

    async fn until(&self, what: &str, is_so: impl Fn(&[CoreStats; 2]) -> bool) {
        for _ in 0..6_000 {
            if is_so(&self.core()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("never: {what}: {:?}", self.core());
    }

    fn asking(&self, proxy: usize, host: &'static str) -> Asking {
        Asking::of(self.proxies[proxy].address()).named(host)
    }

    /// Puts pages and keys there, and has each proxy read them twice; how many of these reads were agreed on.
    async fn read(&self, pages: usize, write: bool) -> usize {
        let mut agreed = 0;
        for page in 0..pages {
            let (path, text) = (format!("/{page}"), format!("page {page}"));
            if write {
                put(&self.web, &path, &text);
                assert_eq!(self.asking(page % 2, "keys.example").ask("PUT", &path, &[], &text).await.status, 201);
            }
            for turn in 0..4 {
                for host in ["web.example", "keys.example"] {
                    agreed += usize::from(verified(&self.asking(turn % 2, host), &path, &text).await == "agreed");
                }
            }
        }
        agreed
    }
}

/// Whoever holds a range remembers it of both, agrees on each once, and hands over both.
#[tokio::test(flavor = "multi_thread")]
async fn several_groups_share_a_core() {
    const PAGES: usize = 20;
    let shared = Shared::start(&["web", "keys"], Duration::from_secs(40)).await;
    let agreed = shared.read(PAGES, true).await;
    // A range that moves while they are read costs some more.
    assert!((2 * PAGES..3 * PAGES).contains(&agreed), "{agreed} of {PAGES} pages and {PAGES} keys");
    let core = shared.core();
    assert!(core.iter().all(|core| core.forwarded > 0 && core.served > 0 && core.foreign == 0), "{core:?}");

    let before = shared.proxies[0].stats();
    shared.proxies[1].leave_core(Duration::from_secs(60)).await;
    shared.until("one has everything", |core| core[0].share > 0.999_999).await;
    let after = shared.proxies[0].stats();
    assert!(after.core.unwrap().carried > before.core.unwrap().carried);
    for (before, after) in before.sites.iter().zip(&after.sites) {
        assert!(after.counted.remembered > before.counted.remembered, "{} came along: {after:?}", after.name);
    }
    let agreed = shared.read(PAGES, false).await;
    assert!(agreed < PAGES / 2, "{agreed} pages and keys were agreed on again");

    // What is lost is lost of both: it may have been somebody else's meanwhile.
    shared.lines[0].cut();
    shared.until("everything is lost", |core| core[0].ranges == 0).await;
    shared.lines[0].mend();
    shared.until("everything is back", |core| core[0].share > 0.999_999).await;
    for host in ["web.example", "keys.example"] {
        assert_eq!(verified(&shared.asking(0, host), "/0", "page 0").await, "agreed", "{host} begins anew");
    }
}

/// A proxy cannot answer for a site that it does not know: before a group a read is refused rather than older than another, and is not
/// asked for all the while. The other site is as well as ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_not_everywhere_is_not_read_past_its_holder() {
    let shared = Shared::start(&["web"], Duration::from_secs(4)).await;
    let mut refused = 0;
    for key in 0..200 {
        let path = format!("/{key}");
        let asking = shared.asking(0, "keys.example");
        // Whether it is held here shows at once, or by the time that it takes.
        match tokio::time::timeout(Duration::from_secs(2), asking.get(&path)).await {
            Ok(got) => assert_eq!((got.status, got.header("tidings-verified")), (404, "agreed"), "{path}"),
            Err(_) => {
                assert_eq!(asking.get(&path).await.status, 503, "{path}");
                refused += 1;
                break;
            }
        }
    }
    let core = shared.core();
    assert!(refused == 1 && core[1].foreign > 0 && core[0].aside == 0, "{core:?}");
    // Less often the longer it waits: not once in 50 ms.
    assert!((2..60).contains(&core[0].unanswered), "{core:?}");
    put(&shared.web, "/page", "hello");
    for proxy in [0, 1, 0, 1] {
        verified(&shared.asking(proxy, "web.example"), "/page", "hello").await;
    }
    assert_eq!(verified(&shared.asking(1, "web.example"), "/page", "hello").await, "fast");
}

/// Before origins such pages are put to all of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_is_not_everywhere_is_not_remembered_there() {
    let shared = Shared::start(&["keys"], Duration::from_secs(40)).await;
    put(&shared.web, "/", "hello");
    let mut agreed = 0;
    for page in 0..20 {
        let path = format!("/{page}");
        put(&shared.web, &path, "hello");
        for _ in 0..2 {
            agreed += usize::from(verified(&shared.asking(0, "web.example"), &path, "hello").await == "agreed");
        }
    }
    let core = shared.core();
    assert!(agreed > 20 && core[0].aside > 0 && core[1].foreign > 0, "{agreed} {core:?}");
    assert_eq!(shared.asking(1, "web.example").get("/0").await.status, 421);
    for page in 0..10 {
        let path = format!("/{page}");
        assert_eq!(shared.asking(page % 2, "keys.example").ask("PUT", &path, &[], "key").await.status, 201);
        assert_eq!(verified(&shared.asking(1 - page % 2, "keys.example"), &path, "key").await, "agreed");
        assert_eq!(verified(&shared.asking(page % 2, "keys.example"), &path, "key").await, "fast");
    }
}
