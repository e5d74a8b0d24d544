//! Whether the node lives, whether it serves, and how it fares.

use super::answer::{ErrorBody, Refusal};
use super::{App, Caller};
use crate::authorize::{Action, Resource, authorize};
use crate::metrics as names;
use crate::shell::VERSION;
use axum::extract::State;
use axum::response::Html;
use http::header;
use tidings_wire::Part;

/// Where to go from here.
#[utoipa::path(get, path = "/", tag = "node", responses((status = 200, description = "A page with links", content_type = "text/html")))]
pub(super) async fn index() -> Html<String> {
    Html(format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Tidings</title>\
         <h1>Tidings {VERSION}</h1>\
         <p>This node is running.</p>\
         <ul>\
         <li><a href=\"/v1/admin/status\">status</a></li>\
         <li><a href=\"/openapi.json\">what it offers over HTTP</a></li>\
         <li><a href=\"/metrics\">metrics</a></li>\
         <li><a href=\"/readyz\">whether it serves requests</a></li>\
         </ul></html>\n"
    ))
}

/// Whether the process lives. Restart it if this does not answer.
#[utoipa::path(get, path = "/healthz", tag = "node", responses((status = 200, description = "It lives", body = String)))]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether requests can be served now. Send none here if not.
#[utoipa::path(get, path = "/readyz", tag = "node", responses(
    (status = 200, description = "They can", body = String),
    (status = 503, description = "They cannot: it starts, stops, or its group has no leader", body = ErrorBody)
))]
pub(super) async fn readyz(State(app): State<App>) -> Result<&'static str, Refusal> {
    if app.shutdown.is_near() {
        return Err(tidings_wire::error::going_away(None).into());
    }
    app.gate.ready()?;
    Ok("ready\n")
}

/// Metrics in the Prometheus text format.
#[utoipa::path(get, path = "/metrics", tag = "node", responses(
    (status = 200, description = "All metrics", body = String),
    (status = 401, description = "Unless `public_metrics` is set, the operator key is needed", body = ErrorBody)
))]
pub(super) async fn metrics(
    State(app): State<App>,
    caller: Result<Caller, axum::response::Response>,
) -> Result<([(header::HeaderName, &'static str); 1], String), axum::response::Response> {
    if !app.config.public_metrics {
        let allowed = authorize(&caller?.0.principal, Part::Admin, Action::Read, &Resource::Cluster);
        allowed.map_err(|e| axum::response::IntoResponse::into_response(Refusal(e)))?;
    }
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], names::recorder().render()))
}
