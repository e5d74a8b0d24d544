//! Connections: how many there are, who may hold one for how long, and what is spoken on them.
//!
//! Whoever sends slowly holds a place among the connections and nothing else. A connection on which no request is under way for as long
//! as a head may take is ended, in whatever it stands: before the first byte, in a head, between two requests, by HTTP/1.1 or HTTP/2.

use crate::serve::{Content, Door, answer};
use bytes::Bytes;
use http::Response;
use hyper::body::{Body, Frame, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// After a failed accept (such as for want of descriptors) others get the time to go away.
const PAUSE: Duration = Duration::from_millis(50);
/// Requests of one connection of HTTP/2 at a time.
const MOST_STREAMS: u32 = 128;

/// Takes connections until it is dropped.
pub(crate) async fn accept(listener: TcpListener, door: Arc<Door>) {
    let seats = Arc::new(Semaphore::new(door.config.most_connections));
    loop {
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let door = Arc::clone(&door);
                tokio::spawn(async move {
                    door.metrics.connections.fetch_add(1, Relaxed);
                    connection(stream, peer, Arc::clone(&door)).await;
                    door.metrics.connections.fetch_sub(1, Relaxed);
                    drop(seat);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, peer: SocketAddr, door: Arc<Door>) {
    // Latency, not correctness.
    let _ = stream.set_nodelay(true);
    let Some(tls) = &door.tls else { return speak(stream, peer, door).await };
    match tokio::time::timeout(door.config.slow_client, tls.accept(stream)).await {
        Ok(Ok(stream)) => speak(stream, peer, door).await,
        Ok(Err(_)) | Err(_) => {
            door.metrics.handshakes_failed.fetch_add(1, Relaxed);
            tracing::debug!(%peer, "a TLS handshake failed");
        }
    }
}

async fn speak(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, peer: SocketAddr, door: Arc<Door>) {
    let (slow, rest) = (door.config.slow_client, Arc::new(Rest::default()));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(slow);
    let http2 = &mut builder.http2();
    http2.timer(TokioTimer::new()).keep_alive_interval(Some(slow)).max_concurrent_streams(MOST_STREAMS);
    let resting = Arc::clone(&rest);
    let service = service_fn(move |request| {
        let (door, under_way) = (Arc::clone(&door), UnderWay::begin(&resting));
        async move {
            let answer: Response<Content> = answer(request, peer.ip(), &door).await;
            Ok::<_, Infallible>(answer.map(|content| Leaving { content, _under_way: under_way }))
        }
    });
    let mut speaking = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = speaking.as_mut() => Some(ended),
        () = rest.of(slow) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            // Whoever is well hears that it is over; whoever is in the middle of a head for ever is cut off.
            speaking.as_mut().graceful_shutdown();
            rest.begin_again();
            tokio::select! {
                ended = speaking => ended,
                () = rest.of(slow) => Ok(()),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection ended");
    }
}

/// How many requests of a connection are under way, and since when none is.
#[derive(Debug)]
struct Rest(Mutex<(usize, Instant)>);

impl Default for Rest {
    fn default() -> Rest {
        Rest(Mutex::new((0, Instant::now())))
    }
}

impl Rest {
    fn begin_again(&self) {
        self.0.lock().1 = Instant::now();
    }

    /// Waits until nothing has been under way for so long.
    async fn of(&self, long: Duration) {
        loop {
            let left = match *self.0.lock() {
                (0, since) => long.saturating_sub(since.elapsed()),
                _ => long,
            };
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }
}

/// One request, until its answer has left or the connection is gone.
struct UnderWay(Arc<Rest>);

impl UnderWay {
    fn begin(rest: &Arc<Rest>) -> UnderWay {
        rest.0.lock().0 += 1;
        UnderWay(Arc::clone(rest))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut rest = self.0.0.lock();
        *rest = (rest.0 - 1, Instant::now());
    }
}

/// An answer that leaves.
struct Leaving {
    content: Content,
    _under_way: UnderWay,
}

impl Body for Leaving {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Pin::new(&mut self.content).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.content.size_hint()
    }
}
