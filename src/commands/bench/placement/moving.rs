//! How long a key is nobody's: after its owner's death, and while an owner drains with state. A node in a process of its own,
//! owners over real sockets in this one; each has a runtime of its own, which ends when it "dies": nothing is released.

use crate::commands::bench::Effort;
use crate::commands::bench::report::{Figures, Goal};
use crate::output::broken;
use crate::stopwatch::Stopwatch;
use futures::future::BoxFuture;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidings_base::{Class, Error, KeyHash};
use tidings_client::placement::{HandOver, Move, Owner, OwnerOptions, Placement};
use tidings_client::{Client, ClientConfig};
use tidings_wire::v1;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// Leases for fast fail-over: 12 s, renewed every 2.5 s.
const FAST: (u32, u32) = (12_000, 2_500);
/// What a draining owner has to hand over, in all.
const STATE: usize = 10 << 20;
/// How long nobody may serve a key of it.
const GAP_MS: f64 = 100.0;
/// Longer than anything here should take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Keys that are watched.
const WATCHED: u64 = 64;

fn late(what: &str) -> Error {
    Error::new("bench.placement_late", Class::Failed, format!("{what} within {PATIENCE:?}"))
}

#[allow(clippy::disallowed_methods)] // A shell that measures may wait.
fn pause(time: Duration) {
    std::thread::sleep(time);
}

fn key(n: u64) -> KeyHash {
    KeyHash::of(format!("watched/{n}").as_bytes())
}

/// Creates a namespace with fast leases.
pub async fn namespace(url: &str, name: &str) -> Result<(), Error> {
    let client = Client::connect(ClientConfig::new([url])).await?;
    let config = v1::NamespaceConfig { lease_ms: FAST.0, renew_ms: FAST.1, ..Default::default() };
    Placement::new(client).create(name, config).await
}

/// An owner whose process can end.
struct Process {
    runtime: Option<Runtime>,
    owner: Owner,
}

impl Process {
    fn start(url: &str, options: OwnerOptions) -> Result<Process, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| broken("cannot start a runtime", error))?;
        let owner = runtime.block_on(async {
            let client = Client::connect(ClientConfig::new([url])).await?;
            Owner::join(client, options).await
        })?;
        Ok(Process { runtime: Some(runtime), owner })
    }

    /// Ends at once: no message leaves any more.
    fn die(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.die();
    }
}

fn settled(owners: &[Process]) -> Result<(), Error> {
    let (watch, served) = (Stopwatch::start(), |n| owners.iter().any(|o| o.owner.check_hash(key(n)).is_some()));
    while !(0..WATCHED).all(served) || owners.iter().any(|process| process.owner.held().is_empty()) {
        if watch.elapsed() > PATIENCE {
            return Err(late("the pool did not settle"));
        }
        pause(Duration::from_millis(20));
    }
    Ok(())
}

/// From an owner's death until another serves its key: each of several dies in turn.
pub fn deaths(url: &str, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    crate::commands::runtime()?.block_on(namespace(url, "deaths"))?;
    let count = effort.placement.deaths;
    let start =
        |n: usize| Process::start(url, OwnerOptions::new("deaths", format!("owner-{n}"), format!("host-{n}:1")));
    let mut owners = (0..count + 2).map(start).collect::<Result<Vec<Process>, Error>>()?;
    settled(&owners)?;
    let mut taken = Vec::new();
    for n in 0..count {
        let own = (0..).map(key).find(|hash| owners[0].owner.check_hash(*hash).is_some());
        let Some(own) = own else { continue };
        let mut victim = owners.remove(0);
        // Somewhere between two renewals.
        pause(Duration::from_millis(137 * n as u64 % 1_250));
        let watch = Stopwatch::start();
        victim.die();
        while !owners.iter().any(|process| process.owner.check_hash(own).is_some()) {
            if watch.elapsed() > PATIENCE {
                return Err(late("a dead owner's key was not served again"));
            }
            pause(Duration::from_millis(2));
        }
        taken.push(watch.elapsed().as_secs_f64());
    }
    taken.sort_by(f64::total_cmp);
    let at = |share: f64| taken[((taken.len() - 1) as f64 * share).round() as usize];
    figures.add("placement: owner killed until its key is served again, 12 s leases, p50", "s", None, &[at(0.5)]);
    figures.add("placement: owner killed until its key is served again, 12 s leases, p99", "s", None, &[at(0.99)]);
    Ok(())
}

/// Sends its part of the state over a socket to the other owner, which acknowledges it.
struct Sends;

impl HandOver for Sends {
    fn export(&self, to: Move) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let failed = |error| broken("cannot hand over", error);
            let share = to.leased.range.len() as f64 / tidings_client::placement::KeyRange::FULL.len() as f64;
            let state = vec![7u8; (STATE as f64 * share) as usize];
            let mut stream = TcpStream::connect(&to.address).await.map_err(failed)?;
            for number in [to.token, to.incarnation, state.len() as u64] {
                stream.write_u64(number).await.map_err(failed)?;
            }
            stream.write_all(&state).await.map_err(failed)?;
            stream.read_u8().await.map(drop).map_err(failed)
        })
    }
}

/// Takes state for whichever owner is set.
async fn take(listener: TcpListener, owner: Arc<OnceLock<Owner>>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let owner = owner.clone();
        tokio::spawn(async move {
            let (token, incarnation) = (stream.read_u64().await?, stream.read_u64().await?);
            let mut state = vec![0; stream.read_u64().await?.min(STATE as u64) as usize];
            stream.read_exact(&mut state).await?;
            if owner.get().is_some_and(|owner| owner.imported(token, incarnation).is_ok()) {
                stream.write_u8(1).await?;
            }
            Ok::<(), std::io::Error>(())
        });
    }
}

/// How long each key is nobody's while an owner drains with 10 MB of state.
pub fn drains(url: &str, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let runtime = crate::commands::runtime()?;
    runtime.block_on(namespace(url, "drains"))?;
    let mut worst = Vec::new();
    let mut median = Vec::new();
    for repetition in 0..effort.repetitions {
        let owners = (0..2).map(|n| {
            let listener =
                runtime.block_on(TcpListener::bind("127.0.0.1:0")).map_err(|e| broken("cannot listen", e))?;
            let address = listener.local_addr().map_err(|error| broken("cannot listen", error))?;
            let cell = Arc::new(OnceLock::new());
            runtime.spawn(take(listener, cell.clone()));
            let name = format!("owner-{repetition}-{n}");
            let process = Process::start(url, OwnerOptions::new("drains", name, address.to_string()).hand_over(Sends))?;
            let _ = cell.set(process.owner.clone());
            Ok(process)
        });
        let owners = owners.collect::<Result<Vec<Process>, Error>>()?;
        settled(&owners)?;
        let gaps = gaps(&owners)?;
        median.push(gaps[gaps.len() / 2]);
        worst.push(gaps[gaps.len() - 1]);
        // The next pool begins with nobody.
        owners.iter().for_each(|process| process.owner.leave());
        pause(Duration::from_secs(1));
    }
    let goal = Some(Goal::AtMost(GAP_MS));
    figures.add("placement: drain with 10 MB of state, a key is nobody's, p50", "ms", goal, &median);
    figures.add("placement: drain with 10 MB of state, a key is nobody's, longest", "ms", goal, &worst);
    Ok(())
}

/// Drains the first owner; for how long each key of its was not served, in milliseconds, sorted.
fn gaps(owners: &[Process]) -> Result<Vec<f64>, Error> {
    let watch = Stopwatch::start();
    let own: Vec<KeyHash> = (0..WATCHED).map(key).filter(|key| owners[0].owner.check_hash(*key).is_some()).collect();
    if let Some(runtime) = &owners[0].runtime {
        let owner = owners[0].owner.clone();
        runtime.spawn(async move { owner.drain().await });
    }
    let mut seen: Vec<(f64, Option<f64>)> = vec![(0.0, None); own.len()];
    while seen.iter().any(|(_, there)| there.is_none()) {
        for (key, (here, there)) in own.iter().zip(&mut seen).filter(|(_, (_, there))| there.is_none()) {
            let now = watch.elapsed().as_secs_f64() * 1e3;
            if owners[0].owner.check_hash(*key).is_some() {
                *here = now;
            } else if owners[1].owner.check_hash(*key).is_some() {
                *there = Some(now);
            }
        }
        if watch.elapsed() > PATIENCE {
            return Err(late("a draining owner's keys were not served elsewhere"));
        }
        pause(Duration::from_micros(500));
    }
    let mut gaps: Vec<f64> = seen.iter().map(|(here, there)| there.unwrap_or_default() - here).collect();
    gaps.sort_by(f64::total_cmp);
    if gaps.is_empty() {
        return Err(late("the draining owner held none of the watched keys"));
    }
    Ok(gaps)
}
