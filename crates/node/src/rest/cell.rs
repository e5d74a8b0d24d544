//! The cell, over HTTP: files and directories as they are, metadata as JSON, changes as a stream of events.
//!
//! Each principal has one session at this node, which it shares with all its requests ([`crate::gateway`]). Locks and
//! ephemeral nodes belong to a session that somebody keeps; they are not for this way in.

mod tag;
mod types;
mod watch;

use super::answer::{ErrorBody, Refusal};
use super::extract::{JsonBody, Query, RawBody, Segments, bad_path, json};
use super::{App, Caller, call, unexpected};
use crate::gateway::Session;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tag::{Expected, Tag, expected, is_known};
use tidings_base::{Class, Error};
use tidings_cell::{NodePath, error};
use tidings_client::cell::{Acl as NodeAcl, Handle, Stat as NodeStat, list_locks, list_sessions};
use tidings_wire::v1::cell_message::Message;
use tidings_wire::v1::placed_read::Answer;
use tidings_wire::{Body, v1};
use types::{Acl, Child, Listing, Lock, Locks, NewQuota, Quota, Session as SessionJson, Sessions, Stat};

/// The segments before a path: `v1`, `cell`, and `files` or `quotas`.
const BEFORE_PATH: usize = 3;

/// Where a list of sessions or locks ends for one answer: some 10 MB of JSON.
const MAX_LISTED: usize = 50_000;

/// Attempts to write a file that others create and delete meanwhile.
const WRITE_ATTEMPTS: usize = 8;

/// The path that a request is about.
fn path_of(segments: &Segments) -> Result<String, Error> {
    let mut path = String::new();
    for at in BEFORE_PATH..segments.len() {
        let part = segments.text(at)?;
        if part.is_empty() && at + 1 == segments.len() {
            break;
        }
        if part.contains('/') {
            return Err(bad_path("a part of the path contains an encoded slash"));
        }
        path.push('/');
        path.push_str(&part);
    }
    Ok(if path.is_empty() { "/".to_owned() } else { path })
}

fn other(answer: Message) -> Error {
    unexpected(&Body::Cell(v1::CellMessage { message: Some(answer), ..Default::default() }))
}

/// Waits for a call of the cell as long as a call may take: a session waits out a loss of contact, a request cannot.
async fn in_time<T>(app: &App, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = |_| Err(tidings_wire::error::deadline());
    tokio::time::timeout(app.config.timings.call.into(), work).await.unwrap_or_else(late)
}

/// Does something on the session of a caller.
async fn on_session<T, F>(app: &App, caller: &Caller, work: impl Fn(Session) -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    once_more(|| app.gateway.session(&caller.0), |session| in_time(app, work(session))).await
}

/// Does something on a session, and once more on another one if the first was over: an operator ended it, or it was out of
/// touch or idle for long. Only if nothing of it can have happened: a change that may have been made says that its
/// outcome is unknown.
async fn once_more<S, T, B, F>(session: impl Fn() -> B, work: impl Fn(S) -> F) -> Result<T, Error>
where
    B: Future<Output = Result<S, Error>>,
    F: Future<Output = Result<T, Error>>,
{
    match work(session().await?).await {
        Err(error) if error.code == "cell.expired" && error.class == Class::Refused => work(session().await?).await,
        answer => answer,
    }
}

/// What of a node is asked for.
enum Part {
    Contents,
    Stat,
    Listing,
    Acl,
    Watch,
}

fn part(query: &mut Query) -> Result<Part, Error> {
    let parts = [("stat", Part::Stat), ("list", Part::Listing), ("acl", Part::Acl), ("watch", Part::Watch)].into_iter();
    let mut asked = parts.filter_map(|(name, part)| query.take(name).map(|_| part));
    match (asked.next(), asked.next()) {
        (None, _) => Ok(Part::Contents),
        (Some(part), None) => Ok(part),
        _ => Err(bad_path("only one of `stat`, `list`, `acl` and `watch` can be asked at a time")),
    }
}

/// A file's contents (the version as `ETag`), or by query: `stat`, `list` (a directory's nodes), `acl`, or `watch`: a
/// stream of events (SSE), the stat as it is now first, then after every change.
#[utoipa::path(get, path = "/v1/cell/files/{*path}", operation_id = "cell_get", tag = "cell",
    params(
        ("path" = String, Path, description = "The node's path, without the first slash"),
        ("stat" = Option<bool>, Query, description = "Its metadata as JSON"),
        ("list" = Option<bool>, Query, description = "A directory's nodes as JSON"),
        ("acl" = Option<bool>, Query, description = "Its ACL names as JSON"),
        ("watch" = Option<bool>, Query, description = "Its changes as server-sent events"),
        ("place" = Option<String>, Query, description = "Contents with where in the cell's order they stand, in the header \
            `Tidings-Place`: `newest`, or `applied`, which is what this node has applied, and may be old"),
        ("If-None-Match" = Option<String>, Header, description = "A version that is known: answered 304"),
    ),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"), (status = 304),
        (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn get(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
    mut query: Query,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let path = path_of(&segments)?;
    let part = part(&mut query)?;
    let place = query.take("place").map(|word| placing(&word, &part)).transpose()?;
    query.finish()?;
    if let Some(place) = place {
        return Ok(read_placed(&app, &caller, &path, place, &headers).await?);
    }
    if let Part::Watch = part {
        return Ok(watch::stream(app, caller.0, path).await?);
    }
    Ok(on_session(&app, &caller, |session| read(session, &path, &part, &headers)).await?)
}

async fn read(session: Session, path: &str, part: &Part, headers: &HeaderMap) -> Result<Response, Error> {
    if let Part::Contents = part {
        let file = session.read(path).await?.ok_or_else(|| error::no_node(path))?;
        let stat = file.stat();
        if stat.directory {
            return Err(error::is_a_directory(path).hint("`?list` shows what is in it, `?stat` what it is."));
        }
        if is_known(headers, stat) {
            return Ok(with_tag(stat, StatusCode::NOT_MODIFIED.into_response()));
        }
        let contents = ([(header::CONTENT_TYPE, "application/octet-stream")], file.contents().clone());
        return Ok(with_tag(stat, contents.into_response()));
    }
    let stat = session.stat(path).await?.ok_or_else(|| error::no_node(path))?;
    match part {
        Part::Listing if !stat.directory => Err(error::not_a_directory(path)),
        Part::Listing => {
            let listing = session.list(path).await?.ok_or_else(|| error::no_node(path))?;
            let children = listing.iter().map(|c| Child { name: c.name.clone(), stat: Stat::from(&c.stat) });
            Ok(Json(Listing { children: children.collect() }).into_response())
        }
        Part::Acl => Ok(Json(Acl::from(stat.acl)).into_response()),
        _ => Ok(with_tag(&stat, Json(Stat::from(&stat)).into_response())),
    }
}

fn placing(word: &[u8], part: &Part) -> Result<v1::ReadPlace, Error> {
    match (part, word) {
        (Part::Contents, b"newest") => Ok(v1::ReadPlace::Newest),
        (Part::Contents, b"applied") => Ok(v1::ReadPlace::Applied),
        (Part::Contents, _) => Err(bad_path("`place` is `newest` or `applied`")),
        _ => Err(bad_path("`place` is told of contents alone")),
    }
}

/// A file's contents, and where in the cell's order that answer stands; a refusal by the state stands there, too. Past all caches:
/// from the master, or as this node has applied it.
async fn read_placed(
    app: &App,
    caller: &Caller,
    path: &str,
    place: v1::ReadPlace,
    headers: &HeaderMap,
) -> Result<Response, Error> {
    let read = v1::ReadNode { target: target(path)?, contents: true, place: place as i32, ..Default::default() };
    let Message::PlacedRead(v1::PlacedRead { place: Some(place), answer: Some(answer) }) =
        ask(app, caller, Message::Read(read)).await?
    else {
        return Err(Error::new("cell.malformed", Class::Failed, "the answer has no place"));
    };
    let found = match answer {
        Answer::Found(v1::NodeRead { stat: Some(stat), contents, .. }) => Ok((NodeStat::from(stat), contents)),
        Answer::Found(_) => Err(error::no_node(path)),
        Answer::Refused(error) => Err(Error::from(error)),
    };
    let mut response = match found {
        Ok((stat, _)) if is_known(headers, &stat) => with_tag(&stat, StatusCode::NOT_MODIFIED.into_response()),
        Ok((stat, contents)) => {
            with_tag(&stat, ([(header::CONTENT_TYPE, "application/octet-stream")], contents).into_response())
        }
        Err(error) => Refusal(error).into_response(),
    };
    let v1::CellPlace { cluster, incarnation, height, index } = place;
    let place = HeaderValue::from_str(&format!("{cluster:016x}.{incarnation}.{height}.{index}"));
    // Digits and dots are always a proper value.
    place.into_iter().for_each(|place| drop(response.headers_mut().insert("tidings-place", place)));
    Ok(response)
}

/// The root directory, as `GET /v1/cell/files/{path}` does it for others: `stat`, `list`, `acl` or `watch`.
#[utoipa::path(get, path = "/v1/cell/files", operation_id = "cell_get_root", tag = "cell",
    params(
        ("stat" = Option<bool>, Query, description = "Its metadata as JSON"),
        ("list" = Option<bool>, Query, description = "Its nodes as JSON"),
        ("acl" = Option<bool>, Query, description = "Its ACL names as JSON"),
        ("watch" = Option<bool>, Query, description = "Its changes as server-sent events"),
    ),
    responses((status = 200, body = Listing), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn get_root(
    app: State<App>,
    caller: Caller,
    segments: Segments,
    query: Query,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    get(app, caller, segments, query, headers).await
}

/// Writes a file: creates or replaces it. `If-Match` writes only over that version, `If-None-Match: *` only creates.
/// `directory` makes a directory; `acl` sets the ACL names, in JSON.
#[utoipa::path(put, path = "/v1/cell/files/{*path}", operation_id = "cell_put", tag = "cell",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    params(
        ("path" = String, Path, description = "The node's path, without the first slash"),
        ("directory" = Option<bool>, Query, description = "Make a directory"),
        ("acl" = Option<bool>, Query, description = "Set the ACL names; the body is JSON"),
        ("If-Match" = Option<String>, Header, description = "The version to replace: an `ETag`, or a generation"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: there must be no such node"),
    ),
    responses((status = 201, description = "Created"), (status = 204, description = "Replaced"),
        (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn put(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
    mut query: Query,
    headers: HeaderMap,
    RawBody(body): RawBody,
) -> Result<Response, Refusal> {
    let path = path_of(&segments)?;
    let (directory, acl) = (query.take("directory").is_some(), query.take("acl").is_some());
    if query.take("ephemeral").is_some() {
        let error =
            Error::new("cell.needs_session", Class::Invalid, "an ephemeral node goes with the session that made it")
                .hint("Keep a session: use a client library, or `tidings cell lock` for a lock.");
        return Err(Refusal(error));
    }
    query.finish()?;
    let expected = expected(&headers)?;
    if acl {
        let acl: Acl = json(&body)?;
        on_session(&app, &caller, |session| set_acl(session, &path, acl.clone(), expected)).await?;
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    if directory && !body.is_empty() {
        return Err(Refusal(Error::new("control.bad_body", Class::Invalid, "a directory has no contents")));
    }
    let (path, body) = (&path, &body);
    let (created, stat) = on_session(&app, &caller, |session| async move {
        let body = body.clone();
        match expected {
            Expected::This(_) if directory => Err(bad_path("a directory has no versions: leave `If-Match` out")),
            Expected::This(tag) => replace(&session, path, tag, body).await.map(|stat| (false, stat)),
            Expected::Nothing => create(&session, path, directory, body, true).await,
            Expected::Anything if directory => create(&session, path, true, body, false).await,
            Expected::Anything => write(&session, path, body).await,
        }
    })
    .await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::NO_CONTENT };
    Ok(with_tag(&stat, status.into_response()))
}

/// Deletes a file or an empty directory; with `If-Match` only that version of a file.
#[utoipa::path(delete, path = "/v1/cell/files/{*path}", operation_id = "cell_delete", tag = "cell",
    params(
        ("path" = String, Path, description = "The node's path, without the first slash"),
        ("If-Match" = Option<String>, Header, description = "The version to delete: an `ETag`, or a generation"),
    ),
    responses((status = 204), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn delete(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
    query: Query,
    headers: HeaderMap,
) -> Result<StatusCode, Refusal> {
    let path = path_of(&segments)?;
    query.finish()?;
    let (path, expected) = (&path, expected(&headers)?);
    on_session(&app, &caller, |session| async move {
        match expected {
            Expected::Nothing => Err(bad_path("`If-None-Match` cannot hold for what is deleted")),
            Expected::Anything => session.delete(path).await,
            Expected::This(tag) => {
                let handle = version(&session, path, tag).await?;
                handle.delete(Some(tag.generation)).await.map_err(|error| gone(error, path))
            }
        }
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The sessions of the cell, in the order of their numbers; `more` says that there are more than one answer takes. For
/// operators.
#[utoipa::path(get, path = "/v1/cell/sessions", operation_id = "cell_sessions", tag = "cell",
    params(("after" = Option<u64>, Query, description = "Only those above this number")),
    responses((status = 200, body = Sessions), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn sessions(
    State(app): State<App>,
    caller: Caller,
    mut query: Query,
) -> Result<Json<Sessions>, Refusal> {
    let after = query.take_number("after")?.unwrap_or(0);
    query.finish()?;
    let listed = list_sessions(after, MAX_LISTED, |message| ask(&app, &caller, message)).await?;
    Ok(Json(Sessions { sessions: listed.all.into_iter().map(SessionJson::from).collect(), more: listed.more }))
}

/// Ends a session; its locks are held back as after a loss. For operators.
#[utoipa::path(delete, path = "/v1/cell/sessions/{session}", operation_id = "cell_end_session", tag = "cell",
    params(("session" = u64, Path, description = "The session")),
    responses((status = 204), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn end_session(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
) -> Result<StatusCode, Refusal> {
    let end = v1::EndSession { session: segments.number(3)? };
    done(ask(&app, &caller, Message::EndSession(end)).await?)?;
    Ok(StatusCode::NO_CONTENT)
}

/// The locks that are held, waited for or held back, by application and path; `more` says that there are more than one
/// answer takes. For operators.
#[utoipa::path(get, path = "/v1/cell/locks", operation_id = "cell_locks", tag = "cell",
    params(
        ("after_app" = Option<String>, Query, description = "Only those after `after` in this application"),
        ("after" = Option<String>, Query, description = "A path"),
    ),
    responses((status = 200, body = Locks), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn locks(State(app): State<App>, caller: Caller, mut query: Query) -> Result<Json<Locks>, Refusal> {
    let mut text = |name: &str| {
        String::from_utf8(query.take(name).unwrap_or_default().to_vec())
            .map_err(|_| bad_path(format!("`{name}` is not UTF-8")))
    };
    let after = v1::ListLocks { after_app: text("after_app")?, after_path: text("after")? };
    query.finish()?;
    let listed = list_locks(after, MAX_LISTED, |message| ask(&app, &caller, message)).await?;
    Ok(Json(Locks { locks: listed.all.into_iter().map(Lock::from).collect(), more: listed.more }))
}

/// The bounds of a directory and how much of them is used.
#[utoipa::path(get, path = "/v1/cell/quotas/{*path}", operation_id = "cell_get_quota", tag = "cell",
    params(("path" = String, Path, description = "The directory's path, without the first slash")),
    responses((status = 200, body = Quota), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn get_quota(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
) -> Result<Json<Quota>, Refusal> {
    let get = v1::GetQuota { path: path_of(&segments)? };
    match request(&app, &caller, Message::GetQuota(get)).await? {
        Message::Quota(quota) => Ok(Json(quota.into())),
        answer => Err(Refusal(other(answer))),
    }
}

/// The bounds of the root directory, and so of the whole application.
#[utoipa::path(get, path = "/v1/cell/quotas", operation_id = "cell_get_root_quota", tag = "cell",
    responses((status = 200, body = Quota), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn get_root_quota(
    app: State<App>,
    caller: Caller,
    segments: Segments,
) -> Result<Json<Quota>, Refusal> {
    get_quota(app, caller, segments).await
}

/// Sets the bounds of the root directory, and so of the whole application. For operators.
#[utoipa::path(put, path = "/v1/cell/quotas", operation_id = "cell_put_root_quota", tag = "cell", request_body = NewQuota,
    responses((status = 204), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn put_root_quota(
    app: State<App>,
    caller: Caller,
    segments: Segments,
    new: JsonBody<NewQuota>,
) -> Result<StatusCode, Refusal> {
    put_quota(app, caller, segments, new).await
}

/// Sets the bounds of a directory. For operators.
#[utoipa::path(put, path = "/v1/cell/quotas/{*path}", operation_id = "cell_put_quota", tag = "cell", request_body = NewQuota,
    params(("path" = String, Path, description = "The directory's path, without the first slash")),
    responses((status = 204), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn put_quota(
    State(app): State<App>,
    caller: Caller,
    segments: Segments,
    JsonBody(new): JsonBody<NewQuota>,
) -> Result<StatusCode, Refusal> {
    let set = v1::SetQuota { path: path_of(&segments)?, max_nodes: new.max_nodes, max_bytes: new.max_bytes };
    done(request(&app, &caller, Message::SetQuota(set)).await?)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Asks within the caller's session.
async fn request(app: &App, caller: &Caller, message: Message) -> Result<Message, Error> {
    let message = &message;
    on_session(app, caller, |session| async move { session.request(message.clone()).await }).await
}

/// Asks without a session.
async fn ask(app: &App, caller: &Caller, message: Message) -> Result<Message, Error> {
    let request = Body::Cell(v1::CellMessage { message: Some(message), ..Default::default() });
    match call(app, caller, request).await? {
        Body::Cell(v1::CellMessage { message: Some(answer), .. }) => Ok(answer),
        answer => Err(unexpected(&answer)),
    }
}

fn done(answer: Message) -> Result<(), Error> {
    match answer {
        Message::Done(_) => Ok(()),
        answer => Err(other(answer)),
    }
}

/// Opens a node, creating it if it is missing: whether it was, and its stat.
async fn create(
    session: &Session,
    path: &str,
    directory: bool,
    contents: Bytes,
    exclusive: bool,
) -> Result<(bool, NodeStat), Error> {
    let open = session.open(path).write();
    let open = if directory { open.create_directory() } else { open.create_file(contents) };
    let open = if exclusive { open.exclusive() } else { open };
    let handle = open.await.map_err(|error| match error.code.as_ref() {
        // What HTTP calls a failed precondition.
        "cell.node_exists" => Error { code: "cell.wrong_generation".into(), ..error },
        _ => error,
    })?;
    match handle.is_directory() {
        is if is == directory => Ok((handle.created(), handle.opened_stat().clone())),
        true => Err(error::is_a_directory(path)),
        false => Err(error::not_a_directory(path)),
    }
}

/// Creates or replaces, whichever it takes; who may write need not be allowed to read.
async fn write(session: &Session, path: &str, body: Bytes) -> Result<(bool, NodeStat), Error> {
    for _ in 0..WRITE_ATTEMPTS {
        let set = v1::SetContents { target: target(path)?, contents: body.clone(), ..Default::default() };
        match session.request(Message::SetContents(set)).await {
            Ok(Message::Done(done)) => return Ok((false, done.stat.map(NodeStat::from).unwrap_or_default())),
            Ok(answer) => return Err(other(answer)),
            Err(error) if error.code == "cell.no_node" => {}
            Err(error) => return Err(error),
        }
        match session.open(path).write().create_file(body.clone()).exclusive().await {
            Ok(handle) => return Ok((true, handle.opened_stat().clone())),
            Err(error) if error.code == "cell.node_exists" => {}
            Err(error) => return Err(error),
        }
    }
    Err(error::busy("the file appeared and disappeared while it was written"))
}

fn target(path: &str) -> Result<Option<v1::NodeTarget>, Error> {
    let path = NodePath::parse(path)?.as_str().to_owned();
    Ok(Some(v1::NodeTarget { target: Some(v1::node_target::Target::Path(path)) }))
}

async fn replace(session: &Session, path: &str, tag: Tag, contents: Bytes) -> Result<NodeStat, Error> {
    let handle = version(session, path, tag).await?;
    handle.set_contents(contents, Some(tag.generation)).await.map_err(|error| gone(error, path))
}

/// Opens the node that a version is of. A handle is bound to the node's instance: after delete and re-create a generation
/// alone may come again.
async fn version(session: &Session, path: &str, tag: Tag) -> Result<Handle, Error> {
    let handle = session.open(path).write().await.map_err(|error| gone(error, path))?;
    match tag.instance.is_none_or(|instance| instance == handle.instance()) {
        true => Ok(handle),
        false => Err(another(path)),
    }
}

/// A version of a node that is not there is not the present one.
fn gone(error: Error, path: &str) -> Error {
    match error.code.as_ref() {
        "cell.no_node" | "cell.node_gone" => another(path),
        _ => error,
    }
}

fn another(path: &str) -> Error {
    Error::new("cell.wrong_generation", Class::Refused, format!("{path} is not of that version any more"))
        .hint("Read it again and decide anew.")
}

async fn set_acl(session: Session, path: &str, acl: Acl, expected: Expected) -> Result<(), Error> {
    let if_generation = match expected {
        Expected::Anything => None,
        // ACL names have a generation of their own, which is a number of `stat`.
        Expected::This(Tag { instance: None, generation }) => Some(generation),
        _ => return Err(bad_path("with `acl`, `If-Match` is the ACL's generation, as `?stat` shows it")),
    };
    // By path: a handle would need the right to write, and this is another.
    let acl = NodeAcl::from(acl);
    let set = v1::SetAcl { target: target(path)?, acl: Some(acl.into()), if_generation, sequencers: Vec::new() };
    done(session.request(Message::SetAcl(set)).await?)
}

fn with_tag(stat: &NodeStat, mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::ETAG, Tag::of(stat).header());
    headers.insert("tidings-instance", HeaderValue::from(stat.instance));
    headers.insert("tidings-generation", HeaderValue::from(stat.content_generation));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test]
    async fn what_an_ended_session_refused_is_done_once_on_another() {
        let attempts = |class: Class, ended: u32| async move {
            let (sessions, done) = (Cell::new(0), Cell::new(0));
            let begin = || async { Ok(sessions.replace(sessions.get() + 1)) };
            let work = |session: u32| {
                done.set(done.get() + 1);
                async move { if session < ended { Err(Error { class, ..error::expired(1) }) } else { Ok(session) } }
            };
            let answer = once_more(begin, work).await;
            (answer.map_err(|error| error.class), done.get())
        };
        assert_eq!(attempts(Class::Refused, 0).await, (Ok(0), 1));
        assert_eq!(attempts(Class::Refused, 1).await, (Ok(1), 2));
        assert_eq!(attempts(Class::Refused, 9).await, (Err(Class::Refused), 2));
        assert_eq!(attempts(Class::OutcomeUnknown, 1).await, (Err(Class::OutcomeUnknown), 1));
    }
}
