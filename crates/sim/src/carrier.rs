//! The simulated carrier: frames in order over a network that drops, repeats and overtakes.
//!
//! As a TCP connection it keeps the order of frames and loses none until it ends. It sends nothing twice: what the network
//! dropped leaves a gap, and a gap that does not close in time is the end, as is a peer that does not know the connection.

use crate::kernel::{Effect, HostId};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Error, Mono, Now, Outbox};
use tidings_wire::{Frame, codec, error};

/// How long later frames wait for an earlier one. Longer than the network holds anything up.
const GAP: Duration = Duration::from_secs(6);

/// How many frames wait for an earlier one, at most.
const MOST_EARLY: usize = 4_096;

/// Says that the sender does not know this connection.
const RESET: u64 = u64::MAX;

/// A contract of carriers that is broken on purpose.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutant {
    /// Frames are handed on as they come.
    Reorders,
    /// What is missing is passed over.
    Skips,
    /// What comes twice is handed on twice.
    Repeats,
}

impl Mutant {
    /// All.
    pub const ALL: [Mutant; 3] = [Mutant::Reorders, Mutant::Skips, Mutant::Repeats];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mutant::Reorders => "carrier-reorders",
            Mutant::Skips => "carrier-skips",
            Mutant::Repeats => "carrier-repeats",
        }
    }
}

/// A message of a carrier: which connection, the how-manieth frame, its bytes.
pub struct Packet {
    /// The connection, named by whoever opened it; unique for that host.
    pub connection: u64,
    /// Drawn by whoever accepted, 0 until that is known: what was meant for an earlier acceptance is not taken.
    token: u64,
    number: u64,
    frame: Bytes,
}

impl Packet {
    /// Reads a message; `None` if it is none of a carrier.
    pub fn read(bytes: &Bytes) -> Option<Packet> {
        let mut rest = bytes.clone();
        let connection = rest.try_get_u64().ok()?;
        let token = rest.try_get_u64().ok()?;
        let number = rest.try_get_u64().ok()?;
        Some(Packet { connection, token, number, frame: rest })
    }

    /// Whether it begins a connection.
    pub fn opens(&self) -> bool {
        self.number == 0
    }

    /// Tells the sender that its connection is not known here; a message that says so itself is not answered.
    pub fn refuse<F>(&self, from: HostId, out: &mut Outbox<Effect<F>>) {
        if self.number != RESET {
            out.put(Effect::Send { to: from, bytes: bytes_of(self.connection, self.token, RESET, &[]) });
        }
    }
}

fn bytes_of(connection: u64, token: u64, number: u64, frame: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(24 + frame.len());
    bytes.put_u64(connection);
    bytes.put_u64(token);
    bytes.put_u64(number);
    bytes.put_slice(frame);
    bytes.freeze()
}

/// What came in.
pub type Received = Result<(Frame, usize), Error>;

/// One end of a connection.
pub struct Carrier {
    peer: HostId,
    connection: u64,
    token: u64,
    sent: u64,
    taken: u64,
    early: BTreeMap<u64, Bytes>,
    gap_since: Option<Mono>,
    mutant: Option<Mutant>,
}

impl Carrier {
    /// The end that opens a connection.
    pub fn connect(peer: HostId, connection: u64, mutant: Option<Mutant>) -> Carrier {
        Carrier::new(peer, connection, 0, mutant)
    }

    /// The end that accepts it, under a token that it drew and that is not 0.
    pub fn accept(peer: HostId, connection: u64, token: u64, mutant: Option<Mutant>) -> Carrier {
        Carrier::new(peer, connection, token, mutant)
    }

    fn new(peer: HostId, connection: u64, token: u64, mutant: Option<Mutant>) -> Carrier {
        Carrier { peer, connection, token, sent: 0, taken: 0, early: BTreeMap::new(), gap_since: None, mutant }
    }

    /// Sends a frame.
    pub fn send<F>(&mut self, frame: &Frame, out: &mut Outbox<Effect<F>>) {
        let bytes = bytes_of(self.connection, self.token, self.sent, &codec::to_bytes(frame));
        self.sent += 1;
        out.put(Effect::Send { to: self.peer, bytes });
    }

    /// Takes a message: the frames that are next, in order, or the end of the connection.
    pub fn receive(&mut self, now: Now, packet: Packet, max_frame: u32) -> Vec<Received> {
        if packet.number == RESET {
            let is_this = packet.token == self.token;
            return is_this.then(|| Err(error::closed())).into_iter().collect();
        }
        if self.token == 0 {
            self.token = packet.token;
        }
        if packet.token != self.token && packet.token != 0 {
            return Vec::new();
        }
        let is_late = packet.number < self.taken;
        match self.mutant {
            Some(Mutant::Reorders) if !is_late => return self.hand_on_at_once(packet, max_frame),
            Some(Mutant::Repeats) if is_late => return vec![read(&packet.frame, max_frame)],
            _ if is_late => return Vec::new(),
            _ => {}
        }
        self.early.insert(packet.number, packet.frame);
        let mut received = Vec::new();
        while let Some(frame) = self.early.remove(&self.taken) {
            self.taken += 1;
            received.push(read(&frame, max_frame));
        }
        self.gap_since = if self.early.is_empty() { None } else { self.gap_since.or(Some(now.mono)) };
        if self.early.len() > MOST_EARLY {
            received.push(Err(error::closed()));
        }
        received
    }

    fn hand_on_at_once(&mut self, packet: Packet, max_frame: u32) -> Vec<Received> {
        match self.early.insert(packet.number, Bytes::new()) {
            Some(_) => Vec::new(),
            None => vec![read(&packet.frame, max_frame)],
        }
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        self.gap_since.map(|since| since + GAP)
    }

    /// Time has passed: whether a gap has become the end. (The mutant passes over it.)
    pub fn wake(&mut self, now: Now, max_frame: u32) -> Vec<Received> {
        if self.deadline().is_none_or(|at| at > now.mono) {
            return Vec::new();
        }
        self.gap_since = None;
        if self.mutant != Some(Mutant::Skips) {
            return vec![Err(error::closed())];
        }
        let early = std::mem::take(&mut self.early);
        self.taken = early.last_key_value().map_or(self.taken, |(last, _)| last + 1);
        early.values().map(|frame| read(frame, max_frame)).collect()
    }
}

fn read(bytes: &Bytes, max_frame: u32) -> Received {
    codec::decode(bytes, max_frame).map(|frame| (frame, bytes.len()))
}
