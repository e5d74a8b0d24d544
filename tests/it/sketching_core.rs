//! `sketch run --core`: one node, proxies and five web servers, as real processes but for the latter. Proxies are killed, told to
//! stop, and put to sleep; no client sees an error, or a page that is older than one that was seen before.

use crate::placement::Pool;
use crate::process::{Running, http_get, run, tidings, turn, until};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PAGES: usize = 24;
/// How long one server has, and all of them, in milliseconds: a busy machine is no reason to ask all of them.
const UNHURRIED: [&str; 2] = ["10000", "30000"];
/// The same where somebody sleeps, and is waited for.
const HURRIED: [&str; 2] = ["500", "3000"];

/// Five web servers with the same pages, all of the same version.
#[derive(Default)]
struct Servers {
    version: AtomicU64,
    executed: Mutex<BTreeMap<String, u64>>,
}

impl Servers {
    /// Starts one of them. One that is stuck serves the first version for ever.
    fn start(self: &Arc<Self>, stuck: bool) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, servers) = (listener.local_addr().unwrap(), self.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let servers = servers.clone();
                std::thread::spawn(move || servers.answer(stream, stuck));
            }
        });
        address
    }

    fn answer(&self, mut stream: TcpStream, stuck: bool) {
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        let (mut line, mut path) = (String::new(), String::new());
        while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
            if let Some(rest) = line.strip_prefix("GET ") {
                path = rest.split(' ').next().unwrap_or_default().to_owned();
            }
            assert!(!line.to_ascii_lowercase().starts_with("tidings-core"), "what proxies say stays among them");
            if line == "\r\n" {
                *self.executed.lock().unwrap().entry(path.clone()).or_default() += 1;
                let version = if stuck { 0 } else { self.version.load(SeqCst) };
                let page = format!("{path} {version}");
                let length = page.len();
                if write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{page}").is_err() {
                    return;
                }
            }
            line.clear();
        }
    }

    fn executions(&self) -> u64 {
        self.executed.lock().unwrap().values().sum()
    }
}

/// A proxy, where it serves, and where it tells of itself.
struct Proxy {
    running: Running,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Proxy {
    fn start(node: &str, secret: &Path, origins: &[SocketAddr], [patience, give_up]: [&str; 2]) -> Proxy {
        let mut command = tidings();
        command.args(["sketch", "run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--new-pages", "any"]);
        command.args(["--patience", patience, "--give-up", give_up, "--log", "warn"]);
        command.args(["--core", node, "--core-listen", "127.0.0.1:0", "--core-secret"]).arg(secret);
        for origin in origins {
            command.args(["--origin", &format!("http://{origin}")]);
        }
        let running = Running::start(&mut command);
        let address = |line: String| {
            let text = line.split("http://").nth(1).and_then(|rest| rest.split([';', '/']).next()).unwrap_or_default();
            text.parse::<SocketAddr>().unwrap_or_else(|_| panic!("{line}"))
        };
        let (at, admin) = (address(running.line(1)), address(running.line(2)));
        Proxy { running, address: at, admin }
    }

    fn core(&self) -> serde_json::Value {
        let (_, stats) = http_get(self.admin, "/stats").expect("it tells of itself");
        serde_json::from_str::<serde_json::Value>(&stats).unwrap()["core"].clone()
    }

    fn count(&self, what: &str) -> u64 {
        self.core()[what].as_u64().unwrap_or_else(|| panic!("no {what} in {}", self.core()))
    }

    /// How a page was verified; it is there, and as new as it was when it was asked for.
    fn read(&self, servers: &Servers, page: usize) -> String {
        let before = servers.version.load(SeqCst);
        let (version, verified) = self.version(page);
        let after = servers.version.load(SeqCst);
        assert!((before..=after).contains(&version), "page {page} is of {version}, and not of {before} to {after}");
        verified
    }

    /// The version of a page that it serves, and how that was verified.
    fn version(&self, page: usize) -> (u64, String) {
        let mut stream = TcpStream::connect(self.address).expect("it takes connections");
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "GET /{page} HTTP/1.1\r\nHost: a.org\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer}"));
        assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
        let version = body.strip_prefix(&format!("/{page} ")).and_then(|version| version.parse().ok());
        let verified = head.lines().find_map(|line| line.strip_prefix("tidings-verified: "));
        version.zip(verified.map(str::to_owned)).unwrap_or_else(|| panic!("{answer}"))
    }
}

/// Whether these have the whole ring among them, and each a part.
fn have_everything(proxies: &[&Proxy]) -> bool {
    let shares: Vec<f64> = proxies.iter().map(|proxy| proxy.core()["share"].as_f64().unwrap_or(0.0)).collect();
    shares.iter().all(|share| *share > 0.0) && shares.iter().sum::<f64>() > 0.999_999
}

/// Waits until these have everything among them, and nothing moves any more.
fn settled(proxies: &[&Proxy]) {
    let (mut before, mut looks) = (Vec::new(), 0);
    until("they have joined, and nothing moves any more", || {
        let now: Vec<serde_json::Value> = proxies.iter().map(|proxy| proxy.core()["share"].clone()).collect();
        looks = if have_everything(proxies) && now == before { looks + 1 } else { 0 };
        before = now;
        (looks > 60).then_some(())
    });
}

/// A node with a core, and web servers.
struct Site {
    pool: Pool,
    servers: Arc<Servers>,
    secret: tempfile::NamedTempFile,
}

impl Site {
    fn start() -> Site {
        let pool = Pool::start();
        pool.ok(&["create", "sketches", "--lease", "6s", "--renew", "1s"]);
        let secret = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(secret.path(), [7; 32]).unwrap();
        Site { pool, servers: Arc::default(), secret }
    }

    fn proxy(&self, origins: &[SocketAddr], times: [&str; 2]) -> Proxy {
        Proxy::start(&self.pool.server.url(), self.secret.path(), origins, times)
    }
}

/// Reads every page at each of these; how many of the answers had to be agreed on.
fn read_all(proxies: &[&Proxy], servers: &Servers) -> usize {
    let reads = proxies.iter().flat_map(|proxy| (0..PAGES).map(move |page| proxy.read(servers, page)));
    reads.filter(|verified| verified == "agreed").count()
}

#[test]
fn proxies_remember_as_one_and_bear_the_loss_of_one() {
    let _turn = turn();
    let site = Site::start();
    let origins: Vec<SocketAddr> = (0..5).map(|_| site.servers.start(false)).collect();
    let mut proxies: Vec<Proxy> = (0..3).map(|_| site.proxy(&origins, UNHURRIED)).collect();
    let (servers, all) = (Arc::clone(&site.servers), proxies.iter().collect::<Vec<&Proxy>>());
    settled(&all);
    // Tables have reached everybody once everything is fast everywhere.
    until("pages are remembered", || (read_all(&all, &servers) == 0).then_some(()));

    // A new version is agreed on once a page, by whichever proxy it is first asked, and fast at the other two.
    let before = servers.executions();
    servers.version.fetch_add(1, SeqCst);
    let agreed = read_all(&all, &servers);
    let executions = servers.executions() - before;
    // One in vain and five for the vote, and two fast ones; every proxy for itself would have taken eighteen.
    assert!((PAGES..PAGES + PAGES / 2).contains(&agreed), "{agreed} of {PAGES} pages were agreed on");
    assert!(executions <= 11 * PAGES as u64, "{executions} executions of {PAGES} pages");
    assert!(all.iter().all(|proxy| proxy.count("forwarded") > 0 && proxy.count("served") > 0));
    let told = run(&["sketch", "stats", "--admin", &all[0].admin.to_string()]);
    assert!(told.code == 0 && told.out.contains("core, as 127.0.0.1:"), "{told:?}");

    // One is killed. What it remembered is agreed on until others have its ranges; no page is old, and none is missing.
    let killed = proxies.remove(2);
    killed.running.signal(Signal::KILL);
    drop(killed);
    let rest: Vec<&Proxy> = proxies.iter().collect();
    let aside = |proxies: &[&Proxy]| proxies.iter().map(|proxy| proxy.count("aside")).sum::<u64>();
    let before = aside(&rest);
    until("the others have its ranges", || {
        servers.version.fetch_add(1, SeqCst);
        read_all(&rest, &servers);
        have_everything(&rest).then_some(())
    });
    assert!(aside(&rest) > before, "its pages were agreed on meanwhile");
    until("everything is remembered again", || (read_all(&rest, &servers) == 0).then_some(()));

    // One is told to stop, and hands over what it remembers.
    let stopping = proxies.remove(1);
    let last = [&proxies[0]];
    let carried = last[0].count("carried");
    stopping.running.signal(Signal::TERM);
    let said = {
        let mut stopping = stopping;
        until("it has stopped", || {
            read_all(&last, &servers);
            (!stopping.running.is_running()).then_some(())
        });
        stopping.running.ended()
    };
    assert_eq!(said.code, 0, "{said:?}");
    until("the last one has everything", || have_everything(&last).then_some(()));
    assert!(last[0].count("carried") > carried, "{}", last[0].core());
    read_all(&last, &servers);
}

/// A proxy sleeps for longer than its leases, while others have its ranges and a new version is seen. What it remembers when it
/// wakes is what the one server that is stuck serves: whoever asks it must not see that again.
#[test]
fn a_proxy_that_slept_answers_for_nothing_that_it_lost() {
    let _turn = turn();
    let site = Site::start();
    let origins: Vec<SocketAddr> = (0..5).map(|number| site.servers.start(number == 0)).collect();
    let [awake, asleep] = [(); 2].map(|()| site.proxy(&origins, HURRIED));
    settled(&[&awake, &asleep]);
    until("pages are remembered", || (read_all(&[&awake, &asleep], &site.servers) == 0).then_some(()));

    asleep.running.signal(Signal::STOP);
    site.servers.version.store(1, SeqCst);
    let mut seen = [0; PAGES];
    until("the other one has everything, and the new version was seen", || {
        for (page, seen) in seen.iter_mut().enumerate() {
            let (version, verified) = awake.version(page);
            assert!(version >= *seen, "page {page} went back to {version}, {verified}");
            *seen = version;
        }
        (have_everything(&[&awake]) && seen == [1; PAGES]).then_some(())
    });
    asleep.running.signal(Signal::CONT);
    for page in (0..PAGES).cycle().take(8 * PAGES) {
        let (version, verified) = asleep.version(page);
        assert_eq!(version, 1, "page {page} went back, {verified}");
    }
}

/// Everything goes from one proxy to another and back, and a new version is seen in between. What the first one remembered of
/// the old one is what the server that is stuck serves: nobody sees that again, wherever he asks.
#[test]
fn a_range_that_was_handed_over_and_back_is_not_what_it_was() {
    let _turn = turn();
    let site = Site::start();
    let origins: Vec<SocketAddr> = (0..5).map(|number| site.servers.start(number == 0)).collect();
    let proxies = [(); 2].map(|()| site.proxy(&origins, UNHURRIED));
    let all: Vec<&Proxy> = proxies.iter().collect();
    settled(&all);
    until("pages are remembered", || (read_all(&all, &site.servers) == 0).then_some(()));

    let mut seen = [0; PAGES];
    let mut read = || {
        for proxy in &proxies {
            for (page, seen) in seen.iter_mut().enumerate() {
                let (version, verified) = proxy.version(page);
                assert!(version >= *seen, "page {page} went back to {version}, {verified}");
                *seen = version;
            }
        }
        seen == [1; PAGES]
    };
    let names: Vec<String> = all.iter().map(|proxy| proxy.core()["name"].as_str().unwrap().to_owned()).collect();
    let hand_over = |from: usize, read: &mut dyn FnMut() -> bool| {
        let to = 1 - from;
        let before = all[to].count("carried");
        site.pool.ok(&["drain", "sketches", &names[from]]);
        until("the other one has everything", || {
            read();
            (have_everything(&[all[to]]) && all[from].count("ranges") == 0).then_some(())
        });
        assert!(all[to].count("carried") > before, "{}", all[to].core());
    };
    hand_over(0, &mut read);
    site.servers.version.store(1, SeqCst);
    until("the new version was seen", || read().then_some(()));
    site.pool.ok(&["drain", "sketches", &names[0], "--cancel"]);
    hand_over(1, &mut read);
    // One server in five is stuck: it is asked often enough that it would be believed.
    (0..8).for_each(|_| assert!(read(), "every page is of the new version"));
}

#[test]
fn what_cannot_be_shared_is_refused_by_name() {
    let place = tempfile::tempdir().unwrap();
    let (short, enough) = (place.path().join("short"), place.path().join("enough"));
    std::fs::write(&short, "guess").unwrap();
    std::fs::write(&enough, [7; 32]).unwrap();
    let shared = |secret: &Path, more: &[&str]| {
        let start =
            ["sketch", "run", "--origin", "http://a", "--listen", "127.0.0.1:0", "--core", "http://127.0.0.1:1"];
        let listen = ["--core-listen", "127.0.0.1:0", "--core-secret", secret.to_str().unwrap()];
        run(&[&start[..], &listen[..], more].concat())
    };
    shared(&short, &[]).failed(2, "a secret of 5 bytes");
    shared(&enough, &["--core-address", "nowhere"]).failed(2, "`nowhere` is not HOST:PORT");
    shared(&enough, &[]).failed(5, "127.0.0.1:1");
    let alone = ["sketch", "run", "--origin", "http://a", "--core", "http://127.0.0.1:1"];
    let without = |missing: &str, more: &[&str]| {
        let said = run(&[&alone[..], more].concat());
        said.failed(2, &format!("--core needs {missing}"));
        assert!(said.err.lines().any(|line| line.starts_with("hint: ") && line.contains(missing)), "{said:?}");
    };
    without("--core-secret", &["--core-listen", "127.0.0.1:0"]);
    without("--core-listen", &["--core-secret", enough.to_str().unwrap()]);
}
