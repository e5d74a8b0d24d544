//! A server in a process of its own: the same binary, so that what is measured is what ships, and its memory alone.

use crate::output::broken;
use crate::stopwatch::Stopwatch;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tidings_base::{Class, Error};

/// How long a server may take until it is ready: far above any goal, so that a miss is measured and not cut off.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks whether it is ready; small against what is measured.
const LOOK: Duration = Duration::from_millis(5);

/// A running server; dropped, it is killed.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    started: Stopwatch,
    /// From starting the process to the first answer that it is ready.
    pub ready_after: Duration,
}

impl Server {
    /// Starts `serve` on this data directory and waits until it is ready.
    pub fn start(data: &Path) -> Result<Server, Error> {
        let args = [OsStr::new("--listen"), OsStr::new("127.0.0.1:0"), OsStr::new("--data"), data.as_os_str()];
        Server::run(&["serve", "--log", "warn"], &args)?.wait_ready()
    }

    /// Starts the member that this file configures; it is ready once it has found the others.
    pub fn member(config: &Path, found: bool) -> Result<Server, Error> {
        let args = [OsStr::new("--config"), config.as_os_str(), OsStr::new("--found")];
        // Members that miss one that was killed say so at length.
        Server::run(&["serve", "--log", "error,openraft=off"], if found { &args } else { &args[..2] })
    }

    /// Starts a node with services in memory and waits until it is ready.
    pub fn without_store(data: &Path) -> Result<Server, Error> {
        let args = [OsStr::new("--listen"), OsStr::new("127.0.0.1:0"), OsStr::new("--data"), data.as_os_str()];
        Server::run(&["bench-server", "--log", "warn"], &args)?.wait_ready()
    }

    /// Starts a node whose syncs take so much longer, and in which an eighth of the matchers' rows fails while there is a file
    /// of this name.
    pub fn hindered(
        config: &Path,
        data: &Path,
        each_sync: Duration,
        fail_while: Option<&Path>,
    ) -> Result<Server, Error> {
        let sync = each_sync.as_micros().to_string();
        let mut args = vec![OsStr::new("--config"), config.as_os_str(), OsStr::new("--data"), data.as_os_str()];
        args.extend(["--listen", "127.0.0.1:0", "--sync-us", &sync].map(OsStr::new));
        args.extend(fail_while.iter().flat_map(|sign| [OsStr::new("--fail-while"), sign.as_os_str()]));
        Server::run(&["bench-node", "--log", "error"], &args)
    }

    /// Starts a sketcher with these arguments; it needs no time to be ready.
    pub fn sketch(arguments: &[String]) -> Result<Server, Error> {
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        Server::run(&["sketch", "run", "--listen", "127.0.0.1:0", "--log", "error"], &arguments)
    }

    fn run(command: &[&str], args: &[&OsStr]) -> Result<Server, Error> {
        let watch = Stopwatch::start();
        let binary = std::env::current_exe().map_err(|error| broken("cannot find this program's own file", error))?;
        let mut child = Command::new(binary)
            .args(command)
            .args(args)
            .env_remove("TIDINGS_CONFIG")
            .env_remove("TIDINGS_DATA")
            .env_remove("TIDINGS_LISTEN")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|error| broken("cannot start a server", error))?;
        let out = child.stdout.take();
        // From here on it is killed whatever happens.
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Server { child, address, started: watch, ready_after: Duration::ZERO };
        server.address = out.and_then(listening).ok_or_else(|| {
            Error::new("bench.no_server", Class::Failed, "the server under test did not say where it listens")
        })?;
        Ok(server)
    }

    /// Waits until it can take calls.
    pub fn wait_ready(mut self) -> Result<Server, Error> {
        while !is_ready(self.address) {
            if self.started.elapsed() > PATIENCE {
                return Err(Error::new("bench.no_server", Class::Failed, "the server under test did not become ready"));
            }
            pause();
        }
        self.ready_after = self.started.elapsed();
        Ok(self)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already; either way nothing is left running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the address out of what a server prints, and goes on reading so that it never meets a full pipe.
fn listening(out: impl Read + Send + 'static) -> Option<SocketAddr> {
    let mut lines = BufReader::new(out).lines();
    let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
        let url = line.split("listening on ").nth(1)?.split(';').next()?;
        url.trim().trim_start_matches("http://").parse().ok()
    });
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    address
}

fn is_ready(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.split_whitespace().nth(1) == Some("200"))
}

#[allow(clippy::disallowed_methods)] // a shell may wait
fn pause() {
    std::thread::sleep(LOOK);
}
