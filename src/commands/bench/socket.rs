//! A WebSocket as bare as it gets: what is measured is the server, not a client library.

use crate::output::broken;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use std::net::SocketAddr;
use tidings_base::{Class, Error};
use tidings_node::carrier::WEBSOCKET_PATH;
use tidings_wire::v1::{Control, Frame, Hello, control, frame::Body};
use tidings_wire::{WEBSOCKET_BINARY, codec, limits, version};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

/// Small buffers, since thousands of these stand in one process.
const READ_BUFFER: usize = 1 << 10;

/// One open connection that has been welcomed.
pub struct Socket {
    stream: WebSocketStream<TcpStream>,
}

impl Socket {
    /// Connects and shakes hands.
    pub async fn open(address: SocketAddr) -> Result<Socket, Error> {
        let tcp = TcpStream::connect(address).await.map_err(|error| broken("cannot connect", error))?;
        tcp.set_nodelay(true).map_err(|error| broken("cannot set up a socket", error))?;
        let mut request = format!("ws://{address}{WEBSOCKET_PATH}")
            .into_client_request()
            .map_err(|error| broken("cannot make a WebSocket request", error))?;
        request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static(WEBSOCKET_BINARY));
        let config = WebSocketConfig::default().read_buffer_size(READ_BUFFER).write_buffer_size(0);
        let (stream, _) = client_async_with_config(request, tcp, Some(config))
            .await
            .map_err(|error| broken("the server refused a WebSocket", error))?;
        let mut socket = Socket { stream };
        let hello =
            Hello { min: version::OLDEST, max: version::CURRENT, agent: "bench".to_owned(), ..Hello::default() };
        match socket
            .exchange(&Frame { op: 0, more: false, body: Some(control_body(control::Message::Hello(hello))) })
            .await?
        {
            Some(Body::Control(Control { message: Some(control::Message::Welcome(_)) })) => Ok(socket),
            other => Err(Error::new("bench.not_welcome", Class::Failed, format!("no welcome but {other:?}"))),
        }
    }

    /// Sends a frame and waits for the next one of the same operation; keeps the connection alive meanwhile.
    pub async fn exchange(&mut self, frame: &Frame) -> Result<Option<Body>, Error> {
        self.send(codec::to_bytes(frame)).await?;
        loop {
            let answer = self.receive().await?;
            if let (0, Some(Body::Control(Control { message: Some(control::Message::Ping(ping)) }))) =
                (answer.op, &answer.body)
            {
                let pong = control_body(control::Message::Pong(tidings_wire::v1::Pong { nonce: ping.nonce }));
                self.send(codec::to_bytes(&Frame { op: 0, more: false, body: Some(pong) })).await?;
            } else if answer.op == frame.op {
                return Ok(answer.body);
            }
        }
    }

    async fn send(&mut self, bytes: Bytes) -> Result<(), Error> {
        self.stream.send(Message::Binary(bytes)).await.map_err(|error| broken("cannot send a frame", error))
    }

    async fn receive(&mut self) -> Result<Frame, Error> {
        loop {
            match self.stream.next().await {
                Some(Ok(Message::Binary(bytes))) => return codec::decode(&bytes, limits::CLIENT_FRAME as u32),
                Some(Ok(Message::Close(reason))) => {
                    return Err(broken("the server closed a WebSocket", format!("{reason:?}")));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(broken("a WebSocket broke", error)),
                None => return Err(broken("a WebSocket ended", "no reason given")),
            }
        }
    }
}

fn control_body(message: control::Message) -> Body {
    Body::Control(Control { message: Some(message) })
}
