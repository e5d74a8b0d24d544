//! What a dropped table has left goes, and nothing else.

use crate::client::{delete, named, put, version, write};
use crate::holding::public;
use crate::world::store::Store;
use crate::world::{TABLE, World, user};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Class, Error, Machine, Mono, Now, Outbox, Wall};
use tidings_tables::dropped::{Deleter, Input, Options, Output, Remains};
use tidings_tables::names::{Object, PartitionId, Position, TableId};
use tidings_tables::processor::{StoreReply, StoreRequest, StoreResult};
use tidings_wire::v1;

const PAGE: u32 = 4;

/// A deleter with its store, which fails now and then.
struct Work {
    deleter: Deleter,
    store: Store,
    now: u64,
    asked: u64,
    deleted: usize,
    /// What Notify has taken.
    told: Vec<(Object, Position)>,
    finished: Vec<TableId>,
}

impl Work {
    fn new(store: Store) -> Work {
        Work { deleter: deleter(), store, now: 0, asked: 0, deleted: 0, told: Vec::new(), finished: Vec::new() }
    }

    fn now(&self) -> Now {
        Now { mono: Mono(self.now), wall: Wall(self.now) }
    }

    fn dropped(&mut self, table: TableId) {
        let (now, mut out) = (self.now(), Outbox::new());
        self.deleter.handle(now, Input::Dropped { table, partitions: 3, app: Some("shop".to_owned()) }, &mut out);
        assert_eq!(out.into_iter().count(), 0);
    }

    /// Lets the deleter work until it has asked so often, or has nothing more to do.
    fn run(&mut self, most: u64) {
        let until = self.asked + most;
        while self.asked < until {
            let Some(next) = self.deleter.deadline() else { return };
            self.now = self.now.max(next.0);
            let (now, mut out) = (self.now(), Outbox::new());
            self.deleter.wake(now, &mut out);
            self.perform(out);
        }
    }

    fn perform(&mut self, out: Outbox<Output>) {
        for output in out {
            match output {
                Output::Store(request) => {
                    let result = self.ask(&request);
                    let (now, mut out) = (self.now(), Outbox::new());
                    self.deleter.handle(now, Input::Stored { result }, &mut out);
                    self.perform(out);
                }
                Output::Publish { app, publications } => {
                    assert_eq!(app, "shop");
                    self.asked += 1;
                    let done = self.asked.is_multiple_of(2);
                    if done {
                        self.told.extend(publications);
                    }
                    let (now, mut out) = (self.now(), Outbox::new());
                    self.deleter.handle(now, Input::Published { done }, &mut out);
                    self.perform(out);
                }
                Output::Deleted { rows } => self.deleted += rows,
                Output::Finished { table } => self.finished.push(table),
            }
        }
    }

    fn ask(&mut self, request: &StoreRequest) -> StoreResult {
        self.asked += 1;
        if let StoreRequest::Apply(v1::Apply { groups }) = request {
            assert!(groups.iter().all(|group| group.rows.len() <= PAGE as usize), "a step is bounded");
        }
        let unknown = || Err(Error::new("store.timeout", Class::OutcomeUnknown, "Nobody answered."));
        match self.asked % 5 {
            2 => unknown(),
            4 => self.store.perform(request).and_then(|_| unknown()),
            _ => self.store.perform(request),
        }
    }
}

fn deleter() -> Deleter {
    Deleter::new(Options { page: PAGE, pause: Duration::from_millis(20), retry: Duration::from_secs(1) })
}

fn group(table: TableId) -> Bytes {
    format!(".tables/{table}").into()
}

type Rows = BTreeMap<Bytes, Vec<(u64, Bytes)>>;

fn live(store: &Store, table: TableId) -> Rows {
    let rows = store.rows.get(&group(table)).into_iter().flatten();
    let live = rows.map(|(row, cells)| {
        let cells = cells.values().filter_map(|(at, value)| Some((*at, value.clone()?)));
        (row.clone(), cells.collect::<Vec<_>>())
    });
    live.filter(|(_, cells)| !cells.is_empty()).collect()
}

/// A world with a table of two partitions, and what another table of the same name would have.
fn world() -> (World, TableId) {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    for n in 0..20 {
        version(write(&mut world, 0, &ann, named(put(&format!("k{n:02}"), "a", 1), n + 1, 0, None)));
    }
    version(write(&mut world, 0, &ann, delete("k03")));
    for child in world.split(0, &"k10".into()).unwrap() {
        world.lease(child, 0);
    }
    world.run(500);
    let namesake = TableId(TABLE.0 + 1);
    let rows = world.store.rows[&group(TABLE)].clone();
    world.store.rows.insert(group(namesake), rows);
    (world, namesake)
}

#[test]
fn all_rows_of_a_dropped_table_go_a_page_at_a_time_and_no_others() {
    let (mut world, namesake) = world();
    let mut work = Work::new(std::mem::take(&mut world.store));
    let (left, kept) = (live(&work.store, TABLE).len(), live(&work.store, namesake));
    assert!(left > 40 && kept.len() == left, "{left}");
    work.dropped(TABLE);
    // What is said again changes nothing; whoever begins anew goes on with what there is.
    for _ in 0..3 {
        work.run(4);
        work.dropped(TABLE);
    }
    assert!(!live(&work.store, TABLE).is_empty() && work.finished.is_empty());
    work.deleter = deleter();
    work.dropped(TABLE);
    work.run(u64::MAX / 2);
    assert_eq!((work.finished.clone(), live(&work.store, TABLE).len()), (vec![TABLE], 0));
    assert!(work.deleted >= left, "those that were answered late were counted once more, or not at all");
    assert_eq!(live(&work.store, namesake), kept);
    assert_eq!(work.deleter.deadline(), None);
}

/// R3: whoever is away comes again, and finds that there is no table any more.
#[test]
fn whoever_listens_to_a_dropped_table_is_told() {
    let (mut world, _) = world();
    let mut work = Work::new(std::mem::take(&mut world.store));
    work.dropped(TABLE);
    work.run(u64::MAX / 2);
    let object = |number| Object { partition: PartitionId { table: TABLE, number }, netid: None };
    assert_eq!(work.told, [0, 1, 2].map(|number| (object(number), Position::LAST)));
    assert_eq!(work.finished, [TABLE]);
}

/// R2: an owner that has not heard that its table is gone writes nothing behind the scan.
#[test]
fn nobody_writes_behind_the_deleter() {
    let (mut world, _) = world();
    let mut work = Work::new(std::mem::take(&mut world.store));
    work.dropped(TABLE);
    work.run(u64::MAX / 2);
    world.store = std::mem::take(&mut work.store);
    let late = write(&mut world, 0, &user("ann"), put("k15", "a", 2));
    assert!(!matches!(late, Some(Ok(_))), "{late:?}");
    world.run(2_000);
    assert_eq!(live(&world.store, TABLE).len(), 0);
}

/// A look through groups as the store does it: tombstones are marked, and removed when they were marked before that.
fn look(store: &mut Store, marks: &mut BTreeMap<(Bytes, Bytes), u64>, groups: Vec<Bytes>, seen: u64, before: u64) {
    for group in groups {
        let Some(rows) = store.rows.get_mut(&group) else { continue };
        rows.retain(|row, cells| {
            cells.retain(|_, (_, value)| {
                let first = *marks.entry((group.clone(), row.clone())).or_insert(seen);
                value.is_some() || first >= before
            });
            !cells.is_empty()
        });
    }
}

/// What the store remembers of a dropped table goes as well: its group is noted until two looks, far enough apart, have been
/// through it, whoever looks.
#[test]
fn nothing_at_all_is_left_of_a_dropped_table_after_two_looks() {
    let (mut world, namesake) = world();
    let mut work = Work::new(std::mem::take(&mut world.store));
    work.dropped(TABLE);
    work.run(u64::MAX / 2);
    assert_eq!((work.finished.len(), live(&work.store, TABLE).len()), (1, 0));
    let (mut marks, keep, day) = (BTreeMap::new(), Duration::from_secs(10 * 24 * 3_600), 24 * 3_600 * 1_000u64);
    let mut counts = Vec::new();
    for days in 1..=24u64 {
        let (now, mut remains) = (days * day, Remains::default());
        let found = match work.store.perform(&Remains::ask(Bytes::new())) {
            Ok(StoreReply::Rows(rows)) => rows,
            other => panic!("{other:?}"),
        };
        assert_eq!(remains.hear(found), None);
        let before = now.saturating_sub(keep.as_millis() as u64);
        look(&mut work.store, &mut marks, remains.groups().collect(), now, before);
        if let Some(request) = remains.looked(Wall(now * 1_000), keep) {
            work.store.perform(&request).unwrap();
        }
        counts.push((remains.count(), work.store.rows[&group(TABLE)].len()));
    }
    let tombstones = counts[0].1;
    assert!(tombstones > 40 && counts[..11].iter().all(|left| *left == (1, tombstones)), "{counts:?}");
    assert!(counts[12..].iter().all(|left| *left == (0, 0)), "{counts:?}");
    // Not even the note of it.
    assert!(work.store.rows[&Bytes::from_static(b".tables/remains")].is_empty());
    assert!(!live(&work.store, namesake).is_empty());
}
