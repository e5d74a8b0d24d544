//! What the scenario's processes tell the claims.

use crate::kernel::HostId;
use bytes::Bytes;
use tidings_sketch::sketcher::How;

/// One life of a sketching node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Life {
    /// Where.
    pub host: HostId,
    /// Its start.
    pub start: u64,
}

/// What is seen of Sketch. Requests are numbered over all clients.
#[derive(Clone, Debug)]
pub enum Fact {
    /// Somebody asks: a client at a sketching node, or a writer who passes them by.
    Asks {
        /// Its number.
        id: u64,
        /// The page.
        page: u64,
        /// Whether it is a write.
        write: bool,
        /// The version that the session's last write gave to this page (rule K).
        own: Option<u64>,
        /// The faults are over and mended.
        calm: bool,
    },
    /// An answer leaves.
    Answered {
        /// To which question.
        id: u64,
        /// What it says.
        response: Bytes,
        /// How it was come by.
        how: How,
        /// By whom it was given; nobody if the group itself was asked.
        by: Option<Life>,
    },
    /// A question is refused.
    Refused {
        /// Which.
        id: u64,
        /// Why.
        why: String,
        /// Whether it came to the wrong node, and may be asked elsewhere.
        moved: bool,
    },
    /// A sketching node has heard what its group agrees on.
    Agreed {
        /// Who.
        by: Life,
        /// What the answer was to.
        page: u64,
        /// The answer.
        response: Bytes,
    },
    /// A client of D-Prophecy has its request ordered, under this name.
    Orders {
        /// Which request.
        id: u64,
        /// The client's name in the group.
        client: u64,
        /// The command's.
        nonce: u64,
    },
    /// This came of a command where everything is executed at once.
    Came {
        /// Whose command, and which.
        name: (u64, u64),
        /// The command.
        request: Bytes,
        /// What of.
        result: Bytes,
    },
    /// A replica has executed a block.
    Executed {
        /// In which life of the group.
        life: u64,
        /// Up to which height.
        height: u64,
        /// A digest of its state then.
        digest: u64,
    },
}
