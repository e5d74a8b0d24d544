//! The gRPC carrier: the method `tidings.v1.Tidings/Stream`.

use crate::connection::{Arrival, Connections};
use axum::body::Body;
use axum::extract::{Request, State};
use http::{HeaderValue, Response, header};
use std::sync::Arc;
use tidings_base::{Class, Error};
use tidings_client::grpc::Outlet;
use tidings_wire::error;

/// Takes a stream of frames.
pub async fn accept(State(connections): State<Arc<Connections>>, request: Request) -> Response<Body> {
    let (parts, incoming) = request.into_parts();
    if !is_grpc(&parts.headers) {
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = http::StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return answer;
    }
    let Some(arrival) = Arrival::of(&parts.extensions, &parts.headers) else { return refusal(&error::closed()) };
    let (outlet, outgoing) = Outlet::new();
    tokio::spawn(connections.serve(outlet.acceptor(incoming), arrival));
    answer(Body::new(outgoing))
}

fn is_grpc(headers: &http::HeaderMap) -> bool {
    let content = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content.is_some_and(|content| content == "application/grpc" || content.starts_with("application/grpc+proto"))
}

fn answer(body: Body) -> Response<Body> {
    let mut answer = Response::new(body);
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    answer
}

/// An answer of headers alone, as gRPC wants refusals.
pub fn refusal(why: &Error) -> Response<Body> {
    let mut refused = answer(Body::empty());
    let headers = refused.headers_mut();
    headers.insert("grpc-status", HeaderValue::from(u16::from(status(why))));
    tidings_client::grpc::put_error(headers, why);
    refused
}

fn status(why: &Error) -> u8 {
    match why.class {
        // 0 would say that all is well.
        Class::Unreachable => 14,
        _ => why.grpc_status(),
    }
}
