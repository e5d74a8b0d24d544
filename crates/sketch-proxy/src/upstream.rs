//! A pool of connections to the origins, and their answers as the machines take them.

use crate::config::Config;
use crate::engine::Sheet;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tidings_sketch::http::{Forwarded, Rules};
use tidings_sketch::sketch::{BodyHash, Sketch, Sketching};
use tidings_sketch::{Answer, ReplicaId};

/// A body that is held in memory.
pub(crate) type Held = Bytes;

pub(crate) struct Upstream {
    client: Client<HttpConnector, Full<Bytes>>,
    origins: Vec<Authority>,
    rules: Rules,
    sketching: Sketching,
    longest_body: usize,
    give_up: Duration,
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
    pub(crate) fn new(config: &Config, sketching: Sketching) -> Upstream {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(config.give_up));
        Upstream {
            client: Client::builder(TokioExecutor::new()).build(connector),
            origins: config.origins.clone(),
            rules: config.rules.clone(),
            sketching,
            longest_body: config.longest_body,
            give_up: config.give_up,
        }
    }

    /// Asks one origin for everything (rule D: no conditions, no ranges, no coding), and sketches what it answers.
    pub(crate) async fn fetch(
        &self,
        from: ReplicaId,
        what: &Forwarded,
        key: &Sketch,
    ) -> Result<Answer<Sheet>, NoAnswer> {
        let request = self.request(from, what)?;
        let fetched = tokio::time::timeout(self.give_up, self.answer(request, key)).await;
        fetched.map_err(|_| no("it did not answer in time"))?
    }

    fn request(&self, from: ReplicaId, what: &Forwarded) -> Result<Request<Full<Bytes>>, NoAnswer> {
        let origin = self.origins.get(usize::from(from.0)).ok_or_else(|| no("nobody has this number"))?;
        let target: PathAndQuery = what.target.parse().map_err(no)?;
        let uri = Uri::builder().scheme(Scheme::HTTP).authority(origin.clone()).path_and_query(target);
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

    async fn answer(&self, request: Request<Full<Bytes>>, key: &Sketch) -> Result<Answer<Sheet>, NoAnswer> {
        let (parts, body) = self.client.request(request).await.map_err(no)?.into_parts();
        let collected = Limited::new(body, self.longest_body).collect().await.map_err(no)?;
        let trailers = collected.trailers().cloned().unwrap_or_else(HeaderMap::new);
        let body = collected.to_bytes();
        let (length, hash) = (body.len() as u64, BodyHash::of(&body));
        let answer = self.rules.take(&self.sketching, key, &parts, (body, length, hash), &trailers).map_err(no)?;
        Ok(Answer { sketch: answer.sketch, keep: answer.keep, response: Arc::new(answer.response) })
    }
}
