//! The state in fjall: the suite, crashes, restores, damage.

mod conformance;
mod crashes;
mod damage;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// Copies a directory as it is, even while the process that wrote it still runs: the picture that SIGKILL leaves behind.
fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            // Journals are 64 MiB of zeros with a little at the beginning: only that is written.
            let content = fs::read(entry.path()).unwrap();
            let end = content.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
            let mut file = File::create(target).unwrap();
            file.write_all(&content[..end]).unwrap();
            file.set_len(content.len() as u64).unwrap();
        }
    }
}
