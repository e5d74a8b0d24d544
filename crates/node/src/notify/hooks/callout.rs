//! Call-outs: the application itself is asked, by HTTP.
//!
//! `POST` with `{"app", "principal", "object", "action": "register" | "send"}`. A status of 200 with `{"allow": true}` or
//! `{"allow": false}`, or one of 403, is an answer and remembered for a while; whatever else comes, or nothing within the
//! deadline, is none. Who asks the same while an answer is on its way waits for that one, unless none is remembered.

use super::way::{Way, way};
use super::{Hook, Question};
use crate::config::bad;
use crate::metrics;
use crate::principal::clip;
use axum::body::{Body, to_bytes};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, header};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::bounded::BoundedMap;
use tidings_base::{Error, Mono};
use tidings_notify::registrar::Verdict;
use tokio::sync::Semaphore;

/// Questions that one application is asked at a time; the others wait, as long as their deadline allows.
const AT_ONCE: usize = 64;
/// Answers of one application that are remembered.
const MAX_REMEMBERED: usize = 16_384;
/// The longest answer.
const MAX_ANSWER: usize = 4 << 10;

/// Who, what, and whether it is about sending.
type Key = (String, Bytes, bool);

/// Asks one application.
pub(super) struct CallOut {
    app: String,
    url: Uri,
    deadline: Duration,
    remember: Duration,
    client: Client<Way, Body>,
    room: Semaphore,
    remembered: Mutex<BoundedMap<Key, (Verdict, Mono)>>,
    /// What is being asked, and whose turn it is; as many as questions wait.
    asking: Mutex<BTreeMap<Key, Arc<tokio::sync::Mutex<()>>>>,
}

#[derive(Deserialize)]
struct Answer {
    allow: bool,
}

/// The address of a call-out.
pub(super) fn parse(app: &str, url: &str) -> Result<Uri, Error> {
    let known = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some();
    url.parse::<Uri>().ok().filter(known).ok_or_else(|| {
        bad(format!("`notify.hooks.{app}.url` is `{}`", clip(url)))
            .hint("Give an address such as `http://127.0.0.1:9000/may` or `https://may.example.com/may`.")
    })
}

impl CallOut {
    pub(super) fn new(app: &str, url: &str, hook: &Hook) -> Result<CallOut, Error> {
        Ok(CallOut {
            app: app.to_owned(),
            url: parse(app, url)?,
            deadline: hook.deadline.into(),
            remember: hook.remember.into(),
            client: Client::builder(TokioExecutor::new()).build(way(hook.ca.as_deref())?),
            room: Semaphore::new(AT_ONCE),
            remembered: Mutex::new(BoundedMap::new(MAX_REMEMBERED)),
            asking: Mutex::default(),
        })
    }

    pub(super) async fn judge(&self, now: Mono, principal: &str, question: &Question) -> Verdict {
        let key = (principal.to_owned(), question.object.clone(), question.sending);
        if let Some(verdict) = self.known(now, &key) {
            return verdict;
        }
        // Where nothing is remembered there is nothing to wait for: each asks for itself.
        let turn = (!self.remember.is_zero()).then(|| self.asking.lock().entry(key.clone()).or_default().clone());
        let asked = async {
            let _turn = match &turn {
                Some(turn) => Some(turn.lock().await),
                None => None,
            };
            if let Some(verdict) = self.known(now, &key) {
                return Some(verdict);
            }
            let _room = self.room.acquire().await.ok()?;
            let verdict = if self.ask(principal, question).await? { Verdict::Yes } else { Verdict::No };
            self.remembered.lock().insert(key.clone(), (verdict, now + self.remember));
            Some(verdict)
        };
        let verdict = tokio::time::timeout(self.deadline, asked).await;
        if let Some(turn) = turn {
            self.asked(&key, turn);
        }
        let reason = match verdict {
            Ok(Some(verdict)) => return verdict,
            Ok(None) => "no_answer",
            Err(_) => "time_out",
        };
        metrics::notify_hook_failed(&self.app, reason);
        Verdict::Unsure
    }

    fn known(&self, now: Mono, key: &Key) -> Option<Verdict> {
        self.remembered.lock().get(key).filter(|(_, until)| now < *until).map(|(verdict, _)| *verdict)
    }

    /// Whoever leaves last takes the turn away.
    fn asked(&self, key: &Key, turn: Arc<tokio::sync::Mutex<()>>) {
        let mut asking = self.asking.lock();
        drop(turn);
        if asking.get(key).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            asking.remove(key);
        }
    }

    /// What the application says, if it says anything that can be understood.
    async fn ask(&self, principal: &str, question: &Question) -> Option<bool> {
        let mut body = serde_json::json!({
            "app": self.app,
            "principal": principal,
            "action": if question.sending { "send" } else { "register" },
        });
        match std::str::from_utf8(&question.object) {
            Ok(name) => body["object"] = name.into(),
            Err(_) => body["object_base64"] = BASE64.encode(&question.object).into(),
        }
        let request = Request::builder().method(Method::POST).uri(self.url.clone());
        let request =
            request.header(header::CONTENT_TYPE, "application/json").body(Body::from(body.to_string())).ok()?;
        let answer = self.client.request(request).await.inspect_err(|error| {
            tracing::debug!(app = self.app, %error, "notify: a hook does not answer");
        });
        let (head, body) = answer.ok()?.into_parts();
        if head.status == StatusCode::FORBIDDEN {
            return Some(false);
        }
        let body = to_bytes(Body::new(body), MAX_ANSWER).await.ok().filter(|_| head.status == StatusCode::OK)?;
        serde_json::from_slice::<Answer>(&body).ok().map(|answer| answer.allow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Member, Tls};
    use crate::pki;
    use crate::port::tls;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tidings_base::Wall;
    use tidings_notify::names::{Channel, ClientKey};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    fn question() -> Question {
        let client = ClientKey::new("shop", 0, "ann", [1; 16]);
        Question { client, channel: Channel { node: 1, number: 1 }, object: Bytes::from_static(b"x"), sending: true }
    }

    #[allow(clippy::disallowed_methods)] // certificates are valid by the wall clock
    fn now() -> Wall {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Wall(since.as_micros() as u64)
    }

    /// Keys of an authority and of one host here; the host's side of TLS.
    fn keys(dir: &Path) -> (PathBuf, TlsAcceptor) {
        let host = Member { node: 1, address: "127.0.0.1:7400".into() };
        pki::init(dir, &[host], now()).unwrap();
        let host = dir.join("node-1");
        let tls = Tls { certificate: host.join("node.pem"), key: host.join("node.key"), client_ca: None };
        (dir.join("ca.pem"), TlsAcceptor::from(tls::server(&tls, now()).unwrap()))
    }

    /// An application behind TLS that allows everything, a while after it was asked; how often it was.
    async fn application(acceptor: TlsAcceptor) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/may", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, counted) = (acceptor.clone(), counted.clone());
                tokio::spawn(async move {
                    let mut stream = acceptor.accept(socket).await.ok()?;
                    let mut read = [0; 4_096];
                    while stream.read(&mut read).await.ok()? > 0 {
                        counted.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        let said = "{\"allow\": true}";
                        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{said}", said.len());
                        stream.write_all(answer.as_bytes()).await.ok()?;
                    }
                    Some(())
                });
            }
        });
        (url, asked)
    }

    fn hook(ca: Option<PathBuf>) -> Hook {
        Hook { ca, deadline: crate::config::Time::seconds(10), ..Hook::default() }
    }

    #[tokio::test]
    async fn an_application_behind_tls_is_asked_once_by_many_and_only_if_it_is_trusted() {
        let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (ca, acceptor) = keys(ours.path());
        let (other, _) = keys(theirs.path());
        let (url, asked) = application(acceptor).await;
        let callout = CallOut::new("shop", &url, &hook(Some(ca))).unwrap();
        let question = question();
        let judge = || callout.judge(Mono(1), "ann", &question);
        assert_eq!(tokio::join!(judge(), judge(), judge()), (Verdict::Yes, Verdict::Yes, Verdict::Yes));
        assert_eq!((asked.load(Ordering::SeqCst), callout.asking.lock().len()), (1, 0));
        for ca in [Some(other), None] {
            let callout = CallOut::new("shop", &url, &hook(ca)).unwrap();
            assert_eq!(callout.judge(Mono(1), "ann", &question).await, Verdict::Unsure);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1, "nothing is said to a stranger");
    }

    /// An application that answers nobody before it was asked so often.
    async fn crowd(many: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/may", listener.local_addr().unwrap());
        let all = Arc::new(tokio::sync::Barrier::new(many));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let all = all.clone();
                tokio::spawn(async move {
                    let mut read = [0; 4_096];
                    let _ = stream.read(&mut read).await.ok()?;
                    all.wait().await;
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{\"allow\": true}").await.ok()
                });
            }
        });
        url
    }

    #[tokio::test]
    async fn where_nothing_is_remembered_each_asks_for_itself_and_nobody_waits_for_another() {
        let hook = Hook { remember: crate::config::Time::seconds(0), ..hook(None) };
        let callout = CallOut::new("shop", &crowd(3).await, &hook).unwrap();
        let question = question();
        let judge = || callout.judge(Mono(1), "ann", &question);
        assert_eq!(tokio::join!(judge(), judge(), judge()), (Verdict::Yes, Verdict::Yes, Verdict::Yes));
    }
}
