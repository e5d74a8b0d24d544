//! The one port: accept, count, decrypt, and hand requests of any kind to one router.
//!
//! ```text
//!   accept ─▶ Admission ─▶ TLS ─▶ which HTTP? ─▶ HTTP/1.1, HTTP/2, upgrades ─▶ rate ─▶ router
//!             too many:    too     nothing asked   headers too slow, too many, a        too many: 429
//!             closed       slow    in time         reader that takes nothing: closed
//! ```
//! Everything up to the router happens before anybody has said who they are, and is bounded in memory and time.

mod admission;
mod neighbour;
mod stream;
pub(crate) mod tls;

pub use admission::{Admission, Marker, Refused, Slot};
pub use neighbour::tidings_at;
pub use stream::{Patience, Stream};

use crate::clock::Clock;
use crate::config::{Config, Limits, Timings};
use crate::metrics;
use crate::principal::{Peer, counted_as};
use crate::rate::Rate;
use crate::rest;
use crate::shutdown::Shutdown;
use axum::Router;
use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::Service;

/// HTTP/2 streams at once on one connection: REST calls; frames need one stream.
const MAX_STREAMS: u32 = 256;

/// HTTP/2 flow-control windows. Memory is used only for what is sent and not read; one stream carrying a connection's
/// frames must not stand still at 64 KiB.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 2 << 20;

/// How long to rest after an accept that failed for want of descriptors or memory: others must close first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long those that were told that there will be no answer may take to hear it.
const LAST_WORD: Duration = Duration::from_secs(1);

/// How long to look whether whoever has our address is another Tidings.
const PROBE: Duration = Duration::from_millis(300);

/// A bound port, not yet serving.
pub struct Port {
    listener: TcpListener,
    address: SocketAddr,
    door: Arc<Door>,
}

/// What every connection needs.
struct Door {
    tls: Option<TlsAcceptor>,
    admission: Arc<Admission>,
    rate: Rate,
    clock: Arc<dyn Clock>,
    http: auto::Builder<TokioExecutor>,
    timings: Timings,
    /// Whether calls in flight are not waited for any more.
    over: watch::Sender<bool>,
}

impl Port {
    /// Reads the certificates and binds the address.
    pub async fn bind(config: &Config, clock: Arc<dyn Clock>) -> Result<Port, Error> {
        let tls = config.tls.as_ref().map(|tls| tls::server(tls, clock.now().wall)).transpose()?;
        let listener = match TcpListener::bind(config.listen).await {
            Ok(listener) => listener,
            Err(e) => return Err(cannot_listen(config.listen, &e).await),
        };
        let address = listener.local_addr().map_err(|e| cannot_use(config.listen, &e))?;
        let door = Arc::new(Door {
            tls: tls.map(TlsAcceptor::from),
            admission: Admission::new(&config.limits),
            rate: Rate::new(config.limits.requests_per_second, Duration::from_secs(1)),
            clock,
            http: http(&config.limits, &config.timings),
            timings: config.timings.clone(),
            over: watch::Sender::new(false),
        });
        Ok(Port { listener, address, door })
    }

    /// The address it is bound to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The count of open connections.
    pub fn admission(&self) -> Arc<Admission> {
        self.door.admission.clone()
    }

    /// Serves until the shutdown, then takes nothing new and lets what is in flight end; what does not end in time is told
    /// so. Gives back what is still open: the connections of other nodes, and of whoever does not listen.
    pub async fn serve(self, router: Router, mut shutdown: Shutdown) -> JoinSet<()> {
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = shutdown.begun() => break,
                Some(_) = connections.join_next() => continue,
            };
            match accepted {
                Ok((socket, address)) => {
                    if let Some(connection) = self.door.open(socket, address, &router, &shutdown) {
                        connections.spawn(connection);
                    }
                }
                Err(e) => {
                    tracing::warn!(error = %e, "cannot accept connections for the moment");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(self.listener);
        // Connections that became WebSockets are tasks of their carrier; their sockets still count as open.
        let drained = timeout(self.door.timings.drain.into(), self.door.admission.drained()).await;
        if drained.is_err() {
            tracing::warn!(open = self.door.admission.open(), "closing connections that did not end in time");
            self.door.over.send_replace(true);
            let _ = timeout(LAST_WORD, self.door.admission.drained()).await;
        }
        connections
    }
}

impl Door {
    /// The future that serves one connection; `None` if it was turned away.
    fn open(
        self: &Arc<Self>,
        socket: TcpStream,
        address: SocketAddr,
        router: &Router,
        shutdown: &Shutdown,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        let slot = match self.admission.admit(address.ip()) {
            Ok(slot) => slot,
            Err(refused) => {
                metrics::connection_refused(refused.name());
                tracing::debug!(%address, reason = refused.name(), "turned a connection away");
                if self.tls.is_none() {
                    // If its buffer takes it, the caller learns why; nobody waits for that.
                    let _ = socket.try_write(rest::TOO_MANY_CONNECTIONS.as_bytes());
                }
                return None;
            }
        };
        // A handshake is the most that a stranger can make us compute, so it counts like a request.
        if self.tls.is_some() && !self.rate.allow(counted_as(address.ip()), self.clock.now().mono) {
            metrics::connection_refused("rate");
            return None;
        }
        // Frames are small and answers are awaited: never wait for more to send.
        let _ = socket.set_nodelay(true);
        let (door, router, shutdown) = (self.clone(), router.clone(), shutdown.clone());
        Some(async move {
            let marker = slot.marker();
            if let Some((stream, peer)) = door.secure(socket, address, slot).await {
                door.converse(stream, (peer, marker), router, shutdown).await;
            }
        })
    }

    async fn secure(&self, socket: TcpStream, address: SocketAddr, slot: Slot) -> Option<(Stream, Peer)> {
        let patience = Patience { opening: self.timings.header.into(), stall: self.timings.stall.into() };
        let Some(acceptor) = &self.tls else {
            return Some((Stream::plain(socket, slot, patience), Peer { address, tls: false, node: None }));
        };
        match timeout(self.timings.handshake.into(), acceptor.accept(socket)).await {
            Ok(Ok(socket)) => {
                let node = tls::node_of(socket.get_ref().1.peer_certificates());
                Some((Stream::tls(socket, slot, patience), Peer { address, tls: true, node }))
            }
            Ok(Err(e)) => {
                metrics::handshake_failed();
                tracing::debug!(%address, error = %e, "TLS handshake failed");
                None
            }
            Err(_) => {
                metrics::handshake_failed();
                tracing::debug!(%address, "TLS handshake took too long");
                None
            }
        }
    }

    async fn converse(
        self: Arc<Self>,
        stream: Stream,
        (peer, marker): (Peer, Marker),
        router: Router,
        mut shutdown: Shutdown,
    ) {
        let peer = Arc::new(peer);
        let door = self.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            let allowed = door.rate.allow(peer.counted_as(), door.clock.now().mono);
            request.extensions_mut().insert(peer.clone());
            request.extensions_mut().insert(marker.clone());
            let answer = allowed.then(|| router.clone().call(request));
            let mut over = door.over.subscribe();
            async move {
                let Some(answer) = answer else {
                    metrics::rate_limited();
                    return Ok::<Response<Body>, Infallible>(rest::too_many_requests());
                };
                tokio::select! {
                    biased;
                    answer = answer => answer,
                    _ = over.wait_for(|over| *over) => Ok(rest::stopped_before_the_answer()),
                }
            }
        });
        let connection = self.http.serve_connection_with_upgrades(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = shutdown.begun() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(e) = ended {
            tracing::debug!(error = %e, "a connection ended badly");
        }
    }
}

/// hyper with everything bounded.
fn http(limits: &Limits, timings: &Timings) -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from(timings.header))
        .max_buf_size(limits.header_bytes)
        .keep_alive(true);
    let patience = timings.dead_after.0.saturating_sub(timings.ping_after.0);
    http.http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from(timings.ping_after))
        .keep_alive_timeout(patience)
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX));
    http
}

async fn cannot_listen(address: SocketAddr, e: &io::Error) -> Error {
    if e.kind() != io::ErrorKind::AddrInUse {
        return cannot_use(address, e);
    }
    let port = address.port();
    let (who, hint) = match tidings_at(address, PROBE).await {
        Some(url) => (
            "another Tidings",
            format!("`tidings status --server {url}` shows it; use it, stop it, or pass another --listen."),
        ),
        None => (
            "another program",
            format!("`ss -ltnp 'sport = :{port}'` tells which one; stop it, or pass another --listen."),
        ),
    };
    Error::new("node.port_in_use", Class::Refused, format!("{address} is in use by {who}")).hint(hint)
}

fn cannot_use(address: SocketAddr, e: &io::Error) -> Error {
    let hint = match e.kind() {
        io::ErrorKind::PermissionDenied => "Ports below 1024 need a privilege; use a higher one.",
        io::ErrorKind::AddrNotAvailable => "No interface of this machine has that address; `ip address` lists them.",
        _ => "",
    };
    Error::new("node.cannot_listen", Class::Failed, format!("cannot listen on {address}: {e}")).hint(hint)
}
