//! Everything behind the port in one router: REST, carriers of frames, gRPC reflection.
//!
//! ```text
//!   answer headers, metrics ─▶ open: /  /healthz  /readyz  /openapi.json  reflection
//!                           └▶ identify ─▶ guarded: /v1/…  /metrics  carriers (/v1/frames and gRPC)
//! ```
//! `identify` is the one layer that authenticates requests. It refuses wrong credentials; for right ones it leaves
//! an [`Identity`] with the request; without any the request passes bare, and whoever
//! handles it must refuse it ([`rest::Caller`] does) or wait for a `Hello` that says more (carriers do).

use crate::auth::Authenticator;
use crate::carrier;
use crate::connection::Connections;
use crate::metrics;
use crate::principal::{Identity, Peer};
use crate::rest::{self, error_response};
use crate::shell::Shared;
use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{self, Next};
use axum::response::Response;
use http::{HeaderValue, Method, header};
use std::sync::Arc;
use tidings_base::{Class, Error};

/// The one router.
pub fn router(shared: Arc<Shared>, connections: Arc<Connections>) -> Result<Router, Error> {
    let routes = rest::routes(shared.config.limits.body_bytes);
    let auth = shared.auth.clone();
    let guarded = routes.guarded.layer(middleware::from_fn_with_state(auth.clone(), identify));
    let carriers = carrier::routes(connections).layer(middleware::from_fn_with_state(auth, identify));
    let router = routes
        .open
        .merge(guarded)
        .method_not_allowed_fallback(rest::method_not_allowed)
        .fallback(rest::not_found)
        .with_state(shared)
        .merge(carriers)
        .merge(reflection()?);
    Ok(router.layer(middleware::from_fn(observe)))
}

/// gRPC reflection: the schema is public, so it needs nobody.
fn reflection() -> Result<Router, Error> {
    let service = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(tidings_wire::DESCRIPTORS)
        .build_v1()
        .map_err(|e| Error::new("node.bad_schema", Class::Failed, format!("reflection cannot be built: {e}")))?;
    Ok(tonic::service::Routes::new(service).into_axum_router().reset_fallback())
}

/// Who sends a request that shows nothing, for what is open to everybody.
#[derive(Clone)]
pub(crate) struct Nobody(pub Identity);

/// Finds out who sends a request.
pub(crate) async fn identify(
    axum::extract::State(auth): axum::extract::State<Arc<Authenticator>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(peer) = request.extensions().get::<Arc<Peer>>().cloned() else {
        // Only the port makes requests, and it says where each comes from.
        let error = Error::new("node.no_peer", Class::Failed, "the request does not come from the port");
        return error_response(request.headers(), error);
    };
    match auth.identify(&peer, request.uri(), request.headers()).await {
        Ok(Some(identity)) => {
            request.extensions_mut().insert(identity);
            next.run(request).await
        }
        Ok(None) => {
            // Not an identity: only those that ask for it see it.
            if let Some(nobody) = auth.nobody(request.uri(), request.headers()) {
                request.extensions_mut().insert(Nobody(nobody));
            }
            next.run(request).await
        }
        Err(error) => error_response(request.headers(), error),
    }
}

/// Counts requests and says who answers.
async fn observe(request: Request, next: Next) -> Response<Body> {
    let started = std::time::Instant::now();
    let method = method_name(request.method());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let mut response = next.run(request).await;
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    metrics::request(route, method, response.status().as_u16(), started.elapsed());
    let headers = response.headers_mut();
    headers.insert(header::SERVER, HeaderValue::from_static(SERVER));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// How the node calls itself in HTTP.
const SERVER: &str = concat!("tidings/", env!("CARGO_PKG_VERSION"));

/// The methods that are told apart; a stranger may invent any number of others.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        _ => "other",
    }
}
