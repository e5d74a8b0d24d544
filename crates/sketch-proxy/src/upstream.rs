//! A pool of connections to the origins, and their answers as the machines take them.

use crate::config::{Checks, Origin, Site};
use crate::engine::{Question, Sheet};
use crate::held::{Held, Room, Store};
use crate::line::Connector;
use crate::threads::Each;
use crate::tls;
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::uri::{PathAndQuery, Scheme};
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;
use tidings_sketch::http::Forwarded;
use tidings_sketch::sketch::Sketching;
use tidings_sketch::{Answer, ReplicaId};

/// How long a connection is kept that nobody uses. Many come of a burst, and origins have better to do than to hold them; most end them
/// themselves after 5 to 75 s.
const IDLE: Duration = Duration::from_secs(60);

pub(crate) struct Upstream {
    /// Connections, of each thread its own.
    clients: Each<Client<Connector, Full<Bytes>>>,
    origins: Vec<Origin>,
    sketching: Sketching,
    store: Store,
    give_up: Duration,
    checks: Option<Checks>,
    /// The host that health checks ask for: the first that leads to the site, if that is one and not many.
    checked_host: Option<HeaderValue>,
}

/// Why an origin gave no answer.
#[derive(Debug)]
pub(crate) struct NoAnswer(String);

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn no(what: impl fmt::Display) -> NoAnswer {
    NoAnswer(what.to_string())
}

impl Upstream {
    pub(crate) fn new(site: &Site, sketching: Sketching, threads: NonZeroUsize, room: Room) -> Result<Upstream, Error> {
        let secure = site.origins.iter().any(|origin| origin.scheme == Scheme::HTTPS);
        let tls = if secure { Some(tls::client(site.origin_ca.as_deref())?) } else { None };
        let client = || {
            let mut pool = Client::builder(TokioExecutor::new());
            pool.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE);
            pool.build(Connector::new(tls.clone(), site.give_up))
        };
        Ok(Upstream {
            clients: Each::new(threads, client),
            origins: site.origins.clone(),
            sketching,
            store: Store::new(site.bodies, site.spool.clone(), site.most_on_disk, room),
            give_up: site.give_up,
            checks: site.checks.clone(),
            checked_host: site.hosts.iter().find(|host| !host.starts_with('*')).and_then(|host| host.parse().ok()),
        })
    }

    /// The origins, as they were named.
    pub(crate) fn origins(&self) -> &[Origin] {
        &self.origins
    }

    /// What an origin is called.
    pub(crate) fn name(&self, origin: ReplicaId) -> String {
        self.origins.get(usize::from(origin.0)).map_or_else(String::new, ToString::to_string)
    }

    /// Asks one origin for everything (rule D: no conditions, no ranges, no coding), and sketches what it answers. Says when the head
    /// of the answer is there.
    pub(crate) async fn fetch(
        &self,
        from: ReplicaId,
        question: &Question,
        begun: impl FnOnce(),
    ) -> Result<Answer<Sheet>, NoAnswer> {
        let request = self.request(from, &question.forwarded)?;
        let answer = async {
            let response = self.clients.own().request(request).await.map_err(no)?;
            begun();
            self.taken(response, question).await
        };
        let fetched = tokio::time::timeout(self.give_up, answer).await;
        fetched.map_err(|_| no("it did not answer in time"))?
    }

    /// Asks an origin whether it is well. What it says is not looked at beyond its status.
    pub(crate) async fn check(&self, origin: ReplicaId) -> Result<(), NoAnswer> {
        let checks = self.checks.as_ref().ok_or_else(|| no("there are no checks"))?;
        let origin = self.origins.get(usize::from(origin.0)).ok_or_else(|| no("nobody has this number"))?;
        let uri = Uri::builder().scheme(origin.scheme.clone()).authority(origin.authority.clone());
        let uri = uri.path_and_query(checks.path.clone()).build().map_err(no)?;
        let mut request = Request::builder().uri(uri).header(header::USER_AGENT, "tidings-health");
        if let Some(host) = &self.checked_host {
            request = request.header(header::HOST, host.clone());
        }
        let request = request.body(Full::default()).map_err(no)?;
        let asked = tokio::time::timeout(checks.patience, self.clients.own().request(request)).await;
        let status = asked.map_err(|_| no("it did not answer in time"))?.map_err(no)?.status();
        match status.is_success() || status.is_redirection() {
            true => Ok(()),
            false => Err(no(format_args!("it answered {status}"))),
        }
    }

    fn request(&self, from: ReplicaId, what: &Forwarded) -> Result<Request<Full<Bytes>>, NoAnswer> {
        let origin = self.origins.get(usize::from(from.0)).ok_or_else(|| no("nobody has this number"))?;
        let target: PathAndQuery = what.target.parse().map_err(no)?;
        let uri =
            Uri::builder().scheme(origin.scheme.clone()).authority(origin.authority.clone()).path_and_query(target);
        let mut request = Request::builder().method(what.method.clone()).uri(uri.build().map_err(no)?);
        if let Some(headers) = request.headers_mut() {
            headers.insert(header::HOST, HeaderValue::from_str(&what.authority).map_err(no)?);
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            headers.insert(header::VIA, HeaderValue::from_static("1.1 tidings"));
            for (name, value) in what.inputs.iter().chain(&what.non_inputs) {
                headers.append(name.clone(), value.clone());
            }
        }
        request.body(Full::new(what.body.clone())).map_err(no)
    }

    /// Takes an answer in, and sketches it.
    pub(crate) async fn taken(
        &self,
        response: Response<Incoming>,
        question: &Question,
    ) -> Result<Answer<Sheet>, NoAnswer> {
        let (parts, body) = response.into_parts();
        let whole = self.store.take(body).await.map_err(no)?;
        // Nobody has seen all of what passes by: it is not remembered.
        let passes = matches!(whole.body, Held::Passing(_));
        let taken = (whole.body, whole.length, whole.hash);
        let answer = question.rules.take(&self.sketching, &question.key, &parts, taken, &whole.trailers).map_err(no)?;
        Ok(Answer { sketch: answer.sketch, keep: answer.keep && !passes, response: Arc::new(answer.response) })
    }
}
