//! Call-outs: the application itself is asked, by HTTP.
//!
//! `POST` with `{"app", "principal", "object", "action": "register" | "send"}`. A status of 200 with `{"allow": true}` or
//! `{"allow": false}`, or one of 403, is an answer and remembered for a while; whatever else comes, or nothing within the
//! deadline, is none.

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
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use serde::Deserialize;
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
    client: Client<HttpConnector, Body>,
    room: Semaphore,
    remembered: Mutex<BoundedMap<Key, (Verdict, Mono)>>,
}

#[derive(Deserialize)]
struct Answer {
    allow: bool,
}

/// The address of a call-out.
pub(super) fn parse(app: &str, url: &str) -> Result<Uri, Error> {
    let parsed = url.parse::<Uri>().ok().filter(|uri| uri.scheme_str() == Some("http") && uri.authority().is_some());
    parsed.ok_or_else(|| {
        bad(format!("`notify.hooks.{app}.url` is `{}`", clip(url)))
            .hint("Give an address such as `http://127.0.0.1:9000/may`; for HTTPS, put a proxy beside the node.")
    })
}

impl CallOut {
    pub(super) fn new(app: &str, url: &str, hook: &Hook) -> Result<CallOut, Error> {
        Ok(CallOut {
            app: app.to_owned(),
            url: parse(app, url)?,
            deadline: hook.deadline.into(),
            remember: hook.remember.into(),
            client: Client::builder(TokioExecutor::new()).build_http(),
            room: Semaphore::new(AT_ONCE),
            remembered: Mutex::new(BoundedMap::new(MAX_REMEMBERED)),
        })
    }

    pub(super) async fn judge(&self, now: Mono, principal: &str, question: &Question) -> Verdict {
        let key = (principal.to_owned(), question.object.clone(), question.sending);
        if let Some((verdict, until)) = self.remembered.lock().get(&key)
            && now < *until
        {
            return *verdict;
        }
        let asked = async {
            let _room = self.room.acquire().await.ok()?;
            self.ask(principal, question).await
        };
        let verdict = match tokio::time::timeout(self.deadline, asked).await {
            Ok(Some(true)) => Verdict::Yes,
            Ok(Some(false)) => Verdict::No,
            Ok(None) => {
                metrics::notify_hook_failed(&self.app, "no_answer");
                return Verdict::Unsure;
            }
            Err(_) => {
                metrics::notify_hook_failed(&self.app, "time_out");
                return Verdict::Unsure;
            }
        };
        self.remembered.lock().insert(key, (verdict, now + self.remember));
        verdict
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
