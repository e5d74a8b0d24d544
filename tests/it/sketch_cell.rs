//! `sketch run --cell`: a proxy before three nodes, all of them real processes. One does not hear the others and says what is old,
//! the master is killed, and nobody reads back in time.

use crate::ports::free_port;
use crate::process::{Running, Server, http, http_get, run, tidings, turn, until};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// The way of the other nodes to one of them, which can be cut. Whoever knows where it listens reaches it all the same.
#[derive(Default)]
struct Relay {
    cut: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Relay {
    fn start(to: SocketAddr) -> (Arc<Relay>, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, relay) = (listener.local_addr().unwrap().port(), Arc::<Relay>::default());
        let serving = relay.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if !serving.cut.load(SeqCst)
                    && let Ok(there) = TcpStream::connect(to)
                {
                    serving.carry(&stream, &there);
                }
            }
        });
        (relay, port)
    }

    fn carry(&self, here: &TcpStream, there: &TcpStream) {
        let both = [here, there].map(|stream| stream.try_clone().unwrap());
        self.streams.lock().unwrap().extend(both);
        for (from, to) in [(here, there), (there, here)] {
            let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    }

    fn cut(&self, cut: bool) {
        self.cut.store(cut, SeqCst);
        if cut {
            self.streams.lock().unwrap().drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        }
    }
}

/// Three nodes of one cluster, each reached by the others through a relay.
struct Town {
    configs: Vec<PathBuf>,
    nodes: Vec<Option<Server>>,
    relays: Vec<Arc<Relay>>,
    at: Vec<SocketAddr>,
}

impl Town {
    fn start(dir: &Path) -> Town {
        let at: Vec<SocketAddr> = (0..3).map(|_| SocketAddr::from(([127, 0, 0, 1], free_port()))).collect();
        let (relays, ports): (Vec<_>, Vec<_>) = at.iter().map(|at| Relay::start(*at)).unzip();
        let members: String = (1..)
            .zip(ports)
            .map(|(node, port)| format!("[[members]]\nnode = {node}\naddress = \"127.0.0.1:{port}\"\n"))
            .collect();
        let configs = (1..).zip(&at).map(|(node, at)| {
            let path = dir.join(format!("node-{node}.toml"));
            let own = format!("node = {node}\ndata = \"data-{node}\"\nlisten = \"{at}\"\n");
            std::fs::write(&path, own + &members).unwrap();
            path
        });
        let configs: Vec<PathBuf> = configs.collect();
        let nodes = configs.iter().map(|config| Some(spawn(config, &["--found"]))).collect();
        let town = Town { configs, nodes, relays, at };
        town.nodes.iter().flatten().for_each(Server::wait_ready);
        town
    }

    /// The place of the cell's master among the nodes.
    fn master(&self) -> usize {
        until("a node is master", || {
            self.nodes.iter().flatten().find_map(|node| {
                let said = node.run(&["status", "--json", "--timeout", "2"]);
                let status: serde_json::Value = serde_json::from_str(&said.out).ok()?;
                let cell = status["groups"].as_array()?.iter().find(|of| of["group"] == 0)?;
                let leader = cell["leader"].as_u64()?.checked_sub(1)? as usize;
                self.nodes[leader].as_ref().map(|_| leader)
            })
        })
    }

    fn kill(&mut self, node: usize) {
        self.nodes[node].take().expect("it runs").kill();
    }

    fn restart(&mut self, node: usize) {
        let back = spawn(&self.configs[node], &[]);
        back.wait_ready();
        self.nodes[node] = Some(back);
    }

    /// What one node has applied of the file.
    fn applied(&self, node: usize) -> Option<String> {
        let (status, contents) = http_get(self.at[node], "/v1/cell/files/count?place=applied")?;
        (status == 200).then_some(contents)
    }

    /// The nodes, as a proxy is told of them.
    fn urls(&self) -> String {
        self.at.iter().map(|at| format!("http://{at}")).collect::<Vec<_>>().join(",")
    }
}

fn spawn(config: &Path, entry: &[&str]) -> Server {
    Server::spawn(&[&["--config", config.to_str().unwrap()], entry].concat())
}

/// The address in a line that a proxy prints.
fn address(line: &str) -> SocketAddr {
    let text = line.split("http://").nth(1).and_then(|rest| rest.split([';', '/']).next()).unwrap_or_default();
    text.parse().unwrap_or_else(|_| panic!("{line}"))
}

/// An answer of the proxy.
struct Got {
    status: u16,
    head: String,
    body: String,
}

impl Got {
    fn header(&self, name: &str) -> &str {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).unwrap_or_default()
    }
}

fn ask(at: SocketAddr, method: &str, path: &str, cookie: &str, body: &str) -> Got {
    let mut stream = TcpStream::connect(at).unwrap();
    let cookie = if cookie.is_empty() { String::new() } else { format!("Cookie: {cookie}\r\n") };
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{cookie}Content-Length: {length}");
    write!(stream, "{head}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
    Got { status, head: head.to_owned(), body: body.to_owned() }
}

const FILE: &str = "/count";

/// A proxy, where it serves and where it tells of itself.
struct Before {
    running: Running,
    at: SocketAddr,
    admin: String,
}

fn before(town: &Town) -> Before {
    let mut command = tidings();
    command.args(["sketch", "run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--new-pages", "any"]);
    command.args(["--patience", "10000", "--give-up", "30000", "--log", "warn", "--cell", &town.urls()]);
    let running = Running::start(command.args(["--cell-writes", "--read-your-writes"]));
    let line = running.line(1);
    assert!(line.contains("a cell of 3 members"), "{line}");
    let (at, admin) = (address(&line), address(&running.line(2)).to_string());
    Before { running, at, admin }
}

impl Before {
    fn stats(&self) -> serde_json::Value {
        run(&["sketch", "stats", "--admin", &self.admin, "--json"]).json()
    }

    fn get(&self) -> Got {
        ask(self.at, "GET", FILE, "", "")
    }
}

#[test]
fn nobody_reads_a_cell_back_in_time() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut town = Town::start(dir.path());
    let proxy = before(&town);
    assert_eq!((proxy.get().status, proxy.get().header("tidings-verified")), (404, "fast"), "that is remembered, too");
    assert_eq!(ask(proxy.at, "PUT", FILE, "", "0").status, 201);
    until("everybody has applied it", || (0..3).all(|node| town.applied(node).is_some()).then_some(()));
    until("it is seen", || (proxy.get().body == "0").then_some(()));
    let ways: Vec<String> = (0..30).map(|_| proxy.get().header("tidings-verified").to_owned()).collect();
    assert!(ways.iter().all(|way| way == "fast"), "{ways:?}");

    a_member_that_is_behind_is_not_believed(&town, &proxy);
    the_master_is_killed_under_readers(&mut town, &proxy);
    proxy.running.signal(rustix::process::Signal::TERM);
    let said = proxy.running.ended();
    assert!(said.code == 0 && said.out.contains("asked of the master"), "{said:?}");
}

/// One follower hears nobody, and answers all the while with what was.
fn a_member_that_is_behind_is_not_believed(town: &Town, proxy: &Before) {
    let master = town.master();
    let (behind, third) = ((master + 1) % 3, (master + 2) % 3);
    town.relays[behind].cut(true);
    let written = ask(proxy.at, "PUT", FILE, "", "1");
    assert_eq!(written.status, 204, "{}", written.body);
    assert_eq!(town.applied(behind).as_deref(), Some("0"), "it is behind");
    until("the third has applied it", || (town.applied(third)? == "1").then_some(()));
    // Rule K: whoever has written sees it at once.
    let session = written.header("set-cookie").split(';').next().unwrap_or_default().to_owned();
    let read = ask(proxy.at, "GET", FILE, &session, "");
    assert_eq!((read.status, read.header("tidings-verified"), read.body.as_str()), (200, "agreed", "1"));
    // Rule A: and nobody sees anything older from then on.
    for _ in 0..40 {
        assert_eq!(proxy.get().body, "1");
    }
    assert_eq!(town.applied(behind).as_deref(), Some("0"), "it was behind all the while");
    let stats = proxy.stats();
    let wrong = |node: usize| stats["sites"][0]["origins"][node]["mismatches"].as_u64().unwrap();
    assert!(wrong(behind) > 0, "it was asked: {stats}");
    assert_eq!((0..3).map(wrong).sum::<u64>(), wrong(behind), "{stats}");
    town.relays[behind].cut(false);
    until("it has caught up", || (town.applied(behind)? == "1").then_some(()));
}

/// However a test ends, those who go on in it end, too.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Somebody writes ever larger numbers while the master is killed, and no read is below one that ended before it began.
fn the_master_is_killed_under_readers(town: &mut Town, proxy: &Before) {
    let (highest, written, over) = (AtomicU64::new(1), AtomicU64::new(1), AtomicBool::new(false));
    let read = || {
        let (mut reads, mut refused) = (0, 0);
        while !over.load(SeqCst) {
            let floor = highest.load(SeqCst);
            let got = proxy.get();
            if got.status != 200 {
                refused += 1;
                continue;
            }
            let number: u64 = got.body.parse().unwrap();
            assert!(number >= floor, "{number} was read after {floor}");
            assert!(number <= written.load(SeqCst) + 1, "{number} was never written");
            highest.fetch_max(number, SeqCst);
            reads += 1;
        }
        (reads, refused)
    };
    let write = || {
        while !over.load(SeqCst) {
            let next = written.load(SeqCst) + 1;
            // What became of a write that is answered 502 is not known, and so it is written again.
            if ask(proxy.at, "PUT", FILE, "", &next.to_string()).status == 204 {
                written.store(next, SeqCst);
            }
        }
    };
    std::thread::scope(|scope| {
        let ends = Ends(&over);
        let readers = [scope.spawn(read), scope.spawn(read)];
        scope.spawn(write);
        let go_on = |what: &str| {
            let before = written.load(SeqCst);
            until(what, || (written.load(SeqCst) > before + 5).then_some(()));
        };
        go_on("it is written");
        let master = town.master();
        town.kill(master);
        go_on("another master takes over");
        town.restart(master);
        go_on("it is written with all three");
        drop(ends);
        let done = readers.map(|reader| reader.join().unwrap());
        assert!(done.iter().all(|(reads, refused)| *reads > 10 && refused * 5 < *reads), "{done:?}");
    });
    let last = written.load(SeqCst).to_string();
    until("the last one is read", || {
        (proxy.get().body.parse::<u64>().ok()? >= last.parse::<u64>().ok()?).then_some(())
    });
}

#[test]
fn what_is_no_file_is_refused_and_writes_unless_they_are_allowed() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let node = Server::embedded(dir.path());
    let mut command = tidings();
    command.args(["sketch", "run", "--listen", "127.0.0.1:0", "--log", "warn", "--cell", &node.url()]);
    let proxy = Running::start(&mut command);
    let at = address(&proxy.line(1));
    assert!(http("PUT", node.address, "/v1/cell/files/a", "x").is_some_and(|(status, _)| status == 201));
    let status = |method: &str, path: &str| ask(at, method, path, "", "").status;
    assert_eq!([status("GET", "/a"), status("HEAD", "/a"), status("GET", "/none")], [200, 200, 404]);
    assert_eq!(status("GET", "/acl"), 409, "a directory");
    assert_eq!(
        ["/", "/a?stat", "/../status", "/%2e%2e/%2e%2e/status", "/a//b"].map(|path| status("GET", path)),
        [400; 5]
    );
    assert_eq!(status("GET", "/a%2Fb"), 400, "the cell would refuse it");
    let refused = ask(at, "PUT", "/a", "", "y");
    assert_eq!((refused.status, refused.header("allow")), (405, "GET, HEAD"));
    assert_eq!(http_get(node.address, "/v1/cell/files/a").unwrap().1, "x");

    run(&["sketch", "run", "--cell", "http://127.0.0.1:1"]).failed(5, "no node of the cell answers");
    run(&["sketch", "run", "--cell", "ftp://a"]).failed(2, "is not the URL of one node");
    run(&["sketch", "run", "--cell", &node.url(), "--read-your-writes"]).failed(2, "needs --cell-writes");
}
