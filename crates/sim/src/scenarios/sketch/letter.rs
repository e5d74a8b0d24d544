//! What clients, nodes, replicas and the order send each other.

use crate::kernel::HostId;
use crate::scenarios::post::{self, Marked};
use bytes::Bytes;
use std::sync::Arc;
use tidings_base::Incarnation;
use tidings_sketch::CallId;
use tidings_sketch::direct::{Question, Word};
use tidings_sketch::group::Reply;
use tidings_sketch::replica::pages::Pages;
use tidings_sketch::replica::{Block, Command, Replica};
use tidings_sketch::sketcher::How;

/// Where letters lie.
pub type Post = post::Post<Letter>;

/// Whom a replica answers: a thread of a process, as long as that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asker {
    /// Where.
    pub host: HostId,
    /// Its start.
    pub start: u64,
    /// Which thread of it.
    pub thread: usize,
    /// Its call.
    pub call: CallId,
}

/// One message.
#[derive(Clone, Debug)]
pub enum Letter {
    /// A client asks a node.
    Asks {
        /// Its number.
        id: u64,
        /// The page.
        page: u64,
        /// Whether it is a write.
        write: bool,
        /// The session's cookie.
        session: Option<String>,
    },
    /// The node's answer.
    Answers {
        /// To which question.
        id: u64,
        /// What it says.
        response: Bytes,
        /// How it was come by.
        how: How,
        /// After a write: the session's cookie.
        session: Option<String>,
    },
    /// The node does not answer.
    Refuses {
        /// Which question.
        id: u64,
    },
    /// One replica is asked.
    Fast(Asker, Bytes),
    /// What it says.
    Said(Asker, Bytes),
    /// A client of D-Prophecy asks what a replica remembers.
    Question(HostId, Question),
    /// What it says.
    Word(Word),
    /// A command for all replicas; and whether this one answers in full.
    Command(Asker, Command, bool),
    /// What one of them says.
    Replies(Asker, Reply<Bytes>),
    /// A replica hands a command in.
    Submits(Command),
    /// What was agreed on, in which life of the group.
    Agreed(Incarnation, Block),
    /// A replica has executed up to here.
    Executed(Incarnation, u64),
    /// A replica that has missed the end of a life asks for the state.
    Misses(Incarnation),
    /// The state in which a life begins.
    Begins(Arc<Replica<Pages>>),
}

impl Marked for Letter {
    fn mark(&self) -> u64 {
        match self {
            Letter::Asks { id, .. } | Letter::Answers { id, .. } | Letter::Refuses { id } => *id,
            Letter::Fast(asker, _) | Letter::Said(asker, _) => asker.call.0,
            Letter::Question(_, question) => question.nonce,
            Letter::Word(word) => word.nonce,
            Letter::Command(_, command, _) | Letter::Submits(command) => command.nonce,
            Letter::Replies(_, reply) => reply.nonce,
            Letter::Agreed(_, block) => block.height,
            Letter::Executed(_, height) => *height,
            Letter::Misses(life) => life.0,
            Letter::Begins(replica) => replica.incarnation().0,
        }
    }
}
