//! `tidings sketch stats`: what a running proxy has counted.

use crate::cli::sketch::Stats as Args;
use crate::output;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_sketch_proxy::Stats;

/// How long a proxy on this machine has.
const PATIENCE: Duration = Duration::from_secs(10);
/// More than any proxy has to say.
const LONGEST: u64 = 16 << 20;

/// Asks, and prints.
pub fn run(args: &Args) -> Result<(), Error> {
    let stats = ask(args.admin)?;
    if args.json {
        output::json(&stats);
        return Ok(());
    }
    let share =
        |part: u64, of: u64| if of == 0 { "-".to_owned() } else { format!("{:.1} %", 100.0 * part as f64 / of as f64) };
    output::line(format_args!(
        "{} requests: {} fast ({}), {} asked of all origins, {} refused; {} pages changed ({} of votes)",
        stats.requests,
        stats.fast,
        share(stats.fast, stats.requests),
        stats.replicated,
        stats.refused,
        stats.transitions,
        share(stats.transitions, stats.replicated),
    ));
    output::line(format_args!(
        "{} pages remembered; rules of generation {}, {} files refused",
        stats.remembered, stats.rules_generation, stats.rules_refused
    ));
    let rows = stats.origins.into_iter().map(|of| {
        let asked = if of.ejected { "no" } else { "yes" };
        [of.origin, of.mismatches.to_string(), of.silences.to_string(), of.differed.to_string(), asked.to_owned()]
    });
    output::table(["ORIGIN", "WRONG ALONE", "SILENT ALONE", "OUTVOTED", "ASKED ALONE"], rows);
    Ok(())
}

fn ask(admin: SocketAddr) -> Result<Stats, Error> {
    let gone = |why: String| {
        Error::new("sketch.no_proxy", Class::Unreachable, format!("no proxy tells statistics on {admin}: {why}"))
            .hint("Start it with `tidings sketch run --admin ADDR`, and name the same address here.")
    };
    let io = |error: std::io::Error| gone(error.to_string());
    let mut stream = TcpStream::connect_timeout(&admin, PATIENCE).map_err(io)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
    write!(stream, "GET /stats HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n").map_err(io)?;
    let mut told = String::new();
    stream.take(LONGEST).read_to_string(&mut told).map_err(io)?;
    let body = told.split_once("\r\n\r\n").filter(|(head, _)| head.starts_with("HTTP/1.1 200")).map(|(_, body)| body);
    let body = body.ok_or_else(|| gone("something else answers there".to_owned()))?;
    serde_json::from_str(body).map_err(|error| gone(format!("it says something else: {error}")))
}
