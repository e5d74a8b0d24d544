//! What the matcher remembers of objects that few have registered, so that their publications need not read.
//!
//! F1, F6: what is remembered of an object was read under the present leases, and holds every registration that was answered
//! since: a registration is put in before its answer, and a page during which one was answered is not remembered.
//! What is in the store and not here (late writes of an owner before us, writes whose outcome is not known) was answered to
//! nobody, and whoever made it asks again. An owner that has lost its lease without knowing misses what its successor has
//! answered: so markers are cleared only while the lease holds.

use crate::names::{ClientKey, ObjectKey};
use crate::rows::{self, VERSION};
use bytes::Bytes;
use std::collections::BTreeMap;
use tidings_base::bounded::BoundedMap;
use tidings_wire::v1;

/// Objects that are remembered, and the registrations of one (some 100 bytes each); those with more are read page by page.
const MAX_OBJECTS: usize = 16_384;
const MAX_CLIENTS: usize = 64;

/// An object as a page of its rows shows it.
#[derive(Clone, Debug)]
pub(super) struct Page {
    /// The version that is stored, and who made it; only a first page has one.
    pub version: Option<(u64, Bytes)>,
    /// Clients, the number of each one's registration, and its source.
    pub clients: Vec<(ClientKey, u64, Bytes)>,
    /// Where the next page begins.
    pub next: Option<Bytes>,
}

impl Page {
    /// A page of an object's rows.
    pub fn of_rows(incarnation: u64, object: &ObjectKey, rows: v1::Rows) -> Page {
        let key = rows::row(incarnation, object.as_bytes());
        let own = rows.rows.first().filter(|row| row.row == key);
        let version = own.and_then(|row| rows::find(row, VERSION)).map(|(version, source)| (version, source.clone()));
        let (app, generation) = (object.app(), object.generation());
        let cells = rows.rows.iter().flat_map(|row| &row.cells);
        let clients = cells.filter_map(|cell| {
            let id = cell.column.strip_prefix(rows::REG)?;
            Some((ClientKey::of_id(app, generation, id)?, cell.timestamp, cell.value.clone()?))
        });
        Page { version, clients: clients.collect(), next: rows.next }
    }
}

#[derive(Clone, Debug)]
struct Object {
    version: u64,
    source: Bytes,
    clients: BTreeMap<ClientKey, (u64, Bytes)>,
}

/// What is remembered.
#[derive(Clone, Debug)]
pub(super) struct Known {
    objects: BoundedMap<ObjectKey, Object>,
    now: Mark,
}

/// What was known at some time: everything that was answered until then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark(u64);

impl Mark {
    fn pass(&mut self) {
        self.0 += 1;
    }
}

impl Known {
    pub fn new() -> Known {
        Known { objects: BoundedMap::new(MAX_OBJECTS), now: Mark::default() }
    }

    /// Nothing is known any more.
    pub fn forget(&mut self) {
        self.objects = BoundedMap::new(MAX_OBJECTS);
        self.now.pass();
    }

    /// To be asked for before a page is read, and given back with it.
    pub fn mark(&self) -> Mark {
        self.now
    }

    /// Remembers an object from its only page, unless something was answered since that was asked for, or a later version
    /// is on its way.
    pub fn learn(&mut self, object: &ObjectKey, mark: Mark, latest: u64, page: &Page) {
        if let (true, None, Some((version, source))) = (mark == self.now, &page.next, &page.version)
            && page.clients.len() <= MAX_CLIENTS
            && latest <= *version
        {
            let clients = page.clients.iter().map(|(client, seqno, source)| (client.clone(), (*seqno, source.clone())));
            let known = Object { version: *version, source: source.clone(), clients: clients.collect() };
            self.objects.insert(object.clone(), known);
        }
    }

    /// All of an object's rows, if they are known.
    pub fn page(&mut self, object: &ObjectKey) -> Option<Page> {
        let known = self.objects.get(object)?;
        let clients = known.clients.iter().map(|(client, (seqno, source))| (client.clone(), *seqno, source.clone()));
        Some(Page { version: Some((known.version, known.source.clone())), clients: clients.collect(), next: None })
    }

    /// A version is stored.
    pub fn published(&mut self, object: &ObjectKey, version: u64, source: &Bytes) {
        if let Some(known) = self.objects.get(object)
            && version > known.version
        {
            (known.version, known.source) = (version, source.clone());
        }
    }

    /// A registration, or its end, is stored and about to be answered.
    pub fn registered(&mut self, object: &ObjectKey, client: &ClientKey, seqno: u64, source: Option<Bytes>) {
        self.now.pass();
        let Some(known) = self.objects.get(object) else { return };
        if known.clients.get(client).is_some_and(|(later, _)| *later > seqno) {
            return;
        }
        match source {
            Some(source) => drop(known.clients.insert(client.clone(), (seqno, source))),
            None => drop(known.clients.remove(client)),
        }
        if known.clients.len() > MAX_CLIENTS {
            self.objects.remove(object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> ObjectKey {
        ObjectKey::new("shop", 0, b"prices")
    }

    fn client(n: u8) -> ClientKey {
        ClientKey::new("shop", 0, "ann", [n; 16])
    }

    fn page(clients: &[(u8, u64)]) -> Page {
        let clients = clients.iter().map(|(n, seqno)| (client(*n), *seqno, Bytes::new())).collect();
        Page { version: Some((7, Bytes::new())), clients, next: None }
    }

    fn clients(known: &mut Known) -> Option<Vec<u64>> {
        Some(known.page(&object())?.clients.into_iter().map(|(_, seqno, _)| seqno).collect())
    }

    #[test]
    fn what_was_answered_while_a_page_was_read_is_not_forgotten() {
        let mut known = Known::new();
        let mark = known.mark();
        known.registered(&object(), &client(2), 5, Some(Bytes::new()));
        known.learn(&object(), mark, 7, &page(&[(1, 3)]));
        assert_eq!(clients(&mut known), None);
        let mark = known.mark();
        known.learn(&object(), mark, 8, &page(&[(1, 3), (2, 5)]));
        assert_eq!(clients(&mut known), None, "version 8 has come since");
        known.learn(&object(), mark, 7, &page(&[(1, 3), (2, 5)]));
        assert_eq!(clients(&mut known), Some(vec![3, 5]));
        known.forget();
        assert_eq!(clients(&mut known), None);
        known.learn(&object(), mark, 7, &page(&[(1, 3)]));
        assert_eq!(clients(&mut known), None, "it was read under other leases");
    }

    #[test]
    fn later_numbers_win_and_crowds_are_read() {
        let mut known = Known::new();
        known.learn(&object(), known.mark(), 7, &page(&[(1, 3)]));
        known.registered(&object(), &client(1), 2, None);
        assert_eq!(clients(&mut known), Some(vec![3]));
        known.registered(&object(), &client(1), 4, None);
        assert_eq!(clients(&mut known), Some(vec![]));
        known.published(&object(), 6, &Bytes::new());
        assert_eq!(known.page(&object()).unwrap().version.unwrap().0, 7);
        for n in 0..=MAX_CLIENTS as u8 {
            known.registered(&object(), &client(n), 9, Some(Bytes::new()));
        }
        assert_eq!(clients(&mut known), None);
    }
}
