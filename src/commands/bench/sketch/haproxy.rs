//! HAProxy before the same origins, as a process.

use crate::output::broken;
use crate::stopwatch::Stopwatch;
use std::fmt::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tidings_base::{Class, Error};

/// Where Debian puts it, which is not always among the places of programs.
const PROGRAMS: [&str; 2] = ["haproxy", "/usr/sbin/haproxy"];
/// How long it may take to listen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Running; dropped, it is killed.
pub struct Haproxy {
    child: Child,
    pub address: SocketAddr,
    pub version: String,
}

impl Haproxy {
    pub fn start(place: &Path, origins: &[SocketAddr]) -> Result<Haproxy, Error> {
        let (program, version) =
            PROGRAMS.iter().find_map(|program| Some((program, version(program)?))).ok_or_else(|| {
                Error::new("bench.no_peer", Class::Refused, "HAProxy is not installed here")
                    .hint("Install it with scripts/peers/haproxy.sh.")
            })?;
        let free = TcpListener::bind("127.0.0.1:0").and_then(|bound| bound.local_addr());
        let address = free.map_err(|error| broken("loopback has no free port", error))?;
        let file = place.join("haproxy.cfg");
        std::fs::write(&file, configuration(address, origins))
            .map_err(|error| broken("cannot write a configuration", error))?;
        let child = Command::new(program)
            .arg("-db")
            .arg("-f")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| broken("cannot start HAProxy", error))?;
        // From here on it is killed whatever happens.
        let mut haproxy = Haproxy { child, address, version };
        let watch = Stopwatch::start();
        while TcpStream::connect(address).is_err() {
            let ended = haproxy.child.try_wait().is_ok_and(|ended| ended.is_some());
            if ended || watch.elapsed() > PATIENCE {
                return Err(Error::new("bench.no_peer", Class::Failed, "HAProxy does not listen"));
            }
            std::thread::yield_now();
        }
        Ok(haproxy)
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        // It may have ended already; either way nothing is left running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `HAProxy version 2.6.12-1 2023/12/16 - https://haproxy.org/` tells one.
fn version(program: &str) -> Option<String> {
    let said = Command::new(program).arg("-v").stdin(Stdio::null()).output().ok()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    said.split_whitespace().nth(2).map(str::to_owned)
}

/// As it is usually run: each request to the next origin, connections kept on both sides.
fn configuration(address: SocketAddr, origins: &[SocketAddr]) -> String {
    let mut text = format!(
        "global\n  maxconn 4096\ndefaults\n  mode http\n  timeout connect 10s\n  timeout client 60s\n  timeout server 60s\n  \
         option http-keep-alive\n  http-reuse always\nfrontend clients\n  bind {address}\n  default_backend origins\n\
         backend origins\n  balance roundrobin\n"
    );
    for (number, origin) in origins.iter().enumerate() {
        // Writing to a text does not fail.
        let _ = writeln!(text, "  server origin{number} {origin}");
    }
    text
}
