//! Places by small numbers, so that thousands of entries about one node cost four bytes each.

use crate::path::Place;
use std::collections::BTreeMap;

/// A place that something here refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PlaceId(u32);

/// A cache key of an interned place: the node, or the listing of its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(u32);

impl PlaceId {
    /// The cache key of the node or of its listing.
    pub(super) fn key(self, listing: bool) -> Key {
        Key(self.0 << 1 | u32::from(listing))
    }
}

impl Key {
    pub(super) const MIN: Key = Key(0);

    pub(super) fn place(self) -> PlaceId {
        PlaceId(self.0 >> 1)
    }

    pub(super) fn is_listing(self) -> bool {
        self.0 & 1 == 1
    }
}

/// The places in use, counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    ids: BTreeMap<Place, PlaceId>,
    used: Vec<Used>,
    free: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Used {
    place: Option<Place>,
    uses: u32,
}

impl Places {
    /// The number of a place, if it is in use.
    pub(super) fn find(&self, place: &Place) -> Option<PlaceId> {
        self.ids.get(place).copied()
    }

    /// The number of a place, used once more.
    pub(super) fn hold(&mut self, place: &Place) -> PlaceId {
        if let Some(id) = self.ids.get(place) {
            self.used[id.0 as usize].uses += 1;
            return *id;
        }
        let used = Used { place: Some(place.clone()), uses: 1 };
        let id = match self.free.pop() {
            Some(index) => {
                self.used[index as usize] = used;
                PlaceId(index)
            }
            None => {
                self.used.push(used);
                // Half of the numbers: the lowest bit of a key says whether it is a listing.
                PlaceId(u32::try_from(self.used.len() - 1).expect("fewer places than memory holds"))
            }
        };
        self.ids.insert(place.clone(), id);
        id
    }

    /// The places in use below another one.
    pub(super) fn below<'a>(&'a self, place: &'a Place) -> impl Iterator<Item = (&'a Place, PlaceId)> {
        let from = Place { app: place.app.clone(), path: place.path.bound_below() };
        let within = move |at: &Place| at.app == place.app && at.path.is_within(&place.path);
        let all = self.ids.range(from..).take_while(move |(at, _)| within(at));
        all.filter(move |(at, _)| *at != place).map(|(at, id)| (at, *id))
    }

    /// Uses a place that is in use once more.
    pub(super) fn hold_again(&mut self, id: PlaceId) {
        self.used[id.0 as usize].uses += 1;
    }

    /// Ends one use.
    pub(super) fn release(&mut self, id: PlaceId) {
        let used = &mut self.used[id.0 as usize];
        used.uses = used.uses.checked_sub(1).expect("a place is released as often as it was held");
        if used.uses == 0
            && let Some(place) = used.place.take()
        {
            self.ids.remove(&place);
            self.free.push(id.0);
        }
    }

    /// A place in use.
    pub(super) fn get(&self, id: PlaceId) -> &Place {
        self.used[id.0 as usize].place.as_ref().expect("a held place has its name")
    }

    /// How many are in use.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_free_again_after_the_last_use() {
        let mut places = Places::default();
        let place = |path: &str| Place { app: "app".into(), path: crate::NodePath::parse(path).unwrap() };
        let a = places.hold(&place("/a"));
        assert_eq!(places.hold(&place("/a")), a);
        places.release(a);
        assert_eq!(places.find(&place("/a")), Some(a));
        assert_eq!((a.key(true).place(), a.key(true).is_listing(), a.key(false).is_listing()), (a, true, false));
        places.release(a);
        assert_eq!((places.find(&place("/a")), places.len()), (None, 0));
        assert_eq!(places.hold(&place("/b")), a);
        assert_eq!(places.get(a).path.as_str(), "/b");
    }

    #[test]
    fn what_is_below_a_place_is_found_among_its_neighbours() {
        let mut places = Places::default();
        for (app, path) in [
            ("app", "/"),
            ("app", "/a"),
            ("app", "/a-b"),
            ("app", "/a/x"),
            ("app", "/a/x/y"),
            ("app", "/b"),
            ("bpp", "/a/z"),
        ] {
            places.hold(&Place::parse(app, path).unwrap());
        }
        let below = |path| {
            let place = Place::parse("app", path).unwrap();
            places.below(&place).map(|(at, _)| at.path.as_str().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(below("/a"), ["/a/x", "/a/x/y"]);
        assert_eq!(below("/"), ["/a", "/a-b", "/a/x", "/a/x/y", "/b"]);
        assert!(below("/b").is_empty() && below("/c").is_empty());
    }
}
