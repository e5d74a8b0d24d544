//! Where other proxies of the core are heard: a listener of its own, for nobody else.

use super::Core;
use super::carry::Entries;
use super::seal::{self, Asks, Carries, Nonce, Opened, same};
use crate::config::Config;
use crate::engine::{Asked, Engine, Served};
use crate::held::{Held, Reading};
use crate::serve::{Content, PIECE, Untaken, full, trailed};
use crate::sites::Sites;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Request, Response, StatusCode, request};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tidings_sketch::http::{CORE, Page};
use tidings_sketch::sketch::Sketch;
use tidings_sketch::sketcher::{How, Kind, Refusal};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

type Answer = Response<Content>;

/// Connections of other proxies at a time, beside those whose requests one site may have under way: each proxy has as many as it has
/// requests here, and a site whose servers are stuck leaves others theirs.
const MOST_CONNECTIONS: usize = 4_096;
/// The most headers, and bytes of them, of a message: more than any client's request has that the front door takes (100 by
/// HTTP/1.1, 16 KiB by HTTP/2 of which each counts for 32 bytes more), or any origin's page, with what proxies add.
pub(super) const MOST_HEADERS: usize = 1_024;
pub(super) const MOST_HEAD_BYTES: usize = 1 << 20;
/// After a failed accept others get the time to go away.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct Door {
    pub(crate) core: Arc<Core>,
    pub(crate) sites: Arc<Sites>,
    slow: Duration,
    /// Bytes of pages that other proxies have not taken yet.
    room: Arc<Semaphore>,
}

impl Door {
    pub(crate) fn new(core: Arc<Core>, sites: Arc<Sites>, config: &Config) -> Door {
        let room = Arc::new(Semaphore::new(config.most_untaken));
        Door { core, sites, slow: config.slow_client, room }
    }

    /// Answers until it is dropped.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        let under_way: usize = self.sites.all().iter().map(|engine| engine.site.most_requests).sum();
        let seats = Arc::new(Semaphore::new(MOST_CONNECTIONS + under_way));
        loop {
            let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let _ = stream.set_nodelay(true);
            let door = Arc::clone(&self);
            tokio::spawn(async move {
                let mut builder = http1::Builder::new();
                builder.timer(TokioTimer::new()).header_read_timeout(door.slow);
                builder.max_headers(MOST_HEADERS).max_buf_size(MOST_HEAD_BYTES);
                let service = service_fn(move |request| {
                    let door = Arc::clone(&door);
                    async move { Ok::<_, Infallible>(door.answer(request).await) }
                });
                // Whoever breaks off asks somebody else.
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                drop(seat);
            });
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let (parts, body) = request.into_parts();
        let opened = parts.headers.get(CORE).and_then(|value| value.to_str().ok()).and_then(seal::open);
        match opened {
            Some(Opened::Asks(asks, mac)) => {
                let Some(engine) = self.sites.of_group(&asks.site) else { return self.foreign() };
                // Only reads are passed on, and they have no body.
                match self.collected(body, 0).await {
                    Some(body) => self.asked(engine, &engine.spelled(parts), body, &asks, &mac).await,
                    None => self.foreign(),
                }
            }
            Some(Opened::Carries(carries, mac)) if self.may_carry(&carries, &mac) => {
                match self.collected(body, carries.length).await {
                    Some(entries) => self.brought(&entries, &carries),
                    None => self.foreign(),
                }
            }
            Some(Opened::Carries(..)) | None => self.foreign(),
        }
    }

    /// Entries are long: nobody else has them read.
    fn may_carry(&self, carries: &Carries, mac: &Sketch) -> bool {
        same(&self.core.seal.of_carry(carries), mac) && carries.length <= Entries::MOST_BYTES
    }

    async fn collected(&self, body: Incoming, longest: usize) -> Option<Bytes> {
        let collected = tokio::time::timeout(self.slow, Limited::new(body, longest).collect()).await;
        Some(collected.ok()?.ok()?.to_bytes())
    }

    /// Somebody else's request, or one of a site that is not here, or by other rules or for other origins: both make another s(q).
    fn foreign(&self) -> Answer {
        self.core.counts.foreign.fetch_add(1, Relaxed);
        let mut answer = Response::new(full(Bytes::from_static(b"only proxies of this core are answered here\n")));
        *answer.status_mut() = StatusCode::FORBIDDEN;
        answer
    }

    /// One hop at most: it is this proxy's or nobody's.
    async fn asked(
        &self,
        engine: &Arc<Engine>,
        parts: &request::Parts,
        body: Bytes,
        asks: &Asks,
        mac: &Sketch,
    ) -> Answer {
        let rules = engine.rules();
        let Ok(admitted) = rules.admit(&engine.sketching, asks.scheme, parts, body) else { return self.foreign() };
        let sealed = self.core.seal.of_ask(asks, &admitted.key, &admitted.forwarded.non_inputs);
        if !same(&sealed, mac) || admitted.kind == Kind::Write {
            return self.foreign();
        }
        self.core.counts.served.fetch_add(1, Relaxed);
        let Ok(question) = engine.question(admitted.forwarded, admitted.key, rules, None) else {
            return self.foreign();
        };
        let kind = Kind::Read { way: asks.way, after: asks.after };
        match engine.ask(Arc::clone(&question), kind, asks.client).await {
            Ok(Served { page, how, .. }) => match self.whole(&page) {
                Ok(content) => self.vouched(engine, asks, &question, &page, how, content),
                Err(why) => self.refused(&asks.nonce, why),
            },
            Err(why) => self.refused(&asks.nonce, why),
        }
    }

    /// All of a page. What passes by cannot be vouched for.
    fn whole(&self, page: &Page<Held>) -> Result<Content, Refusal> {
        let (content, in_memory) = match &page.body {
            Held::Memory(body) => (full(body.bytes.clone()), body.bytes.len()),
            Held::Disk(spool) => (Reading::new(Arc::clone(spool), 0..page.length).boxed(), 2 * PIECE),
            Held::Passing(_) => return Err(Refusal::Moved),
        };
        let bytes = u32::try_from(in_memory).unwrap_or(u32::MAX);
        let taken = Arc::clone(&self.room).try_acquire_many_owned(bytes).map_err(|_| Refusal::Busy)?;
        Ok(Untaken::new(trailed(content, page, true), !page.trailers.is_empty(), taken).boxed())
    }

    fn vouched(
        &self,
        engine: &Engine,
        asks: &Asks,
        question: &Asked,
        page: &Page<Held>,
        how: How,
        content: Content,
    ) -> Answer {
        let sketch = page.sketch(&engine.sketching, &question.key);
        let mut headers: HeaderMap = page.fields.iter().cloned().collect();
        for (name, _) in &page.trailers {
            headers.append(header::TRAILER, HeaderValue::from_name(name.clone()));
        }
        if let Ok(sealed) = HeaderValue::from_str(&self.core.seal.page(&asks.nonce, how, &sketch)) {
            headers.insert(CORE, sealed);
        }
        let mut answer = Response::new(content);
        *answer.status_mut() = page.status;
        *answer.headers_mut() = headers;
        answer
    }

    fn refused(&self, nonce: &Nonce, why: Refusal) -> Answer {
        self.said(StatusCode::SERVICE_UNAVAILABLE, &self.core.seal.refusal(nonce, why))
    }

    /// Entries of a range that may come: they wait until it does.
    fn brought(&self, entries: &[u8], carries: &Carries) -> Answer {
        if !same(&self.core.seal.of_entries(&carries.nonce, entries), &carries.entries) {
            return self.foreign();
        }
        // Of another group, or divided otherwise: the range comes all the same, without them.
        if let Some(entries) = Entries::from_bytes(entries) {
            self.core.books.arrived(carries.token, entries);
        }
        match self.core.owner.imported(carries.token, carries.incarnation) {
            Ok(()) => self.said(StatusCode::OK, &self.core.seal.taken(&carries.nonce)),
            Err(error) => {
                self.core.books.unwanted(carries.token);
                tracing::warn!(%error, "entries came that are not for this proxy");
                self.refused(&carries.nonce, Refusal::Moved)
            }
        }
    }

    fn said(&self, status: StatusCode, header: &str) -> Answer {
        let mut answer = Response::new(full(Bytes::new()));
        *answer.status_mut() = status;
        if let Ok(value) = HeaderValue::from_str(header) {
            answer.headers_mut().insert(CORE, value);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Core as CoreConfig, Secret};
    use std::net::SocketAddr;
    use tidings_client::placement::testing::TestPool;
    use tidings_sketch::sketcher::Ranges;

    #[tokio::test]
    async fn entries_that_are_refused_do_not_stay() {
        let (here, pool) = (SocketAddr::from(([127, 0, 0, 1], 1)), TestPool::start("sketches").await.unwrap());
        let config = Config::of(here, &["http://a".to_owned()]).unwrap();
        let mut of = CoreConfig::of(pool.line(), here, Secret::new(&[1; 32]).unwrap());
        of.owner = pool.options("proxy");
        let (core, _changes) = Core::join(&config, &of, here).unwrap();
        let ranges = Arc::clone(&core) as Arc<dyn Ranges>;
        let sites = Arc::new(Sites::start(&config, &ranges, Some(&of.secret)).unwrap());
        let door = Door::new(core, sites, &config);
        let (nonce, bytes) = ([1; 16], Vec::new());
        let bring = |token, incarnation| {
            let entries = door.core.seal.of_entries(&nonce, &bytes);
            door.brought(&bytes, &Carries { nonce, token, incarnation, length: bytes.len(), entries }).status()
        };
        let ours = door.core.owner.incarnation();
        assert_eq!((bring(1, ours + 1), door.core.books.waiting()), (StatusCode::SERVICE_UNAVAILABLE, 0));
        assert_eq!((bring(2, ours), door.core.books.waiting()), (StatusCode::OK, 1));
    }
}
