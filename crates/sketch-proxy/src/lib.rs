//! `tidings sketch run`: the sketcher in front of web servers that know nothing of it, of a BFT group, or of a cell.
//!
//! ```text
//!   browser ─ HTTP/1.1 or HTTP/2 ─▶ serve ─ Ask ─▶ engine { Sketcher, Group } ─ fetch ─▶ upstream: one origin, or all
//!           ◀─ verified page ───────        ◀──────   one lock, never held     ◀────── whole answers, with sketches
//!                                                      while anything is awaited
//! ```
//! - [`config`]: which origins, which quorum, which rules.
//! - `connection`: who holds one, for how long; `serve`: requests, limits, what a client asked for of a verified page. Each client
//!   is served by one of the `threads`, which have their own connections to origins.
//! - `sites`: whose requests are for which of the sites behind it. Each has an `engine`: the machines, and what they want done.
//! - `upstream`: a pool of connections to the origins (`line`), and answers as the machines take them; `seats`: how much each of them
//!   may have under way.
//! - `ordered`: a group with an order in place of origins: a BFT group, or a cell.
//! - `held`: bodies in memory, on disk, or on their way past (rule L); `multipart`: several ranges of one.
//! - `sketching_core`: several proxies that remember as one, on leases of placement (rule J).
//! - `rules_file`: rules as a file says them; `tls`; `metrics`, `admin` and `console` (with
//!   `drawing`): what it tells of itself.
//! - [`survey`]: how static traffic is, from recorded answers or from what it sees.
//!
//! What it promises: a verified answer was given by a quorum of origins, so by an honest one if at most f are wrong (rule E); before
//! the keys of a BFT group and the files of a cell delay-once, too (rule A). What it deliberately does not do: promise delay-once
//! before origins (they have no order), send a write to more than one origin, or cache bodies.

mod admin;
pub mod config;
mod connection;
mod console;
mod drawing;
mod engine;
mod held;
mod line;
mod metrics;
mod multipart;
mod ordered;
mod rules_file;
mod seats;
mod serve;
mod sites;
mod sketching_core;
pub mod survey;
mod threads;
mod tls;
mod upstream;

pub use config::{ANY_HOST, Checks, Config, Core, Origin, Secret, Site, of_site};
pub use metrics::{Counted, OriginStats, SiteStats, Stats};
pub use ordered::{BftGroup, CellGroup, Group, Service};
pub use rules_file::{parse as parse_rules, parse_prefix};
pub use sketching_core::CoreStats;
pub use tls::Identity;

use admin::Told;
use console::Console;
use metrics::Metrics;
use sites::Sites;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use threads::Threads;
use tidings_base::{Class, Error};
use tidings_sketch::http::Rules;
use tidings_sketch::sketcher::{Alone, Ranges, Standing};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A proxy that serves until it is stopped or dropped.
pub struct Proxy {
    address: SocketAddr,
    admin: Option<SocketAddr>,
    sites: Arc<Sites>,
    core: Option<Arc<sketching_core::Core>>,
    metrics: Arc<Metrics>,
    _tasks: Tasks,
}

/// What goes on until it is dropped.
#[derive(Default)]
struct Tasks(Vec<JoinHandle<()>>);

impl Tasks {
    /// Begins to join a sketching core, and hears other proxies.
    async fn join(&mut self, config: &Config, of: &Core) -> Result<(Arc<Sites>, Arc<sketching_core::Core>), Error> {
        let listener = sketching_core::listen(of.listen).await?;
        let listening = listener.local_addr().unwrap_or(of.listen);
        let (core, changes) = sketching_core::Core::join(config, of, listening)?;
        let ranges = Arc::clone(&core) as Arc<dyn Ranges>;
        let sites = Arc::new(Sites::start(config, &ranges, Some(&of.secret))?);
        self.0.push(tokio::spawn(Arc::clone(&core).follow(Arc::clone(&sites), changes)));
        self.0.push(tokio::spawn(Arc::clone(&core).tell_refusals()));
        let door = Arc::new(sketching_core::door::Door::new(Arc::clone(&core), Arc::clone(&sites), config));
        self.0.push(tokio::spawn(door.serve(listener)));
        Ok((sites, core))
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

impl Proxy {
    /// Checks the configuration, listens, and serves.
    pub async fn start(config: Config) -> Result<Proxy, Error> {
        let listener = TcpListener::bind(config.listen).await.map_err(|error| {
            let what = format!("cannot listen on {}: {error}", config.listen);
            Error::new("sketch.cannot_listen", Class::Refused, what).hint("Choose another address with --listen.")
        })?;
        let address = listener.local_addr().unwrap_or(config.listen);
        let tls = config.tls.as_ref().map(tls::server).transpose()?;
        let threads = Threads::start(config.threads)?;
        let metrics = Arc::new(Metrics::default());
        let mut tasks = Tasks::default();
        let (sites, core) = match &config.core {
            None => (Arc::new(Sites::start(&config, &(Arc::new(Alone) as Arc<dyn Ranges>), None)?), None),
            Some(of) => {
                let (sites, core) = tasks.join(&config, of).await?;
                (sites, Some(core))
            }
        };
        tasks.0.extend(sites.all().iter().map(|engine| tokio::spawn(Arc::clone(engine).keep_time())));
        let survey = config.survey.then(|| Arc::new(survey::Live::default()));
        let mut admin = None;
        if let Some(at) = config.admin {
            let listener = admin::listen(at).await?;
            admin = listener.local_addr().ok();
            let console = Arc::new(Console::default());
            tasks.0.push(tokio::spawn(Arc::clone(&console).look(Arc::clone(&sites))));
            let told = Told {
                sites: Arc::clone(&sites),
                core: core.clone(),
                metrics: Arc::clone(&metrics),
                survey: survey.clone(),
                console,
            };
            tasks.0.push(tokio::spawn(admin::serve(listener, told)));
        }
        let door = serve::Door::new(Arc::clone(&sites), core.clone(), Arc::clone(&metrics), survey, config, tls);
        tasks.0.push(tokio::spawn(connection::accept(listener, Arc::new(door), threads)));
        Ok(Proxy { address, admin, sites, core, metrics, _tasks: tasks })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where metrics and statistics are told, if anywhere.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Other rules for a site, by its place among the sites, from now on; their generation. What was remembered under the old ones
    /// is not found again.
    pub fn set_rules(&self, site: usize, rules: Rules) -> u64 {
        let Some(engine) = self.sites.all().get(site) else { return 0 };
        if let Some(core) = &self.core {
            core.rules_change();
        }
        engine.set_rules(rules)
    }

    /// Counts a file of rules that was refused.
    pub fn rules_refused(&self) {
        self.metrics.rules_refused.fetch_add(1, Relaxed);
    }

    /// What `sketch stats` shows.
    pub fn stats(&self) -> Stats {
        metrics::stats(&self.sites, self.core.as_deref(), &self.metrics)
    }

    /// Hands its part of the core over, if it is in one; gives up after so long. It serves all the while.
    pub async fn leave_core(&self, within: Duration) {
        if let Some(core) = &self.core {
            core.leave(within).await;
        }
    }

    /// What is known of each origin: in fast reads, and how often it differed from a quorum.
    pub fn standing(&self) -> Vec<(Standing, u64)> {
        self.sites.all().iter().flat_map(|site| site.standing()).collect()
    }
}
