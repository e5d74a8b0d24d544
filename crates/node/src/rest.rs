//! REST and JSON for what a person does with curl: a thin translation to the same messages as frames.
//!
//! Every route is described in the OpenAPI document at `/openapi.json`. Names and values are bytes: in JSON they are
//! a string, or `{"base64": "…"}` where the bytes are not UTF-8; in paths and queries they are percent-encoded.
//! Errors are `{code, class, message, hint}` with the status that the one table in `base::error` gives them.

mod admin;
mod answer;
mod cell;
mod extract;
mod feed;
mod notify;
mod placement;
mod probes;
mod store;
mod tables;
mod text;

pub use answer::{ErrorBody, TOO_MANY_CONNECTIONS, error_response, stopped_before_the_answer, too_many_requests};
pub(crate) use answer::{method_not_allowed, not_found};
pub use extract::Caller;
pub use text::Text;

use crate::shell::Shared;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::get;
use bytes::Bytes;
use http::header;
use std::sync::Arc;
use tidings_base::Error;
use tidings_wire::{Body, error};
use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The state of every handler.
pub(crate) type App = Arc<Shared>;

#[derive(OpenApi)]
#[openapi(
    info(title = "Tidings", description = "Unary conveniences of a Tidings node. Everything else speaks frames."),
    modifiers(&Credentials),
    security((), ("key" = [])),
    tags(
        (name = "node", description = "Whether it lives, serves, and how it fares."),
        (name = "admin", description = "What operators do."),
        (name = "cell", description = "Small files and directories that all nodes agree on, with versions and watches."),
        (name = "placement", description = "Who owns which key: namespaces, tables, lookups, and owners that speak HTTP."),
        (name = "notify", description = "Clients learn the latest versions of objects: publications, and what is there."),
        (name = "tables", description = "Records with keys and columns: reads, conditional writes, queries, live queries."),
        (name = "store", description = "Rows of timestamped cells, in groups."),
        (name = "feed", description = "Topics of entries, consumer groups with acknowledgement and redelivery."),
    )
)]
struct Document;

struct Credentials;

impl utoipa::Modify for Credentials {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let mut bearer = Http::new(HttpAuthScheme::Bearer);
        let description = "An application key, the operator key (`tid_…`), or a user's token. With `x-tidings-app` an \
                           operator acts in that application rather than in `default`.";
        bearer.description = Some(description.to_owned());
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("key", SecurityScheme::Http(bearer));
    }
}

/// The routes that anybody may call, and those that need somebody.
pub(crate) struct Routes {
    /// Without authentication.
    pub open: Router<App>,
    /// Behind it.
    pub guarded: Router<App>,
}

/// All REST routes, with their document.
pub(crate) fn routes(body_bytes: usize) -> Routes {
    let (open, document) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(probes::index))
        .routes(routes!(probes::healthz))
        .routes(routes!(probes::readyz))
        .split_for_parts();
    let (guarded, rest) = OpenApiRouter::new()
        .routes(routes!(probes::metrics))
        .routes(routes!(admin::status))
        .routes(routes!(admin::list_apps, admin::create_app))
        .routes(routes!(admin::create_key))
        .routes(routes!(admin::revoke_key))
        .routes(routes!(admin::add_member))
        .routes(routes!(admin::remove_member))
        .routes(routes!(admin::raise_incarnation))
        .routes(routes!(cell::get_root))
        .routes(routes!(cell::get, cell::put, cell::delete))
        .routes(routes!(cell::sessions))
        .routes(routes!(cell::end_session))
        .routes(routes!(cell::locks))
        .routes(routes!(cell::get_root_quota, cell::put_root_quota))
        .routes(routes!(cell::get_quota, cell::put_quota))
        .routes(routes!(placement::namespaces))
        .routes(routes!(placement::create, placement::delete))
        .routes(routes!(placement::table))
        .routes(routes!(placement::ring))
        .routes(routes!(placement::lookup))
        .routes(routes!(placement::rebalance))
        .routes(routes!(placement::owners))
        .routes(routes!(placement::drain, placement::cancel_drain))
        .routes(routes!(placement::register, placement::release))
        .routes(routes!(placement::assignments))
        .routes(routes!(placement::check))
        .routes(routes!(placement::exported))
        .routes(routes!(placement::imported))
        .routes(routes!(placement::load))
        .routes(routes!(notify::objects, notify::publish_many))
        .routes(routes!(notify::object, notify::publish_one))
        .routes(routes!(notify::clients))
        .routes(routes!(notify::publish_events))
        .routes(routes!(notify::traces))
        .routes(routes!(notify::recent))
        .routes(routes!(notify::load))
        .routes(routes!(notify::counts))
        .routes(routes!(notify::open_channel))
        .routes(routes!(notify::poll, notify::say, notify::close_channel))
        .routes(routes!(notify::events))
        .routes(routes!(tables::list))
        .routes(routes!(tables::stat, tables::create, tables::alter, tables::drop_table))
        .routes(routes!(tables::get_access, tables::change_access, tables::open_access))
        .routes(routes!(tables::queries))
        .routes(routes!(tables::load))
        .routes(routes!(tables::records))
        .routes(routes!(tables::get, tables::put, tables::patch, tables::delete))
        .routes(routes!(tables::query))
        .routes(routes!(tables::watch, tables::watch_query))
        .routes(routes!(tables::export))
        .routes(routes!(tables::import))
        .routes(routes!(store::status, store::apply))
        .routes(routes!(store::scan))
        .routes(routes!(store::get, store::put))
        .routes(routes!(store::compare_and_set))
        .routes(routes!(feed::append))
        .routes(routes!(feed::consume))
        .routes(routes!(feed::ack))
        .layer(DefaultBodyLimit::max(body_bytes))
        .split_for_parts();
    // A document of derived types always has a JSON form.
    let document = document.merge_from(rest).to_json().unwrap_or_default();
    // The router's way to say that a name may have slashes in it is not the document's.
    let document = Bytes::from(document.replace("{*path}", "{path}"));
    let serve = move || {
        let document = document.clone();
        async move { ([(header::CONTENT_TYPE, "application/json")], document) }
    };
    let open = open.route("/openapi.json", get(serve));
    Routes { open, guarded }
}

/// Asks the services, within the time that a call may take.
async fn call(app: &Shared, caller: &Caller, request: Body) -> Result<Body, Error> {
    call_waiting(app, caller, request, 0).await
}

/// Asks the services something that may wait for `wait_ms` on top.
async fn call_waiting(app: &Shared, caller: &Caller, request: Body, wait_ms: u32) -> Result<Body, Error> {
    let within = app.config.timings.call.0 + std::time::Duration::from_millis(u64::from(wait_ms));
    match tokio::time::timeout(within, app.gate.call_anywhere(&caller.0.principal, request)).await {
        Ok(answer) => answer,
        Err(_) => Err(error::deadline()),
    }
}

/// An answer of another kind than the question's: a bug of the services, told as one.
fn unexpected(answer: &Body) -> Error {
    let part = tidings_wire::Part::of(answer);
    Error::new("node.unexpected_answer", tidings_base::Class::Failed, format!("{part} answered something else"))
}
