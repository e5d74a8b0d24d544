//! Why a state on disk cannot be opened, each with what to do.

use crate::layout;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use thiserror::Error as ThisError;
use tidings_base::{Class, Error};

/// Why the state in a directory cannot be opened. Nothing was changed by the attempt.
#[derive(Debug, ThisError)]
pub enum OpenError {
    /// A newer version of the program wrote it.
    #[error("{} has format {found}; this program knows formats up to {known}", .path.display())]
    Newer {
        /// The `FORMAT` file.
        path: PathBuf,
        /// What it says.
        found: u32,
        /// What is known here.
        known: u32,
    },
    /// The directory holds something else.
    #[error("{} is not a state of store and feed: {what}", .path.display())]
    Foreign {
        /// The directory or file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A file is damaged, missing or cut short.
    #[error("{} is damaged: {what}", .path.display())]
    Damaged {
        /// The file, or the directory where the engine does not name one.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// It was durable further than it reaches now.
    #[error(
        "{} is damaged: it reaches entry {has}, but was durable up to entry {flushed}; of its journals ({journals}) one \
         is cut, damaged or missing", .path.display()
    )]
    Lost {
        /// The generation's directory.
        path: PathBuf,
        /// The journals that were there, by name.
        journals: String,
        /// The last entry it holds.
        has: u64,
        /// The last entry it held when it was last made durable.
        flushed: u64,
    },
    /// Another process has it open.
    #[error("{} is in use by another process", .path.display())]
    Locked {
        /// The generation's directory.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("{} cannot be used: {error}", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the file system said.
        error: std::io::Error,
    },
}

impl OpenError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> OpenError {
        let path = path.to_owned();
        move |error| OpenError::Io { path, error }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> OpenError {
        OpenError::Damaged { path: path.to_owned(), what: what.into() }
    }

    /// The same error about the original, where it was found in a copy.
    pub(crate) fn moved(self, copy: &Path, original: &Path) -> OpenError {
        let there = |path: PathBuf| path.strip_prefix(copy).map(|rest| original.join(rest)).unwrap_or(path);
        let said = |what: String| what.replace(&*copy.to_string_lossy(), &original.to_string_lossy());
        match self {
            OpenError::Newer { path, found, known } => OpenError::Newer { path: there(path), found, known },
            OpenError::Foreign { path, what } => OpenError::Foreign { path: there(path), what: said(what) },
            OpenError::Damaged { path, what } => OpenError::Damaged { path: there(path), what: said(what) },
            OpenError::Lost { path, journals, has, flushed } => {
                OpenError::Lost { path: there(path), journals, has, flushed }
            }
            OpenError::Locked { path } => OpenError::Locked { path: there(path) },
            OpenError::Io { path, error } => OpenError::Io { path: there(path), error },
        }
    }

    /// What an error of the engine means: bad luck with the file system, or damage.
    pub(crate) fn engine(path: &Path, error: fjall::Error) -> OpenError {
        if matches!(error, fjall::Error::Locked) {
            return OpenError::Locked { path: path.to_owned() };
        }
        match refusal(&error) {
            Some(kind) => OpenError::Io { path: path.to_owned(), error: std::io::Error::new(kind, error.to_string()) },
            None if matches!(error, fjall::Error::JournalRecovery(_)) => {
                let journals = layout::journals(path).unwrap_or_default();
                OpenError::damaged(path, format!("{}; its journals are {journals}", describe(&error)))
            }
            None => OpenError::damaged(path, describe(&error)),
        }
    }
}

/// The kind of an I/O error that says nothing about the files' content.
fn refusal(error: &fjall::Error) -> Option<ErrorKind> {
    let mut at: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(this) = at {
        if let Some(io) = this.downcast_ref::<std::io::Error>() {
            // A file that ends early, is not there, or sends the reader to an impossible place tells of damage, not of a
            // disk that says no.
            let damage = matches!(
                io.kind(),
                ErrorKind::UnexpectedEof | ErrorKind::InvalidData | ErrorKind::InvalidInput | ErrorKind::NotFound
            );
            return (!damage).then_some(io.kind());
        }
        at = this.source();
    }
    None
}

/// The engine's error in words.
pub(crate) fn describe(error: &fjall::Error) -> String {
    match error {
        fjall::Error::JournalRecovery(inner) => format!("a journal cannot be replayed ({inner:?})"),
        fjall::Error::InvalidVersion(_) => "its `version` file is unknown or unreadable".to_owned(),
        fjall::Error::Unrecoverable => "tables or journals are missing".to_owned(),
        fjall::Error::Storage(inner) => format!("a table or manifest cannot be read ({inner:?})"),
        fjall::Error::Poisoned => "an earlier write failed".to_owned(),
        other => format!("{other:?}"),
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Error {
        let message = format!("{error}.");
        let rebuild = "Stop the node and run `tidings doctor`. If other members hold the data, let them \
                       remove this member and add it under a new number with an empty directory. Otherwise restore a \
                       backup.";
        let (code, class, hint) = match &error {
            OpenError::Newer { .. } => {
                ("store.newer_format", Class::Refused, "Run the version of the program that wrote it, or a newer one.")
            }
            OpenError::Foreign { .. } => ("store.foreign_directory", Class::Refused, "Name another data directory."),
            OpenError::Damaged { .. } | OpenError::Lost { .. } => ("store.damaged", Class::Failed, rebuild),
            OpenError::Locked { .. } => {
                ("store.locked", Class::Refused, "Stop the other process, or name another data directory.")
            }
            OpenError::Io { .. } => {
                ("store.unreadable", Class::Failed, "Check permissions, free space and the health of the disk.")
            }
        };
        Error::new(code, class, message).hint(hint)
    }
}
