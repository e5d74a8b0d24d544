//! `tidings sketch run`: the sketcher in front of web servers that know nothing of it.
//!
//! ```text
//!   browser ─ HTTP/1.1 or HTTP/2 ─▶ serve ─ Ask ─▶ engine { Sketcher, Group } ─ fetch ─▶ upstream: one origin, or all
//!           ◀─ verified page ───────        ◀──────   one lock, never held     ◀────── whole answers, with sketches
//!                                                      while anything is awaited
//! ```
//! - [`config`]: which origins, which quorum, which rules.
//! - `serve`: connections, limits, what a client asked for of a verified page.
//! - `engine`: the machines, and what they want done.
//! - `upstream`: a pool of connections to the origins (`line`), and answers as the machines take them.
//! - `held`: bodies in memory, on disk, or on their way past (rule L); `multipart`: several ranges of one.
//! - `rules_file`: rules as a file says them; `tls`; `metrics` and `admin`: what it tells of itself.
//! - [`survey`]: how static traffic is, from recorded answers or from what it sees.
//!
//! What it promises: a verified answer was given by a quorum of origins, so by an honest one if at most f are wrong (rule E).
//! What it deliberately does not do: promise delay-once (origins have no order), send a write to more than one origin, or cache
//! bodies.

mod admin;
pub mod config;
mod engine;
mod held;
mod line;
mod metrics;
mod multipart;
mod rules_file;
mod serve;
pub mod survey;
mod tls;
mod upstream;

pub use config::{Checks, Config, Origin};
pub use metrics::{OriginStats, Stats};
pub use rules_file::parse as parse_rules;
pub use tls::Identity;

use engine::Engine;
use metrics::Metrics;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tidings_base::{Class, Error};
use tidings_sketch::http::Rules;
use tidings_sketch::sketcher::{Counts, Standing};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A proxy that serves until it is stopped or dropped.
pub struct Proxy {
    address: SocketAddr,
    admin: Option<SocketAddr>,
    engine: Arc<Engine>,
    metrics: Arc<Metrics>,
    tasks: Vec<JoinHandle<()>>,
}

impl Proxy {
    /// Checks the configuration, listens, and serves.
    pub async fn start(config: Config) -> Result<Proxy, Error> {
        let listener = TcpListener::bind(config.listen).await.map_err(|error| {
            let what = format!("cannot listen on {}: {error}", config.listen);
            Error::new("sketch.cannot_listen", Class::Refused, what).hint("Choose another address with --listen.")
        })?;
        let address = listener.local_addr().unwrap_or(config.listen);
        let engine = Arc::new(Engine::new(&config)?);
        let tls = config.tls.as_ref().map(tls::server).transpose()?;
        let metrics = Arc::new(Metrics::default());
        let mut tasks = vec![tokio::spawn(Arc::clone(&engine).keep_time())];
        let mut admin = None;
        if let Some(at) = config.admin {
            let listener = admin::listen(at).await?;
            admin = listener.local_addr().ok();
            tasks.push(tokio::spawn(admin::serve(listener, Arc::clone(&engine), Arc::clone(&metrics))));
        }
        let door = serve::accept(listener, Arc::clone(&engine), Arc::clone(&metrics), config, tls);
        tasks.push(tokio::spawn(door));
        Ok(Proxy { address, admin, engine, metrics, tasks })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where metrics and statistics are told, if anywhere.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Other rules from now on; their generation. What was remembered under the old ones is not found again.
    pub fn set_rules(&self, rules: Rules) -> u64 {
        self.engine.set_rules(rules)
    }

    /// Counts a file of rules that was refused.
    pub fn rules_refused(&self) {
        self.metrics.rules_refused.fetch_add(1, Relaxed);
    }

    /// What `sketch stats` shows.
    pub fn stats(&self) -> Stats {
        metrics::stats(&self.engine, &self.metrics)
    }

    /// How often what happened.
    pub fn counts(&self) -> Counts {
        self.engine.counts()
    }

    /// What is known of each origin: in fast reads, and how often it differed from a quorum.
    pub fn standing(&self) -> Vec<(Standing, u64)> {
        self.engine.standing()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
