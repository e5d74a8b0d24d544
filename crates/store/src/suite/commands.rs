//! Random commands of all kinds over few names, so that they meet.

use crate::messages::*;
use bytes::Bytes;
use tidings_base::Seeded;
use tidings_wire::v1;
use tidings_wire::v1::store_command::Command;

/// Random commands, a few of them refused by the rules.
pub fn random_commands(rng: &mut Seeded, count: usize) -> Vec<Command> {
    (0..count).map(|_| random_command(rng)).collect()
}

fn random_command(rng: &mut Seeded) -> Command {
    match rng.below(100) {
        0..35 => Command::Apply(apply((0..rng.between(1, 3)).map(|i| random_group(rng, i)).collect())),
        35..50 => Command::CompareAndSet(random_swap(rng)),
        50..60 => Command::ApplyAndAppend(v1::ApplyAndAppend {
            groups: (0..rng.below(3)).map(|i| random_group(rng, i)).collect(),
            append: Some(random_append(rng)),
        }),
        60..75 => Command::Append(random_append(rng)),
        75..88 => Command::Ack(v1::Ack {
            topic: topic(rng),
            group: consumer_group(rng),
            numbers: (0..rng.between(1, 4)).map(|_| rng.below(25)).collect(),
        }),
        88..92 => Command::FeedJoin(v1::FeedJoin { topic: topic(rng), group: consumer_group(rng) }),
        92..93 => Command::FeedLeave(v1::FeedLeave { topic: topic(rng), group: consumer_group(rng) }),
        93..95 => Command::FeedRetain(v1::FeedRetain { topic: topic(rng), retention: Some(random_retention(rng)) }),
        95..96 => Command::FeedTrim(v1::FeedTrim { topic: topic(rng), through: rng.below(12) }),
        96..98 => {
            let seen = rng.between(1, 12);
            let group = Bytes::from_static(if seen.is_multiple_of(2) { b"g" } else { b"h" });
            Command::StoreCollect(v1::StoreCollect {
                from: Bytes::new(),
                group,
                seen,
                before: seen,
                ..Default::default()
            })
        }
        _ => Command::StoreRaise(v1::StoreRaise { at_least: rng.below(50) }),
    }
}

fn name(rng: &mut Seeded, names: &[&'static [u8]]) -> Bytes {
    Bytes::from_static(rng.pick(names).copied().unwrap_or_default())
}

fn topic(rng: &mut Seeded) -> Bytes {
    name(rng, &[b"t", b"t\0", b"u"])
}

fn consumer_group(rng: &mut Seeded) -> Bytes {
    name(rng, &[b"one", b"two"])
}

fn random_cell(rng: &mut Seeded) -> v1::Cell {
    let column = name(rng, &[b"a", b"a\0", b"b", b"\xff"]);
    // Once in a while a timestamp that is not allowed.
    let timestamp = if rng.one_in(60) { 0 } else { rng.between(1, 15) };
    if rng.one_in(4) {
        tombstone(column, timestamp)
    } else {
        cell(column, timestamp, vec![b'v'; rng.below(4) as usize])
    }
}

fn random_group(rng: &mut Seeded, nth: u64) -> v1::GroupWrite {
    let names: [&[u8]; 3] = [b"g", b"g\0", b"h"];
    // Mostly different groups in one batch; the same one twice is refused.
    let in_group = if rng.one_in(8) { name(rng, &names) } else { name(rng, &names[nth as usize % 3..][..1]) };
    let rows = (0..rng.between(1, 3)).map(|_| {
        let cells = (0..rng.between(1, 3)).map(|_| random_cell(rng)).collect();
        row(name(rng, &[b"r", b"r\0", b"s", b"\0"]), cells)
    });
    let write = group(in_group, rows.collect());
    if rng.one_in(3) { fenced(write, name(rng, &[b"owner", b"x"]), rng.between(1, 5)) } else { write }
}

fn random_swap(rng: &mut Seeded) -> v1::CompareAndSet {
    let expected = rng.below(8);
    let mut write = random_cell(rng);
    let ahead = if rng.one_in(10) { 0 } else { rng.between(1, 4) };
    write.timestamp = expected + ahead;
    let fence = rng.one_in(4).then(|| fence(name(rng, &[b"owner", b"x"]), rng.between(1, 5)));
    let swap = compare_and_set(name(rng, &[b"g", b"h"]), name(rng, &[b"r", b"s"]), expected, write);
    v1::CompareAndSet { fence, ..swap }
}

fn random_append(rng: &mut Seeded) -> v1::Append {
    let entries = (0..rng.between(1, 3)).map(|_| Bytes::from(vec![b'e'; rng.below(9) as usize])).collect();
    v1::Append { topic: topic(rng), entries }
}

fn random_retention(rng: &mut Seeded) -> v1::FeedRetention {
    v1::FeedRetention {
        unclaimed_entries: rng.below(6),
        unclaimed_bytes: rng.below(30),
        backlog_entries: rng.below(20),
        backlog_bytes: rng.below(90),
    }
}
