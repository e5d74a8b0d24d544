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
//! - `upstream`: a pool of connections to the origins, and answers as the machines take them.
//!
//! What it promises: a verified answer was given by a quorum of origins, so by an honest one if at most f are wrong (rule E).
//! What it deliberately does not do: promise delay-once (origins have no order), send a write to more than one origin, cache
//! bodies, or speak TLS yet.

pub mod config;
mod engine;
mod serve;
mod upstream;

pub use config::Config;

use engine::Engine;
use std::net::SocketAddr;
use std::sync::Arc;
use tidings_base::{Class, Error};
use tidings_sketch::sketcher::{Counts, Standing};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A proxy that serves until it is stopped or dropped.
pub struct Proxy {
    address: SocketAddr,
    engine: Arc<Engine>,
    tasks: [JoinHandle<()>; 2],
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
        let alarm = tokio::spawn(Arc::clone(&engine).keep_time());
        let door = tokio::spawn(serve::accept(listener, Arc::clone(&engine), config));
        Ok(Proxy { address, engine, tasks: [alarm, door] })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
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
