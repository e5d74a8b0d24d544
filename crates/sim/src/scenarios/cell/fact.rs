//! What the processes of the cell state: what was agreed, what clients asked, and what they were told.

use crate::invariants::LogFact;
use crate::kernel::HostId;
use std::collections::BTreeSet;
use tidings_base::{LogIndex, Mono};
use tidings_wire::v1;

/// Names a call of a client for the whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpName {
    /// The client's host.
    pub client: HostId,
    /// Never used before on that host.
    pub number: u64,
}

/// What is cached and invalidated as one, as text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The node, or the directory whose listing it is.
    pub path: String,
    /// The listing of its children with their stats.
    pub listing: bool,
}

impl Key {
    /// A node.
    pub fn node(path: &str) -> Key {
        Key { path: path.to_string(), listing: false }
    }

    /// A listing.
    pub fn listing(path: &str) -> Key {
        Key { path: path.to_string(), listing: true }
    }
}

/// What a key shows at some point of the agreed order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// The node's metadata; for listings nothing.
    pub stat: Option<v1::NodeStat>,
    /// A digest of contents or children; 0 where there are none.
    pub digest: u64,
}

/// What an answer showed of a key: the parts that were asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Sighting {
    /// The key.
    pub key: Key,
    /// Of nodes: the metadata, `None` inside = there was no such node. Absent = not shown.
    pub stat: Option<Option<v1::NodeStat>>,
    /// A digest of contents or children, if they were shown.
    pub digest: Option<u64>,
}

impl Sighting {
    /// Whether the key showed this.
    pub fn fits(&self, view: &View) -> bool {
        self.stat.as_ref().is_none_or(|stat| *stat == view.stat)
            && self.digest.is_none_or(|digest| digest == view.digest)
    }
}

/// What a client changes, for checkers that know nothing of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Replaces the contents of a file.
    Write {
        /// The file.
        path: String,
        /// A digest of the new contents, which no other write has.
        contents: u64,
        /// Only if this is its generation.
        if_generation: Option<u64>,
    },
    /// Creates a file, or opens the one that is there.
    Create {
        /// The file.
        path: String,
        /// A digest of its contents, if it is created.
        contents: u64,
        /// It must not exist.
        exclusive: bool,
    },
    /// Deletes a file.
    Delete {
        /// The file.
        path: String,
        /// Only if this is its generation.
        if_generation: Option<u64>,
    },
    /// Gives a lock back.
    Release {
        /// The lock.
        path: String,
        /// The handle that holds it.
        handle: u64,
    },
    /// Something else.
    Other,
}

/// What a client asks, as far as claims care.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Looks at nodes or listings.
    Read,
    /// Changes something, under a number.
    Change(Change),
    /// Takes a lock.
    Acquire {
        /// The lock.
        path: String,
        /// The handle that is to hold it.
        handle: u64,
        /// Or shared.
        exclusive: bool,
    },
    /// Asks whether a lock is held as a sequencer says.
    Check {
        /// The lock.
        path: String,
        /// The node.
        instance: u64,
        /// The lock's generation.
        generation: u64,
    },
}

/// What a client is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// It was shown this.
    Saw(Vec<Sighting>),
    /// The change was made.
    Done {
        /// The node afterwards, if shown.
        stat: Option<v1::NodeStat>,
    },
    /// The lock is held.
    Acquired {
        /// The node.
        instance: u64,
        /// The lock's generation.
        generation: u64,
    },
    /// Whether the sequencer is valid.
    Checked(bool),
    /// A named refusal: what was asked did not happen.
    Refused(String),
    /// It may or may not have happened.
    Unknown,
    /// An answer that a correct client must never get.
    Broken(String),
}

/// One entry as it was applied at the first replica that did so.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// Where it stands in the log.
    pub index: LogIndex,
    /// The command.
    pub command: v1::CellCommand,
    /// What the state answered.
    pub result: v1::CellResult,
    /// What can be cached and shows something else now.
    pub changed: Vec<(Key, View)>,
    /// A call that had been decided before came again.
    pub repeat: bool,
    /// What changed and was not named by `Namespace::touches` when it was proposed, or right before it was applied.
    pub unannounced: Vec<Key>,
}

impl Applied {
    /// Whether the answer is a success, of this entry or, for a repeat, of the first one.
    pub fn succeeded(&self) -> bool {
        !matches!(self.result.result, None | Some(v1::cell_result::Result::Error(_)))
    }

    /// Whether it was carried out here and now.
    pub fn took_effect(&self) -> bool {
        self.succeeded() && !self.repeat
    }

    /// Whether its call is decided by it: some refusals say that it may be tried again under the same number.
    pub fn decides(&self) -> bool {
        let open = ["cell.lock_held", "cell.stale_epoch", "cell.too_many_outstanding", "cell.no_session"];
        match &self.result.result {
            Some(v1::cell_result::Result::Error(error)) => !open.contains(&error.code.as_str()),
            result => result.is_some(),
        }
    }

    /// The session and number that it was proposed for, if any.
    pub fn call(&self) -> Option<(u64, u64)> {
        let actor = self.command.actor.as_ref()?;
        (actor.session > 0 && actor.number > 0).then_some((actor.session, actor.number))
    }
}

/// What a session heard of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It exists.
    Begun,
    /// Its lease ran out.
    Jeopardy,
    /// It is in contact again.
    Safe,
    /// It is gone.
    Expired,
    /// It was closed in order.
    Closed,
}

/// What a process of the cell states.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// An entry was applied for the first time anywhere.
    Applied(Box<Applied>),
    /// A client's session has given an acquire its number.
    Numbered {
        /// The session.
        session: u64,
        /// The number.
        number: u64,
        /// The lock.
        path: String,
        /// Whether nobody else may hold it meanwhile.
        exclusive: bool,
    },
    /// A wait goes on under another number, as its client asked: its turn may have come under the first.
    Renumbered {
        /// The session.
        session: u64,
        /// The first number.
        first: u64,
        /// The other one.
        number: u64,
    },
    /// The master was asked to let a wait that it knows go on under another number.
    Requeued {
        /// The session.
        session: u64,
        /// The first number.
        first: u64,
        /// The other one.
        number: u64,
    },
    /// An acquire that may wait reached the master for the first time.
    Queued {
        /// The session.
        session: u64,
        /// Its call.
        number: u64,
    },
    /// It will not be granted any more: refused, cancelled, its handle closed.
    Unqueued {
        /// The session.
        session: u64,
        /// Its calls; empty = all.
        numbers: BTreeSet<u64>,
    },
    /// The master proposes a grant.
    Granting {
        /// The session.
        session: u64,
        /// Its call.
        number: u64,
        /// The lock.
        path: String,
    },
    /// This replica begins or ends to lead: its queues are new.
    Reigns,
    /// A client's process started: sessions of its earlier life are nobody's.
    ClientStarted,
    /// A session says how it is. Before it begins its number is 0 and it says nothing.
    Session {
        /// Its number.
        session: u64,
        /// What it heard.
        condition: Condition,
    },
    /// By the rule R3, from what was sent and answered: the session's lease on the client's clock.
    Lease {
        /// The session.
        session: u64,
        /// Its end.
        until: Mono,
    },
    /// The client's machine serves from its cache until then.
    Serves {
        /// The session.
        session: u64,
        /// The end.
        until: Mono,
    },
    /// A client asks.
    Asked {
        /// The operation.
        op: OpName,
        /// In this session.
        session: u64,
        /// What.
        call: Call,
    },
    /// A client is told.
    Told {
        /// The operation.
        op: OpName,
        /// The number that its session gave it, if any.
        number: Option<u64>,
        /// What.
        answer: Answer,
    },
    /// A client is shown something out of its cache.
    Cached {
        /// In this session.
        session: u64,
        /// What.
        sighting: Sighting,
    },
    /// A client that believes to hold a lock acts on what it protects.
    Touched {
        /// The session.
        session: u64,
        /// The lock.
        path: String,
        /// The node and the lock's generation.
        order: (u64, u64),
    },
    /// A command that was started under a lock runs.
    Runs {
        /// The session that took the lock.
        session: u64,
        /// The lock.
        path: String,
        /// The node and the lock's generation.
        order: (u64, u64),
        /// Or shared.
        exclusive: bool,
    },
    /// A resource that checks sequencers was asked to act.
    Resource {
        /// The session that asked.
        session: u64,
        /// The lock.
        path: String,
        /// Incarnation, instance and generation as the sequencer says.
        order: (u64, u64, u64),
        /// Or shared.
        exclusive: bool,
        /// Whether it acted.
        accepted: bool,
    },
    /// A handle watches a node from now on.
    Watching {
        /// The session.
        session: u64,
        /// The handle.
        handle: u64,
        /// The node.
        path: String,
        /// Which one of that path.
        instance: u64,
        /// As in `OpenNode.events`.
        events: u32,
    },
    /// A handle is closed, or its calls fail from now on.
    Unwatched {
        /// The session.
        session: u64,
        /// The handle.
        handle: u64,
    },
    /// An event reached the application.
    Notified {
        /// The session.
        session: u64,
        /// The handle.
        handle: u64,
        /// What kind.
        kind: v1::CellEventKind,
    },
    /// A forged handle was presented, and this is what came of it.
    Forged {
        /// Whether the master took it.
        accepted: bool,
    },
    /// A handle that is agreed to be closed was presented, and this is what came of it.
    Revived {
        /// Whether the master took it.
        accepted: bool,
    },
}

/// A fact of the scenario.
#[derive(Clone, Debug, PartialEq)]
pub enum CellFact {
    /// Of a replica's log.
    Log(LogFact),
    /// Of the cell.
    Cell(Fact),
}

impl From<LogFact> for CellFact {
    fn from(fact: LogFact) -> CellFact {
        CellFact::Log(fact)
    }
}
