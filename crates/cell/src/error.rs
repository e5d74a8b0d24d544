//! The cell's refusals, each with a sentence that says what to do. After a refusal nothing has changed and the session
//! lives on, save where the error says that it does not.

use std::fmt::Display;
use tidings_base::{Class, Error};

/// The most bytes that a file may have.
pub const MAX_CONTENTS: usize = 256 << 10;

/// A text that is no path.
pub fn bad_path(path: &str, rule: &str) -> Error {
    Error::new("cell.bad_path", Class::Invalid, format!("`{path}` is not a path: {rule}"))
        .hint("Write `/` and names between single slashes, such as `/app/config`.")
}

/// Contents over the bound.
pub fn too_large(size: usize) -> Error {
    let message = format!("the contents have {size} bytes, and a file has at most {MAX_CONTENTS}");
    Error::new("cell.too_large", Class::Invalid, message)
        .hint("The cell is for small files: keep large data in the store and its name here.")
}

/// A call on a node that does not exist.
pub fn no_node(place: impl Display) -> Error {
    Error::new("cell.no_node", Class::NotFound, format!("there is no node {place}"))
        .hint("Check the path, or open it with `create`.")
}

/// An exclusive creation of something that exists.
pub fn node_exists(place: impl Display) -> Error {
    Error::new("cell.node_exists", Class::Refused, format!("{place} exists already"))
        .hint("Open it without `exclusive`, or choose another name.")
}

/// A file where a directory is needed.
pub fn not_a_directory(place: impl Display) -> Error {
    Error::new("cell.not_a_directory", Class::Refused, format!("{place} is a file, not a directory"))
        .hint("Only directories have children.")
}

/// A directory where a file is needed.
pub fn is_a_directory(place: impl Display) -> Error {
    Error::new("cell.is_a_directory", Class::Refused, format!("{place} is a directory, not a file"))
        .hint("Only files have contents.")
}

/// A deletion of a directory that has children.
pub fn not_empty(place: impl Display) -> Error {
    Error::new("cell.not_empty", Class::Refused, format!("{place} has children")).hint("Delete its children first.")
}

/// A creation below something that does not exist.
pub fn no_parent(place: impl Display) -> Error {
    Error::new("cell.no_parent", Class::NotFound, format!("there is no directory to hold {place}"))
        .hint("Create its parent directory first.")
}

/// A conditional change whose condition does not hold.
pub fn wrong_generation(place: impl Display, present: u64, expected: u64) -> Error {
    let message = format!("{place} is at generation {present}, and the call expected {expected}");
    Error::new("cell.wrong_generation", Class::Refused, message)
        .hint("Somebody else changed it: read it again and decide anew.")
}

/// An ACL name that no file stands behind.
pub fn unknown_acl(name: &str) -> Error {
    Error::new("cell.unknown_acl", Class::Refused, format!("there is no access list `/acl/{name}`"))
        .hint("Create the file first, with one principal a line, or leave the name empty for everybody.")
}

/// A call without the right to it.
pub fn denied(what: impl Display) -> Error {
    Error::new("cell.denied", Class::Refused, format!("not allowed: {what}"))
        .hint("Ask somebody with the right to change the access list, or use another principal.")
}

/// A handle that the cell did not give to this session, or that was closed.
pub fn bad_handle(why: &str) -> Error {
    Error::new("cell.bad_handle", Class::Invalid, format!("this is not a handle of this session: {why}"))
        .hint("Open the node again.")
}

/// A call on a handle whose node was deleted.
pub fn node_gone(place: impl Display) -> Error {
    Error::new("cell.node_gone", Class::NotFound, format!("the node {place} that the handle was opened on is gone"))
        .hint("Close the handle; open the path again if another node of that name will do.")
}

/// A sequencer of a lock that is not held any more as it says.
pub fn stale_sequencer(why: &str) -> Error {
    Error::new("cell.stale_sequencer", Class::Refused, format!("the sequencer is stale: {why}"))
        .hint("Stop acting for the lock; acquire it again if the work is still wanted.")
}

/// Bytes that are no sequencer of this cell.
pub fn bad_sequencer(why: &str) -> Error {
    Error::new("cell.bad_sequencer", Class::Invalid, format!("this is not a sequencer of this cell: {why}"))
        .hint("Pass on the sequencer exactly as the holder of the lock received it.")
}

/// A lock that somebody else holds, or that is held back after a loss.
pub fn lock_held(place: impl Display, delayed: bool) -> Error {
    let why = if delayed { "is held back after its holder was lost" } else { "is held by somebody else" };
    Error::new("cell.lock_held", Class::Refused, format!("the lock of {place} {why}"))
        .hint("Wait for it with `acquire`, or try again later.")
}

/// A release of what is not held.
pub fn not_held(place: impl Display) -> Error {
    Error::new("cell.not_held", Class::Refused, format!("this handle does not hold the lock of {place}"))
        .hint("Acquire it first; if it was held, it has been lost.")
}

/// An acquisition by a handle that holds the lock.
pub fn already_held(place: impl Display) -> Error {
    Error::new("cell.already_held", Class::Refused, format!("this handle holds the lock of {place} already"))
        .hint("Release it first, or open another handle.")
}

/// A session that does not exist, or no longer.
pub fn no_session(session: u64) -> Error {
    Error::new("cell.no_session", Class::Refused, format!("there is no session {session}"))
        .hint("It has ended, with its locks and ephemeral nodes: create a new one.")
}

/// A session of another principal.
pub fn not_your_session(session: u64) -> Error {
    Error::new("cell.not_your_session", Class::Refused, format!("session {session} belongs to somebody else"))
        .hint("Use the principal and the secret that the session was created with.")
}

/// A session whose lease ran out.
pub fn expired(session: u64) -> Error {
    Error::new("cell.expired", Class::Refused, format!("session {session} has expired"))
        .hint("Its locks and ephemeral nodes are gone: create a new session.")
}

/// A session's first message to a master of another epoch must be its resumption.
pub fn resume(epoch: u64) -> Error {
    Error::new("cell.resume", Class::Refused, format!("another master has taken over, epoch {epoch}"))
        .hint("Empty the cache and resume the session, then send the call again.")
}

/// The master does not serve yet.
pub fn opening() -> Error {
    Error::new("cell.opening", Class::Unreachable, "the master has just taken over and waits for its sessions")
        .hint("Try again in a moment.")
}

/// A command of a master that is none any more.
pub fn stale_epoch(given: u64, present: u64) -> Error {
    let message = format!("the command is of epoch {given}, and the cell is at epoch {present}");
    Error::new("cell.stale_epoch", Class::Unreachable, message).hint("Ask the present master.")
}

/// A number too far beyond the first one that is not answered.
pub fn too_many_outstanding(bound: u64) -> Error {
    let message = format!("{bound} calls of this session are outstanding already");
    Error::new("cell.too_many_outstanding", Class::Refused, message).hint("Wait for answers before calling on.")
}

/// A number whose answer the client said it has.
pub fn answered_already(number: u64) -> Error {
    let message = format!("call {number} of this session was answered, and its answer is not kept any more");
    Error::new("cell.answered_already", Class::Refused, message).hint("Use a new number for a new call.")
}

/// A directory with as many children as one may have.
pub fn directory_full(directory: impl Display, bound: u32) -> Error {
    let message = format!("{directory} has {bound} children, and no directory has more");
    Error::new("cell.directory_full", Class::Refused, message).hint("Spread them over several directories.")
}

/// A listing over what an answer can carry.
pub fn listing_too_large(directory: impl Display, bound: usize) -> Error {
    let message = format!("the listing of {directory} has more than {bound} bytes");
    Error::new("cell.listing_too_large", Class::Refused, message)
        .hint("Split the directory; its children can be read by their paths all the same.")
}

/// A directory is full.
pub fn quota_nodes(directory: impl Display, bound: u64) -> Error {
    let message = format!("{directory} may hold {bound} nodes and does");
    Error::new("cell.quota_nodes", Class::Refused, message)
        .hint("Delete what is not needed, or have an operator raise the quota.")
}

/// A directory is full.
pub fn quota_bytes(directory: impl Display, bound: u64) -> Error {
    let message = format!("{directory} may hold {bound} bytes, and there would be more");
    Error::new("cell.quota_bytes", Class::Refused, message)
        .hint("Delete what is not needed, or have an operator raise the quota.")
}

/// A session with too many handles, or with fewer whose names are long.
pub fn too_many_handles(bound: usize) -> Error {
    Error::new("cell.too_many_handles", Class::Refused, format!("a session has at most {bound} handles like these"))
        .hint("Close handles that are not needed, or use another session as well.")
}

/// A session with too many ephemeral nodes.
pub fn too_many_ephemerals(bound: usize) -> Error {
    let message = format!("a session has at most {bound} ephemeral nodes open");
    Error::new("cell.too_many_ephemerals", Class::Refused, message).hint("Close some, or use permanent nodes.")
}

/// A session with too many watched handles.
pub fn too_many_watches(bound: usize) -> Error {
    Error::new("cell.too_many_watches", Class::Refused, format!("a session watches at most {bound} nodes"))
        .hint("Open some handles without events, or watch a directory instead of its files.")
}

/// A replica that is not the master.
pub fn not_master() -> Error {
    Error::new("cell.not_master", Class::Unreachable, "this replica is not the master of the cell")
        .hint("Ask the master.")
}

/// Too much at once, or a change that another one overtook.
pub fn busy(why: &str) -> Error {
    Error::new("cell.busy", Class::Unreachable, format!("the cell is busy: {why}")).hint("Try again after a pause.")
}

/// A client whose clock leases cannot be dated by.
pub fn clock_out_of_bound() -> Error {
    let message = "the client's clock gains or loses more than 10 % on the master's, so it may not use what it caches";
    Error::new("cell.clock_out_of_bound", Class::Refused, message).hint(
        "Mend the clock of the client's host, or the master's if many clients are told so; reads go to the master.",
    )
}

/// A restore over something.
pub fn not_empty_cell() -> Error {
    Error::new("cell.not_empty_cell", Class::Refused, "the cell is not empty, and a restore replaces all of it")
        .hint("Restore into a new cell, or say that everything here may be replaced.")
}

/// A restore that would free a lock while its holder goes on.
pub fn locks_in_use(path: impl Display) -> Error {
    let message = format!("the lock of {path} is held or held back, and a restore would let others have it at once");
    Error::new("cell.locks_in_use", Class::Refused, message)
        .hint("Stop whoever holds locks, or end their sessions (`tidings cell locks`, `tidings cell sessions end ID`), and wait until lock-delays are over.")
}

/// A backup that cannot be trusted.
pub fn damaged_backup(offset: u64, why: &str) -> Error {
    Error::new("cell.damaged_backup", Class::Invalid, format!("the backup is damaged at offset {offset}: {why}"))
        .hint("Use another copy of the backup; nothing was changed.")
}

/// A backup of a version that is not known here.
pub fn newer_backup(version: u32, known: u32) -> Error {
    let message = format!("the backup has format {version}, and this version reads up to {known}");
    Error::new("cell.newer_backup", Class::Invalid, message).hint("Upgrade the cell, then restore.")
}

/// A backup over what a restore can take.
pub fn backup_too_large(bound: u64) -> Error {
    Error::new("cell.too_large", Class::Invalid, format!("the backup is larger than {bound} bytes"))
        .hint("A restore collects all of it first, so no larger one is made: delete what is not needed.")
}

/// A call that only operators may make.
pub fn operators_only(what: &str) -> Error {
    Error::new("cell.operators_only", Class::Refused, format!("only operators may {what}"))
        .hint("Use an operator's credential.")
}

/// A command that makes no sense to the state: of a later version, or damaged before it was proposed.
pub fn bad_command(why: &str) -> Error {
    Error::new("cell.bad_command", Class::Invalid, format!("the state cannot apply this command: {why}"))
        .hint("Run the same version at every replica.")
}
