//! Metrics and statistics, told to this machine alone: `/metrics`, `/stats`, `/healthz`.

use crate::engine::Engine;
use crate::metrics::{self, Metrics};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections at a time; whoever scrapes needs one.
const MOST: usize = 16;
/// How long a request's head may take.
const SLOW: Duration = Duration::from_secs(10);

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
pub(crate) async fn serve(listener: TcpListener, engine: Arc<Engine>, metrics: Arc<Metrics>) {
    let seats = Arc::new(Semaphore::new(MOST));
    loop {
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (engine, metrics) = (Arc::clone(&engine), Arc::clone(&metrics));
        let service = service_fn(move |request| {
            let answer = answer(&request, &engine, &metrics);
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

fn answer(request: &Request<Incoming>, engine: &Engine, metrics: &Metrics) -> Response<Full<Bytes>> {
    let page = |kind: &'static str, text: String| {
        let mut page = Response::new(Full::new(Bytes::from(text)));
        page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        page
    };
    let refusal = |status| {
        let mut refusal = page("text/plain", "there are /metrics, /stats and /healthz here, to GET\n".to_owned());
        *refusal.status_mut() = status;
        refusal
    };
    match (request.method() == Method::GET, request.uri().path()) {
        (true, "/metrics") => page("text/plain; version=0.0.4", metrics::text(engine, metrics)),
        (true, "/stats") => match serde_json::to_string(&metrics::stats(engine, metrics)) {
            Ok(text) => page("application/json", text),
            Err(_) => refusal(StatusCode::INTERNAL_SERVER_ERROR),
        },
        (true, "/healthz") => page("text/plain", "ok\n".to_owned()),
        (true, _) => refusal(StatusCode::NOT_FOUND),
        (false, _) => refusal(StatusCode::METHOD_NOT_ALLOWED),
    }
}
