//! The WebSocket carrier: binary frames or JSON text, by sub-protocol.
//!
//! The upgrade is done here, so that an idle connection is one task, one small read buffer and nothing else.

use crate::connection::{Arrival, Connections};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::IntoResponse;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use tidings_client::ws::{Form, Stranger, WsCarrier, socket_config};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

/// The read buffer of a connection: a few small frames fit, and ten thousand idle connections stay small.
const READ_BUFFER: usize = 4 << 10;

/// Takes a WebSocket.
pub async fn accept(State(connections): State<Arc<Connections>>, mut request: Request) -> Response<Body> {
    let upgrade = match Upgrade::read(request.headers()) {
        Ok(upgrade) => upgrade,
        Err((status, why)) => return refuse(status, why),
    };
    let on_upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let arrival = Arrival::of(request.extensions(), request.headers());
    let (Some(on_upgrade), Some(arrival)) = (on_upgrade, arrival) else {
        return refuse(StatusCode::UPGRADE_REQUIRED, "a WebSocket needs HTTP/1.1");
    };
    tokio::spawn(converse(connections, on_upgrade, upgrade.form, arrival));
    upgrade.answer()
}

async fn converse(connections: Arc<Connections>, on_upgrade: OnUpgrade, form: Form, arrival: Arrival) {
    let upgraded = match on_upgrade.await {
        Ok(upgraded) => Stranger::new(TokioIo::new(upgraded)),
        Err(error) => return tracing::debug!(%error, "a WebSocket broke off while it was made"),
    };
    // Nodes use gRPC; whoever comes this way is held to the limits of clients.
    let config = socket_config(connections.config().limits.max_frame, form).read_buffer_size(READ_BUFFER);
    let socket = WebSocketStream::from_raw_socket(upgraded, Role::Server, Some(config)).await;
    let connection = connections.serve(WsCarrier::of_stranger(socket, form), arrival);
    drop(connections);
    connection.await;
}

/// What a request for a WebSocket must say.
struct Upgrade {
    accept: HeaderValue,
    form: Form,
}

impl Upgrade {
    fn read(headers: &HeaderMap) -> Result<Upgrade, (StatusCode, &'static str)> {
        let bad = |why| (StatusCode::BAD_REQUEST, why);
        if !has_token(headers, header::CONNECTION, "upgrade") || !has_token(headers, header::UPGRADE, "websocket") {
            return Err((StatusCode::UPGRADE_REQUIRED, "this address speaks WebSocket"));
        }
        if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
            return Err(bad("version 13 of WebSocket is expected"));
        }
        let key = headers.get(header::SEC_WEBSOCKET_KEY).ok_or_else(|| bad("`Sec-WebSocket-Key` is missing"))?;
        let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes()))
            .map_err(|_| bad("`Sec-WebSocket-Key` is unusable"))?;
        let offers = |form: Form| has_token(headers, header::SEC_WEBSOCKET_PROTOCOL, form.sub_protocol());
        let form = [Form::Binary, Form::Json].into_iter().find(|form| offers(*form));
        let form = form.ok_or_else(|| bad("offer the sub-protocol tidings.v1.proto or tidings.v1.json"))?;
        Ok(Upgrade { accept, form })
    }

    fn answer(self) -> Response<Body> {
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = answer.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, self.accept);
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(self.form.sub_protocol()));
        answer
    }
}

/// Whether one of the comma-separated values of this header is `token`, in whatever case.
fn has_token(headers: &HeaderMap, name: header::HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|value| value.trim().eq_ignore_ascii_case(token))
}

fn refuse(status: StatusCode, why: &str) -> Response<Body> {
    (status, why.to_owned()).into_response()
}
