//! A small file has its old content or its new one, or is said to be damaged.

use std::io::ErrorKind;
use std::sync::Arc;
use tidings_base::Seeded;
use tidings_base::disk::Disk;
use tidings_log::testing::SimDisk;
use tidings_log::{SmallFile, SmallFileError};

fn vote(disk: &SimDisk) -> SmallFile {
    SmallFile::new(Arc::new(disk.clone()), "vote", 1)
}

#[test]
fn absent_is_not_damaged_and_a_tag_is_checked() {
    let disk = SimDisk::new(0);
    assert!(vote(&disk).read().unwrap().is_none());
    vote(&disk).replace(b"").unwrap();
    assert_eq!(vote(&disk).read().unwrap().unwrap(), "");
    let other = SmallFile::new(Arc::new(disk.clone()), "vote", 2);
    assert!(matches!(other.read(), Err(SmallFileError::Unknown { kind: 1, .. })));
    vote(&disk).remove().unwrap();
    vote(&disk).remove().unwrap();
    assert!(vote(&disk).read().unwrap().is_none());
}

#[test]
fn a_crash_at_any_time_leaves_the_old_content_or_the_new() {
    let mut kept_new = 0;
    for seed in 0..3_000 {
        let mut rng = Seeded::new(seed);
        let disk = SimDisk::new(seed);
        let mut possible = vec![None];
        for step in 0..rng.between(1, 6) {
            let content = vec![step as u8; rng.below(1500) as usize];
            match rng.below(7) {
                0 => disk.fail_write_after(0, ErrorKind::StorageFull),
                1 => disk.fail_sync_after(rng.below(2), ErrorKind::Other),
                2 => disk.stop_after(rng.below(7)),
                _ => {}
            }
            match vote(&disk).replace(&content) {
                Ok(()) => possible = vec![Some(content)],
                Err(_) => possible.push(Some(content)),
            }
            if rng.one_in(3) || disk.list().is_err() {
                disk.crash(&mut rng);
                let found = vote(&disk).read().unwrap().map(|bytes| bytes.to_vec());
                assert!(possible.contains(&found), "seed {seed}");
                kept_new += usize::from(possible.len() > 1 && found == possible[possible.len() - 1]);
                possible = vec![found];
            }
        }
    }
    assert!(kept_new > 10, "{kept_new}");
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let disk = SimDisk::new(0);
    vote(&disk).replace(b"term 7, candidate 3").unwrap();
    let bytes = disk.contents("vote").unwrap();
    for bit in 0..bytes.len() as u64 * 8 {
        assert!(disk.flip_bit("vote", bit));
        assert!(matches!(vote(&disk).read(), Err(SmallFileError::Damaged { .. })), "bit {bit}");
        assert!(disk.flip_bit("vote", bit));
    }
    for len in 0..bytes.len() as u64 {
        let copy = disk.duplicate();
        assert!(copy.cut_file("vote", len));
        let error = vote(&copy).read().unwrap_err();
        assert!(matches!(error, SmallFileError::Damaged { .. }) && error.to_string().contains("vote"), "{error}");
    }
    disk.open("vote").unwrap().write_at(bytes.len() as u64, b"x").unwrap();
    assert!(matches!(vote(&disk).read(), Err(SmallFileError::Damaged { .. })));
}
