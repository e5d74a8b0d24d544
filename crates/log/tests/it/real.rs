//! The file system behind the disk, the lock on a directory, the slow disk.

use bytes::Bytes;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::disk::Disk;
use tidings_log::{DirLock, LockError, Log, Options, RealDisk, SlowDisk, SmallFile};

#[test]
fn the_real_disk_does_what_its_trait_says() {
    let directory = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(directory.path().join("a/b")).unwrap();
    assert_eq!(disk.list().unwrap(), Vec::<String>::new());
    let mut file = disk.create("one").unwrap();
    assert_eq!(disk.create("one").err().unwrap().kind(), ErrorKind::AlreadyExists);
    assert_eq!(disk.open("two").err().unwrap().kind(), ErrorKind::NotFound);
    assert_eq!(disk.remove("two").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(disk.open("../one").err().unwrap().kind(), ErrorKind::InvalidInput);
    file.set_len(10_000).unwrap();
    file.write_at(5, b"abc").unwrap();
    file.sync().unwrap();
    let mut bytes = [9; 5];
    file.read_at(4, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0abc\0");
    assert_eq!(file.read_at(9_998, &mut bytes).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    file.set_len(6).unwrap();
    assert_eq!((file.len().unwrap(), file.is_empty().unwrap()), (6, false));
    disk.create("two").unwrap();
    disk.rename("one", "two").unwrap();
    disk.sync_dir().unwrap();
    assert_eq!(disk.list().unwrap(), ["two"]);
    assert_eq!(disk.open("two").unwrap().len().unwrap(), 6);
    disk.remove("two").unwrap();
    assert_eq!(disk.list().unwrap(), Vec::<String>::new());
}

#[test]
fn a_log_on_a_real_slow_disk_survives_its_process() {
    let directory = tempfile::tempdir().unwrap();
    let real = Arc::new(RealDisk::open(directory.path()).unwrap());
    let disk: Arc<dyn Disk> = Arc::new(SlowDisk::new(real, Duration::from_millis(1)));
    let options = Options { segment_bytes: 100_000, cache_bytes: 0, ..Options::default() };
    let (mut log, _) = Log::open(disk.clone(), options.clone()).unwrap();
    for index in 1..=300u64 {
        log.append(index, &[Bytes::from(vec![index as u8; 1000])]).unwrap();
    }
    log.truncate_after(250).unwrap();
    log.purge_through(150).unwrap();
    assert!(log.segments() >= 2 && log.segments() < 4, "{}", log.segments());
    drop(log);
    let (log, recovery) = Log::open(disk.clone(), options).unwrap();
    assert_eq!((recovery.first, recovery.next, recovery.created), (151, 251, false));
    let records = log.read(151, 251, usize::MAX).unwrap();
    assert_eq!(records.len(), 100);
    assert!(records.iter().all(|(index, payload)| payload.len() == 1000 && payload[0] == *index as u8));

    let vote = SmallFile::new(disk, "vote", 1);
    vote.replace(b"one").unwrap();
    vote.replace(b"two").unwrap();
    assert_eq!(vote.read().unwrap().unwrap(), "two");
}

#[test]
fn a_directory_is_locked_once_and_says_by_whom() {
    let directory = tempfile::tempdir().unwrap();
    let held = DirLock::take(directory.path()).unwrap();
    let error = DirLock::take(directory.path()).unwrap_err();
    assert!(matches!(&error, LockError::Held { pid: Some(pid), .. } if *pid == std::process::id()));
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    drop(held);
    DirLock::take(directory.path()).unwrap();
    let nowhere = DirLock::take(&directory.path().join("nowhere")).unwrap_err();
    assert!(matches!(nowhere, LockError::Io { .. }), "{nowhere}");
}

#[test]
fn who_only_looks_locks_without_writing() {
    let directory = tempfile::tempdir().unwrap();
    assert!(DirLock::take_to_look(directory.path()).unwrap().is_none(), "nobody was ever here");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    let lock = directory.path().join("LOCK");
    let held = DirLock::take(directory.path()).unwrap();
    let refused = DirLock::take_to_look(directory.path()).unwrap_err();
    assert!(matches!(refused, LockError::Held { pid: Some(pid), .. } if pid == std::process::id()), "{refused}");
    drop(held);

    // No process has this number: whoever wrote it is gone, and is not blamed for the look.
    std::fs::write(&lock, "4194999\n").unwrap();
    let looking = DirLock::take_to_look(directory.path()).unwrap();
    assert!(looking.is_some());
    assert_eq!(std::fs::read_to_string(&lock).unwrap(), "4194999\n");
    assert!(matches!(DirLock::take(directory.path()), Err(LockError::Held { pid: None, .. })));
    drop(looking);
    DirLock::take(directory.path()).unwrap();
}
