//! Asking another program of the example over HTTP.

use axum::Json;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use std::time::Duration;
use tidings_base::{Class, Error};

/// Longer than anything here takes: a server that does not answer by then was stopped.
const PATIENCE: Duration = Duration::from_secs(2);

/// A client that keeps its connections.
pub type Client = hyper_util::client::legacy::Client<HttpConnector, Full<Bytes>>;

/// A client without connections yet.
pub fn client() -> Client {
    hyper_util::client::legacy::Builder::new(TokioExecutor::new()).build_http()
}

/// Asks, and reads the answer. Class `unreachable` means that nothing happened.
pub async fn ask(client: &Client, method: Method, url: &str, body: &Value) -> Result<(StatusCode, Value), Error> {
    let request = Request::builder()
        .method(method)
        .uri(url)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.to_string())))
        .map_err(|why| Error::new("example.bad_request", Class::Invalid, why.to_string()))?;
    let asked = async {
        let response = client.request(request).await.map_err(|why| {
            let class = if why.is_connect() { Class::Unreachable } else { Class::OutcomeUnknown };
            Error::new("example.no_answer", class, format!("{url}: {why}"))
        })?;
        let status = response.status();
        let body = response.into_body().collect().await;
        let body = body.map_err(|why| Error::new("example.no_answer", Class::OutcomeUnknown, why.to_string()))?;
        Ok((status, serde_json::from_slice(&body.to_bytes()).unwrap_or_default()))
    };
    let late = || Error::new("example.no_answer", Class::OutcomeUnknown, format!("{url}: no answer"));
    tokio::time::timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(late()))
}

/// An error as an answer.
pub struct Refused(pub Error);

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused(error)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = json!({ "code": self.0.code, "message": self.0.message, "hint": self.0.hint });
        (status, Json(body)).into_response()
    }
}

/// Something on this machine that did not work.
pub fn broken(what: &str, why: impl std::fmt::Display) -> Error {
    Error::new("example.failed", Class::Failed, format!("{what}: {why}"))
}
