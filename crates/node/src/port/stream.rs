//! One accepted socket, plain or encrypted, with its place and its first deadline.

use super::admission::Slot;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use tokio_rustls::server::TlsStream;

/// By this many bytes the server knows which version of HTTP is spoken (the HTTP/2 preface is that long); from then
/// on hyper's own time-outs hold.
const VERSION_BYTES: usize = 24;

/// An accepted connection.
pub struct Stream {
    socket: Socket,
    /// Until the version of HTTP is known. Boxed, since a connection is rarely in this state and always pays for it.
    opening: Option<Box<Opening>>,
    /// While the other side takes nothing of what it asked for.
    stalled: Option<Pin<Box<Sleep>>>,
    patience: Patience,
    _slot: Slot,
}

/// How long a connection may keep the server waiting.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For the first bytes of its first request.
    pub opening: Duration,
    /// For room to write to it.
    pub stall: Duration,
}

enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

struct Opening {
    deadline: Pin<Box<Sleep>>,
    read: usize,
}

impl Stream {
    /// A connection in plain text.
    pub fn plain(socket: TcpStream, slot: Slot, patience: Patience) -> Stream {
        Stream::new(Socket::Plain(socket), slot, patience)
    }

    /// An encrypted connection, its handshake done.
    pub fn tls(socket: TlsStream<TcpStream>, slot: Slot, patience: Patience) -> Stream {
        Stream::new(Socket::Tls(Box::new(socket)), slot, patience)
    }

    fn new(socket: Socket, slot: Slot, patience: Patience) -> Stream {
        let opening = Box::new(Opening { deadline: Box::pin(sleep(patience.opening)), read: 0 });
        Stream { socket, opening: Some(opening), stalled: None, patience, _slot: slot }
    }

    fn writer(&mut self) -> Pin<&mut (dyn AsyncWrite + Send + Unpin)> {
        match &mut self.socket {
            Socket::Plain(socket) => Pin::new(socket),
            Socket::Tls(socket) => Pin::new(socket.as_mut()),
        }
    }

    /// Lets a write wait as long as patience lasts.
    fn watched<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stall = self.patience.stall;
        let deadline = self.stalled.get_or_insert_with(|| Box::pin(sleep(stall)));
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the other side took nothing in time")))
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let read = match &mut this.socket {
            Socket::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Socket::Tls(socket) => Pin::new(socket.as_mut()).poll_read(cx, buf),
        };
        let Some(opening) = &mut this.opening else { return read };
        if read.is_pending() {
            ready!(opening.deadline.as_mut().poll(cx));
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "nothing was asked in time")));
        }
        opening.read += buf.filled().len() - before;
        if opening.read >= VERSION_BYTES {
            this.opening = None;
        }
        read
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.writer().poll_write(cx, buf);
        self.watched(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.writer().poll_write_vectored(cx, bufs);
        self.watched(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.socket {
            Socket::Plain(socket) => socket.is_write_vectored(),
            Socket::Tls(socket) => socket.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.writer().poll_flush(cx);
        self.watched(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer().poll_shutdown(cx)
    }
}
