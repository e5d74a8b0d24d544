//! The WebSocket carrier, for either end, and a plain connection over it: what browsers do, in Rust.

use crate::link::{Carrier, Driver, HIGH_WATER, Link, Received, RefuseAll};
use futures::{Sink, Stream};
use http::{HeaderMap, HeaderValue, header};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use tidings_base::{Class, Error};
use tidings_wire::session::{Config, Side};
use tidings_wire::{Frame, Limits, WEBSOCKET_BINARY, WEBSOCKET_JSON, codec, error, json, limits, v1, version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::error::CapacityError;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, WebSocketConfig};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

/// Where nodes take WebSockets.
pub const PATH: &str = "/v1/frames";

/// The read buffer of a connection. The default of the library is sixteen times this, and slower.
pub const READ_BUFFER: usize = 8 << 10;

/// In which form frames travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Binary messages in Protobuf.
    Binary,
    /// Text messages in canonical JSON.
    Json,
}

impl Form {
    /// The sub-protocol that says so.
    pub fn sub_protocol(self) -> &'static str {
        match self {
            Form::Binary => WEBSOCKET_BINARY,
            Form::Json => WEBSOCKET_JSON,
        }
    }
}

/// The settings of a socket for frames of at most `max_frame` bytes.
pub fn socket_config(max_frame: u32, form: Form) -> WebSocketConfig {
    let factor = if form == Form::Json { limits::JSON_FACTOR } else { 1 };
    let max = max_frame as usize * factor;
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(READ_BUFFER)
        .max_write_buffer_size(max + HIGH_WATER)
        .max_message_size(Some(max))
        .max_frame_size(Some(max))
}

/// Connects to `host:port` over plain TCP at `path`, shakes hands, and leaves the driver running.
pub async fn connect(authority: &str, path: &str, form: Form, credential: Option<&str>) -> Result<Arc<Link>, Error> {
    let socket = socket(authority, path, form).await?;
    let link = Link::new(Side::Connector);
    let hello = v1::Hello {
        min: version::OLDEST,
        max: version::CURRENT,
        credential: credential.unwrap_or_default().into(),
        agent: concat!("tidings-ws/", env!("CARGO_PKG_VERSION")).into(),
    };
    let carrier = WsCarrier::new(socket, form);
    let max_in_flight = Limits::CLIENT.max_operations;
    let config = Arc::new(Config::connector());
    tokio::spawn(Driver::connect(link.clone(), carrier, config, RefuseAll, hello, max_in_flight));
    link.wait_ready().await?;
    Ok(link)
}

/// A bare socket that has agreed on the sub-protocol and sends what it is told, for tests of bad behaviour.
pub async fn socket(authority: &str, path: &str, form: Form) -> Result<WebSocketStream<TcpStream>, Error> {
    socket_saying(authority, path, form, HeaderMap::new()).await
}

/// The same, which says more in its headers.
pub(crate) async fn socket_saying(
    authority: &str,
    path: &str,
    form: Form,
    said: HeaderMap,
) -> Result<WebSocketStream<TcpStream>, Error> {
    let failed = |why: String| Error::new("client.unreachable", Class::Unreachable, why);
    let stream = TcpStream::connect(authority).await.map_err(|e| failed(e.to_string()))?;
    stream.set_nodelay(true).map_err(|e| failed(e.to_string()))?;
    let mut request = format!("ws://{authority}{path}").into_client_request().map_err(|e| failed(e.to_string()))?;
    let protocol = HeaderValue::from_static(form.sub_protocol());
    request.headers_mut().extend(said);
    request.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    let config = socket_config(limits::NODE_FRAME as u32, form);
    let (socket, _) =
        client_async_with_config(request, stream, Some(config)).await.map_err(|e| failed(e.to_string()))?;
    Ok(socket)
}

/// How much is read and thrown away after the last words, so that closing the socket does not destroy them on their way.
const LINGER_BYTES: usize = 4 << 20;

/// The carrier over a WebSocket, for either end.
#[derive(Debug)]
pub struct WsCarrier<S> {
    socket: WebSocketStream<S>,
    form: Form,
    /// Frames that the socket has not taken yet.
    waiting: VecDeque<Message>,
    bytes: usize,
    closing: Closing,
    /// Opened with the first word to whoever was not known before.
    shut: Option<Arc<AtomicBool>>,
}

/// What is read from somebody who has not been answered yet: a greeting, with room for its form.
const STRANGER_BYTES: usize = 4 * limits::HELLO_FRAME;

/// The socket of somebody who is not known yet. No more is read than a greeting takes until it is answered: the rest waits
/// outside.
#[derive(Debug)]
pub struct Stranger<S> {
    socket: S,
    left: usize,
    open: Arc<AtomicBool>,
}

impl<S> Stranger<S> {
    /// Nothing was read from it yet.
    pub fn new(socket: S) -> Stranger<S> {
        Stranger { socket, left: STRANGER_BYTES, open: Arc::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stranger<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.open.load(Relaxed) {
            return Pin::new(&mut self.socket).poll_read(cx, buf);
        }
        let mut scratch = [0; 1 << 10];
        let most = self.left.min(buf.remaining()).min(scratch.len());
        if most == 0 {
            // Whoever answers it reads on; whoever does not, closes it in time.
            return Poll::Pending;
        }
        let mut part = ReadBuf::new(&mut scratch[..most]);
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut part))?;
        buf.put_slice(part.filled());
        self.left -= part.filled().len();
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stranger<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// How far the farewell has come.
#[derive(Debug)]
enum Closing {
    No,
    /// The close frame is on its way.
    Told,
    /// Nothing more goes out; what still comes in is thrown away, up to so many bytes.
    Lingers(usize),
}

impl<S> WsCarrier<S> {
    /// The carrier over this socket.
    pub fn new(socket: WebSocketStream<S>, form: Form) -> WsCarrier<S> {
        WsCarrier { socket, form, waiting: VecDeque::new(), bytes: 0, closing: Closing::No, shut: None }
    }

    fn open(&mut self) {
        if let Some(shut) = self.shut.take() {
            shut.store(true, Relaxed);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> WsCarrier<Stranger<S>> {
    /// The carrier over the socket of somebody who is not known yet.
    pub fn of_stranger(socket: WebSocketStream<Stranger<S>>, form: Form) -> WsCarrier<Stranger<S>> {
        let shut = Some(socket.get_ref().open.clone());
        WsCarrier { shut, ..WsCarrier::new(socket, form) }
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> WsCarrier<S> {
    fn message(&mut self, message: Message, max_frame: u32) -> Option<Received> {
        match (message, self.form) {
            (Message::Binary(bytes), Form::Binary) => Some(received(codec::decode(&bytes, max_frame), bytes.len())),
            (Message::Text(text), Form::Json) => {
                let max = max_frame as usize * limits::JSON_FACTOR;
                Some(received(json::frame_from_str(text.as_str(), max), text.len() / limits::JSON_FACTOR))
            }
            (Message::Binary(_), Form::Json) => {
                Some(Received::Broken(error::malformed("text messages were agreed on")))
            }
            (Message::Text(_), Form::Binary) => {
                Some(Received::Broken(error::malformed("binary messages were agreed on")))
            }
            (Message::Close(close), _) => {
                Some(Received::Ended(closed_with(close.map(|close| close.reason.to_string()))))
            }
            // The library answers pings.
            (Message::Ping(_) | Message::Pong(_) | Message::Frame(_), _) => None,
        }
    }

    fn poll_farewell(&mut self, cx: &mut Context<'_>, why: &Error) -> Poll<Result<(), Error>> {
        loop {
            match self.closing {
                Closing::No => {
                    self.open();
                    ready!(self.poll_flush(cx))?;
                    self.closing = Closing::Told;
                    let close = Message::Close(Some(close_frame(why)));
                    Pin::new(&mut self.socket).start_send(close).map_err(|e| broken_off(&e))?;
                }
                Closing::Told => {
                    ready!(Pin::new(&mut self.socket).poll_flush(cx)).map_err(|e| broken_off(&e))?;
                    ready!(Pin::new(self.socket.get_mut()).poll_shutdown(cx)).map_err(|e| broken_off(&e))?;
                    self.closing = Closing::Lingers(LINGER_BYTES);
                }
                Closing::Lingers(left) => {
                    let mut scratch = [0; 1 << 10];
                    let mut buffer = ReadBuf::new(&mut scratch);
                    ready!(Pin::new(self.socket.get_mut()).poll_read(cx, &mut buffer)).map_err(|e| broken_off(&e))?;
                    match (buffer.filled().len(), left) {
                        (0, _) | (_, 0) => return Poll::Ready(Ok(())),
                        (n, _) => self.closing = Closing::Lingers(left.saturating_sub(n)),
                    }
                }
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Carrier for WsCarrier<S> {
    fn poll_receive(&mut self, cx: &mut Context<'_>, max_frame: u32) -> Poll<Received> {
        loop {
            let received = match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                None => Some(Received::Ended(error::closed())),
                Some(Err(why)) => Some(misread(&why)),
                Some(Ok(message)) => self.message(message, max_frame),
            };
            if let Some(received) = received {
                return Poll::Ready(received);
            }
        }
    }

    fn put(&mut self, frame: Frame) {
        self.open();
        let message = match self.form {
            Form::Binary => Message::Binary(codec::to_bytes(&frame)),
            Form::Json => Message::text(json::frame_to_string(&frame)),
        };
        self.bytes += message.len();
        self.waiting.push_back(message);
    }

    fn is_full(&self) -> bool {
        self.bytes > HIGH_WATER
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while !self.waiting.is_empty() {
            ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(|e| broken_off(&e))?;
            let Some(message) = self.waiting.pop_front() else { break };
            self.bytes -= message.len();
            Pin::new(&mut self.socket).start_send(message).map_err(|e| broken_off(&e))?;
        }
        // An idle connection keeps no room for what it once sent.
        self.waiting = VecDeque::new();
        Pin::new(&mut self.socket).poll_flush(cx).map_err(|e| broken_off(&e))
    }

    fn poll_close(&mut self, cx: &mut Context<'_>, why: &Error) -> Poll<()> {
        let _ = ready!(self.poll_farewell(cx, why));
        Poll::Ready(())
    }
}

/// The close frame for a connection that ends so; its reason is the error's code.
fn close_frame(why: &Error) -> CloseFrame {
    let code = match why.code.as_ref() {
        "control.closed" => CloseCode::Normal,
        "control.going_away" => CloseCode::Away,
        "control.too_large" => CloseCode::Size,
        "control.malformed" | "control.protocol" | "control.version" => CloseCode::Protocol,
        _ => CloseCode::Policy,
    };
    // The protocol allows 123 bytes.
    let reason: String = why.code.chars().filter(char::is_ascii).take(120).collect();
    CloseFrame { code, reason: reason.into() }
}

/// What the library could not read: what the other side sent, or the socket itself.
fn misread(why: &WsError) -> Received {
    match why {
        WsError::Capacity(CapacityError::MessageTooLong { size, max_size }) => {
            Received::Broken(error::too_large("the message", *size as u64, *max_size as u64))
        }
        WsError::Capacity(_) | WsError::Protocol(_) | WsError::Utf8(_) => Received::Broken(error::malformed(why)),
        _ => Received::Ended(broken_off(why)),
    }
}

/// A decoded frame with its size, or why there is none.
fn received(decoded: Result<Frame, Error>, bytes: usize) -> Received {
    match decoded {
        Ok(frame) => Received::Frame(frame, bytes),
        Err(error) => Received::Broken(error),
    }
}

fn closed_with(reason: Option<String>) -> Error {
    match reason.filter(|reason| !reason.is_empty()) {
        Some(reason) => {
            Error::new("control.closed", Class::Unreachable, format!("the connection was closed: {reason}"))
        }
        None => error::closed(),
    }
}

fn broken_off(why: &dyn std::error::Error) -> Error {
    Error::new("control.closed", Class::Unreachable, format!("the connection broke off: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    /// Whoever has not been answered makes nobody hold more than a greeting.
    #[tokio::test(start_paused = true)]
    async fn no_more_is_read_from_a_stranger_than_a_greeting_takes() {
        let (mut far, near) = duplex(1 << 20);
        far.write_all(&vec![7; 10 * STRANGER_BYTES]).await.unwrap();
        let mut stranger = Stranger::new(near);
        let open = stranger.open.clone();
        let mut read = Vec::new();
        let waits = tokio::time::timeout(std::time::Duration::from_secs(60), stranger.read_to_end(&mut read)).await;
        assert!(waits.is_err() && read.len() == STRANGER_BYTES, "{} bytes", read.len());
        open.store(true, Relaxed);
        drop(far);
        stranger.read_to_end(&mut read).await.unwrap();
        assert_eq!(read.len(), 10 * STRANGER_BYTES);
    }
}
