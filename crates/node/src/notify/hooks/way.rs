//! The way to an application that is asked: TCP, and TLS on it where its address is `https`.

use crate::port::tls;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use tidings_base::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower::util::BoxCloneSyncService;

/// Makes connections to addresses.
pub(super) type Way = BoxCloneSyncService<Uri, Carried, io::Error>;

/// A way on which whoever is `https` must show a certificate of the authority in a file; without a file nobody is trusted.
pub(super) fn way(ca: Option<&Path>) -> Result<Way, Error> {
    let tls = ca.map(tls::client).transpose()?.map(TlsConnector::from);
    Ok(BoxCloneSyncService::new(tower::service_fn(move |uri: Uri| connect(uri, tls.clone()))))
}

async fn connect(uri: Uri, tls: Option<TlsConnector>) -> io::Result<Carried> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "an address without a host");
    let host = uri.host().ok_or_else(invalid)?.trim_start_matches('[').trim_end_matches(']').to_owned();
    let secure = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let socket = TcpStream::connect((host.as_str(), port)).await?;
    socket.set_nodelay(true)?;
    if !secure {
        return Ok(Carried(TokioIo::new(Box::new(socket))));
    }
    let tls = tls.ok_or_else(|| io::Error::other("no certificate authority is trusted"))?;
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    Ok(Carried(TokioIo::new(Box::new(tls.connect(name, socket).await?))))
}

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

/// A connection.
pub(super) struct Carried(TokioIo<Box<dyn Socket>>);

impl Connection for Carried {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Carried {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl Write for Carried {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
