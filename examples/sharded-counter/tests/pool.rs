//! The example as its README runs it: three servers and a front end as processes, one of which is killed and one drained.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;
use tidings_client::placement::{NamespaceConfig, Placement};
use tidings_client::{Client, ClientConfig};
use tidings_node::config::Time;
use tidings_node::{Config, Node};
use tokio::runtime::Runtime;

/// How long a condition may take before the test gives up: far above anything seen, since machines can be busy.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);
/// How often servers renew their leases.
const RENEW: Duration = Duration::from_millis(400);

/// A program of the example; dropped, it is killed.
struct Program {
    child: Child,
    out: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Program {
    fn start(args: &[&str], tidings: &str) -> Program {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sharded-counter"))
            .args(args)
            .args(["--tidings", tidings])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example runs");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        out.read_line(&mut line).expect("it says where it listens");
        let address = line.trim().rsplit(' ').next().and_then(|address| address.parse().ok());
        let address = address.unwrap_or_else(|| panic!("not an address: {line}"));
        Program { child, out, address }
    }

    /// A server that has joined the pool.
    fn server(name: &str, tidings: &str) -> Program {
        let mut server = Program::start(&["server", "--name", name], tidings);
        let mut line = String::new();
        server.out.read_line(&mut line).expect("it says that it has joined");
        assert_eq!(line.trim(), format!("{name} has joined"));
        server
    }

    /// SIGTERM: it hands everything over and ends.
    fn terminate(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        until("the server has handed over", || self.child.try_wait().expect("our own child"))
    }

    /// SIGKILL: nothing is handed over.
    fn kill(mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("our own child");
    }

    /// Sends a request, also to a program that is stopped: the kernel takes it.
    fn send(&self, method: &str, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
        let host = self.address;
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("somebody reads");
        stream
    }

    fn ask(&self, method: &str, path: &str) -> Value {
        let answer = answer(self.send(method, path));
        assert!(answer.starts_with("HTTP/1.1 200"), "{method} {path}: {answer}");
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).unwrap_or_else(|why| panic!("{why}: {answer}"))
    }

    fn count(&self, method: &str, key: &str) -> u64 {
        self.ask(method, &format!("/count/{key}"))["count"].as_u64().expect("a count")
    }

    fn status(&self, of: &str) -> u64 {
        self.ask("GET", "/status")[of].as_u64().expect("a number")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already; either way nothing is left running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..PATIENCE.as_millis() / LOOK.as_millis() {
        if let Some(seen) = look() {
            return seen;
        }
        std::thread::sleep(LOOK);
    }
    panic!("waited in vain until {what}");
}

fn keys() -> impl Iterator<Item = String> {
    (0..40).map(|n| format!("key-{n}"))
}

/// A node in this process whose managers allow short leases, so that a killed server is noticed soon.
async fn node(data: &std::path::Path) -> (Node, Placement) {
    let mut config = Config::embedded(data, SocketAddr::from(([127, 0, 0, 1], 0)));
    config.placement.session = Time::seconds(1);
    config.placement.fail_over = Time::millis(500);
    config.placement.round_trip = Time::millis(100);
    let node = Node::start(config).await.expect("the node starts");
    let client = Client::connect(ClientConfig::new([format!("http://{}", node.address())])).await.expect("it listens");
    (node, Placement::new(client).within(PATIENCE))
}

/// A node, and a namespace with short leases for servers.
struct Pool {
    runtime: Runtime,
    node: Node,
    placement: Placement,
    tidings: String,
    _data: tempfile::TempDir,
}

impl Pool {
    fn start() -> Pool {
        let data = tempfile::tempdir().unwrap();
        let runtime = Runtime::new().unwrap();
        let (node, placement) = runtime.block_on(node(data.path()));
        let tidings = format!("http://{}", node.address());
        let short =
            NamespaceConfig { lease_ms: 2_500, renew_ms: RENEW.as_millis() as u32, ..NamespaceConfig::default() };
        runtime.block_on(placement.create("counters", short)).unwrap();
        Pool { runtime, node, placement, tidings, _data: data }
    }

    /// Servers of these names that each hold something. Nothing is on its way to anybody any more: a range that was given to the
    /// first and not told to it yet goes to the third as a loss.
    fn servers<const N: usize>(&self, names: [&str; N]) -> [Program; N] {
        let servers = names.map(|name| Program::server(name, &self.tidings));
        let (mut lsn, mut looks) = (0, 0);
        until("everybody has something", || {
            let owners = self.runtime.block_on(self.placement.owners("counters")).ok()?;
            let info = self.runtime.block_on(self.placement.namespaces()).ok()?.pop()?;
            let rests = info.unowned == 0 && info.moving == 0 && info.lsn == lsn;
            (lsn, looks) = (info.lsn, if rests { looks + 1 } else { 0 });
            (owners.len() == N && owners.iter().all(|o| o.ranges > 0) && LOOK * looks > 2 * RENEW).then_some(())
        });
        servers
    }

    fn stop(self) {
        self.runtime.block_on(self.node.shutdown()).unwrap();
    }
}

#[test]
fn a_server_that_was_paused_past_its_lease_refuses_what_it_held() {
    let pool = Pool::start();
    let [one, two] = pool.servers(["one", "two"]);
    let ours = |server: &Program, key: &str| answer(server.send("POST", &format!("/count/{key}"))).contains(" 200 ");
    let key = keys().find(|key| ours(&one, key)).expect("it holds some");
    one.signal(Signal::STOP);
    // It is never given the key again, so there is one right answer, however late it comes.
    pool.runtime.block_on(pool.placement.drain("counters", "one")).unwrap();
    until("the other one holds the key", || ours(&two, &key).then_some(()));
    let waiting = one.send("POST", &format!("/count/{key}"));
    one.signal(Signal::CONT);
    let first = answer(waiting);
    assert!(first.contains("placement.not_owner"), "{first}");
    assert!(ours(&two, &key));
    drop((one, two));
    pool.stop();
}

#[test]
fn a_killed_server_is_republished_and_a_drained_one_loses_nothing() {
    let pool = Pool::start();
    let [one, two, three] = pool.servers(["one", "two", "three"]);
    let front = Program::start(&["front"], &pool.tidings);
    for key in keys() {
        assert_eq!(front.count("POST", &key), 1, "{key}");
    }

    // Told to stop, a server hands its counters over.
    let losses = front.status("losses");
    assert!(three.terminate().success());
    for key in keys() {
        assert_eq!(front.count("POST", &key), 2, "{key}");
    }
    assert_eq!(front.status("losses"), losses, "a hand-over is no loss");

    // Killed, it takes its counters along; the front end hears of it and publishes what it saw again.
    two.kill();
    until("the loss was told and the counts are back", || (front.status("republished") > 0).then_some(()));
    until("all of them", || keys().all(|key| front.count("GET", &key) == 2).then_some(()));
    assert!(front.status("losses") > losses);
    for key in keys() {
        assert_eq!(front.count("POST", &key), 3, "{key}");
    }
    drop((one, front));
    pool.stop();
}
