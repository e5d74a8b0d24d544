//! How long a read takes through the sketcher, beside the same origins alone and behind another proxy: pages of 1 KiB, connections
//! that stay, and reads that come at their times whether or not the ones before have been answered.

use super::bare::{Bare, Threads};
use super::haproxy::Haproxy;
use super::line::Line;
use super::origins::{Origins, Pages};
use super::{PAGE, percentile, proxy};
use crate::cli::BenchPeer;
use crate::commands::bench::Effort;
use crate::commands::bench::rate::{Counter, rate};
use crate::commands::bench::report::{Figures, Goal, Peer};
use crate::stopwatch::Stopwatch;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};

/// Origins: the smallest group that bears a liar.
const ORIGINS: usize = 4;
/// Connections of clients.
const LINES: usize = 64;
/// The share of a proxy's most that is put on it.
const SHARE: f64 = 0.3;
/// How much slower than HAProxy the sketcher may be.
const SLOWER: f64 = 1.15;

/// The percentiles of repetitions, in microseconds.
#[derive(Default)]
struct Times {
    p50: Vec<f64>,
    p99: Vec<f64>,
}

pub async fn measure(place: &Path, effort: Effort, peers: &[BenchPeer], figures: &mut Figures) -> Result<(), Error> {
    let origins = Origins::start(ORIGINS, Pages::new(LINES, PAGE), Duration::ZERO).await?;
    let server = proxy(&origins, &[])?;
    let haproxy = match peers.contains(&BenchPeer::Haproxy) {
        true => Some(Haproxy::start(place, &origins.addresses)?),
        false => None,
    };
    let own = peak(server.address, effort).await?;
    figures.add("sketch: most reads through the sketcher", "1/s", None, &[own]);
    let most = match &haproxy {
        Some(haproxy) => peak(haproxy.address, effort).await?,
        None => own,
    };
    let each = most * SHARE;
    let whose = if haproxy.is_some() { "HAProxy's" } else { "the sketcher's" };
    figures.add(&format!("sketch: reads that come, 30 % of {whose} most"), "1/s", None, &[each]);
    let bare = open_loop(origins.addresses[0], each, effort).await?;
    add(figures, "a bare origin", &bare);
    for (threads, name) in
        [(Threads::Together, "a bare proxy of hyper"), (Threads::Apart, "a bare proxy of hyper, threads apart")]
    {
        let passing = Bare::start(&origins.addresses, threads)?;
        let most = peak(passing.address, effort).await?;
        figures.add(&format!("sketch: most reads through {name}"), "1/s", None, &[most]);
        let passed = open_loop(passing.address, each, effort).await?;
        add(figures, name, &passed);
    }
    let own = open_loop(server.address, each, effort).await?;
    add(figures, "the sketcher", &own);
    let Some(haproxy) = haproxy else { return Ok(()) };
    let other = open_loop(haproxy.address, each, effort).await?;
    let mut of_peer = Figures::default();
    of_peer.add("most reads", "1/s", None, &[most]);
    add(&mut of_peer, "HAProxy", &other);
    figures.peers.push(Peer { name: "haproxy".into(), version: haproxy.version.clone(), results: of_peer.results });
    let ratios: Vec<f64> = own.p50.iter().zip(&other.p50).map(|(own, other)| own / other).collect();
    figures.add("sketch: p50 through the sketcher, over HAProxy's", "×", Some(Goal::AtMost(SLOWER)), &ratios);
    Ok(())
}

fn add(figures: &mut Figures, through: &str, times: &Times) {
    figures.add(&format!("sketch: read through {through}, p50"), "µs", None, &times.p50);
    figures.add(&format!("sketch: read through {through}, p99"), "µs", None, &times.p99);
}

/// The most that comes through, with every connection busy.
async fn peak(to: SocketAddr, effort: Effort) -> Result<f64, Error> {
    let counter = Arc::new(Counter::default());
    let readers = (0..LINES).map(|page| {
        let counter = counter.clone();
        async move {
            let (mut line, path) = (Line::connect(to).await?, format!("/{page}"));
            while counter.goes_on() {
                line.get(&path).await?;
                counter.add(1);
            }
            Ok(())
        }
    });
    rate(effort.seconds, readers, counter.clone()).await
}

/// Reads at this rate for as long as the effort says.
async fn open_loop(to: SocketAddr, rate: f64, effort: Effort) -> Result<Times, Error> {
    let mut times = Times::default();
    for _ in 0..effort.repetitions {
        let clock = Stopwatch::start();
        let reads = (rate * effort.seconds) as usize;
        let lines = (0..LINES).map(|page| {
            tokio::spawn(async move {
                let (mut line, path) = (Line::connect(to).await?, format!("/{page}"));
                line.get(&path).await?;
                let mut took = Vec::new();
                for read in (page..reads).step_by(LINES) {
                    let comes = Duration::from_secs_f64(read as f64 / rate);
                    let early = comes.saturating_sub(clock.elapsed());
                    // A read that found its connection busy has waited since it came; one that was early is asked a little
                    // late, for timers are coarse, and that is nobody's fault.
                    let begun = match early.is_zero() {
                        true => comes,
                        false => {
                            tokio::time::sleep(early).await;
                            clock.elapsed()
                        }
                    };
                    line.get(&path).await?;
                    took.push(clock.elapsed().saturating_sub(begun).as_secs_f64() * 1e6);
                }
                Ok::<_, Error>(took)
            })
        });
        let mut all = Vec::with_capacity(reads);
        for ended in futures::future::join_all(lines).await {
            let panicked = |error| Error::new("bench.failed", Class::Failed, format!("a client panicked: {error}"));
            all.append(&mut ended.map_err(panicked)??);
        }
        if all.is_empty() {
            return Err(Error::new("bench.failed", Class::Failed, "nothing happened while it was measured"));
        }
        all.sort_by(f64::total_cmp);
        times.p50.push(percentile(&all, 0.5));
        times.p99.push(percentile(&all, 0.99));
    }
    Ok(times)
}
