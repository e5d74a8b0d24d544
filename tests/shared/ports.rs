//! Ports for tests whose configurations must name one before anybody listens there. Shared by the tests of several crates.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the range from which systems give out ports by themselves, so that neither somebody who listens at port 0 nor an
/// outgoing connection comes in between.
const FIRST: u32 = 12_000;
const COUNT: u32 = 20_000;

/// A port on loopback where nobody listens; every call of a process names another.
pub fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    // Processes that run side by side begin far from each other.
    let begin = std::process::id().wrapping_mul(613);
    for _ in 0..COUNT {
        let at = begin.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = (FIRST + at) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("loopback has no free port");
}

/// The same as an address.
#[allow(dead_code)]
pub fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}
