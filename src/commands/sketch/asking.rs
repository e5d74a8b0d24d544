//! What a running proxy tells on its `--admin` address.

use serde::de::DeserializeOwned;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use tidings_base::{Class, Error};

/// How long a proxy on this machine has.
const PATIENCE: Duration = Duration::from_secs(10);
/// More than any proxy has to say.
const LONGEST: u64 = 16 << 20;

/// Asks for a path, and reads its JSON.
pub fn ask<T: DeserializeOwned>(admin: SocketAddr, path: &str) -> Result<T, Error> {
    let gone = |why: String| {
        Error::new("sketch.no_proxy", Class::Unreachable, format!("no proxy tells of itself on {admin}: {why}"))
            .hint("Start it with `tidings sketch run --admin ADDR`, and name the same address here.")
    };
    let io = |error: std::io::Error| gone(error.to_string());
    let mut stream = TcpStream::connect_timeout(&admin, PATIENCE).map_err(io)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n").map_err(io)?;
    let mut told = String::new();
    stream.take(LONGEST).read_to_string(&mut told).map_err(io)?;
    let (head, body) = told.split_once("\r\n\r\n").unwrap_or_default();
    match head.split(' ').nth(1) {
        Some("200") => serde_json::from_str(body).map_err(|error| gone(format!("it says something else: {error}"))),
        Some("404") if head.starts_with("HTTP/1.1") && path.starts_with("/survey") => {
            let what = format!("the proxy on {admin} does not note how static its pages are");
            Err(Error::new("sketch.not_surveyed", Class::Refused, what).hint("Start it with --survey."))
        }
        _ => Err(gone("something else answers there".to_owned())),
    }
}
