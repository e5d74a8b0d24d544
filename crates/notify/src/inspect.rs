//! What lies in the store, for people who look: objects and clients of an application, page by page.
//!
//! Rows stand in the order of their hashes, so a list of one application's is a walk through all; whoever lists bounds
//! the walk.

use crate::names::{Channel, ClientKey, ObjectKey};
use crate::rows::{
    self, BEHIND, LOG, MATCHER, PENDING, PENDING_OF, PRESENCE, REG, REGISTRAR, Realm, Span, TOLD, UNK, VERSION,
};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use tidings_base::KeyRange;
use tidings_wire::v1;

/// Rows of one page.
const PAGE: u32 = 256;

/// The next page of objects: of all, or of one that is named.
pub fn objects_page(realm: &Realm, app: &str, object: &[u8], from: Option<Bytes>) -> v1::Scan {
    let span = match object.is_empty() {
        true => Span::of_range(realm.incarnation, KeyRange::FULL),
        false => Span::of_object(realm.incarnation, &ObjectKey::new(app, realm.generation(app), object)),
    };
    page(MATCHER, span, from)
}

/// The next page of clients.
pub fn clients_page(realm: &Realm, from: Option<Bytes>) -> v1::Scan {
    page(REGISTRAR, Span::of_range(realm.incarnation, KeyRange::FULL), from)
}

fn page(group: &'static [u8], span: Span, from: Option<Bytes>) -> v1::Scan {
    let Span { start, end } = span;
    v1::Scan { group: group.into(), start: from.unwrap_or(start), end, limit: PAGE, columns: Vec::new() }
}

/// Objects as they are gathered: one object has a row of its own and one for each bucket of registrations.
#[derive(Debug, Default)]
pub struct Objects {
    found: BTreeMap<Bytes, v1::ObjectInfo>,
}

impl Objects {
    /// Takes a row, if it is of this application as it is now.
    pub fn take(&mut self, realm: &Realm, app: &str, row: &v1::Row) {
        let key = rows::key_of_row(&row.row);
        let bucket = key.split_last().and_then(|(_, object)| ObjectKey::parse(object));
        let Some(object) = ObjectKey::parse(key).or(bucket) else { return };
        if object.app() != app || object.generation() != realm.generation(app) {
            return;
        }
        let name = Bytes::copy_from_slice(object.name());
        let info =
            self.found.entry(name.clone()).or_insert_with(|| v1::ObjectInfo { object: name, ..Default::default() });
        if let Some((version, source)) = rows::find(row, VERSION) {
            (info.version, info.source) = (version, source.clone());
        }
        info.pending |= rows::find(row, PENDING).is_some();
        let behind = rows::find(row, BEHIND).and_then(|(_, value)| value.as_ref().try_into().ok());
        info.behind = behind.map_or(info.behind, u64::from_be_bytes);
        info.registrations += count(row, REG);
    }

    /// How many there are so far.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// Whether there are none so far.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// All of them, in the order of their names.
    pub fn into_list(self) -> Vec<v1::ObjectInfo> {
        self.found.into_values().filter(|info| info.version > 0 || info.registrations > 0).collect()
    }
}

/// The client of a row, if it is of this application as it is now.
pub fn client(realm: &Realm, app: &str, row: &v1::Row) -> Option<v1::NotifyClientInfo> {
    let client = ClientKey::parse(rows::key_of_row(&row.row))?;
    let ours = client.app() == app && client.generation() == realm.generation(app);
    ours.then(|| v1::NotifyClientInfo {
        client: Some(client.to_message()),
        channel: rows::find(row, PRESENCE)
            .and_then(|(_, value)| Channel::from_bytes(value.get(..16)?))
            .map(|channel| v1::NotifyChannel { node: channel.node, number: channel.number }),
        registrations: count(row, REG),
        unacknowledged: names(row, LOG).chain(names(row, TOLD)).collect::<BTreeSet<_>>().len() as u32,
        unknown: count(row, UNK),
        pending: count(row, PENDING_OF),
        silent: false,
    })
}

fn count(row: &v1::Row, kind: &[u8]) -> u32 {
    names(row, kind).count() as u32
}

/// The objects that a row has a column of this kind for.
fn names<'a>(row: &'a v1::Row, kind: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    row.cells.iter().filter(|cell| cell.value.is_some()).filter_map(move |cell| cell.column.strip_prefix(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_an_object_are_gathered_and_those_of_others_left_out() {
        let realm = Realm { incarnation: 3, ..Realm::default() };
        let object = ObjectKey::new("a", 0, b"o");
        let ann = ClientKey::new("a", 0, "ann", [1; 16]);
        let row = |key: Bytes, cells| v1::Row { row: key, cells };
        let version = vec![rows::cell(VERSION, 7, "s"), rows::cell(PENDING, 7, "")];
        let reg = vec![rows::cell(rows::column(REG, ann.id()), 1, "")];
        let mut objects = Objects::default();
        objects.take(&realm, "a", &row(rows::row(3, object.as_bytes()), version.clone()));
        objects.take(&realm, "a", &row(rows::bucket_row(3, &object, &ann), reg));
        objects.take(&realm, "a", &row(rows::row(3, ObjectKey::new("b", 0, b"o").as_bytes()), version));
        let list = objects.into_list();
        assert_eq!(list.len(), 1);
        assert_eq!((list[0].version, list[0].registrations, list[0].pending), (7, 1, true));
        let channel = Channel { node: 2, number: 9 };
        let cells = vec![
            rows::cell(PRESENCE, 4, [&channel.to_bytes()[..], &[0; 8]].concat()),
            rows::cell(rows::column(REG, b"o"), 4, ""),
        ];
        let found = client(&realm, "a", &row(rows::row(3, ann.as_bytes()), cells)).unwrap();
        assert_eq!((found.registrations, found.channel.unwrap().node), (1, 2));
        assert_eq!(client(&realm, "b", &row(rows::row(3, ann.as_bytes()), vec![])), None);
    }
}
