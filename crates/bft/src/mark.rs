//! The mark that a replica leaves beside its journal of votes (rule G).
//!
//! A replica that has lost its journal does not know what it has voted for, and might vote twice. Keys are made together with
//! a mark that says `unborn`; the first start replaces it. Where there is no mark, or no journal beside it, there was one.

use crate::membership::Membership;
use crate::snapshot::Kept;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where the engine keeps its journal, below a replica's directory.
pub fn journal(directory: &Path) -> PathBuf {
    directory.join("engine")
}

const UNBORN: &str = "unborn";
const VOTING: &str = "voting";
const LOST: &str = "lost";

/// Marks a directory for a replica that has never voted.
pub fn found(directory: &Path, group: &Membership) -> io::Result<()> {
    write(directory, group, UNBORN)
}

/// How a replica starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// For the first time: it has never said anything to anybody.
    Born,
    /// Once more, with its journal.
    Back,
    /// Without the journal of votes that it had.
    Lost,
}

impl Start {
    /// Whether it may vote.
    pub fn votes(self) -> bool {
        self != Start::Lost
    }
}

/// Begins a new life of the group in the directory of an earlier one, which ended with the state that is kept there: the file of
/// members says so. Nothing happens if the directory is of this life already, or of another group.
pub fn reborn(directory: &Path, group: &Membership, kept: &Kept) -> io::Result<()> {
    let text = match fs::read_to_string(path(directory)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let of_this = text.trim_end().ends_with(&format!("{:016x}", group.number()));
    if of_this || kept.first.is_none() {
        return Ok(());
    }
    // First the journal: a mark of this life beside a journal of the last one would be believed.
    match fs::remove_dir_all(journal(directory)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => write(directory, group, UNBORN),
    }
}

/// How a replica starts in this directory. From now on it is known to have started.
pub fn begin(directory: &Path, group: &Membership) -> io::Result<Start> {
    let start = match read(directory, group)?.as_deref() {
        Some(UNBORN) => Start::Born,
        Some(VOTING) if journal(directory).is_dir() => Start::Back,
        _ => Start::Lost,
    };
    // Before the mark: a mark without a journal says that it was lost.
    fs::create_dir_all(journal(directory))?;
    write(directory, group, if start.votes() { VOTING } else { LOST })?;
    Ok(start)
}

fn path(directory: &Path) -> PathBuf {
    directory.join("mark")
}

fn write(directory: &Path, group: &Membership, state: &str) -> io::Result<()> {
    let half = directory.join("mark.new");
    let mut file = File::create(&half)?;
    writeln!(file, "{state} {:016x}", group.number())?;
    file.sync_all()?;
    fs::rename(half, path(directory))?;
    File::open(directory)?.sync_all()
}

fn read(directory: &Path, group: &Membership) -> io::Result<Option<String>> {
    let text = match fs::read_to_string(path(directory)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let invalid = |message: &str| Err(io::Error::new(io::ErrorKind::InvalidData, message));
    match text.trim_end().split_once(' ') {
        Some((_, number)) if number != format!("{:016x}", group.number()) => {
            invalid("the directory is of another group, or of another life of this one; begin with an empty one")
        }
        Some((state, _)) if [UNBORN, VOTING, LOST].contains(&state) => Ok(Some(state.to_owned())),
        _ => invalid("the mark beside the journal is damaged; remove it to go on without a vote"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Secret;
    use crate::membership::tests::four;
    use crate::snapshot::{Shelf, Snapshot};
    use bytes::Bytes;
    use tidings_sketch::ReplicaId;

    #[test]
    fn who_has_lost_its_journal_does_not_vote_again() {
        let ((group, _), directory) = (four("one"), tempfile::tempdir().unwrap());
        let at = directory.path();
        found(at, &group).unwrap();
        assert_eq!(begin(at, &group).unwrap(), Start::Born);
        assert_eq!(begin(at, &group).unwrap(), Start::Back);
        fs::remove_dir_all(journal(at)).unwrap();
        assert_eq!(begin(at, &group).unwrap(), Start::Lost, "without its journal");
        assert_eq!(begin(at, &group).unwrap(), Start::Lost, "with a later one");
        fs::remove_file(path(at)).unwrap();
        assert_eq!(begin(at, &group).unwrap(), Start::Lost, "without its mark");
    }

    #[test]
    fn a_new_life_begins_where_the_last_state_is_kept_and_nowhere_else() {
        let ((group, _), directory) = (four("one"), tempfile::tempdir().unwrap());
        let at = directory.path();
        let last = Snapshot::from_bytes(256, Bytes::from_static(b"state"));
        let next = group.rekeyed(ReplicaId(3), Secret::of([77; 32]).unwrap().public(), last.hash).unwrap();
        let shelf = Shelf::open(at).unwrap();
        found(at, &group).unwrap();
        begin(at, &group).unwrap();
        reborn(at, &next, &shelf.kept(&next).unwrap()).unwrap();
        assert!(begin(at, &next).is_err(), "no state is here");
        shelf.keep(&last).unwrap();
        reborn(at, &group, &shelf.kept(&group).unwrap()).unwrap();
        assert_eq!(begin(at, &group).unwrap(), Start::Back, "this life goes on");
        fs::write(journal(at).join("votes"), "of the last life").unwrap();
        reborn(at, &next, &shelf.kept(&next).unwrap()).unwrap();
        assert_eq!(begin(at, &next).unwrap(), Start::Born);
        assert!(!journal(at).join("votes").exists());
        reborn(at, &next, &shelf.kept(&next).unwrap()).unwrap();
        assert_eq!(begin(at, &next).unwrap(), Start::Back);
        assert!(begin(at, &group).is_err(), "never back");
    }

    #[test]
    fn marks_of_other_groups_and_damaged_ones_are_refused() {
        let ((group, _), directory) = (four("one"), tempfile::tempdir().unwrap());
        found(directory.path(), &four("two").0).unwrap();
        assert!(begin(directory.path(), &group).unwrap_err().to_string().contains("another group"));
        for damaged in ["", "voting", &format!("dead {:016x}", group.number())] {
            fs::write(path(directory.path()), damaged).unwrap();
            assert!(begin(directory.path(), &group).is_err(), "{damaged}");
        }
    }
}
