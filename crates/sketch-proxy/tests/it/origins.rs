//! Web servers in this process, right and wrong ones; and somebody who asks.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tidings_sketch_proxy::{Config, Proxy};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// What is wrong with a server.
#[derive(Clone, Copy, PartialEq)]
pub enum Sin {
    None,
    /// Serves something made up.
    Forger,
    /// Serves what was there first.
    Stale,
    /// Takes connections and says nothing.
    Mute,
    /// Serves something else each time.
    Fickle,
}

pub struct Origin {
    pub address: SocketAddr,
    sin: Sin,
    /// All versions of each page.
    pages: Mutex<BTreeMap<String, Vec<Bytes>>>,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    /// Connections that were made to it.
    pub connections: AtomicU64,
    /// Reads by path.
    asked: Mutex<BTreeMap<String, u64>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Origin {
    pub async fn start(sin: Sin) -> Arc<Origin> {
        Origin::start_with(sin, None).await
    }

    /// The same, by TLS if it is given a certificate.
    pub async fn start_with(sin: Sin, tls: Option<TlsAcceptor>) -> Arc<Origin> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = Arc::new(Origin {
            address: listener.local_addr().unwrap(),
            sin,
            pages: Mutex::default(),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            asked: Mutex::default(),
            task: Mutex::new(None),
        });
        let served = Arc::clone(&origin);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let served = Arc::clone(&served);
                served.connections.fetch_add(1, Ordering::SeqCst);
                let service = service_fn(move |request| Arc::clone(&served).answer(request));
                let tls = tls.clone();
                connections.spawn(async move {
                    let mut builder = hyper::server::conn::http1::Builder::new();
                    builder.max_headers(1_000);
                    let _ = match tls {
                        None => builder.serve_connection(TokioIo::new(stream), service).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => builder.serve_connection(TokioIo::new(stream), service).await,
                            Err(_) => Ok(()),
                        },
                    };
                });
            }
        });
        *origin.task.lock().unwrap() = Some(task);
        origin
    }

    /// It refuses connections from now on, and ends those that it has.
    pub async fn stop(&self) {
        let task = self.task.lock().unwrap().take();
        if let Some(task) = task {
            task.abort();
            let _ = task.await;
        }
    }

    pub fn put(&self, path: &str, page: &str) {
        self.pages.lock().unwrap().entry(path.into()).or_default().push(Bytes::from(page.to_owned()));
    }

    pub fn remove(&self, path: &str) {
        self.pages.lock().unwrap().remove(path);
    }

    /// How often it was asked for a page.
    pub fn asked(&self, path: &str) -> u64 {
        self.asked.lock().unwrap().get(path).copied().unwrap_or(0)
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
        let chunked = request.uri().path().starts_with("/chunked/");
        let response = Arc::clone(&self).page(request).await;
        Ok(response.map(|page| if chunked { Chunked(page).boxed() } else { page.boxed() }))
    }

    async fn page(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if self.sin == Sin::Mute {
            std::future::pending::<()>().await;
        }
        assert!(
            !request.headers().keys().any(|name| name.as_str().starts_with("if-")),
            "conditions do not go upstream"
        );
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let language = request.headers().get(header::ACCEPT_LANGUAGE).cloned();
        if method != Method::GET {
            self.writes.fetch_add(1, Ordering::SeqCst);
            let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            return Response::new(Full::new(body));
        }
        self.reads.fetch_add(1, Ordering::SeqCst);
        *self.asked.lock().unwrap().entry(path.clone()).or_default() += 1;
        let port = self.address.port().to_string();
        let builder = || Response::builder().header(header::SERVER, &port).header(header::ETAG, format!("\"{port}\""));
        let respond = |status, page: Bytes| {
            builder().status(status).header(header::CONTENT_TYPE, "text/plain").body(Full::new(page))
        };
        let versions = self.pages.lock().unwrap().get(&path).cloned().unwrap_or_default();
        let page = match self.sin {
            Sin::Forger => Some(Bytes::from_static(b"made up")),
            Sin::Stale => versions.first().cloned(),
            Sin::Fickle => Some(Bytes::from(format!("{}", self.reads.load(Ordering::SeqCst)))),
            Sin::None | Sin::Mute => versions.last().cloned(),
        };
        let response = match (path.as_str(), page) {
            ("/moved", _) => builder().status(302).header(header::LOCATION, "/elsewhere").body(Full::default()),
            ("/broken", _) => respond(StatusCode::INTERNAL_SERVER_ERROR, Bytes::from_static(b"broken")),
            ("/partial", _) => respond(StatusCode::PARTIAL_CONTENT, Bytes::from_static(b"part")),
            ("/language", _) => {
                respond(StatusCode::OK, language.map_or_else(Bytes::new, |tag| Bytes::copy_from_slice(tag.as_bytes())))
            }
            (_, Some(page)) => respond(StatusCode::OK, page),
            (_, None) => respond(StatusCode::NOT_FOUND, Bytes::from_static(b"no such page")),
        };
        response.unwrap()
    }
}

/// A page that comes without a length.
struct Chunked(Full<Bytes>);

impl Body for Chunked {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.0).poll_frame(context)
    }
}

/// Origins with a proxy before them, and a client.
pub struct Site {
    pub origins: Vec<Arc<Origin>>,
    pub proxy: Proxy,
    asking: Asking,
}

/// Somebody who asks a proxy.
pub struct Asking {
    client: Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
    host: Option<&'static str>,
}

impl Asking {
    pub fn of(address: SocketAddr) -> Asking {
        Asking { client: Client::builder(TokioExecutor::new()).build_http(), address, host: None }
    }

    /// The same, for a site with this name.
    pub fn named(self, host: &'static str) -> Asking {
        Asking { host: Some(host), ..self }
    }

    pub async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Got {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        let host = self.host.map(|host| ("host", host));
        for (name, value) in headers.iter().copied().chain(host) {
            request = request.header(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
        let asked = tokio::time::timeout(Duration::from_secs(60), self.client.request(request));
        let (parts, body) = asked.await.expect("it answers").expect("it answers properly").into_parts();
        let body = body.collect().await.expect("it answers to the end").to_bytes();
        Got { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub async fn get(&self, path: &str) -> Got {
        self.ask("GET", path, &[], "").await
    }
}

/// What a client got.
#[derive(Debug)]
pub struct Got {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Got {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }
}

impl Site {
    pub async fn start(sins: &[Sin], change: impl FnOnce(&mut Config)) -> Site {
        let mut origins = Vec::new();
        for sin in sins {
            origins.push(Origin::start(*sin).await);
        }
        let urls: Vec<String> = origins.iter().map(|origin| format!("http://{}", origin.address)).collect();
        let mut config = Config::of(SocketAddr::from(([127, 0, 0, 1], 0)), &urls).unwrap();
        config.sites[0].patience = Duration::from_millis(300);
        change(&mut config);
        let proxy = Proxy::start(config).await.unwrap();
        let asking = Asking::of(proxy.address());
        Site { origins, proxy, asking }
    }

    pub fn put(&self, path: &str, page: &str) {
        self.origins.iter().for_each(|origin| origin.put(path, page));
    }

    pub async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Got {
        self.asking.ask(method, path, headers, body).await
    }

    pub async fn get(&self, path: &str) -> Got {
        self.ask("GET", path, &[], "").await
    }

    pub fn reads(&self) -> u64 {
        self.origins.iter().map(|origin| origin.reads.load(Ordering::SeqCst)).sum()
    }
}
