//! What N origins serve in a second: through the sketcher, if all execute every read, and if 2f + 1 do.
//!
//! Origins take a while for each page and serve one at a time, so that they are what is scarce. Each client reads a page of
//! its own, which changes before as many of its reads as the ratio of transitions says.

use super::line::Line;
use super::origins::{Origins, Pages};
use super::{PAGE, percentile, proxy, two_f_and_one};
use crate::commands::bench::Effort;
use crate::commands::bench::rate::{Counter, rate, rate_after};
use crate::commands::bench::report::{Figures, Goal};
use crate::commands::bench::server::Server;
use crate::commands::probe;
use crate::stopwatch::Stopwatch;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidings_base::{Class, Error};

/// Ratios of transitions, in percent: none, what nine tenths of the paper's URLs stay below, and a little.
const TRANSITIONS: [u32; 3] = [0, 5, 15];
/// What is put to all origins, by rule.
const BY_ALL: &str = "/all";
const USUAL: &str = "/usual";
/// Clients of the baseline that asks origins itself, for each origin: enough that none is ever idle.
const DIRECT: usize = 16;

/// Times of reads in milliseconds, by whether they were fast.
#[derive(Default)]
struct Took {
    fast: Vec<f64>,
    agreed: Vec<f64>,
}

struct Load {
    origins: Arc<Origins>,
    took: Arc<Mutex<Took>>,
}

pub async fn measure(effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    for count in effort.sketch.groups {
        group(*count, effort, figures).await?;
    }
    Ok(())
}

async fn group(count: usize, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let clients = effort.sketch.in_flight * count;
    let pages = Pages::new(clients, PAGE);
    let origins = Arc::new(Origins::start(count, pages, effort.sketch.service).await?);
    let server = proxy(&origins, &["--agreed-path", BY_ALL])?;
    let load = Load { origins: Arc::clone(&origins), took: Arc::default() };
    let all = through(&load, server.address, BY_ALL, 0, clients, effort).await?;
    figures.add(&format!("sketch: reads, all of {count} origins execute"), "1/s", None, &all);
    let quorum = two_f_and_one(count);
    let some = directly(&load, quorum, DIRECT.min(effort.sketch.in_flight) * count, effort).await?;
    figures.add(&format!("sketch: reads, {quorum} of {count} origins execute"), "1/s", None, &some);
    let (all, some) = (median(&all), median(&some));
    for percent in TRANSITIONS {
        let what = format!("{count} origins, {percent} % transitions");
        load.took.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let before = processor(&server)?;
        let watch = Stopwatch::start();
        let reads = through(&load, server.address, USUAL, percent, clients, effort).await?;
        let used = processor(&server)? - before;
        figures.add(&format!("sketch: reads, {what}"), "1/s", None, &reads);
        let ratio = f64::from(percent) / 100.0;
        let goal = 0.95 * count as f64 / (1.0 + ratio * count as f64);
        let over = |base: f64| reads.iter().map(|reads| reads / base).collect::<Vec<_>>();
        figures.add(&format!("sketch: {what}, over all executing"), "×", Some(Goal::AtLeast(goal)), &over(all));
        figures.add(&format!("sketch: {what}, over {quorum} executing"), "×", None, &over(some));
        let share = 100.0 * used / watch.elapsed().as_secs_f64();
        figures.add(
            &format!("sketch: processor of the sketcher, {what}"),
            "% of a core",
            Some(Goal::AtMost(60.0)),
            &[share],
        );
        let mut took = load.took.lock().unwrap_or_else(PoisonError::into_inner);
        for (how, times) in took.by_how() {
            times.sort_by(f64::total_cmp);
            if !times.is_empty() {
                let name = format!("sketch: {what}, {how} reads");
                figures.add(&format!("{name}, p50"), "ms", None, &[percentile(times, 0.5)]);
                figures.add(&format!("{name}, p99"), "ms", None, &[percentile(times, 0.99)]);
            }
        }
    }
    Ok(())
}

impl Took {
    fn clear(&mut self) {
        *self = Took::default();
    }

    fn by_how(&mut self) -> [(&'static str, &mut Vec<f64>); 2] {
        [("fast", &mut self.fast), ("agreed", &mut self.agreed)]
    }
}

/// Reads a second through the sketcher.
async fn through(
    load: &Load,
    to: SocketAddr,
    prefix: &'static str,
    percent: u32,
    clients: usize,
    effort: Effort,
) -> Result<Vec<f64>, Error> {
    let mut rates = Vec::new();
    for _ in 0..effort.repetitions {
        // What is remembered already costs one.
        let first = (0..clients).map(|page| {
            let pages = Arc::clone(&load.origins.pages);
            async move {
                let mut line = Line::connect(to).await?;
                line.get_expecting(&format!("{prefix}/{page}"), &pages.beginning(page)).await?;
                Ok::<_, Error>(line)
            }
        });
        let lines = futures::future::try_join_all(first).await?;
        let counter = Arc::new(Counter::default());
        let readers = lines.into_iter().enumerate().map(|(page, mut line)| {
            let (counter, pages, took) = (counter.clone(), Arc::clone(&load.origins.pages), Arc::clone(&load.took));
            async move {
                let path = format!("{prefix}/{page}");
                // Clients change their pages at different times.
                let (mut due, mut own) = (page as u32 * 61 % 100, Took::default());
                while counter.goes_on() {
                    due += percent;
                    if due >= 100 {
                        due -= 100;
                        pages.change(page);
                    }
                    let watch = Stopwatch::start();
                    let fast = line.get_expecting(&path, &pages.beginning(page)).await?;
                    let times = if fast { &mut own.fast } else { &mut own.agreed };
                    times.push(watch.elapsed().as_secs_f64() * 1e3);
                    counter.add(1);
                }
                let mut all = took.lock().unwrap_or_else(PoisonError::into_inner);
                all.fast.append(&mut own.fast);
                all.agreed.append(&mut own.agreed);
                Ok(())
            }
        });
        // Queues are long: a read takes seconds, and what all begin at once takes several to spread.
        let round = mean(load.origins.addresses.len(), percent, clients, effort.sketch.service);
        let (warm_up, seconds) = (effort.seconds.max(6.0 * round), effort.seconds.max(3.0 * round));
        rates.push(rate_after(warm_up, seconds, readers, counter.clone()).await?);
    }
    Ok(rates)
}

/// How long a read takes when all that these origins can do is asked of them, in seconds: 1 + tN executions each.
fn mean(origins: usize, percent: u32, clients: usize, service: Duration) -> f64 {
    let executions = 1.0 + f64::from(percent) / 100.0 * origins as f64;
    clients as f64 * service.as_secs_f64() * executions / origins as f64
}

/// Reads a second of clients that ask so many origins themselves and compare what they say.
async fn directly(load: &Load, quorum: usize, clients: usize, effort: Effort) -> Result<Vec<f64>, Error> {
    let addresses = &load.origins.addresses;
    let mut rates = Vec::new();
    for _ in 0..effort.repetitions {
        let counter = Arc::new(Counter::default());
        let readers = (0..clients).map(|page| {
            let asked = (0..quorum).map(|next| addresses[(page + next) % addresses.len()]).collect::<Vec<_>>();
            let counter = counter.clone();
            async move {
                let path = format!("{USUAL}/{page}");
                let mut lines = futures::future::try_join_all(asked.into_iter().map(Line::connect)).await?;
                while counter.goes_on() {
                    futures::future::try_join_all(lines.iter_mut().map(|line| line.get(&path))).await?;
                    if lines.windows(2).any(|pair| pair[0].body != pair[1].body) {
                        return Err(Error::new("bench.wrong_answer", Class::Failed, "origins differ"));
                    }
                    counter.add(1);
                }
                Ok(())
            }
        });
        rates.push(rate(effort.seconds, readers, counter.clone()).await?);
    }
    Ok(rates)
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Seconds of processor time that the proxy has used.
fn processor(server: &Server) -> Result<f64, Error> {
    let gone = || Error::new("bench.no_server", Class::Failed, "the proxy under test is gone");
    Ok(probe::processor_time(server.pid()).ok_or_else(gone)?.as_secs_f64())
}
