//! Damage of every sort is refused and named, or does no harm; it never becomes wrong data.

use bytes::Bytes;
use std::io::ErrorKind;
use std::sync::Arc;
use tidings_base::Seeded;
use tidings_base::disk::Disk;
use tidings_log::testing::SimDisk;
use tidings_log::{Log, MIN_SEGMENT_BYTES, OpenError, Options, Trouble, TroubleKind, verify};

type Records = Vec<(u64, Bytes)>;

fn options() -> Options {
    Options { log_id: 5, segment_bytes: MIN_SEGMENT_BYTES, cache_bytes: 0, zero_ahead: 0, ..Options::default() }
}

fn open(disk: &SimDisk) -> Result<(Log, Records), Trouble> {
    match Log::open(Arc::new(disk.clone()), options()) {
        Ok((log, _)) => {
            let records = log.read(log.first(), log.next(), usize::MAX).unwrap();
            Ok((log, records))
        }
        Err(OpenError::Refused(trouble)) => Err(trouble),
        Err(e) => panic!("{e}"),
    }
}

fn refusal(disk: &SimDisk) -> Trouble {
    open(disk).err().expect("the log is refused")
}

fn payload(index: u64) -> Bytes {
    Bytes::from(format!("{index:->width$}", width = 90 + index as usize % 20))
}

fn append(log: &mut Log, count: u64) {
    for _ in 0..count {
        log.append(log.next(), &[payload(log.next())]).unwrap();
    }
}

/// A log of three segments with some of everything in it, synced in several steps.
fn sample() -> (SimDisk, Records) {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).unwrap();
    for _ in 0..5 {
        append(&mut log, 4);
        log.sync().unwrap();
    }
    log.truncate_after(17).unwrap();
    append(&mut log, 25);
    log.purge_through(3).unwrap();
    append(&mut log, 12);
    log.sync().unwrap();
    append(&mut log, 3);
    assert_eq!(log.segments(), 3);
    let records = log.read(log.first(), log.next(), usize::MAX).unwrap();
    log.close().unwrap();
    (disk, records)
}

fn segments(disk: &SimDisk) -> Vec<String> {
    disk.files().into_iter().map(|(name, _)| name).filter(|name| name.ends_with(".seg")).collect()
}

#[test]
fn every_flipped_bit_is_refused_or_harmless() {
    let (disk, records) = sample();
    let mut refused = 0u64;
    let mut harmless = 0u64;
    for segment in verify(&disk, Some(5)).unwrap().segments {
        let header = 0..64 * 8;
        let body = 4096 * 8..(segment.used_bytes + 64) * 8;
        let unused = (64 * 8..4096 * 8).step_by(509);
        for bit in header.chain(body).chain(unused) {
            assert!(disk.flip_bit(&segment.file, bit));
            if verify(&disk, Some(5)).unwrap().is_sound() {
                // Markers, seals and unused space: no record is there, none may be lost.
                let copy = disk.duplicate();
                assert_eq!(open(&copy).unwrap().1, records, "{} bit {bit}", segment.file);
                assert!(bit >= segment.used_bytes * 8 || bit < 4096 * 8, "{} bit {bit} was not noticed", segment.file);
                harmless += 1;
            } else {
                refused += 1;
            }
            assert!(disk.flip_bit(&segment.file, bit));
        }
    }
    assert!(refused > 50_000 && harmless > 100, "{refused} refused, {harmless} harmless");
    assert_eq!(open(&disk).unwrap().1, records);
}

#[test]
fn damage_is_named_by_file_and_offset() {
    let (disk, _) = sample();
    let file = "00000000000000000001.seg";
    assert!(disk.flip_bit(file, (4096 + 40) * 8));
    let trouble = refusal(&disk);
    assert_eq!((trouble.kind, trouble.file.as_str(), trouble.offset), (TroubleKind::Damage, file, 4096));
    let said = trouble.to_string();
    assert!(said.contains("payload of index 1 ") && said.contains("restore a backup"), "{said}");
    assert!(disk.flip_bit(file, (4096 + 40) * 8));

    assert!(disk.flip_bit(file, 20 * 8));
    assert!(refusal(&disk).what.contains("header of the segment does not match its checksum"));
}

#[test]
fn a_refused_log_is_left_as_it_is() {
    let (disk, _) = sample();
    disk.flip_bit("00000000000000000002.seg", 4096 * 8);
    let before: Vec<_> = segments(&disk).iter().map(|name| disk.contents(name)).collect();
    refusal(&disk);
    let after: Vec<_> = segments(&disk).iter().map(|name| disk.contents(name)).collect();
    assert_eq!(before, after);
}

#[test]
fn a_lost_segment_is_noticed_wherever_it_was() {
    for (at, kept) in [(0, "the first"), (1, "one between"), (2, "the last")] {
        let (disk, _) = sample();
        let name = segments(&disk)[at].clone();
        assert!(disk.lose_file(&name));
        let trouble = refusal(&disk);
        assert_eq!((trouble.kind, trouble.file), (TroubleKind::MissingSegment, name), "{kept}");
    }
}

#[test]
fn every_length_of_a_cut_file_is_refused() {
    let (disk, _) = sample();
    for name in segments(&disk) {
        let full = disk.contents(&name).unwrap().len() as u64;
        for len in (0..full).step_by(61).chain([full - 1]) {
            let copy = disk.duplicate();
            assert!(copy.cut_file(&name, len));
            let trouble = refusal(&copy);
            assert_eq!((trouble.kind, &trouble.file), (TroubleKind::Damage, &name), "cut to {len}");
        }
    }
}

#[test]
fn wherever_the_last_write_ends_everything_synced_is_there() {
    let disk = SimDisk::new(3);
    let (mut log, _) = open(&disk).unwrap();
    append(&mut log, 3);
    log.sync().unwrap();
    let synced = verify(&disk, Some(5)).unwrap().segments[0].used_bytes;
    append(&mut log, 5);
    let all = log.read(1, 9, usize::MAX).unwrap();
    let written = verify(&disk, Some(5)).unwrap().segments[0].used_bytes;
    let name = segments(&disk)[0].clone();
    let whole = disk.contents(&name).unwrap();
    for end in synced..=written {
        let copy = disk.duplicate();
        let mut file = copy.open(&name).unwrap();
        file.write_at(end, &vec![0; whole.len() - end as usize]).unwrap();
        file.sync().unwrap();
        let (log, records) = open(&copy).unwrap();
        assert!(records.len() >= 3 && records == all[..records.len()], "cut at {end}");
        assert_eq!(log.next(), records.len() as u64 + 1);
    }
}

#[test]
fn a_whole_record_after_a_lost_one_is_torn_before_its_sync_and_damage_after_it() {
    let disk = SimDisk::new(3);
    let (mut log, _) = open(&disk).unwrap();
    append(&mut log, 2);
    log.sync().unwrap();
    let third = verify(&disk, Some(5)).unwrap().segments[0].used_bytes;
    append(&mut log, 3);
    let all = log.read(1, 6, usize::MAX).unwrap();
    let name = segments(&disk)[0].clone();
    let lose_third = |disk: &SimDisk| {
        let mut file = disk.open(&name).unwrap();
        file.write_at(third, &[0; 100]).unwrap();
        file.sync().unwrap();
    };

    let unsynced = disk.duplicate();
    lose_third(&unsynced);
    let report = verify(&unsynced, Some(5)).unwrap();
    assert_eq!(report.torn.as_ref().map(|torn| (torn.kind, torn.offset)), Some((TroubleKind::TornTail, third)));
    let (mut log_after, records) = open(&unsynced).unwrap();
    assert_eq!(records.len(), 2);
    // The records that outlived the lost one must not come back, even when the same one is written again.
    log_after.append(3, &[payload(3)]).unwrap();
    unsynced.kill();
    let (_, records) = open(&unsynced).unwrap();
    assert_eq!(records, all[..3]);

    log.sync().unwrap();
    let synced = disk.duplicate();
    lose_third(&synced);
    let trouble = refusal(&synced);
    assert_eq!((trouble.kind, trouble.offset), (TroubleKind::Damage, third));
}

/// The limit of what one member alone can tell: the promise for the last write was lost together with its bytes.
#[test]
fn without_its_marker_damage_of_the_last_write_passes_for_a_torn_tail() {
    let disk = SimDisk::new(3);
    let (mut log, _) = open(&disk).unwrap();
    append(&mut log, 2);
    log.sync().unwrap();
    let end = verify(&disk, Some(5)).unwrap().segments[0].used_bytes;
    let name = segments(&disk)[0].clone();
    disk.flip_bit(&name, (end - 1) * 8);
    assert_eq!(refusal(&disk).kind, TroubleKind::Damage);
    let mut file = disk.open(&name).unwrap();
    file.write_at(end, &[0; 32]).unwrap();
    let report = verify(&disk, Some(5)).unwrap();
    assert!(report.is_sound() && report.torn.is_some() && report.next == 2);
}

#[test]
fn files_of_others_are_told_apart() {
    let (disk, records) = sample();
    let other = Options { log_id: 6, ..options() };
    let Err(OpenError::Refused(trouble)) = Log::open(Arc::new(disk.clone()), other) else { panic!("opened") };
    assert_eq!(trouble.kind, TroubleKind::OtherLog);

    // Files that are not segments are nobody's business; segments that were never completed are removed.
    for name in ["vote", "7.seg", "00000000000000000009.seg.tmp"] {
        disk.create(name).unwrap();
    }
    assert_eq!(verify(&disk, None).unwrap().leftovers, ["00000000000000000009.seg.tmp"]);
    assert_eq!(open(&disk).unwrap().1, records);
    assert!(
        disk.files().iter().any(|(name, _)| name == "vote")
            && !disk.files().iter().any(|(name, _)| name.ends_with("tmp"))
    );

    disk.rename("00000000000000000003.seg", "00000000000000000004.seg").unwrap();
    assert_eq!(refusal(&disk).kind, TroubleKind::OtherLog);
}

#[test]
fn a_newer_format_is_named_as_such() {
    let (disk, _) = sample();
    let name = "00000000000000000003.seg";
    let mut header = disk.contents(name).unwrap()[..64].to_vec();
    header[8] = 2;
    let crc = crc32c::crc32c(&header[..60]);
    header[60..].copy_from_slice(&crc.to_le_bytes());
    disk.open(name).unwrap().write_at(0, &header).unwrap();
    let trouble = refusal(&disk);
    assert_eq!(trouble.kind, TroubleKind::NewerFormat);
    assert!(trouble.to_string().contains("format 2"), "{trouble}");
}

#[test]
fn a_disk_that_cannot_be_read_is_named() {
    let (disk, _) = sample();
    disk.fail_read_after(4, ErrorKind::Other);
    assert_eq!(refusal(&disk).kind, TroubleKind::Unreadable);
    assert!(open(&disk).is_ok());
}

#[test]
fn a_record_that_changes_under_a_running_log_is_not_returned() {
    let (disk, records) = sample();
    let (log, _) = open(&disk).unwrap();
    let name = segments(&disk)[1].clone();
    disk.flip_bit(&name, (4096 + 50) * 8);
    let error = log.read(log.first(), log.next(), usize::MAX).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert!(error.to_string().contains(&name), "{error}");
    assert_eq!(log.read(log.first(), log.first() + 5, usize::MAX).unwrap(), records[..5]);
}

#[test]
fn power_loss_and_a_flipped_bit_never_make_wrong_data() {
    for seed in 0..400 {
        let mut rng = Seeded::new(seed);
        let disk = SimDisk::new(seed);
        let (mut log, _) = open(&disk).unwrap();
        for _ in 0..rng.between(1, 8) {
            append(&mut log, rng.between(1, 20));
            if rng.one_in(2) {
                log.sync().unwrap();
            }
        }
        disk.crash(&mut rng);
        disk.flip_some_bit(&mut rng);
        if let Ok((_, records)) = open(&disk) {
            assert!(records.iter().zip(1..).all(|(record, index)| *record == (index, payload(index))), "seed {seed}");
        }
    }
}
