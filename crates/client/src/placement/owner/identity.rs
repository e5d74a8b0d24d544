//! Which process of an owner this is: a number that grows with every start, and proof that the earlier one is dead (F4).
//!
//! ```text
//!   data_dir/placement-owner   locked for as long as the process lives; inside: a random name, the number of the last start
//!   proof = boot id of the host + the file's device, inode and random name
//! ```
//! Whoever holds the lock on the same file under the same boot of the same host knows that whoever held it before is gone.

use super::super::errors;
use rustix::fs::{FlockOperation, fstat};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tidings_base::Error;
use tidings_wire::v1::ExclusivityProof;

/// The file in an owner's directory.
const NAME: &str = "placement-owner";

/// The kernel's name for this boot of the host.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Who this process is.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) incarnation: u64,
    pub(super) proof: Option<ExclusivityProof>,
    /// Locked while it is open.
    pub(super) lock: Option<File>,
}

/// Microseconds since 1970: grows with every start unless the wall clock is set back, which managers notice and refuse.
pub(super) fn by_wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX).max(1)
}

/// Locks an owner's directory and counts this start in it.
pub(super) fn from_directory(dir: &Path) -> Result<Identity, Error> {
    let failed = |why: std::io::Error| errors::directory(dir, why);
    std::fs::create_dir_all(dir).map_err(failed)?;
    let mut options = File::options();
    let mut file = options.read(true).write(true).create(true).truncate(false).open(dir.join(NAME)).map_err(failed)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(errors::directory_in_use(dir)),
        Err(why) => return Err(errors::directory(dir, why)),
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    let (name, last) = parse(&text).ok_or_else(|| errors::directory(dir, "its file is none of ours"))?;
    let name = match name {
        Some(name) => name,
        None => format!("{:016x}", getrandom::u64().map_err(errors::no_randomness)?),
    };
    let incarnation = by_wall_clock().max(last.saturating_add(1));
    file.rewind().map_err(failed)?;
    // Same length from start to start, so that what a crash leaves half-written is still two fields.
    file.write_all(format!("{name} {incarnation:020}\n").as_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    let proof = proof(&file, &name);
    Ok(Identity { incarnation, proof, lock: Some(file) })
}

/// The name and the last number in a file; neither in an empty one.
fn parse(text: &str) -> Option<(Option<String>, u64)> {
    if text.is_empty() {
        return Some((None, 0));
    }
    let (name, last) = text.trim_end().split_once(' ')?;
    (name.len() == 16).then_some(())?;
    Some((Some(name.to_owned()), last.parse().ok()?))
}

fn proof(file: &File, name: &str) -> Option<ExclusivityProof> {
    let boot_id = std::fs::read_to_string(BOOT_ID).ok()?.trim().to_owned();
    let stat = fstat(file).ok()?;
    Some(ExclusivityProof { boot_id, lock_id: format!("{:x}:{:x}:{name}", stat.st_dev, stat.st_ino) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_counted_one_process_at_a_time() {
        let dir = std::env::temp_dir().join(format!("tidings-identity-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let first = from_directory(&dir).unwrap();
        assert_eq!(from_directory(&dir).unwrap_err().code, "placement.directory_in_use");
        let (incarnation, proof) = (first.incarnation, first.proof.clone());
        drop(first);
        // The wall clock was set back: the number grows all the same.
        let text = std::fs::read_to_string(dir.join(NAME)).unwrap();
        let ahead = incarnation + 1_000_000_000_000;
        std::fs::write(dir.join(NAME), text.replace(&format!("{incarnation:020}"), &format!("{ahead:020}"))).unwrap();
        let second = from_directory(&dir).unwrap();
        assert_eq!(second.incarnation, ahead + 1);
        assert_eq!(second.proof, proof, "the same file on the same boot");
        drop(second);
        std::fs::write(dir.join(NAME), "something else").unwrap();
        assert_eq!(from_directory(&dir).unwrap_err().code, "placement.directory");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
