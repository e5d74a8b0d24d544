//! What a call of the workload is about, and what its answer means.

use super::fact::{Answer, Key, Sighting};
use super::recorded::{closed_path, listed, shown};
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_wire::v1::{self, cell_message::Message};

/// What a handle is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Closed at once.
    Passing,
    Writing,
    Watching,
    Ephemeral,
    Locking,
}

/// An application makes one call of each kind at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    Read,
    Change,
    Acquire,
}

impl Slot {
    /// Of a request that carries a number.
    pub fn of(message: &Message) -> Option<Slot> {
        match message {
            Message::Open(_)
            | Message::Close(_)
            | Message::SetContents(_)
            | Message::SetAcl(_)
            | Message::Delete(_)
            | Message::Release(_) => Some(Slot::Change),
            Message::Acquire(_) => Some(Slot::Acquire),
            _ => None,
        }
    }
}

/// A call under way.
#[derive(Clone, Debug)]
pub(super) enum Doing {
    Read { path: String, children: bool },
    Many { paths: Vec<String> },
    Open { path: String, purpose: Purpose, events: u32, delay: Duration },
    Close,
    Write,
    Delete,
    Acquire { handle: u64, path: String, instance: u64, exclusive: bool },
    Release,
    Check,
}

impl Doing {
    /// Which of the calls at a time it is.
    pub fn slot(&self) -> Slot {
        match self {
            Doing::Read { .. } | Doing::Many { .. } | Doing::Check => Slot::Read,
            Doing::Acquire { .. } => Slot::Acquire,
            _ => Slot::Change,
        }
    }
}

/// What a reply, or an entry of the cache, shows.
pub(super) fn sightings(path: &str, read: &v1::NodeRead, contents: bool, children: bool) -> Vec<Sighting> {
    let mut seen = Vec::new();
    if children {
        seen.push(Sighting { key: Key::listing(path), stat: None, digest: Some(listed(&read.children)) });
        // Who may read it sees its stat there, too; who may not is shown an instance of 0.
        let closed = read.children.iter().filter_map(|child| closed_path(child).zip(child.stat.clone()));
        seen.extend(closed.filter(|(_, stat)| stat.instance > 0).map(|(path, stat)| Sighting {
            key: Key::node(path),
            stat: Some(Some(stat)),
            digest: None,
        }));
    } else {
        // An entry that an open left behind has no contents; no file of the workload is empty.
        let whole = read.stat.as_ref().is_none_or(|stat| stat.length == 0 || !read.contents.is_empty());
        let digest = (contents && whole).then(|| shown(&read.contents));
        seen.push(Sighting { key: Key::node(path), stat: Some(read.stat.clone()), digest });
    }
    seen
}

/// Refusals that a correct client of this workload may meet.
const REFUSALS: [&str; 17] = [
    "cell.no_node",
    "cell.node_exists",
    "cell.not_a_directory",
    "cell.is_a_directory",
    "cell.not_empty",
    "cell.no_parent",
    "cell.wrong_generation",
    "cell.node_gone",
    "cell.stale_sequencer",
    "cell.lock_held",
    "cell.not_held",
    "cell.already_held",
    "cell.too_many_outstanding",
    "cell.busy",
    "cell.denied",
    "cell.unknown_acl",
    "cell.bad_handle",
];

/// What an answer means for the claims.
pub(super) fn answer_of(doing: &Doing, result: &Result<Message, Error>) -> Answer {
    let message = match result {
        Ok(message) => message,
        Err(error) if error.class == Class::OutcomeUnknown || error.class == Class::Unreachable => {
            return Answer::Unknown;
        }
        Err(error) if matches!(&*error.code, "cell.expired" | "cell.no_session" | "cell.closed") => {
            return Answer::Unknown;
        }
        Err(error) if REFUSALS.contains(&&*error.code) => return Answer::Refused(error.code.to_string()),
        Err(error) => return Answer::Broken(format!("{doing:?}: {error}")),
    };
    match (doing, message) {
        (Doing::Read { path, children }, Message::NodeRead(read)) => {
            Answer::Saw(sightings(path, read, !children, *children))
        }
        (Doing::Many { paths }, Message::ManyRead(many)) if many.nodes.len() == paths.len() => {
            let each = paths.iter().zip(&many.nodes).flat_map(|(path, read)| sightings(path, read, true, false));
            Answer::Saw(each.collect())
        }
        (Doing::Open { path, .. }, Message::Opened(opened)) => {
            let stat = Some(opened.stat.clone());
            Answer::Saw(vec![Sighting { key: Key::node(path), stat, digest: None }])
        }
        (Doing::Write | Doing::Delete | Doing::Close | Doing::Release, Message::Done(done)) => {
            Answer::Done { stat: done.stat.clone() }
        }
        (Doing::Acquire { instance, .. }, Message::Acquired(acquired)) => {
            Answer::Acquired { instance: *instance, generation: acquired.generation }
        }
        (Doing::Check, Message::SequencerChecked(checked)) => Answer::Checked(checked.valid),
        (doing, message) => Answer::Broken(format!("{doing:?} was answered {message:?}")),
    }
}
