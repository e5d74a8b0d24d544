//! The directory of a table, as it lies in one file of the cell: properties, partitions, their lineage and terms (R1).
//!
//! Pure functions on the file's contents. Whoever changes it reads the file, calls one of them and writes the result back if
//! the file has not changed meanwhile (the cell's generation of contents decides); on a conflict it begins again.
//!
//! ```text
//!   create ─▶ [0 ………………………………………]          each with the highest lease it was acquired under, and its term
//!   split  ─▶ [1 ………… «m») [2 «m» …………]    parents: 0 — sealed by whoever opens a child first
//!   merge  ─▶ [3 ………………………………………]          parents: 1, 2
//! ```

use crate::acl::{Acl, Change, Right};
use crate::calls::Caller;
use crate::names::{PartitionId, TableId, Term};
pub use crate::partitioned::{PartitionBy, PartitionKind};
pub use crate::properties::{Column, Kind, MAX_SCHEMA, Properties, Schema};
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use tidings_base::LeaseNumber;
use tidings_predicate::{Functions, Key};

/// The most partitions of a table.
pub const MAX_PARTITIONS: usize = 100;
/// The most bytes of a directory that somebody has made larger. A file of the cell has 256 KiB: in what is left, terms and leases
/// become longer numbers with each acquisition. A bound lies there twice, as text of which some characters take six bytes.
pub const MAX_DIRECTORY: usize = 224 << 10;

/// One partition: the keys from `start` up to, and without, `end`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// Its number in the table.
    pub number: u32,
    /// Its first key; none = from the beginning.
    #[serde(with = "keys", default)]
    pub start: Option<Key>,
    /// The first key behind it; none = to the end.
    #[serde(with = "keys", default)]
    pub end: Option<Key>,
    /// R1: raised above its own and its ancestors' at every acquisition.
    pub term: Term,
    /// The lease it was last acquired under; 0 = never.
    pub lease: u32,
    /// The partitions that its keys were in before.
    #[serde(default)]
    pub parents: Vec<u32>,
    /// Whether it was cut off from the one before it for its size or load. What a person has cut, a person joins.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut_by_itself: bool,
}

impl Partition {
    /// Whether a key lies in it.
    pub fn contains(&self, key: &Key) -> bool {
        self.start.as_ref().is_none_or(|start| start <= key) && self.end.as_ref().is_none_or(|end| key < end)
    }
}

/// A table's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    /// The format of this file.
    pub format: u32,
    /// The table, for good.
    pub id: u64,
    /// What it is.
    pub properties: Properties,
    /// In the order of their keys, without gap or overlap.
    pub partitions: Vec<Partition>,
    /// The number of the next partition.
    pub next: u32,
    /// Who may do what; none = the level alone decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl: Option<Acl>,
}

/// What an owner that acquired a partition serves it with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquired {
    /// The partition.
    pub partition: PartitionId,
    /// Its keys, term and parents.
    pub entry: Partition,
    /// The lease it was acquired under.
    pub lease: LeaseNumber,
    /// What the table is.
    pub properties: Properties,
}

/// Says that an owner has opened a partition. Only a [`Processor`](crate::processor::Processor::opened) does: by then the
/// partition's parents are sealed and its position is theirs, so that whoever comes after it need look no further back (R1, R2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    pub(crate) number: u32,
    pub(crate) lease: LeaseNumber,
    pub(crate) term: Term,
}

impl Opened {
    /// What the processor of another node said of a partition that it has given up.
    pub fn elsewhere(number: u32, lease: LeaseNumber, term: Term) -> Opened {
        Opened { number, lease, term }
    }

    /// The lease that it was opened under.
    pub fn lease(&self) -> LeaseNumber {
        self.lease
    }

    /// The term that it was opened in.
    pub fn term(&self) -> Term {
        self.term
    }
}

impl Directory {
    const FORMAT: u32 = 1;
    /// With a list of access: a server that knows of none does not serve the table.
    const GUARDED: u32 = 2;

    /// A new table, cut at these keys (none = one partition).
    pub fn create(id: TableId, caller: &Caller, properties: Properties, cuts: Vec<Key>) -> Result<Directory, Refusal> {
        Directory::create_with(&Functions::default(), id, caller, properties, cuts)
    }

    /// The same where these functions are registered.
    pub fn create_with(
        functions: &Functions,
        id: TableId,
        caller: &Caller,
        properties: Properties,
        cuts: Vec<Key>,
    ) -> Result<Directory, Refusal> {
        let properties = Properties { app: caller.app.clone(), ..properties };
        properties.check(functions)?;
        let mut cuts = cuts.into_iter().map(|cut| properties.bound(cut)).collect::<Result<Vec<Key>, Refusal>>()?;
        cuts.sort();
        cuts.dedup();
        if cuts.len() >= MAX_PARTITIONS {
            return Err(Refusal::Invalid(format!("A table has at most {MAX_PARTITIONS} partitions.")));
        }
        for cut in &cuts {
            crate::record::check_bound(cut)?;
        }
        let starts = std::iter::once(None).chain(cuts.iter().cloned().map(Some));
        let ends = cuts.iter().cloned().map(Some).chain([None]);
        let partitions: Vec<Partition> = (0..)
            .zip(starts.zip(ends))
            .map(|(number, (start, end))| Partition {
                number,
                start,
                end,
                term: Term::default(),
                lease: 0,
                parents: Vec::new(),
                cut_by_itself: false,
            })
            .collect();
        let next = partitions.len() as u32;
        let created = Directory { format: Self::FORMAT, id: id.0, properties, partitions, next, acl: None };
        created.fits(0)?;
        Ok(created)
    }

    /// Refuses what may leave no room for acquisitions. What is so large already may become smaller.
    fn fits(&self, before: usize) -> Result<(), Refusal> {
        let size = self.encode().len();
        if size > MAX_DIRECTORY && size > before { Err(Refusal::DirectoryTooLarge) } else { Ok(()) }
    }

    /// Changes it, if it fits afterwards.
    fn becomes(&mut self, changed: Directory) -> Result<(), Refusal> {
        changed.fits(self.encode().len())?;
        *self = changed;
        Ok(())
    }

    /// Other properties, if the caller may give them. The application and the partition column stay.
    pub fn alter(&mut self, caller: &Caller, properties: Properties) -> Result<(), Refusal> {
        self.alter_with(&Functions::default(), caller, properties)
    }

    /// The same where these functions are registered.
    pub fn alter_with(
        &mut self,
        functions: &Functions,
        caller: &Caller,
        properties: Properties,
    ) -> Result<(), Refusal> {
        self.may(caller, Right::Administer)?;
        let partition_by = self.properties.partition_by.clone();
        // Who says nothing of it leaves it as it is.
        if properties.partition_by.is_some() && properties.partition_by != partition_by {
            return Err(Refusal::PartitionColumn(
                "The column that a table is partitioned by cannot be changed: make another table, and export and import the \
                 records."
                    .to_owned(),
            ));
        }
        let properties = Properties { app: self.properties.app.clone(), partition_by, ..properties };
        properties.check(functions)?;
        self.becomes(Directory { properties, ..self.clone() })
    }

    /// Changes the list of access, if the caller may. The first change makes a list; with `listed` = false there is none
    /// afterwards.
    pub fn change_acl(&mut self, caller: &Caller, listed: Option<bool>, changes: &[Change]) -> Result<(), Refusal> {
        self.may(caller, Right::Administer)?;
        let mut acl = self.acl.clone();
        if listed == Some(true) || !changes.is_empty() {
            let acl = acl.get_or_insert_default();
            changes.iter().try_for_each(|change| acl.change(change))?;
        }
        let acl = acl.filter(|_| listed != Some(false));
        let format = if acl.is_some() { Self::GUARDED } else { Self::FORMAT };
        self.becomes(Directory { acl, format, ..self.clone() })
    }

    /// Refuses whoever may not do something: first by the table's level, then by its list.
    pub fn may(&self, caller: &Caller, right: Right) -> Result<(), Refusal> {
        let (owns, foreign) = (caller.speaks_for(&self.properties.app), caller.app != self.properties.app);
        if right == Right::Administer && owns {
            return Ok(());
        }
        if caller.access < self.properties.access {
            return Err(if right == Right::Administer { Refusal::NotYours } else { Refusal::Access });
        }
        if caller.is_nobody() && right == Right::Administer {
            return Err(Refusal::NotYours);
        }
        match &self.acl {
            // Everybody may look at what is public; who writes is of the table's application, or named by a list.
            None if right == Right::Write && caller.is_nobody() => Err(Refusal::Access),
            None if right == Right::Write && foreign && !caller.is_operator() => Err(Refusal::Foreign),
            None if right == Right::Administer => Err(Refusal::NotYours),
            None => Ok(()),
            Some(_) if owns || caller.is_operator() => Ok(()),
            Some(acl) if acl.allows(&caller.principal, right) => Ok(()),
            Some(_) => Err(Refusal::NotAllowed),
        }
    }

    /// Whether the caller may drop the table: its application made it.
    pub fn may_drop(&self, caller: &Caller) -> Result<(), Refusal> {
        match caller.speaks_for(&self.properties.app) {
            true => Ok(()),
            false => Err(Refusal::NotYours),
        }
    }

    /// R1: whoever was leased a partition takes it over, at a term of its own. Refused if it was acquired under a higher
    /// lease already; acquired again under the same one (after a clean move, or a restart) it gets a higher term.
    pub fn acquire(&mut self, number: u32, lease: LeaseNumber) -> Result<Acquired, Refusal> {
        let Some(at) = self.partitions.iter().position(|entry| entry.number == number) else {
            return Err(Refusal::Moved);
        };
        let entry = &mut self.partitions[at];
        if entry.lease > lease.get() {
            return Err(Refusal::Moved);
        }
        entry.lease = lease.get();
        entry.term = entry.term.next().ok_or_else(used_up)?;
        let entry = entry.clone();
        Ok(Acquired { partition: self.partition_id(number), entry, lease, properties: self.properties.clone() })
    }

    /// Cuts a partition before `at`, on behalf of its owner. The children's terms are above the parent's.
    pub fn split(&mut self, parent: Opened, at: &Key) -> Result<[u32; 2], Refusal> {
        crate::record::check_bound(at)?;
        let place = self.owned(parent)?;
        let parent = &self.partitions[place];
        if !parent.contains(at) || parent.start.as_ref() == Some(at) {
            return Err(Refusal::Invalid("A partition is cut between two of its keys.".to_owned()));
        }
        if self.partitions.len() >= MAX_PARTITIONS {
            return Err(Refusal::Invalid(format!("A table has at most {MAX_PARTITIONS} partitions.")));
        }
        let child = |number, start: Option<Key>, end: Option<Key>, cut_by_itself| Partition {
            number,
            start,
            end,
            term: parent.term,
            lease: 0,
            parents: vec![parent.number],
            cut_by_itself,
        };
        let numbers = [self.next, self.next + 1];
        let left = child(numbers[0], parent.start.clone(), Some(at.clone()), parent.cut_by_itself);
        let right = child(numbers[1], Some(at.clone()), parent.end.clone(), false);
        let mut cut = self.clone();
        cut.partitions.splice(place..=place, [left, right]);
        cut.next += 2;
        self.becomes(cut)?;
        Ok(numbers)
    }

    /// The same for its size or load: when it has been quiet for long the cut may be undone.
    pub fn split_by_itself(&mut self, parent: Opened, at: &Key) -> Result<[u32; 2], Refusal> {
        let children = self.split(parent, at)?;
        if let Some(right) = self.partitions.iter_mut().find(|entry| entry.number == children[1]) {
            right.cut_by_itself = true;
        }
        Ok(children)
    }

    /// The partition behind another, if nobody but the table itself has cut them apart.
    pub fn joins_by_itself(&self, number: u32) -> Option<u32> {
        let at = self.partitions.iter().position(|entry| entry.number == number)?;
        self.partitions.get(at + 1).filter(|next| next.cut_by_itself).map(|next| next.number)
    }

    /// Joins a partition with the one behind it, once the owners of both have given them up: nobody answers for what is joined
    /// under a lease of before.
    pub fn merge(&mut self, parents: [Opened; 2]) -> Result<u32, Refusal> {
        let [left, right] = parents.map(|parent| self.owned(parent));
        let (left, right) = (left?, right?);
        if right != left + 1 {
            return Err(Refusal::Invalid("Only neighbours can be joined.".to_owned()));
        }
        let joined = Partition {
            number: self.next,
            start: self.partitions[left].start.clone(),
            end: self.partitions[right].end.clone(),
            term: self.partitions[left].term.max(self.partitions[right].term),
            lease: 0,
            parents: vec![self.partitions[left].number, self.partitions[right].number],
            cut_by_itself: self.partitions[left].cut_by_itself,
        };
        self.partitions.splice(left..=right, [joined]);
        self.next += 1;
        Ok(self.next - 1)
    }

    fn owned(&self, Opened { number, lease, term }: Opened) -> Result<usize, Refusal> {
        let owned = |entry: &Partition| (entry.number, entry.lease, entry.term) == (number, lease.get(), term);
        self.partitions.iter().position(owned).ok_or(Refusal::Moved)
    }

    /// The table.
    pub fn table(&self) -> TableId {
        TableId(self.id)
    }

    /// A partition's name.
    pub fn partition_id(&self, number: u32) -> PartitionId {
        PartitionId { table: self.table(), number }
    }

    /// Where a key lies.
    pub fn find(&self, key: &Key) -> Option<&Partition> {
        let behind = self.partitions.partition_point(|entry| entry.start.as_ref().is_none_or(|start| start <= key));
        self.partitions.get(behind.checked_sub(1)?)
    }

    /// The partitions that have keys from `from` up to, and without, `to`, in order.
    pub fn within<'a>(&'a self, from: Option<&'a Key>, to: Option<&'a Key>) -> impl Iterator<Item = &'a Partition> {
        self.partitions.iter().filter(move |entry| {
            let begins = to.is_none_or(|to| entry.start.as_ref().is_none_or(|start| start < to));
            let ends = from.is_none_or(|from| entry.end.as_ref().is_none_or(|end| from < end));
            begins && ends
        })
    }

    /// The file's contents.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a file's contents.
    pub fn decode(bytes: &[u8]) -> Result<Directory, String> {
        let directory: Directory = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if ![Self::FORMAT, Self::GUARDED].contains(&directory.format) {
            return Err(format!("the directory of a table has the format {}", directory.format));
        }
        let joined = directory.partitions.windows(2).all(|two| two[0].end.is_some() && two[0].end == two[1].start);
        let (first, last) = (directory.partitions.first(), directory.partitions.last());
        let whole = first.is_some_and(|first| first.start.is_none()) && last.is_some_and(|last| last.end.is_none());
        match joined && whole {
            true => Ok(directory),
            false => Err("the partitions of a table leave a gap or overlap".to_owned()),
        }
    }
}

fn used_up() -> Refusal {
    Refusal::Store("The terms of this partition are used up: make the table anew.".to_owned())
}

/// Keys in JSON: `s` and the text, `b` and hexadecimal digits, or `w` and those of a key that is within a value.
mod keys {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tidings_predicate::Key;

    fn hex(kind: &str, bytes: &[u8]) -> String {
        bytes.iter().fold(kind.to_owned(), |text, byte| text + &format!("{byte:02x}"))
    }

    pub fn serialize<S: Serializer>(key: &Option<Key>, serializer: S) -> Result<S::Ok, S::Error> {
        let text = key.as_ref().map(|key| match key {
            Key::String(text) => format!("s{text}"),
            Key::Bytes(bytes) => hex("b", bytes),
            Key::Within(_) => hex("w", &crate::rows::key(key)),
        });
        text.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Key>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        let bad = || serde::de::Error::custom("a key in a directory is neither text nor bytes");
        if let Some(text) = text.strip_prefix('s') {
            return Ok(Some(Key::String(text.to_owned())));
        }
        let (kind, digits) = text.split_at_checked(1).ok_or_else(bad)?;
        let pair = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        let bytes = (0..digits.len()).step_by(2).map(pair).collect::<Option<Vec<u8>>>().ok_or_else(bad)?;
        match kind {
            "b" => Ok(Some(Key::Bytes(bytes))),
            "w" => crate::rows::read_key(&bytes).map(Some).ok_or_else(bad),
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::Access;
    use tidings_predicate::Packed;

    fn caller(app: &str) -> Caller {
        let (access, principal, app) = (Access::App, format!("app:{app}/k"), app.to_owned());
        Caller { access, app, user: String::new(), principal, claims: Packed::empty(), expires: None }
    }

    fn table(cuts: &[&str]) -> Directory {
        let cuts = cuts.iter().map(|cut| Key::from(*cut)).collect();
        Directory::create(TableId(9), &caller("shop"), Properties::default(), cuts).unwrap()
    }

    fn lease(n: u32) -> LeaseNumber {
        LeaseNumber::new(n).unwrap()
    }

    #[test]
    fn every_acquisition_raises_the_term_and_older_leases_are_refused() {
        let mut table = table(&[]);
        let first = table.acquire(0, lease(5)).unwrap();
        let second = table.acquire(0, lease(5)).unwrap();
        assert!(second.entry.term > first.entry.term);
        assert!(table.acquire(0, lease(7)).unwrap().entry.term > second.entry.term);
        assert_eq!(table.acquire(0, lease(6)), Err(Refusal::Moved));
        assert_eq!(table.acquire(3, lease(9)), Err(Refusal::Moved));
    }

    #[test]
    fn children_are_above_their_parents_and_know_them() {
        let mut table = table(&[]);
        let parent = table.acquire(0, lease(1)).unwrap();
        let (term, at) = (parent.entry.term, Key::from("m"));
        let opened = |number, n, term| Opened { number, lease: lease(n), term };
        assert_eq!(table.split(opened(0, 2, term), &at), Err(Refusal::Moved));
        let [left, right] = table.split(opened(0, 1, term), &at).unwrap();
        assert_eq!(table.acquire(0, lease(9)), Err(Refusal::Moved));
        assert_eq!(table.find(&Key::from("a")).map(|entry| entry.number), Some(left));
        assert_eq!(table.find(&at).map(|entry| entry.number), Some(right));
        let owned = [left, right].map(|number| table.acquire(number, lease(3)).unwrap());
        assert!(owned.iter().all(|child| child.entry.term > term && child.entry.parents == [0]));
        let highest = owned[0].entry.term.max(owned[1].entry.term);
        let both = [opened(left, 3, owned[0].entry.term), opened(right, 3, owned[1].entry.term)];
        let joined = table.merge(both).unwrap();
        let joined = table.acquire(joined, lease(1)).unwrap();
        assert!(joined.entry.term > highest && joined.entry.parents == [left, right]);
        assert_eq!((joined.entry.start, joined.entry.end), (None, None));
    }

    #[test]
    fn only_what_was_cut_by_itself_is_joined_by_itself() {
        let mut table = table(&["k"]);
        let opened = |table: &mut Directory, number| {
            let acquired = table.acquire(number, lease(9)).unwrap();
            Opened { number, lease: lease(9), term: acquired.entry.term }
        };
        let parent = opened(&mut table, 0);
        let [a, c] = table.split_by_itself(parent, &Key::from("c")).unwrap();
        let parent = opened(&mut table, c);
        let [c, d] = table.split(parent, &Key::from("d")).unwrap();
        assert_eq!(table.joins_by_itself(a), Some(c), "what is cut again keeps the bound before it");
        assert_eq!([c, d, 1].map(|number| table.joins_by_itself(number)), [None; 3]);
        assert_eq!(Directory::decode(&table.encode()), Ok(table.clone()));
        let both = [opened(&mut table, c), opened(&mut table, d)];
        let joined = table.merge(both).unwrap();
        assert_eq!(table.joins_by_itself(a), Some(joined));
    }

    #[test]
    fn files_come_back_and_gaps_are_refused() {
        let mut table = table(&["b", "k"]);
        table.partitions[1].start = Some(Key::Bytes(vec![0, 255]));
        table.partitions[0].end = Some(Key::Bytes(vec![0, 255]));
        assert_eq!(Directory::decode(&table.encode()), Ok(table.clone()));
        assert_eq!(table.within(Some(&Key::from("a")), Some(&Key::from("c"))).count(), 1);
        table.partitions.remove(1);
        assert!(Directory::decode(&table.encode()).is_err());
    }

    /// A file of the cell has 256 KiB, whatever leases and terms become.
    #[test]
    fn what_has_no_room_for_acquisitions_is_refused_by_name() {
        let large = Err(Refusal::DirectoryTooLarge);
        let key = |n: usize| Key::String(format!("{n:03}{}", "\u{1}".repeat(1_010)));
        let cuts = |count: usize| (0..count).map(key).collect::<Vec<Key>>();
        let make = |cuts| Directory::create(TableId(9), &caller("shop"), Properties::default(), cuts);
        assert_eq!(make(cuts(20)).map(drop), large);
        let mut table = make(cuts(18)).unwrap();
        let before = table.clone();
        let opened = |table: &mut Directory, number| {
            let acquired = table.acquire(number, lease(9)).unwrap();
            Opened { number, lease: lease(9), term: acquired.entry.term }
        };
        let parent = opened(&mut table, 18);
        assert_eq!(table.split(parent, &key(30)).map(drop), large);
        let long = |kibibytes: usize| {
            let may_write = Some(format!("'{}' != ''", "x".repeat(kibibytes << 10)));
            Properties { may_write, ..Properties::default() }
        };
        assert_eq!(table.alter(&caller("shop"), long(20)), large);
        let change = |n: usize| Change {
            who: format!("user:shop/{n:03}{}", "x".repeat(240)),
            allow: Right::ALL.into(),
            ..Change::default()
        };
        let changes: Vec<Change> = (0..128).map(change).collect();
        assert_eq!(table.change_acl(&caller("shop"), None, &changes), large);
        assert_eq!((&table.properties, &table.acl, table.next), (&before.properties, &before.acl, before.next));
        // With the longest numbers it is a file still, and what is too large already may become smaller.
        for part in &mut table.partitions {
            (part.lease, part.term) = (u32::MAX, Term::new((1 << 23) - 1).unwrap());
        }
        assert!(table.encode().len() < 256 << 10, "{}", table.encode().len());
        table.properties.may_write = long(40).may_write;
        assert_eq!(table.alter(&caller("shop"), long(30)), Ok(()));
        assert!(table.encode().len() > MAX_DIRECTORY);
        assert_eq!(table.alter(&caller("shop"), long(31)), large);
        assert_eq!(table.alter(&caller("shop"), Properties::default()), Ok(()));
    }

    #[test]
    fn names_of_declared_columns_are_bounded() {
        let named = |length: usize| {
            let columns = [("c".repeat(length), Column { holds: [Kind::Int].into(), required: false })].into();
            let schema = Some(Schema { columns, closed: false });
            let by = PartitionBy { column: "c".repeat(length), holds: PartitionKind::Int };
            let declared = Properties { schema, ..Properties::default() };
            let placed = Properties { partition_by: Some(by), ..Properties::default() };
            [declared, placed].map(|properties| properties.check(&Functions::default()))
        };
        assert_eq!(named(256), [Ok(()), Ok(())]);
        assert!(named(257).iter().all(|refused| matches!(refused, Err(Refusal::BadColumns(_)))));
    }

    #[test]
    fn bounds_within_values_come_back_and_the_partition_column_stays() {
        let by = PartitionBy { column: "city".to_owned(), holds: PartitionKind::String };
        let properties = Properties { partition_by: Some(by), ..Properties::default() };
        let cuts = vec![Key::from("Rome"), Key::within("Rome", "m")];
        let mut table = Directory::create(TableId(9), &caller("shop"), properties.clone(), cuts).unwrap();
        assert_eq!(table.partitions[1].start, Some(Key::first_within("Rome")));
        assert_eq!(Directory::decode(&table.encode()), Ok(table.clone()));
        assert_eq!(table.find(&Key::within("Rome", "z")).map(|entry| entry.number), Some(2));
        assert_eq!(table.find(&Key::within("Paris", "z")).map(|entry| entry.number), Some(0));
        // Whoever says nothing of the column leaves it; nobody changes it.
        assert_eq!(table.alter(&caller("shop"), Properties::default()), Ok(()));
        assert_eq!(table.properties.partition_by, properties.partition_by);
        let by = PartitionBy { column: "n".to_owned(), holds: PartitionKind::String };
        let other = Properties { partition_by: Some(by), ..Properties::default() };
        assert!(matches!(table.alter(&caller("shop"), other), Err(Refusal::PartitionColumn(_))));
    }

    #[test]
    fn only_the_application_that_made_a_table_may_alter_it() {
        let mut table = table(&[]);
        let public = Properties { access: Access::Public, ..Properties::default() };
        assert_eq!(table.alter(&caller("other"), public.clone()), Err(Refusal::NotYours));
        assert_eq!(table.alter(&caller("shop"), public), Ok(()));
        assert_eq!((table.properties.access, table.properties.app.as_str()), (Access::Public, "shop"));
        // A rule over columns themselves would deny every write.
        for rule in ["1 +", "price < 3", "old.n < nwe.n"] {
            let wrong = Properties { may_write: Some(rule.to_owned()), ..Properties::default() };
            assert!(matches!(table.alter(&caller("shop"), wrong), Err(Refusal::Query(_))), "{rule}");
        }
        let rule = "old == null || new.n > old.n && writer == 'user:shop/' + user.sub && key != ''";
        let right = Properties { may_write: Some(rule.to_owned()), ..Properties::default() };
        assert_eq!(table.alter(&caller("shop"), right), Ok(()));
    }

    /// Level first, then the list; the application and operators are not shut out.
    #[test]
    fn lists_narrow_what_levels_open() {
        let user = |app: &str, name: &str| {
            let access = if app == "shop" { Access::User } else { Access::Public };
            Caller { access, principal: format!("user:{app}/{name}"), user: name.to_owned(), ..caller(app) }
        };
        let (ann, bob, guest) = (user("shop", "ann"), user("shop", "bob"), user("blog", "ann"));
        let operator = Caller { access: Access::User, principal: "operator".to_owned(), ..caller("shop") };
        let mut table = table(&[]);
        table.properties.access = Access::App;
        let may = |table: &Directory, who: &Caller| Right::ALL.map(|right| table.may(who, right).err());
        let (access, yours, allowed) = (Some(Refusal::Access), Some(Refusal::NotYours), Some(Refusal::NotAllowed));
        assert_eq!(may(&table, &ann), [None, None, yours.clone()]);
        assert_eq!(may(&table, &guest), [access.clone(), access.clone(), yours.clone()]);
        assert_eq!(table.change_acl(&ann, Some(true), &[]), Err(Refusal::NotYours));

        let change = |who: &str, allow: &[Right]| Change {
            who: who.to_owned(),
            allow: allow.iter().copied().collect(),
            ..Change::default()
        };
        // Without a word of anybody: nobody.
        table.change_acl(&caller("shop"), Some(true), &[]).unwrap();
        assert_eq!(may(&table, &ann), [allowed.clone(), allowed.clone(), allowed.clone()]);
        let changes =
            [change("user:shop/ann", &[Right::Read, Right::Administer]), change("user:blog/*", &[Right::Read])];
        table.change_acl(&caller("shop"), None, &changes).unwrap();
        assert_eq!(Directory::decode(&table.encode()), Ok(table.clone()));
        assert_eq!(may(&table, &ann), [None, allowed.clone(), None]);
        assert_eq!(may(&table, &bob), [allowed.clone(), allowed.clone(), allowed.clone()]);
        assert_eq!(may(&table, &guest), [access.clone(), access, yours], "the level first");
        for owner in [&caller("shop"), &operator] {
            assert_eq!(may(&table, owner), [None, None, None]);
        }
        // Who shows nothing reads what is public; writing takes a word, and administering is not to be had.
        let nobody = Caller { principal: crate::acl::NOBODY.to_owned(), ..caller("shop") };
        let nobody = Caller { access: Access::Public, ..nobody };
        assert_eq!(may(&table, &nobody)[0], Some(Refusal::Access), "the level first");
        let mut open = Directory { acl: None, ..table.clone() };
        open.properties.access = Access::Public;
        assert_eq!(may(&open, &nobody), [None, Some(Refusal::Access), Some(Refusal::NotYours)]);
        // Nor does whoever is of another application write without a word of it, whatever it is known as there.
        for foreign in [&guest, &caller("blog"), &caller("")] {
            let foreign = Caller { access: Access::Public, ..foreign.clone() };
            assert_eq!(may(&open, &foreign), [None, Some(Refusal::Foreign), Some(Refusal::NotYours)]);
        }
        for known in [&ann, &caller("shop"), &operator, &Caller { app: "blog".to_owned(), ..operator.clone() }] {
            assert_eq!(open.may(known, Right::Write), Ok(()));
        }
        let mut listed = open.clone();
        listed.change_acl(&caller("shop"), None, &[change("user:blog/*", &[Right::Write])]).unwrap();
        assert_eq!(listed.may(&guest, Right::Write), Ok(()));
        assert_eq!(listed.may(&guest, Right::Read), Err(Refusal::NotAllowed));
        assert_eq!(listed.may(&caller("blog"), Right::Write), Err(Refusal::NotAllowed), "a user is no application");
        open.change_acl(&caller("shop"), None, &[change("*", &Right::ALL)]).unwrap();
        assert_eq!(may(&open, &nobody)[0], Some(Refusal::NotAllowed), "whoever is known is not nobody");
        open.change_acl(&caller("shop"), None, &[change("nobody", &Right::ALL)]).unwrap();
        assert_eq!(may(&open, &nobody), [None, None, Some(Refusal::NotYours)]);
        assert!(!nobody.speaks_for("shop") && open.may_drop(&nobody).is_err());
        // Who administers does not drop.
        assert_eq!(table.may_drop(&ann), Err(Refusal::NotYours));
        table.change_acl(&ann, None, &[change("user:shop/bob", &[Right::Write])]).unwrap();
        assert_eq!(may(&table, &bob), [allowed.clone(), None, allowed]);
        table.change_acl(&ann, Some(false), &[]).unwrap();
        assert_eq!((may(&table, &bob)[0].clone(), table.format), (None, Directory::FORMAT));
    }
}
