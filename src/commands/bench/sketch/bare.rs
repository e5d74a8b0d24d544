//! A proxy of hyper that passes on and does nothing else: what the sketcher cannot be faster than, built as it is.

use crate::output::broken;
use http_body_util::{Either, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidings_base::Error;
use tokio::runtime::{Builder, Runtime};

type Body = Either<Incoming, Empty<Bytes>>;

/// Where requests go, each to the next one.
struct Next {
    client: Client<HttpConnector, Incoming>,
    origins: Vec<SocketAddr>,
    turn: AtomicUsize,
}

/// Running on threads of its own; dropped, it stops.
pub struct Bare {
    pub address: SocketAddr,
    runtimes: Vec<Runtime>,
}

/// How its threads share the work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// Any of them takes what is to be done.
    Together,
    /// As `sketch run` does: each has clients and connections to origins of its own. (One runtime with one thread for each core, which comes close to
    /// runtimes without any threads but the caller's.)
    Apart,
}

impl Bare {
    pub fn start(origins: &[SocketAddr], threads: Threads) -> Result<Bare, Error> {
        let count =
            if threads == Threads::Apart { std::thread::available_parallelism().map_or(1, usize::from) } else { 1 };
        let runtimes = (0..count).map(|_| {
            let mut builder = Builder::new_multi_thread();
            if threads == Threads::Apart {
                builder.worker_threads(1);
            }
            builder.enable_all().build()
        });
        let runtimes = runtimes.collect::<Result<Vec<_>, _>>();
        let runtimes = runtimes.map_err(|error| broken("cannot start threads", error))?;
        let none = |error| broken("loopback has no free port", error);
        let listener = TcpListener::bind("127.0.0.1:0").map_err(none)?;
        listener.set_nonblocking(true).map_err(none)?;
        let address = listener.local_addr().map_err(none)?;
        for runtime in &runtimes {
            let listener = listener.try_clone().map_err(none)?;
            accept(runtime, listener, origins).map_err(none)?;
        }
        Ok(Bare { address, runtimes })
    }
}

fn accept(runtime: &Runtime, listener: TcpListener, origins: &[SocketAddr]) -> std::io::Result<()> {
    let _entered = runtime.enter();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let next = Arc::new(Next { client, origins: origins.to_vec(), turn: AtomicUsize::new(0) });
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let next = Arc::clone(&next);
            tokio::spawn(async move {
                // Without it answers wait for acknowledgements; a failed option shows as a slow figure.
                let _ = stream.set_nodelay(true);
                let service = service_fn(move |request| pass_on(Arc::clone(&next), request));
                // A client that goes away is no failure.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    Ok(())
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.runtimes.drain(..).for_each(Runtime::shutdown_background);
    }
}

async fn pass_on(next: Arc<Next>, mut request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let origin = next.origins[next.turn.fetch_add(1, Ordering::Relaxed) % next.origins.len()];
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let answer = match format!("http://{origin}{path}").parse::<Uri>() {
        Ok(uri) => {
            *request.uri_mut() = uri;
            next.client.request(request).await.ok()
        }
        Err(_) => None,
    };
    Ok(answer.map(|answer| answer.map(Either::Left)).unwrap_or_else(|| {
        let mut failed = Response::new(Either::Right(Empty::new()));
        *failed.status_mut() = StatusCode::BAD_GATEWAY;
        failed
    }))
}
