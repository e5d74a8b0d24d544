//! Placement, over HTTP: what operators ask, where a key is, and the leases of applications that speak nothing else.
//!
//! Points of the ring are sixteen hexadecimal digits, since JSON's numbers do not hold 64 bits everywhere.

mod http_owners;
pub(super) mod types;

pub(super) use http_owners::*;

use super::answer::{ErrorBody, Refusal};
use super::extract::{NoBody, Query, RawBody, Segments, bad_path, json};
use super::{App, Caller, call, unexpected};
use axum::Json;
use axum::extract::State;
use http::StatusCode;
use tidings_base::{Error, KeyHash};
use tidings_client::placement::{Lookup, add_part};
use tidings_wire::v1::placement_message::Message;
use tidings_wire::{Body, v1};
use types::{Namespace, Namespaces, NewNamespace, Owners, Placed, Planned, Rebalanced, Ring, Table, point_of};

/// Where the parts of a path are: `v1`, `placement`, the namespace, then `owners` and the owner.
const NAMESPACE: usize = 2;
const OWNER: usize = 4;

async fn ask(app: &App, caller: &Caller, message: Message) -> Result<Message, Error> {
    match call(app, caller, Body::Placement(v1::PlacementMessage { message: Some(message) })).await? {
        Body::Placement(v1::PlacementMessage { message: Some(answer) }) => Ok(answer),
        other => Err(unexpected(&other)),
    }
}

async fn done(app: &App, caller: &Caller, message: Message) -> Result<(), Error> {
    match ask(app, caller, message).await? {
        Message::Done(_) => Ok(()),
        answer => Err(other(answer)),
    }
}

fn other(answer: Message) -> Error {
    unexpected(&Body::Placement(v1::PlacementMessage { message: Some(answer) }))
}

/// The namespaces of the application.
#[utoipa::path(get, path = "/v1/placement", operation_id = "placement_namespaces", tag = "placement", responses(
    (status = 200, body = Namespaces), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn namespaces(State(app): State<App>, caller: Caller) -> Result<Json<Namespaces>, Refusal> {
    match ask(&app, &caller, Message::NamespaceList(v1::NamespaceList {})).await? {
        Message::NamespaceListReply(list) => {
            Ok(Json(Namespaces { namespaces: list.namespaces.into_iter().map(Namespace::from).collect() }))
        }
        answer => Err(other(answer).into()),
    }
}

/// Makes a namespace; what the body leaves out has its default. Operators only.
#[utoipa::path(put, path = "/v1/placement/{namespace}", operation_id = "placement_create", tag = "placement",
    request_body = Option<NewNamespace>, params(("namespace" = String, Path, description = "Its name")),
    responses((status = 201, description = "Created"), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(super) async fn create(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
    RawBody(body): RawBody,
) -> Result<StatusCode, Refusal> {
    let new: NewNamespace = if body.is_empty() { NewNamespace::default() } else { json(&body)? };
    let create = v1::NamespaceCreate { namespace: segments.text(NAMESPACE)?, config: Some(new.checked()?) };
    done(&app, &caller, Message::NamespaceCreate(create)).await?;
    Ok(StatusCode::CREATED)
}

/// Deletes a namespace: what its owners hold runs out. Operators only.
#[utoipa::path(delete, path = "/v1/placement/{namespace}", operation_id = "placement_delete", tag = "placement",
    params(("namespace" = String, Path, description = "Its name")),
    responses((status = 204, description = "Deleted"), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(super) async fn delete(State(app): State<App>, caller: Caller, segments: Segments) -> Result<StatusCode, Refusal> {
    let delete = v1::NamespaceDelete { namespace: segments.text(NAMESPACE)? };
    done(&app, &caller, Message::NamespaceDelete(delete)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn table_of(app: &App, caller: &Caller, segments: &Segments) -> Result<v1::TableReply, Error> {
    let mut whole = v1::TableReply::default();
    loop {
        let get = v1::TableGet { namespace: segments.text(NAMESPACE)?, from: whole.next };
        match ask(app, caller, Message::TableGet(get)).await? {
            Message::TableReply(part) => add_part(&mut whole, part),
            answer => return Err(other(answer)),
        }
        if whole.next == 0 {
            return Ok(whole);
        }
    }
}

/// The whole table of a namespace: every range with its owner and numbers.
#[utoipa::path(get, path = "/v1/placement/{namespace}/table", operation_id = "placement_table", tag = "placement",
    params(("namespace" = String, Path, description = "Its name")),
    responses((status = 200, body = Table), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn table(State(app): State<App>, caller: Caller, segments: Segments) -> Result<Json<Table>, Refusal> {
    Ok(Json(table_of(&app, &caller, &segments).await?.into()))
}

/// The ring as a picture shows it: arcs as parts of the whole, neighbours of one owner joined.
#[utoipa::path(get, path = "/v1/placement/{namespace}/ring", operation_id = "placement_ring", tag = "placement",
    params(("namespace" = String, Path, description = "Its name")),
    responses((status = 200, body = Ring), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn ring(State(app): State<App>, caller: Caller, segments: Segments) -> Result<Json<Ring>, Refusal> {
    Ok(Json(Ring::of(&table_of(&app, &caller, &segments).await?)))
}

/// Who owns a key, as far as this node knows: a hint, with its age. The owner itself checks.
#[utoipa::path(get, path = "/v1/placement/{namespace}/lookup", operation_id = "placement_lookup", tag = "placement",
    params(
        ("namespace" = String, Path, description = "Its name"),
        ("key" = Option<String>, Query, description = "The key, percent-encoded"),
        ("hash" = Option<String>, Query, description = "Instead of a key: a point of the ring, 16 hexadecimal digits"),
    ),
    responses((status = 200, body = Placed), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn lookup(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
    mut query: Query,
) -> Result<Json<Placed>, Refusal> {
    let hash = hash_of(&mut query)?;
    query.finish()?;
    let within = app.config.timings.call.into();
    let lookup: Lookup = app.sidecar.lookup(&caller.0.principal, &segments.text(NAMESPACE)?, within).await?;
    let age = lookup.age().unwrap_or_default();
    Ok(Json(Placed::new(hash, lookup.lookup_hash(hash).as_ref(), age, lookup.lsn())))
}

/// The point that a request is about: of its key, or said outright.
fn hash_of(query: &mut Query) -> Result<KeyHash, Error> {
    match (query.take("key"), query.take("hash")) {
        (Some(key), None) => tidings_placement::key_hash(&key),
        (None, Some(hash)) => {
            point_of(&hash).map(KeyHash).ok_or_else(|| bad_path("`hash` is not 16 hexadecimal digits").hint(
                "A point of the ring is written with all its digits, as in 00000000000000ff; `key=` takes the key itself.",
            ))
        }
        _ => Err(bad_path("say either `key` or `hash`")),
    }
}

/// All owners of a namespace that are known, live or not.
#[utoipa::path(get, path = "/v1/placement/{namespace}/owners", operation_id = "placement_owners", tag = "placement",
    params(("namespace" = String, Path, description = "Its name")),
    responses((status = 200, body = Owners), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn owners(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
) -> Result<Json<Owners>, Refusal> {
    let (mut owners, mut from) = (Vec::new(), 0);
    loop {
        let list = v1::OwnerList { namespace: segments.text(NAMESPACE)?, from };
        match ask(&app, &caller, Message::OwnerList(list)).await? {
            Message::OwnerListReply(part) => {
                owners.extend(part.owners.into_iter().map(Into::into));
                if part.next <= from {
                    return Ok(Json(Owners { owners }));
                }
                from = part.next;
            }
            answer => return Err(other(answer).into()),
        }
    }
}

/// Has everything of an owner moved away, whether it speaks HTTP or frames.
#[utoipa::path(post, path = "/v1/placement/{namespace}/owners/{owner}/drain", operation_id = "placement_drain",
    tag = "placement",
    params(("namespace" = String, Path, description = "Its name"), ("owner" = String, Path, description = "Its name")),
    responses((status = 204, description = "It drains"), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(super) async fn drain(State(app): State<App>, caller: Caller, segments: Segments) -> Result<StatusCode, Refusal> {
    drain_or_not(&app, &caller, &segments, false).await
}

/// Takes an owner back into service.
#[utoipa::path(delete, path = "/v1/placement/{namespace}/owners/{owner}/drain",
    operation_id = "placement_cancel_drain", tag = "placement",
    params(("namespace" = String, Path, description = "Its name"), ("owner" = String, Path, description = "Its name")),
    responses((status = 204, description = "It serves again"), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(super) async fn cancel_drain(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
) -> Result<StatusCode, Refusal> {
    drain_or_not(&app, &caller, &segments, true).await
}

async fn drain_or_not(app: &App, caller: &Caller, segments: &Segments, cancel: bool) -> Result<StatusCode, Refusal> {
    let drain = v1::OwnerDrain { namespace: segments.text(NAMESPACE)?, owner: segments.text(OWNER)?, cancel };
    done(app, caller, Message::OwnerDrain(drain)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lets the namespace's policy act on what was measured, or with `dry_run` tells what it would do.
#[utoipa::path(post, path = "/v1/placement/{namespace}/rebalance", operation_id = "placement_rebalance",
    tag = "placement",
    params(
        ("namespace" = String, Path, description = "Its name"),
        ("dry_run" = Option<bool>, Query, description = "Change nothing"),
    ),
    responses((status = 200, body = Rebalanced), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(super) async fn rebalance(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
    mut query: Query,
    _: NoBody,
) -> Result<Json<Rebalanced>, Refusal> {
    let dry_run = match query.take("dry_run").as_deref() {
        None | Some(b"false") => false,
        // `?dry_run` alone says so, too.
        Some(b"true" | b"") => true,
        Some(_) => return Err(bad_path("`dry_run` is `true` or `false`").into()),
    };
    query.finish()?;
    let rebalance = v1::Rebalance { namespace: segments.text(NAMESPACE)?, dry_run };
    match ask(&app, &caller, Message::Rebalance(rebalance)).await? {
        Message::RebalanceReply(reply) => Ok(Json(Rebalanced {
            moves: reply.moves.into_iter().map(Planned::from).collect(),
            max_over_mean_before: reply.max_over_mean_before,
            max_over_mean_after: reply.max_over_mean_after,
            rate: reply.rate,
            settling: reply.settling,
            settles_ms: reply.settles_ms,
        })),
        answer => Err(other(answer).into()),
    }
}
