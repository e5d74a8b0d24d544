//! Tables that one frame does not hold.

use super::super::lookups::PART;
use super::*;
use crate::lookup::Lookup;
use prost::Message as _;
use tidings_base::LeaseNumber;

/// Ranges of the table, and owners, with long names.
const RANGES: u64 = 128_000;
const OWNERS: u32 = 2_000;

fn start(n: u64) -> KeyHash {
    KeyHash((u64::MAX / RANGES + 1) * n)
}

/// Everything up to this is committed.
const PUBLISHED: u64 = 1_000_000;

fn large() -> pool::Pool {
    let mut pool = pool::Pool::create(Mono(1), "n".into(), v1::PlacementMeta { instance: 9, ..Default::default() });
    for index in 1..=OWNERS {
        let record = v1::TableOwner {
            index,
            id: format!("owner-{index}"),
            address: format!("host-{index}.pool.example:7400"),
            ..Default::default()
        };
        pool.members.insert(index, pool::Member::recorded(record));
    }
    for n in 0..RANGES {
        assert!(pool.table.cut(start(n)));
    }
    for (n, start) in pool.table.starts().into_iter().enumerate() {
        change(&mut pool, start, 1 + n as u64);
    }
    pool.commits.numbers_from(1, PUBLISHED + 1);
    pool.record(&pool.meta.clone());
    pool
}

fn change(pool: &mut pool::Pool, start: KeyHash, lsn: u64) {
    let owner = 1 + (lsn % u64::from(OWNERS)) as u32;
    let lease = LeaseNumber::new(lsn as u32).unwrap();
    let range = *pool.table.get(start).unwrap();
    pool.table.put(start, table::Range { owner, lease, changed: lsn, lost: lsn, ..range });
}

/// A lookup and what it wants.
struct Asking {
    lookup: Lookup,
    wants: Outbox<lookup::Output>,
    now: Now,
}

impl Asking {
    fn new() -> Asking {
        let lookup = Lookup::new(lookup::Options { namespace: "n".into(), seed: 1 });
        let mut asking = Asking { lookup, wants: Outbox::new(), now: Now { mono: Mono(2), wall: Wall(0) } };
        asking.lookup.handle(asking.now, lookup::Input::Start, &mut asking.wants);
        asking
    }

    /// Asks once: where the rest begins, and what was lost.
    fn on(&mut self, pool: &mut pool::Pool) -> (u64, Vec<KeyRange>) {
        let sent = self.wants.drain().find_map(|output| match output {
            lookup::Output::Send { ticket, poll, .. } => Some((ticket, poll)),
            _ => None,
        });
        let (ticket, poll) = sent.expect("it asks");
        let mut out = Outbox::new();
        pool.look(1, OpId(1), &poll, &mut out);
        let Some(Output::Answer { message: Message::LookupAnswer(answer), .. }) = out.drain().next() else {
            panic!("no answer")
        };
        assert!(answer.encoded_len() < PART + 1_024, "{}", answer.encoded_len());
        let next = answer.next;
        let (mut heard, mut lost) = (Outbox::new(), Vec::new());
        self.lookup.handle(self.now, lookup::Input::Answered { ticket, result: Ok(answer) }, &mut heard);
        if next == 0 {
            self.now.mono = self.now.mono + Duration::from_secs(1);
            self.lookup.wake(self.now, &mut heard);
        }
        for output in heard {
            match output {
                lookup::Output::Lost(ranges) => lost.extend(ranges),
                output => self.wants.put(output),
            }
        }
        (next, lost)
    }
}

#[test]
fn a_table_that_no_frame_holds_comes_in_parts() {
    let mut pool = large();
    let mut asking = Asking::new();
    let (border, lost) = asking.on(&mut pool);
    assert_eq!((asking.lookup.table().rows.len(), lost), (0, Vec::new()), "a part of a table is none");
    // Meanwhile a range that has been told changes, one that has not, and two become one across the border.
    change(&mut pool, start(0), PUBLISHED + 1);
    change(&mut pool, start(RANGES - 1), PUBLISHED + 2);
    let (left, range) = pool.table.find(KeyHash(border - 1)).map(|(start, range)| (start, *range)).unwrap();
    let right = *pool.table.get(KeyHash(border)).unwrap();
    pool.table.put(KeyHash(border), table::Range { last: right.last, ..range });
    pool.table.join(KeyHash(border));
    assert_eq!(pool.table.get(left).unwrap().last, right.last);
    pool.commits.numbers_from(1, PUBLISHED + 3);
    let mut parts = 1;
    while asking.on(&mut pool).0 != 0 {
        parts += 1;
    }
    assert!((20..60).contains(&parts), "{parts}");
    let table = asking.lookup.table();
    let whole = table.rows.iter().map(|(start, row)| KeyRange::new(*start, row.last).len()).sum::<u128>();
    assert_eq!((whole, table.owners.len()), (KeyRange::FULL.len(), OWNERS as usize));
    assert_eq!((asking.lookup.lsn(), table.find(start(0)).unwrap().1.get()), (PUBLISHED, 1));
    // What changed in the part that had come is told next; what came changed is no news.
    let (_, lost) = asking.on(&mut pool);
    let first = pool.table.get(start(0)).unwrap().last;
    assert_eq!((asking.lookup.lsn(), lost), (PUBLISHED + 2, vec![KeyRange::new(start(0), first)]));
    // All of it changes while the lookup is away: in parts again, with every loss told once.
    for (n, start) in pool.table.starts().into_iter().enumerate() {
        change(&mut pool, start, PUBLISHED + 3 + n as u64);
    }
    pool.commits.numbers_from(1, 2 * PUBLISHED);
    let mut lost = Vec::new();
    while lost.is_empty() {
        lost = asking.on(&mut pool).1;
    }
    assert_eq!((lost, asking.lookup.lsn()), (vec![KeyRange::FULL], 2 * PUBLISHED - 1));
    for (start, range) in pool.table.iter() {
        assert_eq!(asking.lookup.table().find(start).unwrap().1, range.lease);
    }
}

#[test]
fn addresses_that_no_frame_holds_come_in_parts() {
    let mut pool = large();
    let mut asking = Asking::new();
    while asking.on(&mut pool).0 != 0 {}
    for index in 1..=OWNERS {
        let told = pool.members[&index].told.clone().unwrap();
        let address = format!("elsewhere-{index}.pool.example:7400");
        let record = v1::TableOwner { address, changed_lsn: PUBLISHED + u64::from(index), ..told };
        pool.knows_address(&record);
        pool.members.insert(index, pool::Member::recorded(record));
    }
    pool.commits.numbers_from(1, 2 * PUBLISHED);
    let mut lost = Vec::new();
    loop {
        let (next, more) = asking.on(&mut pool);
        lost.extend(more);
        if next == 0 {
            break;
        }
    }
    assert_eq!((lost, asking.lookup.lsn()), (Vec::new(), 2 * PUBLISHED - 1));
    let owners = &asking.lookup.table().owners;
    assert_eq!(owners.values().filter(|owner| owner.address.starts_with("elsewhere-")).count(), OWNERS as usize);
}

#[test]
fn operators_get_large_tables_and_lists_in_parts() {
    let mut world = World::new();
    world.managers[0].pools.insert("large".into(), large());
    let (mut from, mut ranges) = (0, 0);
    loop {
        let get = v1::TableGet { namespace: "large".into(), from };
        let Ok(Message::TableReply(part)) = world.operate(Message::TableGet(get)) else { panic!("not a table") };
        assert!(part.encoded_len() < PART + 1_024);
        assert!(part.ranges.iter().all(|range| part.owners.iter().any(|owner| owner.index == range.owner)));
        (from, ranges) = (part.next, ranges + part.ranges.len());
        if from == 0 {
            break;
        }
    }
    assert_eq!(ranges, large().table.len());
    let (mut from, mut owners) = (0, 0);
    loop {
        let list = v1::OwnerList { namespace: "large".into(), from };
        let Ok(Message::OwnerListReply(part)) = world.operate(Message::OwnerList(list)) else { panic!("not a list") };
        (from, owners) = (part.next, owners + part.owners.len());
        if from == 0 {
            break;
        }
    }
    assert_eq!(owners, OWNERS as usize);
}
