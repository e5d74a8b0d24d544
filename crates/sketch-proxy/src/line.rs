//! Connections to origins, plain or by TLS, for the pool.

use crate::tls;
use http::Uri;
use hyper::rt::{Read, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_rustls::TlsConnector;
use tower::Service;

/// A connection, whatever it is made of.
pub(crate) trait Wire: Read + Write + Send + Unpin {}
impl<W: Read + Write + Send + Unpin> Wire for W {}

type Line = Box<dyn Wire>;
type Failure = Box<dyn StdError + Send + Sync>;

impl Connection for Line {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Makes connections to origins.
#[derive(Clone)]
pub(crate) struct Connector {
    http: HttpConnector,
    tls: Option<Arc<ClientConfig>>,
    give_up: Duration,
}

impl Connector {
    pub(crate) fn new(tls: Option<Arc<ClientConfig>>, give_up: Duration) -> Connector {
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        http.set_connect_timeout(Some(give_up));
        http.enforce_http(false);
        Connector { http, tls, give_up }
    }
}

impl Service<Uri> for Connector {
    type Response = Line;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<Line, Failure>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.http.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tls = self.tls.clone().filter(|_| uri.scheme_str() == Some("https"));
        let (give_up, host) = (self.give_up, uri.host().unwrap_or_default().to_owned());
        let connecting = self.http.call(uri);
        Box::pin(async move {
            let plain = connecting.await?;
            let Some(tls) = tls else { return Ok(Box::new(plain) as Line) };
            let name = tls::name(&host).map_err(|error| error.to_string())?;
            let shaking = TlsConnector::from(tls).connect(name, plain.into_inner());
            let stream = tokio::time::timeout(give_up, shaking).await.map_err(|_| "TLS took too long")??;
            Ok(Box::new(TokioIo::new(stream)) as Line)
        })
    }
}
