//! Connections, limits, and what a client asked for of a verified page.

use crate::config::Config;
use crate::engine::{Engine, Question};
use crate::upstream::Held;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tidings_base::KeyHash;
use tidings_sketch::group;
use tidings_sketch::http::{BadRequest, Page, VERIFIED, Wanted};
use tidings_sketch::sketcher::{How, Refusal};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

type Content = BoxBody<Bytes, Infallible>;
type Answer = Response<Content>;

/// What all connections share.
struct Door {
    engine: Arc<Engine>,
    config: Config,
    /// Bytes of answers that clients have not taken yet.
    room: Arc<Semaphore>,
}

/// After a failed accept (such as for want of descriptors) others get the time to go away.
const PAUSE: Duration = Duration::from_millis(50);

/// Takes connections until it is dropped.
pub(crate) async fn accept(listener: TcpListener, engine: Arc<Engine>, config: Config) {
    let seats = Arc::new(Semaphore::new(config.most_connections));
    let room = Arc::new(Semaphore::new(config.most_untaken));
    let door = Arc::new(Door { engine, config, room });
    loop {
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let connection = connection(stream, peer, Arc::clone(&door));
                tokio::spawn(async move {
                    connection.await;
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
    let slow = door.config.slow_client;
    // Latency, not correctness.
    let _ = stream.set_nodelay(true);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(slow);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Some(slow)).max_concurrent_streams(128);
    let service = service_fn(move |request| {
        let door = Arc::clone(&door);
        async move { Ok::<_, Infallible>(answer(request, peer.ip(), &door).await) }
    });
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%peer, %error, "a connection ended");
    }
}

async fn answer(request: Request<Incoming>, peer: IpAddr, door: &Door) -> Answer {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let answer = dealt_with(request, peer, door).await;
    let verified = answer.headers().get(VERIFIED).and_then(|value| value.to_str().ok()).unwrap_or("-");
    tracing::info!(target: "access", %peer, %method, path, status = answer.status().as_u16(), verified);
    answer
}

async fn dealt_with(request: Request<Incoming>, peer: IpAddr, door: &Door) -> Answer {
    let Door { engine, config, room } = door;
    let (parts, body) = request.into_parts();
    let too_long = body.size_hint().lower() > config.longest_body as u64;
    let collected = Limited::new(body, config.longest_body).collect();
    let body = match tokio::time::timeout(config.slow_client, collected).await {
        _ if too_long => return refusal(StatusCode::PAYLOAD_TOO_LARGE, "the request's body is too long"),
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(_)) => return refusal(StatusCode::PAYLOAD_TOO_LARGE, "the request's body is too long or broken off"),
        Err(_) => return refusal(StatusCode::REQUEST_TIMEOUT, "the request's body did not come in time"),
    };
    let admitted = match config.rules.admit(&engine.sketching, "http", &parts, body) {
        Ok(admitted) => admitted,
        Err(why) => return refusal(bad_request(why), &why.to_string()),
    };
    let client = match peer {
        IpAddr::V4(peer) => KeyHash::of(&peer.octets()).0,
        IpAddr::V6(peer) => KeyHash::of(&peer.octets()).0,
    };
    let question: Question = Arc::new((admitted.forwarded, admitted.key));
    match engine.ask(question, admitted.kind, client).await {
        Ok((page, how)) => page_as_wanted(&page, how, &admitted.wanted, room),
        Err(why) => refused(why),
    }
}

fn bad_request(why: BadRequest) -> StatusCode {
    match why {
        BadRequest::Method => StatusCode::METHOD_NOT_ALLOWED,
        BadRequest::Upgrade => StatusCode::NOT_IMPLEMENTED,
        BadRequest::Host | BadRequest::Length | BadRequest::Target => StatusCode::BAD_REQUEST,
    }
}

fn refused(why: Refusal) -> Answer {
    let status = match why {
        Refusal::Busy | Refusal::Moved => StatusCode::SERVICE_UNAVAILABLE,
        Refusal::TooManyReplicated => StatusCode::TOO_MANY_REQUESTS,
        Refusal::WritesRefused => StatusCode::METHOD_NOT_ALLOWED,
        Refusal::NoAnswer | Refusal::Group(group::Refusal::Unreachable | group::Refusal::Disagreement) => {
            StatusCode::BAD_GATEWAY
        }
    };
    let mut answer = refusal(status, &why.to_string());
    if why == Refusal::WritesRefused {
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    answer
}

fn refusal(status: StatusCode, why: &str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(format!("{why}\n"))).boxed());
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

/// Rule D: the page was verified whole; now conditions, ranges and HEAD.
fn page_as_wanted(page: &Page<Held>, how: How, wanted: &Wanted, room: &Arc<Semaphore>) -> Answer {
    let reply = wanted.of(page);
    // Bodies are shorter than memory is large, so these fit.
    let (from, to) = (reply.content.start as usize, reply.content.end as usize);
    let content = if reply.send { page.body.slice(from..to) } else { Bytes::new() };
    let whole = reply.send && to - from == page.body.len();
    let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
    let Ok(taken) = Arc::clone(room).try_acquire_many_owned(length) else {
        return refused(Refusal::Busy);
    };
    let mut headers: HeaderMap = page.fields.iter().cloned().collect();
    if page.status == StatusCode::OK {
        insert(&mut headers, header::ETAG, &page.etag());
        insert(&mut headers, header::ACCEPT_RANGES, "bytes");
    }
    if let Some(range) = &reply.content_range {
        insert(&mut headers, header::CONTENT_RANGE, range);
    }
    if has_length(reply.status) {
        insert(&mut headers, header::CONTENT_LENGTH, &(to - from).to_string());
    }
    insert(&mut headers, header::VIA, "1.1 tidings");
    let verified = match how {
        How::Fast => "fast",
        How::Agreed => "agreed",
        How::Unverified => "no",
    };
    insert(&mut headers, VERIFIED, verified);
    let mut answer = Response::new(
        Untaken { content: body(content, page, whole, &mut headers), rest: Bytes::new(), _taken: taken }.boxed(),
    );
    *answer.status_mut() = reply.status;
    *answer.headers_mut() = headers;
    answer
}

/// The content, and behind a whole page its trailers, which need a coding without a length.
fn body(content: Bytes, page: &Page<Held>, whole: bool, headers: &mut HeaderMap) -> Content {
    if !whole || page.trailers.is_empty() {
        return Full::new(content).boxed();
    }
    headers.remove(header::CONTENT_LENGTH);
    for (name, _) in &page.trailers {
        headers.append(header::TRAILER, HeaderValue::from_name(name.clone()));
    }
    let trailers: HeaderMap = page.trailers.iter().cloned().collect();
    Full::new(content).with_trailers(async move { Some(Ok(trailers)) }).boxed()
}

/// Of so many bytes the connection takes an answer.
const PIECE: usize = 64 << 10;

/// An answer on its way: its bytes are counted until the client has them, or is gone. It goes in pieces, since whatever is
/// given to a connection is as good as gone to us.
struct Untaken {
    content: Content,
    /// What the content has given and the connection has not taken.
    rest: Bytes,
    _taken: OwnedSemaphorePermit,
}

impl Body for Untaken {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            match std::task::ready!(Pin::new(&mut self.content).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                None => return Poll::Ready(None),
            }
        }
        let piece = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.content.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, mut hint) = (self.rest.len() as u64, self.content.size_hint());
        if let Some(most) = hint.upper() {
            hint.set_upper(most + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}

fn has_length(status: StatusCode) -> bool {
    !matches!(status, StatusCode::NOT_MODIFIED | StatusCode::NO_CONTENT) && !status.is_informational()
}

/// What we write ourselves is always a proper value.
fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
