//! A BFT group behind the proxy: requests as commands of its service, and its answers as pages.
//!
//! A read that is remembered is asked of one replica, past the order; everything else is ordered, and its answer has a place σ
//! there. So reads of keys are delay-once (rule A), writes are linearizable, and whoever wants to read his own writes can (rule K).
//! Pages change outside the order, and are promised no more than those of origins are (rule E).

use super::{LITERAL, Unfit, note, plain_write, taken, value, without_headers};
use crate::config::Site;
use crate::engine::{Question, Sheet};
use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{Method, Response, StatusCode};
use percent_encoding::{AsciiSet, percent_decode_str, percent_encode};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_bft::client::{Client, Options};
use tidings_bft::command::LONGEST_REQUEST;
use tidings_bft::membership::{ClientSecrets, Membership};
use tidings_bft::{http as pages, kv};
use tidings_sketch::group::Refusal;
use tidings_sketch::http::{Forwarded, Rules};
use tidings_sketch::replica::WINDOW;
use tidings_sketch::sigma::Sigma;
use tidings_sketch::sketch::Sketching;
use tidings_sketch::{Answer, ReplicaId};
use tokio::sync::Semaphore;

/// The group behind a proxy, and as whom the proxy asks it.
#[derive(Clone)]
pub struct BftGroup {
    /// Who is of it.
    pub membership: Arc<Membership>,
    /// The client that the proxy is there. Nobody else uses it.
    pub client: ClientSecrets,
    /// Its nonces begin after this one: above all that it has used before.
    pub last_nonce: u64,
    /// What its replicas serve.
    pub service: Service,
}

impl fmt::Debug for BftGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, client) = (self.membership.name(), self.client.id);
        write!(f, "BftGroup({name}, client {client}, {:?})", self.service)
    }
}

/// What the replicas of a group serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Keys and values: `/KEY` is read by GET, written by PUT, taken away by DELETE.
    Keys,
    /// Pages of a web server beside each replica.
    Pages,
}

/// What of a key is not escaped: its slashes, too, since it has no parts.
const LITERAL_IN_KEYS: &AsciiSet = &LITERAL.remove(b'/');

impl Service {
    /// Its name, as it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Service::Keys => "keys",
            Service::Pages => "pages",
        }
    }

    /// A request as a command. What is not part of the command has no influence on the answer.
    pub(crate) fn command(self, asked: &Forwarded) -> Result<Bytes, Unfit> {
        let command = match self {
            Service::Keys => of_key(asked)?.encoded(),
            Service::Pages => of_page(asked)?.encoded(),
        };
        if command.len() > LONGEST_REQUEST {
            let why = "the request is longer than 64 KiB, the most that a group orders at once";
            return Err(Unfit::new(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        Ok(command)
    }

    /// One spelling for each key.
    pub(crate) fn spelled(self, target: &str) -> Option<String> {
        let key = target.strip_prefix('/').filter(|key| self == Service::Keys && !key.contains('?'))?;
        let key: Vec<u8> = percent_decode_str(key).collect();
        Some(format!("/{}", percent_encode(&key, LITERAL_IN_KEYS)))
    }

    /// Rules as they hold before this service. Keys know no headers: none passes but to be refused, and whoever asks is answered
    /// alike.
    pub(crate) fn rules(self, rules: Rules) -> Rules {
        if self == Service::Pages {
            return rules;
        }
        without_headers(rules)
    }

    /// The service's answer as a page; `None` if it is not of this service.
    fn page(self, asked: &Method, result: Bytes) -> Option<Response<Bytes>> {
        match self {
            Service::Keys => key_page(asked, kv::Response::read(result).ok()?),
            Service::Pages => server_page(pages::Response::read(result).ok()?),
        }
    }
}

fn of_key(asked: &Forwarded) -> Result<kv::Request, Unfit> {
    if asked.target.contains('?') {
        return Err(Unfit::new(StatusCode::BAD_REQUEST, "a key has no query; write `?` as %3F"));
    }
    let key: Vec<u8> = percent_decode_str(asked.target.strip_prefix('/').unwrap_or_default()).collect();
    if key.is_empty() || key.len() > kv::LONGEST_KEY {
        return Err(Unfit::new(StatusCode::BAD_REQUEST, "a key has 1 to 1,024 bytes"));
    }
    let key = Bytes::from(key);
    let request = match asked.method {
        Method::GET => return Ok(kv::Request::Get(key)),
        Method::PUT => kv::Request::Put(key, asked.body.clone()),
        Method::DELETE => kv::Request::Delete(key),
        _ => return Err(Unfit::method("GET, HEAD, PUT, DELETE")),
    };
    plain_write(asked)?;
    Ok(request)
}

fn of_page(asked: &Forwarded) -> Result<pages::Request, Unfit> {
    if asked.method != Method::GET {
        return Err(Unfit::method("GET, HEAD"));
    }
    if asked.target.len() > pages::LONGEST_PATH {
        return Err(Unfit::new(StatusCode::URI_TOO_LONG, "the path is too long"));
    }
    let own = [("host", asked.authority.as_str()), ("accept-encoding", "identity")];
    let own = own.map(|(name, value)| (name.to_owned(), Bytes::copy_from_slice(value.as_bytes())));
    let passed = asked.inputs.iter().chain(&asked.non_inputs);
    let passed = passed.map(|(name, value)| (name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes())));
    let headers: Vec<(String, Bytes)> = own.into_iter().chain(passed).collect();
    if headers.len() > pages::MOST_HEADERS {
        return Err(Unfit::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "the request has too many headers"));
    }
    Ok(pages::Request { path: asked.target.clone(), headers })
}

fn key_page(asked: &Method, response: kv::Response) -> Option<Response<Bytes>> {
    use kv::{Refusal, Response as Said};
    Some(match response {
        Said::Value(Some(bytes)) => value(bytes),
        Said::Value(None) => note(StatusCode::NOT_FOUND, "the key has no value\n"),
        Said::Done(true) => note(StatusCode::NO_CONTENT, ""),
        Said::Done(false) if *asked == Method::DELETE => note(StatusCode::NOT_FOUND, "the key had no value\n"),
        Said::Done(false) => note(StatusCode::CREATED, ""),
        Said::Refused(Refusal::Full) => {
            note(StatusCode::INSUFFICIENT_STORAGE, "the service is full; delete something first\n")
        }
        // The command was one of keys: the group's replicas serve something else.
        Said::Refused(Refusal::Malformed) => return None,
    })
}

fn server_page(response: pages::Response) -> Option<Response<Bytes>> {
    let (status, headers, body) = match response {
        pages::Response::Page { status, headers, body } => (status, headers, body),
        pages::Response::Refused(pages::Refusal::Malformed) => {
            return Some(note(StatusCode::BAD_REQUEST, "the request is none for a web server\n"));
        }
        pages::Response::Refused(pages::Refusal::Unreachable) => {
            return Some(note(StatusCode::BAD_GATEWAY, "the servers beside the replicas do not answer\n"));
        }
        pages::Response::Refused(pages::Refusal::TooLong) => {
            return Some(note(StatusCode::BAD_GATEWAY, "the page is longer than an answer of the group may be\n"));
        }
    };
    let mut page = Response::new(body);
    *page.status_mut() = StatusCode::from_u16(status).ok()?;
    for (name, value) in headers {
        let name = HeaderName::from_lowercase(name.as_bytes()).ok()?;
        page.headers_mut().append(name, HeaderValue::from_bytes(&value).ok()?);
    }
    Some(page)
}

/// The group, asked.
pub(crate) struct Bft {
    client: Client,
    service: Service,
    sketching: Sketching,
    names: Vec<String>,
    /// How long one replica has.
    patience: Duration,
    /// Commands under way. A nonce that has fallen behind so many others as the group knows of a client is lost.
    orders: Semaphore,
}

/// What a client says of a number that the group has forgotten.
const TOO_OLD: &str = "bft.too_old";

/// The most commands under way: half of what the group knows of a client.
const MOST_ORDERS: usize = WINDOW / 2;

impl Bft {
    pub(crate) fn start(group: &BftGroup, sketching: Sketching, site: &Site) -> Result<Bft, Error> {
        let BftGroup { membership, client, last_nonce, service } = group;
        membership.check_client(client)?;
        let options = Options { give_up: site.give_up, ..Options::after(*last_nonce) };
        let names = membership.replicas().iter().enumerate();
        Ok(Bft {
            names: names.map(|(at, member)| format!("replica-{at} {}", member.clients)).collect(),
            client: Client::start(Arc::clone(membership), client.clone(), &options)?,
            service: *service,
            sketching,
            patience: site.patience,
            orders: Semaphore::new(MOST_ORDERS),
        })
    }

    pub(crate) fn service(&self) -> Service {
        self.service
    }

    /// Its replicas, by number and where they are.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// How often each replica's word was not the group's.
    pub(crate) fn differed(&self) -> Vec<u64> {
        self.client.differed()
    }

    /// Asks one replica, as things stand there.
    pub(crate) async fn fast(&self, from: ReplicaId, question: &Question) -> Option<Answer<Sheet>> {
        let asked = self.client.one(from, question.command.clone());
        let result = tokio::time::timeout(self.patience, asked).await.ok()??;
        self.taken(question, result)
    }

    /// Asks the group, in its order.
    pub(crate) async fn order(&self, question: &Question) -> Result<(Answer<Sheet>, Sigma), Refusal> {
        let _turn = self.orders.acquire().await;
        let mut answered = self.client.call(question.command.clone()).await;
        if let Some(error) = answered.as_ref().err().filter(|error| error.code == TOO_OLD) {
            tracing::warn!(%error, hint = %error.hint, "a command came too late for its number");
            // A read may be asked twice; a write may have been executed.
            if question.forwarded.method == Method::GET {
                answered = self.client.call(question.command.clone()).await;
            }
        }
        let answered = answered.map_err(|error| {
            tracing::debug!(%error, "the group gave no answer");
            if error.class == Class::OutcomeUnknown { Refusal::Unreachable } else { Refusal::Disagreement }
        })?;
        let Some(page) = self.service.page(&question.forwarded.method, answered.result) else {
            tracing::warn!(service = ?self.service, "the group does not answer as this service does");
            return Err(Refusal::OtherService);
        };
        taken(&self.sketching, question, page).zip(answered.sigma).ok_or(Refusal::Disagreement)
    }

    /// A result as a page with its sketch. A liar's may be none.
    fn taken(&self, question: &Question, result: Bytes) -> Option<Answer<Sheet>> {
        taken(&self.sketching, question, self.service.page(&question.forwarded.method, result)?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::MEANT;
    use super::*;
    use http::header::{CONTENT_ENCODING, CONTENT_RANGE, IF_MATCH, IF_NONE_MATCH};
    use tidings_sketch::http::PathRule;
    use tidings_sketch::sketcher::Way;

    fn asked(method: &str, target: &str, body: &'static str) -> Forwarded {
        Forwarded {
            method: method.parse().unwrap(),
            scheme: "http",
            authority: "a.org".into(),
            target: target.into(),
            inputs: Vec::new(),
            non_inputs: Vec::new(),
            body: Bytes::from_static(body.as_bytes()),
        }
    }

    #[test]
    fn keys_are_paths() {
        let key = |text: &'static str| Bytes::from_static(text.as_bytes());
        let command = |method: &str, target: &str| Service::Keys.command(&asked(method, target, "red"));
        assert_eq!(command("GET", "/a%2Fb%20c"), Ok(kv::Request::Get(key("a/b c")).encoded()));
        assert_eq!(command("PUT", "/colour"), Ok(kv::Request::Put(key("colour"), key("red")).encoded()));
        assert_eq!(command("DELETE", "/a/b"), Ok(kv::Request::Delete(key("a/b")).encoded()));
        let refused = |method: &str, target: &str| command(method, target).unwrap_err().status.as_u16();
        assert_eq!([refused("GET", "/"), refused("GET", "/a?b"), refused("POST", "/a")], [400, 400, 405]);
        assert_eq!(refused("GET", &format!("/{}", "a".repeat(1_025))), 400);
    }

    #[test]
    fn a_key_has_one_spelling() {
        let spelled = |target: &str| Service::Keys.spelled(target);
        for other in ["/a%2fb%20c", "/%61%2Fb%20c", "/a/b%20c"] {
            assert_eq!(spelled(other).as_deref(), Some("/a/b%20c"), "{other}");
        }
        let all: String = (0..=255u8).map(|byte| format!("%{byte:02x}")).collect();
        for key in [&format!("/{all}")[..], "/a/../b", "//a", "/%zz%", "/%2e"] {
            let once = spelled(key).unwrap();
            let command = |target: &str| Service::Keys.command(&asked("GET", target, ""));
            assert_eq!((command(key), spelled(&once)), (command(&once), Some(once.clone())), "{key}");
        }
        assert_eq!((spelled("/a?%62"), spelled("*"), Service::Pages.spelled("/%61")), (None, None, None));
    }

    #[test]
    fn rules_before_keys_let_no_header_pass() {
        let black = PathRule { prefix: "/hot".to_owned(), way: Way::Replicated, personal_too: false };
        let rules = Rules { paths: vec![black], ..Rules::default() };
        let keys = Service::Keys.rules(rules.clone());
        assert!(keys.inputs == MEANT && keys.non_inputs.is_empty() && keys.paths.iter().all(|rule| rule.personal_too));
        assert_eq!((keys.paths.len(), keys.paths[0].way), (2, Way::Replicated));
        assert_eq!(Service::Pages.rules(rules.clone()).inputs, rules.inputs);
    }

    #[test]
    fn what_a_write_depends_on_is_not_ignored() {
        for (name, status) in [(IF_MATCH, 501), (IF_NONE_MATCH, 501), (CONTENT_RANGE, 415), (CONTENT_ENCODING, 415)] {
            let mut write = asked("PUT", "/colour", "red");
            write.inputs.push((http::header::ACCEPT_ENCODING, HeaderValue::from_static("gzip")));
            assert!(Service::Keys.command(&write).is_ok(), "that is of its answer");
            write.inputs.push((name, HeaderValue::from_static("x")));
            assert_eq!(Service::Keys.command(&write).unwrap_err().status.as_u16(), status);
        }
    }

    #[test]
    fn what_a_group_cannot_order_is_refused_at_once() {
        let mut large = asked("PUT", "/colour", "");
        large.body = Bytes::from(vec![0; LONGEST_REQUEST]);
        assert_eq!(Service::Keys.command(&large).unwrap_err().status, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(Service::Pages.command(&asked("POST", "/", "")).unwrap_err().allow, Some("GET, HEAD"));
        let long = format!("/{}", "a".repeat(pages::LONGEST_PATH));
        assert_eq!(Service::Pages.command(&asked("GET", &long, "")).unwrap_err().status, StatusCode::URI_TOO_LONG);
        let mut many = asked("GET", "/", "");
        many.inputs = vec![(http::header::ACCEPT, HeaderValue::from_static("x")); pages::MOST_HEADERS];
        assert_eq!(Service::Pages.command(&many).unwrap_err().status.as_u16(), 431);
    }

    #[test]
    fn nonsense_is_no_page() {
        for nonsense in [&b""[..], b"\x09", b"\x01\0\0\0\x09x", b"\0\0\0\x09\xff\0\0\0\0\0\0\0\0"] {
            let result = Bytes::copy_from_slice(nonsense);
            assert!(Service::Pages.page(&Method::GET, result).is_none(), "{nonsense:?}");
        }
        assert!(Service::Keys.page(&Method::GET, Bytes::from_static(b"\x09")).is_none());
        assert!(Service::Keys.page(&Method::GET, Bytes::from_static(b"\x03\x01")).is_none());
    }
}
