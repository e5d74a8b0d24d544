//! A group with an order behind the proxy, in place of origins: requests as it takes them, and its answers as pages with their places.
//!
//! A read that is remembered is asked of one member, past the order; everything else stands somewhere in it, at a place σ. So reads
//! are delay-once (rule A), writes are linearizable, and whoever wants to read his own writes can (rule K).
//!
//! - `bft`: replicas of which f may lie; `cell`: members of a cell, which fail and do not lie.

mod bft;
mod cell;

pub use bft::{BftGroup, Service};
pub use cell::CellGroup;

use crate::config::Site;
use crate::engine::{Question, Sheet};
use bytes::Bytes;
use http::header::{
    ALLOW, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, IF_MATCH,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE,
};
use http::{Method, Response, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};
use tidings_base::Error;
use tidings_sketch::group::{Kind, Refusal};
use tidings_sketch::http::{Forwarded, PathRule, Rules};
use tidings_sketch::sigma::Sigma;
use tidings_sketch::sketch::{BodyHash, Sketching};
use tidings_sketch::sketcher::Way;
use tidings_sketch::{Answer, ReplicaId};

/// What is behind a proxy in place of origins.
#[derive(Clone, Debug)]
pub enum Group {
    /// A BFT group.
    Bft(BftGroup),
    /// A cell.
    Cell(CellGroup),
}

impl Group {
    /// How many members there are.
    pub(crate) fn size(&self) -> u16 {
        match self {
            Group::Bft(group) => group.membership.size(),
            Group::Cell(cell) => u16::try_from(cell.members().len()).unwrap_or(u16::MAX),
        }
    }

    /// As whom a BFT group is asked: nobody else may be that client.
    pub(crate) fn client(&self) -> Option<([u8; 32], u64)> {
        match self {
            Group::Bft(group) => Some((*group.membership.identity(), group.client.id)),
            Group::Cell(_) => None,
        }
    }

    /// What tells it from all others, for sketches that proxies of a core share.
    pub(crate) fn identity(&self) -> Vec<Vec<u8>> {
        match self {
            Group::Bft(group) => {
                vec![group.membership.identity().as_slice().to_vec(), group.service.name().as_bytes().to_vec()]
            }
            Group::Cell(cell) => cell.identity(),
        }
    }
}

/// The group, asked.
pub(crate) enum Ordered {
    Bft(bft::Bft),
    Cell(Box<cell::Cell>),
}

impl Ordered {
    pub(crate) fn start(behind: &Group, sketching: Sketching, site: &Site) -> Result<Ordered, Error> {
        Ok(match behind {
            Group::Bft(group) => Ordered::Bft(bft::Bft::start(group, sketching, site)?),
            Group::Cell(cell) => Ordered::Cell(Box::new(cell::Cell::start(cell, sketching, site)?)),
        })
    }

    /// How the machine for votes asks it, if it does not agree by itself.
    pub(crate) fn asked_by_machine(behind: &Group) -> Option<Kind> {
        match behind {
            Group::Bft(_) => None,
            Group::Cell(_) => Some(Kind::CrashTolerant),
        }
    }

    /// Its members, by number and where they are.
    pub(crate) fn names(&self) -> &[String] {
        match self {
            Ordered::Bft(group) => group.names(),
            Ordered::Cell(cell) => cell.names(),
        }
    }

    /// How often each member's word was not the group's.
    pub(crate) fn differed(&self) -> Vec<u64> {
        match self {
            Ordered::Bft(group) => group.differed(),
            Ordered::Cell(cell) => vec![0; cell.names().len()],
        }
    }

    /// A request as a command of the group, if it is one.
    pub(crate) fn command(&self, asked: &Forwarded) -> Result<Bytes, Unfit> {
        match self {
            Ordered::Bft(group) => group.service().command(asked),
            Ordered::Cell(_) => cell::fits(asked).map(|()| Bytes::new()),
        }
    }

    /// The target that all spellings of a name are read as, so that they are one request to the sketcher; none where a target is no
    /// more than a page's path.
    pub(crate) fn spelled(&self, target: &str) -> Option<String> {
        match self {
            Ordered::Bft(group) => group.service().spelled(target),
            Ordered::Cell(_) => cell::spelled(target),
        }
    }

    /// Rules as they hold before it.
    pub(crate) fn rules(&self, rules: Rules) -> Rules {
        match self {
            Ordered::Bft(group) => group.service().rules(rules),
            Ordered::Cell(_) => without_headers(rules),
        }
    }

    /// Asks one member, as things stand there.
    pub(crate) async fn fast(&self, from: ReplicaId, question: &Question) -> Option<Answer<Sheet>> {
        match self {
            Ordered::Bft(group) => group.fast(from, question).await,
            Ordered::Cell(cell) => cell.applied(from, question).await,
        }
    }

    /// Asks one member for the newest, and for its place; of those who do not lie, one knows it as well as all.
    pub(crate) async fn newest(&self, from: ReplicaId, question: &Question) -> Option<(Answer<Sheet>, Sigma)> {
        match self {
            Ordered::Bft(_) => None,
            Ordered::Cell(cell) => cell.newest(from, question).await,
        }
    }

    /// Asks the group, in its order. Where nobody will ask for it, a write's place may be missing.
    pub(crate) async fn order(&self, question: &Question) -> Result<(Answer<Sheet>, Option<Sigma>), Refusal> {
        match self {
            Ordered::Bft(group) => group.order(question).await.map(|(answer, sigma)| (answer, Some(sigma))),
            Ordered::Cell(cell) => cell.write(question).await,
        }
    }
}

/// Why a request cannot be put to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unfit {
    pub(crate) status: StatusCode,
    pub(crate) why: &'static str,
    /// The methods that would do.
    pub(crate) allow: Option<&'static str>,
}

impl Unfit {
    fn new(status: StatusCode, why: &'static str) -> Unfit {
        Unfit { status, why, allow: None }
    }

    fn method(allow: &'static str) -> Unfit {
        let why = "the service behind does not know this method";
        Unfit { status: StatusCode::METHOD_NOT_ALLOWED, why, allow: Some(allow) }
    }
}

/// What changes the meaning of a write.
const MEANT: [HeaderName; 2] = [CONTENT_RANGE, CONTENT_ENCODING];

/// Rules before what knows no headers: none passes but to be refused, and whoever asks is answered alike.
fn without_headers(rules: Rules) -> Rules {
    let everything = PathRule { prefix: "/".to_owned(), way: Way::Usual, personal_too: true };
    let mut paths = rules.paths;
    paths.iter_mut().for_each(|rule| rule.personal_too = true);
    if !paths.iter().any(|rule| rule.prefix == everything.prefix) {
        paths.push(everything);
    }
    Rules { inputs: MEANT.to_vec(), non_inputs: Vec::new(), paths, ..rules }
}

/// Refuses a write that means something else than its body as a whole. To ignore that would lose what somebody else wrote, or all
/// but a part of it, or what it means.
fn plain_write(asked: &Forwarded) -> Result<(), Unfit> {
    let has = |names: &[HeaderName]| asked.inputs.iter().any(|(name, _)| names.contains(name));
    if has(&[IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE]) {
        return Err(Unfit::new(StatusCode::NOT_IMPLEMENTED, "writes have no conditions here"));
    }
    if has(&MEANT) {
        let why = "a value is written whole and as it is, without Content-Range and Content-Encoding";
        return Err(Unfit::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    Ok(())
}

/// Refuses a write to an origin on conditions that it does not understand as its client means them: tags of pages are the proxy's own
/// (rule D). An origin would find none of them met, or all.
pub(crate) fn known_conditions(asked: &Forwarded) -> Result<(), Unfit> {
    let of_tags = |name: &HeaderName| [IF_MATCH, IF_NONE_MATCH].contains(name);
    let mut conditions = asked.inputs.iter().filter(|(name, _)| asked.method != Method::GET && of_tags(name));
    match conditions.any(|(_, value)| value.as_bytes().trim_ascii() != b"*") {
        true => {
            Err(Unfit::new(StatusCode::NOT_IMPLEMENTED, "an ETag is the proxy's own, and no condition of a write here"))
        }
        false => Ok(()),
    }
}

fn note(status: StatusCode, text: impl Into<Bytes>) -> Response<Bytes> {
    let text = text.into();
    let has_text = !text.is_empty();
    let mut page = Response::new(text);
    *page.status_mut() = status;
    if has_text {
        page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    }
    page
}

/// Something as it is kept.
fn value(bytes: Bytes) -> Response<Bytes> {
    let mut page = Response::new(bytes);
    page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    page
}

/// A page with its sketch, if there is room for it.
fn taken(sketching: &Sketching, question: &Question, page: Response<Bytes>) -> Option<Answer<Sheet>> {
    let (parts, body) = page.into_parts();
    let (length, hash) = (body.len() as u64, BodyHash::of(&body));
    let body = (question.room.keep(body)?, length, hash);
    let taken = question.rules.take(sketching, &question.key, &parts, body, &HeaderMap::new());
    let Answer { sketch, keep, response } = taken.ok()?;
    Some(Answer { sketch, keep, response: std::sync::Arc::new(response) })
}

/// What of a part of a name is not escaped.
const LITERAL: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Puts the methods that would do into an answer.
pub(crate) fn allow(headers: &mut HeaderMap, methods: Option<&'static str>) {
    if let Some(methods) = methods {
        headers.insert(ALLOW, HeaderValue::from_static(methods));
    }
}
