//! The mark that a replica leaves beside its journal of votes (rule G).
//!
//! A replica that has lost its journal does not know what it has voted for, and might vote twice. Keys are made together with
//! a mark that says `unborn`; the first start replaces it. Where there is no mark, or no journal beside it, there was one.

use crate::membership::Membership;
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

/// Whether a replica that starts in this directory may vote. From now on it is known to have started.
pub fn begin(directory: &Path, group: &Membership) -> io::Result<bool> {
    let votes = match read(directory, group)?.as_deref() {
        Some(UNBORN) => true,
        Some(VOTING) => journal(directory).is_dir(),
        _ => false,
    };
    // Before the mark: a mark without a journal says that it was lost.
    fs::create_dir_all(journal(directory))?;
    write(directory, group, if votes { VOTING } else { LOST })?;
    Ok(votes)
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
    use crate::membership::tests::four;

    #[test]
    fn who_has_lost_its_journal_does_not_vote_again() {
        let ((group, _), directory) = (four("one"), tempfile::tempdir().unwrap());
        let at = directory.path();
        found(at, &group).unwrap();
        assert!(begin(at, &group).unwrap(), "it is born");
        assert!(begin(at, &group).unwrap(), "it is back");
        fs::remove_dir_all(journal(at)).unwrap();
        assert!(!begin(at, &group).unwrap(), "without its journal");
        assert!(!begin(at, &group).unwrap(), "with a later one");
        fs::remove_file(path(at)).unwrap();
        assert!(!begin(at, &group).unwrap(), "without its mark");
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
