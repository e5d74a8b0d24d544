//! The paper's testbed (§4) on one machine: owners, then lookups, are restarted one after the other while the manager's
//! processor time and the bytes on the loopback are counted. Its 32 minutes are scaled down to seconds.

use super::moving::namespace;
use super::watching::Watching;
use crate::commands::bench::Effort;
use crate::commands::bench::report::Figures;
use crate::commands::bench::server::Server;
use crate::output::broken;
use crate::stopwatch::Stopwatch;
use std::time::Duration;
use tidings_base::Error;
use tidings_client::placement::{Owner, OwnerOptions};
use tidings_client::{Client, ClientConfig};

/// Owners or lookups that share a connection, at least; beyond so many connections more share one.
const SHARE: usize = 20;
const CONNECTIONS: usize = 200;
const NAMESPACE: &str = "testbed";
/// Clock ticks a second in `/proc`.
const TICKS: f64 = 100.0;

/// Processor time of a process, in seconds.
fn processor(pid: u32) -> Result<f64, Error> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    let text = text.map_err(|error| broken("cannot read the server's processor time", error))?;
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or_default();
    Ok((ticks(11) + ticks(12)) / TICKS)
}

/// Bytes that the loopback has carried.
fn loopback() -> Result<f64, Error> {
    let text = std::fs::read_to_string("/proc/net/dev");
    let text = text.map_err(|error| broken("cannot read what the loopback carried", error))?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:")).unwrap_or_default();
    Ok(line.split_whitespace().next().and_then(|field| field.parse().ok()).unwrap_or_default())
}

/// What passes from now on.
struct Meter<'a> {
    server: &'a Server,
    watch: Stopwatch,
    processor: f64,
    bytes: f64,
}

impl Meter<'_> {
    fn start(server: &Server) -> Result<Meter<'_>, Error> {
        Ok(Meter { server, watch: Stopwatch::start(), processor: processor(server.pid())?, bytes: loopback()? })
    }

    fn add(&self, what: &str, figures: &mut Figures) -> Result<(), Error> {
        let seconds = self.watch.elapsed().as_secs_f64();
        let busy = (processor(self.server.pid())? - self.processor) / seconds * 100.0;
        let rate = (loopback()? - self.bytes) / seconds / 1e3;
        figures.add(&format!("placement: {what}: the manager's node, of one core"), "%", None, &[busy]);
        figures.add(&format!("placement: {what}: on the loopback"), "kB/s", None, &[rate]);
        Ok(())
    }
}

async fn clients(url: &str, count: usize) -> Result<Vec<Client>, Error> {
    let mut clients = Vec::new();
    for _ in 0..count.div_ceil(SHARE).min(CONNECTIONS) {
        clients.push(Client::connect(ClientConfig::new([url])).await?);
    }
    Ok(clients)
}

/// Whose connection somebody shares.
fn of(clients: &[Client], n: usize) -> Client {
    clients[n % clients.len()].clone()
}

fn owner(client: Client, n: usize) -> Result<Owner, Error> {
    Owner::start(client, OwnerOptions::new(NAMESPACE, format!("owner-{n}"), format!("host-{n}:1")))
}

pub async fn measure(server: &Server, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let sizes = effort.placement;
    let (url, during) = (server.url(), Duration::from_secs_f64(sizes.restarts));
    namespace(&url, NAMESPACE).await?;
    let connections = clients(&url, sizes.owners).await?;
    let mut owners = Vec::new();
    for n in 0..sizes.owners {
        owners.push(Some(owner(of(&connections, n), n)?));
    }
    tokio::time::sleep(during / 4).await;
    let meter = Meter::start(server)?;
    tokio::time::sleep(during / 4).await;
    meter.add(&format!("{} owners at rest", sizes.owners), figures)?;
    let meter = Meter::start(server)?;
    for n in 0..sizes.owners {
        // Dropped, it gives everything up; the next process of its name follows at once.
        owners[n] = None;
        owners[n] = Some(owner(of(&connections, n), n)?);
        tokio::time::sleep(during / sizes.owners as u32).await;
    }
    let (count, time) = (sizes.owners, sizes.restarts);
    let what = format!("{count} owners that leave restarted in {time} s (the paper: 32 min)");
    meter.add(&what, figures)?;
    let connections = clients(&url, sizes.lookups).await?;
    let mut lookups = Vec::new();
    for n in 0..sizes.lookups {
        lookups.push(Watching::start(of(&connections, n), NAMESPACE).await?);
    }
    let meter = Meter::start(server)?;
    for (n, lookup) in lookups.iter_mut().enumerate() {
        // The old one is dropped, and its poll with it, before the new one knows the table.
        lookup.stop();
        *lookup = Watching::start(of(&connections, n), NAMESPACE).await?;
        if n % SHARE == 0 {
            tokio::time::sleep(during / sizes.lookups.div_ceil(SHARE) as u32).await;
        }
    }
    let (count, time) = (sizes.lookups, sizes.restarts);
    let what = format!("{count} lookups without tables restarted in {time} s (the paper: 32 min)");
    meter.add(&what, figures)?;
    // One owner more: every lookup hears of what changes hands.
    let told = |lookups: &[Watching]| lookups.iter().map(Watching::answers).sum::<u64>();
    let (meter, before) = (Meter::start(server)?, told(&lookups));
    owners.push(Some(owner(of(&connections, 0), sizes.owners)?));
    tokio::time::sleep(during / 8).await;
    let answers = (told(&lookups) - before) as f64;
    figures.add(&format!("placement: answers to {} lookups when an owner joins", sizes.lookups), "", None, &[answers]);
    meter.add(&format!("an owner joins {} lookups", sizes.lookups), figures)
}
