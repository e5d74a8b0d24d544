//! Making one connection.

use crate::config::{Address, Carrier, ClientConfig};
use crate::grpc::{Outlet, status_of};
use crate::link::{Admission, Carrier as Carries, Driver, Handler, Link, Operation, RefuseAll};
use crate::ws::{self, Form, WsCarrier};
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Request, header};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_wire::session::{Config, Side};
use tidings_wire::{APP_HEADER, GRPC_PATH, NODE_HEADER, error, v1, version};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tower::{Service, ServiceExt};

/// HTTP/2's own windows: larger than what a driver lets wait, so that they do not slow a fast line down.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 2 << 20;

/// Connects, shakes hands, and leaves the driver running. The handle is ready for operations.
pub(crate) async fn dial(address: &Address, config: &ClientConfig) -> Result<Arc<Link>, Error> {
    match tokio::time::timeout(config.connect_timeout, connect(address, config)).await {
        Ok(result) => result,
        Err(_) => Err(unreachable(address, format!("nobody answered within {:?}", config.connect_timeout))),
    }
}

async fn connect(address: &Address, config: &ClientConfig) -> Result<Arc<Link>, Error> {
    if address.is_in_process() {
        let door = config.door.as_ref().ok_or_else(|| unreachable(address, "this process has no node".to_owned()))?;
        return begin(door.knock(config.app.as_deref())?, config, config.credential.clone()).await;
    }
    match config.carrier {
        Carrier::Grpc => begin(by_grpc(address, config).await?, config, None).await,
        Carrier::WebSocket => begin(by_websocket(address, config).await?, config, None).await,
    }
}

async fn by_websocket(address: &Address, config: &ClientConfig) -> Result<WsCarrier<TcpStream>, Error> {
    if address.tls {
        let message = format!("{address} is encrypted, and this library has no WebSockets for that yet");
        return Err(Error::new("client.bad_tls", Class::Invalid, message).hint("Use gRPC, the default carrier."));
    }
    let mut said = HeaderMap::new();
    say_who(config, &mut said)?;
    let socket = ws::socket_saying(&address.authority, ws::PATH, Form::Binary, said);
    let socket = socket.await.map_err(|e| unreachable(address, e.message))?;
    Ok(WsCarrier::new(socket, Form::Binary))
}

async fn by_grpc(address: &Address, config: &ClientConfig) -> Result<impl Carries + use<>, Error> {
    let mut channel = endpoint(address, config)?.connect().await.map_err(|e| unreachable(address, causes(&e)))?;
    let (outlet, outgoing) = Outlet::new();
    let request = request(config, tonic::body::Body::new(outgoing))?;
    let service = channel.ready().await.map_err(|e| unreachable(address, causes(&e)))?;
    let response = service.call(request).await.map_err(|e| unreachable(address, causes(&e)))?;
    if response.status() != http::StatusCode::OK {
        return Err(not_ours(address, response.status()));
    }
    if response.headers().contains_key("grpc-status") {
        return Err(status_of(response.headers()));
    }
    Ok(outlet.connector(response.into_body()))
}

/// Shakes hands by this carrier, with the credential where no header carried it.
async fn begin(
    carrier: impl Carries + 'static,
    config: &ClientConfig,
    credential: Option<String>,
) -> Result<Arc<Link>, Error> {
    let link = Link::new(Side::Connector);
    let (tell, ready) = oneshot::channel();
    let session = Config { limits: config.limits, patience: config.patience, ..Config::connector() };
    let handler = ClientHandler { ready: Some(tell), on_operation: config.on_operation.clone() };
    let hello = v1::Hello {
        min: version::OLDEST,
        max: version::CURRENT,
        credential: credential.unwrap_or_default(),
        agent: config.agent.clone(),
    };
    let driver = Driver::connect(link.clone(), carrier, Arc::new(session), handler, hello, config.max_in_flight);
    tokio::spawn(driver);
    let mut unready = Unready(Some(link.clone()));
    let ready = ready.await;
    unready.0 = None;
    match ready {
        Ok(()) => Ok(link),
        Err(_) => Err(link.closed().unwrap_or_else(error::closed)),
    }
}

fn request(config: &ClientConfig, body: tonic::body::Body) -> Result<Request<tonic::body::Body>, Error> {
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    *request.uri_mut() = http::Uri::from_static(GRPC_PATH);
    let headers = request.headers_mut();
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    say_who(config, headers)?;
    Ok(request)
}

/// Who connects, and the application to act in.
fn say_who(config: &ClientConfig, headers: &mut HeaderMap) -> Result<(), Error> {
    if let Some(credential) = &config.credential {
        let mut value = HeaderValue::from_str(&format!("Bearer {credential}")).map_err(|_| {
            Error::new("client.bad_credential", Class::Invalid, "the key holds characters that no key has")
        })?;
        value.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, value);
    }
    if let Some(app) = &config.app {
        let value = HeaderValue::from_str(app).map_err(|_| {
            Error::new("client.bad_app", Class::Invalid, "the application's name holds characters that no name has")
        })?;
        headers.insert(APP_HEADER, value);
    }
    if let Some(node) = config.node {
        headers.insert(NODE_HEADER, HeaderValue::from(node.0));
    }
    Ok(())
}

fn endpoint(address: &Address, config: &ClientConfig) -> Result<Endpoint, Error> {
    let bad = |what: String| Error::new("client.bad_tls", Class::Invalid, what);
    let mut endpoint = Endpoint::from_shared(address.to_string())
        .map_err(|e| bad(e.to_string()))?
        .connect_timeout(config.connect_timeout)
        .tcp_nodelay(true)
        .tcp_keepalive(Some(Duration::from_secs(30)))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    if address.tls {
        let Some(tls) = &config.tls else {
            return Err(bad(format!("{address} is encrypted, and no CA is given to check it by"))
                .hint("Give the cluster's CA certificate (--ca)."));
        };
        let mut trusted = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca));
        if let Some((certificate, key)) = &tls.identity {
            trusted = trusted.identity(Identity::from_pem(certificate, key));
        }
        if let Some(name) = &tls.server_name {
            trusted = trusted.domain_name(name);
        }
        endpoint = endpoint.tls_config(trusted).map_err(|e| bad(causes(&e)))?;
    }
    Ok(endpoint)
}

/// Closes a connection whose handshake nobody waits for any more: its driver would keep it up.
struct Unready(Option<Arc<Link>>);

impl Drop for Unready {
    fn drop(&mut self) {
        if let Some(link) = &self.0 {
            link.close(error::closed());
        }
    }
}

struct ClientHandler {
    ready: Option<oneshot::Sender<()>>,
    on_operation: Option<Arc<dyn Fn(Operation) + Send + Sync>>,
}

impl Handler for ClientHandler {
    fn hello(&mut self, hello: v1::Hello) -> BoxFuture<'static, Result<Admission, Error>> {
        RefuseAll.hello(hello)
    }

    fn ready(&mut self, _: &Arc<Link>, _: &v1::Welcome) {
        if let Some(tell) = self.ready.take() {
            let _ = tell.send(());
        }
    }

    fn open(&mut self, operation: Operation) -> Option<BoxFuture<'static, ()>> {
        match &self.on_operation {
            Some(handler) => {
                handler(operation);
                None
            }
            None => RefuseAll.open(operation),
        }
    }
}

fn unreachable(address: &Address, why: String) -> Error {
    let hint = match address.tls {
        true => "Is the node running, is the address right, and is the CA the one that signed its certificate?",
        false => "Is the node running, and is the address right? One with TLS wants https:// and its CA (--ca).",
    };
    Error::new("client.unreachable", Class::Unreachable, format!("no connection to {address}: {why}")).hint(hint)
}

fn not_ours(address: &Address, status: http::StatusCode) -> Error {
    let message = format!("{address} answered with HTTP {status}, which no node does");
    match status.as_u16() {
        401 => Error::new("control.unauthenticated", Class::Refused, message).hint("Pass a valid key or token."),
        403 => Error::new("control.forbidden", Class::Refused, message)
            .hint("Whatever stands before the node refuses: a proxy, or another server. Check the address."),
        429 | 502..=504 => unreachable(address, format!("HTTP {status}")),
        _ => Error::new("client.not_a_node", Class::Invalid, message).hint("Check the address."),
    }
}

/// An error with its causes: what matters ("connection refused") is the last of them.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
