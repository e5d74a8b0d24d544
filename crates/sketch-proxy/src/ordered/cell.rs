//! A cell of Tidings behind the proxy: its files as pages, read from all of its members.
//!
//! ```text
//!   remembered ─ ?place=applied ─▶ one member: what it has applied, old or not; it counts if its sketch is the remembered one
//!   otherwise ── ?place=newest ──▶ any member, which asks the master: the newest, and its place in the cell's order
//!   write ────── PUT, DELETE ────▶ one member; another one only if it certainly was not taken
//! ```
//! Members fail and do not lie: one answer is enough. What makes σ of a place is that the master numbers its answers on each entry
//! of the log, and that the next master's entries come after all of its own.

use super::{LITERAL, Unfit, note, plain_write, taken, value};
use crate::config::{Origin, Site, origin};
use crate::engine::{Question, Sheet};
use crate::line::Connector;
use crate::tls;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, USER_AGENT};
use http::uri::Scheme;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use percent_encoding::{percent_decode_str, percent_encode};
use serde::Deserialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidings_base::{Class, Error, Incarnation};
use tidings_sketch::group::Refusal;
use tidings_sketch::http::Forwarded;
use tidings_sketch::sigma::Sigma;
use tidings_sketch::sketch::Sketching;
use tidings_sketch::{Answer, ReplicaId};

/// Where a node has the files of its cell.
const FILES: &str = "/v1/cell/files";
/// The header with the place of an answer.
const PLACE: &str = "tidings-place";
/// More than any answer of a node has: a file has at most 256 KiB.
const LONGEST: usize = 1 << 20;
/// How long members are given before all of them have been asked in vain, and are asked again.
const AGAIN: Duration = Duration::from_millis(100);
/// The longest path of a file, as cells have it.
const LONGEST_PATH: usize = 1_024;
/// How long one member has to say of which cell it is, at the start. One that is out of reach must not use up the others' time.
const ASKED: Duration = Duration::from_secs(1);
/// How long all of them have: to start, for a cell of which somebody is there; and to be there.
const STARTING: Duration = Duration::from_secs(30);
const ABSENT: Duration = Duration::from_secs(5);

type Line = Client<Connector, Full<Bytes>>;

/// A cell behind a proxy, and as whom the proxy asks it.
#[derive(Clone)]
pub struct CellGroup {
    members: Vec<Origin>,
    key: Option<HeaderValue>,
    ca: Option<PathBuf>,
    /// The number by which a cell knows its own. Places of another one mean nothing here.
    cluster: u64,
}

impl fmt::Debug for CellGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CellGroup({:016x}, {} members)", self.cluster, self.members.len())
    }
}

impl CellGroup {
    /// The cell of these nodes, such as `http://10.0.0.1:7400`; asks them of which one they are. One must answer: nodes that are only
    /// starting are given some time.
    pub async fn meet(nodes: &[String], key: Option<&str>, ca: Option<PathBuf>) -> Result<CellGroup, Error> {
        let members = nodes.iter().map(|node| origin(node, "sketch.bad_node", "node", "http://10.0.0.1:7400"));
        let members = members.collect::<Result<Vec<Origin>, Error>>()?;
        let key = key.map(bearer).transpose()?;
        let line = line(&members, ca.as_deref(), ASKED)?;
        let met = CellGroup { members, key, ca, cluster: 0 };
        let clusters = met.awaited(&line).await.map_err(|why| {
            Error::new("sketch.no_cell", Class::Unreachable, format!("no node of the cell answers; {why}"))
                .hint("Name running nodes with --cell; where they ask for a key, give one with --cell-key.")
        })?;
        let (first, cluster) = clusters[0];
        if let Some((other, _)) = clusters.into_iter().find(|(_, other)| *other != cluster) {
            let what = format!("{} and {} are of different cells", met.name(first), met.name(other));
            return Err(Error::new("sketch.two_cells", Class::Invalid, what).hint("Name the nodes of one cell."));
        }
        Ok(CellGroup { cluster, ..met })
    }

    /// The cells of those members that say so, at least one, once one does; otherwise why none did.
    async fn awaited(&self, line: &Line) -> Result<Vec<(usize, u64)>, String> {
        let (begin, mut long) = (Instant::now(), ABSENT);
        loop {
            let nobody = match self.clusters(line).await {
                Ok(clusters) => return Ok(clusters),
                Err(nobody) => nobody,
            };
            if nobody.starts {
                long = STARTING;
            }
            if begin.elapsed() >= long {
                return Err(nobody.why);
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// The same, of now.
    async fn clusters(&self, line: &Line) -> Result<Vec<(usize, u64)>, Unknown> {
        let asked = (0..self.members.len()).map(|number| self.ask_cluster(line, number));
        let said = futures::future::join_all(asked).await;
        let (mut known, mut nobody) = (Vec::new(), Unknown { starts: false, why: "none is named".to_owned() });
        for (number, said) in said.into_iter().enumerate() {
            match said {
                Ok(cluster) => known.push((number, cluster)),
                // Who is starting says more than who is not there.
                Err(unknown) if number == 0 || unknown.starts && !nobody.starts => {
                    nobody = Unknown { why: format!("{}: {}", self.name(number), unknown.why), ..unknown };
                }
                Err(_) => {}
            }
        }
        if known.is_empty() { Err(nobody) } else { Ok(known) }
    }

    /// Its members, as they were named.
    pub fn members(&self) -> &[Origin] {
        &self.members
    }

    /// What tells it from others: the cell, and as whom it is asked, since access lists answer different people differently.
    pub(crate) fn identity(&self) -> Vec<Vec<u8>> {
        let key = self.key.as_ref().map(|key| key.as_bytes().to_vec()).unwrap_or_default();
        vec![b"cell".to_vec(), self.cluster.to_be_bytes().to_vec(), key]
    }

    fn name(&self, number: usize) -> String {
        self.members.get(number).map(ToString::to_string).unwrap_or_default()
    }

    async fn ask_cluster(&self, line: &Line, number: usize) -> Result<u64, Unknown> {
        let no = |starts, why: String| Unknown { starts, why };
        let request = self.request(number, Method::GET, "?place=applied", Bytes::new());
        let request = request.map_err(|why| no(false, why.to_string()))?;
        let heard = tokio::time::timeout(ASKED, hear(line, request)).await;
        let heard = heard.map_err(|_| no(false, "it does not answer in time".to_owned()))?;
        let heard = heard.map_err(|why| no(false, why.to_string()))?;
        match heard.place() {
            Some((cluster, _)) if cluster != 0 => Ok(cluster),
            Some(_) => Err(no(true, "it does not know yet of which cell it is".to_owned())),
            None => Err(no(heard.status.is_server_error(), heard.said().to_string())),
        }
    }

    fn request(
        &self,
        number: usize,
        method: Method,
        rest: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, http::Error> {
        let member = &self.members[number % self.members.len()];
        let uri = Uri::builder().scheme(member.scheme.clone()).authority(member.authority.clone());
        let mut request = Request::builder().method(method).uri(uri.path_and_query(format!("{FILES}{rest}")).build()?);
        if let Some(headers) = request.headers_mut() {
            headers.insert(HOST, HeaderValue::from_str(member.authority.as_str())?);
            headers.insert(USER_AGENT, HeaderValue::from_static("tidings-sketch"));
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            if let Some(key) = &self.key {
                headers.insert(AUTHORIZATION, key.clone());
            }
        }
        request.body(Full::new(body))
    }
}

/// Why a member does not say of which cell it is.
struct Unknown {
    /// It is there and may know later.
    starts: bool,
    why: String,
}

fn bearer(key: &str) -> Result<HeaderValue, Error> {
    let value = HeaderValue::from_str(&format!("Bearer {key}")).map(|mut value| {
        value.set_sensitive(true);
        value
    });
    value.map_err(|_| {
        Error::new("sketch.bad_key", Class::Invalid, "the key for the cell has characters that no key has")
            .hint("Give the key as it was printed: --cell-key tid_….")
    })
}

fn line(members: &[Origin], ca: Option<&Path>, give_up: Duration) -> Result<Line, Error> {
    let secure = members.iter().any(|member| member.scheme == Scheme::HTTPS);
    let tls = if secure { Some(tls::client(ca)?) } else { None };
    Ok(Client::builder(TokioExecutor::new()).build(Connector::new(tls, give_up)))
}

/// Whether a request can be one for a cell: a file's path, read or written whole.
pub(super) fn fits(asked: &Forwarded) -> Result<(), Unfit> {
    if asked.target.contains('?') {
        return Err(Unfit::new(StatusCode::BAD_REQUEST, "a file's path has no query; write `?` as %3F"));
    }
    named(&asked.target).map_err(|why| Unfit::new(StatusCode::BAD_REQUEST, why))?;
    match asked.method {
        Method::GET => Ok(()),
        Method::PUT | Method::DELETE => plain_write(asked),
        _ => Err(Unfit::method("GET, HEAD, PUT, DELETE")),
    }
}

/// One spelling for each file's path.
pub(super) fn spelled(target: &str) -> Option<String> {
    named(target).ok().filter(|()| !target.contains('?'))?;
    let parts = target.split('/').map(|part| percent_decode_str(part).collect::<Vec<u8>>());
    let parts: Vec<String> = parts.map(|part| percent_encode(&part, LITERAL).to_string()).collect();
    Some(parts.join("/"))
}

/// Whether a target is a file's path. A node refuses others, too, but without a place: that says nothing of the cell, and would be
/// asked for again and again.
fn named(target: &str) -> Result<(), &'static str> {
    let path = target.strip_prefix('/').ok_or("this is not a file's path")?;
    let mut length = 0;
    for part in path.split('/') {
        let encoded =
            |(at, _)| part.as_bytes().get(at + 1..at + 3).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
        if !part.match_indices('%').all(encoded) {
            return Err("a percent sign is not followed by two digits");
        }
        let part: Vec<u8> = percent_decode_str(part).collect();
        match part.as_slice() {
            // A part that a server on the way could resolve would lead out of the files.
            b"" | b"." | b".." => return Err("this is not a file's path"),
            part if std::str::from_utf8(part).is_err() => return Err("a file's path is UTF-8"),
            part if part.contains(&b'/') || part.contains(&0) => {
                return Err("no part of a file's path has a slash or NUL");
            }
            part => length += 1 + part.len(),
        }
    }
    if length > LONGEST_PATH { Err("a file's path has at most 1,024 bytes") } else { Ok(()) }
}

/// What a node says of an error.
#[derive(Clone, Debug, Default, Deserialize)]
struct Trouble {
    #[serde(default)]
    code: String,
    #[serde(default)]
    class: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    hint: String,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

/// A node's answer, whole.
struct Heard {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Heard {
    /// Of which cell the answer is, and where it stands in its order.
    fn place(&self) -> Option<(u64, Sigma)> {
        let mut parts = self.headers.get(PLACE)?.to_str().ok()?.split('.');
        let mut next = || parts.next();
        let cluster = u64::from_str_radix(next()?, 16).ok()?;
        let (life, height) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let sigma = Sigma::new(Incarnation(life), height, next()?.parse().ok()?)?;
        parts.next().is_none().then_some((cluster, sigma))
    }

    fn said(&self) -> Trouble {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| Trouble {
            message: format!("it answered {}, and not as a node of Tidings", self.status),
            ..Trouble::default()
        })
    }

    /// What the state says at the answer's place. The same at every member that has come as far.
    fn page(&self) -> Option<Response<Bytes>> {
        Some(match self.status {
            StatusCode::OK => value(self.body.clone()),
            StatusCode::NOT_FOUND => note(self.status, "there is no such file\n"),
            StatusCode::FORBIDDEN => note(self.status, "the access lists do not let this proxy read the file\n"),
            StatusCode::CONFLICT => note(self.status, "this is a directory\n"),
            _ => return None,
        })
    }
}

/// Why there is no answer.
#[derive(Debug)]
enum Silence {
    /// No connection could be made, so nothing was taken.
    Unreached(String),
    /// What became of the request is not known.
    Broken(String),
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Silence::Unreached(why) | Silence::Broken(why) => f.write_str(why),
        }
    }
}

async fn hear(line: &Line, request: Request<Full<Bytes>>) -> Result<Heard, Silence> {
    let response = line.request(request).await.map_err(|error| match error.is_connect() {
        true => Silence::Unreached(error.to_string()),
        false => Silence::Broken(error.to_string()),
    })?;
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, LONGEST).collect().await.map_err(|error| Silence::Broken(error.to_string()))?;
    Ok(Heard { status: parts.status, headers: parts.headers, body: body.to_bytes() })
}

/// What became of a write at one member.
enum Written {
    Done(Response<Bytes>),
    /// It certainly was not taken.
    NotTaken(String),
    Unknown(String),
}

/// The cell, asked.
pub(crate) struct Cell {
    line: Line,
    group: CellGroup,
    names: Vec<String>,
    sketching: Sketching,
    patience: Duration,
    give_up: Duration,
    /// Whether somebody wants to know where writes stand.
    reminds: bool,
    turn: AtomicUsize,
    /// The cell refuses the proxy as such, and the log says so.
    told: AtomicBool,
}

impl Cell {
    pub(super) fn start(group: &CellGroup, sketching: Sketching, site: &Site) -> Result<Cell, Error> {
        Ok(Cell {
            line: line(&group.members, group.ca.as_deref(), site.give_up)?,
            names: group.members.iter().map(ToString::to_string).collect(),
            group: group.clone(),
            sketching,
            patience: site.patience,
            give_up: site.give_up,
            reminds: site.read_your_writes,
            turn: AtomicUsize::new(0),
            told: AtomicBool::new(false),
        })
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// What one member has applied of a file.
    pub(super) async fn applied(&self, from: ReplicaId, question: &Question) -> Option<Answer<Sheet>> {
        let read = self.read(from, question, "?place=applied", self.patience);
        read.await.map(|(answer, _)| answer)
    }

    /// The newest of a file, and its place. Whichever member is asked, it asks the master.
    pub(super) async fn newest(&self, from: ReplicaId, question: &Question) -> Option<(Answer<Sheet>, Sigma)> {
        self.read(from, question, "?place=newest", self.give_up).await
    }

    async fn read(
        &self,
        from: ReplicaId,
        question: &Question,
        how: &str,
        within: Duration,
    ) -> Option<(Answer<Sheet>, Sigma)> {
        let rest = format!("{}{how}", question.forwarded.target);
        let request = self.group.request(usize::from(from.0), Method::GET, &rest, Bytes::new()).ok()?;
        let heard = match tokio::time::timeout(within, hear(&self.line, request)).await {
            Ok(Ok(heard)) => heard,
            Ok(Err(why)) => {
                tracing::debug!(member = from.0, %why, "a member gave no answer");
                return None;
            }
            Err(_) => return None,
        };
        let Some((cluster, sigma)) = heard.place() else {
            self.refused(&heard);
            return None;
        };
        if cluster != self.group.cluster {
            tracing::warn!(member = from.0, "this is another cell than at the start: start the proxy anew");
            return None;
        }
        self.told.store(false, Relaxed);
        Some((taken(&self.sketching, question, heard.page()?)?, sigma))
    }

    /// Tells, once, that the cell does not let the proxy in.
    fn refused(&self, heard: &Heard) {
        let trouble = heard.said();
        if !self.told.swap(true, Relaxed) {
            tracing::warn!(status = heard.status.as_u16(), %trouble, hint = %trouble.hint, "the cell refuses the proxy");
        }
    }

    /// Writes a file or takes it away, once. With its place if somebody wants to know it: that of a read behind the write.
    pub(super) async fn write(&self, question: &Question) -> Result<(Answer<Sheet>, Option<Sigma>), Refusal> {
        let written = tokio::time::timeout(self.give_up, self.written(question)).await;
        let page = written.map_err(|_| Refusal::Unreachable)??;
        let answer = taken(&self.sketching, question, page).ok_or(Refusal::Disagreement)?;
        if !self.reminds || !answer.response.status.is_success() {
            return Ok((answer, None));
        }
        // Without its place nobody could be promised that he reads it.
        let place = tokio::time::timeout(self.give_up, self.place_behind(question)).await;
        place.map(|sigma| (answer, Some(sigma))).map_err(|_| Refusal::Unreachable)
    }

    async fn place_behind(&self, question: &Question) -> Sigma {
        loop {
            for _ in 0..self.names.len() {
                if let Some((_, sigma)) = self.newest(ReplicaId(self.next() as u16), question).await {
                    return sigma;
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn written(&self, question: &Question) -> Result<Response<Bytes>, Refusal> {
        loop {
            for _ in 0..self.names.len() {
                match self.write_by(self.next(), question).await {
                    Written::Done(page) => return Ok(page),
                    Written::NotTaken(why) => tracing::debug!(why, "a member did not take a write"),
                    Written::Unknown(why) => {
                        tracing::debug!(why, "what became of a write is not known");
                        return Err(Refusal::Unreachable);
                    }
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn write_by(&self, member: usize, question: &Question) -> Written {
        let Forwarded { method, target, body, .. } = &question.forwarded;
        let request = match self.group.request(member, method.clone(), target, body.clone()) {
            Ok(request) => request,
            Err(error) => return Written::NotTaken(error.to_string()),
        };
        let heard = match hear(&self.line, request).await {
            Ok(heard) => heard,
            Err(Silence::Unreached(why)) => return Written::NotTaken(why),
            Err(Silence::Broken(why)) => return Written::Unknown(why),
        };
        if heard.status.is_success() {
            return Written::Done(note(heard.status, ""));
        }
        let trouble = heard.said();
        match (trouble.class.as_str(), trouble.code.as_str()) {
            ("unreachable", _) | (_, "control.busy") => Written::NotTaken(trouble.to_string()),
            ("invalid" | "not_found" | "refused", code) if code.starts_with("cell.") => {
                let Trouble { message, hint, .. } = trouble;
                let told = if hint.is_empty() { message } else { format!("{message}. {hint}") };
                Written::Done(note(heard.status, format!("{told}\n")))
            }
            _ => {
                self.refused(&heard);
                Written::Unknown(trouble.to_string())
            }
        }
    }

    fn next(&self) -> usize {
        self.turn.fetch_add(1, Relaxed) % self.names.len().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &str, target: &str) -> Forwarded {
        Forwarded {
            method: method.parse().unwrap(),
            scheme: "http",
            authority: "a.org".into(),
            target: target.into(),
            inputs: Vec::new(),
            non_inputs: Vec::new(),
            body: Bytes::new(),
        }
    }

    #[test]
    fn only_files_are_asked_for() {
        let (long, too_long) = (format!("/%61/{}", "a".repeat(1_021)), format!("/%61/{}", "a".repeat(1_022)));
        for good in ["/a", "/a/b%20c", "/a/..b", "/%2e%2e%2e", "/%c3%a4", &long] {
            assert_eq!(fits(&asked("GET", good)), Ok(()), "{good}");
            assert!(spelled(good).is_some_and(|once| spelled(&once) == Some(once.clone())), "{good}");
        }
        // The last ones a node refuses without a place, which would be waited for until everybody is given up.
        for bad in [
            "/",
            "/a/",
            "/a//b",
            "/..",
            "/a/%2E%2e/b",
            "/./a",
            "/a?list",
            "/a/.",
            "*",
            "/a%2Fb",
            "/a/%ff",
            "/a%00",
            "/a%zz",
            "/a%2",
            &too_long,
        ] {
            assert_eq!(fits(&asked("GET", bad)).unwrap_err().status, StatusCode::BAD_REQUEST, "{bad}");
            assert_eq!(spelled(bad), None, "{bad}");
        }
        assert_eq!(["/%61/%c3%A4%20", "/a/%C3%a4%20"].map(spelled), [(); 2].map(|()| Some("/a/%C3%A4%20".to_owned())));
        assert_eq!(fits(&asked("POST", "/a")).unwrap_err().status, StatusCode::METHOD_NOT_ALLOWED);
        let mut conditional = asked("PUT", "/a");
        conditional.inputs.push((http::header::IF_MATCH, HeaderValue::from_static("\"1-2\"")));
        assert_eq!(fits(&conditional).unwrap_err().status, StatusCode::NOT_IMPLEMENTED);
    }

    #[test]
    fn places_are_read_whole_or_not_at_all() {
        let place = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(PLACE, HeaderValue::from_str(text).unwrap());
            Heard { status: StatusCode::OK, headers, body: Bytes::new() }.place()
        };
        let sigma = Sigma::new(Incarnation(2), 70, 3).unwrap();
        assert_eq!(place("00000000000000ff.2.70.3"), Some((255, sigma)));
        for bad in
            ["", "ff.2.70", "ff.2.70.3.4", "xx.2.70.3", "ff.2.-1.3", "ff.2.70.262144", "ff.2.9223372036854775807.0"]
        {
            assert_eq!(place(bad), None, "{bad}");
        }
    }
}
