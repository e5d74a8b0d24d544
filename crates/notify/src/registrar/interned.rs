//! Names of objects, each kept once: a registration then takes four bytes for its object.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Interned names, counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    ids: BTreeMap<Arc<[u8]>, u32>,
    names: Vec<Option<(Arc<[u8]>, u32)>>,
    free: Vec<u32>,
}

impl Names {
    /// The number of a name, held once more.
    pub fn hold(&mut self, name: &[u8]) -> u32 {
        if let Some(id) = self.ids.get(name) {
            if let Some(Some((_, count))) = self.names.get_mut(*id as usize) {
                *count += 1;
            }
            return *id;
        }
        let name: Arc<[u8]> = name.into();
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.names.push(None);
                self.names.len() as u32 - 1
            }
        };
        if let Some(slot) = self.names.get_mut(id as usize) {
            *slot = Some((name.clone(), 1));
        }
        self.ids.insert(name, id);
        id
    }

    /// The number of a name that somebody holds.
    pub fn find(&self, name: &[u8]) -> Option<u32> {
        self.ids.get(name).copied()
    }

    /// The name of a number that is held.
    pub fn name(&self, id: u32) -> &[u8] {
        match self.names.get(id as usize) {
            Some(Some((name, _))) => name,
            _ => &[],
        }
    }

    /// Lets go once.
    pub fn release(&mut self, id: u32) {
        let Some(slot) = self.names.get_mut(id as usize) else { return };
        if let Some((_, count)) = slot {
            *count -= 1;
            if *count > 0 {
                return;
            }
        }
        if let Some((name, _)) = slot.take() {
            self.ids.remove(&name);
            self.free.push(id);
        }
    }

    /// How many names are held.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.ids.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_as_long_as_somebody_holds_it() {
        let mut names = Names::default();
        let (a, b) = (names.hold(b"a"), names.hold(b"b"));
        assert_eq!((names.hold(b"a"), names.name(a), names.find(b"b")), (a, &b"a"[..], Some(b)));
        names.release(a);
        assert_eq!(names.find(b"a"), Some(a));
        names.release(a);
        assert_eq!((names.find(b"a"), names.len()), (None, 1));
        assert_eq!(names.hold(b"c"), a);
    }
}
