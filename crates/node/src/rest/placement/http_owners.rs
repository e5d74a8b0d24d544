//! Owners that speak HTTP (F12): register, poll assignments, check, hand over, release. Every call names the run of the
//! application (`instance`). To register another run releases everything of the earlier one; any other call of a run that
//! is not registered is refused, and changes nothing.

use super::types::{HeldRange, millis, point, point_of};
use super::{NAMESPACE, OWNER, ask, hash_of};
use crate::placement::sidecar::{Direction, InUse, Moving, Picture, Registration};
use crate::rest::answer::{ErrorBody, Refusal};
use crate::rest::extract::{JsonBody, Query, Segments, bad_path};
use crate::rest::{App, Caller};
use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::placement::OwnerState;
use tidings_wire::v1;
use tidings_wire::v1::placement_message::Message;
use utoipa::ToSchema;

/// The most entries of a load report: managers look at no more.
const MAX_REPORTED: usize = 4_096;

/// The longest that a poll for assignments is held.
const LONGEST_WAIT: u32 = 30_000;

/// How long a caller that is not registered waits for a manager's word whether the namespace is there at all.
const NAMESPACE_WITHIN: Duration = Duration::from_millis(500);

/// An application that registers an owner.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::rest) struct NewOwner {
    /// Where requests for its keys go; lookups hand it out as it is.
    #[schema(example = "10.0.0.7:8080")]
    address: String,
    /// It copies its state to another owner when a move appears in its assignments; otherwise what moves is lost.
    #[serde(default)]
    hands_over: bool,
}

/// What an application should know.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Assignments {
    /// To be sent as `after` with the next poll, which acknowledges it. Whatever else is said here, save how long it may be
    /// believed, changes only with it.
    version: u64,
    /// `joining`, `serving`, `draining`, `drained` or `left`.
    state: String,
    /// The number of this run among all of this owner's.
    incarnation: u64,
    /// The complete set of what may be served, each range for `remaining_ms` from before this request; ask again before that.
    ranges: Vec<HeldRange>,
    /// To be copied to another owner, and not to be served meanwhile: then `POST …/moves/{token}`.
    moves: Vec<MoveBody>,
    /// Expected from another owner: when all of it is here, `POST …/imports/{token}`.
    imports: Vec<MoveBody>,
    /// Why the managers refuse this owner, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refusal: Option<ErrorBody>,
}

/// A move.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct MoveBody {
    /// Names the move at both owners: 16 hexadecimal digits.
    token: String,
    start: String,
    last: String,
    lease: u32,
    /// The other owner, where it is, and the number of its run, which the copy is meant for.
    owner: String,
    address: String,
    incarnation: u64,
    /// How much of its time is left.
    within_ms: u64,
}

impl From<Moving> for MoveBody {
    fn from(moving: Moving) -> MoveBody {
        MoveBody {
            token: point(moving.token),
            start: point(moving.leased.range.start.0),
            last: point(moving.leased.range.last.0),
            lease: moving.leased.lease.get(),
            owner: moving.owner,
            address: moving.address,
            incarnation: moving.incarnation,
            within_ms: millis(moving.within),
        }
    }
}

impl From<Picture> for Assignments {
    fn from(picture: Picture) -> Assignments {
        let (out, into): (Vec<_>, Vec<_>) =
            picture.moves.into_iter().partition(|(direction, _)| *direction == Direction::Out);
        Assignments {
            version: picture.version,
            state: state(picture.state).to_owned(),
            incarnation: picture.incarnation,
            ranges: picture.held.into_iter().map(HeldRange::from).collect(),
            moves: out.into_iter().map(|(_, moving)| moving.into()).collect(),
            imports: into.into_iter().map(|(_, moving)| moving.into()).collect(),
            refusal: picture.refusal.map(ErrorBody::from),
        }
    }
}

fn state(state: OwnerState) -> &'static str {
    match state {
        OwnerState::Joining => "joining",
        OwnerState::Serving => "serving",
        OwnerState::Draining => "draining",
        OwnerState::Drained => "drained",
        OwnerState::Left => "left",
    }
}

/// Whether a key may be served.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Checked {
    owned: bool,
    /// The number of the lease: a fencing token. State of an earlier number is to be discarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease: Option<u32>,
    /// For how long that holds, dated from before the request.
    remaining_ms: u64,
}

/// How a hand-over ended.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::rest) struct Ended {
    /// The other owner has acknowledged all of it. Otherwise this owner serves the range again.
    done: bool,
}

/// What arrived.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::rest) struct Arrived {
    /// The run that the sender meant it for.
    incarnation: u64,
}

/// What an application measured.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::rest) struct Load {
    /// Requests a second.
    rate: f64,
    /// How many were sampled for `hot`.
    #[serde(default)]
    samples: u32,
    /// The heaviest keys or ranges.
    #[serde(default)]
    hot: Vec<Hot>,
}

/// A heavy key or range.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::rest) struct Hot {
    start: String,
    last: String,
    /// Requests a second.
    rate: f64,
}

fn instance_of(query: &mut Query) -> Result<String, Error> {
    let instance = query.take("instance").unwrap_or_default();
    String::from_utf8(instance.to_vec()).map_err(|_| bad_path("`instance` is not UTF-8"))
}

async fn find(app: &App, caller: &Caller, segments: &Segments, query: &mut Query) -> Result<InUse, Error> {
    let instance = instance_of(query)?;
    let (namespace, name) = (segments.text(NAMESPACE)?, segments.text(OWNER)?);
    match app.sidecar.owner(&caller.0.principal, &namespace, &name, &instance) {
        Ok(owner) => Ok(owner),
        Err(error) => Err(or_no_namespace(app, caller, namespace, error).await),
    }
}

/// Nobody is registered in a namespace that is not there: that says more.
async fn or_no_namespace(app: &App, caller: &Caller, namespace: String, error: Error) -> Error {
    if error.code != "placement.not_registered" {
        return error;
    }
    let nobody = v1::OwnerList { namespace, from: u32::MAX };
    match tokio::time::timeout(NAMESPACE_WITHIN, ask(app, caller, Message::OwnerList(nobody))).await {
        Ok(Err(missing)) if missing.code == "placement.no_namespace" => missing,
        _ => error,
    }
}

/// The same for a call that asks nothing else.
async fn find_alone(app: &App, caller: &Caller, segments: &Segments, mut query: Query) -> Result<InUse, Error> {
    let owner = find(app, caller, segments, &mut query).await?;
    query.finish()?;
    Ok(owner)
}

/// The move that a path names.
fn token(segments: &Segments) -> Result<u64, Error> {
    digits(&segments.text(OWNER + 2)?)
}

fn digits(text: &str) -> Result<u64, Error> {
    point_of(text.as_bytes()).ok_or_else(|| bad_path("a token is not 16 hexadecimal digits"))
}

/// A report that cannot be.
fn bad_load(what: String) -> Error {
    Error::new("placement.bad_load", Class::Invalid, what).hint(
        "`rate` is requests a second; each of `hot` has `start` and `last`, 16 hexadecimal digits, and does not wrap.",
    )
}

impl Load {
    /// The report as it travels.
    fn checked(self) -> Result<v1::OwnerLoad, Error> {
        if self.hot.len() > MAX_REPORTED {
            return Err(bad_load(format!("`hot` has {} entries, more than {MAX_REPORTED}", self.hot.len())));
        }
        let mut rates = self.hot.iter().map(|hot| hot.rate).chain([self.rate]);
        if let Some(rate) = rates.find(|rate| !rate.is_finite() || *rate < 0.0) {
            return Err(bad_load(format!("{rate} is no rate: it is requests a second")));
        }
        let point = |text: &str| {
            let clipped: String = text.chars().take(40).collect();
            point_of(text.as_bytes()).ok_or_else(|| bad_load(format!("`{clipped}` is not 16 hexadecimal digits")))
        };
        let hot = self.hot.iter().map(|hot| {
            let (start, last) = (point(&hot.start)?, point(&hot.last)?);
            match start <= last {
                true => Ok(v1::HotRange { start, last, rate: hot.rate }),
                false => Err(bad_load(format!("a hot range begins at {} and ends before, at {}", hot.start, hot.last))),
            }
        });
        Ok(v1::OwnerLoad { rate: self.rate, hot: hot.collect::<Result<_, Error>>()?, samples: self.samples })
    }
}

/// Registers an owner at this node, which keeps its leases for as long as the application asks now and then. The same
/// `instance` again is answered 200.
#[utoipa::path(put, path = "/v1/placement/{namespace}/owners/{owner}", operation_id = "placement_register",
    tag = "placement", request_body = NewOwner,
    params(
        ("namespace" = String, Path, description = "Its name"),
        ("owner" = String, Path, description = "The owner's name: one live run at a time"),
        ("instance" = String, Query, description = "Names this run of the application"),
    ),
    responses((status = 201, body = Assignments), (status = 200, body = Assignments),
        (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn register(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
    mut query: Query,
    JsonBody(new): JsonBody<NewOwner>,
) -> Result<(StatusCode, Json<Assignments>), Refusal> {
    let instance = instance_of(&mut query)?;
    query.finish()?;
    let new = Registration { instance, address: new.address, hands_over: new.hands_over };
    let (namespace, name) = (segments.text(NAMESPACE)?, segments.text(OWNER)?);
    let (owner, created) = app.sidecar.register(&caller.0.principal, &namespace, &name, new).await?;
    let picture = owner.picture(|| app.clock.now().mono, None, Duration::ZERO).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(picture.into())))
}

/// Gives up everything that an owner holds, at once.
#[utoipa::path(delete, path = "/v1/placement/{namespace}/owners/{owner}", operation_id = "placement_release",
    tag = "placement",
    params(
        ("namespace" = String, Path, description = "Its name"),
        ("owner" = String, Path, description = "The owner's name"),
        ("instance" = String, Query, description = "Names this run of the application"),
    ),
    responses((status = 204, description = "Nothing is held"), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn release(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
    mut query: Query,
) -> Result<StatusCode, Refusal> {
    let instance = instance_of(&mut query)?;
    query.finish()?;
    let (namespace, name) = (segments.text(NAMESPACE)?, segments.text(OWNER)?);
    match app.sidecar.release(&caller.0.principal, &namespace, &name, &instance) {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(error) => Err(or_no_namespace(&app, &caller, namespace, error).await.into()),
    }
}

/// The complete set of what the application may serve. With `after`, held until that changes, at most `wait_ms`.
#[utoipa::path(get, path = "/v1/placement/{namespace}/owners/{owner}/assignments",
    operation_id = "placement_assignments", tag = "placement",
    params(
        ("namespace" = String, Path, description = "Its name"),
        ("owner" = String, Path, description = "The owner's name"),
        ("instance" = String, Query, description = "Names this run of the application"),
        ("after" = Option<u64>, Query, description = "The version that is known and acted upon"),
        ("wait_ms" = Option<u32>, Query, description = "How long to wait for another; at most 30000"),
    ),
    responses((status = 200, body = Assignments), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn assignments(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
    mut query: Query,
) -> Result<Json<Assignments>, Refusal> {
    let owner = find(&app, &caller, &segments, &mut query).await?;
    let after = query.take_number("after")?;
    let wait = query.take_number::<u32>("wait_ms")?.unwrap_or_default().min(LONGEST_WAIT);
    query.finish()?;
    let picture = owner.picture(|| app.clock.now().mono, after, Duration::from_millis(wait.into())).await?;
    Ok(Json(picture.into()))
}

/// Whether the application may serve a key now, and for how long without asking again.
#[utoipa::path(get, path = "/v1/placement/{namespace}/owners/{owner}/check", operation_id = "placement_check",
    tag = "placement",
    params(
        ("namespace" = String, Path, description = "Its name"),
        ("owner" = String, Path, description = "The owner's name"),
        ("instance" = String, Query, description = "Names this run of the application"),
        ("key" = Option<String>, Query, description = "The key, percent-encoded"),
        ("hash" = Option<String>, Query, description = "Instead of a key: a point of the ring, 16 hexadecimal digits"),
    ),
    responses((status = 200, body = Checked), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn check(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
    mut query: Query,
) -> Result<Json<Checked>, Refusal> {
    let owner = find(&app, &caller, &segments, &mut query).await?;
    let hash = hash_of(&mut query)?;
    query.finish()?;
    let held = owner.check(app.clock.now().mono, hash);
    Ok(Json(Checked {
        owned: held.is_some(),
        lease: held.map(|(leased, _)| leased.lease.get()),
        remaining_ms: held.map_or(0, |(_, remaining)| millis(remaining)),
    }))
}

/// Says how a hand-over ended.
#[utoipa::path(post, path = "/v1/placement/{namespace}/owners/{owner}/moves/{token}",
    operation_id = "placement_exported", tag = "placement", request_body = Ended,
    params(
        ("namespace" = String, Path, description = "Its name"),
        ("owner" = String, Path, description = "The owner's name"),
        ("token" = String, Path, description = "Of the move"),
        ("instance" = String, Query, description = "Names this run of the application"),
    ),
    responses((status = 204, description = "Taken"), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn exported(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
    query: Query,
    JsonBody(ended): JsonBody<Ended>,
) -> Result<StatusCode, Refusal> {
    let owner = find_alone(&app, &caller, &segments, query).await?;
    owner.exported(token(&segments)?, ended.done)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Says that the state of a move is here, ready to be served once the lease is granted.
#[utoipa::path(post, path = "/v1/placement/{namespace}/owners/{owner}/imports/{token}",
    operation_id = "placement_imported", tag = "placement", request_body = Arrived,
    params(
        ("namespace" = String, Path, description = "Its name"),
        ("owner" = String, Path, description = "The owner's name"),
        ("token" = String, Path, description = "Of the move"),
        ("instance" = String, Query, description = "Names this run of the application"),
    ),
    responses((status = 204, description = "Taken"), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn imported(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
    query: Query,
    JsonBody(arrived): JsonBody<Arrived>,
) -> Result<StatusCode, Refusal> {
    let owner = find_alone(&app, &caller, &segments, query).await?;
    owner.imported(token(&segments)?, arrived.incarnation)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Says what the application measured; the policies spread load by it.
#[utoipa::path(post, path = "/v1/placement/{namespace}/owners/{owner}/load", operation_id = "placement_load",
    tag = "placement", request_body = Load,
    params(
        ("namespace" = String, Path, description = "Its name"),
        ("owner" = String, Path, description = "The owner's name"),
        ("instance" = String, Query, description = "Names this run of the application"),
    ),
    responses((status = 204, description = "Taken"), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn load(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
    query: Query,
    JsonBody(load): JsonBody<Load>,
) -> Result<StatusCode, Refusal> {
    let owner = find_alone(&app, &caller, &segments, query).await?;
    owner.report_load(load.checked()?);
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_report_that_cannot_be_is_refused_by_name() {
        let told = |body: serde_json::Value| serde_json::from_value::<Load>(body).unwrap().checked();
        let hot = |start: &str, last: &str, rate: f64| json!({"start": start, "last": last, "rate": rate});
        let ten = "000000000000000a";
        let good = told(json!({"rate": 9.5, "samples": 7, "hot": [hot(ten, "ffffffffffffffff", 2.0)]})).unwrap();
        assert_eq!((good.hot[0].start, good.hot[0].last, good.samples), (10, u64::MAX, 7));
        let many = vec![hot(ten, ten, 1.0); MAX_REPORTED + 1];
        for body in [
            json!({"rate": -5}),
            json!({"rate": 1, "hot": [hot(ten, ten, -1.0)]}),
            json!({"rate": 1, "hot": [hot(ten, "0000000000000009", 1.0)]}),
            json!({"rate": 1, "hot": [hot("", ten, 1.0)]}),
            json!({"rate": 1, "hot": [hot("0a", ten, 1.0)]}),
            json!({"rate": 1, "hot": [hot("+00000000000000a", ten, 1.0)]}),
            json!({"rate": 1, "hot": [hot(ten, "11111111111111111", 1.0)]}),
            json!({"rate": 1, "hot": many}),
        ] {
            assert_eq!(told(body.clone()).unwrap_err().code, "placement.bad_load", "{body:.80}");
        }
    }
}
