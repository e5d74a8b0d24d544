//! The carriers of the one port, and of the process itself: how frames come in and go out.

pub mod grpc;
pub mod local;
pub mod websocket;

use crate::connection::Connections;
use axum::Router;
use axum::routing::{get, post};
use std::sync::Arc;

/// Where WebSockets connect.
pub const WEBSOCKET_PATH: &str = tidings_client::ws::PATH;

/// The routes of all carriers. Requests carry an `Arc<Peer>` and, if they showed who they are, an `Identity`.
pub fn routes(connections: Arc<Connections>) -> Router {
    Router::new()
        .route(tidings_wire::GRPC_PATH, post(grpc::accept))
        .route(WEBSOCKET_PATH, get(websocket::accept))
        .with_state(connections)
}
