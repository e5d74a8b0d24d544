//! Requests, limits, and what a client asked for of a verified page.

use crate::config::Config;
use crate::engine::{Engine, Served};
use crate::held::{Held, Reading};
use crate::metrics::Metrics;
use crate::multipart::Multipart;
use crate::ordered;
use crate::sites::Sites;
use crate::sketching_core::Core;
use crate::survey::{Live, Seen};
use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version, request};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use rustls::ServerConfig;
use std::io::{self, Write};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tidings_base::KeyHash;
use tidings_sketch::http::{
    Admitted, BadRequest, Forwarded, Page, Reply, Rules, SESSION_COOKIE, VERIFIED, Wanted, check, is_compressible,
};
use tidings_sketch::session;
use tidings_sketch::sketcher::{How, Kind, Refusal, Writes};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;

pub(crate) type Content = BoxBody<Bytes, io::Error>;
type Answer = Response<Content>;

/// What all connections share.
pub(crate) struct Door {
    sites: Arc<Sites>,
    core: Option<Arc<Core>>,
    pub(crate) config: Config,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tls: Option<TlsAcceptor>,
    /// Bytes of answers that clients have not taken yet.
    room: Arc<Semaphore>,
    /// Bytes of requests' bodies.
    requested: Arc<Semaphore>,
    /// How static pages are, if that is noted.
    survey: Option<Arc<Live>>,
}

impl Door {
    pub(crate) fn new(
        sites: Arc<Sites>,
        core: Option<Arc<Core>>,
        metrics: Arc<Metrics>,
        survey: Option<Arc<Live>>,
        config: Config,
        tls: Option<Arc<ServerConfig>>,
    ) -> Door {
        let room = Arc::new(Semaphore::new(config.most_untaken));
        let requested = Arc::new(Semaphore::new(config.most_requested));
        Door { sites, core, config, metrics, tls: tls.map(TlsAcceptor::from), room, requested, survey }
    }
}

pub(crate) async fn answer(request: Request<Incoming>, peer: IpAddr, door: &Door) -> Answer {
    let (method, path, begin) = (request.method().clone(), request.uri().path().to_owned(), Instant::now());
    let host = request.uri().authority().map(|host| host.as_str().to_owned()).or_else(|| {
        let host = request.headers().get(header::HOST)?;
        host.to_str().map(str::to_owned).ok()
    });
    let (parts, body) = request.into_parts();
    let (site, answer) = match site(&parts, door) {
        Ok(engine) => (engine.site.name.as_str(), dealt_with(parts, body, engine, peer, door).await),
        Err(answer) => ("", *answer),
    };
    let answer = if method == Method::HEAD { without_content(answer) } else { answer };
    let verified = answer.headers().get(VERIFIED).and_then(|value| value.to_str().ok()).unwrap_or("-");
    door.metrics.answered(site, verified, answer.status(), begin.elapsed());
    tracing::info!(target: "access", %peer, %method, host, path, status = answer.status().as_u16(), verified);
    answer
}

/// RFC 9110 §9.3.2: an answer to HEAD has no content, and says how long that of GET is. By HTTP/1.1 hyper sees to it; by HTTP/2 content
/// would make the answer malformed.
fn without_content(answer: Answer) -> Answer {
    let (mut parts, content) = answer.into_parts();
    if let Some(length) = content.size_hint().exact().filter(|length| *length > 0)
        && !parts.headers.contains_key(header::CONTENT_LENGTH)
    {
        insert(&mut parts.headers, header::CONTENT_LENGTH, &length.to_string());
    }
    Response::from_parts(parts, full(Bytes::new()))
}

async fn dealt_with(parts: request::Parts, body: Incoming, engine: &Arc<Engine>, peer: IpAddr, door: &Door) -> Answer {
    let scheme = if door.tls.is_some() { "https" } else { "http" };
    let parts = engine.spelled(parts);
    let rules = engine.rules();
    let (admitted, body) = match admitted(&parts, body, engine, &rules, door).await {
        Ok(admitted) => admitted,
        Err(answer) => return answer,
    };
    let question = match engine.question(admitted.forwarded, admitted.key, rules, body) {
        Ok(question) => question,
        Err(unfit) => {
            let mut answer = refusal(unfit.status, unfit.why);
            ordered::allow(answer.headers_mut(), unfit.allow);
            return answer;
        }
    };
    let (kind, client) = (admitted.kind, client(peer));
    let end = match &door.core {
        None => engine.ask(Arc::clone(&question), kind, client).await,
        Some(core) => core.ask(engine, Arc::clone(&question), kind, client).await,
    };
    match end {
        Ok(Served { page, how, sigma }) => {
            if let Some(survey) = door.survey.as_ref().filter(|_| parts.method == Method::GET) {
                note(survey, &question.forwarded, &parts.headers, &page);
            }
            let mut answer = page_as_wanted(&page, how, &admitted.wanted, &door.room).await;
            if let Some(sigma) = sigma.filter(|_| engine.site.read_your_writes && kind == Kind::Write) {
                remind(answer.headers_mut(), &session::seal(&engine.sketching, sigma), scheme);
            }
            answer
        }
        Err(why) => refused(why, kind == Kind::Write),
    }
}

/// Who a client is to the limits: by an address of IPv4, or the network of one of IPv6, of which whoever has one has 2⁶⁴.
fn client(peer: IpAddr) -> u64 {
    match peer.to_canonical() {
        IpAddr::V4(peer) => KeyHash::of(&peer.octets()).0,
        IpAddr::V6(peer) => KeyHash::of(&peer.octets()[..8]).0,
    }
}

/// The site that a request is for, if it may be asked.
fn site<'a>(parts: &request::Parts, door: &'a Door) -> Result<&'a Arc<Engine>, Box<Answer>> {
    let host = check(parts).map_err(|why| Box::new(bad_request(parts, why)))?;
    let nobodys = || Box::new(refusal(StatusCode::MISDIRECTED_REQUEST, "no site here has this host"));
    door.sites.of_host(&host).ok_or_else(nobodys)
}

fn bad_request(parts: &request::Parts, why: BadRequest) -> Answer {
    let mut answer = refusal(status(why), &why.to_string());
    // Where servers may differ about where a request ends, nothing behind it is taken for the next one.
    if parts.version < Version::HTTP_2 {
        insert(answer.headers_mut(), header::CONNECTION, "close");
    }
    answer
}

/// A request with its body, if it may be asked, and the room that the body takes. Its head is looked at before anything of a body is
/// waited for, and only what will be forwarded is held.
async fn admitted(
    parts: &request::Parts,
    body: Incoming,
    engine: &Engine,
    rules: &Rules,
    door: &Door,
) -> Result<(Admitted, Option<OwnedSemaphorePermit>), Answer> {
    let bad = |why: BadRequest| bad_request(parts, why);
    let read = parts.method == Method::GET || parts.method == Method::HEAD;
    let (body, held) = if body.is_end_stream() {
        (Bytes::new(), None)
    } else if read {
        if some(body, door).await.map_err(NotTaken::told)? {
            return Err(bad(BadRequest::Body));
        }
        (Bytes::new(), None)
    } else if engine.site.writes == Writes::Refused {
        // The machine refuses it, whatever it says.
        (Bytes::new(), None)
    } else {
        let (body, held) = collected(body, engine.site.longest_request, door).await.map_err(NotTaken::told)?;
        (body, Some(held))
    };
    let scheme = if door.tls.is_some() { "https" } else { "http" };
    Ok((rules.admit(&engine.sketching, scheme, parts, body).map_err(bad)?, held))
}

/// Why a request's body is not taken.
#[derive(Clone, Copy, Debug)]
enum NotTaken {
    TooLong,
    /// Others' bodies take all the room.
    NoRoom,
    Malformed,
    Late,
}

impl NotTaken {
    fn told(self) -> Answer {
        let (status, why) = match self {
            NotTaken::TooLong => (StatusCode::PAYLOAD_TOO_LARGE, "the request's body is too long"),
            NotTaken::NoRoom => {
                (StatusCode::SERVICE_UNAVAILABLE, "too many requests with bodies are under way; try again later")
            }
            NotTaken::Malformed => (StatusCode::BAD_REQUEST, "the request's body is malformed or broken off"),
            NotTaken::Late => (StatusCode::REQUEST_TIMEOUT, "the request's body did not come in time"),
        };
        refusal(status, why)
    }
}

/// Whether a read has a body, which none has here: by a coding that tells no length that is known at its end.
async fn some(body: Incoming, door: &Door) -> Result<bool, NotTaken> {
    if body.size_hint().lower() > 0 {
        return Ok(true);
    }
    match tokio::time::timeout(door.config.slow_client, Limited::new(body, 0).collect()).await {
        Ok(Ok(_)) => Ok(false),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Ok(true),
        Ok(Err(_)) => Err(NotTaken::Malformed),
        Err(_) => Err(NotTaken::Late),
    }
}

/// A request's body, whole. One that says that it is too long is not waited for. Room is taken as bytes come, so that whoever only
/// announces them takes none.
async fn collected(mut body: Incoming, longest: usize, door: &Door) -> Result<(Bytes, OwnedSemaphorePermit), NotTaken> {
    if body.size_hint().lower() > longest as u64 {
        return Err(NotTaken::TooLong);
    }
    let room = |bytes: usize| {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Arc::clone(&door.requested).try_acquire_many_owned(bytes).map_err(|_| NotTaken::NoRoom)
    };
    let collecting = async {
        let (mut collected, mut held) = (BytesMut::new(), room(0)?);
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| NotTaken::Malformed)?.into_data() else { continue };
            if collected.len() + data.len() > longest {
                return Err(NotTaken::TooLong);
            }
            held.merge(room(data.len())?);
            collected.extend_from_slice(&data);
        }
        Ok((collected.freeze(), held))
    };
    tokio::time::timeout(door.config.slow_client, collecting).await.unwrap_or(Err(NotTaken::Late))
}

/// Rule K: the client is given the place of its write, and brings it with its reads.
fn remind(headers: &mut HeaderMap, token: &str, scheme: &str) {
    let secure = if scheme == "https" { "; Secure" } else { "" };
    let cookie = format!("{SESSION_COOKIE}={token}; Path=/; HttpOnly; SameSite=Lax{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        headers.append(header::SET_COOKIE, cookie);
    }
}

/// For whoever wants to know how static these pages are.
fn note(survey: &Live, asked: &Forwarded, headers: &HeaderMap, page: &Page<Held>) {
    let body = match &page.body {
        _ if page.status != StatusCode::OK => return,
        Held::Passing(_) => return survey.passed_by(),
        Held::Memory(body) => Some(body.bytes.clone()),
        Held::Disk(_) => None,
    };
    let Forwarded { scheme, authority, target, .. } = asked;
    survey.see(Seen { scheme, authority, target, headers, hash: page.hash, body });
}

fn status(why: BadRequest) -> StatusCode {
    match why {
        BadRequest::Method => StatusCode::METHOD_NOT_ALLOWED,
        BadRequest::Upgrade => StatusCode::NOT_IMPLEMENTED,
        BadRequest::Host | BadRequest::Length | BadRequest::Target | BadRequest::Body => StatusCode::BAD_REQUEST,
    }
}

fn refused(why: Refusal, write: bool) -> Answer {
    let status = match why {
        Refusal::Busy | Refusal::Moved => StatusCode::SERVICE_UNAVAILABLE,
        Refusal::TooManyReplicated => StatusCode::TOO_MANY_REQUESTS,
        Refusal::WritesRefused => StatusCode::METHOD_NOT_ALLOWED,
        Refusal::NoAnswer | Refusal::Group(_) => StatusCode::BAD_GATEWAY,
    };
    let mut told = match why {
        Refusal::Moved => "nobody remembers this page at the moment; try again".to_owned(),
        why => why.to_string(),
    };
    if write && matches!(why, Refusal::Group(_)) {
        told.push_str("; it may have been executed all the same");
    }
    let mut answer = refusal(status, &told);
    if why == Refusal::WritesRefused {
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    answer
}

fn refusal(status: StatusCode, why: &str) -> Answer {
    let mut answer = Response::new(full(Bytes::from(format!("{why}\n"))));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

/// Rule D: the page was verified whole; now conditions, ranges, HEAD and compression.
async fn page_as_wanted(page: &Page<Held>, how: How, wanted: &Wanted, room: &Arc<Semaphore>) -> Answer {
    let reply = wanted.of(page);
    let (part, length) = (reply.content.clone(), reply.content.end - reply.content.start);
    let whole = reply.send && length == page.length;
    let mut headers: HeaderMap = page.fields.iter().cloned().collect();
    let content = match &page.body {
        Held::Passing(passing) => {
            // Conditions and ranges are of a page that was seen.
            let passing = passing.lock().take().filter(|_| !wanted.headers_only);
            let content = passing.map_or_else(|| full(Bytes::new()), BodyExt::boxed);
            return finished(page.status, headers, content, How::Unverified);
        }
        // The page is there, and the answer is no page.
        _ if page.status == StatusCode::OK && reply.status.is_client_error() => return unmet(&reply, how),
        _ if !reply.send => Ok((full(Bytes::new()), 0)),
        _ if !reply.parts.is_empty() => match Multipart::new(page, &reply.parts) {
            Some(parts) => {
                insert(&mut headers, header::CONTENT_TYPE, &parts.content_type());
                insert(&mut headers, header::CONTENT_LENGTH, &parts.length().to_string());
                let in_memory = if matches!(page.body, Held::Memory(_)) { parts.length() as usize } else { 2 * PIECE };
                Ok((parts.boxed(), in_memory))
            }
            None => Err(io::Error::other("its body has passed")),
        },
        // Bodies in memory are shorter than memory is large, so these fit.
        Held::Memory(body) => match reply.gzip {
            true => gzip(body.bytes.clone()).await.map(|small| (full(small.clone()), small.len())),
            false => {
                let content = body.bytes.slice(part.start as usize..part.end as usize);
                Ok((trailed(full(content), page, whole), length as usize))
            }
        },
        Held::Disk(spool) if reply.gzip => match Arc::clone(spool).whole(page.length).await {
            Ok(body) => gzip(body).await.map(|small| (full(small.clone()), small.len())),
            Err(error) => Err(error),
        },
        Held::Disk(spool) => {
            let content = Reading::new(Arc::clone(spool), part).boxed();
            Ok((trailed(content, page, whole), 2 * PIECE))
        }
    };
    let Ok((content, in_memory)) = content else { return refused(Refusal::Busy, false) };
    let Ok(taken) = Arc::clone(room).try_acquire_many_owned(u32::try_from(in_memory).unwrap_or(u32::MAX)) else {
        return refused(Refusal::Busy, false);
    };
    describe(&mut headers, page, &reply);
    let trailed = whole && !reply.gzip && !page.trailers.is_empty();
    if reply.gzip {
        insert(&mut headers, header::CONTENT_ENCODING, "gzip");
        if reply.send {
            insert(&mut headers, header::CONTENT_LENGTH, &in_memory.to_string());
        }
    } else if trailed {
        for (name, _) in &page.trailers {
            headers.append(header::TRAILER, HeaderValue::from_name(name.clone()));
        }
    } else if has_length(reply.status) && reply.parts.is_empty() {
        insert(&mut headers, header::CONTENT_LENGTH, &length.to_string());
    }
    finished(reply.status, headers, Untaken::new(content, trailed, taken).boxed(), how)
}

/// What is said of a page beside what its origin said.
fn describe(headers: &mut HeaderMap, page: &Page<Held>, reply: &Reply) {
    if page.status == StatusCode::OK {
        insert(headers, header::ETAG, &reply.etag);
    }
    match reply.status {
        StatusCode::OK => insert(headers, header::ACCEPT_RANGES, "bytes"),
        // RFC 9110 §15.4.5: whoever asked has the page, and with it what describes it.
        StatusCode::NOT_MODIFIED => {
            for name in [header::CONTENT_TYPE, header::CONTENT_ENCODING, header::CONTENT_LANGUAGE] {
                headers.remove(name);
            }
        }
        _ => {}
    }
    if is_compressible(page) && !varies(headers) {
        headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    if let Some(range) = &reply.content_range {
        insert(headers, header::CONTENT_RANGE, range);
    }
}

/// Whether it is said already that a page comes in several codings.
fn varies(headers: &HeaderMap) -> bool {
    let said = |name: &str| name.trim() == "*" || name.trim().eq_ignore_ascii_case("accept-encoding");
    let mut values = headers.get_all(header::VARY).iter().filter_map(|value| value.to_str().ok());
    values.any(|value| value.split(',').any(said))
}

/// A condition that the page does not meet, or a range that it does not have: nothing of it is sent.
fn unmet(reply: &Reply, how: How) -> Answer {
    let why = match reply.status {
        StatusCode::PRECONDITION_FAILED => "the page is not as the request demands",
        _ => "the page has no such range",
    };
    let (parts, content) = refusal(reply.status, why).into_parts();
    let mut headers = parts.headers;
    if let Some(range) = &reply.content_range {
        insert(&mut headers, header::CONTENT_RANGE, range);
    }
    finished(reply.status, headers, content, how)
}

fn finished(status: StatusCode, mut headers: HeaderMap, content: Content, how: How) -> Answer {
    insert(&mut headers, header::VIA, "1.1 tidings");
    let verified = match how {
        How::Fast => "fast",
        How::Agreed => "agreed",
        How::Unverified => "no",
    };
    insert(&mut headers, VERIFIED, verified);
    let mut answer = Response::new(content);
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    answer
}

pub(crate) fn full(content: Bytes) -> Content {
    Full::new(content).map_err(|never| match never {}).boxed()
}

/// The content, and behind a whole page its trailers.
pub(crate) fn trailed(content: Content, page: &Page<Held>, whole: bool) -> Content {
    if !whole || page.trailers.is_empty() {
        return content;
    }
    let trailers: HeaderMap = page.trailers.iter().cloned().collect();
    content.with_trailers(async move { Some(Ok(trailers)) }).boxed()
}

/// Apart from the threads that serve: it takes milliseconds.
async fn gzip(content: Bytes) -> io::Result<Bytes> {
    let coded = tokio::task::spawn_blocking(move || {
        let mut coder = GzEncoder::new(Vec::with_capacity(content.len() / 2), Compression::fast());
        coder.write_all(&content)?;
        coder.finish()
    });
    coded.await.map_err(io::Error::other)?.map(Bytes::from)
}

/// Of so many bytes the connection takes an answer.
pub(crate) const PIECE: usize = 64 << 10;

/// An answer on its way: its bytes are counted until the client has them, or is gone. It goes in pieces, since whatever is
/// given to a connection is as good as gone to us.
pub(crate) struct Untaken {
    content: Content,
    /// What the content has given and the connection has not taken.
    rest: Bytes,
    /// Trailers follow, and they need a coding that tells no length.
    trailed: bool,
    _taken: OwnedSemaphorePermit,
}

impl Untaken {
    pub(crate) fn new(content: Content, trailed: bool, taken: OwnedSemaphorePermit) -> Untaken {
        Untaken { content, rest: Bytes::new(), trailed, _taken: taken }
    }
}

impl Body for Untaken {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.rest.is_empty() {
            match std::task::ready!(Pin::new(&mut self.content).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
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
        if self.trailed {
            return SizeHint::new();
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_one_client() {
        let of = |text: &str| client(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_ne!(of("::ffff:192.0.2.1"), of("::ffff:192.0.2.2"));
    }
}
