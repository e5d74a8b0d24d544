//! What hosts send each other: requests to managers and their answers, the managers' talk with the cell, hand-overs between
//! owners, and clients' questions to owners.

use crate::kernel::{Effect, HostId};
use bytes::Bytes;
use prost::Message as _;
use tidings_base::Outbox;
use tidings_wire::v1;

/// One message between two hosts.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Letter {
    /// The sender's number for a request; its answer bears the same.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// What it says.
    #[prost(oneof = "Body", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub body: Option<Body>,
}

/// What a letter says.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Body {
    /// To a manager.
    #[prost(message, tag = "2")]
    Ask(v1::PlacementMessage),
    /// A manager's answer.
    #[prost(message, tag = "3")]
    Answer(v1::PlacementMessage),
    /// A manager's refusal: the error's code.
    #[prost(string, tag = "4")]
    Failed(String),
    /// To the cell.
    #[prost(message, tag = "5")]
    Cell(CellAsk),
    /// The cell's answer.
    #[prost(message, tag = "6")]
    Says(CellSays),
    /// State on its way to another owner.
    #[prost(message, tag = "7")]
    Hand(HandOver),
    /// It has arrived, all of it.
    #[prost(fixed64, tag = "8")]
    Taken(u64),
    /// A client asks an owner for a key: its number among the watched keys.
    #[prost(uint64, tag = "9")]
    Want(u64),
    /// The owner's answer: whether it holds the key.
    #[prost(bool, tag = "10")]
    Held(bool),
}

/// What a manager asks of the cell.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CellAsk {
    /// The manager's session; 0 = open one.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// What is asked.
    #[prost(oneof = "Request", tags = "2, 3, 4, 5, 6, 7, 8")]
    pub request: Option<Request>,
}

/// Requests to the cell.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Request {
    /// A session, please.
    #[prost(bool, tag = "2")]
    Open(bool),
    /// Keep the session alive.
    #[prost(bool, tag = "3")]
    KeepAlive(bool),
    /// Take the leader's lock.
    #[prost(bool, tag = "4")]
    Acquire(bool),
    /// Give this generation of it up.
    #[prost(uint64, tag = "5")]
    Release(u64),
    /// Replace a file.
    #[prost(message, tag = "6")]
    Commit(Commit),
    /// Read files.
    #[prost(message, tag = "7")]
    Read(Paths),
    /// List namespaces.
    #[prost(bool, tag = "8")]
    List(bool),
}

/// A compare-and-set under a sequencer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Commit {
    /// The lock's generation.
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    /// The file.
    #[prost(string, tag = "2")]
    pub path: String,
    /// Its generation; none = it is not there.
    #[prost(uint64, optional, tag = "3")]
    pub expected: Option<u64>,
    /// What to put there.
    #[prost(bytes = "bytes", tag = "4")]
    pub bytes: Bytes,
}

/// Some files.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Paths {
    /// By path.
    #[prost(string, repeated, tag = "1")]
    pub paths: Vec<String>,
}

/// What the cell answers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CellSays {
    /// The session is there; otherwise it has ended.
    #[prost(bool, tag = "1")]
    pub known: bool,
    /// The session that was opened, the lock's generation, or the file's: whatever was asked for; 0 = refused.
    #[prost(uint64, tag = "2")]
    pub number: u64,
    /// The files that were read, in the order of the request.
    #[prost(message, repeated, tag = "3")]
    pub files: Vec<Contents>,
    /// The namespaces there are.
    #[prost(string, repeated, tag = "4")]
    pub names: Vec<String>,
}

/// A file as it was read.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Contents {
    /// 0 = it is not there.
    #[prost(uint64, tag = "1")]
    pub generation: u64,
    /// What is in it.
    #[prost(bytes = "bytes", tag = "2")]
    pub bytes: Bytes,
}

/// State under way.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HandOver {
    /// The move.
    #[prost(fixed64, tag = "1")]
    pub token: u64,
    /// The receiver's incarnation: the token is bound to it.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// The range.
    #[prost(fixed64, tag = "3")]
    pub start: u64,
    /// Its last point.
    #[prost(fixed64, tag = "4")]
    pub last: u64,
    /// Watched keys and their state.
    #[prost(message, repeated, tag = "5")]
    pub states: Vec<KeyState>,
}

/// The state of a key: a number that no other state bears.
#[derive(Clone, PartialEq, prost::Message)]
pub struct KeyState {
    /// Its number among the watched keys.
    #[prost(uint64, tag = "1")]
    pub key: u64,
    /// The state.
    #[prost(uint64, tag = "2")]
    pub state: u64,
}

impl Letter {
    /// Reads a letter.
    pub fn of(bytes: &Bytes) -> Option<(u64, Body)> {
        let letter = Letter::decode(bytes.clone()).ok()?;
        Some((letter.id, letter.body?))
    }
}

/// The host of an owner's address.
pub fn host_at(address: &str) -> Option<HostId> {
    address.strip_prefix('h')?.split(':').next()?.parse().ok().map(HostId)
}

/// Sends a letter.
pub fn send<F>(out: &mut Outbox<Effect<F>>, to: HostId, id: u64, body: Body) {
    let bytes = Letter { id, body: Some(body) }.encode_to_vec().into();
    out.put(Effect::Send { to, bytes });
}
