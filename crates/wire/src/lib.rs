//! The one frame protocol: messages, their binary and JSON forms, limits, and the rules of a connection.
//!
//! ```text
//!   connecting side                              accepting side
//!        │ ── 0  Hello { min, max, credential } ──▶ │   op 0 is the connection itself
//!        │ ◀── 0  Welcome { version, limits } ───── │
//!        │ ── 1  store.get ───────────────────────▶ │   odd: begun by the connecting side
//!        │ ── 3  store.scan ──────────────────────▶ │
//!        │ ◀── 3  rows, more ────────────────────── │   a long answer: several frames, then one without `more`
//!        │ ◀── 1  rows ──────────────────────────── │   answers come in any order
//!        │ ── 3  Credit { frames } ───────────────▶ │   its reader lets it go on
//!        │ ◀── 3  rows ──────────────────────────── │
//!        │ ◀── 2  (a message of the server) ─────── │   even: begun by the accepting side
//! ```
//! A *frame* is (operation id, part, message): [`v1::Frame`], made from `proto/` by the crate `messages`. [`part`] has the wire
//! ids, [`codec`] the binary form and [`json`] the canonical JSON form, both under the [`limits`]; [`error`] is how an
//! operation or a connection ends badly; [`version`] is what `Hello` negotiates. [`session`] is the connection as a
//! machine: the same one runs in clients, in nodes, and under the simulator.
//!
//! Promises: unknown fields are ignored; an unknown message is answered with `control.unsupported`; the bytes of every
//! message are pinned by the vectors in `golden/`; any bytes whatever decode to a frame or to a named error.
//!
//! What it deliberately does not do: open a connection (carriers do: `client`, `node`), know what a message means
//! (parts do), or decide who may send it (`node` does).

pub mod codec;
pub mod error;
pub mod json;
pub mod limits;
pub mod part;
pub mod session;
pub mod version;

pub use limits::{Limits, Patience};
pub use part::Part;
pub use tidings_messages::{DESCRIPTORS, v1};
pub use v1::{Frame, frame::Body};

/// The sub-protocol of WebSockets that carry binary frames.
pub const WEBSOCKET_BINARY: &str = "tidings.v1.proto";

/// The sub-protocol of WebSockets that carry frames as JSON text.
pub const WEBSOCKET_JSON: &str = "tidings.v1.json";

/// The header by which a node says which one it is. Only a server without authentication believes it.
pub const NODE_HEADER: &str = "tidings-node";

/// The header by which an operator names the application that a request or a connection is about. Others may only name
/// their own.
pub const APP_HEADER: &str = "x-tidings-app";

/// The path of the gRPC method that carries a connection.
pub const GRPC_PATH: &str = "/tidings.v1.Tidings/Stream";
