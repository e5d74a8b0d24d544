//! What a client wants of a whole representation: conditions, ranges, or the headers alone (rule D; RFC 9110 §13, §14).
//!
//! A replica that evaluated conditions could answer "not modified" for ever, and a sketch of a slice says nothing about
//! another slice. So the sketcher verifies the whole and does this itself.

use super::Page;
use super::dates::date;
use super::ranges::{Cut, Ranges};
use ::http::header::{self, HeaderMap, HeaderName};
use ::http::{Method, StatusCode, request};
use std::ops::Range;

/// What a client wants. Values that cannot be understood are as if they were not there, which gives the whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Whether no content is sent, whatever there is (HEAD).
    pub headers_only: bool,
    if_match: Option<Tags>,
    if_none_match: Option<Tags>,
    if_modified_since: Option<u64>,
    if_unmodified_since: Option<u64>,
    if_range: Option<String>,
    ranges: Option<Ranges>,
    gzip: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Tags {
    Any,
    These(Vec<String>),
}

/// What is sent of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// Which bytes of the body are its content, and are counted by `Content-Length`.
    pub content: Range<u64>,
    /// Whether the content is sent; not so after HEAD.
    pub send: bool,
    /// `Content-Range`, if there is one.
    pub content_range: Option<String>,
    /// Where several ranges were asked for: these, instead of `content`, as the parts of a multipart message.
    pub parts: Vec<Range<u64>>,
    /// Whether the content is compressed with gzip before it is sent.
    pub gzip: bool,
    /// The tag of what is sent: a compressed page is another representation.
    pub etag: String,
}

/// Pages of these lengths are compressed: shorter ones do not gain by it, longer ones take too long.
const COMPRESSED: std::ops::RangeInclusive<u64> = 1_024..=1 << 20;

/// Whether a page is one that is compressed for whoever takes it so.
pub fn is_compressible<B>(page: &Page<B>) -> bool {
    let field = |name: HeaderName| page.fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value);
    let kind = field(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let texts = ["application/json", "application/javascript", "application/xml", "image/svg+xml", "application/wasm"];
    let whole = matches!(page.status, StatusCode::OK | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND);
    // RFC 9111 §5.2.2.6: whoever stands between leaves it as it is.
    let controls = page.fields.iter().filter(|(name, _)| *name == header::CACHE_CONTROL);
    let mut controls = controls.filter_map(|(_, value)| value.to_str().ok()).flat_map(|value| value.split(','));
    whole
        && !controls.any(|directive| directive.trim().eq_ignore_ascii_case("no-transform"))
        && COMPRESSED.contains(&page.length)
        && field(header::CONTENT_ENCODING).is_none()
        && page.trailers.is_empty()
        && (kind.starts_with("text/") || texts.contains(&kind.as_str()))
}

/// Headers that are removed upstream and evaluated here.
pub(super) fn is_conditional(name: &HeaderName) -> bool {
    [
        header::RANGE,
        header::IF_MATCH,
        header::IF_NONE_MATCH,
        header::IF_MODIFIED_SINCE,
        header::IF_UNMODIFIED_SINCE,
        header::IF_RANGE,
        header::ACCEPT_ENCODING,
    ]
    .contains(name)
}

impl Wanted {
    /// Everything, whatever there is.
    pub fn everything() -> Wanted {
        Wanted::default()
    }

    /// What a request asks for.
    pub fn by(parts: &request::Parts) -> Wanted {
        let headers = &parts.headers;
        Wanted {
            headers_only: parts.method == Method::HEAD,
            if_match: tags(headers, &header::IF_MATCH),
            if_none_match: tags(headers, &header::IF_NONE_MATCH),
            if_modified_since: single(headers, &header::IF_MODIFIED_SINCE).and_then(date),
            if_unmodified_since: single(headers, &header::IF_UNMODIFIED_SINCE).and_then(date),
            if_range: single(headers, &header::IF_RANGE).map(str::to_owned),
            ranges: single(headers, &header::RANGE).and_then(Ranges::parse),
            gzip: takes_gzip(headers),
        }
    }

    /// What is sent of a verified page, in the order of evaluation that RFC 9110 §13.2.2 gives.
    pub fn of<B>(&self, page: &Page<B>) -> Reply {
        // A range is one of the page as it is.
        let gzip = self.gzip && self.ranges.is_none() && is_compressible(page);
        let etag = if gzip { page.etag().replacen('"', "\"gzip-", 1) } else { page.etag() };
        let whole = Reply {
            status: page.status,
            content: 0..page.length,
            send: !self.headers_only,
            content_range: None,
            parts: Vec::new(),
            gzip,
            etag: etag.clone(),
        };
        if page.status != StatusCode::OK {
            return whole;
        }
        let none = |status| Reply { status, content: 0..0, send: false, gzip: false, ..whole.clone() };
        let modified = last_modified(page);
        let refused = match (&self.if_match, self.if_unmodified_since) {
            (Some(tags), _) => !tags.contain(&etag, Comparison::Strong),
            (None, Some(since)) => modified.is_some_and(|modified| modified > since),
            (None, None) => false,
        };
        if refused {
            return none(StatusCode::PRECONDITION_FAILED);
        }
        let known = match (&self.if_none_match, self.if_modified_since) {
            (Some(tags), _) => tags.contain(&etag, Comparison::Weak),
            (None, Some(since)) => modified.is_some_and(|modified| modified <= since),
            (None, None) => false,
        };
        if known {
            return none(StatusCode::NOT_MODIFIED);
        }
        match &self.ranges {
            // RFC 9110 §14.2: ranges are of GET alone.
            Some(ranges) if !self.headers_only && self.range_applies(&etag, page) => slice(ranges, whole),
            _ => whole,
        }
    }

    /// `If-Range`: the range counts only if the representation is still the one that the client has a part of.
    fn range_applies<B>(&self, etag: &str, page: &Page<B>) -> bool {
        let Some(condition) = &self.if_range else { return true };
        let dated = date(condition);
        condition == etag || (dated.is_some() && dated == last_modified(page))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Strong,
    Weak,
}

impl Tags {
    /// Our own tags are strong; a weak one in a list equals ours only where weak comparison is asked for.
    fn contain(&self, etag: &str, how: Comparison) -> bool {
        let equal = |tag: &String| match tag.strip_prefix("W/") {
            Some(opaque) => how == Comparison::Weak && opaque == etag,
            None => tag == etag,
        };
        match self {
            Tags::Any => true,
            Tags::These(tags) => tags.iter().any(equal),
        }
    }
}

fn slice(ranges: &Ranges, whole: Reply) -> Reply {
    let length = whole.content.end;
    let partial = |content: Range<u64>, content_range, parts| Reply {
        status: StatusCode::PARTIAL_CONTENT,
        content,
        content_range,
        parts,
        ..whole.clone()
    };
    match ranges.of(length) {
        Cut::Whole => whole,
        Cut::Part(part) => partial(part.clone(), Some(content_range(&part, length)), Vec::new()),
        Cut::Parts(parts) => partial(0..0, None, parts),
        Cut::Unsatisfiable => {
            let content_range = Some(format!("bytes */{length}"));
            let status = StatusCode::RANGE_NOT_SATISFIABLE;
            Reply { status, content: 0..0, send: false, content_range, ..whole }
        }
    }
}

/// `Content-Range` of a part of a page.
pub fn content_range(part: &Range<u64>, length: u64) -> String {
    format!("bytes {}-{}/{length}", part.start, part.end.saturating_sub(1))
}

/// The value of a header that may come once; two of them are none.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value.trim())
}

/// RFC 9110 §12.5.3: `gzip` decides, and `*` if it is not named.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let weight = |coding: &str| {
        let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
        let zero = parameters.trim().strip_prefix("q=").is_some_and(|q| q.trim().parse() == Ok(0.0));
        (name.trim().to_ascii_lowercase(), !zero)
    };
    let codings: Vec<(String, bool)> = values.flat_map(|value| value.split(',')).map(weight).collect();
    let said = |wanted: &str| codings.iter().find(|(name, _)| name == wanted).map(|(_, taken)| *taken);
    said("gzip").or_else(|| said("x-gzip")).or_else(|| said("*")).unwrap_or(false)
}

fn tags(headers: &HeaderMap, name: &HeaderName) -> Option<Tags> {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    let tags: Vec<String> = values.iter().flat_map(|value| value.split(',')).map(|tag| tag.trim().to_owned()).collect();
    match values.as_slice() {
        [] => None,
        ["*"] => Some(Tags::Any),
        _ => Some(Tags::These(tags)),
    }
}

fn last_modified<B>(page: &Page<B>) -> Option<u64> {
    let value = page.fields.iter().find(|(name, _)| name == header::LAST_MODIFIED)?;
    date(value.1.to_str().ok()?)
}
