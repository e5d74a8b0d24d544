//! Metrics and statistics, told to this machine alone: the console's page at `/`, `/metrics`, `/stats`, `/survey`, `/survey.svg`,
//! `/healthz`.

use crate::console::{self, Console};
use crate::metrics::{self, Metrics};
use crate::sites::Sites;
use crate::sketching_core::Core;
use crate::survey::{LEAST_REQUESTS, Live, svg};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections at a time; whoever scrapes needs one, and so does whoever watches the console.
const MOST: usize = 32;
/// How long a request's head may take.
const SLOW: Duration = Duration::from_secs(10);
const WHAT: &str = "there are /, /metrics, /stats, /survey, /survey.svg and /healthz here, to GET\n";
const UNSURVEYED: &str = "this proxy does not note how static its pages are\n";
/// What the console's page may load and run.
const OWN_ALONE: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'";
const TOO_MANY: &str = "too many listen already\n";

type Answer = Response<BoxBody<Bytes, Infallible>>;

/// What is told of.
#[derive(Clone)]
pub(crate) struct Told {
    pub(crate) sites: Arc<Sites>,
    pub(crate) core: Option<Arc<Core>>,
    pub(crate) metrics: Arc<Metrics>,
    /// How static pages are, if that is noted.
    pub(crate) survey: Option<Arc<Live>>,
    pub(crate) console: Arc<Console>,
}

impl Told {
    fn proxy(&self) -> console::Proxy<'_> {
        let Told { sites, core, metrics, survey, .. } = self;
        console::Proxy { sites, core: core.as_deref(), metrics, survey: survey.as_deref() }
    }
}

/// Listens, on this machine alone: nobody is asked who he is.
pub(crate) async fn listen(at: SocketAddr) -> Result<TcpListener, Error> {
    if !at.ip().is_loopback() {
        let what = format!("{at} can be reached from elsewhere, and whoever asks there is not asked who he is");
        return Err(Error::new("sketch.admin_exposed", Class::Invalid, what)
            .hint("Use an address of this machine alone, such as 127.0.0.1:9090."));
    }
    TcpListener::bind(at).await.map_err(|error| {
        let what = format!("cannot listen on {at}: {error}");
        Error::new("sketch.cannot_listen", Class::Refused, what).hint("Choose another address with --admin.")
    })
}

/// Answers until it is dropped.
pub(crate) async fn serve(listener: TcpListener, told: Told) {
    let seats = Arc::new(Semaphore::new(MOST));
    loop {
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let told = told.clone();
        let service = service_fn(move |request| {
            let answer = answer(&request, &told);
            async move { Ok::<_, Infallible>(answer) }
        });
        tokio::spawn(async move {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(SLOW);
            // Whoever breaks off has asked nothing.
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            drop(seat);
        });
    }
}

fn answer(request: &Request<Incoming>, told: &Told) -> Answer {
    let Told { sites, core, metrics, survey, console } = told;
    let (path, least, core) = (request.uri().path(), least(request.uri()), core.as_deref());
    match (request.method() == Method::GET, path, survey) {
        (false, ..) => page(StatusCode::METHOD_NOT_ALLOWED, "text/plain", WHAT.to_owned()),
        (_, "/", _) => {
            let mut answer = page(StatusCode::OK, "text/html; charset=utf-8", console.page(&told.proxy()));
            answer.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(OWN_ALONE));
            answer
        }
        (_, "/console.js", _) => page(StatusCode::OK, "text/javascript", console::SCRIPT.to_owned()),
        (_, "/live", _) => live(told),
        (_, "/metrics", _) => page(StatusCode::OK, "text/plain; version=0.0.4", metrics::text(sites, core, metrics)),
        (_, "/stats", _) => json(&metrics::stats(sites, core, metrics)),
        (_, "/survey" | "/survey.svg", None) => page(StatusCode::NOT_FOUND, "text/plain", UNSURVEYED.to_owned()),
        (_, "/survey", Some(live)) => json(&live.survey(least)),
        (_, "/survey.svg", Some(live)) => page(StatusCode::OK, "image/svg+xml", svg(&live.survey(least))),
        (_, "/healthz", _) => page(StatusCode::OK, "text/plain", "ok\n".to_owned()),
        _ => page(StatusCode::NOT_FOUND, "text/plain", WHAT.to_owned()),
    }
}

/// What changes on the console's page, as events, for as long as somebody listens.
fn live(told: &Told) -> Answer {
    let Ok(listener) = Arc::clone(&told.console.listeners).try_acquire_owned() else {
        return page(StatusCode::SERVICE_UNAVAILABLE, "text/plain", TOO_MANY.to_owned());
    };
    let told = told.clone();
    let events = futures::stream::unfold((told, listener), |(told, listener)| async move {
        tokio::time::sleep(console::LOOK).await;
        let news = told.console.live(&told.proxy()).into_string();
        let event: String = news.lines().map(|line| format!("data: {line}\n")).collect();
        Some((Ok(Frame::data(Bytes::from(event + "\n"))), (told, listener)))
    });
    let mut answer = Response::new(StreamBody::new(events).boxed());
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// From how many requests on a URL is counted: `?least=N`.
fn least(uri: &Uri) -> u64 {
    let said = uri.query().and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("least=")));
    said.and_then(|number| number.parse().ok()).unwrap_or(LEAST_REQUESTS).max(2)
}

fn json(told: &impl Serialize) -> Answer {
    match serde_json::to_string(told) {
        Ok(text) => page(StatusCode::OK, "application/json", text),
        Err(error) => page(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{error}\n")),
    }
}

fn page(status: StatusCode, kind: &'static str, text: String) -> Answer {
    let mut page = Response::new(Full::new(Bytes::from(text)).boxed());
    *page.status_mut() = status;
    page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    page
}
