//! HTTP as the sketcher sees it: what is forwarded, and that this and nothing else is sketched (rules C and D).
//!
//! ```text
//!   client's request ─ Rules::admit ─▶ Admitted { Forwarded, s(q), kind, Wanted }
//!                                         │ upstream: whole, identity, unconditional
//!   replica's response ─ Rules::take ─▶ Answer<Page> { s(r) of what would be forwarded }
//!   client's response ◀─ Wanted::of(page) ─┘ conditions, ranges, HEAD: by the sketcher itself
//! ```
//! A header that reached a replica and not the sketch could decide an answer that is then given to others; one that reached a
//! client and not the sketch could be made up by a liar. So both sides go through one list each, and sketches are made of
//! what came through.

mod conditions;
mod dates;
mod ranges;
mod rules;

pub use conditions::{Reply, Wanted, content_range, is_compressible};
pub use rules::{Bodies, Hold, PathRule, Rules};

use crate::mutant::Mutant;
use crate::sketch::{BodyHash, Of, Sketch, Sketching};
use crate::sketcher::Kind;
use ::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use ::http::uri::Authority;
use ::http::{Method, StatusCode, request, response};
use bytes::Bytes;

/// The cookie that carries a session's last write (rule K); it is the sketcher's own and never forwarded.
pub const SESSION_COOKIE: &str = "tidings-session";
/// The header that says of each answer whether it was verified, and how.
pub const VERIFIED: HeaderName = HeaderName::from_static("tidings-verified");

/// The header by which sketchers of one core speak to each other. Nobody else's passes, in either direction.
pub const CORE: HeaderName = HeaderName::from_static("tidings-core");

/// Headers of one message, sorted by name; of one name in the order in which they came, which has a meaning.
pub type Fields = Vec<(HeaderName, HeaderValue)>;

/// What goes upstream, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// The method; HEAD has become GET.
    pub method: Method,
    /// `http` or `https`, as the client asked.
    pub scheme: &'static str,
    /// The host that the client asked for.
    pub authority: String,
    /// Path and query, byte by byte as they came.
    pub target: String,
    /// What s(q) covers.
    pub inputs: Fields,
    /// Declared to have no influence on the answer, and not covered.
    pub non_inputs: Fields,
    /// The body.
    pub body: Bytes,
}

/// A request that may be forwarded.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// What goes upstream.
    pub forwarded: Forwarded,
    /// s(q).
    pub key: Sketch,
    /// What kind of request it is.
    pub kind: Kind,
    /// What the client wants of the whole representation.
    pub wanted: Wanted,
}

/// Why a request is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// It names no host, several, one that differs from its target's, or something that is none.
    #[error("the request must name exactly one host")]
    Host,
    /// Its length is told twice or in two ways, which servers understand differently.
    #[error("the request's length is ambiguous")]
    Length,
    /// It is a read and has a body. A server that does not expect one takes it for the next request, of somebody else.
    #[error("GET and HEAD have no body here; put what is asked for into the path and its query")]
    Body,
    /// It asks for another protocol.
    #[error("WebSocket and other upgrades do not pass the sketcher; connect to the service itself")]
    Upgrade,
    /// CONNECT and TRACE are for proxies of another kind.
    #[error("the method is not served here")]
    Method,
    /// It asks for a path that is not one.
    #[error("the target must be a path")]
    Target,
}

/// A response as it would be forwarded, with a body that may lie elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<B> {
    /// The status.
    pub status: StatusCode,
    /// Every header that is forwarded.
    pub fields: Fields,
    /// The whole body, or where it is.
    pub body: B,
    /// How long the body is.
    pub length: u64,
    /// The hash of the body.
    pub hash: BodyHash,
    /// Trailers.
    pub trailers: Fields,
}

/// Why a response is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadResponse {
    /// 304 or 206 although the request had no conditions and asked for everything, or an informational one.
    #[error("the replica answered {0} to an unconditional request for a whole representation")]
    Status(StatusCode),
}

impl Forwarded {
    /// s(q): everything that may decide the answer, under the rules that let it pass.
    fn sketch(&self, sketching: &Sketching, rules: u64) -> Sketch {
        let mut pen = sketching.begin(Of::Request);
        pen.number(rules).field(self.method.as_str().as_bytes()).field(self.scheme.as_bytes());
        pen.field(self.authority.as_bytes()).field(self.target.as_bytes());
        add_fields(&mut pen, &self.inputs);
        pen.field(&self.body);
        pen.finish()
    }
}

impl<B> Page<B> {
    /// s(r): everything that would be forwarded, and what it answers.
    pub fn sketch(&self, sketching: &Sketching, key: &Sketch) -> Sketch {
        let mut pen = sketching.begin(Of::Response);
        pen.field(&key.0).number(self.status.as_u16().into());
        add_fields(&mut pen, &self.fields);
        pen.number(self.length).field(&self.hash.0);
        add_fields(&mut pen, &self.trailers);
        pen.finish()
    }

    /// The strong validator: the sketcher's own, so that all replicas' pages have the same.
    pub fn etag(&self) -> String {
        let hex: String = self.hash.0[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("\"{hex}\"")
    }
}

fn add_fields(pen: &mut crate::sketch::Pen, fields: &Fields) {
    pen.number(fields.len() as u64);
    for (name, value) in fields {
        pen.field(name.as_str().as_bytes()).field(value.as_bytes());
    }
}

/// The headers that pass, in canonical order.
fn passing(headers: &HeaderMap, passes: impl Fn(&HeaderName) -> bool) -> Fields {
    let named = connection_named(headers);
    let mut fields: Fields = headers
        .iter()
        .filter(|(name, _)| !rules::hop_by_hop(name) && !named.contains(name) && passes(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    fields.sort_by(|(left, _), (right, _)| left.as_str().cmp(right.as_str()));
    fields
}

/// Whether `Cache-Control` says how long a page lasts. `Expires` means nothing beside it (RFC 9111 §5.3), and servers that write
/// both write another one each second.
pub fn says_how_long(name: &HeaderName, value: &HeaderValue) -> bool {
    let says = |directive: &str| {
        let name = directive.split('=').next().unwrap_or_default().trim();
        ["max-age", "s-maxage", "no-cache", "no-store"].iter().any(|known| name.eq_ignore_ascii_case(known))
    };
    name == header::CACHE_CONTROL && value.to_str().is_ok_and(|value| value.split(',').any(says))
}

/// Headers that `Connection` declares to end here.
fn connection_named(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect()
}

/// Whether whoever asks for another protocol can do without it: HTTP/2 and TLS are offers, WebSocket is what he came for.
fn may_be_ignored(upgrade: &HeaderValue) -> bool {
    let offered =
        |protocol: &str| protocol.eq_ignore_ascii_case("h2c") || protocol.to_ascii_lowercase().starts_with("tls/");
    upgrade.to_str().is_ok_and(|value| value.split(',').all(|protocol| offered(protocol.trim())))
}

/// Whether it is a host, perhaps with a port, and nothing besides: servers would make different things of a path or a name in it.
fn is_host(text: &str) -> bool {
    text.parse::<Authority>().is_ok() && !text.contains('@')
}

/// Refuses what servers might understand differently from us, before anything is forwarded, or waited for; the host that is named.
///
/// Few lengths that contradict each other are seen here: by HTTP/1.1 hyper refuses different ones, and one that stands beside a coding it
/// takes away, goes by the coding, and ends the connection behind that request (RFC 9112 §6.3). A test of the proxy holds it to that.
pub fn check(parts: &request::Parts) -> Result<String, BadRequest> {
    let headers = &parts.headers;
    if parts.method == Method::CONNECT || parts.method == Method::TRACE {
        return Err(BadRequest::Method);
    }
    if headers.get_all(header::UPGRADE).iter().any(|value| !may_be_ignored(value)) {
        return Err(BadRequest::Upgrade);
    }
    let lengths = headers.get_all(header::CONTENT_LENGTH).iter().count();
    if lengths > 1 || (lengths == 1 && headers.contains_key(header::TRANSFER_ENCODING)) {
        return Err(BadRequest::Length);
    }
    if !parts.uri.path_and_query().is_some_and(|target| target.as_str().starts_with('/')) {
        return Err(BadRequest::Target);
    }
    let mut hosts = headers.get_all(header::HOST).iter().map(|host| host.to_str().map_err(|_| BadRequest::Host));
    let (host, second) = (hosts.next().transpose()?, hosts.next());
    let named = parts.uri.authority().map(|authority| authority.as_str());
    match (host.or(named), named) {
        (Some(host), _) if second.is_some() || host.is_empty() => Err(BadRequest::Host),
        (Some(host), Some(named)) if !host.eq_ignore_ascii_case(named) => Err(BadRequest::Host),
        (Some(host), _) if !is_host(host) => Err(BadRequest::Host),
        (Some(host), _) => Ok(host.to_ascii_lowercase()),
        (None, _) => Err(BadRequest::Host),
    }
}

impl Rules {
    /// Takes a client's request apart into what is forwarded and what the sketcher does itself.
    pub fn admit(
        &self,
        sketching: &Sketching,
        scheme: &'static str,
        parts: &request::Parts,
        body: Bytes,
    ) -> Result<Admitted, BadRequest> {
        let authority = check(parts)?;
        let target = parts.uri.path_and_query().ok_or(BadRequest::Target)?.as_str();
        let read = parts.method == Method::GET || parts.method == Method::HEAD;
        if read && !body.is_empty() {
            return Err(BadRequest::Body);
        }
        let (headers, session) = self.without_session(sketching, &parts.headers);
        let conditions_pass = !read || self.mutant == Some(Mutant::ConditionsForwarded);
        let passes = |name: &HeaderName| self.forwards(name) || (conditions_pass && conditions::is_conditional(name));
        let inputs = passing(&headers, passes);
        let personal = self.is_personal(&headers);
        let forwarded = Forwarded {
            method: if read { Method::GET } else { parts.method.clone() },
            scheme,
            authority,
            target: target.into(),
            inputs,
            non_inputs: passing(&headers, |name| self.is_non_input(name)),
            body,
        };
        let key = match self.mutant {
            Some(Mutant::InputUnsketched) => {
                Forwarded { inputs: Fields::new(), ..forwarded.clone() }.sketch(sketching, self.identity())
            }
            _ => forwarded.sketch(sketching, self.identity()),
        };
        let kind = match read {
            true => Kind::Read { way: self.way(parts.uri.path(), personal), after: session },
            false => Kind::Write,
        };
        let wanted = if read { Wanted::by(parts) } else { Wanted::everything() };
        Ok(Admitted { forwarded, key, kind, wanted })
    }

    /// Takes a replica's response apart; `hash` is of the whole body, wherever that lies.
    pub fn take<B>(
        &self,
        sketching: &Sketching,
        key: &Sketch,
        parts: &response::Parts,
        (body, length, hash): (B, u64, BodyHash),
        trailers: &HeaderMap,
    ) -> Result<crate::Answer<Page<B>>, BadResponse> {
        let status = parts.status;
        if matches!(status, StatusCode::NOT_MODIFIED | StatusCode::PARTIAL_CONTENT) || status.is_informational() {
            return Err(BadResponse::Status(status));
        }
        let mut fields = passing(&parts.headers, |name| self.returns(name));
        if fields.iter().any(|(name, value)| says_how_long(name, value)) {
            fields.retain(|(name, _)| name != header::EXPIRES);
        }
        let own = fields.iter().any(|(name, _)| name == header::SET_COOKIE) && !self.remembers_set_cookie;
        let trailers = passing(trailers, |name| self.returns(name));
        let page = Page { status, fields, body, length, hash, trailers };
        let sketch = page.sketch(sketching, key);
        Ok(crate::Answer { sketch, keep: !status.is_server_error() && !own, response: page })
    }
}

#[cfg(test)]
mod tests;
