//! Starting, asking and killing `tidings` processes.

pub use crate::ports::free_port;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a condition may take before the test gives up: far above anything seen, since machines can be busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait between two looks at a condition.
const LOOK: Duration = Duration::from_millis(20);

static TURN: Mutex<()> = Mutex::new(());

/// The right to run servers; others wait. A test that failed has left nothing that could disturb the next one.
pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The binary under test, without the environment of whoever runs the tests.
pub fn tidings() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidings"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIDINGS_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// What a finished command said.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Said {
        Said {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).expect("standard output is text"),
            err: String::from_utf8(output.stderr).expect("standard error is text"),
        }
    }
}

impl Said {
    /// What it printed, as JSON; it must have succeeded.
    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts that it failed with this exit code, as one sentence and a hint on standard error.
    pub fn failed(&self, code: i32, sentence: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.out.is_empty(), "{self:?}");
        assert!(self.err.starts_with("error: ") && self.err.contains(sentence), "{self:?}");
        assert!(self.err.lines().any(|line| line.starts_with("hint: ")), "{self:?}");
    }
}

impl Said {
    /// Asserts that it failed with this exit code, as one JSON object on standard error; what it says.
    pub fn failed_json(&self, code: i32) -> serde_json::Value {
        assert_eq!(self.code, code, "{self:?}");
        let told: serde_json::Value = serde_json::from_str(&self.err).unwrap_or_else(|e| panic!("{e}: {self:?}"));
        for field in ["code", "class", "message", "hint"] {
            assert!(told[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {self:?}");
        }
        told
    }
}

/// Runs a command to its end.
pub fn run(args: &[&str]) -> Said {
    ended(tidings().args(args))
}

/// What a command said by its end. One that goes on where it should end is killed.
fn ended(command: &mut Command) -> Said {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let (id, (over, waits)) = (Pid::from_child(&child), mpsc::channel::<()>());
    let watching = std::thread::spawn(move || {
        if waits.recv_timeout(2 * PATIENCE) == Err(RecvTimeoutError::Timeout) {
            let _ = kill_process(id, Signal::KILL);
        }
    });
    let output = child.wait_with_output().expect("our own child");
    drop(over);
    watching.join().expect("it does not panic");
    output.into()
}

/// A running server; dropped, it is killed.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    said: Arc<Mutex<String>>,
    collecting: Vec<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Starts `tidings serve` with these arguments and waits until it is ready.
    pub fn start(args: &[&str]) -> Server {
        let server = Server::spawn(args);
        server.wait_ready();
        server
    }

    /// Starts one node with embedded storage on a port of its own.
    pub fn embedded(data: &Path) -> Server {
        Server::start(&["--data", data.to_str().expect("a path of ours"), "--listen", "127.0.0.1:0"])
    }

    /// Starts `tidings serve` and waits until it says where it listens.
    pub fn spawn(args: &[&str]) -> Server {
        let mut child = tidings()
            .arg("serve")
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let said = Arc::new(Mutex::new(String::new()));
        let collecting = vec![
            collect(child.stdout.take().expect("piped"), said.clone()),
            collect(child.stderr.take().expect("piped"), said.clone()),
        ];
        let mut server = Server { child, address: SocketAddr::from(([127, 0, 0, 1], 0)), said, collecting };
        until("the server says where it listens", || {
            if let Some(status) = server.child.try_wait().expect("our own child") {
                panic!("the server ended with {status}: {}", server.said());
            }
            server.address = listening(&server.said())?;
            Some(())
        });
        server
    }

    /// Waits until the server says that it can take calls.
    pub fn wait_ready(&self) {
        until("the server is ready", || (http_get(self.address, "/readyz")?.0 == 200).then_some(()));
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Runs a client command against this server.
    pub fn run(&self, args: &[&str]) -> Said {
        ended(tidings().args(before_dashes(args, &["--server", &self.url()])))
    }

    /// Makes an application, unless it is there from an earlier start.
    pub fn make_app(&self, app: &str) {
        until("the application is made", || {
            let said = self.run(&["app", "create", app]);
            (said.code == 0 || said.err.contains("admin.app_exists")).then_some(())
        });
    }

    /// Starts a client command that goes on beside the test.
    pub fn start_command(&self, args: &[&str]) -> Running {
        Running::start(tidings().args(before_dashes(args, &["--server", &self.url()])))
    }

    /// SIGSTOP: it neither runs nor dies, until [`Server::go_on`].
    pub fn stop(&self) {
        signal(&self.child, Signal::STOP);
    }

    /// SIGCONT.
    pub fn go_on(&self) {
        signal(&self.child, Signal::CONT);
    }

    /// Everything it has printed so far.
    pub fn said(&self) -> String {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// SIGKILL: no goodbye, no flush.
    pub fn kill(mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
    }

    /// SIGTERM.
    pub fn ask_to_stop(&self) {
        signal(&self.child, Signal::TERM);
    }

    /// SIGTERM, then waits for the end; its exit code.
    pub fn terminate(self) -> i32 {
        self.ask_to_stop();
        self.ended().0
    }

    /// Waits for the end; its exit code, and everything that it has printed.
    pub fn ended(mut self) -> (i32, String) {
        let status = until("the server stops", || self.child.try_wait().expect("our own child"));
        for collecting in self.collecting.drain(..) {
            collecting.join().expect("collecting does not panic");
        }
        (status.code().unwrap_or(-1), self.said())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already; either way nothing is left running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("our own child");
}

/// Arguments with some more, which stand before the `--` of a command to run.
pub fn before_dashes<'a>(args: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    let at = args.iter().position(|arg| *arg == "--").unwrap_or(args.len());
    [&args[..at], more, &args[at..]].concat()
}

/// A command that goes on beside the test; dropped, it is killed.
pub struct Running {
    child: Child,
    out: Arc<Mutex<String>>,
    err: Arc<Mutex<String>>,
    collecting: Vec<std::thread::JoinHandle<()>>,
}

impl Running {
    /// Starts it.
    pub fn start(command: &mut Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        let (out, err) = (Arc::<Mutex<String>>::default(), Arc::<Mutex<String>>::default());
        let collecting = vec![
            collect(child.stdout.take().expect("piped"), out.clone()),
            collect(child.stderr.take().expect("piped"), err.clone()),
        ];
        Running { child, out, err, collecting }
    }

    /// What it has printed so far, in whole lines.
    pub fn out(&self) -> String {
        self.out.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What it has said on standard error so far, in whole lines.
    pub fn err(&self) -> String {
        self.err.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until it has printed so many lines; the last of them.
    pub fn line(&self, number: usize) -> String {
        until("the command prints a line", || {
            let ended = self.collecting.iter().all(std::thread::JoinHandle::is_finished);
            let line = self.out().lines().nth(number - 1).map(str::to_owned);
            assert!(!ended || line.is_some(), "it ended without line {number}: {}", self.err());
            line
        })
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_none()
    }

    pub fn signal(&self, which: Signal) {
        signal(&self.child, which);
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The bytes of memory that it has now.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok());
        kib.map_or_else(|| panic!("the kernel says how much: {status}"), |kib: u64| kib << 10)
    }

    /// Waits for its end.
    pub fn ended(mut self) -> Said {
        let status = until("the command ends", || self.child.try_wait().expect("our own child"));
        for collecting in self.collecting.drain(..) {
            collecting.join().expect("collecting does not panic");
        }
        Said { code: status.code().unwrap_or(-1), out: self.out(), err: self.err() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a process runs (or is stopped); one that nobody waited for yet is dead.
pub fn lives(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    status.is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z')))
}

/// The address out of `listening on http://127.0.0.1:7400`.
fn listening(said: &str) -> Option<SocketAddr> {
    let rest = said.split("listening on ").nth(1)?;
    let url = rest.split_once('\n')?.0.trim();
    url.trim_start_matches("http://").trim_start_matches("https://").parse().ok()
}

fn collect(stream: impl Read + Send + 'static, into: Arc<Mutex<String>>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let mut said = into.lock().unwrap_or_else(PoisonError::into_inner);
            said.push_str(&line);
            said.push('\n');
        }
    })
}

/// Looks until there is something to see, or panics with what was waited for.
pub fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    until_within(PATIENCE, what, look)
}

/// The same with another patience.
pub fn until_within<T>(patience: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Deadline::after(patience);
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(!deadline.has_passed(), "waited in vain until {what}");
        pause();
    }
}

#[allow(clippy::disallowed_methods)] // between two looks at a condition
fn pause() {
    std::thread::sleep(LOOK);
}

/// The status and body of a plain GET, or nothing if nobody answered.
pub fn http_get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    http("GET", address, path, "")
}

/// One HTTP request with a JSON body: status and body of the answer, `None` if there is none.
pub fn http(method: &str, address: SocketAddr, path: &str, json: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    let length = json.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{json}"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split_whitespace().nth(1)?.parse().ok()?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
    Some((status, body))
}

/// Until when something goes on: a loop of kills, somebody's patience.
pub struct Deadline(std::time::Instant);

impl Deadline {
    /// So many seconds from now as `KILL_SECONDS` says.
    pub fn from_environment() -> Deadline {
        let seconds = std::env::var("KILL_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
        Deadline::after(Duration::from_secs(seconds))
    }

    #[allow(clippy::disallowed_methods)] // tests of real processes are bounded by real time
    fn after(time: Duration) -> Deadline {
        Deadline(std::time::Instant::now() + time)
    }

    #[allow(clippy::disallowed_methods)] // tests of real processes are bounded by real time
    pub fn has_passed(&self) -> bool {
        std::time::Instant::now() >= self.0
    }
}
