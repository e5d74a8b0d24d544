//! Connections: how many there are, who may hold one for how long, and what is spoken on them.
//!
//! Whoever sends slowly holds a place among the connections and nothing else. A connection on which no request is under way for as long
//! as a head may take is ended, in whatever it stands: before the first byte, in a head, between two requests, by HTTP/1.1 or HTTP/2.
//! An answer of which its client takes nothing for as long is let go, and so is the connection that it should leave by.

use crate::serve::{Content, Door, answer};
use crate::threads::Threads;
use bytes::Bytes;
use http::Response;
use hyper::body::{Body, Frame, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// After a failed accept (such as for want of descriptors) others get the time to go away.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest head of a request by HTTP/1.1, and what is read ahead on a connection; by HTTP/2 hyper takes 16 KiB. Servers commonly take
/// 8 to 32 KiB. Each of the connections may hold as much while its head comes.
const MOST_HEAD_BYTES: usize = 128 << 10;
/// Requests of one connection of HTTP/2 at a time.
const MOST_STREAMS: u32 = 128;

/// Takes connections until it is dropped; each is served on one of the threads.
pub(crate) async fn accept(listener: TcpListener, door: Arc<Door>, threads: Threads) {
    let seats = Arc::new(Semaphore::new(door.config.most_connections));
    loop {
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let door = Arc::clone(&door);
                threads.run(Box::pin(async move {
                    door.metrics.connections.fetch_add(1, Relaxed);
                    match moved(stream) {
                        Ok(stream) => connection(stream, peer, Arc::clone(&door)).await,
                        Err(error) => tracing::warn!(%error, "cannot serve a connection"),
                    }
                    door.metrics.connections.fetch_sub(1, Relaxed);
                    drop(seat);
                }));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// A connection that was accepted on another thread.
fn moved(stream: TcpStream) -> io::Result<TcpStream> {
    TcpStream::from_std(stream.into_std()?)
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
    builder.http1().timer(TokioTimer::new()).header_read_timeout(slow).max_buf_size(MOST_HEAD_BYTES);
    let http2 = &mut builder.http2();
    http2.timer(TokioTimer::new()).keep_alive_interval(Some(slow)).max_concurrent_streams(MOST_STREAMS);
    let resting = Arc::clone(&rest);
    let service = service_fn(move |request| {
        let (door, under_way) = (Arc::clone(&door), UnderWay::begin(&resting));
        async move {
            let answer: Response<Content> = answer(request, peer.ip(), &door).await;
            Ok::<_, Infallible>(answer.map(|content| under_way.leaves(content)))
        }
    });
    let mut speaking = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = speaking.as_mut() => Some(ended),
        () = rest.of(slow, true) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            // Whoever is well hears that it is over; whoever is in the middle of a head for ever, or takes no answer, is cut off.
            speaking.as_mut().graceful_shutdown();
            rest.begin_again();
            tokio::select! {
                ended = speaking => ended,
                () = rest.of(slow, false) => Ok(()),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection ended");
    }
}

/// What goes on on a connection.
#[derive(Default)]
struct Rest(Mutex<Traffic>);

struct Traffic {
    /// How many requests are under way.
    under_way: usize,
    /// Since when none is that its client cares for.
    since: Instant,
    last: u64,
    /// Answers that leave, as long as their clients take them.
    leaving: BTreeMap<u64, Arc<Parcel>>,
    /// Requests under way whose clients took nothing any more.
    given_up: BTreeSet<u64>,
}

impl Default for Traffic {
    fn default() -> Traffic {
        Traffic { under_way: 0, since: Instant::now(), last: 0, leaving: BTreeMap::new(), given_up: BTreeSet::new() }
    }
}

impl Traffic {
    /// Gives up answers of which nothing was taken for so long; how long until it is worth while to look again.
    fn give_up(&mut self, long: Duration) -> Duration {
        let (mut left, mut over) = (long, Vec::new());
        for (number, parcel) in &self.leaving {
            match long.saturating_sub(parcel.0.lock().taken.elapsed()) {
                Duration::ZERO => over.push(*number),
                rest => left = left.min(rest),
            }
        }
        for number in over {
            if let Some(parcel) = self.leaving.remove(&number) {
                parcel.give_up();
                self.given_up.insert(number);
                self.since = Instant::now();
            }
        }
        left
    }
}

impl Rest {
    fn begin_again(&self) {
        self.0.lock().since = Instant::now();
    }

    /// Waits until nothing has been under way for so long, but for answers that nobody takes; or, if that is to be told at once, until
    /// one is given up that nobody took for so long.
    async fn of(&self, long: Duration, told_at_once: bool) {
        loop {
            let left = {
                let mut traffic = self.0.lock();
                let left = traffic.give_up(long);
                match traffic.under_way - traffic.given_up.len() {
                    _ if told_at_once && !traffic.given_up.is_empty() => return,
                    0 => long.saturating_sub(traffic.since.elapsed()),
                    _ => left,
                }
            };
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }
}

/// One request, until its answer has left or the connection is gone.
struct UnderWay {
    rest: Arc<Rest>,
    number: u64,
}

impl UnderWay {
    fn begin(rest: &Arc<Rest>) -> UnderWay {
        let mut traffic = rest.0.lock();
        traffic.under_way += 1;
        traffic.last += 1;
        UnderWay { rest: Arc::clone(rest), number: traffic.last }
    }

    /// Its answer, which is held only as long as its client takes something of it now and then.
    fn leaves(self, content: Content) -> Leaving {
        let parcel = Parcel(Mutex::new(Packed { content: Some(content), taken: Instant::now(), waker: None }));
        let parcel = Arc::new(parcel);
        self.rest.0.lock().leaving.insert(self.number, Arc::clone(&parcel));
        Leaving { parcel, _under_way: self }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut traffic = self.rest.0.lock();
        traffic.leaving.remove(&self.number);
        traffic.given_up.remove(&self.number);
        traffic.under_way -= 1;
        traffic.since = Instant::now();
    }
}

/// An answer that leaves.
struct Leaving {
    parcel: Arc<Parcel>,
    _under_way: UnderWay,
}

/// What of an answer has not left. Nobody asks for it while its client takes nothing, so that it is ended from outside.
struct Parcel(Mutex<Packed>);

struct Packed {
    /// Gone if nobody took it.
    content: Option<Content>,
    /// When something of it was asked for.
    taken: Instant,
    /// Who waits for the next of it.
    waker: Option<Waker>,
}

impl Parcel {
    /// Lets go of what it holds: memory, a file, a connection of an origin.
    fn give_up(&self) {
        let (content, waker) = {
            let mut packed = self.0.lock();
            (packed.content.take(), packed.waker.take())
        };
        drop(content);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Body for Leaving {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let mut packed = self.parcel.0.lock();
        packed.taken = Instant::now();
        let Some(content) = &mut packed.content else {
            return Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::TimedOut))));
        };
        let polled = Pin::new(content).poll_frame(context);
        packed.waker = polled.is_pending().then(|| context.waker().clone());
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.parcel.0.lock().content.as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.parcel.0.lock().content.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}
