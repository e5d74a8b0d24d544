//! What operators do, over HTTP.

use super::answer::{ErrorBody, Refusal};
use super::extract::{JsonBody, Segments};
use super::{App, Caller, call, unexpected};
use crate::status::Status;
use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tidings_base::Error;
use tidings_wire::v1::admin_message::Message;
use tidings_wire::{Body, v1};
use utoipa::ToSchema;

/// An application and its keys.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct Application {
    app: String,
    keys: Vec<KeyStatus>,
}

/// A key, without its secret.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
struct KeyStatus {
    id: String,
    created: String,
    revoked: bool,
}

/// All applications.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct Applications {
    apps: Vec<Application>,
}

/// A new application.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewApplication {
    /// Lower-case letters, digits and dashes.
    #[schema(example = "shop")]
    app: String,
}

/// A key, shown this once.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct NewKey {
    app: String,
    id: String,
    /// The whole key. Only a hash of it is kept.
    key: String,
}

/// A new member of a group.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewMember {
    node: u64,
    /// Where other nodes reach it.
    #[schema(example = "10.0.0.4:7400")]
    address: String,
    /// Add it although nobody answers there yet.
    #[serde(default)]
    force: bool,
}

/// The store's incarnation after it was raised.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct Raised {
    incarnation: u64,
}

async fn ask(app: &App, caller: &Caller, message: Message) -> Result<Message, Error> {
    match call(app, caller, Body::Admin(v1::AdminMessage { message: Some(message) })).await? {
        Body::Admin(v1::AdminMessage { message: Some(answer) }) => Ok(answer),
        other => Err(unexpected(&other)),
    }
}

fn other(answer: Message) -> Refusal {
    Refusal(unexpected(&Body::Admin(v1::AdminMessage { message: Some(answer) })))
}

/// How the node and its groups fare.
#[utoipa::path(get, path = "/v1/admin/status", operation_id = "admin_status", tag = "admin", responses(
    (status = 200, body = Status), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn status(State(app): State<App>, caller: Caller) -> Result<Json<Status>, Refusal> {
    match ask(&app, &caller, Message::Status(v1::StatusRequest::default())).await? {
        Message::StatusReply(reply) => Ok(Json(Status::from(reply))),
        answer => Err(other(answer)),
    }
}

/// All applications and their keys (never the secrets).
#[utoipa::path(get, path = "/v1/admin/apps", operation_id = "admin_list_apps", tag = "admin", responses(
    (status = 200, body = Applications), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn list_apps(State(app): State<App>, caller: Caller) -> Result<Json<Applications>, Refusal> {
    let key = |key: v1::KeyInfo| KeyStatus { id: key.id, created: key.created, revoked: key.revoked };
    match ask(&app, &caller, Message::AppList(v1::AppList {})).await? {
        Message::AppListReply(reply) => {
            let apps = reply.apps.into_iter();
            let apps = apps.map(|a| Application { app: a.app, keys: a.keys.into_iter().map(key).collect() }).collect();
            Ok(Json(Applications { apps }))
        }
        answer => Err(other(answer)),
    }
}

/// Creates an application with its first key, which is shown this once.
#[utoipa::path(post, path = "/v1/admin/apps", operation_id = "admin_create_app", tag = "admin", request_body = NewApplication, responses(
    (status = 201, body = NewKey), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn create_app(
    State(app): State<App>,
    caller: Caller,
    JsonBody(new): JsonBody<NewApplication>,
) -> Result<(StatusCode, Json<NewKey>), Refusal> {
    created(ask(&app, &caller, Message::AppCreate(v1::AppCreate { app: new.app })).await?)
}

/// Makes a further key for an application, shown this once.
#[utoipa::path(post, path = "/v1/admin/apps/{app}/keys", operation_id = "admin_create_key", tag = "admin",
    params(("app" = String, Path, description = "The application")),
    responses((status = 201, body = NewKey), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn create_key(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
) -> Result<(StatusCode, Json<NewKey>), Refusal> {
    created(ask(&app, &caller, Message::KeyCreate(v1::KeyCreate { app: path.text(3)? })).await?)
}

fn created(answer: Message) -> Result<(StatusCode, Json<NewKey>), Refusal> {
    match answer {
        Message::KeyCreated(key) => Ok((StatusCode::CREATED, Json(NewKey { app: key.app, id: key.id, key: key.key }))),
        answer => Err(other(answer)),
    }
}

/// Takes a key back. It stops working everywhere within seconds.
#[utoipa::path(delete, path = "/v1/admin/apps/{app}/keys/{id}", operation_id = "admin_revoke_key", tag = "admin",
    params(("app" = String, Path, description = "The application"), ("id" = String, Path, description = "The key's id")),
    responses((status = 204), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn revoke_key(State(app): State<App>, caller: Caller, path: Segments) -> Result<StatusCode, Refusal> {
    let revoke = v1::KeyRevoke { app: path.text(3)?, id: path.text(5)? };
    done(ask(&app, &caller, Message::KeyRevoke(revoke)).await?)
}

/// Adds a member to a Raft group: first as a learner, as a voter once it has caught up.
#[utoipa::path(post, path = "/v1/admin/groups/{group}/members", operation_id = "admin_add_member", tag = "admin", request_body = NewMember,
    params(("group" = u32, Path, description = "The group")),
    responses((status = 204), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn add_member(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    JsonBody(new): JsonBody<NewMember>,
) -> Result<StatusCode, Refusal> {
    let member = v1::Member { node: new.node, address: new.address };
    let change = Some(v1::member_change::Change::Add(member));
    change_member(&app, &caller, v1::MemberChange { group: path.number(3)?, change, force: new.force }).await
}

/// Removes a member from a Raft group.
#[utoipa::path(delete, path = "/v1/admin/groups/{group}/members/{node}", operation_id = "admin_remove_member", tag = "admin",
    params(("group" = u32, Path, description = "The group"), ("node" = u64, Path, description = "The member")),
    responses((status = 204), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn remove_member(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
) -> Result<StatusCode, Refusal> {
    let change = Some(v1::member_change::Change::Remove(path.number(5)?));
    change_member(&app, &caller, v1::MemberChange { group: path.number(3)?, change, force: false }).await
}

async fn change_member(app: &App, caller: &Caller, change: v1::MemberChange) -> Result<StatusCode, Refusal> {
    done(ask(app, caller, Message::MemberChange(change)).await?)
}

/// Raises the store's incarnation: to be called after a loss of what was acknowledged. Everything that was learnt under an
/// earlier one is then known to be out of date.
#[utoipa::path(post, path = "/v1/admin/incarnation", operation_id = "admin_raise_incarnation", tag = "admin", responses(
    (status = 200, body = Raised), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn raise_incarnation(State(app): State<App>, caller: Caller) -> Result<Json<Raised>, Refusal> {
    match ask(&app, &caller, Message::IncarnationRaise(v1::IncarnationRaise {})).await? {
        Message::IncarnationRaised(raised) => Ok(Json(Raised { incarnation: raised.incarnation })),
        answer => Err(other(answer)),
    }
}

fn done(answer: Message) -> Result<StatusCode, Refusal> {
    match answer {
        Message::Done(_) => Ok(StatusCode::NO_CONTENT),
        answer => Err(other(answer)),
    }
}
