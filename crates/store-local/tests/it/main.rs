//! The state in fjall: the suite, crashes, restores, damage.

mod conformance;
mod crashes;
mod damage;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use tidings_store_local::{OpenError, Report};

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Checks the state in `dir`, with room for the copy.
fn check(dir: &Path) -> Result<Report, OpenError> {
    let scratch = tempfile::tempdir().unwrap();
    tidings_store_local::check(dir, scratch.path())
}

/// Every file below a directory with its content, and every directory.
fn read_dir(dir: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(read_dir(&path));
            found.insert(path, None);
        } else {
            let content = fs::read(&path).unwrap();
            found.insert(path, Some(content));
        }
    }
    found
}

/// Copies a directory as it is, even while the process that wrote it still runs: the picture that SIGKILL leaves behind.
fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            // Journals are 64 MiB of zeros with a little at the beginning: only that is read and written.
            let mut source = File::open(entry.path()).unwrap();
            let mut file = File::create(target).unwrap();
            let mut piece = vec![0; ZEROS.len()];
            loop {
                let read = source.read(&mut piece).unwrap();
                if read == 0 || piece[..read] == ZEROS[..read] {
                    break;
                }
                file.write_all(&piece[..read]).unwrap();
            }
            file.set_len(source.metadata().unwrap().len()).unwrap();
        }
    }
}
