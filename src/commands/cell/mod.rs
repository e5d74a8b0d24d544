//! `tidings cell …`: files, locks and elections, and what operators do about them.
//!
//! ```text
//!   files.rs acl.rs watch.rs lock.rs sequencer.rs    through a session of the library (connect.rs)
//!   operators.rs backup.rs                            one question, without a session
//!   supervise.rs ── deadlines ──▶ guard.rs            a command that is dead before its lock is anybody else's (R10)
//! ```

mod acl;
mod backup;
mod connect;
mod files;
pub mod guard;
mod lock;
mod operators;
mod sequencer;
mod show;
mod supervise;
mod watch;

use crate::cli::cell::{Cell, Sessions};
use crate::commands::member;
use std::process::ExitCode;
use tidings_base::Error;

/// Runs one of the sub-commands.
pub fn run(command: Cell) -> Result<ExitCode, Error> {
    let done = match command {
        // These have exit codes of their own.
        Cell::Lock(args) => return lock::lock(&args),
        Cell::Elect(args) => return lock::elect(&args),
        Cell::Sequencer(command) => return sequencer::run(command),
        Cell::Ls { path, long, remote } => files::ls(&path, long, &remote),
        Cell::Cat { path, remote } => files::cat(&path, &remote),
        Cell::Put { path, value, if_generation, create_only, ephemeral, hold, sequencer, remote } => {
            let sequencers = files::sequencers(&sequencer)?;
            files::put(&files::Put { path, value, if_generation, create_only, ephemeral, hold, sequencers }, &remote)
        }
        Cell::Mkdir { path, parents, remote } => files::mkdir(&path, parents, &remote),
        Cell::Rm { path, recursive, yes, if_generation, sequencer, remote } => {
            files::rm(&path, recursive, yes, if_generation, &files::sequencers(&sequencer)?, &remote)
        }
        Cell::Stat { path, remote } => files::stat(&path, &remote),
        Cell::Watch { path, count, remote } => watch::run(&path, count, &remote),
        Cell::Acl(command) => acl::run(command),
        Cell::Sessions { command: Some(Sessions::End { id, remote }), .. } => operators::end_session(&remote, id),
        Cell::Sessions { command: None, remote } => operators::sessions(&remote),
        Cell::Locks { remote } => operators::locks(&remote),
        Cell::Quota(command) => operators::quota(command),
        Cell::Member(command) => member::run(command, member::CELL),
        Cell::Backup { file, remote } => backup::backup(&file, &remote),
        Cell::Restore { file, replace, yes, remote } => backup::restore(&file, replace, yes, &remote),
    };
    done.map(|()| ExitCode::SUCCESS)
}
