//! How state lies in the store: groups, row keys, columns (F3), and the requests that machines make of it.
//!
//! ```text
//!   registrar  incarnation · hash · app · generation · user · uuid
//!              created = source@seqno    session = nonce@seqno    presence = channel@seqno     last-seqno = wall@seqno
//!              reg-{object}@seqno   log-{object}@version   told-{object} = version@seqno   unk-{object}@seqno
//!              pending-{object}@seqno   after-loss@seqno   ended = count@seqno
//!   matcher    incarnation · hash · app · generation · object            version = source@version    pending@version
//!                                                                        behind = ignored version@version
//!              … · bucket                                                reg-{client} = source@seqno
//!   scratch    incarnation · hash(salt, object) · app · generation · object      entry = publication@version
//! ```
//! Each write is blind and to one row; nothing is ever compared and set.

use crate::names::{ClientKey, ObjectKey};
use bytes::Bytes;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use tidings_base::{Error, KeyHash, KeyRange};
use tidings_wire::v1;

/// The registrars' rows. No application can have a name that begins with a dot, so none can reach them.
pub const REGISTRAR: &[u8] = b".notify/registrar";
/// The matchers' rows.
pub const MATCHER: &[u8] = b".notify/matcher";
/// The bridges' rows (F11).
pub const SCRATCH: &[u8] = b".notify/scratch";
/// All of them. F10: tombstones in them live for ten days (`Sweep` of the store): after that a late write would be new again, and
/// an unregistered client have a copy at its matcher, a collected id its row.
pub const GROUPS: [&[u8]; 3] = [SCRATCH, MATCHER, REGISTRAR];

pub(crate) const CREATED: &[u8] = b"created";
/// F3: the client was known before something was lost: what it registers is unknown to it, whatever has come since.
pub(crate) const AFTER_LOSS: &[u8] = b"after-loss";
pub(crate) const SESSION: &[u8] = b"session";
pub(crate) const PRESENCE: &[u8] = b"presence";
pub(crate) const LAST_SEQNO: &[u8] = b"last-seqno";
/// How often a registration was ended in this row: what is left of them stays for ten days.
pub(crate) const ENDED: &[u8] = b"ended";
pub(crate) const REG: &[u8] = b"reg-";
pub(crate) const LOG: &[u8] = b"log-";
/// What was known when a registration was made, numbered as it is: in the log it could be hidden by the ack of an earlier one.
pub(crate) const TOLD: &[u8] = b"told-";
pub(crate) const UNK: &[u8] = b"unk-";
pub(crate) const PENDING_OF: &[u8] = b"pending-";
pub(crate) const VERSION: &[u8] = b"version";
pub(crate) const PENDING: &[u8] = b"pending";
pub(crate) const BEHIND: &[u8] = b"behind";
pub(crate) const ENTRY: &[u8] = b"entry";

/// Rows over which the registrations of one object are spread: a row of a hot object with 10⁶ of them is about 1 MiB.
pub(crate) const BUCKETS: u8 = 64;

/// What state is bound to (F3): kept in the cell, raised on any detected loss, and per application by `reset`.
///
/// A driver reads it through the cell's consistent cache, after a lease was granted and before it says `Gained`: no
/// two owners of a key may follow each other with a realm that goes back. When it changes under open connections of
/// clients, their nodes close them, spread over a while: whoever still has its memory of a client tells it, but nothing
/// that is stored says any more who is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Realm {
    /// Grows with every detected loss of stored state.
    pub incarnation: u64,
    /// Generations of applications; absent = 0.
    pub generations: BTreeMap<String, u32>,
}

impl Realm {
    /// An application's generation.
    pub fn generation(&self, app: &str) -> u32 {
        self.generations.get(app).copied().unwrap_or(0)
    }

    /// Whether a key is of its application as it is now. Rows of an earlier generation lie among the others until they are
    /// deleted: whoever looks through rows passes them over.
    pub(crate) fn has(&self, app: &str, generation: u32) -> bool {
        self.generation(app) == generation
    }

    /// The realm of an application's messages.
    pub(crate) fn message(&self, app: &str) -> v1::NotifyRealm {
        v1::NotifyRealm { incarnation: self.incarnation, generation: self.generation(app) }
    }

    /// F3: where a publication stands that was called for in some realm: it is of this one, from before a loss or a
    /// reset, or of one that has not been heard of here.
    pub(crate) fn standing(&self, publication: &v1::Publication) -> Ordering {
        let theirs = (publication.incarnation, publication.generation);
        theirs.cmp(&(self.incarnation, self.generation(&publication.app)))
    }

    /// Whether a message was made in this realm.
    pub(crate) fn is(&self, app: &str, realm: Option<&v1::NotifyRealm>) -> bool {
        realm == Some(&self.message(app))
    }
}

/// Names one request to the store until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub u64);

/// What a machine wants of the store. The driver answers each exactly once, with an error after a time-out.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreRequest {
    /// Blind writes to one row; a failure of its group is an error.
    Write(v1::Apply),
    /// One row.
    Get(v1::Get),
    /// Rows in order.
    Scan(v1::Scan),
}

/// What the store says.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreReply {
    /// It is stable.
    Written,
    /// The row's live cells.
    Row(Option<v1::Row>),
    /// The rows, and where to go on.
    Rows(v1::Rows),
}

/// The store's answer; after an error a write may or may not have happened.
pub type StoreResult = Result<StoreReply, Error>;

/// A cell with a value.
pub(crate) fn cell(column: impl Into<Bytes>, timestamp: u64, value: impl Into<Bytes>) -> v1::Cell {
    v1::Cell { column: column.into(), timestamp, value: Some(value.into()) }
}

/// A tombstone.
pub(crate) fn gone(column: impl Into<Bytes>, timestamp: u64) -> v1::Cell {
    v1::Cell { column: column.into(), timestamp, value: None }
}

/// The column of an object or client.
pub(crate) fn column(kind: &[u8], name: &[u8]) -> Bytes {
    [kind, name].concat().into()
}

/// A row's key in an incarnation.
pub(crate) fn row(incarnation: u64, key: &[u8]) -> Bytes {
    [&incarnation.to_be_bytes()[..], key].concat().into()
}

/// What follows the incarnation in a row's key.
pub(crate) fn key_of_row(row: &[u8]) -> &[u8] {
    row.get(8..).unwrap_or(&[])
}

/// The row that keeps the copy of a client's registration.
pub(crate) fn bucket_row(incarnation: u64, object: &ObjectKey, client: &ClientKey) -> Bytes {
    let bucket = KeyHash::of(client.id()).0 as u8 % BUCKETS;
    row(incarnation, &[object.as_bytes(), &[bucket]].concat())
}

/// The scratch row of an object after so many failures (F11): the first is where later versions collapse.
pub(crate) fn scratch_row(incarnation: u64, object: &ObjectKey, salt: u8) -> Bytes {
    let hash = KeyHash::of(&[&[salt], object.as_bytes()].concat());
    row(incarnation, &[&hash.0.to_be_bytes(), object.as_bytes()].concat())
}

pub(crate) fn write(group: &'static [u8], row: Bytes, cells: Vec<v1::Cell>) -> StoreRequest {
    let rows = vec![v1::RowWrite { row, cells }];
    StoreRequest::Write(v1::Apply { groups: vec![v1::GroupWrite { group: group.into(), rows, fence: None }] })
}

pub(crate) fn get(group: &'static [u8], row: Bytes, columns: &[&'static [u8]]) -> StoreRequest {
    let key = Some(v1::RowKey { group: group.into(), row });
    StoreRequest::Get(v1::Get { key, columns: columns.iter().map(|name| Bytes::from_static(name)).collect() })
}

pub(crate) fn scan(group: &'static [u8], span: Span, limit: u32, columns: &[&'static [u8]]) -> StoreRequest {
    let columns = columns.iter().map(|name| Bytes::from_static(name)).collect();
    StoreRequest::Scan(v1::Scan { group: group.into(), start: span.start, end: span.end, limit, columns })
}

/// Rows from `start` up to, not including, `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub start: Bytes,
    pub end: Bytes,
}

impl Span {
    /// The rows of a range; a range that wraps is cut first.
    pub fn of_range(incarnation: u64, range: KeyRange) -> Span {
        let start = row(incarnation, &range.start.0.to_be_bytes());
        let end = match range.last.0.checked_add(1) {
            Some(next) => row(incarnation, &next.to_be_bytes()),
            None => Bytes::copy_from_slice(&incarnation.saturating_add(1).to_be_bytes()),
        };
        Span { start, end }
    }

    /// An object's rows: its own and its buckets.
    pub fn of_object(incarnation: u64, object: &ObjectKey) -> Span {
        let end = row(incarnation, &[object.as_bytes(), &[BUCKETS]].concat());
        Span { start: row(incarnation, object.as_bytes()), end }
    }

    /// All rows that begin so; the last byte of a key's prefix is never 0xff here (a length or a uuid follows).
    pub fn of_prefix(incarnation: u64, prefix: &[u8]) -> Span {
        let end = row(incarnation, &[prefix, &[0xff; 17]].concat());
        Span { start: row(incarnation, prefix), end }
    }
}

/// A stretch of the ring so short is not cut when it cannot be read: a 64th of it.
const SHORTEST: u128 = 1 << 58;

/// A stretch of the ring whose rows are read page by page, around those that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// What is left of it.
    pub range: KeyRange,
    from: Option<Bytes>,
}

impl Stretch {
    /// All rows of a range.
    pub fn new(range: KeyRange) -> Stretch {
        Stretch { range, from: None }
    }

    /// Its rows.
    pub fn span(&self, incarnation: u64) -> Span {
        let all = Span::of_range(incarnation, self.range);
        Span { start: self.from.clone().unwrap_or(all.start), ..all }
    }

    /// What is left behind a page, which says where the next begins.
    pub fn behind(&self, next: Bytes) -> Stretch {
        let at = next.get(8..16).and_then(|hash| hash.try_into().ok()).map(|hash| KeyHash(u64::from_be_bytes(hash)));
        let start = at.filter(|at| self.range.contains(*at)).unwrap_or(self.range.start);
        Stretch { range: KeyRange::new(start, self.range.last), from: Some(next) }
    }

    /// F11: other rows are not held up by some that fail. Its halves, to be read apart; none if it is short.
    pub fn halves(&self) -> Option<[Stretch; 2]> {
        let (left, right) = self.range.halves().filter(|_| self.range.len() > SHORTEST)?;
        Some([Stretch { range: left, from: self.from.clone() }, Stretch::new(right)])
    }
}

/// The value and stamp of a column of a row.
pub(crate) fn find<'a>(row: &'a v1::Row, column: &[u8]) -> Option<(u64, &'a Bytes)> {
    let cell = row.cells.iter().find(|cell| cell.column == column)?;
    Some((cell.timestamp, cell.value.as_ref()?))
}
