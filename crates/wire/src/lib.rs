//! The one frame protocol: messages, binary and JSON forms, limits.

/// The generated messages and the gRPC service.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("tidings.v1");
}

/// The compiled descriptors of all messages, for reflection and canonical JSON.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tidings.bin"));
