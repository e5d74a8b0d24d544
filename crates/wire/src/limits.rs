//! Every bound of the protocol, in one place.

use crate::v1;
use std::time::Duration;

/// The largest frame before the handshake is done: a `Hello` with a token fits many times, and a stranger can make us
/// hold no more than this.
pub const HELLO_FRAME: usize = 16 << 10;

/// The largest frame of clients: a value of 1 MiB, with its address and whatever stands around it.
pub const CLIENT_FRAME: usize = (1 << 20) + (64 << 10);

/// The largest frame between nodes: a command of the largest size (2 MiB, see `base::agreed::MAX_COMMAND`), with as
/// much again of smaller ones that travel with it.
pub const NODE_FRAME: usize = 4 << 20;

// A command of the largest size and a piece of a snapshot fit a frame between nodes; a client's frame fits a command.
const _: () = assert!(tidings_base::agreed::MAX_COMMAND + (64 << 10) < NODE_FRAME);
const _: () = assert!(tidings_base::agreed::SNAPSHOT_CHUNK + (64 << 10) < NODE_FRAME);
const _: () = assert!(CLIENT_FRAME < tidings_base::agreed::MAX_COMMAND);

/// What one frame of a long answer should hold: large enough to be cheap, small enough that a connection's other
/// operations do not wait for it.
pub const ANSWER_CHUNK: usize = 64 << 10;

/// How deep JSON may nest. The deepest message of ours has six levels; unknown fields may go on a little.
pub const JSON_DEPTH: usize = 32;

/// JSON is longer than the binary form (base64, names): a text frame may be this many times the frame limit.
pub const JSON_FACTOR: usize = 2;

/// The most frames that a reader can grant one operation at a time, however many it says it grants.
pub const MAX_CREDIT: u32 = 1_024;

/// Payloads shorter than this are copied out of the read buffer; longer ones share it. A kept 20-byte key must not
/// keep a whole buffer alive, and a copied megabyte costs more than it saves.
pub const COPIED_BELOW: usize = 16 << 10;

/// What one side allows on a connection. The accepting side announces its limits in `Welcome`; they hold both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest frame in bytes.
    pub max_frame: u32,
    /// How many operations each side may have open at once.
    pub max_operations: u32,
    /// The most bytes that all frames of one operation may have together, in one direction.
    pub max_operation_bytes: u64,
    /// How many frames with `more` a side sends before the reader must grant more.
    pub initial_credit: u32,
}

impl Limits {
    /// For whoever is not a node of the cluster.
    pub const CLIENT: Limits = Limits {
        max_frame: CLIENT_FRAME as u32,
        // Enough to keep a fast server busy over a slow line (1,024 calls at 100 ms are 10,000/s), few enough that a
        // stranger cannot fill the node's memory with waiting requests.
        max_operations: 1_024,
        // A backup of a cell is the longest answer: at most 1 GiB, and the frames around it. Nobody holds all of one:
        // a side that does not read grants no more frames.
        max_operation_bytes: (1 << 30) + (64 << 20),
        // 16 frames of 64 KiB keep a line of 1 MiB bandwidth-delay product full.
        initial_credit: 16,
    };

    /// Between nodes: larger frames, and snapshots as one operation.
    pub const NODE: Limits = Limits {
        max_frame: NODE_FRAME as u32,
        max_operations: 4_096,
        max_operation_bytes: u64::MAX,
        initial_credit: 16,
    };

    /// The limits of a `Welcome` as the connecting side takes them: what was left out is ours, what is absurd is made
    /// usable, and a frame is never allowed to be larger than we ourselves take.
    pub fn announced(theirs: Option<&v1::Limits>, ours: Limits) -> Limits {
        let Some(theirs) = theirs else { return ours };
        let or = |n: u32, default: u32| if n == 0 { default } else { n };
        Limits {
            max_frame: or(theirs.max_frame, ours.max_frame).clamp(HELLO_FRAME as u32, ours.max_frame),
            max_operations: or(theirs.max_operations, ours.max_operations),
            max_operation_bytes: match theirs.max_operation_bytes {
                0 => ours.max_operation_bytes,
                n => n,
            },
            initial_credit: or(theirs.initial_credit, ours.initial_credit).min(MAX_CREDIT),
        }
    }
}

impl From<Limits> for v1::Limits {
    fn from(limits: Limits) -> v1::Limits {
        let Limits { max_frame, max_operations, max_operation_bytes, initial_credit } = limits;
        v1::Limits { max_frame, max_operations, max_operation_bytes, initial_credit }
    }
}

/// When a quiet connection is asked, and when it is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long the handshake may take, authentication included.
    pub handshake: Duration,
    /// After this long without a frame from the other side it is asked for a sign of life.
    pub ping_after: Duration,
    /// After this long without a frame it is taken for dead: its host is gone, or the path is. More than twice
    /// `ping_after`, so that one lost packet's retransmission does not count as death.
    pub dead_after: Duration,
    /// How long a carrier may take nothing from us before its reader is taken for stuck.
    pub stall: Duration,
}

impl Patience {
    /// For the side that connects: it asks first, so that a loss is noticed where the calls wait.
    pub const CONNECTOR: Patience = Patience {
        handshake: Duration::from_secs(10),
        ping_after: Duration::from_secs(10),
        dead_after: Duration::from_secs(25),
        stall: Duration::from_secs(30),
    };

    /// For the side that accepts: it asks later, so that a connection with a live connector costs one ping, not two.
    pub const ACCEPTOR: Patience = Patience {
        handshake: Duration::from_secs(10),
        ping_after: Duration::from_secs(20),
        dead_after: Duration::from_secs(50),
        stall: Duration::from_secs(30),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announced_limits_are_made_usable() {
        assert_eq!(Limits::announced(None, Limits::CLIENT), Limits::CLIENT);
        let silly = v1::Limits { max_frame: 1, max_operations: 0, max_operation_bytes: 0, initial_credit: u32::MAX };
        let taken = Limits::announced(Some(&silly), Limits::CLIENT);
        assert_eq!(taken.max_frame, HELLO_FRAME as u32);
        assert_eq!(taken.max_operations, Limits::CLIENT.max_operations);
        assert_eq!(taken.initial_credit, MAX_CREDIT);
        let large = v1::Limits::from(Limits::NODE);
        assert_eq!(Limits::announced(Some(&large), Limits::CLIENT).max_frame, CLIENT_FRAME as u32);
    }
}
