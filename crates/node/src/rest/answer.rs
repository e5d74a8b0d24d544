//! Errors as HTTP answers.

use axum::Json;
use axum::body::Body;
use axum::response::IntoResponse;
use http::{HeaderValue, Request, Response, StatusCode, header};
use serde::{Deserialize, Serialize};
use tidings_base::{Class, Error};
use utoipa::ToSchema;

/// What a connection that is one too many is told, in plain text and without waiting.
pub const TOO_MANY_CONNECTIONS: &str = "HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/json\r\n\
    content-length: 163\r\n\
    connection: close\r\n\r\n\
    {\"code\":\"control.busy\",\"class\":\"refused\",\"message\":\"too many connections are open\",\
    \"hint\":\"Close some, or let the operator raise limits.connections_per_address.\"}\n";

/// An error in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// Stable: `part.reason`.
    #[schema(example = "store.fenced")]
    pub code: String,
    /// One of `invalid`, `not_found`, `refused`, `unreachable`, `outcome_unknown`, `failed`.
    #[schema(example = "refused")]
    pub class: String,
    /// What happened.
    pub message: String,
    /// What to do; may be empty.
    pub hint: String,
    /// The address of a node that can answer instead, if one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect: Option<String>,
}

impl From<Error> for ErrorBody {
    fn from(error: Error) -> ErrorBody {
        ErrorBody {
            code: error.code.into_owned(),
            class: error.class.name().to_owned(),
            message: error.message,
            hint: error.hint,
            redirect: error.redirect,
        }
    }
}

/// Hints in the words of those who ask by HTTP, where those of the parts are of the command line.
const IN_HTTP_WORDS: [(&str, &str); 14] = [
    ("admin.no_app", "`GET /v1/admin/apps` lists them; `POST /v1/admin/apps` with `{\"app\": \"NAME\"}` makes one."),
    ("admin.app_exists", "`POST /v1/admin/apps/{app}/keys` makes further keys for it."),
    ("admin.no_key", "`GET /v1/admin/apps` lists its keys."),
    ("admin.too_many_keys", "Revoke one that is not used any more: `DELETE /v1/admin/apps/{app}/keys/{id}`."),
    (
        "raft.no_answer",
        "Start it with `tidings serve --join`, or correct the address. `\"force\": true` adds it all the same.",
    ),
    (
        "cell.no_node",
        "`GET /v1/cell/files/{directory}?list` shows what is there; `PUT /v1/cell/files/{path}` makes a file.",
    ),
    ("cell.no_parent", "`PUT /v1/cell/files/{path}?directory` makes a directory."),
    ("cell.no_session", "It may have ended by itself; `GET /v1/cell/sessions` lists those that are there."),
    ("admin.no_group", "`GET /v1/admin/status` lists the groups: 0 is the cell's, 1 the store's."),
    ("tables.unknown_table", "`GET /v1/tables` lists them; `PUT /v1/tables/{table}` with `{}` makes one."),
    ("placement.no_namespace", "`GET /v1/placement` lists them; `PUT /v1/placement/{namespace}` with `{}` makes one."),
    ("placement.namespace_exists", "`GET /v1/placement` lists them."),
    ("placement.no_owner", "`GET /v1/placement/{namespace}/owners` lists them."),
    ("notify.no_object", "`GET /v1/notify/{app}` lists those that are known."),
];

/// An error on its way out of a handler.
#[derive(Debug)]
pub(crate) struct Refusal(pub Error);

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(mut self) -> Response<Body> {
        if let Some((_, hint)) = IN_HTTP_WORDS.iter().find(|(code, _)| *code == self.0.code) {
            self.0.hint = (*hint).to_owned();
        }
        let code = self.0.http_status();
        let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(ErrorBody::from(self.0))).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// An error in the form that the request can read: gRPC status in headers for gRPC, JSON for everybody else.
pub fn error_response(request_headers: &http::HeaderMap, error: Error) -> Response<Body> {
    if is_grpc(request_headers) { grpc_error(&error) } else { Refusal(error).into_response() }
}

/// Whether a request is of gRPC.
fn is_grpc(headers: &http::HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|kind| kind.starts_with("application/grpc"))
}

/// A gRPC answer without a body: the status in the headers.
fn grpc_error(error: &Error) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from(u16::from(error.grpc_status())));
    tidings_client::grpc::put_error(headers, error);
    response
}

/// What a request from an address that sends too many is told.
pub fn too_many_requests() -> Response<Body> {
    let error = Error::new("control.busy", Class::Refused, "too many requests from this address")
        .hint("Send fewer, or hold one connection and send frames.");
    let mut response = Refusal(error).into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// What a call hears that the node did not finish before it stopped.
pub fn stopped_before_the_answer() -> Response<Body> {
    let hint =
        "The node is stopping. It may or may not have happened: look, through another node, before trying again.";
    Refusal(tidings_wire::error::unanswered().hint(hint)).into_response()
}

/// Answers whatever no route takes. An unknown gRPC service must look like one, or clients report an internal error.
pub(crate) async fn not_found(request: Request<Body>) -> Response<Body> {
    let path = crate::principal::clip(request.uri().path());
    let error = match is_grpc(request.headers()) {
        true => Error::new("control.unsupported", Class::Invalid, format!("there is no method {path} here")),
        false => Error::new("control.no_route", Class::NotFound, format!("there is nothing at {path}"))
            .hint("/openapi.json lists everything."),
    };
    error_response(request.headers(), error)
}

/// Answers a method that a route does not take.
pub(crate) async fn method_not_allowed(request: Request<Body>) -> Response<Body> {
    let path = crate::principal::clip(request.uri().path());
    let error = Error::new("control.no_route", Class::Invalid, format!("{path} does not take {}", request.method()))
        .hint("/openapi.json lists what it takes.");
    let mut response = Refusal(error).into_response();
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_one_connection_too_many_is_well_formed() {
        let (head, body) = TOO_MANY_CONNECTIONS.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        assert_eq!(serde_json::from_str::<ErrorBody>(body).unwrap().code, "control.busy");
    }

    #[test]
    fn grpc_sees_a_grpc_status_and_others_json() {
        let mut headers = http::HeaderMap::new();
        let error = || Error::new("control.unsupported", Class::Invalid, "nein, n\u{f6}\n%");
        assert_eq!(error_response(&headers, error()).status(), 400);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc+proto"));
        let answer = error_response(&headers, error());
        assert_eq!((answer.status().as_u16(), answer.headers()["grpc-status"].to_str().unwrap()), (200, "12"));
        assert_eq!(answer.headers()["grpc-message"], "nein, n%C3%B6%0A%25");
        assert_eq!(answer.headers()["tidings-code"], "control.unsupported");
    }
}
