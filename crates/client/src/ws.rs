//! The WebSocket carrier of the connecting side, for tests, benchmarks and tools: what browsers do, in Rust.

use crate::link::{Carrier, Driver, HIGH_WATER, Link, Received, RefuseAll};
use bytes::Bytes;
use futures::{Sink, Stream};
use http::{HeaderValue, header};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tidings_base::{Class, Error};
use tidings_wire::session::{Config, Side};
use tidings_wire::{Frame, Limits, WEBSOCKET_BINARY, WEBSOCKET_JSON, codec, error, json, limits, v1, version};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::{Message, WebSocketConfig};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

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
    let carrier = WsCarrier { socket, form, waiting: VecDeque::new(), bytes: 0 };
    let max_in_flight = Limits::CLIENT.max_operations;
    let config = Arc::new(Config::connector());
    tokio::spawn(Driver::connect(link.clone(), carrier, config, RefuseAll, hello, max_in_flight));
    link.wait_ready().await?;
    Ok(link)
}

/// A bare socket that has agreed on the sub-protocol and sends what it is told, for tests of bad behaviour.
pub async fn socket(authority: &str, path: &str, form: Form) -> Result<WebSocketStream<TcpStream>, Error> {
    let failed = |why: String| Error::new("client.unreachable", Class::Unreachable, why);
    let stream = TcpStream::connect(authority).await.map_err(|e| failed(e.to_string()))?;
    stream.set_nodelay(true).map_err(|e| failed(e.to_string()))?;
    let mut request = format!("ws://{authority}{path}").into_client_request().map_err(|e| failed(e.to_string()))?;
    let protocol = HeaderValue::from_static(form.sub_protocol());
    request.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    let config = socket_config(limits::NODE_FRAME as u32, form);
    let (socket, _) =
        client_async_with_config(request, stream, Some(config)).await.map_err(|e| failed(e.to_string()))?;
    Ok(socket)
}

struct WsCarrier {
    socket: WebSocketStream<TcpStream>,
    form: Form,
    /// Frames that the socket has not taken yet.
    waiting: VecDeque<Message>,
    bytes: usize,
}

impl Carrier for WsCarrier {
    fn poll_receive(&mut self, cx: &mut Context<'_>, max_frame: u32) -> Poll<Received> {
        loop {
            return Poll::Ready(match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                None => Received::Ended(error::closed()),
                Some(Err(why)) => Received::Ended(broken_off(&why)),
                Some(Ok(Message::Binary(bytes))) => received(codec::decode(&bytes, max_frame), bytes.len()),
                Some(Ok(Message::Text(text))) => {
                    let max = max_frame as usize * limits::JSON_FACTOR;
                    received(json::frame_from_str(text.as_str(), max), text.len())
                }
                Some(Ok(Message::Close(close))) => Received::Ended(closed_with(close.map(|c| c.reason.to_string()))),
                Some(Ok(_)) => continue,
            });
        }
    }

    fn put(&mut self, frame: Frame) {
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
        Pin::new(&mut self.socket).poll_flush(cx).map_err(|e| broken_off(&e))
    }

    fn poll_close(&mut self, cx: &mut Context<'_>, _: &Error) -> Poll<()> {
        if ready!(self.poll_flush(cx)).is_ok() {
            let _ = ready!(Pin::new(&mut self.socket).poll_close(cx));
        }
        Poll::Ready(())
    }
}

/// A decoded frame with its size, or why there is none.
pub fn received(decoded: Result<Frame, Error>, bytes: usize) -> Received {
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

/// The bytes of a binary message that holds this frame.
pub fn binary(frame: &Frame) -> Bytes {
    codec::to_bytes(frame)
}
